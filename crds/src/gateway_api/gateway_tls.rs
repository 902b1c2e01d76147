//! `spec.tls` of a Gateway on the wire (`gateway_types.go`, GEP-91 and GEP-3155) and its conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::protocol::Port;
use vestibule_model::tls_policy::{self, ClientValidation, ValidationMode};

use super::listener::port;
use super::reference::{ObjectReference, SecretReference};
use crate::text::quote;
use crate::unknown::UnknownFields;

/// Ports with settings of their own per Gateway (`MaxItems`).
const MAX_PORTS: usize = 64;
/// References to authorities per validation (`MaxItems`).
const MAX_AUTHORITIES: usize = 16;

/// GatewayTLSConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayTls {
    /// Towards backends (GEP-3155).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<GatewayBackendTls>,
    /// Towards clients (GEP-91).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendTls>,
}

/// GatewayBackendTLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayBackendTls {
    /// The certificate shown to backends that ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<SecretReference>,
}

/// FrontendTLSConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendTls {
    /// For ports without settings of their own.
    #[serde(default)]
    pub default: FrontendTlsConfig,
    /// By port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_port: Vec<FrontendTlsPort>,
}

/// TLSPortConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendTlsPort {
    /// The port, as written.
    pub port: i64,
    /// Its settings.
    #[serde(default)]
    pub tls: FrontendTlsConfig,
}

/// TLSConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendTlsConfig {
    /// What is asked of clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<FrontendTlsValidation>,
}

/// FrontendTLSValidation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendTlsValidation {
    /// Where the certificates of authorities stand.
    #[serde(
        default,
        rename = "caCertificateRefs",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// AllowValidOnly (the default) or AllowInsecureFallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

pub(super) fn convert(
    wire: Option<GatewayTls>,
    namespace: &Arc<str>,
    unknown: &UnknownFields,
    findings: &mut Vec<Finding>,
) -> tls_policy::GatewayTls {
    let Some(wire) = wire else {
        return tls_policy::GatewayTls::default();
    };
    let frontend = wire.frontend.unwrap_or_default();
    let field = "spec.tls.frontend.default";
    let default = frontend
        .default
        .validation
        .map(|wire| validation(wire, namespace, field, findings));
    tls_policy::GatewayTls {
        default,
        per_port: per_port(frontend.per_port, namespace, findings),
        client_certificate: wire
            .backend
            .and_then(|backend| backend.client_certificate_ref)
            .map(|wire| wire.convert(namespace, "spec.tls.backend.clientCertificateRef".into())),
        unknown: unknown.refusals_below(&["spec", "tls"]).into_iter().next(),
    }
}

fn per_port(
    wire: Vec<FrontendTlsPort>,
    namespace: &Arc<str>,
    findings: &mut Vec<Finding>,
) -> BTreeMap<Port, Option<ClientValidation>> {
    let mut ports = BTreeMap::new();
    let path = "spec.tls.frontend.perPort";
    for (index, wire) in wire.into_iter().enumerate() {
        let field = format!("{path}[{index}]");
        let before = findings.len();
        let number = port(wire.port, &format!("{field}.port"), findings);
        // No listener can have such a port, and nothing else depends on it, so this is only a warning.
        for finding in findings.iter_mut().skip(before) {
            finding.severity = Severity::Warning;
        }
        let Some(number) = number else { continue };
        let field = format!("{field}.tls");
        let mut asked = wire
            .tls
            .validation
            .map(|wire| validation(wire, namespace, &field, findings));
        let problem = if ports.contains_key(&number) {
            Some("repeats an earlier port, and which of them counts is not said")
        } else if ports.len() >= MAX_PORTS {
            Some("is one more than may be there")
        } else {
            None
        };
        if let Some(problem) = problem {
            let refused = asked.get_or_insert_with(|| nothing(&field));
            refuse(
                refused,
                Finding::refused(Reason::InvalidValue, &field, problem, "remove it"),
                findings,
            );
        }
        ports.insert(number, asked);
    }
    ports
}

/// A validation that no client passes. It is used where the settings are refused.
fn nothing(field: &str) -> ClientValidation {
    ClientValidation {
        field: format!("{field}.validation"),
        authorities: Vec::new(),
        mode: ValidationMode::AllowValidOnly,
        refused: None,
    }
}

fn validation(
    wire: FrontendTlsValidation,
    namespace: &Arc<str>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> ClientValidation {
    let mut asked = nothing(field);
    let field = asked.field.clone();
    match wire.mode.as_deref() {
        None | Some("" | "AllowValidOnly") => {}
        Some("AllowInsecureFallback") => asked.mode = ValidationMode::AllowInsecureFallback,
        Some(other) => {
            let finding = Finding::refused(
                Reason::UnsupportedValue,
                format!("{field}.mode"),
                format!("{} is not supported", quote(other)),
                "use AllowValidOnly or AllowInsecureFallback",
            );
            refuse(&mut asked, finding, findings);
        }
    }
    let count = wire.ca_certificate_refs.len();
    if count > MAX_AUTHORITIES {
        let finding = Finding::refused(
            Reason::InvalidValue,
            format!("{field}.caCertificateRefs"),
            format!("has {count} entries, and at most {MAX_AUTHORITIES} are allowed"),
            "put the certificates into fewer ConfigMaps",
        );
        refuse(&mut asked, finding, findings);
    }
    // If there are more, the listeners are refused, so no client is checked by any of them.
    let references = wire.ca_certificate_refs.into_iter().take(MAX_AUTHORITIES);
    asked.authorities = references
        .enumerate()
        .map(|(index, wire)| wire.convert(namespace, format!("{field}.caCertificateRefs[{index}]")))
        .collect();
    asked
}

/// Refuses the listeners to which a validation applies. For admission this is a warning, because the Gateway itself is
/// not refused.
fn refuse(asked: &mut ClientValidation, finding: Finding, findings: &mut Vec<Finding>) {
    findings.push(Finding {
        severity: Severity::Warning,
        ..finding.clone()
    });
    asked.refused.get_or_insert(finding);
}
