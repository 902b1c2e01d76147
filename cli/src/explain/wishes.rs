//! Explains a name that no listener has: the routes that ask for it, where they lead, and what to do.

use std::collections::BTreeSet;

use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectKey, ParentKey};
use vestibule_model::object::ParentRef;
use vestibule_model::route::Route;

use super::chain::{said_by_status, step};
use super::conditions::By;
use super::leads::backends;
use super::picture::Picture;
use super::report::{Check, Outcome, RouteView, Step};
use super::routes;
use super::routing::left_out;

/// A route that asks for the name where no listener that can be seen has it.
pub(super) struct Wish {
    /// The step that explains its state.
    pub(super) step: Step,
    /// The route, where it may be served by what cannot be seen.
    pub(super) routes: Vec<RouteView>,
}

/// The state of the routes that name it. Routes that may be served come first.
pub(super) fn unplaced(
    picture: &Picture,
    query: &HostPattern,
    of_interest: &BTreeSet<ObjectKey>,
) -> Option<Wish> {
    let mut first = None;
    for key in of_interest {
        let object = picture.translator.object(key);
        let Some(route) = object.and_then(|object| object.as_route()) else {
            continue;
        };
        let Some(hostname) = named(route, query) else {
            continue;
        };
        for reference in route.parents() {
            let step = of_reference(picture, query, key, reference);
            if step.outcome == Outcome::Unknown {
                let routes: Vec<_> = routes::view(picture, key, hostname).into_iter().collect();
                // Without an endpoint the route cannot work, whichever listener serves it.
                let dead = backends(&routes).filter(|step| step.outcome == Outcome::Wrong);
                let step = dead.unwrap_or(step);
                return Some(Wish { step, routes });
            }
            first.get_or_insert(Wish {
                step,
                routes: Vec::new(),
            });
        }
    }
    first
}

/// The hostname of a route that takes the name in, if it says one.
fn named<'a>(route: Route<'a>, query: &HostPattern) -> Option<&'a HostPattern> {
    let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
    hostnames
        .filter(|hostname| **hostname != HostPattern::Any && hostname.covers(query))
        .max_by_key(|hostname| hostname.specificity())
}

fn of_reference(
    picture: &Picture,
    query: &HostPattern,
    key: &ObjectKey,
    reference: &ParentRef,
) -> Step {
    let route = key.to_string();
    let said = picture.said_of_route(key, reference);
    // What translation makes of a parent that may not be read is worth nothing.
    let accepted = said.get("Accepted").filter(|_| said.by != By::Guess);
    if let Some(cond) = accepted.filter(|cond| cond.is("False")) {
        let (message, action) = said_by_status(cond);
        let action = match action.as_str() {
            "" => listener_for(query),
            _ if cond.reason == "NoMatchingListenerHostname" => {
                format!("{action}, or {}", listener_for(query))
            }
            _ => action,
        };
        return Step {
            by: said.by,
            ..step(
                Check::Route,
                Outcome::Wrong,
                &route,
                &cond.reason,
                message,
                action,
            )
        };
    }
    if let Some(step) = left_out(picture, key, reference, query) {
        return step;
    }
    let Some(parent) = reference.parent(&key.name.namespace) else {
        let message = "has a parentRef that is neither a Gateway nor a ListenerSet".into();
        let action = "refer to one of these in spec.parentRefs".into();
        return step(
            Check::Route,
            Outcome::Wrong,
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
    if picture.is_missing(&object) {
        return verdict(
            Outcome::Wrong,
            "NotFound",
            format!("asks for it from {object}, which does not exist"),
            format!("create {object} with a listener for {query}, or correct spec.parentRefs"),
        );
    }
    if !picture.is_read(&object) {
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
        return Step {
            by: said.by,
            ..verdict(Outcome::Unknown, reason, message, String::new())
        };
    }
    let gateway = match &parent {
        ParentKey::Gateway(name) => Some(name.clone()),
        ParentKey::ListenerSet(name) => {
            let set = picture.translator.merge().set(name);
            set.and_then(|set| set.gateway.clone())
        }
    };
    let foreign = gateway.filter(|gateway| picture.translator.merge().is_foreign(gateway));
    if let Some(gateway) = foreign {
        return verdict(
            Outcome::Wrong,
            "OtherController",
            format!("asks for it from {object}, and Gateway {gateway} is another controller's"),
            "refer to a Gateway of Vestibule's in spec.parentRefs, or ask that controller".into(),
        );
    }
    verdict(
        Outcome::Wrong,
        "NoListener",
        format!("asks for it from {object}, which has no listener for it"),
        listener_for(query),
    )
}

/// Nobody asks for it, as far as can be seen.
pub(super) fn nobody(picture: &Picture, query: &HostPattern) -> Step {
    let (outcome, message, action) = if picture.is_whole() {
        (
            Outcome::Wrong,
            "no listener of any Gateway or ListenerSet has it, and no route asks for it",
            listener_for(query),
        )
    } else {
        (
            Outcome::Unknown,
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
