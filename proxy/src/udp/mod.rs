//! Owns datagrams: UDP listeners, their sessions, and what is sent on for whom.
//!
//! UDP has no connections, so a *session* stands for one: all datagrams of one client's address and port to one address
//! of a listener. The first datagram of a session chooses a backend and one of its endpoints, as a TCP connection does,
//! and opens a socket that is connected to the endpoint. The session keeps that socket, and so the endpoint sees one
//! source port for one client. Whatever the endpoint sends to that port goes back to the client, from the address that
//! the client sent to.
//!
//! - `run` is a datagram, or several of one sender that the kernel handed over in one piece.
//! - `sender` sends runs on in one piece, and remembers which of them the kernel refuses.
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
mod run;
mod sender;
mod session;
mod sessions;
mod socket;

pub(crate) use listener::serve;

pub(crate) use socket::{BoundSocket, OpenSockets, bind, let_in};

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
