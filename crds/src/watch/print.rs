//! Owns the fingerprint that separates a change worth decoding from one that nobody here reads. Most writes of an
//! object are of its status, by us or by other controllers.
//!
//! The fingerprint covers the metadata except `resourceVersion` and `managedFields`, and the rest except the
//! status. Where the API server counts changes in `metadata.generation`, that number stands for the rest. So two
//! fingerprints are equal only if the decoded objects would be equal.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use serde_json::Value;
use vestibule_model::key::Kind;

/// Whether the API server raises `metadata.generation` with every change except of metadata and status. It does so for
/// custom resources and EndpointSlices.
fn is_generation_kept(kind: Kind) -> bool {
    match kind {
        Kind::Namespace | Kind::Service | Kind::Secret | Kind::ConfigMap => false,
        Kind::GatewayClass
        | Kind::Gateway
        | Kind::ListenerSet
        | Kind::TlsRoute
        | Kind::TcpRoute
        | Kind::UdpRoute
        | Kind::HttpRoute
        | Kind::GrpcRoute
        | Kind::ReferenceGrant
        | Kind::GatewayParameters
        | Kind::AcmeIssuer
        | Kind::ClusterAcmeIssuer
        | Kind::HostnameGrant
        | Kind::HostnameClaim
        | Kind::EndpointSlice
        | Kind::BackendTlsPolicy => true,
    }
}

/// A keyed hash of the parts that count. Because of the secret key, nobody can search for two objects with the same
/// hash.
pub(super) fn print(keys: &RandomState, kind: Kind, object: &Value) -> u64 {
    let mut hasher = keys.build_hasher();
    let metadata = object.get("metadata").and_then(Value::as_object);
    let of_metadata = metadata.into_iter().flatten();
    let of_metadata = of_metadata
        .filter(|(field, _)| !["resourceVersion", "managedFields"].contains(&field.as_str()));
    fields(of_metadata, &mut hasher);
    let generation = metadata
        .and_then(|metadata| metadata.get("generation"))
        .and_then(Value::as_i64);
    // An object without a generation is hashed as a whole, whatever its kind.
    if !is_generation_kept(kind) || generation.is_none_or(|generation| generation <= 0) {
        // Items of a list do not contain their kind and version, so these are left out.
        let of_object = object
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(field, _)| {
                !["metadata", "status", "apiVersion", "kind"].contains(&field.as_str())
            });
        fields(of_object, &mut hasher);
    }
    hasher.finish()
}

fn fields<'a>(of: impl Iterator<Item = (&'a String, &'a Value)>, hasher: &mut impl Hasher) {
    for (field, value) in of {
        1_u8.hash(hasher);
        field.hash(hasher);
        hash(value, hasher);
    }
    0_u8.hash(hasher);
}

fn hash(value: &Value, hasher: &mut impl Hasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Null => {}
        Value::Bool(value) => value.hash(hasher),
        // A number is hashed by its text, which is unique.
        Value::Number(value) => value.to_string().hash(hasher),
        Value::String(value) => value.hash(hasher),
        Value::Array(items) => {
            items.len().hash(hasher);
            for item in items {
                hash(item, hasher);
            }
        }
        Value::Object(object) => fields(object.iter(), hasher),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "1", "generation": 3,
                "labels": {"a": "b"}, "annotations": {"c": "d"},
            },
            "spec": {"x": [1, "2", true, null]},
            "status": {"y": 1},
        })
    }

    #[test]
    fn object_print_depends_on_what_is_read_and_on_nothing_else() {
        let keys = RandomState::new();
        let is_same = |kind: Kind, change: fn(&mut Value)| {
            let mut changed = object();
            change(&mut changed);
            print(&keys, kind, &object()) == print(&keys, kind, &changed)
        };
        let kinds = [
            Kind::HttpRoute,
            Kind::Secret,
            Kind::EndpointSlice,
            Kind::Namespace,
        ];
        for kind in kinds {
            for nothing in [
                |_: &mut Value| {},
                |o: &mut Value| o["status"] = json!({"z": 1}),
                |o: &mut Value| o["metadata"]["resourceVersion"] = "2".into(),
                |o: &mut Value| o["metadata"]["managedFields"] = json!([{"manager": "m"}]),
                |o: &mut Value| o["kind"] = "said".into(),
            ] {
                assert!(is_same(kind, nothing), "{kind}");
            }
            for change in [
                |o: &mut Value| o["metadata"]["generation"] = 4.into(),
                |o: &mut Value| o["metadata"]["uid"] = "v".into(),
                |o: &mut Value| o["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
                |o: &mut Value| o["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into(),
                |o: &mut Value| o["metadata"]["labels"]["a"] = "c".into(),
                |o: &mut Value| o["metadata"]["labels"] = Value::Null,
                |o: &mut Value| o["metadata"]["annotations"]["e"] = "f".into(),
                |o: &mut Value| o["metadata"]["ownerReferences"] = json!([{"uid": "o"}]),
            ] {
                assert!(!is_same(kind, change), "{kind}");
            }
        }
        // The generation says it for those that have one.
        let spec = |o: &mut Value| o["spec"]["x"][1] = 2.into();
        let moved = |o: &mut Value| o["data"] = json!({"tls.key": "k"});
        for kind in [
            Kind::Secret,
            Kind::ConfigMap,
            Kind::Service,
            Kind::Namespace,
        ] {
            assert!(!is_same(kind, spec) && !is_same(kind, moved), "{kind}");
        }
        // And where it is absent, nobody relies on it.
        let mut one = object();
        one["metadata"]["generation"].take();
        let mut other = one.clone();
        other["spec"]["x"][0] = 2.into();
        let of = |object| print(&keys, Kind::HttpRoute, object);
        assert_ne!(of(&one), of(&other));
    }

    #[test]
    fn object_print_differs_when_a_value_moves_from_one_field_to_another() {
        let keys = RandomState::new();
        let of = |object: &Value| print(&keys, Kind::Secret, object);
        let all = [
            json!({"data": {"a": {"b": "c"}}}),
            json!({"data": {"a": {}, "b": "c"}}),
            json!({"data": {"a": "bc"}}),
            json!({"data": {"ab": "c"}}),
            json!({"data": ["a", "b", "c"]}),
            json!({"data": ["a", ["b", "c"]]}),
            json!({"data": "1"}),
            json!({"data": 1}),
            json!({"data": null}),
            json!({"data": true}),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert_ne!(of(one), of(other), "{one} {other}");
            }
        }
    }
}
