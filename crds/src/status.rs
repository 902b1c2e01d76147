//! Renders statuses of the model to the wire: pure functions of the present status, the new one, and the time.
//!
//! Parts that others wrote stay: condition types that are not ours, entries of other controllers, and unknown
//! fields. A condition keeps its `lastTransitionTime` while its value does not change (`metav1.Condition`). So
//! equal input renders to equal output, and a writer can compare.

use serde_json::{Map, Value, json};
use vestibule_model::condition::{
    Address, ClassStatus, Condition, ConditionType, GrantStatus, IssuerStatus, ListenersStatus,
    PolicyStatus, ProgrammedBasis, RouteStatus,
};
use vestibule_model::key::GATEWAY_GROUP;
use vestibule_model::reference::ParentRef;

/// Conditions per list (`MaxItems` of every list of conditions).
const MAX_CONDITIONS: usize = 8;
/// Parents per route status (`MaxItems`).
const MAX_PARENTS: usize = 32;
/// Ancestors per policy status (`MaxItems`).
const MAX_ANCESTORS: usize = 16;
/// Addresses per Gateway status (`MaxItems`).
const MAX_ADDRESSES: usize = 16;
/// Longest message in characters (`MaxLength` of `metav1.Condition`).
const MAX_MESSAGE: usize = 32_768;
/// The time in the defaults of the CRD schemas. Nothing happened at that time.
const SCHEMA_DEFAULT_TIME: &str = "1970-01-01T00:00:00Z";
/// The generation and the time at which a status is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Generation of the object that the status is about.
    pub generation: i64,
    /// Time of writing, in seconds since the Unix epoch.
    pub now: i64,
}

/// Renders the status of a Gateway. `programmed` returns the Programmed condition, which depends on what the proxies
/// have acknowledged.
#[must_use]
pub fn gateway(
    old: &Value,
    new: &ListenersStatus,
    observed: Observed,
    programmed: impl Fn(&ProgrammedBasis) -> Condition,
) -> Value {
    let mut status = listeners(old, new, observed, programmed);
    status.insert(
        "attachedListenerSets".into(),
        count(new.attached_listener_sets),
    );
    if let Some(addresses) = &new.addresses {
        let addresses: Vec<Value> = addresses.iter().take(MAX_ADDRESSES).map(address).collect();
        status.insert("addresses".into(), addresses.into());
    }
    Value::Object(status)
}

fn address(address: &Address) -> Value {
    match address {
        Address::Ip(ip) => json!({"type": "IPAddress", "value": ip.to_string()}),
        Address::Hostname(name) => json!({"type": "Hostname", "value": &**name}),
    }
}

/// Renders the status of a ListenerSet; see [`gateway`].
#[must_use]
pub fn listener_set(
    old: &Value,
    new: &ListenersStatus,
    observed: Observed,
    programmed: impl Fn(&ProgrammedBasis) -> Condition,
) -> Value {
    Value::Object(listeners(old, new, observed, programmed))
}

/// Renders the status of a GatewayClass.
#[must_use]
pub fn class(old: &Value, new: &ClassStatus, observed: Observed) -> Value {
    let mut status = fields(old);
    let conditions = conditions(old.get("conditions"), &new.conditions, observed);
    status.insert("conditions".into(), conditions);
    let features: Vec<Value> = new
        .supported_features
        .iter()
        .map(|name| json!({ "name": name }))
        .collect();
    status.insert("supportedFeatures".into(), features.into());
    Value::Object(status)
}

/// The controller that owns the status of an ACME issuer, or an empty string if none does.
#[must_use]
pub fn issuer_controller(status: &Value) -> &str {
    let name = status.get("controllerName").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// The status of an ACME issuer without the parts of `controller`, which no longer writes it. It is `None` if
/// `controller` has written nothing.
#[must_use]
pub fn issuer_withdrawn(old: &Value, controller: &str) -> Option<Value> {
    if issuer_controller(old) != controller {
        return None;
    }
    let mut status = fields(old);
    for field in ["controllerName", "accountURL", "lastError"] {
        status.remove(field);
    }
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        let ready = ConditionType::Ready.as_str();
        conditions.retain(|one| one.get("type").and_then(Value::as_str) != Some(ready));
    }
    Some(Value::Object(status))
}

/// Renders the status of an ACME issuer, written by `controller`.
#[must_use]
pub fn issuer(old: &Value, new: &IssuerStatus, controller: &str, observed: Observed) -> Value {
    let mut status = fields(old);
    status.insert("controllerName".into(), controller.into());
    let conditions = conditions(old.get("conditions"), &new.conditions, observed);
    status.insert("conditions".into(), conditions);
    if let Some(url) = &new.account_url {
        status.insert("accountURL".into(), (&**url).into());
    }
    match &new.last_error {
        None => {
            status.remove("lastError");
        }
        Some(error) => {
            let message = bounded(&error.message);
            let mut wire = json!({ "message": message, "time": rfc3339(error.at) });
            if let (Some(kind), Some(wire)) = (&error.kind, wire.as_object_mut()) {
                wire.insert("type".into(), (&**kind).into());
            }
            status.insert("lastError".into(), wire);
        }
    }
    Value::Object(status)
}

/// Renders the status of a HostnameGrant.
#[must_use]
pub fn grant(old: &Value, new: &GrantStatus, observed: Observed) -> Value {
    let mut status = fields(old);
    let conditions = conditions(old.get("conditions"), &new.conditions, observed);
    status.insert("conditions".into(), conditions);
    Value::Object(status)
}

/// Renders the status of a route. Entries of other controllers than `controller` stay as they are. Entries of our own
/// keep their places, because otherwise two controllers would swap places for ever.
#[must_use]
pub fn route(old: &Value, new: &RouteStatus, controller: &str, observed: Observed) -> Value {
    let list = List {
        name: "parents",
        reference: "parentRef",
        max: MAX_PARENTS,
    };
    let ours = new
        .parents
        .iter()
        .map(|parent| (parent_ref(&parent.parent), &*parent.conditions));
    list.render(old, ours.collect(), controller, observed)
}

/// Whether the entry of this controller for a parent says that the route is accepted. It may be about any generation of
/// the route.
#[must_use]
pub fn is_accepted(status: &Value, parent: &ParentRef, controller: &str) -> bool {
    let reference = parent_ref(parent);
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    let parents = status.get("parents").and_then(Value::as_array);
    let entry = parents.into_iter().flatten().find(|entry| {
        text(entry, "controllerName").as_deref() == Some(controller)
            && entry
                .get("parentRef")
                .is_some_and(|is| same_parent(is, &reference))
    });
    let conditions = entry.and_then(|entry| entry.get("conditions")?.as_array());
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "type").as_deref() == Some("Accepted")
            && text(condition, "status").as_deref() == Some("True")
    })
}

/// Renders the status of a policy; see [`route`].
#[must_use]
pub fn policy(old: &Value, new: &PolicyStatus, controller: &str, observed: Observed) -> Value {
    let list = List {
        name: "ancestors",
        reference: "ancestorRef",
        max: MAX_ANCESTORS,
    };
    let ours = new.ancestors.iter().map(|ancestor| {
        let reference = json!({
            "group": GATEWAY_GROUP,
            "kind": "Gateway",
            "namespace": &*ancestor.gateway.namespace,
            "name": &*ancestor.gateway.name,
        });
        (reference, &*ancestor.conditions)
    });
    list.render(old, ours.collect(), controller, observed)
}

/// A list in a status that several controllers share. Each entry belongs to one controller, and is about one reference.
struct List {
    name: &'static str,
    reference: &'static str,
    max: usize,
}

impl List {
    fn render(
        &self,
        old: &Value,
        mut ours: Vec<(Value, &[Condition])>,
        controller: &str,
        observed: Observed,
    ) -> Value {
        let mut status = fields(old);
        let before: &[Value] = old
            .get(self.name)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice);
        let render = |before: Option<&Value>, (reference, due): (Value, &[Condition])| {
            let old = before.and_then(|before| before.get("conditions"));
            let conditions = conditions(old, due, observed);
            let mut entry = before.map(fields).unwrap_or_default();
            entry.insert(self.reference.into(), reference);
            entry.insert("controllerName".into(), controller.into());
            entry.insert("conditions".into(), conditions);
            Value::Object(entry)
        };
        let mut entries = Vec::with_capacity(before.len());
        for entry in before {
            if entry.get("controllerName").and_then(Value::as_str) != Some(controller) {
                entries.push(entry.clone());
                continue;
            }
            let reference = entry.get(self.reference).unwrap_or(&Value::Null);
            let still = ours.iter().position(|(due, _)| same_parent(reference, due));
            if let Some(still) = still {
                entries.push(render(Some(entry), ours.remove(still)));
            }
        }
        let room = self.max.saturating_sub(entries.len());
        entries.extend(ours.into_iter().take(room).map(|due| render(None, due)));
        status.insert(self.name.into(), Value::Array(entries));
        Value::Object(status)
    }
}

fn listeners(
    old: &Value,
    new: &ListenersStatus,
    observed: Observed,
    programmed: impl Fn(&ProgrammedBasis) -> Condition,
) -> Map<String, Value> {
    let mut status = fields(old);
    let with = |conditions: &[Condition], basis: &ProgrammedBasis| -> Vec<Condition> {
        let mut all = conditions.to_vec();
        all.push(programmed(basis));
        all
    };
    let own = with(&new.conditions, &new.programmed);
    let own = conditions(old.get("conditions"), &own, observed);
    status.insert("conditions".into(), own);

    let entries: &[Value] = old
        .get("listeners")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice);
    let named = |entry: &Value, name: &str| entry.get("name").and_then(Value::as_str) == Some(name);
    let mut rendered: Vec<Value> = Vec::new();
    for listener in &new.listeners {
        if rendered.iter().any(|entry| named(entry, &listener.name)) {
            // The list is keyed by name, so of several listeners with one name, only the first has a status.
            continue;
        }
        let before = entries.iter().find(|entry| named(entry, &listener.name));
        let kinds: Vec<Value> = listener
            .supported_kinds
            .iter()
            .map(|(group, kind)| json!({"group": group, "kind": kind}))
            .collect();
        let own = with(&listener.conditions, &listener.programmed);
        let own = conditions(before.and_then(|b| b.get("conditions")), &own, observed);
        let mut entry = before.map(fields).unwrap_or_default();
        entry.insert("name".into(), (*listener.name).into());
        entry.insert("supportedKinds".into(), kinds.into());
        entry.insert("attachedRoutes".into(), count(listener.attached_routes));
        entry.insert("conditions".into(), own);
        rendered.push(Value::Object(entry));
    }
    status.insert("listeners".into(), rendered.into());
    status
}

/// The conditions of `new`, and those of `old` whose types are not ours. Types that were there keep their place.
fn conditions(old: Option<&Value>, new: &[Condition], observed: Observed) -> Value {
    let old: &[Value] = old.and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let kind_of = |value: &Value| -> Option<ConditionType> {
        ConditionType::from_text(value.get("type")?.as_str()?)
    };
    // Our conditions must fit, whatever others have written.
    let mut room = MAX_CONDITIONS.saturating_sub(new.len());
    let mut written = Vec::new();
    let mut rendered = Vec::new();
    for before in old {
        let Some(kind) = kind_of(before) else {
            if room > 0 {
                room -= 1;
                rendered.push(before.clone());
            }
            continue;
        };
        let after = new.iter().find(|c| c.kind == kind);
        if let Some(after) = after.filter(|_| !written.contains(&kind)) {
            written.push(kind);
            rendered.push(condition(Some(before), after, observed));
        }
    }
    for after in new {
        if !written.contains(&after.kind) {
            written.push(after.kind);
            rendered.push(condition(None, after, observed));
        }
    }
    Value::Array(rendered)
}

fn condition(old: Option<&Value>, new: &Condition, observed: Observed) -> Value {
    let text = |key: &str| old?.get(key)?.as_str();
    let since = text("lastTransitionTime")
        .filter(|time| *time != SCHEMA_DEFAULT_TIME && text("status") == Some(new.truth.as_str()))
        .filter(|time| time.parse::<jiff::Timestamp>().is_ok());
    json!({
        "type": new.kind.as_str(),
        "status": new.truth.as_str(),
        "reason": new.reason.as_str(),
        "message": bounded(&new.message),
        "observedGeneration": observed.generation,
        "lastTransitionTime": since.map_or_else(|| rfc3339(observed.now), str::to_owned),
    })
}

/// The time in RFC 3339 form, in UTC. A time that the calendar cannot represent becomes the Unix epoch.
fn rfc3339(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

fn bounded(message: &str) -> &str {
    message
        .char_indices()
        .nth(MAX_MESSAGE)
        .and_then(|(end, _)| message.get(..end))
        .unwrap_or(message)
}

/// The reference as the route has it. Fields that it leaves out are left out here as well.
fn parent_ref(parent: &ParentRef) -> Value {
    let texts = [
        ("group", &parent.group),
        ("kind", &parent.kind),
        ("namespace", &parent.namespace),
        ("sectionName", &parent.section),
    ];
    let mut reference = Map::new();
    reference.insert("name".into(), (*parent.name).into());
    for (key, text) in texts {
        if let Some(text) = text {
            reference.insert(key.into(), (**text).into());
        }
    }
    if let Some(port) = parent.port {
        reference.insert("port".into(), port.get().into());
    }
    Value::Object(reference)
}

/// Whether two references are the same after the defaults of the schema are filled in. (If only one of them leaves out
/// its namespace, they count as different. This changes a transition time and nothing else.)
fn same_parent(a: &Value, b: &Value) -> bool {
    let text = |v: &Value, key: &str, absent: &str| {
        v.get(key)
            .and_then(Value::as_str)
            .unwrap_or(absent)
            .to_owned()
    };
    [
        ("group", GATEWAY_GROUP),
        ("kind", "Gateway"),
        ("namespace", ""),
        ("name", ""),
        ("sectionName", ""),
    ]
    .into_iter()
    .all(|(key, absent)| text(a, key, absent) == text(b, key, absent))
        && a.get("port") == b.get("port")
}

fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// A count as an `int32`, which is its type in the API.
fn count(number: usize) -> Value {
    i32::try_from(number).unwrap_or(i32::MAX).into()
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
