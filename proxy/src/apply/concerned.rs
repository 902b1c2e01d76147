//! Owns finding out which tenants a change concerns: those whose tunnels or HTTPS connections it may end.

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::hostname::HostPattern;
use vestibule_stream::{Change, ResourceKind};

use super::parsing::Parsed;
use super::{State, parse};
use crate::concerned::TenantKey;
use crate::table::{
    Changes, Connections, OrderedPatterns, RouteId, RouteKind, SelectionKey, Snapshot,
};

/// The places, routes and owners that a change touches. They decide about tunnels, and the places decide about HTTPS
/// connections as well.
#[derive(Default)]
pub(super) struct Touched {
    /// The places that listeners leave and take.
    pub(super) places: Vec<SelectionKey>,
    routes: Vec<RouteId>,
    /// Gateway and pattern.
    owners: Vec<(String, HostPattern)>,
}

impl State {
    /// Returns the places, routes and owners that a change touches. Call it before the change is made.
    pub(super) fn touched(&self, change: &Change, parsed: &Parsed) -> Touched {
        let mut touched = Touched::default();
        for key in &change.removals {
            let kind = match key.kind() {
                ResourceKind::Listener => {
                    touched.places.extend(self.place_of(&key.name));
                    continue;
                }
                ResourceKind::HostnameOwner => {
                    if let Ok((gateway, names)) = parse::owned(&key.name) {
                        touched.owners.push((gateway.to_owned(), names));
                    }
                    continue;
                }
                ResourceKind::TlsRoute => RouteKind::Of(Connections::Tls),
                ResourceKind::TcpRoute => RouteKind::Of(Connections::Tcp),
                ResourceKind::UdpRoute => RouteKind::Of(Connections::Udp),
                ResourceKind::HttpRoute => RouteKind::Http,
                ResourceKind::GrpcRoute => RouteKind::Grpc,
                _ => continue,
            };
            touched.routes.push((kind, key.name.as_str().into()));
        }
        let listeners = parsed.listeners.keys();
        touched
            .places
            .extend(listeners.filter_map(|name| self.place_of(name)));
        let owners = parsed.owners.iter();
        let owners = owners.map(|owner| (owner.gateway.clone(), owner.names.clone()));
        touched.owners.extend(owners);
        for (kind, specs) in [
            (Connections::Tls, &parsed.routes),
            (Connections::Tcp, &parsed.tcp_routes),
            (Connections::Udp, &parsed.udp_routes),
        ] {
            let names = specs
                .keys()
                .map(|name| (RouteKind::Of(kind), Arc::from(&**name)));
            touched.routes.extend(names);
        }
        for (kind, specs) in [
            (RouteKind::Http, &parsed.http_routes),
            (RouteKind::Grpc, &parsed.grpc_routes),
        ] {
            touched
                .routes
                .extend(specs.keys().map(|name| (kind, Arc::from(&**name))));
        }
        touched
    }

    /// The place of a listener, if it is held.
    pub(super) fn place_of(&self, name: &str) -> Option<SelectionKey> {
        Some(self.listeners.get(name)?.selection_key())
    }
}

impl Touched {
    /// The tenants whose tunnels or HTTPS connections may not stand after the step from one snapshot to the next, and how
    /// many routes and names were looked at to find them. `ordered` are the patterns of the next one.
    pub(super) fn concerned(
        &self,
        before: &Snapshot,
        next: &Snapshot,
        ordered: &OrderedPatterns,
    ) -> (BTreeSet<TenantKey>, u64) {
        let by_validation = |place| before.concerned_by_validation(next, place);
        let mut concerned: BTreeSet<_> = self.places.iter().filter_map(by_validation).collect();
        // There are no tunnels without a listener, and the first configuration may be large.
        if before.binds().next().is_none() {
            return (concerned, 0);
        }
        let by_route = |route| before.concerned_by_route(next, route);
        concerned.extend(self.routes.iter().filter_map(by_route));
        let mut changes = Changes::default();
        for place in &self.places {
            before.note_place(next, place, &mut changes);
        }
        let owners = self.owners.iter();
        let owners = owners.map(|(gateway, names)| (gateway.as_str(), names));
        before.note_owners(next, owners, &mut changes);
        let looked_at = before.concerned_by(next, ordered, &changes, &mut concerned);
        (concerned, looked_at)
    }
}
