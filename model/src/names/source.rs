//! What names hostnames on a Gateway: listeners and routes, and their order.

use std::sync::Arc;

use crate::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};

/// A listener or a route that names hostnames on a Gateway.
///
/// A source says by itself whether it is the Gateway's own or asks for a namespace, so a listener of the Gateway
/// cannot be put as if a tenant asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameSource {
    /// A listener of the Gateway itself (its hostname stands above claims) or of a ListenerSet (it asks for the
    /// set's namespace).
    Listener(ListenerKey),
    /// A route on listeners of the Gateway itself, with the hostnames that are left after intersection. One of the
    /// Gateway's namespace stands above claims; every other one asks for its own namespace.
    Route(ObjectKey),
    /// A route on a ListenerSet's listener that has no hostname. The set invited it, so it asks for the set's
    /// namespace, wherever the route itself is. On a set's listener *with* a hostname a route asks for nothing: it
    /// uses the names of the set.
    Guest(ListenerKey, ObjectKey),
}

impl NameSource {
    /// The namespace that has, or asks for, the names.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Listener(listener) | Self::Guest(listener, _) => {
                &listener.parent.name().namespace
            }
            Self::Route(route) => &route.name.namespace,
        }
    }

    /// In which way it asks.
    #[must_use]
    pub fn asked_by(&self) -> AskedBy {
        match self {
            Self::Listener(_) | Self::Guest(..) => AskedBy::Listener,
            Self::Route(route) if route.kind.routes_requests() => AskedBy::HttpRoute,
            Self::Route(_) => AskedBy::TlsRoute,
        }
    }

    /// Whether it is the own listener of `gateway`, or a route of its namespace on such a listener.
    #[must_use]
    pub fn is_own_of(&self, gateway: &ObjectName) -> bool {
        match self {
            Self::Listener(listener) => matches!(listener.parent, ParentKey::Gateway(_)),
            Self::Route(route) => route.name.namespace == gateway.namespace,
            Self::Guest(..) => false,
        }
    }
}

/// In which way a name is asked for. It matters in two cases only: what the Gateway reserves is open to routes
/// that it admits, and what a grant shares is shared among HTTPRoutes and GRPCRoutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AskedBy {
    /// By a ListenerSet's listener, or by a route that such a listener invited.
    Listener,
    /// By a TLSRoute on a listener of the Gateway itself.
    TlsRoute,
    /// By an HTTPRoute or GRPCRoute on a listener of the Gateway itself.
    HttpRoute,
}

impl AskedBy {
    /// Whether a route on a listener of the Gateway itself asks.
    #[must_use]
    pub fn is_route(self) -> bool {
        self != Self::Listener
    }
}

/// Upstream's precedence: the older object comes first, then the first one by `namespace/name`. It decides only
/// between askers of one pattern that nobody holds. Less comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Creation of the object, seconds since the epoch.
    created: i64,
    /// `namespace/name`, compared as one text, as upstream does.
    object: Arc<str>,
}

impl Rank {
    /// The rank of an object: of the ListenerSet for its listeners, of the route for a route.
    #[must_use]
    pub fn of(created: i64, object: &ObjectName) -> Self {
        Self {
            created,
            object: object.to_string().into(),
        }
    }
}
