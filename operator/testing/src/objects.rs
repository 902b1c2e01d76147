//! A small world of objects for tests of translation: two Gateways, a handful of tenants that all use
//! the same names, and every way in which their objects depend on one another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use vestibule_model::certificate::{AddressBlock, CertificateAnnotations};
use vestibule_model::client_address::{ClientAddress, ProxyProtocol, ProxyProtocolMode};
use vestibule_model::condition::Reason;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{
    Gateway, GatewayClass, Listener, ListenerSet, ListenerTls, SharedKey, TlsMode,
};
use vestibule_model::hostname::HostPattern;
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::{
    EndpointPort, EndpointSlice, Namespace, Object, ReferenceGrant, Secret, Service, ServicePort,
};
use vestibule_model::parameters::{
    EscapedSlashes, GatewayParameters, HttpParameters, LimitParameters, ServiceParameters,
};
use vestibule_model::policy::Policy;
use vestibule_model::protocol::{Port, Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef, Reference};
use vestibule_model::route::{PortRoute, TlsRoute};
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_model::send_proxy::SendProxy;
use vestibule_model::service::ServiceType;
use vestibule_operator::translate::{
    Binds, CONTROLLER, Change, ClaimMode, ServiceSettings, Settings, Translator,
};

/// Direct binds on loopback.
pub fn settings() -> Settings {
    Settings {
        controller: CONTROLLER.into(),
        policy: Policy {
            endpoints: EndpointRules::with_loopback(),
            ..Policy::default()
        },
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Direct {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: BTreeMap::from([(443, 10443)]),
        },
    }
}

/// Allocated ports behind Services.
pub fn cluster_settings() -> Settings {
    Settings {
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Allocated {
            address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            services: ServiceSettings {
                release: "vestibule".into(),
                namespace: "vestibule-system".into(),
                cluster_domain: "cluster.local".into(),
                selector: BTreeMap::from([("app".into(), "proxy".into())]),
                components: BTreeSet::from(["proxies".into()]),
                defaults: ServiceParameters::default(),
            },
        },
        ..settings()
    }
}

/// A reference to GatewayParameters of the platform's.
pub fn parameters_at(name: &str) -> Reference {
    Reference {
        group: "vestibule.dev".into(),
        kind: "GatewayParameters".into(),
        target: ObjectName::new("platform", name),
        field: "spec.parametersRef".into(),
    }
}

/// GatewayParameters with this Service type and a limit that differs with it, good or malformed. Those for a `NodePort` are
/// behind a load balancer that speaks the PROXY protocol, and keep escaped slashes.
pub fn parameters_of(name: &str, service_type: ServiceType, good: bool) -> Object {
    let malformed = || Finding::refused(Reason::InvalidParameters, "spec", "is wrong", "");
    Object::GatewayParameters(Arc::new(GatewayParameters {
        name: ObjectName::new("platform", name),
        meta: meta(0),
        service: ServiceParameters {
            service_type: Some(service_type),
            ..ServiceParameters::default()
        },
        limits: LimitParameters {
            tunnel_idle: Some(Duration::from_secs(service_type as u64)),
            ..LimitParameters::default()
        },
        client_address: ClientAddress {
            proxy_protocol: (service_type == ServiceType::NodePort).then(|| ProxyProtocol {
                mode: ProxyProtocolMode::Strict,
                trusted: AddressBlock::parse("192.0.2.0/24").into_iter().collect(),
            }),
            forwarded: None,
        },
        http: HttpParameters {
            escaped_slashes: (service_type == ServiceType::NodePort)
                .then_some(EscapedSlashes::Keep),
            underscores: None,
        },
        certificate_namespaces: None,
        findings: if good { Vec::new() } else { vec![malformed()] },
    }))
}

/// A translator of these objects, from scratch and in this order.
pub fn translated(objects: impl IntoIterator<Item = Object>) -> Translator {
    let mut translator = Translator::new(settings());
    translator.apply(objects.into_iter().map(Change::Put));
    translator
}

pub(crate) fn meta(created: i64) -> Meta {
    Meta {
        created,
        ..Meta::default()
    }
}

/// A hostname pattern; an empty one is for all names.
pub fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).expect("a hostname pattern")
}

/// The GatewayClass of all Gateways, for this controller.
pub fn class(controller: &str) -> Object {
    Object::GatewayClass(GatewayClass {
        name: "vestibule".into(),
        meta: meta(0),
        controller: controller.into(),
        parameters: None,
        findings: Vec::new(),
    })
}

/// The GatewayClass of all Gateways, for our controller.
pub fn our_class() -> Object {
    class(CONTROLLER)
}

/// A Gateway of the platform's.
pub fn gateway(name: &str, listeners: Vec<Listener>, allowed: NamespaceScope) -> Object {
    Object::Gateway(Arc::new(Gateway {
        name: ObjectName::new("platform", name),
        meta: meta(1),
        class: "vestibule".into(),
        listeners,
        allowed_listeners: allowed,
        addresses: Vec::new(),
        infrastructure: Box::default(),
        tls: Box::default(),
        issuers: IssuerAnnotations::default(),
        certificates: CertificateAnnotations::default(),
        findings: Vec::new(),
    }))
}

/// What a listener does with TLS.
#[derive(Debug, Clone)]
pub enum Tls {
    /// It passes TLS on.
    Passthrough,
    /// With the Secret of this namespace and name.
    Terminate(String, String),
}

/// A listener, open to routes of its own namespace.
pub fn listener(
    name: &str,
    port: u16,
    protocol: Protocol,
    hostname: &str,
    tls: Option<Tls>,
) -> Listener {
    let field = format!("spec.listeners[{name}]");
    Listener {
        name: name.into(),
        hostname: pattern(hostname),
        port: Port::new(port),
        protocol,
        tls: tls.map(|tls| match tls {
            Tls::Passthrough => ListenerTls {
                mode: TlsMode::Passthrough,
                certificates: Vec::new(),
            },
            Tls::Terminate(namespace, secret) => ListenerTls {
                mode: TlsMode::Terminate,
                certificates: vec![Reference {
                    group: "".into(),
                    kind: "Secret".into(),
                    target: ObjectName::new(namespace, secret),
                    field: format!("{field}.tls.certificateRefs[0]"),
                }],
            },
        }),
        field,
        allowed_namespaces: NamespaceScope::Same,
        allowed_kinds: Vec::new(),
        findings: Vec::new(),
        shared_key: SharedKey::default(),
    }
}

/// A listener on port 443 that passes TLS on.
pub fn passthrough(name: &str, hostname: &str) -> Listener {
    listener(name, 443, Protocol::Tls, hostname, Some(Tls::Passthrough))
}

/// A ListenerSet on a Gateway of the platform's.
pub fn set(
    namespace: &str,
    name: &str,
    created: i64,
    gateway: &str,
    listeners: Vec<Listener>,
) -> Object {
    Object::ListenerSet(Arc::new(ListenerSet {
        name: ObjectName::new(namespace, name),
        meta: meta(created),
        gateway: Some(ObjectName::new("platform", gateway)),
        listeners,
        issuers: IssuerAnnotations::default(),
        certificates: CertificateAnnotations::default(),
        findings: Vec::new(),
    }))
}

/// A reference of a route to its parent.
pub fn parent(kind: &str, namespace: Option<&str>, name: &str, section: Option<&str>) -> ParentRef {
    ParentRef {
        group: None,
        kind: Some(kind.into()),
        namespace: namespace.map(Into::into),
        name: name.into(),
        section: section.map(Into::into),
        port: None,
        index: 0,
    }
}

/// A reference of a route to a port of a Service.
pub fn backend(namespace: &str, service: &str, port: u16, weight: u32) -> BackendRef {
    BackendRef {
        reference: Reference {
            group: "".into(),
            kind: "Service".into(),
            target: ObjectName::new(namespace, service),
            field: "spec.rules[0].backendRefs[0]".into(),
        },
        port: Port::new(port),
        weight,
    }
}

/// A TLSRoute.
pub fn route(
    namespace: &str,
    name: &str,
    created: i64,
    parents: Vec<ParentRef>,
    hostnames: &[&str],
    backends: Vec<BackendRef>,
) -> Object {
    Object::TlsRoute(TlsRoute {
        name: ObjectName::new(namespace, name),
        meta: meta(created),
        parents,
        hostnames: hostnames.iter().map(|h| pattern(h)).enumerate().collect(),
        backends,
        findings: Vec::new(),
    })
}

/// A TCPRoute or a UDPRoute.
pub fn port_route(
    transport: Transport,
    (namespace, name, created): (&str, &str, i64),
    parents: Vec<ParentRef>,
    backends: Vec<BackendRef>,
) -> Object {
    Object::PortRoute(PortRoute {
        transport,
        name: ObjectName::new(namespace, name),
        meta: meta(created),
        parents,
        backends,
        findings: Vec::new(),
    })
}

/// A Service with these ports.
pub fn service(namespace: &str, name: &str, ports: &[u16]) -> Object {
    Object::Service(Service {
        name: ObjectName::new(namespace, name),
        meta: meta(0),
        // Each number is a UDP port as well, which comes first.
        ports: ports
            .iter()
            .flat_map(|port| [("u", Transport::Udp, port), ("p", Transport::Tcp, port)])
            .map(|(prefix, transport, port)| ServicePort {
                name: format!("{prefix}{port}").into(),
                port: Port::new(*port).expect("a port"),
                transport: Some(transport),
                app_protocol: None,
                send_proxy: SendProxy::Off,
            })
            .collect(),
        external_name: false,
    })
}

/// An EndpointSlice of a port of a Service, with these last numbers of addresses of loopback.
pub fn slice(namespace: &str, service: &str, suffix: u8, port: u16, addresses: &[u8]) -> Object {
    Object::EndpointSlice(EndpointSlice {
        name: ObjectName::new(namespace, format!("{service}-{suffix}")),
        service: Some(service.into()),
        ports: [("u", Transport::Udp, 9000), ("p", Transport::Tcp, 8000)]
            .map(|(prefix, transport, above)| EndpointPort {
                name: format!("{prefix}{port}").into(),
                transport: Some(transport),
                number: Port::new(port + above).expect("a port"),
            })
            .into(),
        addresses: addresses
            .iter()
            .map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, *last)))
            .collect(),
        terminating: Vec::new(),
        idle: Vec::new(),
        findings: Vec::new(),
    })
}

/// A namespace.
pub fn namespace(name: &str, labels: &[(&str, &str)]) -> Object {
    Object::Namespace(Namespace {
        name: name.into(),
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    })
}

/// The namespaces with this label.
pub fn by_label(key: &str, value: &str) -> NamespaceScope {
    NamespaceScope::Selector(LabelSelector {
        requirements: vec![Requirement::In(key.into(), vec![value.into()])],
    })
}

/// A ReferenceGrant from a kind of the Gateway API in a namespace to a core kind.
pub fn grant(namespace: &str, name: &str, from: (&str, &str), to: &str) -> Object {
    Object::ReferenceGrant(ReferenceGrant {
        name: ObjectName::new(namespace, name),
        from: vec![(
            "gateway.networking.k8s.io".into(),
            from.0.into(),
            from.1.into(),
        )],
        to: vec![("".into(), to.into(), None)],
    })
}

/// Two self-signed certificates with their keys, in PEM; made once, since keys are slow.
pub(crate) static PAIRS: LazyLock<[(String, String); 2]> = LazyLock::new(|| {
    std::array::from_fn(|n| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec![format!("host{n}.example.com")])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    })
});

/// What a Secret may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Pair 0 or 1.
    Pair(usize),
    /// The certificate of one and the key of the other.
    Mismatch,
    /// A certificate without its key.
    NoKey,
    /// A certificate that is not PEM.
    NotPem,
    /// Pair 0, and behind its certificate a second one that cannot be read.
    BrokenChain,
    /// Pair 0, in a Secret of another type.
    WrongType,
}

/// A Secret of TLS.
pub fn secret(namespace: &str, name: &str, holds: Holds) -> Object {
    let (certificate, key) = match holds {
        Holds::Pair(n) => (PAIRS[n].0.clone(), Some(PAIRS[n].1.clone())),
        Holds::Mismatch => (PAIRS[0].0.clone(), Some(PAIRS[1].1.clone())),
        Holds::NoKey => (PAIRS[0].0.clone(), None),
        Holds::NotPem => ("no PEM".into(), Some(PAIRS[0].1.clone())),
        Holds::BrokenChain => {
            let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
            (format!("{}{broken}", PAIRS[0].0), Some(PAIRS[0].1.clone()))
        }
        Holds::WrongType => (PAIRS[0].0.clone(), Some(PAIRS[0].1.clone())),
    };
    Object::Secret(Secret {
        name: ObjectName::new(namespace, name),
        meta: meta(0),
        secret_type: if holds == Holds::WrongType {
            "Opaque".into()
        } else {
            "kubernetes.io/tls".into()
        },
        certificate: Some(Arc::from(certificate.into_bytes())),
        private_key: key.map(|key| Arc::new(key.into_bytes().into())),
        authorities: None,
        acme: false,
    })
}

/// The key of an object.
pub fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(kind, namespace, name)
}

/// The reasons of an object's findings.
pub fn reasons(translator: &Translator, key: &ObjectKey) -> Vec<&'static str> {
    translator
        .findings()
        .get(key)
        .into_iter()
        .flatten()
        .map(|finding: &Finding| finding.reason.as_str())
        .collect()
}

/// Certificates that are valid from the first of these years to the second, with their keys, in PEM.
static AGES: LazyLock<[(String, String); 2]> = LazyLock::new(|| {
    [(2000, 2020), (2030, 2040)].map(|(from, to)| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params =
            rcgen::CertificateParams::new(vec!["aged.example.com".into()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        (certificate, key.serialize_pem())
    })
});

/// A Secret with a certificate that was valid from 2000 to 2020, or will be from 2030 to 2040.
pub fn secret_of_age(namespace: &str, name: &str, future: bool) -> Object {
    let (certificate, key) = &AGES[usize::from(future)];
    let mut secret = secret(namespace, name, Holds::Pair(0));
    if let Object::Secret(secret) = &mut secret {
        secret.certificate = Some(Arc::from(certificate.clone().into_bytes()));
        secret.private_key = Some(Arc::new(key.clone().into_bytes().into()));
    }
    secret
}

/// The annotations by which the `ClusterACMEIssuer` "ca" is asked.
pub fn acme() -> IssuerAnnotations {
    IssuerAnnotations {
        acme_cluster_issuer: Some("ca".into()),
        ..IssuerAnnotations::default()
    }
}

/// The annotations by which cert-manager's Issuer "ca" is asked.
pub fn cert_manager() -> IssuerAnnotations {
    IssuerAnnotations {
        cert_manager_issuer: Some("ca".into()),
        ..IssuerAnnotations::default()
    }
}
