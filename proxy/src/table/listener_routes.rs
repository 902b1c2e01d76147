//! Owns the routes of a listener, by kind.

use vestibule_model::hostname::HostPattern;

use super::route::Connections;
use super::route_table::RouteTable;
use crate::attached_names::{EachRoute, Visited};
use crate::http_route::HttpTable;

/// The routes of a listener, of every kind. Routes of a kind that it does not take are there as well, for the case that its
/// protocol changes.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    pub(crate) tls: RouteTable,
    pub(crate) http: HttpTable,
    /// In a box, because there are few such listeners.
    pub(super) ports: Option<Box<PortRoutes>>,
}

/// The routes of a listener that are selected by port alone.
#[derive(Clone, Default)]
pub(super) struct PortRoutes {
    pub(super) tcp: RouteTable,
    pub(super) udp: RouteTable,
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        let is_unused = |of: &PortRoutes| of.tcp.is_empty() && of.udp.is_empty();
        self.tls.is_empty() && self.http.is_empty() && self.ports.as_deref().is_none_or(is_unused)
    }

    /// Whether a look at all routes that are selected by name costs next to nothing.
    pub(super) fn are_few(&self) -> bool {
        self.tls.are_few() && self.http.are_few()
    }

    /// Whether a route that is selected by name is attached for exactly this pattern.
    pub(super) fn have(&self, pattern: &HostPattern) -> bool {
        self.tls.has(pattern) || self.http.has(pattern)
    }

    /// Visits all routes that are selected by name.
    pub(super) fn each(&self, each: &mut EachRoute<'_>) {
        self.tls.each(Visited::All, each);
        self.http.each(Visited::All, each);
    }

    pub(crate) fn of_mut(&mut self, kind: Connections) -> &mut RouteTable {
        match kind {
            Connections::Tls => &mut self.tls,
            Connections::Tcp => &mut self.ports.get_or_insert_default().tcp,
            Connections::Udp => &mut self.ports.get_or_insert_default().udp,
        }
    }
}
