//! TCPRoute on the wire (`tcproute_types.go`) and its conversion.
//!
//! Objects that were written as v1alpha2 may come back with many rules: they decode, and are refused with a
//! reason.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::key::Kind;
use vestibule_model::object;

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
#[serde(rename_all = "camelCase")]
pub struct TCPRouteSpec {
    /// Parents it wants to attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    /// Experimental: All or None, whether to attach to default Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<String>,
    /// Rules; exactly one in v1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TCPRouteRule>,
}

/// TCPRouteRule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TCPRouteRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
}

/// Converts a route. Any refusal refuses the route.
pub(crate) fn convert(wire: TCPRoute, unknown: &UnknownFields) -> object::TcpRoute {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec;
    let mut findings = unknown.refusals_below(&["spec"]);
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    findings.extend(route::default_gateways(spec.use_default_gateways));
    let kind = Kind::TcpRoute;
    let rules = spec.rules.into_iter().map(|rule| rule.backend_refs);
    object::TcpRoute {
        meta: meta::convert(&wire.metadata),
        parents: route::parents(kind, spec.parent_refs, &mut findings),
        backends: route::only_rule(kind, rules.collect(), &name.namespace, &mut findings),
        findings,
        name,
    }
}
