//! Envoy's static configuration. Limits are lifted that would refuse ten thousand connections.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Role, Scenario};
use crate::tls::Leaf;

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
) -> Result<Command> {
    let tls = |leaf: &Leaf, protocols: &[&str]| {
        json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "alpn_protocols": protocols,
                    // Not offered by default in this release; the plain groups are its default.
                    "tls_params": { "ecdh_curves": ["X25519MLKEM768", "X25519", "P-256"] },
                    "tls_certificates": [{
                        "certificate_chain": { "inline_string": leaf.certificate_pem },
                        "private_key": { "inline_string": leaf.key_pem },
                    }],
                },
            },
        })
    };
    let named = |name: &str, filter: Value| json!({ "filter_chain_match": { "server_names": [name] }, "filters": [filter] });
    let chains: Vec<Value> = match scenario.role {
        Role::Passthrough => scenario
            .routes()
            .iter()
            .map(|(name, backend)| named(name, tcp_proxy(scenario, *backend)))
            .collect(),
        Role::Terminate | Role::Https => scenario
            .leaves()
            .iter()
            .map(|leaf| {
                let (filter, protocols): (Value, &[&str]) = match scenario.role {
                    Role::Https => (http_proxy(scenario), &["h2", "http/1.1"]),
                    _ => (tcp_proxy(scenario, scenario.ports.plain), &[]),
                };
                let mut chain = named(&leaf.name, filter);
                chain["transport_socket"] = tls(leaf, protocols);
                chain
            })
            .collect(),
        Role::Http => vec![json!({ "filters": [http_proxy(scenario)] })],
    };
    let inspector = match scenario.role {
        Role::Http => json!([]),
        _ => json!([{
            "name": "envoy.filters.listener.tls_inspector",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            },
        }]),
    };
    let ports = &scenario.ports;
    let clusters: Vec<Value> = [ports.raw, ports.plain, ports.tls, scenario.web]
        .into_iter()
        .map(cluster)
        .collect();
    let config = json!({
        "static_resources": {
            "listeners": [{
                "name": "l",
                "address": address(listen),
                "listener_filters": inspector,
                "filter_chains": chains,
            }],
            "clusters": clusters,
        },
    });
    let file = scenario.folder.join("envoy.json");
    fs::write(&file, serde_json::to_vec(&config)?)?;
    let mut command = Command::new(binary);
    command.arg("--config-path").arg(file);
    command.arg("--concurrency");
    command.arg(scenario.setting.workers.to_string());
    command.args(["--disable-hot-restart", "--log-level", "error"]);
    Ok(command)
}

fn access_log(scenario: &Scenario<'_>) -> Value {
    if !scenario.logs() {
        return json!([]);
    }
    json!([{
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": scenario.access_log(),
        },
    }])
}

/// The connection manager: routes by host and path, and the fields that our proxy adds.
fn http_proxy(scenario: &Scenario<'_>) -> Value {
    let hosts: Vec<Value> = scenario
        .hosts()
        .map(|host| {
            let routes: Vec<Value> = scenario
                .prefixes()
                .iter()
                .map(|prefix| {
                    json!({
                        "match": { "prefix": prefix },
                        "route": { "cluster": name(scenario.web), "timeout": "0s" },
                    })
                })
                .collect();
            json!({ "name": host, "domains": [host], "routes": routes })
        })
        .collect();
    let field = |name: &str, value: &str| {
        json!({
            "header": { "key": name, "value": value },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        })
    };
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "h",
            "access_log": access_log(scenario),
            // With this it sets x-forwarded-for, x-forwarded-proto and x-request-id itself.
            "use_remote_address": true,
            "upgrade_configs": [{ "upgrade_type": "websocket" }],
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": true,
                },
            }],
            "route_config": {
                "virtual_hosts": hosts,
                "request_headers_to_add": [
                    field("x-real-ip", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"),
                    field("x-forwarded-host", "%REQ(:AUTHORITY)%"),
                    field("x-forwarded-port", "%DOWNSTREAM_LOCAL_PORT%"),
                    field("cdn-loop", "bench"),
                ],
            },
        },
    })
}

fn address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn name(backend: SocketAddr) -> String {
    format!("be_{}", backend.port())
}

fn tcp_proxy(scenario: &Scenario<'_>, backend: SocketAddr) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "t",
            "cluster": name(backend),
            "access_log": access_log(scenario),
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
