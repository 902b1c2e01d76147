//! Owns the places of UDP sessions: what each counts against, whose gives way, and why a datagram gets none.

use vestibule_serve::places::{Place, Source};

use crate::bind::BindKey;
use crate::quota::QuotaGuard;

/// Whose sessions have a bound together: those of a source on one listener. Anybody can make up a source, so what is sent
/// to one listener must not keep that source from another one.
pub(crate) type SessionSource = (Source, BindKey);

/// Whose session gives way to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Displaced {
    /// One of the same source.
    Own,
    /// Whosever is the oldest.
    Anybodys,
}

/// What a session may count against.
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

/// Why a datagram was dropped. Closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The source cannot be a client's: its port is 0, or it is a listener of this proxy.
    InvalidSource,
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
