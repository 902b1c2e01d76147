//! Owns the result of a selection: the listener and the route of a connection or request, or the reason why there is no
//! listener.

use std::sync::Arc;

use super::route::Route;
use crate::close_reason::CloseReason;
use crate::http_route::HttpTable;
use crate::listener::Listener;
use crate::owners::HostnameGuard;
use crate::quota::TenantQuota;

/// The selection for a connection.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The most specific listener.
    pub listener: Arc<Listener>,
    /// The route; `None` if the listener has none for this name. Then close the connection without an alert. Never fall
    /// back to a less specific listener.
    pub route: Option<Arc<Route>>,
    /// The quota to which the connection is charged: that of the route or, without one, of the owner of the name.
    pub(crate) account: Arc<TenantQuota>,
}

/// The selection for an HTTP request.
pub(crate) struct HttpSelection<'a> {
    /// The most specific listener.
    pub(crate) listener: Arc<Listener>,
    /// Its routes.
    pub(crate) routes: HttpTable,
    /// Decides which of them may serve the host of the request.
    pub(crate) guard: HostnameGuard<'a>,
}

/// Why no listener was selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// The bind is not in the configuration (any more).
    NoBind,
    /// No listener of the bind matches the server name.
    NoListener,
    /// There is no server name, and every listener of the bind has a hostname.
    NoServerName,
}

impl From<Unmatched> for CloseReason {
    fn from(unmatched: Unmatched) -> Self {
        match unmatched {
            Unmatched::NoBind => Self::NoListener,
            Unmatched::NoListener => Self::UnknownServerName,
            Unmatched::NoServerName => Self::NoServerName,
        }
    }
}
