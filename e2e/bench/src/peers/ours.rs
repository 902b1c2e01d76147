//! vestibule-proxy, configured by a recording of one full batch.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use vestibule_stream::proto::{
    Attachment, Backend, Bind, Certificate, Challenge, Endpoint, GrpcMethod, HttpBackend,
    HttpListener, HttpMatch, HttpRetry, HttpRoute, HttpRule, Listener, RouteHostname, TcpListener,
    TcpRoute, TlsAlpn01, TlsListener, TlsPassthrough, TlsRoute, TlsTerminate, Transport,
    UdpListener, WeightedBackend, challenge, grpc_method, http_match, listener, resource,
    tls_listener,
};
use vestibule_stream::{Batch, Generation, Resource, recording};

use super::{RETRIES, Role, Scenario};
use crate::child::allow_loopback;
use crate::grpc::SERVICE;
use crate::tls::Leaf;

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
    as_it_comes: bool,
    challenges: usize,
) -> Result<Command> {
    let file = scenario.folder.join("recording");
    let mut resources = match scenario.role {
        Role::Passthrough | Role::Terminate => streams(scenario, listen),
        Role::Tcp | Role::Udp => port(scenario, listen),
        Role::Http | Role::Https | Role::Grpc | Role::Retries => http(scenario, listen),
    };
    if challenges > 0 {
        let served = scenario.routes().into_iter().map(|(name, _)| name);
        let others = (0..challenges).map(|number| format!("n{number}.challenged.test"));
        for name in served.chain(others) {
            resources.push(challenge(&name, listen)?);
        }
    }
    let first = Generation {
        term: 1,
        counter: 1,
    };
    let batch = Batch::full(first, &resources)?;
    let mut output = BufWriter::new(File::create(&file)?);
    recording::write(&mut output, &batch)?;
    output.flush()?;
    let mut command = Command::new(binary);
    command.arg("--config-file").arg(file);
    command.args(["--workers", &scenario.setting.workers.to_string()]);
    command.args(["--admin", "127.0.0.1:0"]);
    allow_loopback(&mut command);
    // All clients are one source, which has more connections than one is expected to.
    command.args(["--source-connections-per-second", "0"]);
    command.args(["--source-udp-sessions-per-second", "0"]);
    if !as_it_comes {
        let log = scenario.logs().to_string();
        command.args(["--access-log", &log]);
        // All lines are one tenant's.
        command.args(["--access-log-lines-per-second", "0"]);
    }
    Ok(command)
}

/// One listener, certificate and route per server name, as tenants declare them.
fn streams(scenario: &Scenario<'_>, listen: SocketAddr) -> Vec<Resource> {
    let mut all: Vec<Resource> = [scenario.ports.raw, scenario.ports.plain, scenario.ports.tls]
        .into_iter()
        .map(|address| backend(&[address]))
        .collect();
    all.extend(scenario.leaves().iter().map(certificate));
    for (index, (name, backend)) in scenario.routes().into_iter().enumerate() {
        let mode = match scenario.role {
            Role::Passthrough => tls_listener::Mode::Passthrough(TlsPassthrough {}),
            _ => tls_listener::Mode::Terminate(terminate(&name)),
        };
        let protocol = listener::Protocol::Tls(TlsListener { mode: Some(mode) });
        all.push(listener(
            index,
            &name,
            bind(listen, Transport::Tcp),
            protocol,
        ));
        let route = TlsRoute {
            tenant: tenant(index),
            created: 1_700_000_000,
            attachments: vec![attachment(index, name)],
            backends: vec![weighted(&[backend])],
        };
        let name = format!("{}/route", tenant(index));
        all.push(resource(name, resource::Resource::TlsRoute(route)));
    }
    all
}

/// One listener of a port of its own, and its route.
fn port(scenario: &Scenario<'_>, listen: SocketAddr) -> Vec<Resource> {
    let behind = [scenario.behind_port()];
    let route = TcpRoute {
        tenant: tenant(0),
        created: 1_700_000_000,
        listeners: vec![listener_name(0)],
        backends: vec![weighted(&behind)],
    };
    let (transport, protocol, route) = match scenario.role {
        Role::Udp => (
            Transport::Udp,
            listener::Protocol::Udp(UdpListener {}),
            resource::Resource::UdpRoute(route),
        ),
        _ => (
            Transport::Tcp,
            listener::Protocol::Tcp(TcpListener {}),
            resource::Resource::TcpRoute(route),
        ),
    };
    vec![
        backend(&behind),
        listener(0, "", bind(listen, transport), protocol),
        resource(format!("{}/route", tenant(0)), route),
    ]
}

/// One listener per hostname, and one route for each path.
fn http(scenario: &Scenario<'_>, listen: SocketAddr) -> Vec<Resource> {
    let endpoints = scenario.endpoints();
    let mut all = vec![backend(&endpoints)];
    all.extend(scenario.leaves().iter().map(certificate));
    for (index, host) in scenario.hosts().enumerate() {
        let terminate = (scenario.role == Role::Https).then(|| terminate(&host));
        let protocol = listener::Protocol::Http(HttpListener { terminate });
        all.push(listener(
            index,
            &host,
            bind(listen, Transport::Tcp),
            protocol,
        ));
        for (number, prefix) in scenario.prefixes().into_iter().enumerate() {
            let path = match scenario.role {
                Role::Grpc => http_match::Path::GrpcMethod(GrpcMethod {
                    service: Some(grpc_method::Service::ExactService(SERVICE.to_owned())),
                    method: None,
                }),
                _ => http_match::Path::Prefix(prefix),
            };
            let retry = HttpRetry {
                codes: vec![503],
                attempts: RETRIES,
                backoff: None,
            };
            let rule = HttpRule {
                matches: vec![HttpMatch {
                    path: Some(path),
                    ..Default::default()
                }],
                backends: vec![HttpBackend {
                    backend: backend_name(&endpoints),
                    weight: 1,
                    ..Default::default()
                }],
                retry: (scenario.role == Role::Retries).then_some(retry),
                ..Default::default()
            };
            let route = HttpRoute {
                tenant: tenant(index),
                created: 1_700_000_000,
                attachments: vec![attachment(index, host.clone())],
                rules: vec![rule],
            };
            let name = format!("{}/route-{number}", tenant(index));
            let route = match scenario.role {
                Role::Grpc => resource::Resource::GrpcRoute(route),
                _ => resource::Resource::HttpRoute(route),
            };
            all.push(resource(name, route));
        }
    }
    all
}

fn resource(name: String, resource: resource::Resource) -> Resource {
    Resource {
        name,
        resource: Some(resource),
    }
}

fn backend(addresses: &[SocketAddr]) -> Resource {
    let endpoint = |address: &SocketAddr| Endpoint {
        address: address.ip().to_string(),
        port: u32::from(address.port()),
    };
    let backend = Backend {
        endpoints: addresses.iter().map(endpoint).collect(),
        ..Default::default()
    };
    resource(
        backend_name(addresses),
        resource::Resource::Backend(backend),
    )
}

fn weighted(addresses: &[SocketAddr]) -> WeightedBackend {
    WeightedBackend {
        backend: backend_name(addresses),
        weight: 1,
    }
}

fn certificate(leaf: &Leaf) -> Resource {
    let certificate = Certificate {
        chain: vec![leaf.certificate.clone().into()],
        private_key: leaf.key.clone(),
        secret_uid: String::new(),
    };
    resource(
        certificate_name(&leaf.name),
        resource::Resource::Certificate(certificate),
    )
}

fn terminate(host: &str) -> TlsTerminate {
    TlsTerminate {
        certificates: vec![certificate_name(host)],
        ..Default::default()
    }
}

fn listener(index: usize, host: &str, bind: Bind, protocol: listener::Protocol) -> Resource {
    let listener = Listener {
        gateway: "infra/gateway".to_owned(),
        bind: Some(bind),
        hostname: host.to_owned(),
        tenant: tenant(index),
        protocol: Some(protocol),
        ..Default::default()
    };
    resource(listener_name(index), resource::Resource::Listener(listener))
}

fn attachment(index: usize, host: String) -> Attachment {
    Attachment {
        listener: listener_name(index),
        hostnames: vec![RouteHostname {
            r#match: host.clone(),
            rank: host,
            shared: false,
            paths: Vec::new(),
        }],
    }
}

fn tenant(index: usize) -> String {
    format!("tenant-{index}")
}

fn listener_name(index: usize) -> String {
    format!("ListenerSet/tenant-{index}/set/listener")
}

/// What a CA is answered with that checks a name.
fn challenge(name: &str, listen: SocketAddr) -> Result<Resource> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
    let key = KeyPair::generate()?;
    let answer = TlsAlpn01 {
        certificate: params.self_signed(&key)?.der().to_vec(),
        private_key: key.serialize_der(),
    };
    let challenge = Challenge {
        gateway: "infra/gateway".to_owned(),
        bind: Some(bind(listen, Transport::Tcp)),
        hostname: name.to_owned(),
        tenant: "tenant-0".to_owned(),
        answer: Some(challenge::Answer::TlsAlpn01(answer)),
    };
    Ok(Resource {
        name: format!("infra/gateway/tls-alpn-01/{name}"),
        resource: Some(resource::Resource::Challenge(challenge)),
    })
}

fn bind(listen: SocketAddr, transport: Transport) -> Bind {
    Bind {
        address: listen.ip().to_string(),
        port: u32::from(listen.port()),
        transport: transport.into(),
    }
}

/// By the first endpoint.
fn backend_name(addresses: &[SocketAddr]) -> String {
    let port = addresses.first().map_or(0, SocketAddr::port);
    format!("bench/backend:{port}")
}

fn certificate_name(host: &str) -> String {
    format!("bench/{host}")
}
