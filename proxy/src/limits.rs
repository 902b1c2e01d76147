//! What one proxy allows: its limits on connections, requests and datagrams, with their defaults.

use std::time::Duration;

use crate::bounds::Bounds;
use crate::overload::OverloadLevel;

/// How long a connection may stay without a request while this proxy is short of something.
const SHORT_IDLE: Duration = Duration::from_secs(10);
/// The same while it is nearly out of it, and the other times that a client then has.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
const SHORTEST_HEAD: Duration = Duration::from_secs(5);
const SHORTEST_STALL: Duration = Duration::from_secs(10);

/// What one proxy process allows.
#[derive(Clone, Debug)]
pub struct ProxyLimits {
    /// Longest ClientHello in bytes, as it comes on the wire.
    pub hello_bytes: usize,
    /// Time from accept until the ClientHello is complete.
    pub hello_deadline: Duration,
    /// Time from the ClientHello until the TLS handshake is done.
    pub handshake_deadline: Duration,
    /// Time to connect to a backend.
    pub connect_deadline: Duration,
    /// Time without traffic after which the kernel asks whether a peer is still there.
    pub keepalive: Duration,
    /// Connections at one time of which it is known which tenant they are for, over all workers.
    pub max_connections: usize,
    /// Percent of them that is kept for the tenants, in equal shares.
    pub guaranteed_percent: u8,
    /// Connections at one time that have not finished hello and handshake; in plaintext, those of which no request
    /// reached a route. Each may hold 32 KiB of what its client sent. One source address alone can hold half of them.
    pub max_hellos: usize,
    /// New connections of one source per second: an IPv4 address or an IPv6 /64. 0: as many as come.
    pub source_connections_per_second: u32,
    /// What clients of HTTP and HTTPS listeners may do.
    pub http: HttpLimits,
    /// What clients of UDP listeners may have.
    pub udp: UdpLimits,
    /// What Gateways may set otherwise.
    pub bounds: Bounds,
    /// Time that a connection has to end once it is too old.
    pub age_grace: Duration,
    /// Whether a line is logged per connection or request.
    pub access_log: bool,
    /// Lines of one tenant per second. 0: as many as come.
    pub access_log_lines_per_second: u32,
    /// Percent of the lines that are logged, chosen at random, before they count.
    pub access_log_percent: u8,
    /// Percent of memory, open files or connections in use from which on less is offered. 100: never.
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

/// What a client of an HTTP or HTTPS listener may do.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Most bytes of a request's head.
    pub head_bytes: u32,
    /// Most fields in a request's head (HTTP/1.1; HTTP/2 is bounded by the bytes).
    pub fields: usize,
    /// Time from the first byte of a head to its end.
    pub head_deadline: Duration,
    /// Time that a connection may stay without a request.
    pub idle: Duration,
    /// Time that a client may neither send the rest of a request nor take the rest of an answer.
    pub stall: Duration,
    /// Requests at one time on an HTTP/2 connection.
    pub streams: u32,
    /// Requests that a client may take back faster than they are looked at, on an HTTP/2 connection.
    /// More of them end the connection.
    pub resets: usize,
    /// Requests that the client of an HTTP/2 connection may cancel before their answer is complete. Each
    /// answer of a backend that it takes whole gives one back, and so does time. More of them end the
    /// connection.
    pub cancels: u32,
    /// Which requests are tried again after their connection broke.
    pub repeat: Repeat,
    /// What becomes of request headers whose name has an underscore.
    pub underscores: Underscores,
    /// What becomes of requests whose path has an escaped slash or a backslash.
    pub escaped_slashes: EscapedSlashes,
}

impl HttpLimits {
    /// What is left of them at a step of overload.
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

/// Which requests are tried again, once, on another connection or endpoint. None that has a body, and
/// none of whose answer a part has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// Only those that no backend has seen.
    Unseen,
    /// Also those whose method is idempotent (RFC 9110 section 9.2.2, which lets a proxy do so): GET,
    /// HEAD, OPTIONS, TRACE, PUT and DELETE.
    #[default]
    Idempotent,
}

/// What becomes of request headers whose name has an underscore. Backends behind CGI, WSGI and their
/// like read `x_forwarded_for` and `x-forwarded-for` as one name, so the first would pass for the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// They are taken out.
    #[default]
    Drop,
    /// The request is refused.
    Refuse,
    /// They are passed on, unless with dashes they are fields that this proxy sets or takes out.
    Allow,
}

/// What becomes of requests whose path has a slash that is written as `%2f`, `\` or `%5c`. Routes do not
/// take it for a slash, and the backend may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// They are refused.
    #[default]
    Refuse,
    /// They are matched and passed on as they are written.
    Keep,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            fields: 100,
            head_deadline: Duration::from_secs(10),
            // Longer than common clients keep theirs, so that mostly they end it.
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

/// What clients of UDP listeners may have.
#[derive(Clone, Copy, Debug)]
pub struct UdpLimits {
    /// Sessions at one time, over all workers. Each has a socket with a port of its own.
    pub max_sessions: usize,
    /// Time without a datagram in either direction after which a session ends.
    pub idle: Duration,
    /// New sessions of one source per second: an IPv4 address or an IPv6 /64. 0: as many as come.
    pub source_sessions_per_second: u32,
}

impl Default for UdpLimits {
    fn default() -> Self {
        Self {
            // Linux has 28,232 ports for such sockets by default.
            max_sessions: 20_000,
            idle: Duration::from_mins(1),
            source_sessions_per_second: 5_000,
        }
    }
}
