//! Statuses: what is to be written when ([`plan`]), and the writing.

pub mod plan;
mod steady;
pub mod write;

use std::fmt::Write as _;

use serde_json::Value;
use vestibule_crds::status::Observed;
use vestibule_model::condition::RouteStatus;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

use super::services::Fronts;
use crate::publish::Publisher;
use crate::status::{facts, programmed, render};
use crate::translate::{Status, Translator};
use plan::Live;

/// What statuses follow from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What is known, and what follows from it.
    pub translator: &'a Translator,
    /// What the proxies acknowledged.
    pub publisher: &'a Publisher,
    /// The name that the entries of route statuses carry.
    pub controller: &'a str,
    /// What the Services have come to.
    pub fronts: &'a Fronts,
}

/// What the status of an object should be, `old` being what it is; `None`: what it is. `now` is in
/// seconds since 1970.
#[must_use]
pub fn judge(
    facts_of: &Facts<'_>,
    now: i64,
    (key, live, old): (&ObjectKey, &Live, &Value),
) -> Option<Value> {
    let Facts {
        translator,
        publisher,
        controller,
        fronts,
    } = *facts_of;
    let withdrawn;
    let status = match translator.statuses().get(key) {
        Some(status) => status,
        // A route that leads to no Gateway of ours any more keeps no entry of ours. The other kinds
        // have no entry that is ours: whoever they belong to now writes what they say.
        None if key.kind == Kind::TlsRoute && is_in(old, controller) => {
            withdrawn = Status::Route(RouteStatus {
                parents: Vec::new(),
            });
            &withdrawn
        }
        None => return None,
    };
    let observed = Observed {
        generation: live.generation,
        now,
    };
    let mut due = render(key, old, status, controller, observed, |basis| {
        programmed(basis, |listeners| facts(translator, publisher, listeners))
    });
    if let Some(Object::Gateway(gateway)) = translator.object(key).map(AsRef::as_ref)
        && let Some(front) = fronts.get(&gateway.meta.uid)
        && let Some(problem) = &front.alias
    {
        note(&mut due, problem);
    }
    Some(due)
}

/// Adds to the message of Accepted=True that the Gateway has no name inside the cluster.
fn note(status: &mut Value, problem: &str) {
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    let is = |condition: &Value, field: &str, text: &str| {
        condition.get(field).and_then(Value::as_str) == Some(text)
    };
    for condition in conditions.into_iter().flatten() {
        if is(condition, "type", "Accepted")
            && is(condition, "status", "True")
            && let Some(Value::String(message)) = condition.get_mut("message")
        {
            let _ = write!(message, "; it has no name inside the cluster: {problem}");
        }
    }
}

/// Whether a route's status has an entry of this controller.
fn is_in(status: &Value, controller: &str) -> bool {
    let parents = status.get("parents").and_then(Value::as_array);
    let name = |parent: &Value| parent.get("controllerName")?.as_str().map(str::to_owned);
    parents
        .into_iter()
        .flatten()
        .any(|parent| name(parent).as_deref() == Some(controller))
}
