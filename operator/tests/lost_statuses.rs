//! When a Gateway or ListenerSet is no longer Vestibule's, its status stops saying that it is in force. What decides is
//! the status that is there, so the memory of the process does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::cluster::services::ServiceStates;
use vestibule_operator::cluster::statuses::plan::{Due, LiveStatus};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::publish::{self, Publisher};
use vestibule_operator::translate::{CONTROLLER, Change, Translator};
use vestibule_operator_testing::objects::*;

fn translator(objects: impl IntoIterator<Item = Object>) -> Translator {
    let mut translator = Translator::new(settings());
    translator.apply(objects.into_iter().map(Change::Put));
    translator
}

fn judge(translator: &Translator, key: &ObjectKey, old: &Value) -> Option<Due> {
    let publisher: Arc<Publisher> = Publisher::new(publish::Config::default());
    publisher.lead(1).expect("a first term");
    let inputs = StatusInputs {
        translator,
        publisher: &publisher,
        controller: CONTROLLER,
        service_states: &ServiceStates::new(),
        orphans: &BTreeSet::new(),
        issuers: &BTreeMap::new(),
        issuer_selector: None,
        issuance_known: true,
    };
    let live = LiveStatus::new("1".into(), 1, old);
    statuses::judge(&inputs, 0, (key, &live, old))
}

fn one() -> Object {
    gateway(
        "one",
        vec![passthrough("l", "*.example.com")],
        NamespaceScope::All,
    )
}

fn mine() -> Object {
    let listeners = vec![passthrough("web", "x.a.test")];
    set("a", "mine", 1, "one", listeners)
}

/// The status of an object that is in force.
fn in_force(kind: Kind) -> Value {
    let conditions = ["Accepted", "Programmed"].map(|kind| {
        json!({
            "type": kind, "status": "True", "reason": kind, "message": "In force in 1 of 1 proxies",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    let mut status = json!({
        "conditions": conditions,
        "listeners": [{
            "name": "l", "attachedRoutes": 1, "supportedKinds": [], "conditions": conditions,
        }],
    });
    if kind == Kind::Gateway {
        status["addresses"] = json!([{"type": "IPAddress", "value": "192.0.2.1"}]);
    }
    status
}

/// (status, reason) of each condition, by type.
fn conditions(status: &Value) -> BTreeMap<String, (String, String)> {
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let conditions = status["conditions"].as_array().expect("conditions");
    let conditions = conditions.iter();
    let condition = |of: &Value| (text(of, "type"), (text(of, "status"), text(of, "reason")));
    conditions.map(condition).collect()
}

fn both() -> [ObjectKey; 2] {
    [
        key(Kind::Gateway, "platform", "one"),
        key(Kind::ListenerSet, "a", "mine"),
    ]
}

#[test]
fn statuses_of_objects_without_a_class_or_gateway_of_ours_become_pending() {
    let other = || class("example.com/other");
    for (objects, lost) in [
        // The class is gone, or never was there, or is another controller's.
        (vec![one(), mine()], &both()[..]),
        (vec![other(), one(), mine()], &both()[..]),
        // The Gateway is gone.
        (vec![our_class(), mine()], &both()[1..]),
        (vec![other(), mine()], &both()[1..]),
    ] {
        let translator = translator(objects);
        for key in lost {
            let due = judge(&translator, key, &in_force(key.kind)).expect("another status");
            // Whether the status is ours is asked before it is replaced.
            assert!(due.confirm && !due.waits, "{due:?}");
            let initial = || ("Unknown".to_owned(), "Pending".to_owned());
            assert_eq!(
                conditions(&due.status),
                BTreeMap::from([
                    ("Accepted".to_owned(), initial()),
                    ("Programmed".to_owned(), initial())
                ])
            );
            assert_eq!(due.status["listeners"], json!([]));
            if key.kind == Kind::Gateway {
                assert_eq!(due.status.get("addresses"), None);
            }
            // Then it stays, like the status of a new object and one that is missing.
            assert_eq!(judge(&translator, key, &due.status), None);
            assert_eq!(judge(&translator, key, &Value::Null), None);
            let pending = |kind: &str| {
                json!({
                    "type": kind, "status": "Unknown", "reason": "Pending",
                    "message": "Waiting for controller",
                    "lastTransitionTime": "1970-01-01T00:00:00Z",
                })
            };
            let new = json!({"conditions": [pending("Accepted"), pending("Programmed")]});
            assert_eq!(judge(&translator, key, &new), None);
        }
    }
}

#[test]
fn statuses_of_our_own_objects_need_no_confirmation() {
    let translator = translator([our_class(), one(), mine()]);
    for key in &both() {
        let due = judge(&translator, key, &in_force(key.kind)).expect("a status");
        assert!(!due.confirm, "{due:?}");
        assert_eq!(conditions(&due.status)["Accepted"].0, "True");
    }
}

/// Its controller is not known, so its status stays: about an earlier generation.
#[test]
fn the_status_of_an_unreadable_gateway_stays() {
    let [gateway, set] = both();
    let finding = Finding::refused(Reason::Unreadable, "spec", "does not decode", "");
    let unreadable = Object::Unreadable(gateway.clone(), Meta::default(), finding);
    let translator = translator([our_class(), unreadable, mine()]);
    assert_eq!(judge(&translator, &gateway, &in_force(Kind::Gateway)), None);
    // Nothing is served of its ListenerSets.
    let due = judge(&translator, &set, &in_force(Kind::ListenerSet)).expect("another status");
    assert!(due.confirm, "{due:?}");
}

#[test]
fn conditions_of_others_stay_and_lead_to_no_further_write() {
    let translator = translator([one()]);
    let [gateway, _] = both();
    let mut old = in_force(Kind::Gateway);
    let theirs = json!({
        "type": "example.com/Checked", "status": "True", "reason": "Checked", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let conditions = old["conditions"].as_array_mut().expect("conditions");
    conditions.push(theirs.clone());
    let due = judge(&translator, &gateway, &old).expect("another status");
    let kept = due.status["conditions"].as_array().expect("conditions");
    assert!(kept.contains(&theirs), "{kept:?}");
    assert_eq!(judge(&translator, &gateway, &due.status), None);
}
