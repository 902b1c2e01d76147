//! Owns the routes that are selected by name or port: TLSRoutes, TCPRoutes and UDPRoutes. Those for requests are in
//! [`super::http`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::State;
use super::parse::RouteSpec;
use crate::concerned::TenantKey;
use crate::table::{Attachments, Connections, Route, RouteKind, WeightedBackend};

/// A route in force.
pub(super) struct HeldRoute {
    pub(super) attachments: Arc<Attachments>,
    pub(super) route: Arc<Route>,
}

impl State {
    pub(super) fn routes_mut(&mut self, kind: Connections) -> &mut BTreeMap<Arc<str>, HeldRoute> {
        match kind {
            Connections::Tls => &mut self.routes,
            Connections::Tcp => &mut self.tcp_routes,
            Connections::Udp => &mut self.udp_routes,
        }
    }

    pub(super) fn hold_route(
        &mut self,
        kind: Connections,
        name: &str,
        spec: &RouteSpec,
        dirty: &mut BTreeSet<Arc<str>>,
    ) {
        // References to the new backends are made before the old ones are released. So a backend that both versions
        // have is not removed and built again in between.
        let backends = spec
            .backends
            .iter()
            .map(|(backend, weight)| WeightedBackend {
                weight: *weight,
                backend: backend.as_deref().map(|name| self.refer(name)),
            })
            .collect();
        self.drop_route(kind, name, dirty);
        let key: Arc<str> = name.into();
        let tenant = self.names.intern(&spec.tenant);
        let account = self.accounts.of(&tenant);
        let route = Arc::new(Route::new(
            (kind, Arc::clone(&key)),
            account,
            spec.created,
            backends,
        ));
        let mut attachments = Vec::with_capacity(spec.attachments.len());
        for (listener, names) in &spec.attachments {
            let listener = self.listener_name(listener);
            let table = self.tables.entry(Arc::clone(&listener));
            let table = Arc::make_mut(table.or_default());
            table.of_mut(kind).insert(names, &route);
            let tenant = TenantKey::of(&route.account);
            self.ordered
                .add_route(&listener, table, (&names.pattern, tenant));
            self.work.route_entries += 1;
            dirty.insert(Arc::clone(&listener));
            attachments.push((listener, names.clone()));
        }
        let attachments = Arc::new(Attachments {
            account: Arc::clone(&route.account),
            to: attachments.into(),
        });
        let id = (RouteKind::Of(kind), Arc::clone(&key));
        self.snapshot.attach(id, Some(Arc::clone(&attachments)));
        let held = HeldRoute { attachments, route };
        self.routes_mut(kind).insert(key, held);
    }

    pub(super) fn drop_route(
        &mut self,
        kind: Connections,
        name: &str,
        dirty: &mut BTreeSet<Arc<str>>,
    ) {
        let Some(old) = self.routes_mut(kind).remove(name) else {
            return;
        };
        let id = (RouteKind::Of(kind), Arc::clone(&old.route.key));
        self.snapshot.attach(id, None);
        for (listener, names) in &old.attachments.to {
            if let Some(table) = self.tables.get_mut(listener) {
                let table = Arc::make_mut(table);
                table.of_mut(kind).remove(names, &old.route);
                self.ordered.remove_route(listener, table, &names.pattern);
                self.work.route_entries += 1;
                if table.is_empty() {
                    self.tables.remove(listener);
                }
            }
            dirty.insert(Arc::clone(listener));
        }
        for backend in old.route.backends() {
            self.release(backend.backend);
        }
    }
}
