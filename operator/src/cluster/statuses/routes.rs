//! Statuses of routes: Accepted once every ready proxy has the route, its backends and its listeners.
//!
//! Whoever applies a route takes Accepted as "it works now", and Gateway API has no Programmed for routes.
//! So a status that changes is held back until it is so (by the planner, for a short time). If a proxy
//! still lacks the route then, a parent that has not accepted the route before says that it is pending. One
//! that has keeps Accepted=True, since others (DNS, for example) act upon it, and its message says who lacks
//! the route.

use serde_json::Value;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{Condition, ConditionType, Reason, RouteStatus, Truth};
use vestibule_model::key::ObjectKey;

use super::Facts;
use super::plan::Due;
use crate::status::lacking;
use crate::translate::RouteNeeds;

/// How far a route is on one parent.
enum InForce {
    /// Everywhere.
    Yes,
    /// Not yet, since:
    Waits(String),
    /// Not everywhere, and not without another change, since:
    Rejected(String),
}

pub(super) fn judge(
    facts: &Facts<'_>,
    observed: Observed,
    (key, status, old): (&ObjectKey, &RouteStatus, &Value),
) -> Due {
    let mut waits = false;
    let whole = wire::route(old, status, facts.controller, observed);
    if whole == *old {
        // What moves behind a status that is there is no news of the route.
        return whole.into();
    }
    let mut status = status.clone();
    for (place, parent) in status.parents.iter_mut().enumerate() {
        let accepted = |condition: &&mut Condition| {
            condition.kind == ConditionType::Accepted && condition.truth == Truth::True
        };
        let Some(accepted) = parent.conditions.iter_mut().find(accepted) else {
            continue;
        };
        match in_force(facts, &facts.translator.route_needs(key, place)) {
            InForce::Yes => {}
            InForce::Rejected(why) => {
                accepted.message = format!("{}; {why}", accepted.message);
            }
            InForce::Waits(why) => {
                waits = true;
                if wire::is_accepted(old, &parent.parent, facts.controller) {
                    let message = &accepted.message;
                    accepted.message = format!("{message}; not in force everywhere yet: {why}");
                } else {
                    *accepted = Condition {
                        kind: ConditionType::Accepted,
                        truth: Truth::Unknown,
                        reason: Reason::Pending,
                        message: why,
                    };
                }
            }
        }
    }
    Due {
        status: wire::route(old, &status, facts.controller, observed),
        waits,
    }
}

fn in_force(facts: &Facts<'_>, needs: &RouteNeeds) -> InForce {
    if let Some(why) = needs.waits {
        return InForce::Waits(why.to_owned());
    }
    let all: Vec<_> = needs.own.iter().chain(&needs.listeners).cloned().collect();
    let programmed = facts.publisher.programmed(&all);
    if programmed.fact().is_some() {
        return InForce::Yes;
    }
    let complete = programmed.waiting_for.is_empty() && programmed.unpublished.is_empty();
    if programmed.ready == 0 || !complete {
        return InForce::Waits(lacking(&programmed));
    }
    // A listener's own rejects are in the status of its object.
    match facts.publisher.programmed(&needs.own).rejects.first() {
        Some((proxy, reject)) => InForce::Rejected(format!(
            "{proxy} rejected it: {}: {}",
            reject.reason, reject.message
        )),
        None => InForce::Yes,
    }
}
