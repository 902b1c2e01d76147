//! ReferenceGrant on the wire (`referencegrant_types.go`) and its conversion.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::finding::Finding;
use vestibule_model::object;

use crate::meta;
use crate::unknown::UnknownFields;

/// Spec of a ReferenceGrant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "ReferenceGrant",
    plural = "referencegrants",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    doc = "ReferenceGrant."
)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantSpec {
    /// Who may refer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<ReferenceGrantFrom>,
    /// To what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<ReferenceGrantTo>,
}

/// ReferenceGrantFrom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantFrom {
    /// API group of the referrer.
    pub group: String,
    /// Kind of the referrer.
    pub kind: String,
    /// Namespace of the referrer.
    pub namespace: String,
}

/// ReferenceGrantTo.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantTo {
    /// API group of the target; empty is core.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target; absent is all of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Converts a grant. An unknown field may restrict the grant. So a grant with such a field grants nothing, and a
/// finding says so.
pub(crate) fn convert(
    wire: ReferenceGrant,
    unknown: &UnknownFields,
) -> (object::ReferenceGrant, Vec<Finding>) {
    let mut findings = unknown.refusals_below(&["spec"]);
    let spec = if findings.is_empty() {
        wire.spec
    } else {
        ReferenceGrantSpec::default()
    };
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    let grant = object::ReferenceGrant {
        name: meta::name(&wire.metadata),
        from: spec
            .from
            .into_iter()
            .map(|f| (f.group.into(), f.kind.into(), f.namespace.into()))
            .collect(),
        to: spec
            .to
            .into_iter()
            .map(|t| {
                let name = t.name.filter(|name| !name.is_empty());
                (t.group.into(), t.kind.into(), name.map(Into::into))
            })
            .collect(),
    };
    (grant, findings)
}
