//! Gateway on the wire (`gateway_types.go`) and its conversion.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectName;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::{gateway, reference};

use super::gateway_tls::{self, GatewayTls};
use super::listener::{self, Listener};
use super::reference::LocalParametersReference;
use super::selector::scope;
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{certificate, meta};

/// Spec of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "Gateway",
    plural = "gateways",
    namespaced,
    status = "serde_json::Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "Gateway."
)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Name of the GatewayClass.
    pub gateway_class_name: String,
    /// Listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<Listener>,
    /// Requested addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<GatewayAddress>,
    /// What the objects made for the Gateway carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure: Option<GatewayInfrastructure>,
    /// Which ListenerSets may extend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS settings for the whole Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// Experimental: All or None, whether routes without a parent attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_scope: Option<String>,
}

/// GatewaySpecAddress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayAddress {
    /// IPAddress (the default), Hostname, or a word of some implementation.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub address_type: Option<String>,
    /// The address; absent means any of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Experimental (GEP-5093).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routability: Option<String>,
}

/// GatewayInfrastructure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayInfrastructure {
    /// Labels of the objects made for the Gateway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the objects made for the Gateway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Parameters of the implementation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<LocalParametersReference>,
}

/// AllowedListeners.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllowedListeners {
    /// Namespaces ListenerSets may come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<GatewayListenerNamespaces>,
}

/// ListenerNamespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayListenerNamespaces {
    /// None (the default), Same, Selector or All.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// For Selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

pub(crate) fn convert(wire: Gateway, unknown: &UnknownFields) -> gateway::Gateway {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec;
    let (listeners, mut findings) = listener::convert_all(spec.listeners, &name.namespace, unknown);
    findings.extend(unknown.warnings_outside(&[&["spec", "listeners"]]));
    let tls = gateway_tls::convert(spec.tls, &name.namespace, unknown, &mut findings);
    if spec.default_scope.is_some_and(|scope| scope != "None") {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            "spec.defaultScope",
            "default Gateways are not supported, so it has no effect",
            "name this Gateway in each route's parentRefs",
        ));
    }
    let addresses = addresses(spec.addresses, &mut findings);
    let infrastructure = infrastructure(spec.infrastructure.unwrap_or_default(), &name);
    let allowed = spec
        .allowed_listeners
        .and_then(|a| a.namespaces)
        .unwrap_or_default();
    let (mut allowed_listeners, warnings) = scope(
        allowed.from,
        allowed.selector,
        NamespaceScope::None,
        "spec.allowedListeners.namespaces",
    );
    findings.extend(warnings);
    if unknown.any_below(&["spec", "allowedListeners"]) {
        // The field may restrict which namespaces are allowed, so none is.
        allowed_listeners = NamespaceScope::Unknown("a field this release does not know".into());
    }
    gateway::Gateway {
        meta: meta::convert(&wire.metadata),
        class: spec.gateway_class_name.into(),
        listeners,
        allowed_listeners,
        addresses,
        infrastructure: Box::new(infrastructure),
        tls: Box::new(tls),
        issuers: meta::issuers(&wire.metadata),
        certificates: certificate::annotations(&wire.metadata),
        findings,
        name,
    }
}

/// The addresses that can be requested. There is a finding for each of the others.
fn addresses(
    wire: Vec<GatewayAddress>,
    findings: &mut Vec<Finding>,
) -> Vec<gateway::AddressRequest> {
    let mut requests = Vec::new();
    for (index, wire) in wire.into_iter().enumerate() {
        let field = format!("spec.addresses[{index}]");
        let kind = wire.address_type.as_deref().unwrap_or("IPAddress");
        if kind != "IPAddress" {
            findings.push(Finding::refused(
                Reason::UnsupportedAddress,
                format!("{field}.type"),
                format!("{} cannot be asked for", quote(kind)),
                "use IPAddress, or remove the address",
            ));
            continue;
        }
        if let Some(routability) = wire.routability {
            // A load balancer does not say in advance what it will assign, so no routability is promised (GEP-5093).
            findings.push(Finding::refused(
                Reason::AddressNotAssigned,
                format!("{field}.routability"),
                format!("{} cannot be assured by this release", quote(&routability)),
                "remove it",
            ));
            continue;
        }
        let value = wire.value.filter(|value| !value.is_empty());
        match value.as_deref().map(str::parse).transpose() {
            Ok(ip) => requests.push(gateway::AddressRequest { field, ip }),
            Err(_) => findings.push(Finding::refused(
                Reason::AddressNotUsable,
                format!("{field}.value"),
                format!(
                    "{} is not an IP address",
                    quote(value.as_deref().unwrap_or_default())
                ),
                "write an IPv4 or IPv6 address",
            )),
        }
    }
    requests
}

fn infrastructure(wire: GatewayInfrastructure, name: &ObjectName) -> gateway::Infrastructure {
    gateway::Infrastructure {
        labels: wire.labels,
        annotations: wire.annotations,
        parameters: wire.parameters_ref.map(|wire| reference::Reference {
            group: wire.group.into(),
            kind: wire.kind.into(),
            target: ObjectName::new(name.namespace.clone(), wire.name),
            field: "spec.infrastructure.parametersRef".into(),
        }),
    }
}
