//! `HostnameGrant`, a kind of Vestibule: which namespaces may use which hostnames. The module [`crate::ownership`]
//! derives verdicts from grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::certificate::{AddressBlock, GrantedMailbox};
use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::issuer::IssuerRef;
use crate::key::ObjectName;
use crate::meta::Meta;
use crate::path::PathPrefix;
use crate::protocol::{Group, Port, Protocol};
use crate::selector::{LabelSelector, Labels};

/// Most shares of the guaranteed connections for which a namespace can count.
pub const MAX_CONNECTION_SHARES: u32 = 100;

/// `HostnameGrant`, a kind of Vestibule: which namespaces may use which hostnames on Gateways in its own namespace, and
/// how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostnameGrant {
    /// Name.
    pub name: ObjectName,
    /// Metadata. A grant that is being deleted gives nothing, and still counts as a grant until it is gone.
    pub meta: Meta,
    /// `spec.gateways`: names of Gateways in its namespace. If empty, the grant is about all of them.
    pub gateways: BTreeSet<Arc<str>>,
    /// `spec.namespaces`: who gets what it gives.
    pub namespaces: GrantedNamespaces,
    /// Those of `spec.hostnames` that can be read. "*" is [`HostPattern::Any`]. If empty, the grant gives no hostname.
    pub hostnames: Vec<HostPattern>,
    /// `spec.sharedHostnames`: hostnames that the namespaces share with their holders.
    pub shared: BTreeSet<Hostname>,
    /// `spec.sharedPaths`: paths of hostnames that the namespaces share with their holders. Every name here has a path.
    pub shared_paths: BTreeMap<Hostname, BTreeSet<PathPrefix>>,
    /// `spec.ports`. If empty, every port is granted.
    pub ports: BTreeSet<Port>,
    /// `spec.protocols`. If empty, every protocol is granted.
    pub protocols: BTreeSet<Protocol>,
    /// `spec.issuers`. If `None`, every issuer is granted.
    pub issuers: Option<Vec<GrantedIssuer>>,
    /// `spec.certificates`: which names certificates may have in addition to the hostnames of listeners.
    pub certificates: Box<GrantedCertificates>,
    /// `spec.limits`.
    pub limits: GrantLimits,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

/// The namespaces that a grant is for: those that it names, and those that its selector selects.
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
    /// Name; `None` for all issuers of the kind.
    pub name: Option<Arc<str>>,
}

/// The names that certificates may have in addition to the hostnames of their listeners. By default there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantedCertificates {
    /// Whether they may have hostnames that the grant covers and that the namespace holds.
    pub alternative_names: bool,
    /// IP addresses.
    pub addresses: Vec<AddressBlock>,
    /// Mailboxes.
    pub mailboxes: Vec<GrantedMailbox>,
}

/// How many of each thing one namespace may have on one Gateway. `None` states no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantLimits {
    /// Listeners of ListenerSets.
    pub listeners: Option<u32>,
    /// Hostnames with a certificate from an issuer.
    pub certificates: Option<u32>,
    /// Hostnames, wildcards counted once.
    pub hostnames: Option<u32>,
    /// Ports that listeners of ListenerSets use and the Gateway does not have itself.
    pub ports: Option<u32>,
    /// Connections, on all Gateways together.
    pub connections: ConnectionLimits,
}

/// How a namespace shares the connections of each proxy with others. Proxies serve all Gateways, so this is the same on
/// each of them. `None` states nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Equal shares of the guaranteed part for which the namespace counts, from 1 to [`MAX_CONNECTION_SHARES`]. If nothing
    /// is stated, it counts for one.
    pub shares: Option<u32>,
    /// Connections of clients at one time, borrowed ones included.
    pub most: Option<u32>,
}

impl GrantLimits {
    /// The limits of two grants together: of each kind, the larger limit that is stated.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        Self {
            listeners: self.listeners.max(other.listeners),
            certificates: self.certificates.max(other.certificates),
            hostnames: self.hostnames.max(other.hostnames),
            ports: self.ports.max(other.ports),
            connections: self.connections.or_larger(other.connections),
        }
    }
}

impl ConnectionLimits {
    /// Whether nothing is stated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The limits of two grants together: of each kind, the larger one that is stated.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        Self {
            shares: self.shares.max(other.shares),
            most: self.most.max(other.most),
        }
    }
}

impl HostnameGrant {
    /// The substitute for a grant that cannot be read. It counts for every Gateway of its namespace, and gives nothing.
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

    /// Whether the grant is about this Gateway of its namespace.
    #[must_use]
    pub fn is_for(&self, gateway: &str) -> bool {
        self.gateways.is_empty() || self.gateways.contains(gateway)
    }

    /// Whether the grant is for this namespace, whose labels are `labels`.
    #[must_use]
    pub fn selects(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        self.namespaces.names.contains(namespace)
            || (self.namespaces.selector.as_ref())
                .is_some_and(|selector| selector.selects(namespace, labels))
    }

    /// Whether one of its hostnames covers all of `names`.
    #[must_use]
    pub fn covers(&self, names: &HostPattern) -> bool {
        self.hostnames.iter().any(|granted| granted.covers(names))
    }

    /// Whether it gives hostnames at all. A grant for TCP and UDP alone does not: these carry no names, and its pattern
    /// is `*`.
    #[must_use]
    pub fn gives_names(&self) -> bool {
        let has_names = |protocol: &Protocol| protocol.group() != Group::Raw;
        self.protocols.is_empty() || self.protocols.iter().any(has_names)
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
