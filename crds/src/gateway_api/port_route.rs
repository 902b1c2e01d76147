//! TCPRoute and UDPRoute on the wire (`tcproute_types.go`, `udproute_types.go`) and their conversion. They have the
//! same fields.
//!
//! Objects that were written as v1alpha2 may have many rules. They decode, and are refused with a reason.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::key::Kind;
use vestibule_model::protocol::Transport;
use vestibule_model::route::PortRoute;

use super::route::{self, BackendRef, ParentReference};
use crate::meta;
use crate::unknown::UnknownFields;

/// Spec of a TCPRoute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "TCPRoute",
    plural = "tcproutes",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "TCPRoute."
)]
#[serde(transparent)]
pub struct TCPRouteSpec(pub PortRouteSpec);

/// Spec of a UDPRoute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "UDPRoute",
    plural = "udproutes",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "UDPRoute."
)]
#[serde(transparent)]
pub struct UDPRouteSpec(pub PortRouteSpec);

/// What the specs of both kinds have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRouteSpec {
    /// Parents it wants to attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    /// Experimental: All or None, whether to attach to default Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<String>,
    /// Rules; exactly one in v1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PortRouteRule>,
}

/// TCPRouteRule or UDPRouteRule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRouteRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
}

/// Converts the route of this transport. Any refusal refuses the route.
pub(crate) fn convert(
    transport: Transport,
    metadata: &ObjectMeta,
    spec: PortRouteSpec,
    unknown: &UnknownFields,
) -> PortRoute {
    let name = meta::name(metadata);
    let mut findings = unknown.refusals_below(&["spec"]);
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    findings.extend(route::default_gateways(spec.use_default_gateways));
    let kind = Kind::of_port_route(transport);
    let rules = spec.rules.into_iter().map(|rule| rule.backend_refs);
    PortRoute {
        transport,
        meta: meta::convert(metadata),
        parents: route::parents(kind, spec.parent_refs, &mut findings),
        backends: route::only_rule(kind, rules.collect(), &name.namespace, &mut findings),
        findings,
        name,
    }
}
