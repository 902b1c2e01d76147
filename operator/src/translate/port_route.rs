//! TCPRoutes and UDPRoutes: the resource, and which route gets the traffic of a listener if several are attached to it.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{ListenerKey, ObjectKey};
use vestibule_model::protocol::Transport;
use vestibule_model::route::{PortRoute, Route};
use vestibule_model::small::SmallSet;
use vestibule_stream::proto;

use super::route_state::{Body, Judged, RouteState};
use super::{Dirty, Translator};

/// A route's rank among those of a listener, in the same order as in the proxies: the oldest comes first, and of the
/// same age, the lesser `namespace/name` as one text.
type RouteRank = (i64, String, ObjectKey);

/// The routes that are attached to each listener, in order. The first one gets all traffic of the listener.
#[derive(Debug, Default)]
pub(super) struct Queues {
    routes: BTreeMap<ListenerKey, BTreeSet<RouteRank>>,
    /// The rank of each route, and the listeners that it is attached to.
    ranks: BTreeMap<ObjectKey, (RouteRank, SmallSet<ListenerKey>)>,
}

impl Queues {
    /// Attaches a route to these listeners instead of its former ones. Returns the routes whose findings may change:
    /// those that were or became the first on a listener.
    fn put(
        &mut self,
        route: &ObjectKey,
        created: i64,
        listeners: &SmallSet<ListenerKey>,
    ) -> BTreeSet<ObjectKey> {
        let rank = (created, route.name.to_string(), route.clone());
        let old = if listeners.is_empty() {
            self.ranks.remove(route)
        } else {
            let new = (rank.clone(), listeners.clone());
            self.ranks.insert(route.clone(), new)
        };
        let mut affected = BTreeSet::new();
        let (old_rank, before) = old.unwrap_or_else(|| (rank.clone(), SmallSet::default()));
        if old_rank == rank && before == *listeners {
            return affected;
        }
        for listener in before.union(listeners) {
            affected.extend(self.first(listener).cloned());
            let queue = self.routes.entry(listener.clone()).or_default();
            queue.remove(&old_rank);
            if listeners.contains(listener) {
                queue.insert(rank.clone());
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

    /// Brings the rank of a TCPRoute or UDPRoute on its listeners up to date, and marks the routes whose findings may
    /// change.
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

    /// The findings about listeners that a TCPRoute or UDPRoute shares: either an older route gets all connections or
    /// datagrams of the listener, or this one does and younger routes get none.
    pub(super) fn queue_findings(&self, key: &ObjectKey) -> Vec<Finding> {
        let Some((_, listeners)) = self.queues.ranks.get(key) else {
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
