//! ListenerSet on the wire (`listenerset_types.go`) and its conversion.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway;
use vestibule_model::key::{GATEWAY_GROUP, ObjectName};

use super::listener::{self, Listener};
use super::reference::own_or;
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{certificate, meta};

/// Spec of a ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "ListenerSet",
    plural = "listenersets",
    shortname = "lset",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "ListenerSet."
)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// The Gateway it extends.
    pub parent_ref: ParentGatewayReference,
    /// Listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<Listener>,
}

/// ParentGatewayReference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentGatewayReference {
    /// API group; absent is Gateway API's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; absent is Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; absent is the set's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

pub(crate) fn convert(wire: ListenerSet, unknown: &UnknownFields) -> gateway::ListenerSet {
    let name = meta::name(&wire.metadata);
    let (listeners, mut findings) =
        listener::convert_all(wire.spec.listeners, &name.namespace, unknown);
    findings.extend(unknown.warnings_outside(&[&["spec", "listeners"]]));
    let parent = wire.spec.parent_ref;
    let group = parent.group.as_deref().unwrap_or(GATEWAY_GROUP);
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    let gateway = if group == GATEWAY_GROUP && kind == "Gateway" {
        Some(ObjectName::new(
            own_or(parent.namespace, &name.namespace),
            parent.name,
        ))
    } else {
        findings.push(Finding::refused(
            Reason::InvalidKind,
            "spec.parentRef",
            format!("{} is not a Gateway", quote(&format!("{group}/{kind}"))),
            "name a Gateway",
        ));
        None
    };
    gateway::ListenerSet {
        meta: meta::convert(&wire.metadata),
        gateway,
        listeners,
        issuers: meta::issuers(&wire.metadata),
        certificates: certificate::annotations(&wire.metadata),
        findings,
        name,
    }
}
