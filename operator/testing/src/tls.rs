//! What TLS towards clients and backends takes: ConfigMaps, `spec.tls` of Gateways, policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::hostname::Hostname;
use vestibule_model::key::ObjectName;
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;
use vestibule_model::reference::Reference;
use vestibule_model::tls_policy::{
    Authorities, BackendTlsPolicy, ClientValidation, ConfigMap, GatewayTls, PolicyTarget,
    SubjectAltName, ValidationMode,
};

use crate::objects::{PAIRS, meta};

/// What a ConfigMap may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trusts {
    /// The certificate of pair 0 or 1.
    Pair(usize),
    /// Both.
    Both,
    /// What looks like PEM and is none.
    NotPem,
    /// An empty entry.
    Nothing,
    /// Another entry than `ca.crt`.
    NoEntry,
}

/// A ConfigMap with authorities.
pub fn config_map(namespace: &str, name: &str, trusts: Trusts) -> Object {
    let pem = match trusts {
        Trusts::Pair(n) => Some(PAIRS[n].0.clone()),
        Trusts::Both => Some(format!("{}{}", PAIRS[0].0, PAIRS[1].0)),
        Trusts::NotPem => Some("-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----".into()),
        Trusts::Nothing => Some(String::new()),
        Trusts::NoEntry => None,
    };
    Object::ConfigMap(ConfigMap {
        name: ObjectName::new(namespace, name),
        created: 0,
        authorities: pem.map(|pem| Arc::from(pem.into_bytes())),
    })
}

/// A reference to a core object at this place.
pub fn core(kind: &str, namespace: &str, name: &str, field: &str) -> Reference {
    Reference {
        group: "".into(),
        kind: kind.into(),
        target: ObjectName::new(namespace, name),
        field: field.into(),
    }
}

/// The validation of clients by these authorities.
pub fn validation(authorities: Vec<Reference>, insecure: bool) -> ClientValidation {
    ClientValidation {
        field: "spec.tls.frontend.default.validation".into(),
        authorities,
        mode: if insecure {
            ValidationMode::AllowInsecureFallback
        } else {
            ValidationMode::AllowValidOnly
        },
        refused: None,
    }
}

/// What is asked by port.
pub type PerPort = BTreeMap<Port, Option<ClientValidation>>;

/// What is asked on port 8443.
pub fn on_8443(asked: Option<ClientValidation>) -> PerPort {
    BTreeMap::from([(Port::new(8443).expect("a port"), asked)])
}

/// The `spec.tls` of a Gateway.
pub fn gateway_tls(
    default: Option<ClientValidation>,
    per_port: PerPort,
    client_certificate: Option<Reference>,
) -> GatewayTls {
    GatewayTls {
        default,
        per_port,
        client_certificate,
        unknown: None,
    }
}

/// A Gateway with this `spec.tls`.
pub fn with_tls(gateway: Object, tls: GatewayTls) -> Object {
    match gateway {
        Object::Gateway(mut gateway) => {
            *Arc::make_mut(&mut gateway).tls = tls;
            Object::Gateway(gateway)
        }
        other => other,
    }
}

/// A policy for a Service, or a port of it, that trusts what this ConfigMap holds; `None`: the system.
pub fn policy(
    namespace: &str,
    name: &str,
    created: i64,
    (service, section): (&str, Option<&str>),
    trusts: Option<&str>,
) -> Object {
    let field = "spec.validation.caCertificateRefs[0]";
    let authorities = match trusts {
        Some(map) => Authorities::Bundles(vec![core("ConfigMap", namespace, map, field)]),
        None => Authorities::System,
    };
    Object::BackendTlsPolicy(BackendTlsPolicy {
        name: ObjectName::new(namespace, name),
        meta: meta(created),
        targets: vec![PolicyTarget {
            reference: core("Service", namespace, service, "spec.targetRefs[0]"),
            section: section.map(Into::into),
        }],
        hostname: Some(Hostname::parse("backend.example.com").expect("a hostname")),
        authorities,
        alt_names: vec![SubjectAltName::Uri("spiffe://cluster/backend".into())],
        findings: Vec::new(),
    })
}
