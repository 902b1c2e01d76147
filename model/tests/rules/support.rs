//! Builders of objects with everything defaulted that a case does not speak of.

use std::sync::Arc;

use vestibule_model::certificate::CertificateAnnotations;
use vestibule_model::gateway::{
    Gateway, GatewayClass, Listener, ListenerSet, ListenerTls, SharedKey, TlsMode,
};
use vestibule_model::hostname::HostPattern;
use vestibule_model::http::{HttpMatch, HttpRoute, HttpRule, HttpTimeouts};
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{GATEWAY_GROUP, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::reference::ParentRef;
use vestibule_model::route::TlsRoute;
use vestibule_model::selector::NamespaceScope;

pub(crate) const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// `namespace/name`.
pub(crate) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

/// An HTTPRoute or GRPCRoute with a rule for each list of matches.
pub(crate) fn http_route(at: &ObjectKey, rules: Vec<Vec<HttpMatch>>) -> HttpRoute {
    let rule = |(index, matches)| HttpRule {
        name: None,
        field: format!("spec.rules[{index}]"),
        matches,
        filters: Vec::new(),
        backends: Vec::new(),
        timeouts: HttpTimeouts::default(),
        retry: None,
        session: None,
        findings: Vec::new(),
    };
    HttpRoute {
        kind: at.kind,
        name: at.name.clone(),
        meta: Meta::default(),
        parents: Vec::new(),
        hostnames: Vec::new(),
        rules: rules.into_iter().enumerate().map(rule).collect(),
        findings: Vec::new(),
    }
}

pub(crate) fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).unwrap()
}

pub(crate) fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

/// Listener `index` of an object, such as `listener(0, "a", 443, "TLS", "x.example")`.
pub(crate) fn listener(
    index: usize,
    name: &str,
    number: u16,
    protocol: &str,
    hostname: &str,
) -> Listener {
    let protocol = Protocol::from_text(protocol);
    Listener {
        name: name.into(),
        field: format!("spec.listeners[{index}]"),
        hostname: pattern(hostname),
        port: Some(port(number)),
        tls: (protocol == Protocol::Tls).then(|| ListenerTls {
            mode: TlsMode::Passthrough,
            certificates: Vec::new(),
        }),
        protocol,
        allowed_namespaces: NamespaceScope::Same,
        allowed_kinds: Vec::new(),
        findings: Vec::new(),
        shared_key: SharedKey::default(),
    }
}

/// A Gateway of class `vestibule` that lets ListenerSets of every namespace in.
pub(crate) fn gateway(at: &str, listeners: Vec<Listener>) -> Gateway {
    Gateway {
        name: name(at),
        meta: Meta::default(),
        class: "vestibule".into(),
        listeners,
        allowed_listeners: NamespaceScope::All,
        addresses: Vec::new(),
        infrastructure: Box::default(),
        tls: Box::default(),
        issuers: IssuerAnnotations::default(),
        certificates: CertificateAnnotations::default(),
        findings: Vec::new(),
    }
}

pub(crate) fn set(at: &str, parent: &str, created: i64, listeners: Vec<Listener>) -> ListenerSet {
    ListenerSet {
        name: name(at),
        meta: Meta {
            created,
            ..Meta::default()
        },
        gateway: Some(name(parent)),
        listeners,
        issuers: IssuerAnnotations::default(),
        certificates: CertificateAnnotations::default(),
        findings: Vec::new(),
    }
}

pub(crate) fn class(at: &Arc<str>) -> GatewayClass {
    GatewayClass {
        name: at.clone(),
        meta: Meta::default(),
        controller: CONTROLLER.into(),
        parameters: None,
        findings: Vec::new(),
    }
}

pub(crate) fn route(at: &str, hostnames: &[&str]) -> TlsRoute {
    TlsRoute {
        name: name(at),
        meta: Meta::default(),
        parents: Vec::new(),
        hostnames: hostnames.iter().map(|h| pattern(h)).enumerate().collect(),
        backends: Vec::new(),
        findings: Vec::new(),
    }
}

/// A reference to `kind` `name`, both as given, by section and port if given.
pub(crate) fn parent_ref(name: &str, section: Option<&str>, number: Option<u16>) -> ParentRef {
    ParentRef {
        group: Some(GATEWAY_GROUP.into()),
        kind: None,
        namespace: None,
        name: name.into(),
        section: section.map(Into::into),
        port: number.map(port),
        index: 0,
    }
}
