//! Computes, plans and writes statuses. [`plan`] decides when each is written.

mod authorship;
mod issued;
mod packed;
pub mod plan;
pub(super) mod rejects;
pub(super) mod room;
mod routes;
mod steady;
pub(super) mod waits;
pub mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;
use vestibule_acme::IssuerState;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{
    Condition, ConditionType, ListenersStatus, PolicyStatus, ProgrammedBasis, Reason, RouteStatus,
    Truth, Wait,
};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;
use vestibule_model::selector::LabelSelector;

use super::services::{ServiceState, ServiceStates};
use crate::publish::Publisher;
use crate::status::{ack_progress, programmed, render};
use crate::translate::{Status, Translator};
use plan::{Due, LeftOut, LiveStatus};

/// The inputs from which statuses are computed.
#[derive(Debug, Clone, Copy)]
pub struct StatusInputs<'a> {
    /// The objects and their translation.
    pub translator: &'a Translator,
    /// Knows what the proxies acknowledged.
    pub publisher: &'a Publisher,
    /// The controller name in the entries of route statuses.
    pub controller: &'a str,
    /// The states of the Services in front of Gateways.
    pub service_states: &'a ServiceStates,
    /// ListenerSets that had a status of ours in this process and have lost their Gateway. If the Gateway does not exist,
    /// nobody else writes their status, so the API server is not asked who wrote it.
    pub orphans: &'a BTreeSet<ObjectKey>,
    /// The states of issuers from the built-in engine.
    pub issuers: &'a BTreeMap<ObjectKey, IssuerState>,
    /// Selects the issuers that this release serves; `None` if the built-in engine is off.
    pub issuer_selector: Option<&'a LabelSelector>,
    /// Whether the state of every certificate is known. Before that, conditions about certificates are kept.
    pub issuance_known: bool,
}

/// Returns the status that an object should have, given its present status `old`; `None` if that should stay. `now` is
/// in seconds since 1970.
#[must_use]
pub fn judge(
    inputs: &StatusInputs<'_>,
    now: i64,
    (key, live, old): (&ObjectKey, &LiveStatus, &Value),
) -> Option<Due> {
    let StatusInputs {
        translator,
        publisher,
        controller,
        service_states,
        orphans,
        issuers,
        issuer_selector,
        issuance_known,
    } = *inputs;
    let observed = Observed {
        generation: live.generation,
        now,
    };
    if let Some(Object::AcmeIssuer(issuer)) = translator.object(key).map(AsRef::as_ref) {
        let due = if issuer_selector.is_some_and(|all| all.matches(&issuer.labels)) {
            issued::issuer(issuer, issuers.get(key), old, controller, observed)
        } else {
            wire::issuer_withdrawn(old, controller)
        };
        return due.map(Due::from);
    }
    let withdrawn;
    let status = match translator.statuses().get(key) {
        Some(status) => status,
        // A route that no longer refers to a Gateway of ours loses our entries.
        None if key.kind.is_route() && is_in(old, "parents", controller) => {
            withdrawn = Status::Route(RouteStatus {
                parents: Vec::new(),
            });
            &withdrawn
        }
        // The same applies to a policy.
        None if key.kind == Kind::BackendTlsPolicy && is_in(old, "ancestors", controller) => {
            withdrawn = Status::Policy(PolicyStatus {
                ancestors: Vec::new(),
            });
            &withdrawn
        }
        // A ListenerSet whose Gateway is gone gets the initial status.
        None if orphans.contains(key) && !has_parent(translator, key) => {
            return Some(unknown(key.kind, old, observed).into());
        }
        // In other cases the controller that the object now belongs to writes the status. If there is none, or until it
        // has done so, the status may still be ours, and is no longer true.
        None => return lost(translator, (key, old), observed),
    };
    if let Status::Route(route) = status {
        let mut due = routes::judge(inputs, observed, (key, route, old));
        due.left_out = left_out(status, &due.status, controller);
        return Some(due);
    }
    let mut due = render(key, old, status, controller, observed, |basis| {
        let condition = programmed(basis, |listeners| {
            ack_progress(translator, publisher, listeners)
        });
        match unreached(translator, service_states, basis)
            .filter(|_| condition.truth == Truth::True)
        {
            Some(port) => Condition::fails(
                condition.kind,
                Reason::Pending,
                format!("Waiting for port {port} on the Service of the Gateway"),
            ),
            None => condition,
        }
    });
    if !issuance_known {
        issued::keep(old, &mut due);
    }
    if let Some(Object::Gateway(gateway)) = translator.object(key).map(AsRef::as_ref)
        && let Some(front) = service_states.get(&gateway.meta.uid)
        && let Some(problem) = &front.alias
    {
        note(&mut due, problem);
    }
    let unsettled = counts_or_judges_routes(status) && due != *old && {
        // A change that waits matters only to those whose resource it is. Otherwise one tenant could hold up the
        // statuses of all.
        let counted = translator.counted(key);
        !publisher.is_settled(|resource| counted.contains(resource))
    };
    // The content of a Secret or `ConfigMap` will be known in a moment, and then the status is another one.
    let waits = unsettled || translator.is_undecided(key);
    let left_out = left_out(status, &due, controller);
    Some(Due {
        status: due,
        waits,
        confirm: false,
        left_out,
    })
}

/// Returns the initial status of a Gateway or ListenerSet that is not Vestibule's, to be written if the present one is by
/// Vestibule; `None` if the present one says nothing anyway, or the object has no initial status. While the object itself
/// cannot be read, its controller is not known, so its status stays. An object whose GatewayClass cannot be read counts as
/// not Vestibule's.
fn lost(
    translator: &Translator,
    (key, old): (&ObjectKey, &Value),
    observed: Observed,
) -> Option<Due> {
    let object = translator.object(key)?.as_ref();
    let is_lost = matches!(object, Object::Gateway(_) | Object::ListenerSet(_));
    (is_lost && says_something(old)).then(|| Due {
        status: unknown(key.kind, old, observed),
        waits: false,
        confirm: true,
        left_out: LeftOut::default(),
    })
}

/// Whether the status of a Gateway or ListenerSet says more than the initial one.
fn says_something(status: &Value) -> bool {
    let is_decided = |condition: &Value| {
        let text = |field: &str| condition.get(field).and_then(Value::as_str);
        let is_known = text("type").and_then(ConditionType::from_text).is_some();
        is_known && text("status") != Some("Unknown")
    };
    entries(status, "conditions").any(is_decided)
        || entries(status, "listeners").next().is_some()
        || entries(status, "addresses").next().is_some()
}

/// Returns for how many entries of this controller a list in a rendered status has no room, and what fills the list.
fn left_out(status: &Status, rendered: &Value, controller: &str) -> LeftOut {
    let (list, due) = match status {
        Status::Route(status) => ("parents", status.parents.len()),
        Status::Policy(status) => ("ancestors", status.ancestors.len()),
        Status::Class(_) | Status::Listeners(_) | Status::Grant(_) => return LeftOut::default(),
    };
    let all = entries(rendered, list).count();
    let written = entries(rendered, list).filter(|entry| is_of(entry, controller));
    let written = written.count();
    LeftOut {
        ours: due.saturating_sub(written),
        foreign: all - written,
        all,
    }
}

/// Returns a port of listeners that the proxies serve, but that the Service of their Gateway does not forward yet. If there
/// is no Service, it forwards none. The states of Services are known, because only a leader writes statuses. Without
/// Services, as in `vestibule run`, no listener has a port on one.
fn unreached(
    translator: &Translator,
    service_states: &ServiceStates,
    basis: &ProgrammedBasis,
) -> Option<Port> {
    let ProgrammedBasis::WhenAcknowledged(listeners) = basis else {
        return None;
    };
    let ports = listeners
        .iter()
        .filter_map(|l| translator.port_on_service(l));
    let mut missing = ports.filter(|(desired, internal)| {
        let front = service_states.get(&desired.gateway);
        let there = |front: &ServiceState| {
            front.ports.get(&(desired.port, desired.transport)) == Some(internal)
        };
        front.is_none_or(|front| !there(front))
    });
    missing.next().map(|(desired, _)| desired.port)
}

/// Whether a status contains statements about routes or backends. These are true only once the proxies have them. For
/// listeners, Programmed tells this.
fn counts_or_judges_routes(status: &Status) -> bool {
    matches!(status, Status::Listeners(_) | Status::Policy(_))
}

fn has_parent(translator: &Translator, set: &ObjectKey) -> bool {
    let Some(Object::ListenerSet(set)) = translator.object(set).map(AsRef::as_ref) else {
        return true;
    };
    let gateway = set.gateway.as_ref().map(|name| ObjectKey {
        kind: Kind::Gateway,
        name: name.clone(),
    });
    gateway.is_some_and(|gateway| translator.object(&gateway).is_some())
}

/// Returns the status that the schema gives to a new Gateway or ListenerSet, with the conditions of other controllers.
fn unknown(kind: Kind, old: &Value, observed: Observed) -> Value {
    let waiting = |kind| Condition {
        kind,
        truth: Truth::Unknown,
        reason: Reason::Pending,
        message: Wait::Controller.to_string(),
    };
    let status = ListenersStatus {
        conditions: vec![waiting(ConditionType::Accepted)],
        programmed: ProgrammedBasis::NotYet(Wait::Controller),
        listeners: Vec::new(),
        attached_listener_sets: 0,
        addresses: None,
    };
    let programmed = |_: &ProgrammedBasis| waiting(ConditionType::Programmed);
    if kind != Kind::Gateway {
        return wire::listener_set(old, &status, observed, programmed);
    }
    let mut status = wire::gateway(old, &status, observed, programmed);
    if let Some(fields) = status.as_object_mut() {
        // Nothing is served at the address, whether or not the Service keeps it.
        fields.remove("addresses");
    }
    status
}

/// Adds to the message of Accepted=True why the Gateway has no name inside the cluster.
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

/// Whether a list in a status has an entry of this controller.
fn is_in(status: &Value, list: &str, controller: &str) -> bool {
    entries(status, list).any(|entry| is_of(entry, controller))
}

/// Whether an entry of a list in a status belongs to this controller.
fn is_of(entry: &Value, controller: &str) -> bool {
    entry.get("controllerName").and_then(Value::as_str) == Some(controller)
}

/// Returns the entries of a list in a status.
fn entries<'a>(status: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let entries = status.get(list).and_then(Value::as_array);
    entries.into_iter().flatten()
}
