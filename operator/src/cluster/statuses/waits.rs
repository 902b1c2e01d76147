//! Explains in a status why names are not recorded yet, if the API server is the cause.

use serde_json::Value;
use vestibule_model::condition::Wait;

use crate::claims::WriteProblem;

/// Adds the cause to the messages about names that wait to be recorded. The status is rendered already, so only
/// its message says what a condition waits for. The exact message of the API server is left to the platform team, since
/// it may name things that do not concern tenants.
pub(in super::super) fn explain(status: &mut Value, trouble: WriteProblem) {
    conditions(status, trouble);
    for list in ["listeners", "parents"] {
        let entries = status.get_mut(list).and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            conditions(entry, trouble);
        }
    }
}

fn conditions(of: &mut Value, trouble: WriteProblem) {
    let why = match trouble {
        WriteProblem::Refused => {
            "the API server refuses the record; whoever runs Vestibule finds why in the operator's log"
        }
        WriteProblem::Unanswered => "the API server does not answer, and is asked again",
    };
    let conditions = of.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if let Some(Value::String(message)) = condition.get_mut("message")
            && message == Wait::Claim.as_str()
        {
            *message = format!("{message}; {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_waits_for_its_claim_is_explained() {
        let status = |message: &str| {
            let conditions = json!([{"type": "Programmed", "message": message}]);
            json!({"conditions": conditions, "listeners": [{"conditions": conditions}], "parents": [{}]})
        };
        let mut waits = status(Wait::Claim.as_str());
        explain(&mut waits, WriteProblem::Refused);
        for at in ["", "/listeners/0"] {
            let message = waits
                .pointer(&format!("{at}/conditions/0/message"))
                .unwrap();
            assert!(
                message
                    .as_str()
                    .unwrap()
                    .contains("; the API server refuses"),
                "{message}"
            );
        }
        let mut other = status("Waiting for something else");
        explain(&mut other, WriteProblem::Unanswered);
        assert_eq!(other, status("Waiting for something else"));
    }
}
