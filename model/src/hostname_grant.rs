//! `HostnameGrant`, Vestibule's own kind: which namespaces may use which hostnames. [`crate::ownership`] has the
//! verdicts that follow from grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::certificate::{AddressBlock, GrantedMailbox};
use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::issuer::IssuerRef;
use crate::key::ObjectName;
use crate::meta::Meta;
use crate::path::PathPrefix;
use crate::protocol::{Port, Protocol};
use crate::selector::{LabelSelector, Labels, NamespaceScope};

/// `HostnameGrant`, Vestibule's own kind: which namespaces may use which hostnames on the Gateways beside
/// it, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostnameGrant {
    /// Name.
    pub name: ObjectName,
    /// Metadata. One that is being deleted gives nothing, and counts until it is gone.
    pub meta: Meta,
    /// `spec.gateways`: names of Gateways of its namespace; empty: every one.
    pub gateways: BTreeSet<Arc<str>>,
    /// `spec.namespaces`: to whom.
    pub namespaces: GrantedNamespaces,
    /// `spec.hostnames` that can be read: what. [`HostPattern::Any`] is "*". Empty: nothing.
    pub hostnames: Vec<HostPattern>,
    /// `spec.sharedHostnames`: what the namespaces share with whoever holds it.
    pub shared: BTreeSet<Hostname>,
    /// `spec.sharedPaths`: the same for parts of names. No name is without a path.
    pub shared_paths: BTreeMap<Hostname, BTreeSet<PathPrefix>>,
    /// `spec.ports`; empty: any.
    pub ports: BTreeSet<Port>,
    /// `spec.protocols`; empty: any.
    pub protocols: BTreeSet<Protocol>,
    /// `spec.issuers`; `None`: any.
    pub issuers: Option<Vec<GrantedIssuer>>,
    /// `spec.certificates`: what certificates may have beside the hostnames of listeners.
    pub certificates: Box<GrantedCertificates>,
    /// `spec.limits`.
    pub limits: GrantLimits,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// Namespaces that a grant is for: those named, and those selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantedNamespaces {
    /// By name.
    pub names: BTreeSet<Arc<str>>,
    /// By label.
    pub selector: Option<LabelSelector>,
}

/// An issuer that certificates may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedIssuer {
    /// API group.
    pub group: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name; `None`: any of the kind.
    pub name: Option<Arc<str>>,
}

/// What certificates may have beside the hostnames of their listeners; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantedCertificates {
    /// Hostnames that the grant covers and that the namespace holds.
    pub alternative_names: bool,
    /// IP addresses.
    pub addresses: Vec<AddressBlock>,
    /// Mailboxes.
    pub mailboxes: Vec<GrantedMailbox>,
}

/// How much one namespace may have on one Gateway; `None`: nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantLimits {
    /// Listeners of ListenerSets.
    pub listeners: Option<u32>,
    /// Hostnames with a certificate from an issuer.
    pub certificates: Option<u32>,
    /// Hostnames, wildcards counted once.
    pub hostnames: Option<u32>,
}

impl GrantLimits {
    /// What two grants come to: of each kind the largest limit that is stated.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        Self {
            listeners: self.listeners.max(other.listeners),
            certificates: self.certificates.max(other.certificates),
            hostnames: self.hostnames.max(other.hostnames),
        }
    }
}

impl HostnameGrant {
    /// What stands for a grant that cannot be read: it gives nothing, on every Gateway beside it.
    #[must_use]
    pub fn unreadable(name: ObjectName, meta: Meta, finding: Finding) -> Self {
        Self {
            name,
            meta,
            gateways: BTreeSet::new(),
            namespaces: GrantedNamespaces::default(),
            hostnames: Vec::new(),
            shared: BTreeSet::new(),
            shared_paths: BTreeMap::new(),
            ports: BTreeSet::new(),
            protocols: BTreeSet::new(),
            issuers: None,
            certificates: Box::default(),
            limits: GrantLimits::default(),
            findings: vec![finding],
        }
    }

    /// Whether it is about this Gateway of its namespace.
    #[must_use]
    pub fn is_for(&self, gateway: &str) -> bool {
        self.gateways.is_empty() || self.gateways.contains(gateway)
    }

    /// Whether it is for this namespace, whose labels are `labels`.
    #[must_use]
    pub fn selects(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        self.namespaces.names.contains(namespace)
            || self.namespaces.selector.as_ref().is_some_and(|selector| {
                NamespaceScope::Selector(selector.clone()).admits("", namespace, labels)
            })
    }

    /// Whether one of its hostnames covers all of `names`.
    #[must_use]
    pub fn covers(&self, names: &HostPattern) -> bool {
        self.hostnames.iter().any(|granted| granted.covers(names))
    }

    /// Whether it gives all of `names` on this port with this protocol.
    #[must_use]
    pub fn gives(&self, port: Port, protocol: &Protocol, names: &HostPattern) -> bool {
        self.covers(names) && self.opens(port) && self.speaks(protocol)
    }

    pub(crate) fn speaks(&self, protocol: &Protocol) -> bool {
        self.protocols.is_empty() || self.protocols.contains(protocol)
    }

    pub(crate) fn opens(&self, port: Port) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    pub(crate) fn allows(&self, issuer: &IssuerRef) -> bool {
        self.issuers.as_ref().is_none_or(|issuers| {
            issuers.iter().any(|granted| {
                granted.group == issuer.group
                    && granted.kind == issuer.kind
                    && granted
                        .name
                        .as_ref()
                        .is_none_or(|name| *name == issuer.name)
            })
        })
    }
}
