//! Admission reviews of every kind that is judged: any bytes have an answer, the same one each time, that names
//! no other tenant's objects; and what changes nothing is never refused.
#![no_main]

use std::sync::LazyLock;
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;
use vestibule_model::policy::{Mode, Policy};
use vestibule_webhook::{Admission, ReviewOutcome, review_bytes};

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
    if answer.record.outcome == ReviewOutcome::Malformed {
        assert_ne!(answer.status, 500);
        return;
    }
    assert_eq!(answer.status, 200);
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let response = &body["response"];
    let refused = response["allowed"] == false;
    assert_eq!(refused, answer.record.outcome == ReviewOutcome::Refused);
    assert_eq!(refused, response["status"]["code"] == 403);
    let said = response["status"].to_string() + &response["warnings"].to_string();
    let asked = String::from_utf8_lossy(data).contains(OTHER);
    assert!(asked || !said.contains(OTHER), "{said}");
    if refused {
        changes_nothing(data);
    }
});

/// The same object as an update of itself.
fn changes_nothing(data: &[u8]) {
    // What the webhook does not look at may be text that is no Unicode.
    let Ok(mut review) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let object = review["request"]["object"].clone();
    if !object.is_object() {
        return;
    }
    review["request"]["operation"] = "UPDATE".into();
    review["request"]["oldObject"] = object;
    let answer = review_bytes(review.to_string().as_bytes(), &admission(), *NOW);
    assert_ne!(answer.record.outcome, ReviewOutcome::Refused, "{review}");
}

/// A Gateway that everybody may use, with a set and claims of another tenant on it, and one with grants, of
/// which the other tenant's cannot be read.
fn admission() -> Admission {
    static OBJECTS: LazyLock<Vec<Value>> = LazyLock::new(objects);
    let admission = Admission::new(
        CONTROLLER,
        Policy {
            mode: Mode::Enforce,
            exempt: ["exempt".to_owned()].into(),
            ..Policy::default()
        },
    );
    for value in OBJECTS.iter() {
        let decoded = vestibule_crds::decode(value.clone());
        admission.put(decoded.into_object().expect("an object").0);
    }
    admission
}

/// What says that the other tenant holds names of a Gateway; of the empty text, every name that nobody else holds.
fn claim(namespace: &str, gateway: &str, names: &str) -> Value {
    let gateway = ObjectName::new(namespace, gateway);
    let names = HostPattern::parse(names).expect("a hostname");
    let key = ClaimKey::names(&gateway, &names);
    let name = key.object_name();
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"namespace": name.namespace, "name": name.name},
        "spec": HostnameClaimSpec::new(&key, "", &Holder::from(OTHER), 0, None),
    })
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
                "listeners": [
                    {
                        "name": "own", "port": 443, "protocol": "TLS", "hostname": "own.example",
                        "tls": {"mode": "Passthrough"},
                    },
                    {
                        "name": "web", "port": 80, "protocol": "HTTP",
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    },
                ],
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
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "k", "name": "guarded"},
            "spec": {
                "gatewayClassName": "v",
                "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [
                    {
                        "name": "own", "port": 443, "protocol": "TLS",
                        "tls": {"mode": "Passthrough"}, "allowedRoutes": {"namespaces": {"from": "All"}},
                    },
                    {
                        "name": "web", "port": 80, "protocol": "HTTP",
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    },
                ],
            },
        }),
        json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "k", "name": "t"},
            "spec": {
                "namespaces": {"names": ["t"]}, "hostnames": ["*.t.example"], "ports": [443], "protocols": ["TLS"],
                "issuers": [], "limits": {"listeners": 1, "certificates": 0},
            },
        }),
        json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "k", "name": "shares"},
            "spec": {"namespaces": {"names": ["t"]}, "sharedHostnames": ["docs.t.example"]},
        }),
        json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "k", "name": OTHER}, "spec": 7,
        }),
        claim("i", "g", "held.example"),
        claim("i", "g", "*.held.example"),
        claim("i", "g", ""),
        claim("k", "guarded", "r.t.example"),
        claim("k", "guarded", "docs.t.example"),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"namespace": OTHER, "name": OTHER},
            "spec": {
                "from": [{"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "namespace": "t"}],
                "to": [{"group": "", "kind": "Secret"}],
            },
        }),
    ]
}
