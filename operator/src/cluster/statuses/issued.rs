//! Statuses about certificates: those of issuers, and what listeners say of theirs while that is not known.

use serde_json::{Map, Value, json};
use vestibule_crds::status::Observed;
use vestibule_model::condition::ConditionType;
use vestibule_model::object::AcmeIssuer;

use crate::acme::IssuerFact;

/// Longest message.
const MAX_MESSAGE: usize = 1024;

/// The status of an issuer; `None`: nothing is known, and it stays as it is.
pub(super) fn issuer(
    issuer: &AcmeIssuer,
    fact: Option<&IssuerFact>,
    old: &Value,
    observed: Observed,
) -> Option<Value> {
    let (ready, reason, message) = match (issuer.refusal(), fact) {
        (Some(finding), _) => (false, finding.reason.as_str(), finding.to_string()),
        (None, Some(fact)) => (fact.ready, fact.reason, fact.message.clone()),
        (None, None) => return None,
    };
    let message = super::super::text::bounded(&message, MAX_MESSAGE);
    let now = time(observed.now);
    let mut status = old.as_object().cloned().unwrap_or_default();
    let mut condition = Map::new();
    let truth = if ready { "True" } else { "False" };
    condition.insert("type".into(), "Ready".into());
    condition.insert("status".into(), truth.into());
    condition.insert("reason".into(), reason.into());
    condition.insert("message".into(), message.clone().into());
    condition.insert("observedGeneration".into(), observed.generation.into());
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let list = conditions.as_array_mut()?;
    let before = list.iter().position(|c| is(c, "type", "Ready"));
    let since = before
        .and_then(|index| list.get(index))
        .filter(|c| is(c, "status", truth))
        .and_then(|c| c.get("lastTransitionTime").cloned());
    condition.insert(
        "lastTransitionTime".into(),
        since.unwrap_or_else(|| now.clone().into()),
    );
    match before.and_then(|index| list.get_mut(index)) {
        Some(entry) => *entry = Value::Object(condition),
        None => list.push(Value::Object(condition)),
    }
    // An account that was made stays known while the CA is away.
    if let Some(url) = fact.and_then(|fact| fact.account_url.as_ref()) {
        status.insert("accountURL".into(), url.as_str().into());
    }
    let said = status
        .get("lastError")
        .and_then(|error| error.get("message"));
    if ready {
        status.remove("lastError");
    } else if issuer.refusal().is_none() && said.and_then(Value::as_str) != Some(&*message) {
        status.insert("lastError".into(), json!({"message": message, "time": now}));
    }
    Some(Value::Object(status))
}

/// Leaves to listeners what they say of their certificates.
pub(super) fn keep(old: &Value, due: &mut Value) {
    let issued = ConditionType::CertificateIssued.as_str();
    let before = old.get("listeners").and_then(Value::as_array);
    let listeners = due.get_mut("listeners").and_then(Value::as_array_mut);
    for listener in listeners.into_iter().flatten() {
        let name = listener.get("name").and_then(Value::as_str);
        let same = |before: &&Value| before.get("name").and_then(Value::as_str) == name;
        let kept = before
            .and_then(|all| all.iter().find(same))
            .and_then(|before| before.get("conditions")?.as_array())
            .and_then(|all| all.iter().find(|c| is(c, "type", issued)))
            .cloned();
        let Some(Value::Array(conditions)) = listener.get_mut("conditions") else {
            continue;
        };
        let at = conditions.iter().position(|c| is(c, "type", issued));
        match (at.and_then(|at| conditions.get_mut(at)), kept) {
            // The same in everything but the generation that it is about.
            (Some(entry), Some(mut kept)) => {
                if let (Some(generation), Some(kept)) =
                    (entry.get("observedGeneration"), kept.as_object_mut())
                {
                    kept.insert("observedGeneration".into(), generation.clone());
                }
                *entry = kept;
            }
            (None, Some(kept)) => conditions.push(kept),
            (Some(_), None) => conditions.retain(|c| !is(c, "type", issued)),
            (None, None) => {}
        }
    }
}

fn is(condition: &Value, field: &str, text: &str) -> bool {
    condition.get(field).and_then(Value::as_str) == Some(text)
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: &str = "vestibule.dev/CertificateIssued";

    fn listener(name: &str, conditions: &Value) -> Value {
        json!({"listeners": [{"name": name, "conditions": conditions}]})
    }

    #[test]
    fn while_nothing_is_known_a_listener_goes_on_saying_what_it_said() {
        let issued = json!({"type": ISSUED, "status": "True", "observedGeneration": 1});
        let pending = json!({"type": ISSUED, "status": "False", "observedGeneration": 2});
        let other = json!({"type": "Accepted", "status": "True"});
        let old = listener("web", &json!([issued, other]));

        let mut due = listener("web", &json!([pending, other]));
        keep(&old, &mut due);
        let kept = json!({"type": ISSUED, "status": "True", "observedGeneration": 2});
        assert_eq!(due, listener("web", &json!([kept, other])));

        let mut due = listener("web", &json!([other]));
        keep(&old, &mut due);
        assert_eq!(due, listener("web", &json!([other, issued])));

        let mut due = listener("new", &json!([pending, other]));
        keep(&old, &mut due);
        assert_eq!(due, listener("new", &json!([other])));
    }
}
