//! The annotations that the chart has the webhook asked about are those that are read.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use vestibule_crds::{CERTIFICATE_ANNOTATIONS, decode};
use vestibule_model::issuer::ANNOTATIONS;
use vestibule_model::policy::Policy;
use vestibule_webhook::{Admission, Operation, Question};

const CHART: &str = include_str!("../../charts/vestibule/templates/webhook/configuration.yaml");

fn read() -> BTreeSet<&'static str> {
    CERTIFICATE_ANNOTATIONS
        .into_iter()
        .chain(ANNOTATIONS)
        .collect()
}

#[test]
fn the_chart_lists_what_is_read() {
    let (_, list) = CHART
        .split_once("{{- define \"vestibule.annotationsRead\" -}}")
        .expect("the list");
    let (list, _) = list.split_once("{{- end -}}").expect("its end");
    let listed: Vec<&str> = serde_json::from_str(list).expect("JSON");
    assert_eq!(listed.len(), read().len(), "each once");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), read());
}

/// Whoever edits one of them is asked about, and of any other nothing is read.
#[test]
fn nothing_else_makes_an_update_another_one() {
    let admission = Admission::new("vestibule.dev/gateway-controller", Policy::default());
    let set = |annotations: Value| {
        let value = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "alpha", "name": "s", "annotations": annotations},
            "spec": {"parentRef": {"name": "entrance"}, "listeners": [
                {"name": "a", "port": 443, "protocol": "TLS", "hostname": "1.2.3.4", "tls": {"mode": "Passthrough"}},
            ]},
        });
        decode(value).into_object().expect("an object").0
    };
    let is_judged = |key: &str| {
        let (old, new) = (set(json!({})), set(json!({key: "1"})));
        let question = Question {
            operation: Operation::Update,
            old: Some(&old),
            new: &new,
            dry_run: true,
        };
        !admission
            .review(question, std::time::Instant::now())
            .findings
            .is_empty()
    };
    for key in [
        "example.com/note",
        "vestibule.dev/other",
        "cert-manager.io/other",
    ] {
        assert!(!is_judged(key), "{key}");
    }
    let judged: BTreeSet<&str> = read().into_iter().filter(|key| is_judged(key)).collect();
    // What is left out if it is empty or wrong may be judged the same.
    for key in ANNOTATIONS {
        assert!(judged.contains(key), "{key}");
    }
}
