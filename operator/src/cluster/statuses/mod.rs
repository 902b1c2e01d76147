//! Statuses: what is to be written when ([`plan`]), and the writing.

pub mod plan;
mod steady;
pub mod write;

use serde_json::Value;
use vestibule_crds::status::Observed;
use vestibule_model::condition::RouteStatus;
use vestibule_model::key::{Kind, ObjectKey};

use crate::publish::Publisher;
use crate::status::{facts, programmed, render};
use crate::translate::{Status, Translator};
use plan::Live;

/// What the status of an object should be, `old` being what it is; `None`: what it is. `now` is in
/// seconds since 1970.
#[must_use]
pub fn judge(
    translator: &Translator,
    publisher: &Publisher,
    controller: &str,
    now: i64,
    (key, live, old): (&ObjectKey, &Live, &Value),
) -> Option<Value> {
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
    Some(render(key, old, status, controller, observed, |basis| {
        programmed(basis, |listeners| facts(translator, publisher, listeners))
    }))
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
