//! Owns datagrams: UDP listeners, their sessions, and the forwarding between clients and backends.
//!
//! UDP has no connections, so a *session* stands for one: all datagrams of one client's address and port to one address
//! of a listener. The first datagram of a session chooses a backend and one of its endpoints, as a TCP connection does,
//! and opens a socket that is connected to the endpoint. The session keeps that socket, and so the endpoint sees one
//! source port for one client. Whatever the endpoint sends to that port goes back to the client, from the address that
//! the client sent to.
//!
//! - `run` is a datagram, or several of one sender that the kernel handed over in one piece.
//! - `sender` sends runs in one piece, and remembers which of them the kernel refuses.
//! - `socket` has the system calls. One call moves many datagrams where the kernel can do that.
//! - `sessions` is the table of a listener's sessions. It has neither sockets nor clocks.
//! - `session` is the life of one session: what its backend sends, how long it may be silent, and its log line.
//! - `listener` is the loop that receives datagrams from clients, finds or begins their sessions, and forwards them.
//!
//! Attackers can write any source address into a datagram. Three rules keep them from misusing this proxy:
//!
//! 1. A client receives what its backend sent, and nothing else. The proxy itself never answers.
//! 2. Everything that is kept for a client is bounded: the sessions in all, of each tenant and of each source, and the
//!    new sessions of a source in a second. Where a bound is reached, sessions of clients that have sent a single
//!    datagram give way, the oldest first. A client that was heard twice keeps its session.
//! 3. Nothing waits. If a socket does not take a datagram at once, the datagram is dropped and counted. A listener and
//!    a session handle one batch at a time and then let other tasks of their worker run.

mod listener;
mod run;
mod sender;
mod session;
mod sessions;
mod socket;

pub(crate) use listener::serve;

pub(crate) use socket::{BoundSocket, OpenSockets, bind, let_in};

/// Why a session ended. The set is closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// No datagram came from either side for too long.
    IdleTimeout,
    /// The endpoint's host reports that nobody listens there.
    BackendRefused,
    /// The endpoint no longer belongs to the backend.
    EndpointGone,
    /// The listener is gone, and its port is closed.
    NoListener,
    /// Another client needed the place, and this client had sent a single datagram.
    Displaced,
    /// The session was too old.
    MaxConnectionAge,
    /// This proxy ended, and its drain timeout was over.
    Drained,
    /// A defect of this proxy: the session's task panicked.
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
