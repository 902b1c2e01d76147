//! Admission reviews: any bytes have an answer, the same one each time, that names no other tenant's
//! objects.
#![no_main]

use std::sync::LazyLock;
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use vestibule_model::policy::{Mode, Policy};
use vestibule_webhook::{Admission, Outcome, review_bytes};

const CONTROLLER: &str = "vestibule.dev/gateway-controller";
/// In the name of whatever belongs to another tenant.
const OTHER: &str = "qqotherqq";
/// Longest answer.
const MAX_ANSWER: usize = 64 * 1024;

static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

fuzz_target!(|data: &[u8]| {
    let answer = review_bytes(data, &admission(), *NOW);
    // A review that is not a dry run is remembered, so the second one starts from the same.
    assert_eq!(answer, review_bytes(data, &admission(), *NOW));
    assert!(answer.body.len() < MAX_ANSWER);
    if answer.record.outcome == Outcome::Malformed {
        assert_ne!(answer.status, 500);
        return;
    }
    assert_eq!(answer.status, 200);
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let response = &body["response"];
    let refused = response["allowed"] == false;
    assert_eq!(refused, answer.record.outcome == Outcome::Refused);
    assert_eq!(refused, response["status"]["code"] == 403);
    let said = response["status"].to_string() + &response["warnings"].to_string();
    let asked = String::from_utf8_lossy(data).contains(OTHER);
    assert!(asked || !said.contains(OTHER), "{said}");
});

/// A Gateway that everybody may use, and a set of another tenant on it.
fn admission() -> Admission {
    static OBJECTS: LazyLock<Vec<Value>> = LazyLock::new(objects);
    let admission = Admission::new(
        CONTROLLER,
        Policy {
            mode: Mode::Enforce,
            exempt: ["exempt".to_owned()].into(),
        },
    );
    for value in OBJECTS.iter() {
        let decoded = vestibule_crds::decode(value.clone());
        admission.put(decoded.into_object().expect("an object").0);
    }
    admission
}

fn objects() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "v"}, "spec": {"controllerName": CONTROLLER},
        }),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "i", "name": "g"},
            "spec": {
                "gatewayClassName": "v",
                "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{
                    "name": "own", "port": 443, "protocol": "TLS", "hostname": "own.example",
                    "tls": {"mode": "Passthrough"},
                }],
            },
        }),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": OTHER, "name": format!("set-{OTHER}")},
            "spec": {
                "parentRef": {"namespace": "i", "name": "g"},
                "listeners": [{
                    "name": OTHER, "port": 443, "protocol": "TLS", "hostname": "a.example",
                    "tls": {"mode": "Passthrough"},
                }],
            },
        }),
    ]
}
