//! Explains a name that no listener has: the routes that ask for it, where they lead, and what to do.

use std::collections::BTreeSet;

use vestibule_model::condition::Reason;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectKey, ParentKey};
use vestibule_model::reference::ParentRef;
use vestibule_model::route::Route;

use super::backends::backends;
use super::chain::text_of_status;
use super::cluster_state::ClusterState;
use super::conditions::StatusSource;
use super::report::{ChainStep, Check, RouteView, StepOutcome};
use super::routes;
use super::routing::left_out;
use super::steps::step;

/// A route with the hostname, although no visible listener has it.
pub(super) struct UnservedRoute {
    /// The step that explains its state.
    pub(super) step: ChainStep,
    /// The route, if a listener that cannot be seen may serve it.
    pub(super) routes: Vec<RouteView>,
}

/// The state of the routes with the hostname. Routes that may be served come first.
pub(super) fn unplaced(
    cluster_state: &ClusterState,
    query: &HostPattern,
    of_interest: &BTreeSet<ObjectKey>,
) -> Option<UnservedRoute> {
    let mut first = None;
    for key in of_interest {
        let object = cluster_state.translator.object(key);
        let Some(route) = object.and_then(|object| object.as_route()) else {
            continue;
        };
        let Some(hostname) = named(route, query) else {
            continue;
        };
        for reference in route.parents() {
            let step = of_reference(cluster_state, query, key, reference);
            if step.outcome == StepOutcome::Unknown {
                // Nothing is known of the listener, so no BackendTLSPolicy is blamed for connections.
                let connects = key.kind.routes_requests();
                let routes: Vec<_> = routes::view(cluster_state, key, hostname, connects)
                    .into_iter()
                    .collect();
                // Without an endpoint the route cannot work, whichever listener serves it.
                let dead = backends(&routes).filter(|step| step.outcome == StepOutcome::Wrong);
                let step = dead.unwrap_or(step);
                return Some(UnservedRoute { step, routes });
            }
            first.get_or_insert(UnservedRoute {
                step,
                routes: Vec::new(),
            });
        }
    }
    first
}

/// The hostname of a route that covers the name, if the route has hostnames.
fn named<'a>(route: Route<'a>, query: &HostPattern) -> Option<&'a HostPattern> {
    let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
    hostnames
        .filter(|hostname| **hostname != HostPattern::Any && hostname.covers(query))
        .max_by_key(|hostname| hostname.specificity())
}

fn of_reference(
    cluster_state: &ClusterState,
    query: &HostPattern,
    key: &ObjectKey,
    reference: &ParentRef,
) -> ChainStep {
    let route = key.to_string();
    let reported = cluster_state.reported_on_route(key, reference);
    // If the parent may not be read, the verdict of translation has no value.
    let accepted = reported
        .get("Accepted")
        .filter(|_| reported.by != StatusSource::Guess);
    if let Some(cond) = accepted.filter(|cond| cond.is("False")) {
        let (message, action) = text_of_status(cond);
        let action = match action.as_str() {
            "" => listener_for(query),
            _ if cond.is_for(Reason::NoMatchingListenerHostname) => {
                format!("{action}, or {}", listener_for(query))
            }
            _ => action,
        };
        return ChainStep {
            by: reported.by,
            ..step(
                Check::Route,
                StepOutcome::Wrong,
                &route,
                &cond.reason,
                message,
                action,
            )
        };
    }
    if let Some(step) = left_out(cluster_state, key, reference, query) {
        return step;
    }
    let Some(parent) = reference.parent(&key.name.namespace) else {
        let message = "has a parentRef that is neither a Gateway nor a ListenerSet".into();
        let action = "refer to one of these in spec.parentRefs".into();
        return step(
            Check::Route,
            StepOutcome::Wrong,
            &route,
            "InvalidKind",
            message,
            action,
        );
    };
    let object = parent.object();
    let verdict = |outcome, reason: &str, message: String, action: String| {
        step(Check::Route, outcome, &route, reason, message, action)
    };
    if cluster_state.is_missing(&object) {
        return verdict(
            StepOutcome::Wrong,
            "NotFound",
            format!("asks for it from {object}, which does not exist"),
            format!("create {object} with a listener for {query}, or correct spec.parentRefs"),
        );
    }
    if !cluster_state.is_read(&object) {
        let (reason, message) = match accepted {
            Some(_) => (
                "",
                format!(
                    "is accepted by {object}, which may not be read: what serves it is not known"
                ),
            ),
            None => (
                "NoStatus",
                format!(
                    "asks for it from {object}, which may not be read, and has no status of Vestibule's"
                ),
            ),
        };
        return ChainStep {
            by: reported.by,
            ..verdict(StepOutcome::Unknown, reason, message, String::new())
        };
    }
    let gateway = match &parent {
        ParentKey::Gateway(name) => Some(name.clone()),
        ParentKey::ListenerSet(name) => {
            let set = cluster_state.translator.merge().set(name);
            set.and_then(|set| set.gateway.clone())
        }
    };
    let foreign = gateway.filter(|gateway| cluster_state.translator.merge().is_foreign(gateway));
    if let Some(gateway) = foreign {
        return verdict(
            StepOutcome::Wrong,
            "OtherController",
            format!("asks for it from {object}, and Gateway {gateway} is another controller's"),
            "refer to a Gateway of Vestibule's in spec.parentRefs, or ask that controller".into(),
        );
    }
    verdict(
        StepOutcome::Wrong,
        "NoListener",
        format!("asks for it from {object}, which has no listener for it"),
        listener_for(query),
    )
}

/// The step for a name for which nobody asks, as far as the caller can see.
pub(super) fn nobody(cluster_state: &ClusterState, query: &HostPattern) -> ChainStep {
    let (outcome, message, action) = if cluster_state.is_whole() {
        (
            StepOutcome::Wrong,
            "no listener of any Gateway or ListenerSet has it, and no route asks for it",
            listener_for(query),
        )
    } else {
        (
            StepOutcome::Unknown,
            "nothing that you may read names it: no listener, and no route. Others may",
            format!(
                "ask the owner of the Gateway who has it; if it is to be yours, {}",
                listener_for(query)
            ),
        )
    };
    step(
        Check::Listener,
        outcome,
        &query.to_string(),
        "NoListener",
        message.into(),
        action,
    )
}

fn listener_for(query: &HostPattern) -> String {
    format!(
        "add a listener with hostname {query} to a ListenerSet of your namespace, or to the Gateway"
    )
}
