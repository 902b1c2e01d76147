//! Tests of the rendering of statuses.

use serde_json::{Value, json};
use vestibule_model::condition::{
    Condition, ConditionType, ListenerStatus, ListenersStatus, PolicyAncestor, PolicyStatus,
    ProgrammedBasis, Reason, RouteParentStatus, RouteStatus,
};
use vestibule_model::key::ObjectName;
use vestibule_model::reference::ParentRef;
use vestibule_model::small::SmallSet;

use super::*;

const NOW: Observed = Observed {
    generation: 7,
    now: 1_800_000_000,
};
const NOW_TEXT: &str = "2027-01-15T08:00:00Z";

fn programmed(basis: &ProgrammedBasis) -> Condition {
    basis.unpublished().unwrap_or_else(|| {
        Condition::holds(ConditionType::Programmed, Reason::Programmed, "held by 2/2")
    })
}

fn accepted() -> Condition {
    Condition::holds(ConditionType::Accepted, Reason::Accepted, "accepted")
}

fn status() -> ListenersStatus {
    ListenersStatus {
        conditions: vec![accepted()],
        programmed: ProgrammedBasis::WhenAcknowledged(SmallSet::default()),
        listeners: vec![ListenerStatus {
            name: "tls".into(),
            supported_kinds: vec![(GATEWAY_GROUP, "TLSRoute")],
            attached_routes: 2,
            conditions: vec![
                accepted(),
                Condition::fails(
                    ConditionType::ResolvedRefs,
                    Reason::InvalidCertificateRef,
                    "no such Secret",
                ),
            ],
            programmed: ProgrammedBasis::NotPublished(Reason::Invalid, "no certificate".into()),
        }],
        attached_listener_sets: 3,
        addresses: None,
    }
}

/// What the schemas of the CRDs put into a new object.
fn schema_default() -> Value {
    json!({"conditions": [
        {"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": SCHEMA_DEFAULT_TIME},
        {"type": "Programmed", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": SCHEMA_DEFAULT_TIME},
    ]})
}

fn find<'a>(conditions: &'a Value, kind: &str) -> Option<&'a Value> {
    conditions.as_array()?.iter().find(|c| c["type"] == kind)
}

#[test]
fn a_new_gateway_gets_its_whole_status() {
    let rendered = gateway(&schema_default(), &status(), NOW, programmed);
    assert_eq!(
        rendered,
        json!({
            "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "accepted", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT},
                {"type": "Programmed", "status": "True", "reason": "Programmed", "message": "held by 2/2", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT},
            ],
            "listeners": [{
                "name": "tls",
                "supportedKinds": [{"group": GATEWAY_GROUP, "kind": "TLSRoute"}],
                "attachedRoutes": 2,
                "conditions": [
                    {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "accepted", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT},
                    {"type": "ResolvedRefs", "status": "False", "reason": "InvalidCertificateRef", "message": "no such Secret", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT},
                    {"type": "Programmed", "status": "False", "reason": "Invalid", "message": "no certificate", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT},
                ],
            }],
            "attachedListenerSets": 3,
        })
    );
    let set = listener_set(&Value::Null, &status(), NOW, programmed);
    assert!(set.get("attachedListenerSets").is_none());
}

#[test]
fn rendering_again_later_changes_nothing() {
    let first = gateway(&schema_default(), &status(), NOW, programmed);
    let later = Observed {
        now: NOW.now + 60,
        ..NOW
    };
    assert_eq!(gateway(&first, &status(), later, programmed), first);
}

#[test]
fn the_time_moves_with_the_truth_and_with_nothing_else() {
    let first = gateway(&Value::Null, &status(), NOW, programmed);
    let later = Observed {
        generation: 8,
        now: NOW.now + 60,
    };
    let mut changed = status();
    changed.conditions = vec![Condition::fails(
        ConditionType::Accepted,
        Reason::ListenersNotValid,
        "none",
    )];
    let second = gateway(&first, &changed, later, programmed);
    let accepted = find(&second["conditions"], "Accepted").unwrap();
    assert_eq!(accepted["lastTransitionTime"], "2027-01-15T08:01:00Z");
    let held = find(&second["conditions"], "Programmed").unwrap();
    assert_eq!(held["lastTransitionTime"], NOW_TEXT);
    assert_eq!(held["observedGeneration"], 8);
}

#[test]
fn status_parts_that_others_wrote_stay_as_they_are() {
    let stale = json!({"type": "conformance.gateway.networking.k8s.io/StaleCondition", "status": "True", "reason": "Seeded", "message": "", "observedGeneration": 1, "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let old = json!({
        "addresses": [{"value": "192.0.2.1"}],
        "conditions": [stale],
        "listeners": [
            {"name": "tls", "attachedRoutes": 0, "conditions": [stale]},
            {"name": "gone", "attachedRoutes": 0, "conditions": [stale]},
        ],
    });
    let rendered = gateway(&old, &status(), NOW, programmed);
    assert_eq!(rendered["addresses"], old["addresses"]);
    assert_eq!(rendered["conditions"][0], stale);
    assert_eq!(rendered["listeners"][0]["conditions"][0], stale);
    assert_eq!(rendered["listeners"].as_array().unwrap().len(), 1);
}

#[test]
fn our_conditions_that_no_longer_apply_go() {
    let old = json!({"conditions": [{"type": "Conflicted", "status": "True", "reason": "HostnameConflict", "message": "", "lastTransitionTime": NOW_TEXT}]});
    let rendered = listener_set(&old, &status(), NOW, programmed);
    assert_eq!(find(&rendered["conditions"], "Conflicted"), None);
}

fn class_status() -> ClassStatus {
    ClassStatus {
        conditions: vec![accepted()],
        supported_features: vec!["Gateway", "TLSRoute"],
    }
}

#[test]
fn a_class_says_its_features() {
    let rendered = class(&Value::Null, &class_status(), NOW);
    let features = json!([{"name": "Gateway"}, {"name": "TLSRoute"}]);
    assert_eq!(rendered["supportedFeatures"], features);
}

#[test]
fn addresses_are_written_where_there_is_something_to_say() {
    let old = json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.9"}]});
    let rendered = gateway(&old, &status(), NOW, programmed);
    assert_eq!(rendered["addresses"], old["addresses"]);
    let with = |addresses| ListenersStatus {
        addresses: Some(addresses),
        ..status()
    };
    let both = with(vec![
        Address::Ip([192, 0, 2, 1].into()),
        Address::Hostname("lb.example.net".into()),
    ]);
    assert_eq!(
        gateway(&old, &both, NOW, programmed)["addresses"],
        json!([{"type": "IPAddress", "value": "192.0.2.1"}, {"type": "Hostname", "value": "lb.example.net"}])
    );
    let none = gateway(&old, &with(Vec::new()), NOW, programmed);
    assert_eq!(none["addresses"], json!([]));
}

#[test]
fn ours_fit_however_many_others_there_are() {
    let foreign: Vec<Value> = (0..8).map(|i| json!({"type": format!("x/{i}")})).collect();
    let rendered = class(&json!({"conditions": foreign}), &class_status(), NOW);
    assert_eq!(rendered["conditions"].as_array().unwrap().len(), 8);
    assert!(find(&rendered["conditions"], "Accepted").is_some());
}

#[test]
fn a_route_keeps_the_entries_of_other_controllers() {
    let stale = json!({"parentRef": {"name": "g"}, "controllerName": "example.com/stale-controller", "conditions": []});
    let parent = ParentRef {
        group: None,
        kind: Some("ListenerSet".into()),
        namespace: None,
        name: "set".into(),
        section: Some("tls".into()),
        port: None,
        index: 0,
    };
    let new = RouteStatus {
        parents: vec![RouteParentStatus {
            parent,
            conditions: vec![accepted()],
        }],
    };
    let ours = "vestibule.dev/gateway-controller";
    let gone = json!({"parentRef": {"name": "gone"}, "controllerName": ours, "conditions": []});
    let first = route(&json!({"parents": [stale, gone]}), &new, ours, NOW);
    assert_eq!(
        first,
        json!({"parents": [stale, {
            "parentRef": {"kind": "ListenerSet", "name": "set", "sectionName": "tls"},
            "controllerName": ours,
            "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "accepted", "observedGeneration": 7, "lastTransitionTime": NOW_TEXT}],
        }]})
    );
    let later = Observed {
        now: NOW.now + 60,
        ..NOW
    };
    assert_eq!(route(&first, &new, ours, later), first);
    let none = RouteStatus { parents: vec![] };
    assert_eq!(
        route(&first, &none, ours, later),
        json!({"parents": [stale]})
    );
}

#[test]
fn any_old_status_will_do() {
    for old in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"conditions": 1, "listeners": [1, {"name": 2}], "parents": ["x", {}]}),
        json!({"conditions": [null, {"type": 5}, {"type": "Accepted"}]}),
    ] {
        let rendered = gateway(&old, &status(), NOW, programmed);
        assert!(find(&rendered["conditions"], "Accepted").is_some());
        let parents = route(&old, &RouteStatus { parents: vec![] }, "c", NOW);
        assert!(parents["parents"].is_array());
    }
}

fn policy_status(gateways: &[&str]) -> PolicyStatus {
    let ancestors = gateways.iter().map(|name| PolicyAncestor {
        gateway: ObjectName::new("platform", *name),
        conditions: vec![accepted()],
    });
    PolicyStatus {
        ancestors: ancestors.collect(),
    }
}

#[test]
fn two_controllers_in_one_list_come_to_rest() {
    let (one, two) = (policy_status(&["a", "b"]), policy_status(&["c"]));
    let mut status = policy(&Value::Null, &one, "example.com/one", NOW);
    status = policy(&status, &two, "example.com/two", NOW);
    for (due, controller) in [(&one, "example.com/one"), (&two, "example.com/two")] {
        assert_eq!(policy(&status, due, controller, NOW), status);
    }
    let of = |status: &Value| -> Vec<String> {
        let entries = status["ancestors"].as_array().unwrap().iter();
        let name = |entry: &Value| entry["ancestorRef"]["name"].as_str().unwrap().to_owned();
        entries.map(name).collect()
    };
    assert_eq!(of(&status), ["a", "b", "c"]);
    // What is no longer ours goes, what is new comes last.
    let moved = policy(&status, &policy_status(&["b", "d"]), "example.com/one", NOW);
    assert_eq!(of(&moved), ["b", "c", "d"]);
    assert_eq!(moved["ancestors"][1], status["ancestors"][2]);
    assert_eq!(
        moved["ancestors"][0]["ancestorRef"],
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "platform", "name": "b"})
    );
}

#[test]
fn a_list_that_is_full_takes_no_more() {
    let theirs: Vec<Value> = (0..15)
        .map(|n| json!({"ancestorRef": {"name": n.to_string()}, "controllerName": "example.com/two"}))
        .collect();
    let old = json!({ "ancestors": theirs });
    let rendered = policy(&old, &policy_status(&["a", "b"]), "example.com/one", NOW);
    let ancestors = rendered["ancestors"].as_array().unwrap();
    assert_eq!(ancestors.len(), 16);
    assert_eq!(ancestors[..15], theirs[..]);
}
