//! Every object of the kinds that Vestibule reads in the manifests of the v1.7.0 conformance suite
//! decodes and re-encodes without loss, and every field that the v1.7.0 CRDs have is known. Neither is
//! part of this repository: `crds/tests/fetch-manifests` fetches them and prints the directory that
//! `GATEWAY_API_DIR` names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vestibule_crds::gateway_api::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, HTTPRoute, ListenerSet, ReferenceGrant,
    TCPRoute, TLSRoute, UDPRoute,
};
use vestibule_crds::{Decoded, decode, flatten, yaml};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::object::Object;

fn modules() -> PathBuf {
    std::env::var("GATEWAY_API_DIR")
        .expect("GATEWAY_API_DIR must name what crds/tests/fetch-manifests prints")
        .into()
}

fn manifests(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            manifests(&path, found);
        } else if path.extension().is_some_and(|e| e == "yaml") {
            found.push(path);
        }
    }
}

/// Without nulls and empty lists and maps, which mean the same as absent fields.
fn lean(value: Value) -> Value {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(items) => items.into_iter().map(lean).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, v)| (key, lean(v)))
            .filter(|(_, v)| !empty(v))
            .collect(),
        other => other,
    }
}

/// The original and what the wire type makes of it.
fn round_trip<T: DeserializeOwned + Serialize>(original: &Value) -> Result<(), String> {
    let wire: T = serde_json::from_value(original.clone()).map_err(|e| e.to_string())?;
    let again = serde_json::to_value(wire).map_err(|e| e.to_string())?;
    let (mut before, mut after) = (lean(original.clone()), lean(again));
    // A type is encoded in the version that it was written for.
    before["apiVersion"] = Value::Null;
    after["apiVersion"] = Value::Null;
    if before == after {
        Ok(())
    } else {
        Err(format!("{before}\n  became\n{after}"))
    }
}

fn unknown_fields(object: &Object, beside: &[Finding]) -> Vec<Finding> {
    object
        .findings()
        .chain(beside)
        .filter(|f| {
            f.reason == Reason::UnknownField || f.message.starts_with("is a field this release")
        })
        .cloned()
        .collect()
}

#[test]
#[ignore = "needs the Gateway API module; run by make test"]
fn every_object_of_the_conformance_suite_survives() {
    let dir = modules().join("gateway-api/conformance@v1.7.0");
    let mut files = Vec::new();
    for part in ["base", "tests"] {
        manifests(&dir.join(part), &mut files);
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut refused = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let documents = match yaml::documents(&text) {
            Ok(documents) => documents,
            Err(error) => {
                wrong.push(format!("{}: {error}", file.display()));
                continue;
            }
        };
        for (line, document) in documents {
            for object in flatten(document) {
                let at = format!("{}:{line}", file.display());
                let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                let result = match kind.as_str() {
                    "GatewayClass" => round_trip::<GatewayClass>(&object),
                    "Gateway" => round_trip::<Gateway>(&object),
                    "ListenerSet" => round_trip::<ListenerSet>(&object),
                    "TLSRoute" => round_trip::<TLSRoute>(&object),
                    "HTTPRoute" => round_trip::<HTTPRoute>(&object),
                    "GRPCRoute" => round_trip::<GRPCRoute>(&object),
                    "TCPRoute" => round_trip::<TCPRoute>(&object),
                    "UDPRoute" => round_trip::<UDPRoute>(&object),
                    "BackendTLSPolicy" => round_trip::<BackendTLSPolicy>(&object),
                    "ReferenceGrant" => round_trip::<ReferenceGrant>(&object),
                    "Namespace" => round_trip::<Namespace>(&object),
                    "Service" => round_trip::<Service>(&object),
                    "EndpointSlice" => round_trip::<EndpointSlice>(&object),
                    "Secret" => round_trip::<Secret>(&object),
                    _ => continue,
                };
                if let Err(error) = result {
                    wrong.push(format!("{at}: {error}"));
                }
                match decode(object) {
                    Decoded::Object(object, beside) => {
                        let unknown = unknown_fields(&object, &beside);
                        wrong.extend(unknown.iter().map(|f| format!("{at}: {f}")));
                        if let Object::HttpRoute(route) = &*object {
                            let first = object.findings().find(|finding| finding.refuses());
                            refused.extend(
                                first.map(|f| format!("{}: {}", route.name.name, f.message)),
                            );
                        }
                    }
                    other => wrong.push(format!("{at}: {other:?}")),
                }
                *counts.entry(kind).or_default() += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(refused, BTreeSet::new());
    for kind in [
        "Gateway",
        "ListenerSet",
        "TLSRoute",
        "HTTPRoute",
        "GRPCRoute",
        "TCPRoute",
        "ReferenceGrant",
    ] {
        let count = counts.get(kind).copied().unwrap_or_default();
        assert!(count >= 5, "only {count} of {kind}: {counts:?}");
    }
}

/// A value that has every field of a schema.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => match schema["properties"].as_object() {
            Some(fields) => fields
                .iter()
                .map(|(name, schema)| (name.clone(), sample(schema)))
                .collect(),
            None => json!({"example.com/key": "a"}),
        },
        Some("array") => json!([sample(&schema["items"])]),
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        _ => json!("a"),
    }
}

#[test]
#[ignore = "needs the Gateway API module; run by make test"]
fn every_field_of_the_crds_is_known() {
    let mut versions = 0;
    for channel in ["standard", "experimental"] {
        for plural in [
            "gatewayclasses",
            "gateways",
            "listenersets",
            "tlsroutes",
            "httproutes",
            "grpcroutes",
            "tcproutes",
            "udproutes",
            "referencegrants",
            "backendtlspolicies",
        ] {
            let path = modules().join(format!(
                "gateway-api@v1.7.0/config/crd/{channel}/gateway.networking.k8s.io_{plural}.yaml"
            ));
            let (_, crd) = yaml::documents(&fs::read_to_string(&path).unwrap())
                .unwrap()
                .remove(0);
            for version in crd["spec"]["versions"].as_array().unwrap() {
                let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
                let group = crd["spec"]["group"].as_str().unwrap();
                let name = version["name"].as_str().unwrap();
                let spec = sample(schema);
                let object = json!({
                    "apiVersion": format!("{group}/{name}"),
                    "kind": crd["spec"]["names"]["kind"],
                    "metadata": {"name": "a"},
                    "spec": spec,
                });
                let at = format!("{channel} {plural} {name}");
                let Decoded::Object(object, beside) = decode(object) else {
                    panic!("{at} does not decode: {spec}")
                };
                assert_eq!(unknown_fields(&object, &beside), [], "{at}");
                versions += 1;
            }
        }
    }
    assert!(versions >= 21, "only {versions} schemas");
}
