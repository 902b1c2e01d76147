//! Envoy's static configuration: one worker; limits lifted that would refuse ten thousand connections.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Role, Scenario};

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
) -> Result<Command> {
    let chains: Vec<Value> = match scenario.role {
        Role::Passthrough => scenario
            .routes()
            .iter()
            .map(|(name, backend)| {
                json!({
                    "filter_chain_match": { "server_names": [name] },
                    "filters": [tcp_proxy(*backend)],
                })
            })
            .collect(),
        Role::Terminate => scenario
            .leaves
            .iter()
            .map(|leaf| {
                json!({
                    "filter_chain_match": { "server_names": [leaf.name] },
                    "filters": [tcp_proxy(scenario.ports.plain)],
                    "transport_socket": {
                        "name": "envoy.transport_sockets.tls",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                            "common_tls_context": {
                                // Not offered by default in this release; the plain groups are its default.
                                "tls_params": { "ecdh_curves": ["X25519MLKEM768", "X25519", "P-256"] },
                                "tls_certificates": [{
                                    "certificate_chain": { "inline_string": leaf.certificate_pem },
                                    "private_key": { "inline_string": leaf.key_pem },
                                }],
                            },
                        },
                    },
                })
            })
            .collect(),
    };
    let clusters: Vec<Value> = [scenario.ports.raw, scenario.ports.plain, scenario.ports.tls]
        .into_iter()
        .map(cluster)
        .collect();
    let config = json!({
        "static_resources": {
            "listeners": [{
                "name": "l",
                "address": address(listen),
                "listener_filters": [{
                    "name": "envoy.filters.listener.tls_inspector",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
                    },
                }],
                "filter_chains": chains,
            }],
            "clusters": clusters,
        },
    });
    let file = scenario.folder.join("envoy.json");
    fs::write(&file, serde_json::to_vec(&config)?)?;
    let mut command = Command::new(binary);
    command.arg("--config-path").arg(file);
    command.args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "error",
    ]);
    Ok(command)
}

fn address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn name(backend: SocketAddr) -> String {
    format!("be_{}", backend.port())
}

fn tcp_proxy(backend: SocketAddr) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "t",
            "cluster": name(backend),
        },
    })
}

fn cluster(backend: SocketAddr) -> Value {
    let many = 1_000_000;
    json!({
        "name": name(backend),
        "type": "STATIC",
        "circuit_breakers": { "thresholds": [{
            "max_connections": many, "max_pending_requests": many, "max_requests": many,
        }] },
        "load_assignment": {
            "cluster_name": name(backend),
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(backend) } }] }],
        },
    })
}
