//! Resource keys and generations: how they are made, ordered and printed.

use std::fmt;

use crate::proto::{Generation, Reject, Resource, ResourceKey, ResourceKind, resource};

impl ResourceKind {
    /// The lower-case name of the kind, as in `kind/name`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Listener => "listener",
            Self::TlsRoute => "tlsroute",
            Self::Backend => "backend",
            Self::Certificate => "certificate",
            Self::HttpRoute => "httproute",
            Self::TcpRoute => "tcproute",
            Self::UdpRoute => "udproute",
            Self::TrustBundle => "trustbundle",
            Self::Challenge => "challenge",
            Self::HostnameOwner => "hostname-owner",
            Self::GrpcRoute => "grpcroute",
            Self::Tenant => "tenant",
            Self::GatewaySettings => "gateway-settings",
        }
    }
}

impl ResourceKey {
    /// The key of a resource of `kind` called `name`.
    #[must_use]
    pub fn new(kind: ResourceKind, name: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
        }
    }
}

/// Prints `kind/name`. A kind of a newer release is printed as its number.
impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ResourceKind::try_from(self.kind) {
            Ok(kind) => write!(f, "{}/{}", kind.label(), self.name),
            Err(_) => write!(f, "kind-{}/{}", self.kind, self.name),
        }
    }
}

impl resource::Resource {
    /// The kind of this resource.
    #[must_use]
    pub fn kind(&self) -> ResourceKind {
        match self {
            Self::Listener(_) => ResourceKind::Listener,
            Self::TlsRoute(_) => ResourceKind::TlsRoute,
            Self::Backend(_) => ResourceKind::Backend,
            Self::Certificate(_) => ResourceKind::Certificate,
            Self::HttpRoute(_) => ResourceKind::HttpRoute,
            Self::TcpRoute(_) => ResourceKind::TcpRoute,
            Self::UdpRoute(_) => ResourceKind::UdpRoute,
            Self::TrustBundle(_) => ResourceKind::TrustBundle,
            Self::Challenge(_) => ResourceKind::Challenge,
            Self::HostnameOwner(_) => ResourceKind::HostnameOwner,
            Self::GrpcRoute(_) => ResourceKind::GrpcRoute,
            Self::Tenant(_) => ResourceKind::Tenant,
            Self::GatewaySettings(_) => ResourceKind::GatewaySettings,
        }
    }
}

impl Resource {
    /// A resource called `name`.
    #[must_use]
    pub fn new(name: impl Into<String>, resource: resource::Resource) -> Self {
        Self {
            name: name.into(),
            resource: Some(resource),
        }
    }

    /// The key of this resource, or `None` if it carries nothing that this release knows.
    #[must_use]
    pub fn key(&self) -> Option<ResourceKey> {
        self.resource
            .as_ref()
            .map(|resource| ResourceKey::new(resource.kind(), self.name.clone()))
    }
}

impl Generation {
    /// The `counter`th generation of `term`.
    #[must_use]
    pub fn new(term: u64, counter: u64) -> Self {
        Self { term, counter }
    }
}

/// Prints `term.counter`.
impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.counter)
    }
}

impl Reject {
    /// A reject of `key`. `reason` is a CamelCase word from a bounded set, and `message` is for
    /// people.
    #[must_use]
    pub fn new(key: ResourceKey, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: Some(key),
            reason: reason.into(),
            message: message.into(),
        }
    }
}
