//! GatewayClass on the wire (`gatewayclass_types.go`) and its conversion.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::{gateway, reference};

use super::reference::ParametersReference;
use crate::meta;
use crate::unknown::UnknownFields;

/// Spec of a GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "GatewayClass",
    plural = "gatewayclasses",
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "GatewayClass."
)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// Name of the controller that serves the class.
    pub controller_name: String,
    /// Parameters of the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ParametersReference>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

pub(crate) fn convert(wire: GatewayClass, unknown: &UnknownFields) -> gateway::GatewayClass {
    let mut findings = unknown.warnings_outside(&[]);
    let parameters = wire.spec.parameters_ref.and_then(|wire| {
        let namespace = wire.namespace.unwrap_or_default();
        if wire.kind == Kind::GatewayParameters.as_str() && namespace.is_empty() {
            findings.push(Finding::refused(
                Reason::InvalidParameters,
                "spec.parametersRef.namespace",
                "is absent, and GatewayParameters live in a namespace",
                "name the namespace",
            ));
            return None;
        }
        Some(reference::Reference {
            group: wire.group.into(),
            kind: wire.kind.into(),
            target: ObjectName::new(namespace, wire.name),
            field: "spec.parametersRef".into(),
        })
    });
    gateway::GatewayClass {
        name: wire.metadata.name.as_deref().unwrap_or_default().into(),
        meta: meta::convert(&wire.metadata),
        controller: wire.spec.controller_name.into(),
        parameters,
        findings,
    }
}
