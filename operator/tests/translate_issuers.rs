//! Which issuer a listener's certificate is asked from: the whole matrix of what the ListenerSet and its
//! Gateway say, from annotations as they are written to the request and the condition, as a golden file.
//! `VESTIBULE_REGENERATE=1` writes it anew.

use std::fmt::Write as _;

use serde_json::{Value, json};
use vestibule_crds::decode;
use vestibule_model::condition::ConditionType;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_operator::translate::{Status, Translator};
use vestibule_operator_testing::objects::translated;

const GOLDEN: &str = include_str!("goldens/issuer_matrix.txt");

/// What one object may say, by a short name.
const SAID: [(&str, &[(&str, &str)]); 11] = [
    ("nothing", &[]),
    ("issuer", &[("cert-manager.io/issuer", "NAME")]),
    (
        "cluster-issuer",
        &[("cert-manager.io/cluster-issuer", "NAME")],
    ),
    (
        "external",
        &[
            ("cert-manager.io/issuer", "NAME"),
            ("cert-manager.io/issuer-kind", "AWSPCAIssuer"),
            ("cert-manager.io/issuer-group", "awspca.cert-manager.io"),
        ],
    ),
    (
        "kind and group only",
        &[
            ("cert-manager.io/issuer-kind", "ClusterIssuer"),
            ("cert-manager.io/issuer-group", "example.com"),
        ],
    ),
    ("acme-issuer", &[("vestibule.dev/acme-issuer", "NAME")]),
    (
        "acme-cluster-issuer",
        &[("vestibule.dev/acme-cluster-issuer", "NAME")],
    ),
    (
        "issuer and cluster-issuer",
        &[
            ("cert-manager.io/issuer", "NAME"),
            ("cert-manager.io/cluster-issuer", "NAME"),
        ],
    ),
    (
        "cluster-issuer and kind",
        &[
            ("cert-manager.io/cluster-issuer", "NAME"),
            ("cert-manager.io/issuer-kind", "Issuer"),
        ],
    ),
    (
        "issuer and acme-issuer",
        &[
            ("cert-manager.io/issuer", "NAME"),
            ("vestibule.dev/acme-issuer", "NAME"),
        ],
    ),
    (
        "both of ours",
        &[
            ("vestibule.dev/acme-issuer", "NAME"),
            ("vestibule.dev/acme-cluster-issuer", "NAME"),
        ],
    ),
];

fn annotations(said: &[(&str, &str)], name: &str) -> Value {
    let pairs = said.iter().map(|(key, value)| {
        let value = if *value == "NAME" { name } else { value };
        ((*key).to_owned(), Value::from(value))
    });
    Value::Object(pairs.collect())
}

fn object(value: Value) -> Object {
    decode(value).into_object().expect("an object").0
}

fn listener(host: &str, secret: &str) -> Value {
    json!({
        "name": "https",
        "port": 443,
        "protocol": "HTTPS",
        "hostname": host,
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": secret}]},
    })
}

/// A Gateway and a ListenerSet that say these things.
fn world(set: &[(&str, &str)], gateway: &[(&str, &str)]) -> Translator {
    translated([
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": "vestibule"},
            "spec": {"controllerName": "vestibule.dev/gateway-controller"},
        })),
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {
                "name": "edge",
                "namespace": "platform",
                "annotations": annotations(gateway, "gateway"),
            },
            "spec": {
                "gatewayClassName": "vestibule",
                "listeners": [listener("own.example.com", "own")],
                "allowedListeners": {"namespaces": {"from": "All"}},
            },
        })),
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "ListenerSet",
            "metadata": {
                "name": "shop",
                "namespace": "team",
                "annotations": annotations(set, "set"),
            },
            "spec": {
                "parentRef": {"name": "edge", "namespace": "platform"},
                "listeners": [listener("shop.example.com", "shop")],
            },
        })),
    ])
}

/// The result for an object's listener: the issuer that is asked, or the condition.
fn outcome(world: &Translator, kind: Kind, namespace: &str, name: &str, secret: &str) -> String {
    let request = world.requests().get(&ObjectName::new(namespace, secret));
    let status = world.statuses().get(&ObjectKey::new(kind, namespace, name));
    let Some(Status::Listeners(status)) = status else {
        return "no status".into();
    };
    let condition = status.listeners[0]
        .conditions
        .iter()
        .find(|c| c.kind == ConditionType::CertificateIssued);
    match (request, condition) {
        (Some(request), condition) => {
            let reason = condition.map_or("-", |c| c.reason.as_str());
            match &request.issuer {
                Some(i) => format!(
                    "{:?} {}/{} {} ({reason})",
                    i.engine, i.group, i.kind, i.name
                ),
                None => format!("whoever runs it ({reason})"),
            }
        }
        (None, Some(condition)) => format!("{}: {}", condition.reason, condition.message),
        (None, None) => "nothing".into(),
    }
}

#[test]
fn the_matrix_is_the_golden_one() {
    let mut text = String::from(
        "# What the set says / what its Gateway says: what is asked for the set's listener\n",
    );
    for (set_said, set) in SAID {
        for (gateway_said, gateway) in SAID {
            let world = world(set, gateway);
            let outcome = outcome(&world, Kind::ListenerSet, "team", "shop", "shop");
            writeln!(text, "{set_said} / {gateway_said}: {outcome}").expect("text");
        }
    }
    text.push_str("\n# What the Gateway says: what is asked for its own listener\n");
    for (said, gateway) in SAID {
        let world = world(&[], gateway);
        let outcome = outcome(&world, Kind::Gateway, "platform", "edge", "own");
        writeln!(text, "{said}: {outcome}").expect("text");
    }
    if std::env::var_os("VESTIBULE_REGENERATE").is_some() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/goldens/issuer_matrix.txt"
        );
        std::fs::write(path, &text).expect("written");
        return;
    }
    assert_eq!(text, GOLDEN);
}
