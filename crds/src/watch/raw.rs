//! An object as the server sent it. It can be any JSON with a name, so that no object can make a list fail.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use zeroize::Zeroize;

use super::{CopiedAnnotations, LEFT_OUT, Touched, Watched, print};
use crate::decode::{self, Decoded};

/// The only type of Secret whose content is read.
const TLS_SECRET: &str = "kubernetes.io/tls";
/// The entry with CA certificates. They are not confidential, so they are kept from a Secret of any type.
const AUTHORITIES: &str = "ca.crt";

/// One object of a list or a watch.
#[derive(Clone)]
pub(super) struct Raw {
    /// Name, namespace and resource version, which are all that the watch itself needs.
    meta: ObjectMeta,
    body: Value,
}

/// The output never contains the body, which may be a Secret.
impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut body = Value::deserialize(deserializer)?;
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            // This field is often larger than the rest, and is not read.
            metadata.remove("managedFields");
        }
        let text = |field: &str| {
            let value = body.get("metadata")?.get(field)?.as_str()?;
            Some(value.to_owned())
        };
        let meta = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, body })
    }
}

impl Resource for Raw {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl Raw {
    /// Namespace and name on the server.
    pub(super) fn name(&self) -> ObjectName {
        ObjectName::new(
            self.meta.namespace.as_deref().unwrap_or_default(),
            self.meta.name.as_deref().unwrap_or_default(),
        )
    }

    pub(super) fn resource_version(&self) -> &str {
        self.meta.resource_version.as_deref().unwrap_or_default()
    }

    /// Whether it is a Secret of one of the types in [`LEFT_OUT`].
    pub(super) fn is_left_out(&self, kind: Kind) -> bool {
        let secret_type = self.body.get("type").and_then(Value::as_str);
        kind == Kind::Secret && secret_type.is_some_and(|of| LEFT_OUT.contains(&of))
    }

    /// The fingerprint of the parts from which it would be decoded.
    pub(super) fn print(&self, keys: &RandomState, kind: Kind) -> u64 {
        print::print(keys, kind, &self.body)
    }

    /// The changed parts, if nothing has changed that would be decoded.
    pub(super) fn touched(mut self, kind: Kind) -> Touched {
        let generation = self.body.pointer("/metadata/generation");
        Touched {
            key: ObjectKey {
                kind,
                name: self.name(),
            },
            generation: generation.and_then(Value::as_i64).unwrap_or_default(),
            resource_version: Arc::from(self.resource_version()),
            status: self
                .body
                .get_mut("status")
                .map(Value::take)
                .unwrap_or_default(),
        }
    }

    /// Its annotations with these keys.
    pub(super) fn annotations(&self, of: &CopiedAnnotations) -> BTreeMap<String, String> {
        let annotations = self.body.pointer("/metadata/annotations");
        let value = |key: &str| Some((key.to_owned(), annotations?.get(key)?.as_str()?.to_owned()));
        of.keys().filter_map(value).collect()
    }

    /// Decodes it as an object of `kind`. Whatever it contains, the result is an object.
    pub(super) fn decode(mut self, kind: Kind, api_version: &str) -> Watched {
        let key = ObjectKey {
            kind,
            name: self.name(),
        };
        let resource_version = Arc::from(self.resource_version());
        let uid: Arc<str> = self
            .body
            .pointer("/metadata/uid")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .into();
        let mut status = Value::Null;
        if let Value::Object(body) = &mut self.body {
            // Items of a list do not contain their kind and version if the kind is a built-in one.
            body.insert("apiVersion".into(), api_version.into());
            body.insert("kind".into(), kind.as_str().into());
            status = body.remove("status").unwrap_or_default();
        }
        if kind == Kind::Secret {
            drop_foreign_data(&mut self.body);
        }
        let (object, findings) = match decode::decode(self.body) {
            Decoded::Object(object, findings) if object.key() == key => (*object, findings),
            Decoded::Unreadable(_, meta, finding) => {
                (Object::Unreadable(key.clone(), meta, finding), Vec::new())
            }
            Decoded::NotAnObject(finding) => (unreadable(&key, &uid, finding), Vec::new()),
            Decoded::Object(..) | Decoded::Unknown { .. } => {
                let finding = Finding::refused(
                    Reason::Unreadable,
                    "",
                    "is not what the server says that it is",
                    "write it anew",
                );
                (unreadable(&key, &uid, finding), Vec::new())
            }
        };
        Watched {
            key,
            object,
            findings,
            uid,
            resource_version,
            status,
        }
    }
}

fn unreadable(key: &ObjectKey, uid: &Arc<str>, finding: Finding) -> Object {
    let meta = vestibule_model::meta::Meta {
        uid: Arc::clone(uid),
        ..Default::default()
    };
    Object::Unreadable(key.clone(), meta, finding)
}

/// Erases the content of a Secret, except CA certificates, unless it is a TLS Secret. The type stays, so that a
/// reference to a Secret of a wrong type can be told from one to a Secret that does not exist.
fn drop_foreign_data(body: &mut Value) {
    if body.get("type").and_then(Value::as_str) == Some(TLS_SECRET) {
        return;
    }
    let Value::Object(body) = body else { return };
    for field in ["data", "stringData"] {
        let Some(mut held) = body.remove(field) else {
            continue;
        };
        let kept = held
            .as_object_mut()
            .and_then(|held| held.remove(AUTHORITIES));
        erase(&mut held);
        if let Some(kept) = kept {
            body.insert(field.into(), json!({ AUTHORITIES: kept }));
        }
    }
}

fn erase(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(erase),
        Value::Object(fields) => fields.values_mut().for_each(erase),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: Value) -> Raw {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn any_json_is_taken() {
        for value in [
            json!(null),
            json!(7),
            json!([]),
            json!({"metadata": 1}),
            json!({"metadata": {"name": 1, "creationTimestamp": [], "labels": 7}}),
        ] {
            let watched = raw(value).decode(Kind::Gateway, "gateway.networking.k8s.io/v1");
            assert!(
                matches!(watched.object, Object::Unreadable(..)),
                "{watched:?}"
            );
        }
    }

    #[test]
    fn the_key_is_the_servers_also_where_the_object_does_not_decode() {
        let watched = raw(json!({
            "metadata": {"name": "Not_A_Name", "namespace": "a", "uid": "u", "resourceVersion": "9"},
        }))
        .decode(Kind::Gateway, "gateway.networking.k8s.io/v1");
        assert_eq!(
            watched.key,
            ObjectKey::new(Kind::Gateway, "a", "Not_A_Name")
        );
        assert_eq!(watched.object.key(), watched.key);
        assert_eq!((&*watched.uid, &*watched.resource_version), ("u", "9"));
    }

    #[test]
    fn a_secret_of_another_type_keeps_its_type_and_authorities_only() {
        let watched = raw(json!({
            "metadata": {"name": "s", "namespace": "a"},
            "type": "Opaque",
            "data": {"tls.crt": "c2VjcmV0", "tls.key": "c2VjcmV0", "ca.crt": "Y2VydA=="},
        }))
        .decode(Kind::Secret, "v1");
        let Object::Secret(secret) = watched.object else {
            panic!("{:?}", watched.object);
        };
        assert_eq!(&*secret.secret_type, "Opaque");
        assert_eq!(secret.authorities.as_deref(), Some(&b"cert"[..]));
        assert!(secret.certificate.is_none() && secret.private_key.is_none());
    }

    #[test]
    fn a_tls_secret_keeps_its_pair() {
        let watched = raw(json!({
            "metadata": {"name": "s", "namespace": "a"},
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": "c2VjcmV0", "tls.key": "c2VjcmV0", "other": "c2VjcmV0"},
        }))
        .decode(Kind::Secret, "v1");
        let Object::Secret(secret) = watched.object else {
            panic!("{:?}", watched.object);
        };
        assert!(secret.certificate.is_some() && secret.private_key.is_some());
    }
}
