//! TLSRoute, TCPRoute and UDPRoute, and what routes of all kinds have in common.

use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::http::{HttpRoute, HttpRule};
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::meta::Meta;
use crate::protocol::Transport;
use crate::reference::{BackendRef, ParentRef};

/// TLSRoute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsRoute {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.parentRefs`.
    pub parents: Vec<ParentRef>,
    /// The valid ones of `spec.hostnames`, with their index in the spec. Findings name the others.
    pub hostnames: Vec<(usize, HostPattern)>,
    /// `spec.rules[].backendRefs` of all rules (v1 has exactly one rule).
    pub backends: Vec<BackendRef>,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

/// TCPRoute or UDPRoute. It takes everything that arrives at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRoute {
    /// Which of the two.
    pub transport: Transport,
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.parentRefs`.
    pub parents: Vec<ParentRef>,
    /// `spec.rules[].backendRefs` of all rules (v1 has exactly one rule).
    pub backends: Vec<BackendRef>,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

/// A route of any kind.
#[derive(Debug, Clone, Copy)]
pub enum Route<'a> {
    /// TLSRoute
    Tls(&'a TlsRoute),
    /// HTTPRoute or GRPCRoute
    Http(&'a HttpRoute),
    /// TCPRoute or UDPRoute
    Port(&'a PortRoute),
}

/// The hostnames of a route whose kind has none: it takes everything that arrives at its listeners.
static EVERYTHING: [(usize, HostPattern); 1] = [(0, HostPattern::Any)];

impl<'a> Route<'a> {
    /// The kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Tls(_) => Kind::TlsRoute,
            Self::Http(route) => route.kind,
            Self::Port(route) => Kind::of_port_route(route.transport),
        }
    }

    /// Namespace and name.
    #[must_use]
    pub fn name(self) -> &'a ObjectName {
        match self {
            Self::Tls(route) => &route.name,
            Self::Http(route) => &route.name,
            Self::Port(route) => &route.name,
        }
    }

    /// As an object key.
    #[must_use]
    pub fn key(self) -> ObjectKey {
        ObjectKey {
            kind: self.kind(),
            name: self.name().clone(),
        }
    }

    /// Metadata.
    #[must_use]
    pub fn meta(self) -> &'a Meta {
        match self {
            Self::Tls(route) => &route.meta,
            Self::Http(route) => &route.meta,
            Self::Port(route) => &route.meta,
        }
    }

    /// `spec.parentRefs`.
    #[must_use]
    pub fn parents(self) -> &'a [ParentRef] {
        match self {
            Self::Tls(route) => &route.parents,
            Self::Http(route) => &route.parents,
            Self::Port(route) => &route.parents,
        }
    }

    /// Whether connections or requests for different names can have different routes. If not, a route takes everything
    /// that arrives at its listener.
    #[must_use]
    pub fn has_names(self) -> bool {
        !self.kind().routes_ports()
    }

    /// Hostnames, with their index in the spec.
    #[must_use]
    pub fn hostnames(self) -> &'a [(usize, HostPattern)] {
        match self {
            Self::Tls(route) => &route.hostnames,
            Self::Http(route) => &route.hostnames,
            Self::Port(_) => &EVERYTHING,
        }
    }

    /// The path of the field that has a hostname. If no field has it, this is the path of the whole list.
    #[must_use]
    pub fn hostname_field(self, hostname: &HostPattern) -> String {
        let mut hostnames = self.hostnames().iter();
        let found = hostnames.find(|(_, written)| written == hostname);
        field_of_hostname(found.map(|(index, _)| *index), hostname)
    }

    /// The backends of all rules.
    pub fn backends(self) -> impl Iterator<Item = &'a BackendRef> {
        let (own, http) = match self {
            Self::Tls(route) => (route.backends.as_slice(), [].as_slice()),
            Self::Port(route) => (route.backends.as_slice(), [].as_slice()),
            Self::Http(route) => ([].as_slice(), route.rules.as_slice()),
        };
        let http = http.iter().flat_map(|rule| &rule.backends);
        own.iter().chain(http.map(|backend| &backend.backend))
    }

    /// The backends of all rules, and those that their filters name.
    pub fn all_backends(self) -> impl Iterator<Item = &'a BackendRef> {
        let rules = match self {
            Self::Tls(_) | Self::Port(_) => [].as_slice(),
            Self::Http(route) => route.rules.as_slice(),
        };
        self.backends()
            .chain(rules.iter().flat_map(HttpRule::backends_of_filters))
    }
}

/// The path of a route's hostname with this index in the spec. Without an index, this is the path of the whole list.
#[must_use]
pub fn field_of_hostname(index: Option<usize>, hostname: &HostPattern) -> String {
    match index {
        Some(index) if *hostname != HostPattern::Any => format!("spec.hostnames[{index}]"),
        _ => "spec.hostnames".to_owned(),
    }
}
