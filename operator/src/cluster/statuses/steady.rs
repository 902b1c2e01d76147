//! Compares a new status with the present one, to find out whether the write may wait. This concerns the parts that
//! depend on acknowledgements.

use serde_json::Value;

/// The result of comparing a new status with the present one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// A part of the new status only waits, for acknowledgements, a port or an address.
    pub(super) waits: bool,
    /// A part only waits in the new status, and the present status does not say exactly that of it. So the new status
    /// may be out of date in a moment. A part that waits for something else as before does not count.
    pub(super) unsettled: bool,
    /// A part that is programmed at this generation of the object only waits in the new status.
    pub(super) regresses: bool,
}

/// Compares `new` with `old`, and undoes changes in `new` that are not worth a write. These are the counts in the
/// message of a part that was and is programmed. With `presume`, they also include a part that was programmed and now
/// waits for acknowledgements again.
pub(super) fn steady(old: &Value, new: &mut Value, presume: bool) -> Traits {
    let mut traits = Traits::default();
    conditions(old, new, presume, &mut traits);
    let parts = new.get_mut("listeners").and_then(Value::as_array_mut);
    for part in parts.into_iter().flatten() {
        let name = part.get("name");
        let before = old
            .get("listeners")
            .and_then(Value::as_array)
            .and_then(|parts| parts.iter().find(|before| before.get("name") == name));
        conditions(before.unwrap_or(&Value::Null), part, presume, &mut traits);
    }
    traits
}

fn conditions(old: &Value, new: &mut Value, presume: bool, traits: &mut Traits) {
    let Some(after) = programmed_mut(new) else {
        return;
    };
    let before = programmed(old)
        .filter(|before| before.get("observedGeneration") == after.get("observedGeneration"));
    if let Some(before) = before.filter(|before| is(before, "status", "True")) {
        if is(after, "status", "True") {
            if before.get("reason") == after.get("reason") {
                *after = before.clone();
            }
        } else if is(after, "status", "False") && is(after, "reason", "Pending") {
            traits.regresses = true;
            if presume {
                *after = before.clone();
            }
        }
    }
    if waits(after) {
        traits.waits = true;
        traits.unsettled |= before != Some(&*after);
    }
}

/// Whether the statuses differ only in progress: both wait, and differ in what a part waits for, or in the progress of a
/// certificate.
pub(super) fn is_progress(old: &Value, new: &Value) -> bool {
    let mut without = new.clone();
    undo_progress(old, &mut without);
    let before = old.get("listeners").and_then(Value::as_array);
    let parts = without.get_mut("listeners").and_then(Value::as_array_mut);
    for part in parts.into_iter().flatten() {
        let name = part.get("name");
        let before = before.and_then(|all| all.iter().find(|before| before.get("name") == name));
        if let Some(before) = before {
            undo_progress(before, part);
        }
    }
    new != old && without == *old
}

/// Sets the conditions of `new` that are under way to what they are in `old`, if they are under way there too.
fn undo_progress(old: &Value, new: &mut Value) {
    for (kind, is_under_way) in UNDER_WAY {
        if let Some(before) = condition(old, kind)
            && let Some(after) = condition_mut(new, kind)
            && is_under_way(before)
            && is_under_way(after)
            && before.get("observedGeneration") == after.get("observedGeneration")
        {
            *after = before.clone();
        }
    }
}

/// Whether a condition is under way.
type IsUnderWay = fn(&Value) -> bool;

/// The types of conditions that have progress, and whether such a condition is under way.
const UNDER_WAY: [(&str, IsUnderWay); 2] = [(PROGRAMMED, waits), (ISSUED, is_being_issued)];

const PROGRAMMED: &str = "Programmed";
/// Type of the condition about the state of a certificate.
const ISSUED: &str = "vestibule.dev/CertificateIssued";

fn is_being_issued(condition: &Value) -> bool {
    let reasons = ["Pending", "IssuerNotReady"];
    is(condition, "status", "False") && reasons.iter().any(|r| is(condition, "reason", r))
}

/// Reasons of conditions that become true without any action of a user.
const WAITING: [&str; 3] = ["Pending", "AddressNotAssigned", "ParentNotProgrammed"];

fn waits(condition: &Value) -> bool {
    is(condition, "status", "False") && WAITING.iter().any(|reason| is(condition, "reason", reason))
}

fn programmed(status: &Value) -> Option<&Value> {
    condition(status, PROGRAMMED)
}

fn programmed_mut(status: &mut Value) -> Option<&mut Value> {
    condition_mut(status, PROGRAMMED)
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = status.get("conditions")?.as_array()?;
    conditions.iter().find(|c| is(c, "type", kind))
}

fn condition_mut<'a>(status: &'a mut Value, kind: &str) -> Option<&'a mut Value> {
    let conditions = status.get_mut("conditions")?.as_array_mut()?;
    conditions.iter_mut().find(|c| is(c, "type", kind))
}

fn is(value: &Value, field: &str, text: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(truth: &str, reason: &str, message: &str, generation: i64) -> Value {
        let conditions = json!([
            {"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": generation},
            {"type": "Programmed", "status": truth, "reason": reason, "message": message,
             "observedGeneration": generation},
        ]);
        json!({"conditions": conditions, "listeners": [{"name": "web", "conditions": conditions}]})
    }

    #[test]
    fn certificate_issuance_under_way_is_progress_and_its_end_is_not() {
        let listener = |truth: &str, reason: &str, message: &str, programmed: &str| {
            json!({"listeners": [{"name": "web", "conditions": [
                {"type": ISSUED, "status": truth, "reason": reason, "message": message},
                {"type": "Programmed", "status": programmed, "reason": "Programmed"},
            ]}]})
        };
        let asked = listener("False", "Pending", "is asked", "True");
        let checks = listener("False", "Pending", "checks", "True");
        assert!(is_progress(&asked, &checks));
        assert!(!is_progress(&asked, &asked), "nothing is different");
        assert!(!is_progress(
            &asked,
            &listener("True", "Issued", "by", "True")
        ));
        assert!(!is_progress(
            &asked,
            &listener("False", "OrderFailed", "no", "True")
        ));
        assert!(!is_progress(
            &asked,
            &listener("False", "Pending", "checks", "False")
        ));
        assert!(!is_progress(&json!({}), &asked));
    }

    #[test]
    fn counts_are_no_news() {
        let old = status("True", "Programmed", "in 2 of 2", 1);
        let mut new = status("True", "Programmed", "in 3 of 3", 1);
        assert_eq!(steady(&old, &mut new, false), Traits::default());
        assert_eq!(new, old);
        // In a status of another generation, they are worth a write.
        let mut new = status("True", "Programmed", "in 3 of 3", 2);
        let there = new.clone();
        steady(&old, &mut new, false);
        assert_eq!(new, there);
    }

    #[test]
    fn a_regress_is_held_only_at_the_same_generation() {
        let old = status("True", "Programmed", "", 1);
        let pending = |generation| status("False", "Pending", "0/2 acked", generation);
        let mut new = pending(1);
        let traits = steady(&old, &mut new, true);
        assert!(traits.regresses && !traits.waits, "{traits:?}");
        assert_eq!(new, old);
        let mut new = pending(1);
        let traits = steady(&old, &mut new, false);
        assert!(traits.regresses && traits.waits, "{traits:?}");
        assert_eq!(new, pending(1));
        let mut new = pending(2);
        let traits = steady(&old, &mut new, true);
        assert!(
            !traits.regresses && traits.waits && traits.unsettled,
            "{traits:?}"
        );
        assert_eq!(new, pending(2));
        assert!(!is_progress(&old, &new));
    }

    #[test]
    fn status_of_an_invalid_part_never_waits() {
        let old = status("True", "Programmed", "", 1);
        let invalid = status("False", "Invalid", "rejected", 1);
        let mut new = invalid.clone();
        assert_eq!(steady(&old, &mut new, true), Traits::default());
        assert_eq!(new, invalid);
    }

    #[test]
    fn status_change_elsewhere_is_no_progress_and_does_not_wait_with_the_rest() {
        let old = status("False", "AddressNotAssigned", "no address", 1);
        let mut new = old.clone();
        new["listeners"][0]["attachedRoutes"] = json!(1);
        let traits = steady(&old, &mut new, true);
        assert!(traits.waits && !traits.unsettled, "{traits:?}");
        assert!(!is_progress(&old, &new));
        // A part that waits in another way than before may be out of date in a moment, also beside other news.
        new["conditions"][1]["message"] = json!("0/1 acked");
        let traits = steady(&old, &mut new, true);
        assert!(traits.waits && traits.unsettled, "{traits:?}");
        assert!(!is_progress(&old, &new));
        // Without other news, it is progress alone.
        let mut new = old.clone();
        new["conditions"][1]["message"] = json!("0/1 acked");
        assert!(is_progress(&old, &new));
    }

    #[test]
    fn waiting_that_is_there_already_is_told() {
        let old = status("False", "Pending", "0/2 acked", 1);
        let mut new = status("False", "Pending", "1/2 acked", 1);
        let traits = steady(&old, &mut new, true);
        assert!(
            traits.waits && traits.unsettled && !traits.regresses,
            "{traits:?}"
        );
        assert!(is_progress(&old, &new));
        let mut new = old.clone();
        let traits = steady(&old, &mut new, true);
        assert!(traits.waits && !traits.unsettled, "{traits:?}");
        for nothing in [
            Value::Null,
            json!({}),
            json!({"conditions": 1, "listeners": 2}),
        ] {
            let mut new = nothing.clone();
            assert_eq!(steady(&nothing, &mut new, true), Traits::default());
        }
    }
}
