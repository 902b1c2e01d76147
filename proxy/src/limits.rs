//! The limits of a proxy on connections, requests and datagrams, with their defaults.

use std::time::Duration;

pub use vestibule_model::parameters::{EscapedSlashes, Underscores};

use crate::bounds::Bounds;
use crate::overload::OverloadLevel;

/// How long a connection may stay without a request while this proxy is short of memory, files or connections.
const SHORT_IDLE: Duration = Duration::from_secs(10);
/// The same while the proxy has nearly run out. Other time limits for clients are bounded by it then, too.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
const SHORTEST_HEAD: Duration = Duration::from_secs(5);
const SHORTEST_STALL: Duration = Duration::from_secs(10);
/// The same for a request that waits for its backend without a byte in either direction.
pub(crate) const SHORTEST_STREAM_IDLE: Duration = Duration::from_secs(30);

/// The limits of one proxy process.
#[derive(Clone, Debug)]
pub struct ProxyLimits {
    /// Longest ClientHello in bytes, counted on the wire.
    pub hello_bytes: usize,
    /// Time from accept until the ClientHello is complete.
    pub hello_deadline: Duration,
    /// Time from the ClientHello until the TLS handshake is done.
    pub handshake_deadline: Duration,
    /// Time to connect to a backend.
    pub connect_deadline: Duration,
    /// Time without traffic after which the kernel asks whether a peer is still there.
    pub keepalive: Duration,
    /// Most connections at one time whose tenant is known, on all workers together.
    pub max_connections: usize,
    /// Percentage of them that is reserved for the tenants, in equal shares.
    pub guaranteed_percent: u8,
    /// Most connections at one time that have not finished hello and handshake or, in plaintext, have had no request
    /// that reached a route. Each may hold 32 KiB that its client sent. One source address alone can hold half of them.
    pub max_hellos: usize,
    /// Most new connections of one source per second. A source is an IPv4 address or an IPv6 /64. 0 means no limit.
    pub source_connections_per_second: u32,
    /// Limits for clients of HTTP and HTTPS listeners.
    pub http: HttpLimits,
    /// Limits for clients of UDP listeners.
    pub udp: UdpLimits,
    /// Limits that a Gateway may replace.
    pub bounds: Bounds,
    /// Time in which a connection has to end after it has reached its maximum age.
    pub age_grace: Duration,
    /// Whether there is a log line for each connection or request.
    pub access_log: bool,
    /// Most log lines of one tenant per second. 0 means no limit.
    pub access_log_lines_per_second: u32,
    /// Percentage of lines that are logged. They are chosen at random, before the limit per second counts.
    pub access_log_percent: u8,
    /// Percentage of memory, open files or connections in use at which the proxy begins to offer less. 100 means never.
    pub overload_percent: u8,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            hello_bytes: 16 * 1024,
            hello_deadline: Duration::from_secs(5),
            handshake_deadline: Duration::from_secs(10),
            connect_deadline: Duration::from_secs(5),
            keepalive: Duration::from_mins(2),
            max_connections: 100_000,
            guaranteed_percent: 50,
            max_hellos: 10_000,
            source_connections_per_second: 5_000,
            http: HttpLimits::default(),
            udp: UdpLimits::default(),
            bounds: Bounds::default(),
            age_grace: Duration::from_mins(1),
            access_log: true,
            access_log_lines_per_second: 5_000,
            access_log_percent: 100,
            overload_percent: 80,
        }
    }
}

/// Pseudo-header fields that HTTP/2 has (RFC 9113 section 8.3.1, RFC 8441).
const PSEUDO_FIELDS: usize = 5;

/// The limits for a client of an HTTP or HTTPS listener.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Most bytes of a request's head.
    pub head_bytes: u32,
    /// Most header fields of a request. In HTTP/2, twice as many may be parts of its cookies in addition.
    pub fields: usize,
    /// Time from the first byte of a head to its end.
    pub head_deadline: Duration,
    /// Time that a connection may stay without a request.
    pub idle: Duration,
    /// Time in which a client may neither send more of a request nor read more of a response.
    pub stall: Duration,
    /// Most requests at one time on an HTTP/2 connection.
    pub streams: u32,
    /// Most requests that the client of an HTTP/2 connection may cancel before the proxy has looked at them. If there
    /// are more, the connection ends.
    pub resets: usize,
    /// Most requests that the client of an HTTP/2 connection may cancel before their response is complete. Each
    /// response of a backend that it reads to the end gives one back, and so does time. If there are more, the
    /// connection ends.
    pub cancels: u32,
    /// Which requests are sent again after their connection broke.
    pub repeat: Repeat,
    /// The treatment of request headers whose name has an underscore.
    pub underscores: Underscores,
    /// The treatment of requests whose path has an escaped slash or a backslash.
    pub escaped_slashes: EscapedSlashes,
}

impl HttpLimits {
    /// Most fields into which an HTTP/2 client may split the cookies of a request (RFC 9113 section 8.2.3). Browsers
    /// keep about 180 cookies for a host, and may send each of them in a field of its own.
    pub(crate) fn crumbs(&self) -> usize {
        self.fields.saturating_mul(2)
    }

    /// Most fields of a head in HTTP/2 that are decoded: all that a request may have, and the pseudo-header fields.
    pub(crate) fn decoded_fields(&self) -> usize {
        self.fields
            .saturating_add(self.crumbs())
            .saturating_add(PSEUDO_FIELDS)
    }

    /// The treatment of ambiguous requests at a Gateway with these settings: its own and, where it sets none, that of the
    /// release.
    pub(crate) fn ambiguity(&self, set: HttpOverrides) -> Ambiguity {
        Ambiguity {
            underscores: set.underscores.unwrap_or(self.underscores),
            escaped_slashes: set.escaped_slashes.unwrap_or(self.escaped_slashes),
        }
    }

    /// The limits at a level of overload.
    pub(crate) fn at(&self, step: OverloadLevel) -> Self {
        let mut limits = self.clone();
        if step >= OverloadLevel::KeepAlive {
            limits.idle = limits.idle.min(SHORT_IDLE);
        }
        if step >= OverloadLevel::Timeouts {
            limits.idle = limits.idle.min(SHORTEST_IDLE);
            limits.head_deadline = limits.head_deadline.min(SHORTEST_HEAD);
            limits.stall = limits.stall.min(SHORTEST_STALL);
        }
        limits
    }
}

/// Which requests are sent again, once, on another connection or to another endpoint, after their connection broke. A
/// request with a body is not, and neither is one whose response has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// Only those that no backend has seen.
    Unseen,
    /// Also those with an idempotent method: GET, HEAD, OPTIONS, TRACE, PUT and DELETE. RFC 9110 section 9.2.2 allows a
    /// proxy to repeat these.
    #[default]
    Idempotent,
}

/// The treatment of ambiguous requests that a Gateway sets. `None` keeps that of the release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpOverrides {
    pub(crate) underscores: Option<Underscores>,
    pub(crate) escaped_slashes: Option<EscapedSlashes>,
}

/// The treatment of ambiguous requests: those that a backend could read in another way than this proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ambiguity {
    pub(crate) underscores: Underscores,
    pub(crate) escaped_slashes: EscapedSlashes,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            fields: 100,
            head_deadline: Duration::from_secs(10),
            // This is longer than common clients keep idle connections, so mostly the client ends them.
            idle: Duration::from_mins(2),
            stall: Duration::from_mins(2),
            streams: 100,
            resets: 20,
            cancels: 200,
            repeat: Repeat::default(),
            underscores: Underscores::default(),
            escaped_slashes: EscapedSlashes::default(),
        }
    }
}

/// The limits for clients of UDP listeners.
#[derive(Clone, Copy, Debug)]
pub struct UdpLimits {
    /// Most sessions at one time, on all workers together. Each has a socket with a port of its own.
    pub max_sessions: usize,
    /// Time without a datagram in either direction after which a session ends.
    pub idle: Duration,
    /// Most new sessions of one source per second. A source is an IPv4 address or an IPv6 /64. 0 means no limit.
    pub source_sessions_per_second: u32,
}

impl Default for UdpLimits {
    fn default() -> Self {
        Self {
            // By default, Linux has 28,232 ports for such sockets.
            max_sessions: 20_000,
            idle: Duration::from_mins(1),
            source_sessions_per_second: 5_000,
        }
    }
}
