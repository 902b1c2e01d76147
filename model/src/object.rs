//! The objects Vestibule reads, parsed: what is wrong with a part stays with that part as findings,
//! so that one bad listener or hostname never hides its siblings.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::certificate::CertificateAnnotations;
use crate::challenge::ChallengeType;
use crate::claim::HostnameClaim;
use crate::client_address::ClientAddress;
use crate::conflict::Transport;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::http::{HttpRoute, HttpRule};
use crate::issuer::IssuerAnnotations;
use crate::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use crate::ownership::HostnameGrant;
use crate::selector::{Labels, NamespaceScope};
use crate::service::{IpFamily, IpFamilyPolicy, ServiceType, TrafficPolicy};
use crate::tls_policy::{BackendTlsPolicy, ConfigMap, GatewayTls};

/// A port of a listener or backend.
pub type Port = NonZeroU16;

/// A port with its transport: one number is two ports.
pub type TransportPort = (Port, Transport);

/// What every object carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// UID, empty if the object never was on a server.
    pub uid: Arc<str>,
    /// Creation, in seconds since the Unix epoch.
    pub created: i64,
    /// Generation of the spec.
    pub generation: i64,
    /// Whether it is being deleted: such an object claims nothing.
    pub deleting: bool,
}

/// GatewayClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayClass {
    /// Name.
    pub name: Arc<str>,
    /// Metadata.
    pub meta: Meta,
    /// `spec.controllerName`.
    pub controller: Arc<str>,
    /// `spec.parametersRef`.
    pub parameters: Option<Reference>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.gatewayClassName`.
    pub class: Arc<str>,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// `spec.allowedListeners`; absent is `None`.
    pub allowed_listeners: NamespaceScope,
    /// `spec.addresses` that can be asked for; findings name the others.
    pub addresses: Vec<AddressRequest>,
    /// `spec.infrastructure`.
    pub infrastructure: Box<Infrastructure>,
    /// `spec.tls`.
    pub tls: Box<GatewayTls>,
    /// Issuer annotations.
    pub issuers: IssuerAnnotations,
    /// Annotations about certificates.
    pub certificates: CertificateAnnotations,
    /// What is wrong outside the listeners.
    pub findings: Vec<Finding>,
}

/// An entry of `spec.addresses` of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRequest {
    /// Path in the object, such as `spec.addresses[0]`.
    pub field: String,
    /// The address; `None` is any.
    pub ip: Option<IpAddr>,
}

/// `spec.infrastructure` of a Gateway: what the objects made for it carry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infrastructure {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `parametersRef`.
    pub parameters: Option<Reference>,
}

/// An address where a Gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name, as some load balancers have.
    Hostname(Arc<str>),
}

/// `GatewayParameters`, Vestibule's own kind: what a GatewayClass or a Gateway sets otherwise than the
/// release. What is absent is not set here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayParameters {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.service`.
    pub service: ServiceParameters,
    /// `spec.limits`.
    pub limits: LimitParameters,
    /// `spec.clientAddress`.
    pub client_address: ClientAddress,
    /// `spec.backendClientCertificate.namespaces`: whose backends are shown the Gateway's client certificate.
    pub certificate_namespaces: Option<NamespaceScope>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// Limits of connections and requests; what is absent is decided elsewhere, and zero means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitParameters {
    /// `streamIdleTimeout`.
    pub stream_idle: Option<Duration>,
    /// `requestTimeout`.
    pub request: Option<Duration>,
    /// `tunnelIdleTimeout`.
    pub tunnel_idle: Option<Duration>,
    /// `maxConnectionAge`.
    pub connection_age: Option<Duration>,
    /// `maxRequestBodyBytes`.
    pub request_body: Option<u64>,
}

impl LimitParameters {
    /// Field by field, these and, where they are absent, `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            stream_idle: self.stream_idle.or(others.stream_idle),
            request: self.request.or(others.request),
            tunnel_idle: self.tunnel_idle.or(others.tunnel_idle),
            connection_age: self.connection_age.or(others.connection_age),
            request_body: self.request_body.or(others.request_body),
        }
    }
}

/// How the Service in front of the proxies is made; what is absent is decided elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceParameters {
    /// `type`.
    pub service_type: Option<ServiceType>,
    /// Annotations; added to those from elsewhere, key by key.
    pub annotations: BTreeMap<String, String>,
    /// `externalTrafficPolicy`, for the types that have one.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// `ipFamilyPolicy`.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `ipFamilies`, the primary one first; empty: not set.
    pub ip_families: Vec<IpFamily>,
    /// `loadBalancerClass`, for type `LoadBalancer`.
    pub load_balancer_class: Option<Arc<str>>,
}

/// ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSet {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// The Gateway it wants to extend; `None` if `parentRef` names another kind.
    pub gateway: Option<ObjectName>,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// Issuer annotations.
    pub issuers: IssuerAnnotations,
    /// Annotations about certificates.
    pub certificates: CertificateAnnotations,
    /// What is wrong outside the listeners.
    pub findings: Vec<Finding>,
}

/// What a listener speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP
    Http,
    /// HTTPS
    Https,
    /// TLS
    Tls,
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// A protocol this release does not know.
    Other(Arc<str>),
}

impl Protocol {
    /// The text the API uses.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Other(text) => text,
        }
    }

    /// Reads the API's text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match text {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            other => Self::Other(other.into()),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One listener of a Gateway or ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Name, unique within the object.
    pub name: Arc<str>,
    /// Path in the object, such as `spec.listeners[0]`.
    pub field: String,
    /// Hostname; [`HostPattern::Any`] if absent, empty, or not one (then a finding says so).
    pub hostname: HostPattern,
    /// Port; `None` if it is not one (then a finding says so).
    pub port: Option<Port>,
    /// Protocol.
    pub protocol: Protocol,
    /// TLS settings; `None` if absent or for protocols without TLS.
    pub tls: Option<ListenerTls>,
    /// `allowedRoutes.namespaces`; absent is `Same`, from the declaring object's point of view.
    pub allowed_namespaces: NamespaceScope,
    /// `allowedRoutes.kinds` as (group, kind); empty: whatever the protocol takes.
    pub allowed_kinds: Vec<(Arc<str>, Arc<str>)>,
    /// What is wrong with it. A refusal here means that it claims nothing.
    pub findings: Vec<Finding>,
}

/// TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// Passthrough or Terminate.
    pub mode: TlsMode,
    /// `certificateRefs`, in order. Ignored with Passthrough.
    pub certificates: Vec<Reference>,
}

/// What happens to TLS on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsMode {
    /// The bytes go through untouched.
    Passthrough,
    /// TLS ends here.
    Terminate,
}

/// A reference to an object as written, defaults filled in, before any check.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    /// API group; empty for core.
    pub group: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Target, its namespace defaulted to the referrer's.
    pub target: ObjectName,
    /// Path in the object.
    pub field: String,
}

impl Reference {
    /// Whether it names this kind.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        *self.group == *kind.group() && *self.kind == *kind.as_str()
    }
}

/// TLSRoute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsRoute {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.parentRefs`.
    pub parents: Vec<ParentRef>,
    /// `spec.hostnames` that are ones, with their index in the spec. Findings name the others.
    pub hostnames: Vec<(usize, HostPattern)>,
    /// `spec.rules[].backendRefs` of all rules (v1 has exactly one rule).
    pub backends: Vec<BackendRef>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// TCPRoute or UDPRoute: everything that comes to a port.
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
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// A parent reference of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentRef {
    /// Group as written, if it was.
    pub group: Option<Arc<str>>,
    /// Kind as written, if it was.
    pub kind: Option<Arc<str>>,
    /// Namespace as written, if it was.
    pub namespace: Option<Arc<str>>,
    /// Name.
    pub name: Arc<str>,
    /// `sectionName`.
    pub section: Option<Arc<str>>,
    /// `port`.
    pub port: Option<Port>,
}

impl ParentRef {
    /// The parent it leads to from a route in `namespace`; `None` for kinds that are no parents.
    #[must_use]
    pub fn parent(&self, namespace: &Arc<str>) -> Option<ParentKey> {
        if self.group.as_deref().unwrap_or(crate::key::GATEWAY_GROUP) != crate::key::GATEWAY_GROUP {
            return None;
        }
        let name = ObjectName {
            namespace: self.namespace.as_ref().unwrap_or(namespace).clone(),
            name: self.name.clone(),
        };
        match self.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => Some(ParentKey::Gateway(name)),
            "ListenerSet" => Some(ParentKey::ListenerSet(name)),
            _ => None,
        }
    }
}

/// A backend of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendRef {
    /// What it refers to.
    pub reference: Reference,
    /// Port of the Service.
    pub port: Option<Port>,
    /// Share of the connections, 0 to 1,000,000.
    pub weight: u32,
}

/// Service, as far as routing needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// Ports: number, name, transport.
    pub ports: Vec<ServicePort>,
    /// `type: ExternalName`: never a backend (it would let a tenant reach any address).
    pub external_name: bool,
}

impl Service {
    /// The port with this number and transport.
    #[must_use]
    pub fn port(&self, number: Port, transport: Transport) -> Option<&ServicePort> {
        self.ports
            .iter()
            .find(|port| port.port == number && port.transport == Some(transport))
    }
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty if it has none. EndpointSlices repeat it.
    pub name: Arc<str>,
    /// Number. Ports of different transports may share it.
    pub port: Port,
    /// `protocol`; `None` for one that Vestibule does not carry (SCTP).
    pub transport: Option<Transport>,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Name.
    pub name: ObjectName,
    /// The Service it belongs to (label `kubernetes.io/service-name`).
    pub service: Option<Arc<str>>,
    /// Ports.
    pub ports: Vec<EndpointPort>,
    /// Addresses that are ready to serve.
    pub addresses: Vec<IpAddr>,
    /// Addresses of pods that terminate and still serve. They count while a port has no address that is
    /// ready.
    pub terminating: Vec<IpAddr>,
    /// Addresses of pods that serve nothing: not yet, or no longer.
    pub idle: Vec<IpAddr>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl EndpointSlice {
    /// Every address, whatever state its pod is in.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        let lists = [&self.addresses, &self.terminating, &self.idle];
        lists.into_iter().flatten().copied()
    }

    /// Every address that serves, or still serves, with each port of this transport, or without one where the slice has
    /// none.
    pub fn sockets(
        &self,
        transport: Transport,
    ) -> impl Iterator<Item = (IpAddr, Option<TransportPort>)> {
        let ports = move || {
            let ports = self.ports.iter();
            let ports = ports.filter(move |port| port.transport == Some(transport));
            ports.map(move |port| (port.number, transport))
        };
        let portless = ports().next().is_none().then_some(None);
        let serving = self.addresses.iter().chain(&self.terminating);
        serving.flat_map(move |address| {
            let ports = ports().map(Some).chain(portless);
            ports.map(|port| (*address, port))
        })
    }

    /// The numbers under which the endpoints serve this port of the Service.
    pub fn numbers_of(&self, port: &ServicePort) -> impl Iterator<Item = Port> {
        self.ports
            .iter()
            .filter(|one| one.name == port.name && one.transport == port.transport)
            .map(|one| one.number)
    }
}

/// A port of the endpoints in a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name; that of the Service's port that it serves.
    pub name: Arc<str>,
    /// `protocol`; `None` for one that Vestibule does not carry (SCTP).
    pub transport: Option<Transport>,
    /// Number.
    pub number: Port,
}

/// Secret, unparsed: a certificate with its key, certificates of authorities, or both.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `type`.
    pub secret_type: Arc<str>,
    /// `data["tls.crt"]`, PEM.
    pub certificate: Option<Arc<[u8]>>,
    /// `data["tls.key"]`, PEM.
    pub private_key: Option<Arc<Zeroizing<Vec<u8>>>>,
    /// `data["ca.crt"]`, PEM.
    pub authorities: Option<Arc<[u8]>>,
    /// Whether the built-in engine made it (label `vestibule.dev/acme`): empty, it waits for its certificate.
    pub acme: bool,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .field("secret_type", &self.secret_type)
            .finish_non_exhaustive()
    }
}

/// `ACMEIssuer` or `ClusterACMEIssuer`, Vestibule's own kinds: a CA that the built-in engine gets
/// certificates from, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeIssuer {
    /// [`Kind::AcmeIssuer`] or [`Kind::ClusterAcmeIssuer`], and its name.
    pub key: ObjectKey,
    /// Metadata.
    pub meta: Meta,
    /// Its labels, by which releases that share a cluster share the issuers.
    pub labels: Labels,
    /// `spec.directory`: URL of the CA's directory.
    pub directory: Arc<str>,
    /// `spec.contact`: `mailto:` URLs.
    pub contact: Vec<Arc<str>>,
    /// `spec.accountKeySecretRef.name`: the Secret with the account's key, in the issuer's namespace or,
    /// for a cluster's, in the release's. Created if absent.
    pub account_key_secret: Arc<str>,
    /// `spec.externalAccountBinding`.
    pub external_account: Option<ExternalAccount>,
    /// `spec.profile`.
    pub profile: Option<Arc<str>>,
    /// `spec.caBundle`: PEM of the authorities that the CA's own server is trusted by; none: the system's.
    pub ca_bundle: Option<Arc<str>>,
    /// `spec.challenges`, in the order in which they are tried; never empty.
    pub challenges: Vec<ChallengeType>,
    /// What is wrong with it. With a refusal nothing is asked of the CA.
    pub findings: Vec<Finding>,
}

impl AcmeIssuer {
    /// Why it cannot be used.
    #[must_use]
    pub fn refusal(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.refuses())
    }
}

/// External account binding (RFC 8555, 7.3.4): an account that the CA already knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Key identifier that the CA gave.
    pub key_id: Arc<str>,
    /// Name of the Secret with the MAC key, beside the account's.
    pub secret: Arc<str>,
    /// Entry of the Secret; its value is base64url, as CAs hand it out.
    pub key: Arc<str>,
}

/// Namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Name.
    pub name: Arc<str>,
    /// Labels.
    pub labels: Labels,
}

/// ReferenceGrant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceGrant {
    /// Name.
    pub name: ObjectName,
    /// `spec.from` as (group, kind, namespace).
    pub from: Vec<(Arc<str>, Arc<str>, Arc<str>)>,
    /// `spec.to` as (group, kind, name); no name: all of the kind.
    pub to: Vec<GrantTarget>,
}

/// What a ReferenceGrant opens: group, kind and name; no name: all of the kind.
pub type GrantTarget = (Arc<str>, Arc<str>, Option<Arc<str>>);

/// Any object, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// GatewayClass
    GatewayClass(GatewayClass),
    /// Gateway
    Gateway(Gateway),
    /// ListenerSet
    ListenerSet(ListenerSet),
    /// TLSRoute
    TlsRoute(TlsRoute),
    /// HTTPRoute or GRPCRoute
    HttpRoute(HttpRoute),
    /// TCPRoute or UDPRoute
    PortRoute(PortRoute),
    /// ReferenceGrant
    ReferenceGrant(ReferenceGrant),
    /// `GatewayParameters`
    GatewayParameters(GatewayParameters),
    /// Namespace
    Namespace(Namespace),
    /// Service
    Service(Service),
    /// EndpointSlice
    EndpointSlice(EndpointSlice),
    /// Secret
    Secret(Secret),
    /// BackendTLSPolicy
    BackendTlsPolicy(BackendTlsPolicy),
    /// ConfigMap
    ConfigMap(ConfigMap),
    /// `ACMEIssuer` or `ClusterACMEIssuer`
    AcmeIssuer(AcmeIssuer),
    /// `HostnameGrant`
    HostnameGrant(HostnameGrant),
    /// `HostnameClaim`
    HostnameClaim(HostnameClaim),
    /// There, but it does not decode: it has a status and takes part in nothing.
    Unreadable(ObjectKey, Meta, Finding),
}

impl Object {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let (kind, name) = match self {
            Self::GatewayClass(o) => return ObjectKey::new(Kind::GatewayClass, "", o.name.clone()),
            Self::Namespace(o) => return ObjectKey::new(Kind::Namespace, "", o.name.clone()),
            Self::Unreadable(key, ..) => return key.clone(),
            Self::AcmeIssuer(o) => return o.key.clone(),
            Self::Gateway(o) => (Kind::Gateway, &o.name),
            Self::ListenerSet(o) => (Kind::ListenerSet, &o.name),
            Self::TlsRoute(o) => (Kind::TlsRoute, &o.name),
            Self::HttpRoute(o) => (o.kind, &o.name),
            Self::PortRoute(o) => (Kind::of_port_route(o.transport), &o.name),
            Self::ReferenceGrant(o) => (Kind::ReferenceGrant, &o.name),
            Self::GatewayParameters(o) => (Kind::GatewayParameters, &o.name),
            Self::Service(o) => (Kind::Service, &o.name),
            Self::EndpointSlice(o) => (Kind::EndpointSlice, &o.name),
            Self::Secret(o) => (Kind::Secret, &o.name),
            Self::BackendTlsPolicy(o) => (Kind::BackendTlsPolicy, &o.name),
            Self::ConfigMap(o) => (Kind::ConfigMap, &o.name),
            Self::HostnameGrant(o) => (Kind::HostnameGrant, &o.name),
            Self::HostnameClaim(o) => (Kind::HostnameClaim, &o.name),
        };
        ObjectKey {
            kind,
            name: name.clone(),
        }
    }

    /// What was found wrong with it where it was read, listeners and rules included: everything that can be
    /// said of it without another object.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let rules: &[HttpRule] = match self {
            Self::HttpRoute(o) => &o.rules,
            _ => &[],
        };
        let (own, listeners): (&[Finding], &[Listener]) = match self {
            Self::GatewayClass(o) => (&o.findings, &[]),
            Self::Gateway(o) => (&o.findings, &o.listeners),
            Self::ListenerSet(o) => (&o.findings, &o.listeners),
            Self::TlsRoute(o) => (&o.findings, &[]),
            Self::HttpRoute(o) => (&o.findings, &[]),
            Self::PortRoute(o) => (&o.findings, &[]),
            Self::GatewayParameters(o) => (&o.findings, &[]),
            Self::EndpointSlice(o) => (&o.findings, &[]),
            Self::BackendTlsPolicy(o) => (&o.findings, &[]),
            Self::AcmeIssuer(o) => (&o.findings, &[]),
            Self::HostnameGrant(o) => (&o.findings, &[]),
            Self::HostnameClaim(o) => (&o.findings, &[]),
            Self::Unreadable(_, _, finding) => (std::slice::from_ref(finding), &[]),
            Self::ReferenceGrant(_)
            | Self::Namespace(_)
            | Self::Service(_)
            | Self::Secret(_)
            | Self::ConfigMap(_) => (&[], &[]),
        };
        own.iter()
            .chain(listeners.iter().flat_map(|listener| &listener.findings))
            .chain(rules.iter().flat_map(|rule| &rule.findings))
    }
}

impl Gateway {
    /// Its key as a parent.
    #[must_use]
    pub fn parent_key(&self) -> ParentKey {
        ParentKey::Gateway(self.name.clone())
    }
}

impl ListenerSet {
    /// Its key as a parent.
    #[must_use]
    pub fn parent_key(&self) -> ParentKey {
        ParentKey::ListenerSet(self.name.clone())
    }
}

impl Listener {
    /// Its key within `parent`.
    #[must_use]
    pub fn key(&self, parent: &ParentKey) -> ListenerKey {
        ListenerKey {
            parent: parent.clone(),
            listener: self.name.clone(),
        }
    }
}
