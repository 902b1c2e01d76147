//! References to other objects that several kinds share (`object_reference_types.go`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::key::ObjectName;
use vestibule_model::reference::Reference;

/// SecretObjectReference: `certificateRefs` and the client certificate towards backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// API group; absent is core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; absent is Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; absent is the referrer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SecretReference {
    pub(crate) fn convert(self, namespace: &Arc<str>, field: String) -> Reference {
        Reference {
            group: self.group.unwrap_or_default().into(),
            kind: self.kind.as_deref().unwrap_or("Secret").into(),
            target: ObjectName::new(own_or(self.namespace, namespace), self.name),
            field,
        }
    }
}

/// ObjectReference: `caCertificateRefs` of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// API group; empty is core.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace; absent is the referrer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl ObjectReference {
    pub(crate) fn convert(self, namespace: &Arc<str>, field: String) -> Reference {
        Reference {
            group: self.group.into(),
            kind: self.kind.into(),
            target: ObjectName::new(own_or(self.namespace, namespace), self.name),
            field,
        }
    }
}

/// LocalObjectReference: `caCertificateRefs` of a BackendTLSPolicy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalObjectReference {
    /// API group; empty is core.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Name.
    pub name: String,
}

impl LocalObjectReference {
    pub(crate) fn convert(self, namespace: &Arc<str>, field: String) -> Reference {
        Reference {
            group: self.group.into(),
            kind: self.kind.into(),
            target: ObjectName::new(namespace.clone(), self.name),
            field,
        }
    }
}

/// LocalParametersReference: `spec.infrastructure.parametersRef` of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalParametersReference {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// ParametersReference: `spec.parametersRef` of a GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParametersReference {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace, for kinds that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The namespace as written or, if that is absent or empty, the namespace of the referrer.
pub(crate) fn own_or(written: Option<String>, own: &Arc<str>) -> Arc<str> {
    match written {
        Some(text) if !text.is_empty() => text.into(),
        _ => own.clone(),
    }
}
