//! BackendTLSPolicy on the wire (`backendtlspolicy_types.go`) and its conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, Hostname, HostnameError};
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::reference::Reference;
use vestibule_model::tls_policy::{self, Authorities, PolicyTarget};

use super::reference::LocalObjectReference;
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{meta, names};

/// Targets per policy (`MaxItems`).
const MAX_TARGETS: usize = 16;
/// References to authorities per policy (`MaxItems`).
const MAX_AUTHORITIES: usize = 8;
/// Names that a certificate may have, per policy (`MaxItems`).
const MAX_ALT_NAMES: usize = 5;
/// Longest URI (`MaxLength` of `AbsoluteURI`).
const MAX_URI: usize = 253;

/// Spec of a BackendTLSPolicy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "BackendTLSPolicy",
    plural = "backendtlspolicies",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "BackendTLSPolicy."
)]
#[serde(rename_all = "camelCase")]
pub struct BackendTLSPolicySpec {
    /// What it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<PolicyTargetReference>,
    /// What a backend's certificate has to be.
    #[serde(default)]
    pub validation: BackendTLSPolicyValidation,
    /// Settings of implementations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// LocalPolicyTargetReferenceWithSectionName.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTargetReference {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Name.
    pub name: String,
    /// Part of the target: of a Service, the name of a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// BackendTLSPolicyValidation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTLSPolicyValidation {
    /// Where the certificates of authorities stand.
    #[serde(
        default,
        rename = "caCertificateRefs",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ca_certificate_refs: Vec<LocalObjectReference>,
    /// Or a set of them by name: System.
    #[serde(
        rename = "wellKnownCACertificates",
        skip_serializing_if = "Option::is_none"
    )]
    pub well_known_ca_certificates: Option<String>,
    /// Server name, and identity without `subjectAltNames`.
    #[serde(default)]
    pub hostname: String,
    /// Names of which a certificate has to have one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// SubjectAltName.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubjectAltName {
    /// Hostname or URI.
    #[serde(rename = "type", default)]
    pub name_type: String,
    /// For Hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// For URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// Converts a policy. If anything in it is refused, the proxies do not connect to its targets, because the part that is
/// left out might be the one that makes the connection safe.
pub(crate) fn convert(
    wire: BackendTLSPolicy,
    unknown: &UnknownFields,
) -> tls_policy::BackendTlsPolicy {
    let name = meta::name(&wire.metadata);
    let BackendTLSPolicySpec {
        target_refs,
        validation,
        options,
    } = wire.spec;
    let mut findings = unknown.refusals_below(&["spec"]);
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    if let Some(option) = options.keys().next() {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            "spec.options",
            format!("{} has no effect: no option is supported", quote(option)),
            "remove the options",
        ));
    }
    let hostname = match Hostname::parse(&validation.hostname) {
        Ok(hostname) => Some(hostname),
        Err(error) => {
            let field = "spec.validation.hostname".to_owned();
            findings.push(names::not_a_hostname(field, &validation.hostname, &error));
            None
        }
    };
    tls_policy::BackendTlsPolicy {
        meta: meta::convert(&wire.metadata),
        targets: targets(target_refs, &name.namespace, &mut findings),
        hostname,
        authorities: authorities(
            validation.ca_certificate_refs,
            validation.well_known_ca_certificates,
            &name.namespace,
            &mut findings,
        ),
        alt_names: alt_names(validation.subject_alt_names, &mut findings),
        findings,
        name,
    }
}

/// The targets of a policy. A policy with too many is refused, and keeps all of them: the proxies would connect in
/// plaintext to a Service whose reference is left out. The size of an object bounds them.
fn targets(
    wire: Vec<PolicyTargetReference>,
    namespace: &Arc<str>,
    findings: &mut Vec<Finding>,
) -> Vec<PolicyTarget> {
    at_most(wire.len(), MAX_TARGETS, "spec.targetRefs", findings);
    let mut targets = Vec::with_capacity(wire.len());
    for (index, wire) in wire.into_iter().enumerate() {
        let target = PolicyTarget {
            reference: Reference {
                group: wire.group.into(),
                kind: wire.kind.into(),
                target: ObjectName::new(namespace.clone(), wire.name),
                field: format!("spec.targetRefs[{index}]"),
            },
            section: wire.section_name.filter(|s| !s.is_empty()).map(Into::into),
        };
        // More findings would add nothing to the one about the number of targets.
        if index < MAX_TARGETS && !target.reference.is(Kind::Service) {
            findings.push(Finding::warning(
                Reason::InvalidKind,
                target.reference.field.clone(),
                format!(
                    "{} of group {} is not supported, so the policy has no effect on it",
                    quote(&target.reference.kind),
                    quote(&target.reference.group)
                ),
                "refer to a Service",
            ));
        }
        targets.push(target);
    }
    targets
}

fn authorities(
    references: Vec<LocalObjectReference>,
    well_known: Option<String>,
    namespace: &Arc<str>,
    findings: &mut Vec<Finding>,
) -> Authorities {
    let field = "spec.validation.caCertificateRefs";
    let well_known = well_known.filter(|name| !name.is_empty());
    let mut refuse = |reason, field: &str, message: String, action: &str| {
        findings.push(Finding::refused(reason, field, message, action));
    };
    if references.is_empty() {
        let known = "spec.validation.wellKnownCACertificates";
        match well_known.as_deref() {
            Some("System") => return Authorities::System,
            Some(other) => refuse(
                Reason::UnsupportedValue,
                known,
                format!(
                    "{} is not a set of certificates that is known",
                    quote(other)
                ),
                "use System, or refer to certificates in caCertificateRefs",
            ),
            None => refuse(
                Reason::InvalidValue,
                field,
                "names no certificate, and no well-known ones are named either".into(),
                "refer to a ConfigMap that holds them, or set wellKnownCACertificates to System",
            ),
        }
        return Authorities::Bundles(Vec::new());
    }
    if well_known.is_some() {
        refuse(
            Reason::InvalidValue,
            field,
            "stands beside wellKnownCACertificates, and only one of them may be there".into(),
            "remove one of them",
        );
    }
    at_most(references.len(), MAX_AUTHORITIES, field, findings);
    // If there are more, the policy is refused, and nobody connects by any of them.
    let references = references.into_iter().take(MAX_AUTHORITIES).enumerate();
    Authorities::Bundles(
        references
            .map(|(index, wire)| wire.convert(namespace, format!("{field}[{index}]")))
            .collect(),
    )
}

fn alt_names(
    wire: Vec<SubjectAltName>,
    findings: &mut Vec<Finding>,
) -> Vec<tls_policy::SubjectAltName> {
    let field = "spec.validation.subjectAltNames";
    at_most(wire.len(), MAX_ALT_NAMES, field, findings);
    // If there are more, the policy is refused, and nobody connects by any of them.
    let mut names = Vec::new();
    for (index, wire) in wire.into_iter().take(MAX_ALT_NAMES).enumerate() {
        match alt_name(wire, &format!("{field}[{index}]")) {
            Ok(name) => names.push(name),
            Err(finding) => findings.push(finding),
        }
    }
    names
}

fn alt_name(wire: SubjectAltName, field: &str) -> Result<tls_policy::SubjectAltName, Finding> {
    match wire.name_type.as_str() {
        "Hostname" => {
            let text = wire.hostname.unwrap_or_default();
            let pattern = if text.is_empty() {
                Err(HostnameError::Empty)
            } else {
                HostPattern::parse(&text)
            };
            pattern
                .map(tls_policy::SubjectAltName::Hostname)
                .map_err(|error| names::not_a_hostname(format!("{field}.hostname"), &text, &error))
        }
        "URI" => {
            let uri = wire.uri.unwrap_or_default();
            let parts = uri.split_once(':');
            let whole = parts.is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
            let plain = uri.len() <= MAX_URI && uri.bytes().all(|b| b.is_ascii_graphic());
            if whole && plain {
                return Ok(tls_policy::SubjectAltName::Uri(uri.into()));
            }
            Err(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.uri"),
                format!("{} is not an absolute URI", quote(&uri)),
                "write one with its scheme, such as \"spiffe://cluster/ns/a/sa/b\"",
            ))
        }
        other => Err(Finding::refused(
            Reason::UnsupportedValue,
            format!("{field}.type"),
            format!("{} is not supported", quote(other)),
            "use Hostname or URI",
        )),
    }
}

fn at_most(count: usize, max: usize, field: &str, findings: &mut Vec<Finding>) {
    if count > max {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("has {count} entries, and at most {max} are allowed"),
            "leave some out",
        ));
    }
}
