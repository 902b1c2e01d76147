//! Properties: whatever comes in, decoding ends in a value; what a newer API adds decodes.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use vestibule_crds::{Decoded, decode, flatten, yaml};
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_test_support::properties::keep_failures_with_cases;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[a-z0-9.*-]{0,70}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((any_key(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Mostly names that mean something, so that the conversion is reached.
fn any_key() -> impl Strategy<Value = String> {
    let known = [
        "apiVersion",
        "kind",
        "metadata",
        "name",
        "namespace",
        "spec",
        "status",
        "listeners",
        "hostname",
        "hostnames",
        "port",
        "protocol",
        "tls",
        "mode",
        "certificateRefs",
        "options",
        "allowedRoutes",
        "namespaces",
        "from",
        "selector",
        "matchLabels",
        "matchExpressions",
        "kinds",
        "group",
        "filters",
        "parentRef",
        "parentRefs",
        "sectionName",
        "rules",
        "backendRefs",
        "weight",
        "gatewayClassName",
        "allowedListeners",
        "controllerName",
        "to",
        "data",
        "stringData",
        "tls.key",
        "ports",
        "endpoints",
        "addresses",
        "addressType",
        "items",
        "labels",
        "annotations",
        "creationTimestamp",
    ];
    prop_oneof![
        8 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => ".{0,8}",
    ]
}

fn head(kind: Kind) -> Map<String, Value> {
    let version = match kind.group() {
        "" => "v1".to_owned(),
        "vestibule.dev" => "vestibule.dev/v1alpha1".to_owned(),
        group => format!("{group}/v1"),
    };
    let body = json!({"apiVersion": version, "kind": kind.as_str(),
        "metadata": {"name": "a", "namespace": "t"}});
    body.as_object().unwrap().clone()
}

fn listener(word: &str, number: i64) -> Value {
    json!({
        "name": word, "hostname": word, "port": number, "protocol": word,
        "tls": {"mode": word, "certificateRefs": [{"name": word, "kind": word, "group": word}], "options": {(word): word}},
        "allowedRoutes": {
            "kinds": [{"kind": word}],
            "namespaces": {"from": word, "selector": {"matchExpressions": [{"key": word, "operator": word, "values": [word]}]}},
        },
    })
}

/// A body of each kind of Gateway API and of ours in which every word and number is the given one.
fn body(kind: Kind, word: &str, number: i64) -> Value {
    match kind {
        Kind::GatewayClass => json!({"controllerName": word, "description": word}),
        Kind::Gateway => json!({
            "gatewayClassName": word,
            "listeners": [listener(word, number)],
            "addresses": [{"type": word, "value": word, "routability": word}],
            "allowedListeners": {"namespaces": {"from": word}},
            "tls": {"frontend": {"default": {"validation": {"mode": word}}}},
            "defaultScope": word,
        }),
        Kind::ListenerSet => json!({
            "parentRef": {"name": word, "kind": word, "group": word},
            "listeners": [listener(word, number)],
        }),
        Kind::TlsRoute => json!({
            "parentRefs": [{"name": word, "kind": word, "port": number}],
            "hostnames": [word],
            "useDefaultGateways": word,
            "rules": [{"name": word, "backendRefs": [{"name": word, "kind": word, "port": number, "weight": number}]}],
        }),
        Kind::GrpcRoute => json!({
            "parentRefs": [{"name": word, "kind": word, "port": number}],
            "hostnames": [word],
            "rules": [{
                "name": word,
                "matches": [{
                    "method": {"type": word, "service": word, "method": word},
                    "headers": [{"type": word, "name": word, "value": word}],
                }, {"method": {"service": word, "type": "RegularExpression"}}],
                "filters": [{"type": word}],
                "backendRefs": [{"name": word, "kind": word, "port": number, "weight": number}],
            }],
        }),
        Kind::HttpRoute => json!({
            "parentRefs": [{"name": word, "kind": word, "port": number}],
            "hostnames": [word],
            "rules": [{
                "name": word,
                "filters": [{"type": "ExternalAuth", "externalAuth": {
                    "protocol": "HTTP",
                    "backendRef": {"name": word, "kind": word, "port": number},
                    "http": {"path": word, "allowedHeaders": [word], "allowedResponseHeaders": [word]},
                    "forwardBody": {"maxSize": number},
                }}, {"type": "ExternalAuth", "externalAuth": {
                    "protocol": word, "backendRef": {"name": word}, "grpc": {"allowedHeaders": [word]},
                }}, {"type": word}],
                "backendRefs": [{"name": word, "kind": word, "port": number, "weight": number}],
            }],
        }),
        Kind::GatewayParameters => json!({"service": {
            "type": word, "annotations": {(word): word}, "externalTrafficPolicy": word,
            "ipFamilyPolicy": word, "ipFamilies": [word, word, word], "loadBalancerClass": word,
        }, "limits": {
            "streamIdleTimeout": word, "requestTimeout": word, "tunnelIdleTimeout": word,
            "maxConnectionAge": word, "maxRequestBodyBytes": number,
        }, "clientAddress": {
            "proxyProtocol": {"mode": word, "trustedCIDRs": [word]},
            "forwardedHeaders": {"header": word, "trustedHops": number, "trustedCIDRs": [word, word]},
        }, "http": {
            "escapedSlashes": word, "underscores": word,
        }, "backendClientCertificate": {"namespaces": {
            "from": word,
            "selector": {"matchLabels": {(word): word}, "matchExpressions": [{"key": word, "operator": word, "values": [word]}]},
        }}}),
        Kind::HostnameGrant => json!({
            "gateways": [word],
            "namespaces": {
                "names": [word],
                "selector": {"matchLabels": {(word): word}, "matchExpressions": [{"key": word, "operator": word, "values": [word]}]},
            },
            "hostnames": [word],
            "ports": [number],
            "protocols": [word],
            "issuers": [{"group": word, "kind": word, "name": word}],
            "limits": {"listeners": number, "certificates": number},
        }),
        _ => json!({
            "from": [{"group": word, "kind": word, "namespace": word}],
            "to": [{"group": word, "kind": word}],
        }),
    }
}

const GATEWAY_KINDS: [Kind; 9] = [
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::TlsRoute,
    Kind::HttpRoute,
    Kind::GrpcRoute,
    Kind::ReferenceGrant,
    Kind::GatewayParameters,
    Kind::HostnameGrant,
];

/// Puts `"later": 1` into the `nth` map of a body; counts down over all of them.
fn add_field(value: &mut Value, nth: &mut usize) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|v| add_field(v, nth));
            if *nth == 0 {
                fields.insert("later".into(), 1.into());
            }
            *nth = nth.wrapping_sub(1);
        }
        Value::Array(items) => items.iter_mut().for_each(|v| add_field(v, nth)),
        _ => {}
    }
}

fn findings(object: &Object) -> usize {
    object.findings().count()
}

proptest! {
    #![proptest_config(keep_failures_with_cases(512))]

    #[test]
    fn any_json_decodes_to_something(value in any_json()) {
        for value in flatten(value) {
            let _ = decode(value);
        }
    }

    #[test]
    fn any_body_of_any_kind_decodes_to_that_object(
        at in 0..Kind::ALL.len(),
        fields in prop::collection::vec((any_key(), any_json()), 0..6),
    ) {
        let mut body: Map<String, Value> = fields.into_iter().collect();
        body.extend(head(Kind::ALL[at]));
        let object = decode(body.into()).into_object();
        prop_assert_eq!(object.unwrap().0.key().kind, Kind::ALL[at]);
    }

    #[test]
    fn any_word_and_number_decodes(at in 0..GATEWAY_KINDS.len(), word in ".{0,300}", number: i64) {
        let kind = GATEWAY_KINDS[at];
        let mut object = head(kind);
        object.insert("spec".into(), body(kind, &word, number));
        let decoded = decode(object.into());
        prop_assert!(matches!(decoded, Decoded::Object(..)), "{:?}", decoded);
    }

    #[test]
    fn a_field_of_a_newer_api_decodes_and_is_reported(at in 0..GATEWAY_KINDS.len(), nth in 0..16_usize) {
        let kind = GATEWAY_KINDS[at];
        let mut spec = body(kind, "word", 1);
        let mut position = nth;
        add_field(&mut spec, &mut position);
        let mut object = head(kind);
        object.insert("spec".into(), body(kind, "word", 1));
        let Decoded::Object(before, beside_before) = decode(object.clone().into()) else {
            panic!("the plain body must decode")
        };
        let added = spec != object["spec"];
        object.insert("spec".into(), spec.clone());
        let decoded = decode(object.into());
        let Decoded::Object(after, beside_after) = &decoded else {
            // Maps of text to text have no fields that we could know.
            let in_map = spec["listeners"][0]["tls"]["options"]["later"] == 1
                || spec["service"]["annotations"]["later"] == 1
                || spec["namespaces"]["selector"]["matchLabels"]["later"] == 1
                || spec["backendClientCertificate"]["namespaces"]["selector"]["matchLabels"]
                    ["later"]
                    == 1;
            prop_assert!(in_map, "{:?}", decoded);
            return Ok(());
        };
        let more = findings(after) + beside_after.len() > findings(&before) + beside_before.len();
        // What is below a setting whose presence alone is refused needs no finding of its own.
        let below_frontend = spec["tls"]["frontend"].to_string().contains("later");
        prop_assert!(!added || more || below_frontend, "{}", spec);
    }

    #[test]
    fn any_text_as_yaml_ends_in_documents_or_an_error(text in "[ -~\n]{0,200}") {
        let _ = yaml::documents(&text);
    }
}
