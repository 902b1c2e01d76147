//! The fields that all kinds of routes share on the wire (`shared_types.go`), and their conversion.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, HostnameError};
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::policy::advice;
use vestibule_model::reference;
use vestibule_model::reference::Reference;

use super::listener::port;
use super::reference::own_or;
use crate::names;

/// Backends per rule (`MaxItems`).
pub(super) const MAX_BACKENDS: usize = 16;
/// Parents per route (`MaxItems`).
const MAX_PARENTS: usize = 32;
/// Greatest weight (`Maximum`).
const MAX_WEIGHT: u32 = 1_000_000;

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

/// The finding about `spec.useDefaultGateways`, if it is set.
pub(super) fn default_gateways(scope: Option<String>) -> Option<Finding> {
    scope.filter(|scope| scope != "None").map(|_| {
        Finding::warning(
            Reason::UnsupportedValue,
            "spec.useDefaultGateways",
            "default Gateways are not supported, so it has no effect",
            "name the parents in parentRefs",
        )
    })
}

/// The parents of a route of `kind`.
pub(super) fn parents(
    kind: Kind,
    refs: Vec<ParentReference>,
    findings: &mut Vec<Finding>,
) -> Vec<reference::ParentRef> {
    at_most(kind, refs.len(), MAX_PARENTS, "spec.parentRefs", findings);
    // If there are more, the route is refused, and is attached to none of them.
    let mut parents: Vec<reference::ParentRef> = Vec::new();
    for (index, wire) in refs.into_iter().take(MAX_PARENTS).enumerate() {
        let mut parent = reference::ParentRef {
            index,
            group: wire.group.map(Into::into),
            kind: wire.kind.map(Into::into),
            namespace: wire.namespace.map(Into::into),
            name: wire.name.into(),
            section: wire.section_name.map(Into::into),
            port: None,
        };
        let field = parent.field();
        parent.port = wire
            .port
            .and_then(|number| port(number, &format!("{field}.port"), findings));
        if parents.iter().any(|earlier| earlier.is_same(&parent)) {
            // A parent that is named twice would have two entries with one name in the status.
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

/// The valid hostnames of a route. There is a finding for each of the others.
pub(super) fn hostnames(
    kind: Kind,
    texts: &[String],
    max: usize,
    findings: &mut Vec<Finding>,
) -> Vec<(usize, HostPattern)> {
    at_most(kind, texts.len(), max, "spec.hostnames", findings);
    let mut patterns = Vec::new();
    for (index, text) in texts.iter().take(max).enumerate() {
        let field = format!("spec.hostnames[{index}]");
        let pattern = if text.is_empty() {
            // An empty pattern would mean "any", for which no route may ask.
            Err(HostnameError::Empty)
        } else {
            HostPattern::parse(text)
        };
        match pattern {
            Ok(pattern) => {
                findings.extend(advice(&pattern, &field));
                patterns.push((index, pattern));
            }
            Err(error) => findings.push(names::not_a_hostname(field, text, &error)),
        }
    }
    patterns
}

/// The backends of the only rule of a route of `kind`, for kinds that route connections. An error in the rule refuses
/// the route.
pub(super) fn only_rule(
    kind: Kind,
    rules: Vec<Vec<BackendRef>>,
    namespace: &Arc<str>,
    findings: &mut Vec<Finding>,
) -> Vec<reference::BackendRef> {
    if rules.len() != 1 {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            "spec.rules",
            format!("has {} rules, and a {kind} has exactly one", rules.len()),
            format!("put all backends into one rule, or write one {kind} per rule"),
        ));
    }
    let mut backends = Vec::new();
    for (rule, refs) in rules.into_iter().take(1).enumerate() {
        let field = format!("spec.rules[{rule}].backendRefs");
        if refs.is_empty() {
            findings.push(Finding::refused(
                Reason::InvalidValue,
                field.clone(),
                "names no backend",
                "name at least one Service and its port",
            ));
        }
        at_most(kind, refs.len(), MAX_BACKENDS, &field, findings);
        for (index, wire) in refs.into_iter().take(MAX_BACKENDS).enumerate() {
            let field = format!("{field}[{index}]");
            backends.push(backend(wire, namespace, field, findings));
        }
    }
    backends
}

/// A backend. Its findings refuse the rule that has it.
pub(super) fn backend(
    wire: BackendRef,
    namespace: &Arc<str>,
    field: String,
    findings: &mut Vec<Finding>,
) -> reference::BackendRef {
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
        target: ObjectName::new(own_or(wire.namespace, namespace), wire.name),
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
    reference::BackendRef {
        reference,
        port,
        weight,
    }
}

/// Refuses lists that are too long.
pub(super) fn at_most(
    kind: Kind,
    count: usize,
    max: usize,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    if count > max {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("has {count} entries, and at most {max} are allowed"),
            format!("spread them over more {kind}s"),
        ));
    }
}
