//! Statuses of routes: Accepted and Programmed, from what the proxies have of a route, its backends and its listeners.
//!
//! Whoever applies a route takes Accepted as "it works now", and Gateway API has no Programmed for routes. So a status
//! that changes is held back until every ready proxy has the route (by the planner, for a short time). If a proxy still
//! lacks it then, a parent that has not accepted the route before says that it is pending. One that has keeps
//! Accepted=True, since others (DNS, for example) act upon it. Beside it, `vestibule.dev/Programmed` says for each
//! parent whether the route's last change is in force everywhere.

use serde_json::Value;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{Condition, ConditionType, Reason, RouteStatus, Truth};
use vestibule_model::key::ObjectKey;

use super::StatusInputs;
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

impl InForce {
    fn condition(self) -> Condition {
        let kind = ConditionType::RouteProgrammed;
        match self {
            Self::Yes => {
                Condition::holds(kind, Reason::Programmed, "In force in every ready proxy")
            }
            Self::Waits(why) => Condition::fails(kind, Reason::Pending, why),
            Self::Rejected(why) => Condition::fails(kind, Reason::Invalid, why),
        }
    }
}

pub(super) fn judge(
    inputs: &StatusInputs<'_>,
    observed: Observed,
    (key, status, old): (&ObjectKey, &RouteStatus, &Value),
) -> Due {
    let whole = with_programmed(status, |_| InForce::Yes);
    let whole = wire::route(old, &whole, inputs.controller, observed);
    if whole == *old {
        // What moves behind a status that is there is no news of the route.
        return whole.into();
    }
    let mut waits = false;
    let mut new = with_programmed(status, |place| {
        let in_force = in_force(inputs, &inputs.translator.route_needs(key, place));
        waits |= matches!(in_force, InForce::Waits(_));
        in_force
    });
    for parent in &mut new.parents {
        if !wire::is_accepted(old, &parent.parent, inputs.controller) {
            accept_later(&mut parent.conditions);
        }
    }
    Due {
        status: wire::route(old, &new, inputs.controller, observed),
        waits,
    }
}

/// The status with Programmed for each parent that accepts the route; of the others nothing is to be in force.
fn with_programmed(
    status: &RouteStatus,
    mut in_force: impl FnMut(usize) -> InForce,
) -> RouteStatus {
    let mut status = status.clone();
    for (place, parent) in status.parents.iter_mut().enumerate() {
        if parent.conditions.iter().any(is_accepting) {
            let programmed = in_force(place).condition();
            parent.conditions.push(programmed);
        }
    }
    status
}

fn is_accepting(condition: &Condition) -> bool {
    condition.kind == ConditionType::Accepted && condition.truth == Truth::True
}

/// As long as Programmed is pending, so is Accepted.
fn accept_later(conditions: &mut [Condition]) {
    let programmed = conditions.last();
    let pending = programmed.filter(|condition| condition.reason == Reason::Pending);
    let Some(why) = pending.map(|condition| condition.message.clone()) else {
        return;
    };
    for accepted in conditions.iter_mut().filter(|c| is_accepting(c)) {
        accepted.truth = Truth::Unknown;
        accepted.reason = Reason::Pending;
        accepted.message.clone_from(&why);
    }
}

fn in_force(inputs: &StatusInputs<'_>, needs: &RouteNeeds) -> InForce {
    if let Some(why) = needs.waits {
        return InForce::Waits(why.to_owned());
    }
    let all: Vec<_> = needs.own.iter().chain(&needs.listeners).cloned().collect();
    let programmed = inputs.publisher.programmed(&all);
    if programmed.acknowledged().is_some() {
        return InForce::Yes;
    }
    let complete = programmed.waiting_for.is_empty() && programmed.unpublished.is_empty();
    if programmed.ready == 0 || !complete {
        return InForce::Waits(lacking(&programmed));
    }
    // A listener's own rejects are in the status of its object.
    match inputs.publisher.programmed(&needs.own).rejects.first() {
        Some((proxy, reject)) => InForce::Rejected(format!(
            "{proxy} rejected it: {}: {}",
            reject.reason, reject.message
        )),
        None => InForce::Yes,
    }
}
