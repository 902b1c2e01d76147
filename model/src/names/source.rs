//! Sources of hostnames on a Gateway: listeners and routes, and the order among them.

use std::sync::Arc;

use crate::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};

/// A listener or route with hostnames on a Gateway.
///
/// Whether it is the Gateway's own, or asks for a namespace, follows from the source itself. So a listener of the
/// Gateway cannot be put by mistake as if a tenant asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameSource {
    /// A listener. One of the Gateway itself needs no claim. One of a ListenerSet asks for the namespace of the set.
    Listener(ListenerKey),
    /// A route on listeners of the Gateway itself, with the hostnames that are left after intersection. A route in the
    /// Gateway's namespace needs no claim. Every other route asks for its own namespace.
    Route(ObjectKey),
    /// A route on a listener without a hostname that belongs to a ListenerSet. The set allows the route, so the route
    /// asks for the namespace of the set, even if it is in another namespace itself. On a set's listener *with* a
    /// hostname, a route asks for nothing, because it uses the names of the set.
    Guest(Box<(ListenerKey, ObjectKey)>),
    /// One of the above that is refused for a mistake of its own, such as a value that cannot be read. It asks for
    /// nothing, so it gets no name. But its namespace keeps those of its names that it holds, and the names of the
    /// Gateway's own namespace stay reserved, so a mistake in an edit gives no name to somebody who waits for it.
    Refused(Box<NameSource>),
}

impl NameSource {
    /// The namespace that has the names or asks for them.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Listener(listener) => &listener.parent.name().namespace,
            Self::Guest(guest) => &guest.0.parent.name().namespace,
            Self::Route(route) => &route.name.namespace,
            Self::Refused(source) => source.namespace(),
        }
    }

    /// The way in which the source asks.
    #[must_use]
    pub fn asked_by(&self) -> AskedBy {
        match self {
            Self::Guest(_) if self.is_guest() => AskedBy::Guest,
            Self::Listener(_) | Self::Guest(_) => AskedBy::Listener,
            Self::Route(route) if route.kind.routes_requests() => AskedBy::HttpRoute,
            Self::Route(_) => AskedBy::TlsRoute,
            Self::Refused(_) => AskedBy::Refused,
        }
    }

    /// Whether it is a route of another namespace than the one that it asks for, also if it is refused.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        match self {
            Self::Guest(guest) => guest.1.name.namespace != *self.namespace(),
            Self::Listener(_) | Self::Route(_) => false,
            Self::Refused(source) => source.is_guest(),
        }
    }

    /// Whether it is a listener of `gateway` itself, or a route in the Gateway's namespace on such a listener.
    #[must_use]
    pub fn is_own_of(&self, gateway: &ObjectName) -> bool {
        match self {
            Self::Listener(listener) => matches!(listener.parent, ParentKey::Gateway(_)),
            Self::Route(route) => route.name.namespace == gateway.namespace,
            Self::Guest(_) => false,
            Self::Refused(source) => source.is_own_of(gateway),
        }
    }
}

/// The way in which a name is asked for. It matters in five cases only. A name that the Gateway reserves is open to
/// routes that the Gateway admits. Only HTTPRoutes and GRPCRoutes can use a name that a grant shares. Guests of another
/// namespace use up only a part of the limit of names, and on ListenerSets of the Gateway's namespace they have none of its
/// privileges. A listener or route that is refused gets no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AskedBy {
    /// By a ListenerSet's listener, or by a route of the same namespace on such a listener without a hostname.
    Listener,
    /// By a route of another namespace on a ListenerSet's listener without a hostname.
    Guest,
    /// By a TLSRoute on a listener of the Gateway itself.
    TlsRoute,
    /// By an HTTPRoute or GRPCRoute on a listener of the Gateway itself.
    HttpRoute,
    /// By a listener or route that is refused, so it only keeps what its namespace holds.
    Refused,
}

impl AskedBy {
    /// Whether a route on a listener of the Gateway itself asks.
    #[must_use]
    pub fn is_route(self) -> bool {
        matches!(self, Self::TlsRoute | Self::HttpRoute)
    }
}

/// The precedence of Gateway API: the older object comes first, and of the same age, the lesser `namespace/name`. It
/// decides only between sources that ask for names that nobody holds: for one pattern, or for a wildcard and a pattern
/// inside it. The lesser rank comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Creation of the object, in seconds since the Unix epoch.
    created: i64,
    /// `namespace/name`, compared as one text, as upstream does.
    object: Arc<str>,
}

impl Rank {
    /// The rank of an object. A listener has the rank of its ListenerSet.
    #[must_use]
    pub fn of(created: i64, object: &ObjectName) -> Self {
        Self {
            created,
            object: object.to_string().into(),
        }
    }
}
