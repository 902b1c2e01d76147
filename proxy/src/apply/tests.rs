//! Tests of the state, by subject. Resources and the state that takes them are here.

mod batches;
mod challenges;
mod concerned;
mod dumped;
mod gateway_settings;
mod listeners;
mod owners;
mod properties;
mod rejects;
mod selection;
mod tenants;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use vestibule_model::certificate::{AddressBlock, MAX_CHAIN_BYTES};
use vestibule_model::hostname::Hostname;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Resource, proto};

use super::*;
use crate::listener::Layer;
use crate::table::{Pick, Unmatched};

const BIND: BindKey = BindKey::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_443);

fn bind_on(port: u16) -> proto::Bind {
    proto::Bind {
        address: "127.0.0.1".into(),
        port: port.into(),
        transport: proto::Transport::Tcp.into(),
    }
}

fn listener_on(name: &str, port: u16, hostname: &str, certificates: Option<&[&str]>) -> Resource {
    use proto::tls_listener::Mode;
    let mode = match certificates {
        None => Mode::Passthrough(proto::TlsPassthrough {}),
        Some(names) => Mode::Terminate(proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    Resource::new(
        name,
        Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(bind_on(port)),
            hostname: hostname.into(),
            tenant: name.split('/').nth(1).unwrap().into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(mode),
            })),
            ..Default::default()
        }),
    )
}

/// As [`listener_on`], for HTTP, or HTTPS with certificates.
fn http_on(name: &str, port: u16, hostname: &str, certificates: Option<&[&str]>) -> Resource {
    let mut resource = listener_on(name, port, hostname, None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        let terminate = certificates.map(|names| proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        });
        let http = proto::HttpListener { terminate };
        listener.protocol = Some(proto::listener::Protocol::Http(http));
    }
    resource
}

fn listener(name: &str, hostname: &str) -> Resource {
    listener_on(name, BIND.port, hostname, None)
}

fn route(
    name: &str,
    created: i64,
    at: &[(&str, &str, &str)],
    backends: &[(&str, u32)],
) -> Resource {
    Resource::new(
        name,
        Wire::TlsRoute(proto::TlsRoute {
            tenant: name.split('/').next().unwrap().into(),
            created,
            attachments: at
                .iter()
                .map(|(listener, of_match, of_rank)| proto::Attachment {
                    listener: (*listener).into(),
                    hostnames: vec![proto::RouteHostname {
                        r#match: (*of_match).into(),
                        rank: (*of_rank).into(),
                        shared: false,
                        paths: Vec::new(),
                    }],
                })
                .collect(),
            backends: backends
                .iter()
                .map(|(backend, weight)| proto::WeightedBackend {
                    backend: (*backend).into(),
                    weight: *weight,
                })
                .collect(),
        }),
    )
}

fn backend(name: &str, addresses: &[&str]) -> Resource {
    Resource::new(
        name,
        Wire::Backend(proto::Backend {
            endpoints: addresses
                .iter()
                .map(|address| {
                    let address: SocketAddr = address.parse().unwrap();
                    proto::Endpoint {
                        address: address.ip().to_string(),
                        port: address.port().into(),
                    }
                })
                .collect(),
            ..Default::default()
        }),
    )
}

fn owner(hostname: &str, tenant: &str) -> Resource {
    let owner = proto::HostnameOwner {
        gateway: "infra/edge".into(),
        hostname: hostname.into(),
        tenant: tenant.into(),
    };
    let name = format!("infra/edge/{hostname}");
    Resource::new(name, Wire::HostnameOwner(owner))
}

/// Has a listener serve by the settings of its Gateway.
fn needs_settings(mut listener: Resource) -> Resource {
    if let Some(Wire::Listener(listener)) = &mut listener.resource {
        listener.needs_gateway_settings = true;
    }
    listener
}

/// Settings of the Gateway of all listeners.
fn settings(settings: proto::GatewaySettings) -> Resource {
    Resource::new("infra/edge", Wire::GatewaySettings(settings))
}

fn certificate(name: &str, hostname: &str) -> Resource {
    let made = rcgen::generate_simple_self_signed([hostname.to_owned()]).unwrap();
    Resource::new(
        name,
        Wire::Certificate(proto::Certificate {
            chain: vec![made.cert.der().to_vec().into()],
            private_key: made.signing_key.serialize_der(),
            secret_uid: String::new(),
        }),
    )
}

struct Harness {
    state: State,
    published: Arc<ArcSwap<Snapshot>>,
    counter: u64,
}

impl Harness {
    fn new() -> Self {
        Self::with(EndpointRules::with_loopback())
    }

    fn with(endpoint_rules: EndpointRules) -> Self {
        let published = Arc::new(ArcSwap::default());
        Self {
            state: State::new(Arc::clone(&published), endpoint_rules).unwrap(),
            published,
            counter: 0,
        }
    }

    fn change(&mut self, upserts: Vec<Resource>, removals: Vec<ResourceKey>) -> Change {
        self.counter += 1;
        Change {
            generation: vestibule_stream::Generation::new(1, self.counter),
            full: false,
            upserts: upserts.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals,
        }
    }

    fn apply(&mut self, upserts: Vec<Resource>) -> Vec<(String, String)> {
        let change = self.change(upserts, Vec::new());
        reasons(self.state.apply(&change, &mut NoSockets))
    }

    fn remove(&mut self, removals: Vec<ResourceKey>) {
        let change = self.change(Vec::new(), removals);
        assert_eq!(self.state.apply(&change, &mut NoSockets), []);
    }

    fn select(&self, name: &str) -> Result<(String, Option<String>), Unmatched> {
        self.select_on(&BIND, name)
    }

    fn select_on(&self, bind: &BindKey, name: &str) -> Result<(String, Option<String>), Unmatched> {
        let name = (!name.is_empty()).then(|| Hostname::parse(name).unwrap());
        let snapshot = self.published.load();
        if snapshot.layer(bind) == Layer::Plain {
            let listener = snapshot.select_http(bind, Layer::Plain, name.as_ref());
            let listener = listener.map(|selected| selected.listener);
            let listener = listener.ok_or(Unmatched::NoListener)?;
            return Ok((listener.key.to_string(), None));
        }
        let selection = snapshot.select(bind, name.as_ref())?;
        Ok((
            selection.listener.key.to_string(),
            selection.route.map(|route| route.key.to_string()),
        ))
    }
}

fn reasons(rejects: Vec<Reject>) -> Vec<(String, String)> {
    rejects
        .into_iter()
        .map(|r| (r.key.unwrap().name, r.reason))
        .collect()
}

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, name)
}

const A: &str = "ListenerSet/team-a/web/tls";
const B: &str = "ListenerSet/team-b/web/tls";
const ANY: &str = "Gateway/infra/edge/any";

#[allow(clippy::unnecessary_wraps, reason = "what `select` is compared with")]
fn found(listener: &str, route: Option<&str>) -> Result<(String, Option<String>), Unmatched> {
    Ok((listener.to_owned(), route.map(ToOwned::to_owned)))
}
