//! TLSRoute on the wire (`tlsroute_types.go`) and its conversion.
//!
//! Objects that were written as v1alpha2 come back without hostnames or with many rules: they decode,
//! and are refused with a reason.

use std::sync::Arc;

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, HostnameError};
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::{self, Reference};

use super::listener::port;
use super::reference::own_or;
use crate::meta;
use crate::names;
use crate::unknown::UnknownFields;

/// Hostnames per route (`MaxItems`).
const MAX_HOSTNAMES: usize = 1024;
/// Backends per rule (`MaxItems`).
const MAX_BACKENDS: usize = 16;
/// Parents per route (`MaxItems`).
const MAX_PARENTS: usize = 32;
/// Greatest weight (`Maximum`).
const MAX_WEIGHT: u32 = 1_000_000;

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

/// ParentReference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentReference {
    /// API group; absent is Gateway API's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; absent is Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace; absent is the route's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Name of a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port of listeners, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
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

/// BackendRef.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// API group; absent is core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; absent is Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; absent is the route's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Port, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Weight, as written; absent is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
}

/// Converts a route. A refusal of `spec.hostnames[i]` is about that hostname alone; any other refuses
/// the route.
pub(crate) fn convert(wire: TLSRoute, unknown: &UnknownFields) -> object::TlsRoute {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec;
    let mut findings = unknown.refusals_below(&["spec"]);
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    if spec
        .use_default_gateways
        .is_some_and(|scope| scope != "None")
    {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            "spec.useDefaultGateways",
            "default Gateways are not supported, so it has no effect",
            "name the parents in parentRefs",
        ));
    }
    object::TlsRoute {
        meta: meta::convert(&wire.metadata),
        parents: parents(spec.parent_refs, &mut findings),
        hostnames: hostnames(&spec.hostnames, &mut findings),
        backends: backends(spec.rules, &name.namespace, &mut findings),
        findings,
        name,
    }
}

fn parents(refs: Vec<ParentReference>, findings: &mut Vec<Finding>) -> Vec<object::ParentRef> {
    at_most(refs.len(), MAX_PARENTS, "spec.parentRefs", findings);
    let mut parents: Vec<object::ParentRef> = Vec::new();
    for (index, wire) in refs.into_iter().take(MAX_PARENTS).enumerate() {
        let field = format!("spec.parentRefs[{index}]");
        let parent = object::ParentRef {
            group: wire.group.map(Into::into),
            kind: wire.kind.map(Into::into),
            namespace: wire.namespace.map(Into::into),
            name: wire.name.into(),
            section: wire.section_name.map(Into::into),
            port: wire
                .port
                .and_then(|number| port(number, &format!("{field}.port"), findings)),
        };
        if parents.contains(&parent) {
            // It would have two entries of one name in the status.
            findings.push(Finding::warning(
                Reason::Duplicate,
                field,
                "repeats an earlier parent, so it is left out",
                "remove it, or set a sectionName",
            ));
        } else {
            parents.push(parent);
        }
    }
    parents
}

fn hostnames(texts: &[String], findings: &mut Vec<Finding>) -> Vec<(usize, HostPattern)> {
    let field = "spec.hostnames";
    if texts.is_empty() {
        findings.push(Finding::refused(
            Reason::InvalidHostname,
            field,
            "is empty, and a TLSRoute is chosen by its hostnames",
            "list the hostnames to serve",
        ));
    }
    at_most(texts.len(), MAX_HOSTNAMES, field, findings);
    let mut patterns = Vec::new();
    for (index, text) in texts.iter().take(MAX_HOSTNAMES).enumerate() {
        let pattern = if text.is_empty() {
            // To the pattern it would mean "any", which no route may ask for.
            Err(HostnameError::Empty)
        } else {
            HostPattern::parse(text)
        };
        match pattern {
            Ok(pattern) => patterns.push((index, pattern)),
            Err(error) => findings.push(names::not_a_hostname(
                format!("{field}[{index}]"),
                text,
                &error,
            )),
        }
    }
    patterns
}

fn backends(
    rules: Vec<TLSRouteRule>,
    namespace: &Arc<str>,
    findings: &mut Vec<Finding>,
) -> Vec<object::BackendRef> {
    if rules.len() != 1 {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            "spec.rules",
            format!("has {} rules, and a TLSRoute has exactly one", rules.len()),
            "put all backends into one rule, or write one TLSRoute per rule",
        ));
    }
    let mut backends = Vec::new();
    for (rule, wire) in rules.into_iter().take(1).enumerate() {
        let field = format!("spec.rules[{rule}].backendRefs");
        if wire.backend_refs.is_empty() {
            findings.push(Finding::refused(
                Reason::InvalidValue,
                field.clone(),
                "names no backend",
                "name at least one Service and its port",
            ));
        }
        at_most(wire.backend_refs.len(), MAX_BACKENDS, &field, findings);
        for (index, backend) in wire.backend_refs.into_iter().take(MAX_BACKENDS).enumerate() {
            let field = format!("{field}[{index}]");
            backends.push(convert_backend(backend, namespace, field, findings));
        }
    }
    backends
}

fn convert_backend(
    wire: BackendRef,
    namespace: &Arc<str>,
    field: String,
    findings: &mut Vec<Finding>,
) -> object::BackendRef {
    let port = wire
        .port
        .and_then(|number| port(number, &format!("{field}.port"), findings));
    let weight = match wire.weight.unwrap_or(1).try_into() {
        Ok(weight) if weight <= MAX_WEIGHT => weight,
        _ => {
            findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.weight"),
                format!(
                    "{} is not a weight",
                    wire.weight.map_or_else(String::new, |w| w.to_string())
                ),
                format!("use a number from 0 to {MAX_WEIGHT}"),
            ));
            0
        }
    };
    let reference = Reference {
        group: wire.group.unwrap_or_default().into(),
        kind: wire.kind.as_deref().unwrap_or("Service").into(),
        target: ObjectName {
            namespace: own_or(wire.namespace, namespace),
            name: wire.name.into(),
        },
        field,
    };
    if reference.is(Kind::Service) && wire.port.is_none() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            format!("{}.port", reference.field),
            "is absent, and a Service is reached by one of its ports",
            "add the port",
        ));
    }
    object::BackendRef {
        reference,
        port,
        weight,
    }
}

fn at_most(count: usize, max: usize, field: &str, findings: &mut Vec<Finding>) {
    if count > max {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("has {count} entries, and at most {max} are allowed"),
            "spread them over more TLSRoutes",
        ));
    }
}
