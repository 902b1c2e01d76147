//! Listeners: one wire type for Gateways and ListenerSets (upstream has two equal ones), and the rules of the CRD
//! schema for a listener.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway;
use vestibule_model::gateway::TlsMode;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::GATEWAY_GROUP;
use vestibule_model::policy::advice;
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::selector::NamespaceScope;

use super::reference::SecretReference;
use super::selector::scope;
use crate::names;
use crate::text::quote;
use crate::unknown::UnknownFields;

/// Listeners per object (`MaxItems` of both CRDs).
const MAX_LISTENERS: usize = 64;
/// Certificate references per listener (`MaxItems`).
const MAX_CERTIFICATES: usize = 64;

/// Listener of a Gateway, ListenerEntry of a ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Name, unique within the object.
    pub name: String,
    /// Hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Port, as written.
    pub port: i64,
    /// HTTP, HTTPS, TLS, TCP, UDP, or a word of some implementation.
    pub protocol: String,
    /// TLS settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// Which routes may attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_routes: Option<AllowedRoutes>,
    /// Filters (experimental, GEP-5224): only their presence matters to this release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<serde_json::Value>,
}

/// ListenerTLSConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerTls {
    /// Terminate (the default) or Passthrough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Certificates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate_refs: Vec<SecretReference>,
    /// Options of implementations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// AllowedRoutes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllowedRoutes {
    /// Namespaces routes may come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<RouteNamespaces>,
    /// Route kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<RouteGroupKind>,
}

/// RouteNamespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteNamespaces {
    /// All, Same (the default) or Selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// For Selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// RouteGroupKind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteGroupKind {
    /// API group; absent is Gateway API's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind.
    pub kind: String,
}

/// The listeners of an object in `namespace`, each with its findings, and the findings about the whole list.
pub(crate) fn convert_all(
    listeners: Vec<Listener>,
    namespace: &Arc<str>,
    unknown: &UnknownFields,
) -> (Vec<gateway::Listener>, Vec<Finding>) {
    let mut findings = Vec::new();
    if listeners.is_empty() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            "spec.listeners",
            "has no listener",
            "add at least one listener",
        ));
    }
    let mut names = BTreeSet::new();
    let converted = listeners
        .into_iter()
        .enumerate()
        .map(|(index, wire)| {
            let mut listener = convert(wire, index, namespace, unknown);
            if !names.insert(listener.name.clone()) {
                listener.findings.push(Finding::refused(
                    Reason::Duplicate,
                    format!("{}.name", listener.field),
                    format!(
                        "{} is the name of an earlier listener of this object",
                        quote(&listener.name)
                    ),
                    "give each listener its own name",
                ));
            }
            if index >= MAX_LISTENERS {
                listener.findings.push(Finding::refused(
                    Reason::TooManyListeners,
                    listener.field.clone(),
                    format!("is beyond the {MAX_LISTENERS} listeners that one object may have"),
                    "move it to another ListenerSet",
                ));
            }
            listener
        })
        .collect();
    (converted, findings)
}

fn convert(
    wire: Listener,
    index: usize,
    namespace: &Arc<str>,
    unknown: &UnknownFields,
) -> gateway::Listener {
    let field = format!("spec.listeners[{index}]");
    let mut findings = unknown.refusals_below(&["spec", "listeners", &index.to_string()]);

    if !names::is_subdomain(&wire.name) {
        findings.push(names::not_a_name(&format!("{field}.name"), &wire.name));
    }
    let protocol = Protocol::from_text(&wire.protocol);
    let hostname = hostname(wire.hostname.as_deref(), &protocol, &field, &mut findings);
    let port = port(wire.port, &format!("{field}.port"), &mut findings);
    let tls = tls(wire.tls, &protocol, namespace, &field, &mut findings);
    if wire.filters.as_ref().is_some_and(|f| !is_empty(f)) {
        findings.push(Finding::refused(
            Reason::UnsupportedValue,
            format!("{field}.filters"),
            "filters are not supported, and leaving them out could let in more than they should",
            "remove them from the listener",
        ));
    }
    let routes = wire.allowed_routes.unwrap_or_default();
    let namespaces = routes.namespaces.unwrap_or_default();
    let (allowed_namespaces, warnings) = scope(
        namespaces.from,
        namespaces.selector,
        NamespaceScope::Same,
        &format!("{field}.allowedRoutes.namespaces"),
    );
    findings.extend(warnings);
    gateway::Listener {
        name: wire.name.into(),
        field,
        hostname,
        port,
        protocol,
        tls,
        allowed_namespaces,
        allowed_kinds: routes
            .kinds
            .into_iter()
            .map(|k| {
                (
                    k.group.as_deref().unwrap_or(GATEWAY_GROUP).into(),
                    k.kind.into(),
                )
            })
            .collect(),
        findings,
        shared_key: gateway::SharedKey::default(),
    }
}

fn is_empty(filters: &serde_json::Value) -> bool {
    filters.as_object().is_some_and(|fields| {
        fields
            .values()
            .all(|v| v.as_array().is_some_and(Vec::is_empty))
    })
}

fn hostname(
    text: Option<&str>,
    protocol: &Protocol,
    field: &str,
    findings: &mut Vec<Finding>,
) -> HostPattern {
    let Some(text) = text.filter(|t| !t.is_empty()) else {
        return HostPattern::Any;
    };
    let field = format!("{field}.hostname");
    if matches!(protocol, Protocol::Tcp | Protocol::Udp) {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("protocol {protocol} has no hostnames"),
            "remove the hostname",
        ));
        return HostPattern::Any;
    }
    match HostPattern::parse(text) {
        Ok(pattern) => {
            findings.extend(advice(&pattern, &field));
            pattern
        }
        Err(error) => {
            findings.push(names::not_a_hostname(field, text, &error));
            HostPattern::Any
        }
    }
}

/// The port with this number. If the number is not valid, it is `None`, and there is a refusal.
pub(crate) fn port(number: i64, field: &str, findings: &mut Vec<Finding>) -> Option<Port> {
    let port = u16::try_from(number).ok().and_then(Port::new);
    if port.is_none() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("{number} is not a port"),
            "use a number from 1 to 65535",
        ));
    }
    port
}

fn tls(
    wire: Option<ListenerTls>,
    protocol: &Protocol,
    namespace: &Arc<str>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Option<gateway::ListenerTls> {
    let field = format!("{field}.tls");
    let Some(wire) = wire else {
        // Gateway API allows HTTPS without `tls` (since v1.6.0), and the model decides what follows from that.
        if *protocol == Protocol::Tls {
            findings.push(Finding::refused(
                Reason::InvalidTLSConfig,
                field,
                "is absent, and a TLS listener needs a mode",
                "set tls.mode to Passthrough or Terminate",
            ));
        }
        return None;
    };
    if matches!(protocol, Protocol::Http | Protocol::Tcp | Protocol::Udp) {
        findings.push(Finding::refused(
            Reason::InvalidTLSConfig,
            field,
            format!("protocol {protocol} has no TLS"),
            "remove tls, or use protocol HTTPS or TLS",
        ));
        return None;
    }
    // The default of the schema applies before its rules, so an absent mode is Terminate for TLS as well.
    let mode = match wire.mode.as_deref() {
        None | Some("Terminate") => TlsMode::Terminate,
        Some("Passthrough") => TlsMode::Passthrough,
        Some(other) => {
            findings.push(Finding::refused(
                Reason::UnsupportedValue,
                format!("{field}.mode"),
                format!("{} is a mode this release does not know", quote(other)),
                "use Terminate or Passthrough",
            ));
            return None;
        }
    };
    if *protocol == Protocol::Https && mode == TlsMode::Passthrough {
        findings.push(Finding::refused(
            Reason::InvalidTLSConfig,
            format!("{field}.mode"),
            "an HTTPS listener cannot pass TLS through",
            "use Terminate, or protocol TLS",
        ));
    }
    let refs = wire.certificate_refs;
    if mode == TlsMode::Terminate && refs.is_empty() && wire.options.is_empty() {
        findings.push(Finding::refused(
            Reason::InvalidTLSConfig,
            format!("{field}.certificateRefs"),
            "is empty, and to terminate TLS takes a certificate",
            "name the Secret that holds the certificate, or will hold it",
        ));
    }
    if refs.len() > MAX_CERTIFICATES {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            format!("{field}.certificateRefs"),
            format!(
                "has {} references, and at most {MAX_CERTIFICATES} are allowed",
                refs.len()
            ),
            "remove some",
        ));
    }
    if let Some(option) = wire.options.keys().next() {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            format!("{field}.options"),
            format!("{} has no effect: no option is supported", quote(option)),
            "remove the options",
        ));
    }
    // If there are more, the listener is refused, so nobody misses the rest.
    let certificates = refs
        .into_iter()
        .take(MAX_CERTIFICATES)
        .enumerate()
        .map(|(i, r)| r.convert(namespace, format!("{field}.certificateRefs[{i}]")))
        .collect();
    let tls = gateway::ListenerTls { mode, certificates };
    findings.extend(tls.names_too_long(&field));
    Some(tls)
}
