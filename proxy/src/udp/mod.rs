//! Owns datagrams: UDP listeners, their sessions, and what is sent on for whom.
//!
//! UDP has no connections, so a *session* stands for one: all datagrams of one client's address and port to one address
//! of a listener. The first datagram of a session chooses a backend and one of its endpoints, as a TCP connection does,
//! and opens a socket that is connected to the endpoint. The session keeps that socket, and so the endpoint sees one
//! source port for one client. Whatever the endpoint sends to that port goes back to the client, from the address that
//! the client sent to.
//!
//! - `socket` has the system calls: many datagrams with one of them where the kernel can do that.
//! - `sessions` is the table of a listener's sessions, without sockets and clocks.
//! - `session` is the life of one session: what its backend sends, how long it may be silent, its log line.
//! - `listener` is the loop that takes datagrams from clients, finds or begins their sessions, and sends them on.
//!
//! Three rules keep this from being of use to attackers, who can write any source address into a datagram:
//!
//! 1. A client is sent what its backend sent, and nothing else. There is no answer that says "no".
//! 2. Everything that is kept for a client is bounded: sessions in all, of each tenant, and of each source, and new ones
//!    of a source in a second. Where a bound is reached, sessions of clients that have sent a single datagram give way,
//!    oldest first. A client that was heard twice keeps its session.
//! 3. Nothing waits. What a socket does not take at once is dropped and counted. A listener and a session handle one
//!    batch at a time and then let others of their worker have their turn.

mod listener;
mod session;
mod sessions;
mod socket;

pub(crate) use listener::serve;
pub(crate) use session::Permit;
pub(crate) use sessions::{Displaced, SessionSource};
pub(crate) use socket::bind;

use std::time::Duration;

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

/// Why a datagram was dropped. Closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The source cannot be a client's: its port is 0, or it is a listener of this proxy.
    InvalidSource,
    /// The Gateway lets nobody in but its load balancers, and this is from somebody else.
    UntrustedPeer,
    /// The port has no listener any more.
    NoListener,
    /// The listener has no route.
    NoRoute,
    /// A reference of the route is invalid, and this is of its share.
    InvalidBackend,
    /// The backend has no endpoints.
    NoEndpoints,
    /// The endpoint is a listener of this proxy.
    BackendLoop,
    /// No socket could be opened to any endpoint that was tried.
    BackendConnectFailed,
    /// The endpoint refused the datagrams before this one, and so did another one.
    BackendRefused,
    /// There are as many sessions as there may be, or the source has its part of them.
    Limit,
    /// The tenant has all sessions that it may have.
    TenantLimit,
    /// The source began more sessions in a second than one may.
    SourceRate,
    /// This proxy is about to end, and begins no sessions.
    Draining,
    /// The socket to the backend did not take it at once.
    BackendBusy,
    /// The socket to the client did not take it at once.
    ClientBusy,
    /// It is longer than the next hop takes.
    TooLarge,
    /// The kernel did not send it: there is no way to there, or a policy forbids it.
    SendFailed,
}

impl DropReason {
    /// The word for metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::InvalidSource => "InvalidSource",
            Self::UntrustedPeer => "UntrustedPeer",
            Self::NoListener => "NoListener",
            Self::NoRoute => "NoRoute",
            Self::InvalidBackend => "InvalidBackend",
            Self::NoEndpoints => "NoEndpoints",
            Self::BackendLoop => "BackendLoop",
            Self::BackendConnectFailed => "BackendConnectFailed",
            Self::BackendRefused => "BackendRefused",
            Self::Limit => "Limit",
            Self::TenantLimit => "TenantLimit",
            Self::SourceRate => "SourceRate",
            Self::Draining => "Draining",
            Self::BackendBusy => "BackendBusy",
            Self::ClientBusy => "ClientBusy",
            Self::TooLarge => "TooLarge",
            Self::SendFailed => "SendFailed",
        }
    }
}

/// Why a session ended. Closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Nothing came from either side for too long.
    IdleTimeout,
    /// The endpoint's host says that nobody listens there.
    BackendRefused,
    /// The endpoint is no longer one of the backend's.
    EndpointGone,
    /// The listener is gone, and its port closed.
    NoListener,
    /// Another client needed the place, and this one had sent a single datagram.
    Displaced,
    /// The session was too old.
    MaxConnectionAge,
    /// This proxy ended, and its time to drain was over.
    Drained,
    /// A defect of this proxy: the session's task panicked, or its socket failed.
    Internal,
}

impl SessionEnd {
    /// The word for metrics and logs.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::IdleTimeout => "IdleTimeout",
            Self::BackendRefused => "BackendRefused",
            Self::EndpointGone => "EndpointGone",
            Self::NoListener => "NoListener",
            Self::Displaced => "Displaced",
            Self::MaxConnectionAge => "MaxConnectionAge",
            Self::Drained => "Drained",
            Self::Internal => "Internal",
        }
    }
}
