//! TCPRoutes and UDPRoutes: the resource, and which of several on a listener has everything that comes to it.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{ListenerKey, ObjectKey};
use vestibule_model::protocol::Transport;
use vestibule_model::route::{PortRoute, Route};
use vestibule_stream::proto;

use super::route_state::{Body, Judged, RouteState};
use super::{Dirty, Translator};

/// A route's place among those of a listener, as the proxies have it: the oldest comes first, then the first by its
/// name as one text.
type Place = (i64, String, ObjectKey);

/// The routes that are attached to each listener, in order. The first one has everything that comes to it.
#[derive(Debug, Default)]
pub(super) struct Queues {
    routes: BTreeMap<ListenerKey, BTreeSet<Place>>,
    /// Where each route is, and in what place.
    places: BTreeMap<ObjectKey, (Place, BTreeSet<ListenerKey>)>,
}

impl Queues {
    /// Puts a route on these listeners, in place of where it was. Returns the routes that may have something else to
    /// say of themselves: it, and those that were or came to be the first.
    fn put(
        &mut self,
        route: &ObjectKey,
        created: i64,
        listeners: &BTreeSet<ListenerKey>,
    ) -> BTreeSet<ObjectKey> {
        let place = (created, route.name.to_string(), route.clone());
        let old = if listeners.is_empty() {
            self.places.remove(route)
        } else {
            let new = (place.clone(), listeners.clone());
            self.places.insert(route.clone(), new)
        };
        let mut affected = BTreeSet::new();
        let (old_place, before) = old.unwrap_or_else(|| (place.clone(), BTreeSet::new()));
        if old_place == place && before == *listeners {
            return affected;
        }
        for listener in before.union(listeners) {
            affected.extend(self.first(listener).cloned());
            let queue = self.routes.entry(listener.clone()).or_default();
            queue.remove(&old_place);
            if listeners.contains(listener) {
                queue.insert(place.clone());
            }
            if queue.is_empty() {
                self.routes.remove(listener);
            }
            affected.extend(self.first(listener).cloned());
        }
        affected
    }

    fn first(&self, listener: &ListenerKey) -> Option<&ObjectKey> {
        let queue = self.routes.get(listener)?;
        queue.first().map(|(.., route)| route)
    }

    fn count(&self, listener: &ListenerKey) -> usize {
        self.routes.get(listener).map_or(0, BTreeSet::len)
    }
}

impl Translator {
    pub(super) fn judge_port_route(&self, route: &PortRoute) -> Judged {
        let key = Route::Port(route).key();
        let (backends, references) = self.weighted(&key, &route.backends);
        Judged {
            refused: route.findings.iter().find(|f| f.refuses()).cloned(),
            findings: route.findings.clone(),
            dropped: Vec::new(),
            references,
            body: Body::Port(
                route.transport,
                proto::TcpRoute {
                    tenant: route.name.namespace.to_string(),
                    created: route.meta.created,
                    listeners: Vec::new(),
                    backends,
                },
            ),
        }
    }

    /// Brings up to date where a route stands on its listeners, if the port alone selects it, and marks whoever has
    /// something else to say by that.
    pub(super) fn settle_queues(
        &mut self,
        key: &ObjectKey,
        state: Option<&RouteState>,
        dirty: &mut Dirty,
    ) {
        if !key.kind.routes_ports() {
            return;
        }
        let created = self.route(key).map_or(0, |route| route.meta().created);
        let listeners = state.map(RouteState::listeners).unwrap_or_default();
        dirty
            .others
            .extend(self.queues.put(key, created, &listeners));
    }

    /// What a TCPRoute or UDPRoute has to say of its listeners: that an older route has the connections or datagrams of
    /// one, or that this one has them and others wait.
    pub(super) fn queue_findings(&self, key: &ObjectKey) -> Vec<Finding> {
        let Some((_, listeners)) = self.queues.places.get(key) else {
            return Vec::new();
        };
        let kind = key.kind;
        let what = match kind.transport() {
            Transport::Tcp => "connections",
            Transport::Udp => "datagrams",
        };
        let findings = listeners.iter().filter_map(|listener| {
            let others = self.queues.count(listener).saturating_sub(1);
            let (name, parent) = (&*listener.listener, &listener.parent);
            let of = format!("listener {name:?} of {} {}", parent.kind(), parent.name());
            if self.queues.first(listener) != Some(key) {
                return Some(Finding::warning(
                    Reason::ListenerShared,
                    "spec.parentRefs",
                    format!("an older {kind} has all {what} to {of}, so this one has none"),
                    "use a listener of its own, or remove the older route",
                ));
            }
            (others > 0).then(|| {
                Finding::warning(
                    Reason::ListenerShared,
                    "spec.parentRefs",
                    format!(
                        "this route has all {what} to {of}, and younger {kind}s there have none"
                    ),
                    format!("give each {kind} a listener of its own"),
                )
            })
        });
        findings.collect()
    }
}
