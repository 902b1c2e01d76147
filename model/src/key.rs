//! Keys: what identifies an object, a listener or a port inside Vestibule.
//!
//! Names of listeners are unique only within one object, and names of objects only within a namespace and kind. Two
//! tenants will use the same names, so every key carries all of these parts.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::protocol::{Port, Transport};

/// The kinds of objects that Vestibule reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `gateway.networking.k8s.io` GatewayClass, cluster-scoped.
    GatewayClass,
    /// `gateway.networking.k8s.io` Gateway.
    Gateway,
    /// `gateway.networking.k8s.io` ListenerSet.
    ListenerSet,
    /// `gateway.networking.k8s.io` TLSRoute.
    TlsRoute,
    /// `gateway.networking.k8s.io` HTTPRoute.
    HttpRoute,
    /// `gateway.networking.k8s.io` GRPCRoute.
    GrpcRoute,
    /// `gateway.networking.k8s.io` TCPRoute.
    TcpRoute,
    /// `gateway.networking.k8s.io` UDPRoute.
    UdpRoute,
    /// `gateway.networking.k8s.io` ReferenceGrant.
    ReferenceGrant,
    /// `vestibule.dev` `GatewayParameters`.
    GatewayParameters,
    /// Core Namespace, cluster-scoped.
    Namespace,
    /// Core Service.
    Service,
    /// `discovery.k8s.io` EndpointSlice.
    EndpointSlice,
    /// Core Secret.
    Secret,
    /// `gateway.networking.k8s.io` BackendTLSPolicy.
    BackendTlsPolicy,
    /// Core ConfigMap.
    ConfigMap,
    /// `vestibule.dev` `ACMEIssuer`.
    AcmeIssuer,
    /// `vestibule.dev` `ClusterACMEIssuer`, cluster-scoped.
    ClusterAcmeIssuer,
    /// `vestibule.dev` `HostnameGrant`.
    HostnameGrant,
    /// `vestibule.dev` `HostnameClaim`.
    HostnameClaim,
}

/// The API group of Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// The API group of Vestibule's own kinds.
pub const VESTIBULE_GROUP: &str = "vestibule.dev";

impl Kind {
    /// Every kind, in the order above.
    pub const ALL: [Self; 20] = [
        Self::GatewayClass,
        Self::Gateway,
        Self::ListenerSet,
        Self::TlsRoute,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::TcpRoute,
        Self::UdpRoute,
        Self::ReferenceGrant,
        Self::GatewayParameters,
        Self::Namespace,
        Self::Service,
        Self::EndpointSlice,
        Self::Secret,
        Self::BackendTlsPolicy,
        Self::ConfigMap,
        Self::AcmeIssuer,
        Self::ClusterAcmeIssuer,
        Self::HostnameGrant,
        Self::HostnameClaim,
    ];

    /// The kind as the API writes it, such as `TLSRoute`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GatewayClass => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::ListenerSet => "ListenerSet",
            Self::TlsRoute => "TLSRoute",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TcpRoute => "TCPRoute",
            Self::UdpRoute => "UDPRoute",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::GatewayParameters => "GatewayParameters",
            Self::Namespace => "Namespace",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Secret => "Secret",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
            Self::ConfigMap => "ConfigMap",
            Self::AcmeIssuer => "ACMEIssuer",
            Self::ClusterAcmeIssuer => "ClusterACMEIssuer",
            Self::HostnameClaim => "HostnameClaim",
            Self::HostnameGrant => "HostnameGrant",
        }
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::GatewayClass
            | Self::Gateway
            | Self::ListenerSet
            | Self::TlsRoute
            | Self::HttpRoute
            | Self::GrpcRoute
            | Self::TcpRoute
            | Self::UdpRoute
            | Self::ReferenceGrant
            | Self::BackendTlsPolicy => GATEWAY_GROUP,
            Self::GatewayParameters
            | Self::AcmeIssuer
            | Self::ClusterAcmeIssuer
            | Self::HostnameGrant
            | Self::HostnameClaim => VESTIBULE_GROUP,
            Self::EndpointSlice => "discovery.k8s.io",
            Self::Namespace | Self::Service | Self::Secret | Self::ConfigMap => "",
        }
    }

    /// Whether it is a kind of route.
    #[must_use]
    pub fn is_route(self) -> bool {
        self == Self::TlsRoute || self.routes_ports() || self.routes_requests()
    }

    /// Whether it is a kind of route that is selected for each request, and not for each connection.
    #[must_use]
    pub fn routes_requests(self) -> bool {
        matches!(self, Self::HttpRoute | Self::GrpcRoute)
    }

    /// Whether it is a kind of route that takes everything that arrives at a port, whatever the content.
    #[must_use]
    pub fn routes_ports(self) -> bool {
        matches!(self, Self::TcpRoute | Self::UdpRoute)
    }

    /// The kind of route that takes everything that arrives at a port of this transport.
    #[must_use]
    pub fn of_port_route(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::TcpRoute,
            Transport::Udp => Self::UdpRoute,
        }
    }

    /// The transport of what a kind of route carries, which is also that of its backends' ports.
    #[must_use]
    pub fn transport(self) -> Transport {
        match self {
            Self::UdpRoute => Transport::Udp,
            _ => Transport::Tcp,
        }
    }

    /// Whether objects of the kind live in a namespace.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::GatewayClass | Self::Namespace | Self::ClusterAcmeIssuer
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Namespace and name, behind one pointer: it is a key of many maps, and every object is in many of them. The namespace
/// is empty for cluster-scoped objects.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectName(Arc<NamespaceAndName>);

/// The two texts of an [`ObjectName`]. Its clones share them.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceAndName {
    /// Namespace, or empty.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// A namespaced name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self(Arc::new(NamespaceAndName {
            namespace: namespace.into(),
            name: name.into(),
        }))
    }
}

impl Deref for ObjectName {
    type Target = NamespaceAndName;

    fn deref(&self) -> &NamespaceAndName {
        &self.0
    }
}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> Ordering {
        cmp_shared(&self.0, &other.0)
    }
}

/// Compares what two pointers point to, and does not look there if it is the same place.
fn cmp_shared<T: Ord>(one: &Arc<T>, other: &Arc<T>) -> Ordering {
    if Arc::ptr_eq(one, other) {
        Ordering::Equal
    } else {
        one.cmp(other)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Kind, namespace and name of an object.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The kind of the object.
    pub kind: Kind,
    /// Which one.
    pub name: ObjectName,
}

impl ObjectKey {
    /// The key of an object; the namespace is empty for cluster-scoped kinds.
    pub fn new(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            name: ObjectName::new(namespace, name),
        }
    }

    /// The key of a Secret.
    #[must_use]
    pub fn secret(name: ObjectName) -> Self {
        Self {
            kind: Kind::Secret,
            name,
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// The object that declares listeners: a Gateway, or a ListenerSet.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParentKey {
    /// A Gateway.
    Gateway(ObjectName),
    /// A ListenerSet.
    ListenerSet(ObjectName),
}

impl ParentKey {
    /// Namespace and name.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Gateway(name) | Self::ListenerSet(name) => name,
        }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Gateway(_) => Kind::Gateway,
            Self::ListenerSet(_) => Kind::ListenerSet,
        }
    }

    /// As an object key.
    #[must_use]
    pub fn object(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind(),
            name: self.name().clone(),
        }
    }
}

impl fmt::Display for ParentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind(), self.name())
    }
}

impl fmt::Debug for ParentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A listener: its object and its name there, behind one pointer. It prints as `<Kind>/<namespace>/<object>/<listener>`,
/// which is also its name on the configuration stream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ListenerKey(Arc<ParentAndListener>);

/// The parts of a [`ListenerKey`]. Its clones share them.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentAndListener {
    /// The object that declares it.
    pub parent: ParentKey,
    /// Its name in that object.
    pub listener: Arc<str>,
}

impl ListenerKey {
    /// The listener of this name in an object.
    pub fn new(parent: ParentKey, listener: impl Into<Arc<str>>) -> Self {
        let listener = listener.into();
        Self(Arc::new(ParentAndListener { parent, listener }))
    }
}

impl Deref for ListenerKey {
    type Target = ParentAndListener;

    fn deref(&self) -> &ParentAndListener {
        &self.0
    }
}

impl PartialOrd for ListenerKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ListenerKey {
    fn cmp(&self, other: &Self) -> Ordering {
        cmp_shared(&self.0, &other.0)
    }
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.parent, self.listener)
    }
}

impl fmt::Debug for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A port of one Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    /// The Gateway.
    pub gateway: ObjectName,
    /// The listeners' port.
    pub port: Port,
    /// TCP or UDP.
    pub transport: Transport,
}

impl PortKey {
    /// The least key of a Gateway.
    #[must_use]
    pub fn first_of(gateway: &ObjectName) -> Self {
        Self {
            gateway: gateway.clone(),
            port: Port::MIN,
            transport: Transport::Tcp,
        }
    }
}
