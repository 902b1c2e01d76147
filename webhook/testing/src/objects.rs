//! Objects to review, and an entrance that everybody may extend.

use serde_json::{Value, json};
use vestibule_model::object::Object;

/// The controller name of the servers.
pub const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// An object, from what an API server would show.
pub fn object(value: Value) -> Object {
    let decoded = vestibule_crds::decode(value);
    decoded.into_object().expect("an object that is read").0
}

/// The class of the [`gateway`].
pub fn class() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "vestibule"}, "spec": {"controllerName": CONTROLLER},
    })
}

/// The Gateway `entrance` in `infra`, which every namespace may extend. It serves `own.example` itself.
pub fn gateway() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": "infra", "name": "entrance"},
        "spec": {
            "gatewayClassName": "vestibule",
            "allowedListeners": {"namespaces": {"from": "All"}},
            "listeners": [{
                "name": "own", "port": 443, "protocol": "TLS", "hostname": "own.example",
                "tls": {"mode": "Passthrough"},
            }],
        },
    })
}

/// A ListenerSet of the [`gateway`], which passes a hostname through.
pub fn listener_set(namespace: &str, name: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "parentRef": {"namespace": "infra", "name": "entrance"},
            "listeners": [{
                "name": "web", "port": 443, "protocol": "TLS", "hostname": hostname,
                "tls": {"mode": "Passthrough"},
            }],
        },
    })
}
