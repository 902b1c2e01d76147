//! Computes the conditions Accepted and Programmed of routes. They depend on whether the proxies have the route, its
//! backends and its listeners.
//!
//! Users take Accepted=True of a route to mean "it works now", and Gateway API has no Programmed for routes. So the
//! planner holds a changed status back for a short time, until every ready proxy has the route. If a proxy still lacks
//! it then, the status of each parent depends on its former one. A parent that has not accepted the route before is
//! pending. A parent that has accepted it keeps Accepted=True, since other controllers (for DNS, for example) act upon
//! it. In addition, `vestibule.dev/Programmed` tells for each parent whether the route's last change is in force
//! everywhere.

use std::collections::BTreeMap;

use serde_json::Value;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{Condition, ConditionType, Reason, RouteStatus, Truth};
use vestibule_model::key::ObjectKey;

use super::StatusInputs;
use super::plan::{Due, LeftOut};
use crate::status::lacking;
use crate::translate::RouteNeeds;

/// Whether a route is in force on one parent.
enum InForce {
    /// It is in force at every proxy.
    Yes,
    /// It is not in force yet, for this reason.
    Waits(String),
    /// A proxy rejected it, for this reason. Only another change can bring it into force.
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
        // The status exists already, and only other resources changed. That is no change of the route.
        return whole.into();
    }
    // The parents on which the route waits, by their index in the status, and what it waits for there.
    let mut waits: BTreeMap<usize, String> = BTreeMap::new();
    let mut new = with_programmed(status, |index| {
        let in_force = in_force(inputs, &inputs.translator.route_needs(key, index));
        if let InForce::Waits(why) = &in_force {
            waits.insert(index, why.clone());
        }
        in_force
    });
    for (index, parent) in new.parents.iter_mut().enumerate() {
        if let Some(why) = waits.get(&index)
            && !wire::is_accepted(old, &parent.parent, inputs.controller)
        {
            accept_later(&mut parent.conditions, why);
        }
    }
    Due {
        status: wire::route(old, &new, inputs.controller, observed),
        waits: !waits.is_empty(),
        confirm: false,
        left_out: LeftOut::default(),
    }
}

/// Adds Programmed for each parent that accepts the route, unless translation has found that nothing is served there.
/// For the others, nothing has to be in force.
fn with_programmed(
    status: &RouteStatus,
    mut in_force: impl FnMut(usize) -> InForce,
) -> RouteStatus {
    let mut status = status.clone();
    for (index, parent) in status.parents.iter_mut().enumerate() {
        let mut known = parent.conditions.iter();
        let is_known = known.any(|of| of.kind == ConditionType::RouteProgrammed);
        if !is_known && parent.conditions.iter().any(is_accepting) {
            let programmed = in_force(index).condition();
            parent.conditions.push(programmed);
        }
    }
    status
}

fn is_accepting(condition: &Condition) -> bool {
    condition.kind == ConditionType::Accepted && condition.truth == Truth::True
}

/// Makes Accepted pending, for the reason for which Programmed is.
fn accept_later(conditions: &mut [Condition], why: &str) {
    for accepted in conditions.iter_mut().filter(|c| is_accepting(c)) {
        accepted.truth = Truth::Unknown;
        accepted.reason = Reason::Pending;
        why.clone_into(&mut accepted.message);
    }
}

fn in_force(inputs: &StatusInputs<'_>, needs: &RouteNeeds) -> InForce {
    if let Some(wait) = &needs.waits {
        return InForce::Waits(wait.to_string());
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
    // If a proxy rejects a listener, the status of the listener's object reports it.
    match inputs.publisher.programmed(&needs.own).rejects.first() {
        Some((proxy, reject)) => InForce::Rejected(format!(
            "{proxy} rejected it: {}: {}",
            reject.reason, reject.message
        )),
        None => InForce::Yes,
    }
}
