//! TLS beyond the listeners' own: what a Gateway asks of clients and shows to backends (`spec.tls`,
//! GEP-91 and GEP-3155), and BackendTLSPolicy (GEP-1897).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::key::{Kind, ObjectName};
use crate::meta::Meta;
use crate::protocol::{Port, Protocol};
use crate::reference::Reference;

/// `spec.tls` of a Gateway. It covers the listeners of its ListenerSets too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayTls {
    /// What is asked of clients where no port says otherwise.
    pub default: Option<ClientValidation>,
    /// What is asked of clients by port; `None` is nothing.
    pub per_port: BTreeMap<Port, Option<ClientValidation>>,
    /// `backend.clientCertificateRef`: the certificate shown to backends that ask for one.
    pub client_certificate: Option<Reference>,
    /// A field that this release does not know, and so what it covers: HTTPS and TLS listeners are
    /// refused rather than left open.
    pub unknown: Option<Finding>,
}

impl GatewayTls {
    /// What is asked of the clients of a listener: HTTPS only (GEP-91).
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

    /// Why listeners of this protocol are refused, if they are.
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

/// How clients are known: `validation` of a Gateway's `spec.tls.frontend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientValidation {
    /// Path in the Gateway.
    pub field: String,
    /// Whom a client's certificate has to come from.
    pub authorities: Vec<Reference>,
    /// What happens to clients without a valid certificate.
    pub mode: ValidationMode,
    /// Why it cannot be kept: the listeners that it covers are refused.
    pub refused: Option<Finding>,
}

/// `mode` of a client validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValidationMode {
    /// They are not let in.
    AllowValidOnly,
    /// They are let in all the same.
    AllowInsecureFallback,
}

/// BackendTLSPolicy: connections to its targets are TLS, or there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTlsPolicy {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.targetRefs`.
    pub targets: Vec<PolicyTarget>,
    /// `spec.validation.hostname`; `None` if it is not one (then a finding says so).
    pub hostname: Option<Hostname>,
    /// Whom the backend's certificate has to come from.
    pub authorities: Authorities,
    /// `spec.validation.subjectAltNames`; findings name those that are none.
    pub alt_names: Vec<SubjectAltName>,
    /// What is wrong with it. A refusal here means that its targets are not connected to at all.
    pub findings: Vec<Finding>,
}

impl BackendTlsPolicy {
    /// Which of two policies for one target holds: the older one, then by namespace and name.
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        (self.meta.created, &self.name).cmp(&(other.meta.created, &other.name))
    }
}

/// What a policy is about: an object of its own namespace, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyTarget {
    /// The object.
    pub reference: Reference,
    /// Its part: of a Service, the name of a port.
    pub section: Option<Arc<str>>,
}

impl PolicyTarget {
    /// The Service that it leads to; `None` for other kinds.
    #[must_use]
    pub fn service(&self) -> Option<&ObjectName> {
        let is_service = self.reference.is(Kind::Service);
        is_service.then_some(&self.reference.target)
    }
}

/// Whom a certificate has to come from.
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

/// ConfigMap, as far as it holds certificates of authorities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMap {
    /// Name.
    pub name: ObjectName,
    /// `data["ca.crt"]`, PEM.
    pub authorities: Option<Arc<[u8]>>,
}
