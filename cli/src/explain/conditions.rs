//! Conditions as statuses contain them, and the differences between two accounts of one object.

use serde::Serialize;
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::key::GATEWAY_GROUP;
use vestibule_model::reference::ParentRef;

/// Type of the condition that says whether the proxies serve the object.
pub(crate) const PROGRAMMED: &str = "Programmed";
/// Type of the condition that shows the progress of a certificate.
pub(crate) const ISSUED: &str = "vestibule.dev/CertificateIssued";
/// Conditions that only the operator knows, and translation of the objects does not.
const STATUS_ONLY: [&str; 2] = [PROGRAMMED, ISSUED];

/// Where a status comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StatusSource {
    /// Translation by this command, from all objects on which the status depends.
    #[default]
    Translation,
    /// The status on the object, because not all objects on which it depends may be read.
    Status,
    /// Translation by this command from only some of those objects, because there is no status either.
    Guess,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cond {
    pub(crate) kind: String,
    pub(crate) truth: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) generation: i64,
}

impl Cond {
    pub(crate) fn is(&self, truth: &str) -> bool {
        self.truth == truth
    }

    /// Whether it has this reason.
    pub(crate) fn is_for(&self, reason: Reason) -> bool {
        self.reason == reason.as_str()
    }
}

/// The status of one object or listener, computed or read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReportedStatus {
    pub(crate) conditions: Vec<Cond>,
    pub(crate) by: StatusSource,
    /// Conditions for which the status differs from translation, if translation counts.
    pub(crate) differences: Vec<Difference>,
    /// Whether there should be a status, and there is none.
    pub(crate) unwritten: bool,
    /// Whether the status is about an older version of the object.
    pub(crate) stale: bool,
    /// Conditions that only the status can have (about the proxies, about the issuer), wherever the rest comes from.
    pub(crate) live: Vec<Cond>,
}

/// A condition that differs between translation and the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Its type.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Value and reason by translation, such as `True/Accepted`.
    pub(crate) computed: String,
    /// Value and reason in the status. It is empty if the status does not have the condition.
    pub(crate) written: String,
}

impl ReportedStatus {
    /// Whether there are no conditions at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// A condition.
    pub(crate) fn get(&self, kind: &str) -> Option<&Cond> {
        self.conditions.iter().find(|one| one.kind == kind)
    }

    /// A condition that only the status can have.
    pub(crate) fn live(&self, kind: &str) -> Option<&Cond> {
        self.live.iter().find(|one| one.kind == kind)
    }

    /// The conditions that translation does not know.
    pub(super) fn status_only(&self) -> Vec<Cond> {
        let all = self.conditions.iter();
        all.filter(|one| STATUS_ONLY.contains(&one.kind.as_str()))
            .cloned()
            .collect()
    }

    /// Whether a condition has this value.
    pub(crate) fn is(&self, kind: &str, truth: &str) -> bool {
        self.get(kind).is_some_and(|one| one.is(truth))
    }

    /// Whether it was observed on an older version than `generation`.
    pub(crate) fn is_older_than(&self, generation: i64) -> bool {
        self.conditions
            .iter()
            .any(|one| one.generation < generation)
    }

    /// The conditions for which `written` differs. Those that only the status can have are left out.
    pub(super) fn differences(&self, written: &Self) -> Vec<Difference> {
        let mut differences = Vec::new();
        for computed in &self.conditions {
            let open = computed.kind == PROGRAMMED && computed.is("Unknown");
            if open || computed.kind == ISSUED {
                continue;
            }
            let found = written.get(&computed.kind);
            let same = found.is_some_and(|found| {
                found.truth == computed.truth
                    && (found.reason == computed.reason || computed.is("True"))
            });
            if !same {
                let text = |one: &Cond| format!("{}/{}", one.truth, one.reason);
                differences.push(Difference {
                    kind: computed.kind.clone(),
                    computed: text(computed),
                    written: found.map(text).unwrap_or_default(),
                });
            }
        }
        differences
    }
}

/// The conditions of an object, or of an entry of its status.
pub(crate) fn conditions_in(status: &Value) -> Option<ReportedStatus> {
    let list = status.get("conditions")?.as_array()?;
    let conditions = list
        .iter()
        .map(|one| {
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            Cond {
                kind: text("type"),
                truth: text("status"),
                reason: text("reason"),
                message: text("message"),
                generation: one["observedGeneration"].as_i64().unwrap_or_default(),
            }
        })
        .collect();
    Some(ReportedStatus {
        conditions,
        ..ReportedStatus::default()
    })
}

/// The entry of `controller` for one parent, in the status of a route in `namespace`.
pub(crate) fn reported_in(
    status: &Value,
    controller: &str,
    parent: &ParentRef,
    namespace: &str,
) -> Option<ReportedStatus> {
    let entries = status.get("parents")?.as_array()?;
    entries
        .iter()
        .filter(|entry| entry["controllerName"] == controller)
        .find(|entry| is_of(&entry["parentRef"], parent, namespace))
        .and_then(conditions_in)
}

/// Whether a reference in a status is this one, after the defaults are filled in.
fn is_of(written: &Value, parent: &ParentRef, namespace: &str) -> bool {
    let same = |field: &str, own: Option<&str>, default: &str| {
        written[field].as_str().unwrap_or(default) == own.unwrap_or(default)
    };
    same("group", parent.group.as_deref(), GATEWAY_GROUP)
        && same("kind", parent.kind.as_deref(), "Gateway")
        && same("namespace", parent.namespace.as_deref(), namespace)
        && same("name", Some(&parent.name), "")
        && same("sectionName", parent.section.as_deref(), "")
        && written["port"].as_u64() == parent.port.map(|port| port.get().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reported(conditions: &Value) -> ReportedStatus {
        conditions_in(&json!({ "conditions": conditions })).unwrap()
    }

    #[test]
    fn differences_are_of_truth_and_of_reasons_of_what_fails() {
        let computed = reported(&json!([
            {"type": "Accepted", "status": "False", "reason": "HostnameConflict"},
            {"type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs"},
            {"type": "Programmed", "status": "Unknown", "reason": "Pending"},
        ]));
        assert_eq!(computed.differences(&computed.clone()), []);
        let written = reported(&json!([
            {"type": "Accepted", "status": "True", "reason": "Accepted"},
            {"type": "ResolvedRefs", "status": "True", "reason": "Other"},
            {"type": "Programmed", "status": "True", "reason": "Programmed"},
        ]));
        let found = computed.differences(&written);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].computed, "False/HostnameConflict");
        assert_eq!(found[0].written, "True/Accepted");
    }

    #[test]
    fn an_entry_is_found_with_its_defaults_and_only_of_this_controller() {
        let status = json!({"parents": [
            {"controllerName": "other", "parentRef": {"name": "edge"},
             "conditions": [{"type": "Accepted", "status": "False"}]},
            {"controllerName": "ours", "conditions": [{"type": "Accepted", "status": "True"}],
             "parentRef": {"group": GATEWAY_GROUP, "kind": "Gateway", "namespace": "a", "name": "edge"}},
        ]});
        let parent = ParentRef {
            group: None,
            kind: None,
            namespace: None,
            name: "edge".into(),
            section: None,
            port: None,
            index: 0,
        };
        assert!(
            reported_in(&status, "ours", &parent, "a")
                .unwrap()
                .is("Accepted", "True")
        );
        assert!(reported_in(&status, "ours", &parent, "b").is_none());
        assert!(reported_in(&status, "nobody", &parent, "a").is_none());
    }

    #[test]
    fn a_status_of_an_older_version_is_known_as_such() {
        let old =
            reported(&json!([{"type": "Accepted", "status": "True", "observedGeneration": 2}]));
        assert!(old.is_older_than(3) && !old.is_older_than(2));
    }
}
