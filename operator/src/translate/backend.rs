//! Backends: the endpoints of each port of a Service that a route in force uses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use vestibule_model::backend_key::BackendKey;
use vestibule_model::endpoint::Denied;
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::{EndpointSlice, Object, Service, ServicePort};
use vestibule_model::protocol::Transport;
use vestibule_model::send_proxy::{HeaderVersion, SendProxy};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource};

use super::backend_key::backend_resource;
use super::{Dirty, Output, Translator, set_user};

/// The protocol that a port of a Service speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    /// HTTP of this version, inside TLS or not.
    Http {
        protocol: proto::BackendProtocol,
        tls: bool,
    },
    /// Anything that is not HTTP.
    Other,
}

/// The protocol that a port names in `appProtocol` (KEP-3726 and GEP-1911). The words without a domain are
/// those that meshes and charts write. A port without `appProtocol` speaks HTTP.
pub(super) fn speaks(port: &ServicePort) -> Speaks {
    use proto::BackendProtocol::{H2c, Unspecified, Websocket};
    let text = port.app_protocol.as_deref().unwrap_or_default();
    let (protocol, tls) = match text.to_ascii_lowercase().as_str() {
        "" | "http" | "tcp" => (Unspecified, false),
        "https" | "tls" => (Unspecified, true),
        "kubernetes.io/h2c" | "h2c" | "http2" | "grpc" => (H2c, false),
        "kubernetes.io/ws" | "ws" => (Websocket, false),
        "kubernetes.io/wss" | "wss" => (Websocket, true),
        _ => return Speaks::Other,
    };
    Speaks::Http { protocol, tls }
}

/// The PROXY header that a port expects, as it is on the stream. No route leads to a port of which that is not known.
fn header_of(port: &ServicePort) -> proto::SendProxyProtocol {
    match port.send_proxy {
        SendProxy::Header(HeaderVersion::V1) => proto::SendProxyProtocol::V1,
        SendProxy::Header(HeaderVersion::V2) => proto::SendProxyProtocol::V2,
        SendProxy::Off | SendProxy::Unreadable(_) => proto::SendProxyProtocol::Unspecified,
    }
}

impl Translator {
    pub(super) fn translate_backends(&mut self, dirty: &Dirty, output: &mut Output) {
        for key in &dirty.backends {
            output.work.backends += 1;
            let is_there =
                self.backend_users.contains_key(key) && !self.backend_budgets.is_over(key);
            let resource = is_there
                .then(|| self.target(key))
                .flatten()
                .and_then(|backend| encode(key, backend));
            let bytes = resource.as_ref().map_or(0, Encoded::len);
            let counted = self.backend_budgets.bytes(key);
            debug_assert!(
                bytes as u64 <= counted,
                "{key} has {bytes} bytes, and counts {counted}"
            );
            self.settle_resource(backend_resource(key), resource, output);
        }
    }

    pub(super) fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        let slices = self.index.slices_of(service);
        slices.filter_map(|name| match self.get(Kind::EndpointSlice, name) {
            Some(Object::EndpointSlice(slice)) => Some(slice),
            _ => None,
        })
    }

    /// The first address of a slice that no backend may have, with the reason.
    pub(super) fn denied_in(&self, slice: &EndpointSlice) -> Option<(IpAddr, Denied)> {
        let namespace = &slice.name.namespace;
        let all = Transport::ALL.into_iter();
        let all = all.flat_map(|by| slice.ports_by_address(by));
        let mut suspect = all.filter(|(address, _)| self.may_be_denied(namespace, *address));
        suspect.find_map(|(address, mut ports)| {
            let denied = ports.find_map(|port| self.denied(namespace, address, port))?;
            Some((address, denied))
        })
    }

    /// The first address of a Service, with the reason why no backend may have it, if no address of the
    /// Service for this transport is allowed.
    pub(super) fn only_denied(
        &self,
        service: &ObjectName,
        transport: Transport,
    ) -> Option<(IpAddr, Denied)> {
        let mut first = None;
        for slice in self.slices_of(service) {
            for (address, ports) in slice.ports_by_address(transport) {
                // If every port is denied, the first one says why.
                let every = self.denied(&service.namespace, address, None).is_some();
                for port in ports.take(if every { 1 } else { usize::MAX }) {
                    let denied = self.denied(&service.namespace, address, port)?;
                    first.get_or_insert((address, denied));
                }
            }
        }
        first
    }

    /// Judges the addresses of the slices that changed, and marks the routes to Services where a slice has a denied
    /// address, or had one. What those routes say of the endpoints may be different now.
    pub(super) fn settle_slices(&mut self, dirty: &mut Dirty, output: &mut Output) {
        let mut judged = BTreeSet::new();
        for (name, services) in std::mem::take(&mut dirty.slices) {
            output.work.slices += 1;
            let slice = match self.get(Kind::EndpointSlice, &name) {
                Some(Object::EndpointSlice(slice)) => Some(slice),
                _ => None,
            };
            let denied = slice.filter(|slice| self.denied_in(slice).is_some());
            let denied = denied.and_then(|slice| slice.service.clone());
            for service in services {
                let is_denied = denied.as_ref() == Some(&service.name);
                let all = &mut self.denied_slices;
                if set_user(all, &service, &name, is_denied) || all.contains_key(&service) {
                    judged.insert(service);
                }
            }
        }
        for service in judged {
            dirty
                .routes
                .extend(self.index.routes_of_service(&service).cloned());
        }
    }

    /// The backend of a port: its endpoints in order, their protocol, and the TLS of connections to them.
    /// `None` if the Service or the port does not exist. The endpoints are those that are ready. If none is
    /// ready, they are those that terminate and still serve, as in kube-proxy, so the last pod serves until
    /// it ends.
    fn target(&self, key: &BackendKey) -> Option<proto::Backend> {
        let (service, port) = self.port_of(key)?;
        let (_, transport) = key.port;
        let mut ready: BTreeSet<(IpAddr, u16)> = BTreeSet::new();
        let mut terminating = ready.clone();
        for slice in self.slices_of(&key.service) {
            for number in slice.numbers_of(port) {
                let namespace = &key.service.namespace;
                let at = Some((number, transport));
                let allowed = |address: &&IpAddr| self.denied(namespace, **address, at).is_none();
                let at = |address: &IpAddr| (*address, number.get());
                ready.extend(slice.addresses.iter().filter(allowed).map(at));
                terminating.extend(slice.terminating.iter().filter(allowed).map(at));
            }
        }
        let endpoints = if ready.is_empty() { terminating } else { ready };
        Some(proto::Backend {
            endpoints: endpoints
                .iter()
                .map(|(address, port)| proto::Endpoint {
                    address: address.to_string(),
                    port: (*port).into(),
                })
                .collect(),
            ..self.bare_backend(key, service, port)
        })
    }

    /// The backend of a port without its endpoints.
    pub(super) fn bare_backend(
        &self,
        key: &BackendKey,
        service: &Service,
        port: &ServicePort,
    ) -> proto::Backend {
        let protocol = match speaks(port) {
            Speaks::Http { protocol, .. } => protocol,
            Speaks::Other => proto::BackendProtocol::Unspecified,
        };
        let tls = match key.port.1 {
            Transport::Tcp => self.backend_tls(service, port),
            // BackendTLSPolicies apply to connections, and UDP has none.
            Transport::Udp => None,
        };
        proto::Backend {
            // The proxies show a certificate only inside TLS.
            certificate_of: match &tls {
                Some(_) => self.certificate_of(&key.service.namespace),
                None => Vec::new(),
            },
            endpoints: Vec::new(),
            protocol: protocol.into(),
            tls,
            send_proxy_protocol: header_of(port).into(),
        }
    }
}

fn encode(key: &BackendKey, backend: proto::Backend) -> Option<Encoded> {
    Encoded::new(&Resource::new(
        key.to_string(),
        resource::Resource::Backend(backend),
    ))
    .ok()
}
