//! TLS settings outside of listeners: which certificates a Gateway asks of clients and shows to backends (`spec.tls`,
//! GEP-91 and GEP-3155), and how the proxies speak TLS with backends (BackendTLSPolicy, GEP-1897).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::key::{Kind, ObjectName};
use crate::meta::Meta;
use crate::protocol::{Port, Protocol};
use crate::reference::Reference;

/// `spec.tls` of a Gateway. It also applies to the listeners of its ListenerSets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayTls {
    /// How clients are validated on ports without an entry of their own.
    pub default: Option<ClientValidation>,
    /// How clients are validated, by port. `None` means that no certificate is asked for.
    pub per_port: BTreeMap<Port, Option<ClientValidation>>,
    /// `backend.clientCertificateRef`: the certificate that the proxies show to backends that ask for one.
    pub client_certificate: Option<Reference>,
    /// The finding about a field that this release does not know. The field may demand protection that this release
    /// does not give, so HTTPS and TLS listeners are refused.
    pub unknown: Option<Finding>,
}

impl GatewayTls {
    /// How the clients of a listener are validated. This applies to HTTPS only (GEP-91).
    #[must_use]
    pub fn validation(&self, protocol: &Protocol, port: Option<Port>) -> Option<&ClientValidation> {
        if *protocol != Protocol::Https {
            return None;
        }
        match port.and_then(|port| self.per_port.get(&port)) {
            Some(of_port) => of_port.as_ref(),
            None => self.default.as_ref(),
        }
    }

    /// Every validation, the default first.
    pub fn validations(&self) -> impl Iterator<Item = &ClientValidation> {
        let per_port = self.per_port.values().flatten();
        self.default.iter().chain(per_port)
    }

    /// Why listeners of this protocol are refused on every port, if they are.
    #[must_use]
    pub fn refusal(&self, protocol: &Protocol) -> Option<&Finding> {
        let covered = matches!(protocol, Protocol::Https | Protocol::Tls);
        self.unknown.as_ref().filter(|_| covered)
    }

    /// Why a listener of this protocol on this port is refused, if it is.
    #[must_use]
    pub fn guard(&self, protocol: &Protocol, port: Option<Port>) -> Option<&Finding> {
        let asked = self.validation(protocol, port);
        let refused = asked.and_then(|asked| asked.refused.as_ref());
        self.refusal(protocol).or(refused)
    }
}

/// How clients are validated: `validation` in `spec.tls.frontend` of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientValidation {
    /// Path in the Gateway.
    pub field: String,
    /// The CA certificates by which the certificate of a client is checked.
    pub authorities: Vec<Reference>,
    /// The treatment of clients without a valid certificate.
    pub mode: ValidationMode,
    /// Why it cannot be carried out, if so. Then the listeners to which it applies are refused.
    pub refused: Option<Finding>,
}

/// `mode` of a client validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValidationMode {
    /// Connections of clients without a valid certificate are refused.
    AllowValidOnly,
    /// Connections of clients without a valid certificate are accepted as well.
    AllowInsecureFallback,
}

/// BackendTLSPolicy. Connections to its targets use TLS, or they are not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTlsPolicy {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.targetRefs`.
    pub targets: Vec<PolicyTarget>,
    /// `spec.validation.hostname`; `None` if it is not valid (then a finding says so).
    pub hostname: Option<Hostname>,
    /// The CA certificates by which the certificate of the backend is checked.
    pub authorities: Authorities,
    /// The valid ones of `spec.validation.subjectAltNames`. Findings name the others.
    pub alt_names: Vec<SubjectAltName>,
    /// The findings about it. If one of them refuses, the proxies do not connect to its targets at all.
    pub findings: Vec<Finding>,
}

impl BackendTlsPolicy {
    /// Its place among the policies for one target, of which the first applies.
    #[must_use]
    pub fn precedence(&self) -> Precedence {
        Precedence {
            created: self.meta.created,
            name: self.name.clone(),
        }
    }

    /// The Services, and the ports of Services, that it targets.
    pub fn places(&self) -> impl Iterator<Item = PolicyPlace> {
        self.targets.iter().filter_map(PolicyTarget::place)
    }
}

/// The order of the policies for one target: the older one comes first or, of the same age, the lesser by namespace
/// and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    created: i64,
    name: ObjectName,
}

impl Precedence {
    /// The policy.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        &self.name
    }
}

/// A Service, or one port of it by name. The Service as a whole comes before its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPlace {
    /// The Service.
    pub service: ObjectName,
    /// The name of the port; `None`: the Service as a whole.
    pub section: Option<Arc<str>>,
}

/// The target of a policy: an object in its own namespace, or a part of that object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyTarget {
    /// The object.
    pub reference: Reference,
    /// `sectionName`. For a Service, it is the name of a port.
    pub section: Option<Arc<str>>,
}

impl PolicyTarget {
    /// The Service that it leads to; `None` for other kinds.
    #[must_use]
    pub fn service(&self) -> Option<&ObjectName> {
        let is_service = self.reference.is(Kind::Service);
        is_service.then_some(&self.reference.target)
    }

    /// The Service, or the port of a Service, that it leads to; `None` for other kinds.
    #[must_use]
    pub fn place(&self) -> Option<PolicyPlace> {
        self.service().map(|service| PolicyPlace {
            service: service.clone(),
            section: self.section.clone(),
        })
    }
}

/// The CA certificates by which a certificate is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorities {
    /// `caCertificateRefs`.
    Bundles(Vec<Reference>),
    /// `wellKnownCACertificates: System`.
    System,
}

/// A name that a certificate may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectAltName {
    /// A DNS name; a wildcard is the same wildcard in the certificate.
    Hostname(HostPattern),
    /// A URI, compared as text.
    Uri(Arc<str>),
}

/// ConfigMap, reduced to its CA certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMap {
    /// Name.
    pub name: ObjectName,
    /// Creation, in seconds since the Unix epoch.
    pub created: i64,
    /// `data["ca.crt"]`, PEM.
    pub authorities: Option<Arc<[u8]>>,
}
