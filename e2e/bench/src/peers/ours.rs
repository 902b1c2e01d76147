//! vestibule-proxy, configured by a recording of one full batch.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use vestibule_stream::proto::{
    Attachment, Backend, Bind, Certificate, Challenge, Endpoint, Listener, RouteHostname,
    TlsAlpn01, TlsListener, TlsPassthrough, TlsRoute, TlsTerminate, Transport, WeightedBackend,
    challenge, listener, resource, tls_listener,
};
use vestibule_stream::{Batch, Generation, Resource, recording};

use super::{Role, Scenario};

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
    log: bool,
    challenges: usize,
) -> Result<Command> {
    let file = scenario.folder.join("recording");
    let mut resources = resources(scenario, listen);
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
    command.args(["--workers", "1", "--admin", "127.0.0.1:0"]);
    command.args(["--access-log", if log { "true" } else { "false" }]);
    // All clients are one source, and all lines are one tenant's.
    command.args([
        "--source-connections-per-second",
        "0",
        "--access-log-lines-per-second",
        "0",
    ]);
    Ok(command)
}

/// One listener, certificate and route per server name, as tenants declare them.
fn resources(scenario: &Scenario<'_>, listen: SocketAddr) -> Vec<Resource> {
    let mut upserts = Vec::new();
    let mut add = |name: String, resource| {
        upserts.push(Resource {
            name,
            resource: Some(resource),
        });
    };
    for backend in [scenario.ports.raw, scenario.ports.plain, scenario.ports.tls] {
        let endpoint = Endpoint {
            address: backend.ip().to_string(),
            port: u32::from(backend.port()),
        };
        add(
            backend_name(backend),
            resource::Resource::Backend(Backend {
                endpoints: vec![endpoint],
                ..Default::default()
            }),
        );
    }
    if scenario.role == Role::Terminate {
        for leaf in scenario.leaves {
            let certificate = Certificate {
                chain: vec![leaf.certificate.clone().into()],
                private_key: leaf.key.clone(),
            };
            add(
                certificate_name(&leaf.name),
                resource::Resource::Certificate(certificate),
            );
        }
    }
    for (index, (name, backend)) in scenario.routes().into_iter().enumerate() {
        let mode = match scenario.role {
            Role::Passthrough => tls_listener::Mode::Passthrough(TlsPassthrough {}),
            Role::Terminate => tls_listener::Mode::Terminate(TlsTerminate {
                certificates: vec![certificate_name(&name)],
                ..Default::default()
            }),
        };
        let listener_name = format!("ListenerSet/tenant-{index}/set/listener");
        let listener = Listener {
            gateway: "infra/gateway".to_owned(),
            bind: Some(bind(listen)),
            hostname: name.clone(),
            tenant: format!("tenant-{index}"),
            protocol: Some(listener::Protocol::Tls(TlsListener { mode: Some(mode) })),
            ..Default::default()
        };
        add(
            listener_name.clone(),
            resource::Resource::Listener(listener),
        );
        let route = TlsRoute {
            tenant: format!("tenant-{index}"),
            created: 1_700_000_000,
            attachments: vec![Attachment {
                listener: listener_name,
                hostnames: vec![RouteHostname {
                    r#match: name.clone(),
                    rank: name,
                    shared: false,
                    paths: Vec::new(),
                }],
            }],
            backends: vec![WeightedBackend {
                backend: backend_name(backend),
                weight: 1,
            }],
        };
        add(
            format!("tenant-{index}/route"),
            resource::Resource::TlsRoute(route),
        );
    }
    upserts
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
        bind: Some(bind(listen)),
        hostname: name.to_owned(),
        tenant: "tenant-0".to_owned(),
        answer: Some(challenge::Answer::TlsAlpn01(answer)),
    };
    Ok(Resource {
        name: format!("infra/gateway/tls-alpn-01/{name}"),
        resource: Some(resource::Resource::Challenge(challenge)),
    })
}

fn bind(listen: SocketAddr) -> Bind {
    Bind {
        address: listen.ip().to_string(),
        port: u32::from(listen.port()),
        transport: Transport::Tcp.into(),
    }
}

fn backend_name(backend: SocketAddr) -> String {
    format!("bench/backend:{}", backend.port())
}

fn certificate_name(host: &str) -> String {
    format!("bench/{host}")
}
