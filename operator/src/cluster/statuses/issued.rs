//! Computes the statuses about certificates: those of issuers, and the conditions of listeners while the state of their
//! certificates is not known.

use serde_json::Value;
use vestibule_acme::IssuerState;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{
    Condition, ConditionType, IssuerError, IssuerStatus, Reason, Truth,
};
use vestibule_model::object::AcmeIssuer;

use super::super::text::bounded;

/// Longest message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Returns the status of an issuer. `None` if nothing is known, or if it belongs to another release; then it stays as
/// it is. The release that writes it first owns it, since each write requires the version that was seen.
pub(super) fn issuer(
    issuer: &AcmeIssuer,
    state: Option<&IssuerState>,
    old: &Value,
    controller: &str,
    observed: Observed,
) -> Option<Value> {
    let owner = wire::issuer_controller(old);
    if !owner.is_empty() && owner != controller {
        return None;
    }
    let ready = ConditionType::Ready;
    let condition = match (issuer.refusal(), state) {
        (Some(finding), _) => Condition::fails(ready, finding.reason, finding.to_string()),
        (None, Some(state)) => {
            // The engine has reasons of its own for an account that cannot be opened.
            let reason = Reason::from_text(state.reason).unwrap_or(Reason::IssuerNotReady);
            let message = bounded(&state.message, MAX_MESSAGE);
            Condition {
                truth: state.ready,
                ..Condition::holds(ready, reason, message)
            }
        }
        (None, None) => return None,
    };
    let failing = state.filter(|state| state.ready == Truth::False && issuer.refusal().is_none());
    let last_error = failing.map(|state| IssuerError {
        kind: state.problem.as_deref().map(Into::into),
        message: condition.message.as_str().into(),
        at: since(old, &condition.message).unwrap_or(observed.now),
    });
    let status = IssuerStatus {
        conditions: vec![condition],
        // The account stays known while the CA is away.
        account_url: state.and_then(|state| state.account_url.as_deref().map(Into::into)),
        last_error,
    };
    Some(wire::issuer(old, &status, controller, observed))
}

/// Returns since when the last error has had this message.
fn since(old: &Value, message: &str) -> Option<i64> {
    let last = old.get("lastError")?;
    let time: jiff::Timestamp = last.get("time")?.as_str()?.parse().ok()?;
    (last.get("message")?.as_str()? == message).then(|| time.as_second())
}

/// Keeps the conditions of listeners about their certificates.
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
            // Only the observed generation changes.
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vestibule_model::key::{Kind, ObjectKey};
    use vestibule_model::meta::Meta;
    use vestibule_model::selector::Labels;

    use super::*;

    const ISSUED: &str = "vestibule.dev/CertificateIssued";

    #[test]
    fn the_last_error_has_the_type_of_the_ca() {
        let issuer_of = AcmeIssuer {
            key: ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca"),
            meta: Meta::default(),
            labels: Labels::new(),
            directory: "https://ca.test/".into(),
            contact: Vec::new(),
            account_key_secret: "account".into(),
            external_account: None,
            profile: None,
            ca_bundle: None,
            challenges: Vec::new(),
            findings: Vec::new(),
        };
        let kind = "urn:ietf:params:acme:error:externalAccountRequired";
        let mut state = IssuerState {
            ready: Truth::False,
            reason: "AccountRefused",
            message: "the CA says no".into(),
            account_url: None,
            problem: Some(kind.into()),
        };
        let observed = |now| Observed { generation: 1, now };
        let said = |state: &IssuerState, old: &Value, now| {
            issuer(
                &issuer_of,
                Some(state),
                old,
                "vestibule.dev/one",
                observed(now),
            )
            .expect("a status")
        };
        let first = said(&state, &json!({}), 60);
        let error =
            json!({"type": kind, "message": "the CA says no", "time": "1970-01-01T00:01:00Z"});
        assert_eq!(first["lastError"], error);
        assert_eq!(said(&state, &first, 120), first, "it is the same one still");
        state.problem = None;
        assert_eq!(said(&state, &first, 120)["lastError"].get("type"), None);
        // Another release may judge otherwise, but does not write it.
        let other = |old: &Value| {
            let two = "vestibule.dev/two";
            issuer(&issuer_of, Some(&state), old, two, observed(180))
        };
        assert_eq!(other(&first), None);
        // An account that has not been tried yet is no error.
        let waits = IssuerState {
            ready: Truth::Unknown,
            reason: "NotRegistered",
            message: "nobody needs it".into(),
            ..state.clone()
        };
        let untried = said(&waits, &first, 120);
        assert_eq!(untried.get("lastError"), None);
        assert_eq!(untried["conditions"][0]["status"], "Unknown");
        assert_eq!(untried["conditions"][0]["reason"], "NotRegistered");
        let left = wire::issuer_withdrawn(&first, "vestibule.dev/one").expect("it was its own");
        assert!(other(&left).is_some());
    }

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
