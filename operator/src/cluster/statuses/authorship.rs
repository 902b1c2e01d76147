//! Finds out who wrote the present status of a Gateway or ListenerSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// The conditions by which a status shows its author. Controllers write both as a rule, but one of them is enough.
const CONDITIONS: [&str; 2] = ["Accepted", "Programmed"];

/// Whether the conditions in a status are what the field manager `manager` wrote, given `metadata.managedFields`.
///
/// A field belongs to whoever changed it last. The message of a condition stands for the condition: no two controllers
/// write the same one, while the same status and reason, for example, would stay with whoever wrote them first. If
/// another controller has written one of the conditions since, the status is not ours.
pub(super) fn has_written(fields: &[ManagedFieldsEntry], manager: &str) -> bool {
    let mut is_ours = false;
    for kind in CONDITIONS {
        let message = format!("/f:status/f:conditions/k:{{\"type\":\"{kind}\"}}/f:message");
        let owners = fields.iter().filter(|entry| {
            let fields = entry.fields_v1.as_ref();
            fields.is_some_and(|fields| fields.0.pointer(&message).is_some())
        });
        for owner in owners {
            if owner.manager.as_deref() != Some(manager) {
                return false;
            }
            is_ours = true;
        }
    }
    is_ours
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entries(value: Value) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(value).expect("managed fields")
    }

    fn entry(manager: &str, conditions: &Value) -> Value {
        json!({
            "manager": manager, "operation": "Update", "subresource": "status",
            "apiVersion": "gateway.networking.k8s.io/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:conditions": conditions}},
        })
    }

    const ACCEPTED: &str = r#"k:{"type":"Accepted"}"#;
    const PROGRAMMED: &str = r#"k:{"type":"Programmed"}"#;

    #[test]
    fn the_last_writer_of_the_messages_wrote_the_status() {
        let whole = json!({".": {}, "f:message": {}, "f:status": {}, "f:type": {}});
        let user = json!({
            "manager": "kubectl", "operation": "Apply", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:listeners": {}}},
        });
        let both = json!({ACCEPTED: whole, PROGRAMMED: whole});
        let ours = entries(json!([user, entry("vestibule", &both)]));
        assert!(has_written(&ours, "vestibule"));
        assert!(!has_written(&ours, "another"));
        // The other controller has found both conditions True, as we did.
        let left = json!({ACCEPTED: {"f:status": {}}, PROGRAMMED: {"f:status": {}}});
        let theirs = json!([entry("vestibule", &left), entry("another", &both)]);
        let theirs = entries(theirs);
        assert!(!has_written(&theirs, "vestibule"));
        assert!(has_written(&theirs, "another"));
        // It has written one of the conditions so far.
        let one = json!({ACCEPTED: whole});
        let rest = json!({PROGRAMMED: whole});
        let shared = entries(json!([entry("vestibule", &rest), entry("another", &one)]));
        assert!(!has_written(&shared, "vestibule"));
        assert!(!has_written(&shared, "another"));
    }

    #[test]
    fn a_status_that_nobody_wrote_is_nobodys() {
        assert!(!has_written(&[], "vestibule"));
        let odd = json!([
            {"manager": "vestibule"},
            {"manager": "vestibule", "fieldsV1": {"f:status": 7}},
            entry("vestibule", &json!({})),
        ]);
        assert!(!has_written(&entries(odd), "vestibule"));
    }
}
