//! Envoy's static configuration. Limits are lifted that would refuse ten thousand connections.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::{RETRIES, Role, Scenario};
use crate::tls::Leaf;

/// The cluster behind the roles that speak HTTP.
const WEB: &str = "web";

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
        Role::Http | Role::Grpc | Role::Retries => {
            vec![json!({ "filters": [http_proxy(scenario)] })]
        }
        Role::Tcp => vec![json!({ "filters": [tcp_proxy(scenario, scenario.behind_port())] })],
        Role::Udp => Vec::new(),
    };
    let filters = match scenario.role {
        Role::Passthrough | Role::Terminate | Role::Https => json!([{
            "name": "envoy.filters.listener.tls_inspector",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            },
        }]),
        Role::Udp => json!([udp_proxy(scenario)]),
        _ => json!([]),
    };
    let ports = &scenario.ports;
    let backends = match scenario.role {
        Role::Udp => vec![ports.datagrams],
        _ => vec![ports.raw, ports.plain, ports.tls],
    };
    let mut clusters: Vec<Value> = backends
        .into_iter()
        .map(|backend| cluster(&name(backend), &[backend]))
        .collect();
    clusters.push(web_cluster(scenario));
    let mut listener = json!({
        "name": "l",
        "address": address(listen),
        "listener_filters": filters,
        "filter_chains": chains,
    });
    if scenario.role == Role::Udp {
        listener["address"]["socket_address"]["protocol"] = json!("UDP");
    }
    let config = json!({
        "static_resources": { "listeners": [listener], "clusters": clusters },
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
                    let mut route = json!({ "cluster": WEB, "timeout": "0s" });
                    if scenario.role == Role::Retries {
                        route["retry_policy"] =
                            json!({ "retry_on": "5xx", "num_retries": RETRIES });
                    }
                    json!({ "match": { "prefix": prefix }, "route": route })
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

/// Sessions go to the one backend, whoever their client is.
fn udp_proxy(scenario: &Scenario<'_>) -> Value {
    json!({
        "name": "envoy.filters.udp_listener.udp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig",
            "stat_prefix": "u",
            "access_log": access_log(scenario),
            "matcher": { "on_no_match": { "action": {
                "name": "route",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route",
                    "cluster": name(scenario.behind_port()),
                },
            } } },
        },
    })
}

/// What the roles that speak HTTP route to.
fn web_cluster(scenario: &Scenario<'_>) -> Value {
    let mut web = cluster(WEB, &scenario.endpoints());
    if scenario.role == Role::Grpc {
        web["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        });
    }
    web
}

/// Retries under way are limited as they are by default.
fn cluster(name: &str, backends: &[SocketAddr]) -> Value {
    let many = 1_000_000;
    let endpoints = backends
        .iter()
        .map(|backend| json!({ "endpoint": { "address": address(*backend) } }));
    json!({
        "name": name,
        "type": "STATIC",
        "circuit_breakers": { "thresholds": [{
            "max_connections": many, "max_pending_requests": many, "max_requests": many,
        }] },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": endpoints.collect::<Vec<_>>() }],
        },
    })
}
