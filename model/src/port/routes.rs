//! TCPRoutes and UDPRoutes on the Gateway's own listener of a port: which namespace gets the traffic.
//!
//! TCP and UDP carry no names by which two namespaces could share such a listener, so a namespace holds the port
//! itself. Upstream gives all traffic to the oldest route. Here the age decides within a namespace, and between
//! namespaces only while nobody holds the port. Otherwise an old route that is edited or restored would take the port
//! from the team that serves it. Routes of the Gateway's own namespace come before all claims, as its listeners do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Changed, PortClaims, count_down};
use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::{ObjectKey, PortKey};
use crate::names::Rank;
use crate::protocol::Group;

/// The routes on the Gateway's own listener of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PortRoutes {
    /// The routes of tenants that are not refused, in upstream's order.
    tenants: BTreeSet<(Rank, ObjectKey)>,
    /// The routes of the Gateway's own namespace.
    own: BTreeSet<ObjectKey>,
    /// The routes of tenants that are refused.
    refused: BTreeSet<ObjectKey>,
    ranks: BTreeMap<ObjectKey, Rank>,
    /// How many routes each tenant has there, including those that are refused.
    counts: BTreeMap<Arc<str>, usize>,
}

/// The way in which a TCPRoute or UDPRoute asks for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortAskedBy {
    /// By a route of the Gateway's own namespace, which comes before all claims. It keeps the port even if it is
    /// refused.
    Own,
    /// By a tenant's route.
    Tenant,
    /// By a tenant's route that is refused for a mistake of its own. It asks for nothing, but its namespace keeps the
    /// port if it holds it, so a mistake in an edit gives no port to somebody who waits for it.
    Refused,
}

/// Whether a namespace may have the traffic of the Gateway's own TCP or UDP listener of a port. It does not say who
/// else has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortDecision {
    /// The namespace holds the port, or is the Gateway's own.
    Has,
    /// Nobody holds the port. The route is served as soon as the claim is recorded, if no other namespace gets it
    /// first.
    Free,
    /// Another namespace holds the port.
    Taken,
    /// A route of the Gateway's own namespace has the port.
    Reserved,
}

impl PortDecision {
    /// The finding for the author of the route; `None` if the decision does not refuse.
    #[must_use]
    pub fn finding(self, at: &PortKey) -> Option<Finding> {
        let PortKey {
            gateway,
            port,
            transport,
        } = at;
        let port = format!("{} port {port}", transport.as_str());
        let message = match self {
            Self::Has | Self::Free => return None,
            Self::Taken => format!("{port} of Gateway {gateway} belongs to another namespace"),
            Self::Reserved => format!("{port} is reserved for Gateway {gateway} itself"),
        };
        Some(Finding::refused(
            Reason::PortConflict,
            "spec.parentRefs",
            message,
            "use a listener on another port, or ask the owner of the Gateway",
        ))
    }
}

/// Everything that the decisions about all routes depend on, apart from their namespaces.
#[derive(PartialEq)]
pub(super) struct RoutesState {
    /// Whether the Gateway has listeners on the port, and whether all of them are for bytes or datagrams.
    own: (bool, bool),
    is_reserved: bool,
    holder: Option<Arc<str>>,
    /// The next holder, if nobody holds the port.
    next: Option<Arc<str>>,
}

impl PortClaims {
    /// Puts a route on the Gateway's own listener with this rank, or removes it (`None`). Returns the routes whose
    /// decision may have changed, including this one.
    pub fn put_route(&mut self, route: &ObjectKey, asks: Option<(Rank, PortAskedBy)>) -> Changed {
        let before = self.routes_state();
        self.routes.remove(route);
        if let Some((rank, by)) = asks {
            self.routes.insert(route, rank, by);
        }
        let mut routes = self.routes_unless(&before);
        routes.insert(route.clone());
        Changed {
            routes,
            ..Changed::default()
        }
    }

    /// Whether a route of this namespace may have the traffic of the Gateway's own listener. `is_own` says whether it
    /// is the Gateway's namespace.
    #[must_use]
    pub fn decide_route(&self, namespace: &str, is_own: bool) -> PortDecision {
        // If the Gateway has listeners that are not all raw, they contradict each other and none of them is served, so
        // there is nothing to decide.
        if is_own || !self.own.is_empty() && !self.is_own_raw() {
            return PortDecision::Has;
        }
        if self.is_reserved() {
            return PortDecision::Reserved;
        }
        match self.raw_holder() {
            Some(holder) if **holder == *namespace => PortDecision::Has,
            Some(_) => PortDecision::Taken,
            // The Gateway's listener is refused, so nothing is served and nobody can become the holder.
            None if self.own.is_empty() => PortDecision::Has,
            None => PortDecision::Free,
        }
    }

    /// The tenant with the first route on the Gateway's own listener, whoever holds the port. `None` if a route of the
    /// Gateway's namespace has the port, or if the Gateway's own listeners there are not all TCP or UDP.
    #[must_use]
    pub fn next_of_routes(&self) -> Option<&Arc<str>> {
        if !self.is_own_raw() || self.is_reserved() {
            return None;
        }
        let (_, route) = self.routes.tenants.first()?;
        Some(&route.name.namespace)
    }

    /// Whether the Gateway itself has listeners on the port, and all of them are TCP or UDP listeners.
    pub(super) fn is_own_raw(&self) -> bool {
        !self.own.is_empty() && self.own.keys().all(|group| *group == Group::Raw)
    }

    /// Whether a route of the Gateway's own namespace gets the traffic.
    pub(super) fn is_reserved(&self) -> bool {
        !self.routes.own.is_empty()
    }

    /// Whether a tenant has a route there, even if it is refused.
    pub(super) fn has_route_of(&self, namespace: &Arc<str>) -> bool {
        self.routes.counts.contains_key(namespace)
    }

    /// The routes whose decision may have changed, if `before` is what the decisions depended on. They are none if it
    /// is the same now.
    pub(super) fn routes_unless(&self, before: &RoutesState) -> BTreeSet<ObjectKey> {
        if self.routes_state() == *before {
            return BTreeSet::new();
        }
        self.routes.ranks.keys().cloned().collect()
    }

    fn raw_holder(&self) -> Option<&Arc<str>> {
        let (holder, _) = self
            .holder
            .as_ref()
            .filter(|(_, group)| *group == Group::Raw)?;
        Some(holder)
    }

    pub(super) fn routes_state(&self) -> RoutesState {
        let holder = self.raw_holder().cloned();
        RoutesState {
            own: (!self.own.is_empty(), self.is_own_raw()),
            is_reserved: self.is_reserved(),
            next: match holder {
                Some(_) => None,
                None => self.next_of_routes().cloned(),
            },
            holder,
        }
    }
}

impl PortRoutes {
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    fn insert(&mut self, route: &ObjectKey, rank: Rank, by: PortAskedBy) {
        self.ranks.insert(route.clone(), rank.clone());
        match by {
            PortAskedBy::Own => {
                self.own.insert(route.clone());
                return;
            }
            PortAskedBy::Tenant => self.tenants.insert((rank, route.clone())),
            PortAskedBy::Refused => self.refused.insert(route.clone()),
        };
        let namespace = route.name.namespace.clone();
        *self.counts.entry(namespace).or_default() += 1;
    }

    fn remove(&mut self, route: &ObjectKey) {
        let Some(rank) = self.ranks.remove(route) else {
            return;
        };
        self.own.remove(route);
        if self.tenants.remove(&(rank, route.clone())) || self.refused.remove(route) {
            count_down(&mut self.counts, &route.name.namespace);
        }
    }
}
