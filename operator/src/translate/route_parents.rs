//! The parents of a route of any kind: whether the route is refused by itself, and where it
//! attaches.

use std::collections::BTreeSet;

use vestibule_model::attach::{Attached, attach_route};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{HttpRoute, HttpRule};
use vestibule_model::key::ParentKey;
use vestibule_model::merge::SetVerdict;
use vestibule_model::reference::ParentRef;
use vestibule_model::route::Route;

use super::Translator;
use super::route_state::{Parents, RouteState};

impl Translator {
    /// Whether a route is refused for a reason of its own, so that no parent accepts it.
    pub(super) fn is_refused(&self, route: Route<'_>) -> bool {
        match route {
            Route::Tls(route) => {
                let findings = self.settings.policy.judge_route(route);
                findings.iter().any(Finding::refuses)
            }
            Route::Http(route) => {
                http_refusal(route).is_some() || self.patterns.refusal(&route.key()).is_some()
            }
            Route::Port(route) => route.findings.iter().any(Finding::refuses),
        }
    }

    /// Where a route attaches for each of its parents, with warnings about hostnames that are left
    /// out.
    pub(super) fn judge_parents(
        &self,
        route: Route<'_>,
        refused: Option<&Finding>,
    ) -> (Parents, BTreeSet<Finding>) {
        let (mut parents, mut left_out) = (Parents::default(), BTreeSet::new());
        if route.meta().deleting {
            return (parents, left_out);
        }
        let namespace = &route.name().namespace;
        for (index, reference) in route.parents().iter().enumerate() {
            let Some(parent) = reference.parent(namespace) else {
                continue;
            };
            let Some((listeners, gateway)) = self.merge.listeners(&parent) else {
                continue;
            };
            if self.merge.gateway(gateway).is_none() {
                continue;
            }
            let outcome = if let Some(refused) = refused {
                Err(refused.clone())
            } else if let Some(finding) = self.closed_parent(&parent, reference) {
                Err(finding)
            } else {
                let labels = self.merge.labels(namespace);
                attach_route(route, reference, &parent, listeners, labels).and_then(|attached| {
                    let (owned, findings) = self.merge.owned_by_route(route, &parent, attached);
                    match findings.into_iter().next() {
                        Some(refusal) if refusal.refuses() => Err(refusal),
                        Some(warning) => {
                            left_out.insert(warning);
                            Ok(owned)
                        }
                        None => Ok(owned),
                    }
                })
            };
            parents.insert(index, outcome);
        }
        (parents, left_out)
    }

    /// Why a parent takes no routes at all, if it takes none.
    fn closed_parent(&self, parent: &ParentKey, reference: &ParentRef) -> Option<Finding> {
        let ParentKey::ListenerSet(name) = parent else {
            return None;
        };
        let set = self.merge.set(name)?;
        matches!(self.merge.verdict(set), SetVerdict::NotAllowed(_)).then(|| {
            Finding::refused(
                Reason::NoMatchingParent,
                reference.field(),
                format!("ListenerSet {name} is not let in by its Gateway"),
                "see the status of the ListenerSet",
            )
        })
    }
}

/// The finding that refuses an HTTPRoute or GRPCRoute as a whole, if any.
pub(super) fn http_refusal(route: &HttpRoute) -> Option<&Finding> {
    let own = route.findings.iter().find(|finding| finding.refuses());
    own.or_else(|| {
        // A route without a valid rule has nothing to serve.
        let mut refusals = route.rules.iter().map(HttpRule::refusal);
        let first = refusals.next()??;
        refusals.all(|refusal| refusal.is_some()).then_some(first)
    })
}

/// The outcome for each parent reference of a route that leads to a Gateway of ours, with the
/// reference, which the status repeats.
pub(super) fn parent_outcomes<'a>(
    route: Route<'a>,
    state: &'a RouteState,
) -> impl Iterator<Item = (&'a ParentRef, &'a Result<Vec<Attached>, Finding>)> {
    state
        .parents
        .iter()
        .filter_map(move |(index, outcome)| Some((route.parents().get(*index)?, outcome)))
}
