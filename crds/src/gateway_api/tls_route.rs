//! TLSRoute on the wire (`tlsroute_types.go`) and its conversion.
//!
//! Objects that were written as v1alpha2 can lack hostnames or have many rules. They decode, and are refused with a
//! reason.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::Kind;
use vestibule_model::route::TlsRoute;

use super::route::{self, BackendRef, ParentReference};
use crate::meta;
use crate::unknown::UnknownFields;

/// Hostnames per route (`MaxItems`).
const MAX_HOSTNAMES: usize = 1024;

/// Spec of a TLSRoute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "TLSRoute",
    plural = "tlsroutes",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "TLSRoute."
)]
#[serde(rename_all = "camelCase")]
pub struct TLSRouteSpec {
    /// Parents it wants to attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    /// Experimental: All or None, whether to attach to default Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<String>,
    /// Server names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Rules; exactly one in v1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TLSRouteRule>,
}

/// TLSRouteRule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TLSRouteRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
}

/// Converts a route. A refusal of `spec.hostnames[i]` is about that hostname alone. Every other refusal refuses the
/// route.
pub(crate) fn convert(wire: TLSRoute, unknown: &UnknownFields) -> TlsRoute {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec;
    let mut findings = unknown.refusals_below(&["spec"]);
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    findings.extend(route::default_gateways(spec.use_default_gateways));
    let rules = spec.rules.into_iter().map(|rule| rule.backend_refs);
    TlsRoute {
        meta: meta::convert(&wire.metadata),
        parents: route::parents(Kind::TlsRoute, spec.parent_refs, &mut findings),
        hostnames: hostnames(&spec.hostnames, &mut findings),
        backends: route::only_rule(
            Kind::TlsRoute,
            rules.collect(),
            &name.namespace,
            &mut findings,
        ),
        findings,
        name,
    }
}

fn hostnames(texts: &[String], findings: &mut Vec<Finding>) -> Vec<(usize, HostPattern)> {
    if texts.is_empty() {
        findings.push(Finding::refused(
            Reason::InvalidHostname,
            "spec.hostnames",
            "is empty, and a TLSRoute is chosen by its hostnames",
            "list the hostnames to serve",
        ));
    }
    route::hostnames(Kind::TlsRoute, texts, MAX_HOSTNAMES, findings)
}
