//! The objects that Vestibule reads, in parsed form. A part with an error keeps its findings with itself, so one bad
//! listener or hostname never hides the others.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::challenge::ChallengeType;
use crate::claim::HostnameClaim;
use crate::finding::Finding;
use crate::gateway::{Gateway, GatewayClass, Listener, ListenerSet};
use crate::hostname_grant::HostnameGrant;
use crate::http::{HttpRoute, HttpRule};
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::meta::Meta;
use crate::parameters::GatewayParameters;
use crate::protocol::{Port, Transport, TransportPort};
use crate::route::{PortRoute, Route, TlsRoute};
use crate::selector::Labels;
use crate::send_proxy::SendProxy;
use crate::tls_policy::{BackendTlsPolicy, ConfigMap};

/// Service, reduced to what routing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// Whether it has `type: ExternalName`. Such a Service is never a backend, because a tenant could reach any address
    /// through it.
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
    /// Name; empty if it has none. EndpointSlices refer to the port by this name.
    pub name: Arc<str>,
    /// Number. Ports of different transports may share it.
    pub port: Port,
    /// `protocol`; `None` if Vestibule does not carry it (SCTP).
    pub transport: Option<Transport>,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
    /// Which PROXY header it expects, by an annotation of the Service.
    pub send_proxy: SendProxy,
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
    /// Addresses of pods that are terminating and still serve. They are used only while no address of a port is ready.
    pub terminating: Vec<IpAddr>,
    /// Addresses of pods that serve nothing yet, or nothing any more.
    pub idle: Vec<IpAddr>,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

impl EndpointSlice {
    /// Every address, whatever state its pod is in.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        let lists = [&self.addresses, &self.terminating, &self.idle];
        lists.into_iter().flatten().copied()
    }

    /// Every address that serves, terminating ones included.
    pub fn serving(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().chain(&self.terminating).copied()
    }

    /// Every address that serves, with the ports of this transport. If the slice has no such port, each address comes
    /// once without a port.
    pub fn ports_by_address(
        &self,
        transport: Transport,
    ) -> impl Iterator<Item = (IpAddr, impl Iterator<Item = Option<TransportPort>>)> {
        let ports = move || {
            let ports = self.ports.iter();
            let ports = ports.filter(move |port| port.transport == Some(transport));
            ports.map(move |port| Some((port.number, transport)))
        };
        let portless = ports().next().is_none();
        self.serving().map(move |address| {
            let ports = (!portless).then(ports).into_iter().flatten();
            (address, ports.chain(portless.then_some(None)))
        })
    }

    /// The same as pairs of an address and a port.
    pub fn sockets(
        &self,
        transport: Transport,
    ) -> impl Iterator<Item = (IpAddr, Option<TransportPort>)> {
        let all = self.ports_by_address(transport);
        all.flat_map(|(address, ports)| ports.map(move |port| (address, port)))
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
    /// Name. It is the name of the Service's port that it serves.
    pub name: Arc<str>,
    /// `protocol`; `None` if Vestibule does not carry it (SCTP).
    pub transport: Option<Transport>,
    /// Number.
    pub number: Port,
}

/// Secret with a certificate and its key, with CA certificates, or with both. The content is not parsed.
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
    /// Whether the built-in engine made it (label `vestibule.dev/acme`). If it is empty then, it waits for its
    /// certificate.
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

/// `ACMEIssuer` or `ClusterACMEIssuer`, kinds of Vestibule: a CA from which the built-in engine gets certificates, and
/// the account that it uses there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeIssuer {
    /// [`Kind::AcmeIssuer`] or [`Kind::ClusterAcmeIssuer`], and its name.
    pub key: ObjectKey,
    /// Metadata.
    pub meta: Meta,
    /// Labels. If several releases share a cluster, each selects its issuers by label.
    pub labels: Labels,
    /// `spec.directory`: URL of the CA's directory.
    pub directory: Arc<str>,
    /// `spec.contact`: `mailto:` URLs.
    pub contact: Vec<Arc<str>>,
    /// `spec.accountKeySecretRef.name`: the Secret with the account's key. It is in the namespace of the issuer or, for
    /// a `ClusterACMEIssuer`, in that of the release. The operator creates it if it is absent.
    pub account_key_secret: Arc<str>,
    /// `spec.externalAccountBinding`.
    pub external_account: Option<ExternalAccount>,
    /// `spec.profile`.
    pub profile: Option<Arc<str>>,
    /// `spec.caBundle`: PEM of the CA certificates by which the server of the CA is checked. `None` stands for those of
    /// the system.
    pub ca_bundle: Option<Arc<str>>,
    /// `spec.challenges`, in the order in which they are tried; never empty.
    pub challenges: Vec<ChallengeType>,
    /// The findings about it. If one of them refuses, nothing is requested from the CA.
    pub findings: Vec<Finding>,
}

impl AcmeIssuer {
    /// Why it cannot be used.
    #[must_use]
    pub fn refusal(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.refuses())
    }
}

/// External account binding (RFC 8555, 7.3.4): it connects the account to one that the CA already knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Key identifier that the CA gave.
    pub key_id: Arc<str>,
    /// Name of the Secret with the MAC key, in the same namespace as the account's Secret.
    pub secret: Arc<str>,
    /// Entry of the Secret. Its value is base64url, the form in which CAs give it to users.
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
    /// `spec.to`.
    pub to: Vec<GrantTarget>,
}

impl ReferenceGrant {
    /// The kinds and namespaces of the objects that it lets refer into its own namespace. Entries for kinds that
    /// Vestibule does not know are left out.
    pub fn referrers(&self) -> impl Iterator<Item = (Kind, &Arc<str>)> {
        self.from.iter().filter_map(|(group, kind, namespace)| {
            let mut known = Kind::ALL.into_iter();
            let found = known.find(|k| **group == *k.group() && **kind == *k.as_str());
            found.map(|kind| (kind, namespace))
        })
    }
}

/// An entry of `spec.to`: group, kind and name. `None` as the name stands for all objects of the kind.
pub type GrantTarget = (Arc<str>, Arc<str>, Option<Arc<str>>);

/// Any object, parsed. Kinds that several parts keep, and large ones of which there are few, are behind an `Arc`: an object
/// takes the room of the largest kind, and there are as many objects as hostnames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// GatewayClass
    GatewayClass(GatewayClass),
    /// Gateway
    Gateway(Arc<Gateway>),
    /// ListenerSet
    ListenerSet(Arc<ListenerSet>),
    /// TLSRoute
    TlsRoute(TlsRoute),
    /// HTTPRoute or GRPCRoute
    HttpRoute(HttpRoute),
    /// TCPRoute or UDPRoute
    PortRoute(PortRoute),
    /// ReferenceGrant
    ReferenceGrant(ReferenceGrant),
    /// `GatewayParameters`
    GatewayParameters(Arc<GatewayParameters>),
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
    AcmeIssuer(Arc<AcmeIssuer>),
    /// `HostnameGrant`
    HostnameGrant(Arc<HostnameGrant>),
    /// `HostnameClaim`
    HostnameClaim(Arc<HostnameClaim>),
    /// An object that exists and cannot be decoded. Its finding says why. Otherwise it has no effect, with four
    /// exceptions: a HostnameGrant still counts as a grant, a BackendTLSPolicy closes the backends that it may be
    /// about, GatewayParameters believe no address of a client, and a Gateway keeps its Services.
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

    /// Its metadata; `None` for kinds of which Vestibule keeps none.
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        Some(match self {
            Self::GatewayClass(o) => &o.meta,
            Self::Gateway(o) => &o.meta,
            Self::ListenerSet(o) => &o.meta,
            Self::TlsRoute(o) => &o.meta,
            Self::HttpRoute(o) => &o.meta,
            Self::PortRoute(o) => &o.meta,
            Self::BackendTlsPolicy(o) => &o.meta,
            Self::AcmeIssuer(o) => &o.meta,
            Self::GatewayParameters(o) => &o.meta,
            Self::HostnameGrant(o) => &o.meta,
            Self::Unreadable(_, meta, _) => meta,
            Self::HostnameClaim(_)
            | Self::ReferenceGrant(_)
            | Self::EndpointSlice(_)
            | Self::Namespace(_)
            | Self::Service(_)
            | Self::Secret(_)
            | Self::ConfigMap(_) => return None,
        })
    }

    /// Gives back the room that lists of the kinds of which there are many have for more entries.
    pub fn shrink_to_fit(&mut self) {
        match self {
            Self::ListenerSet(set) => {
                // An object that others already share was shrunk before.
                let Some(set) = Arc::get_mut(set) else {
                    return;
                };
                set.listeners.shrink_to_fit();
                for listener in &mut set.listeners {
                    if let Some(tls) = &mut listener.tls {
                        tls.certificates.shrink_to_fit();
                    }
                }
            }
            Self::TlsRoute(route) => {
                route.parents.shrink_to_fit();
                route.hostnames.shrink_to_fit();
                route.backends.shrink_to_fit();
            }
            Self::HttpRoute(route) => {
                route.parents.shrink_to_fit();
                route.hostnames.shrink_to_fit();
                route.rules.shrink_to_fit();
                for rule in &mut route.rules {
                    rule.matches.shrink_to_fit();
                    rule.filters.shrink_to_fit();
                    rule.backends.shrink_to_fit();
                }
            }
            Self::EndpointSlice(slice) => {
                slice.ports.shrink_to_fit();
                slice.addresses.shrink_to_fit();
            }
            Self::Service(service) => service.ports.shrink_to_fit(),
            _ => {}
        }
    }

    /// The object as a route; `None` if it is not one.
    #[must_use]
    pub fn as_route(&self) -> Option<Route<'_>> {
        match self {
            Self::TlsRoute(route) => Some(Route::Tls(route)),
            Self::HttpRoute(route) => Some(Route::Http(route)),
            Self::PortRoute(route) => Some(Route::Port(route)),
            _ => None,
        }
    }

    /// The findings of the decoder, those of listeners and rules included. They do not depend on any other object.
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
