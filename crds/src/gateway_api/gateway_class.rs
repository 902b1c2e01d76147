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
    let parameters = wire.spec.parameters_ref.map(|wire| reference::Reference {
        group: wire.group.into(),
        kind: wire.kind.into(),
        target: ObjectName::new(wire.namespace.unwrap_or_default(), wire.name),
        field: "spec.parametersRef".into(),
    });
    // The reference stays. It leads to no object, so the parameters count as unknown ones, and not as if there were none.
    let leads_nowhere = parameters.as_ref().is_some_and(|reference| {
        reference.is(Kind::GatewayParameters) && reference.target.namespace.is_empty()
    });
    if leads_nowhere {
        findings.push(Finding::refused(
            Reason::InvalidParameters,
            "spec.parametersRef.namespace",
            "is absent, and GatewayParameters live in a namespace",
            "name the namespace",
        ));
    }
    gateway::GatewayClass {
        name: wire.metadata.name.as_deref().unwrap_or_default().into(),
        meta: meta::convert(&wire.metadata),
        controller: wire.spec.controller_name.into(),
        parameters,
        findings,
    }
}
