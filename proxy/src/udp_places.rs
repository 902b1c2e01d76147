//! Owns the places of UDP sessions: what each counts against, which session gives way, and why a datagram gets no
//! session.

use vestibule_serve::places::{Place, Source};

use crate::bind::BindKey;
use crate::quota::QuotaGuard;

/// The source of a session on one listener. Its sessions have a bound together. Anybody can make up a source, so
/// datagrams to one listener must not keep that source from another listener.
pub(crate) type SessionSource = (Source, BindKey);

/// Which sessions may give way to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Displaced {
    /// Only sessions of the same source.
    Own,
    /// Sessions of any source.
    Anybodys,
}

/// A session's share of each bound. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Permit {
    _place: Place<SessionSource>,
    _guard: QuotaGuard,
}

impl Permit {
    pub(crate) fn new(place: Place<SessionSource>, guard: QuotaGuard) -> Self {
        Self {
            _place: place,
            _guard: guard,
        }
    }
}

/// Why a datagram was dropped. The set is closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The source cannot be a client's: its port is 0, or it is a listener of this proxy.
    InvalidSource,
    /// The port no longer has a listener.
    NoListener,
    /// The listener has no route.
    NoRoute,
    /// A reference of the route is invalid, and this datagram falls into its share.
    InvalidBackend,
    /// The backend has no endpoints.
    NoEndpoints,
    /// The endpoint is a listener of this proxy.
    BackendLoop,
    /// No socket could be opened to any endpoint that was tried.
    BackendConnectFailed,
    /// The endpoint refused earlier datagrams, and so did another one.
    BackendRefused,
    /// All places for sessions are taken, or the source has its share of them.
    Limit,
    /// The tenant has as many sessions as it may have.
    TenantLimit,
    /// The source began more sessions in this second than it may.
    SourceRate,
    /// This proxy is shutting down and begins no sessions.
    Draining,
    /// The socket to the backend had no room.
    BackendBusy,
    /// The socket to the client had no room.
    ClientBusy,
    /// The datagram is longer than the next hop accepts.
    TooLarge,
    /// The kernel did not send it: there is no route, or a policy forbids it.
    SendFailed,
}

impl DropReason {
    /// The word for metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::InvalidSource => "InvalidSource",
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
