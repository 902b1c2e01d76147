//! How each proxy is told to serve the two tenants: `steady` and `noisy`, whose hostnames end on one port, and
//! passthrough on another. Limits are everybody's defaults.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use vestibule_stream::proto::{
    Attachment, Backend, Bind, Certificate, Endpoint, HttpBackend, HttpListener, HttpMatch,
    HttpRoute, HttpRule, Listener, RouteHostname, TlsListener, TlsPassthrough, TlsRoute,
    TlsTerminate, Transport, WeightedBackend, http_match, listener, resource, tls_listener,
};
use vestibule_stream::{Batch, Generation, Resource, recording};

use crate::child::{self, Guarded, Output, allow_loopback};
use crate::peers::{Binaries, Peer, free_address, is_listening};
use crate::sys;
use crate::tls::{Leaf, RAW_HOST};

/// The tenant that is measured, and its hostname's first label.
pub(super) const STEADY: &str = "steady";
/// The tenant that is in the way, likewise.
pub(super) const NOISY: &str = "noisy";
/// The noisy tenant's hostname with an RSA-4096 key.
pub(super) const RSA: &str = "rsa";
/// The noisy tenant's hostname with regular expressions.
pub(super) const REGEX: &str = "regex";

/// The hostname of one of them.
pub(super) fn hostname(label: &str) -> String {
    format!("{label}.bench.test")
}

/// A proxy that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Proxy {
    Vestibule,
    Haproxy,
    Envoy,
}

/// What the proxies lead to, and the noisy tenant's expressions.
pub(super) struct Site {
    /// Certificates of the hostnames.
    pub(super) leaves: Vec<Leaf>,
    /// The steady tenant's web server.
    pub(super) steady: SocketAddr,
    /// The noisy one's.
    pub(super) noisy: SocketAddr,
    /// The noisy one's server of passed-through connections.
    pub(super) raw: SocketAddr,
    /// A folder for configuration and logs.
    pub(super) folder: PathBuf,
}

/// What of the configuration differs from row to row.
#[derive(Clone, Debug, Default)]
pub(super) struct Setting {
    /// Regular expressions of the route for [`REGEX`].
    pub(super) patterns: Vec<String>,
    /// The proxy logs to a pipe that nobody reads.
    pub(super) log_unread: bool,
}

/// A proxy that serves.
pub(super) struct Running {
    pub(super) https: SocketAddr,
    pub(super) passthrough: SocketAddr,
    pub(super) process: Guarded,
}

impl Proxy {
    /// Name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Vestibule => "Vestibule",
            Self::Haproxy => "HAProxy",
            Self::Envoy => "Envoy",
        }
    }

    /// Whether it is there, and which version it is.
    pub(super) fn version(self, binaries: &Binaries) -> Option<String> {
        let peer = match self {
            Self::Vestibule => Peer::Ours,
            Self::Haproxy => Peer::Haproxy,
            Self::Envoy => Peer::Envoy,
        };
        peer.version(binaries)
    }

    /// Starts it and waits until it listens.
    pub(super) fn start(
        self,
        site: &Site,
        setting: &Setting,
        binaries: &Binaries,
        core: usize,
        nice: i32,
    ) -> Result<Running> {
        let (https, passthrough) = (free_address()?, free_address()?);
        let folder = site.folder.join("proxy");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let at = At {
            site,
            setting,
            https,
            passthrough,
            folder: &folder,
        };
        let mut command = match self {
            Self::Vestibule => at.vestibule(&binaries.ours)?,
            Self::Haproxy => at.haproxy()?,
            Self::Envoy => at.envoy(&binaries.envoy)?,
        };
        sys::prioritise(&mut command, nice);
        let output = if setting.log_unread {
            Output::Unread
        } else {
            Output::Null
        };
        let log = folder.join("log");
        let mut process = Guarded::start_with(command, self.name(), &[core], &log, output)?;
        let up = child::poll(Duration::from_mins(1), "accepting connections", || {
            if let Some(status) = process.ended()? {
                bail!("it ended: {status}");
            }
            Ok((is_listening(https) && is_listening(passthrough)).then_some(()))
        });
        if let Err(error) = up {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<_> = text.lines().rev().take(8).collect();
            return Err(error.context(format!("{}: {}", self.name(), tail.join(" | "))));
        }
        Ok(Running {
            https,
            passthrough,
            process,
        })
    }
}

/// One start.
struct At<'a> {
    site: &'a Site,
    setting: &'a Setting,
    https: SocketAddr,
    passthrough: SocketAddr,
    folder: &'a Path,
}

impl At<'_> {
    /// The tenant that has a hostname, and its backend.
    fn owner(&self, hostname: &str) -> (&'static str, SocketAddr) {
        if hostname.starts_with(STEADY) {
            (STEADY, self.site.steady)
        } else {
            (NOISY, self.site.noisy)
        }
    }

    fn vestibule(&self, binary: &Path) -> Result<Command> {
        let file = self.folder.join("recording");
        let first = Generation {
            term: 1,
            counter: 1,
        };
        let batch = Batch::full(first, &self.resources())?;
        let mut output = BufWriter::new(File::create(&file)?);
        recording::write(&mut output, &batch)?;
        output.flush()?;
        let mut command = Command::new(binary);
        command.arg("--config-file").arg(file);
        command.args(["--workers", "1", "--admin", "127.0.0.1:0"]);
        allow_loopback(&mut command);
        Ok(command)
    }

    fn resources(&self) -> Vec<Resource> {
        let mut all = Vec::new();
        let mut add = |name: String, resource| {
            let resource = Some(resource);
            all.push(Resource { name, resource });
        };
        for address in [self.site.steady, self.site.noisy, self.site.raw] {
            let endpoint = Endpoint {
                address: address.ip().to_string(),
                port: u32::from(address.port()),
            };
            let backend = Backend {
                endpoints: vec![endpoint],
                ..Default::default()
            };
            add(backend_name(address), resource::Resource::Backend(backend));
        }
        for leaf in &self.site.leaves {
            let (tenant, backend) = self.owner(&leaf.name);
            let certificate = Certificate {
                chain: vec![leaf.certificate.clone().into()],
                private_key: leaf.key.clone(),
                secret_uid: String::new(),
            };
            let certificate_name = format!("{tenant}/{}", leaf.name);
            add(
                certificate_name.clone(),
                resource::Resource::Certificate(certificate),
            );
            let terminate = TlsTerminate {
                certificates: vec![certificate_name],
                ..Default::default()
            };
            let http = HttpListener {
                terminate: Some(terminate),
            };
            let listener = Listener {
                gateway: "infra/gateway".to_owned(),
                bind: Some(bind(self.https)),
                hostname: leaf.name.clone(),
                tenant: tenant.to_owned(),
                protocol: Some(listener::Protocol::Http(http)),
                ..Default::default()
            };
            let listener_name = format!("ListenerSet/{tenant}/set/{}", leaf.name);
            add(
                listener_name.clone(),
                resource::Resource::Listener(listener),
            );
            let patterns = if leaf.name == hostname(REGEX) {
                self.setting.patterns.as_slice()
            } else {
                &[]
            };
            let by_pattern = |pattern: &String| HttpMatch {
                path: Some(http_match::Path::Regex(pattern.clone())),
                ..Default::default()
            };
            let rule = HttpRule {
                matches: patterns.iter().map(by_pattern).collect(),
                backends: vec![HttpBackend {
                    backend: backend_name(backend),
                    weight: 1,
                    ..Default::default()
                }],
                ..Default::default()
            };
            let route = HttpRoute {
                tenant: tenant.to_owned(),
                created: 1_700_000_000,
                attachments: vec![attachment(listener_name, &leaf.name)],
                rules: vec![rule],
            };
            let route_name = format!("{tenant}/{}", leaf.name);
            add(route_name, resource::Resource::HttpRoute(route));
        }
        self.passthrough_resources(&mut add);
        all
    }

    fn passthrough_resources(&self, add: &mut impl FnMut(String, resource::Resource)) {
        let mode = tls_listener::Mode::Passthrough(TlsPassthrough {});
        let listener = Listener {
            gateway: "infra/gateway".to_owned(),
            bind: Some(bind(self.passthrough)),
            hostname: RAW_HOST.to_owned(),
            tenant: NOISY.to_owned(),
            protocol: Some(listener::Protocol::Tls(TlsListener { mode: Some(mode) })),
            ..Default::default()
        };
        let listener_name = format!("ListenerSet/{NOISY}/set/raw");
        add(
            listener_name.clone(),
            resource::Resource::Listener(listener),
        );
        let route = TlsRoute {
            tenant: NOISY.to_owned(),
            created: 1_700_000_000,
            attachments: vec![attachment(listener_name, RAW_HOST)],
            backends: vec![WeightedBackend {
                backend: backend_name(self.site.raw),
                weight: 1,
            }],
        };
        add(format!("{NOISY}/raw"), resource::Resource::TlsRoute(route));
    }

    /// Timeouts are those of the configuration that comes with Debian's package.
    fn haproxy(&self) -> Result<Command> {
        let list = self.folder.join("certificates");
        let bundles = self.site.leaves.iter().map(|leaf| &leaf.bundle);
        let bundles: Vec<String> = bundles.map(|path| path.display().to_string()).collect();
        fs::write(&list, bundles.join("\n") + "\n")?;
        let log = if self.setting.log_unread {
            (
                "  log stdout format raw local0\n",
                "  log global\n  option httplog\n",
            )
        } else {
            ("", "")
        };
        let text = format!(
            "global\n  nbthread 1\n{}\
             defaults\n  mode http\n  timeout connect 5000\n  timeout client 50000\n  timeout server 50000\n{}\
             frontend https\n  bind {} ssl crt-list {} alpn h2,http/1.1\n  \
             use_backend steady if {{ hdr(host) -i {} }}\n  default_backend noisy\n\
             frontend raw\n  mode tcp\n  bind {}\n  tcp-request inspect-delay 5s\n  \
             tcp-request content accept if {{ req.ssl_hello_type 1 }}\n  \
             use_backend raw if {{ req.ssl_sni -i {RAW_HOST} }}\n\
             backend steady\n  server s {}\nbackend noisy\n  server s {}\n\
             backend raw\n  mode tcp\n  server s {}\n",
            log.0,
            log.1,
            self.https,
            list.display(),
            hostname(STEADY),
            self.passthrough,
            self.site.steady,
            self.site.noisy,
            self.site.raw,
        );
        let file = self.folder.join("haproxy.cfg");
        fs::write(&file, text)?;
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(file);
        Ok(command)
    }

    fn envoy(&self, binary: &Path) -> Result<Command> {
        let inspector = json!({
            "name": "envoy.filters.listener.tls_inspector",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            },
        });
        let chains: Vec<Value> = self
            .site
            .leaves
            .iter()
            .map(|leaf| self.chain(leaf))
            .collect();
        let tcp = json!({
            "filter_chain_match": { "server_names": [RAW_HOST] },
            "filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "raw",
                    "cluster": "raw",
                },
            }],
        });
        let clusters = [
            ("steady", self.site.steady),
            ("noisy", self.site.noisy),
            ("raw", self.site.raw),
        ];
        let clusters: Vec<Value> = clusters
            .into_iter()
            .map(|(name, at)| {
                json!({
                    "name": name,
                    "type": "STATIC",
                    "load_assignment": {
                        "cluster_name": name,
                        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(at) } }] }],
                    },
                })
            })
            .collect();
        let config = json!({
            "static_resources": {
                "listeners": [
                    {
                        "name": "https",
                        "address": address(self.https),
                        "listener_filters": [inspector.clone()],
                        "filter_chains": chains,
                    },
                    {
                        "name": "raw",
                        "address": address(self.passthrough),
                        "listener_filters": [inspector],
                        "filter_chains": [tcp],
                    },
                ],
                "clusters": clusters,
            },
        });
        let file = self.folder.join("envoy.json");
        fs::write(&file, serde_json::to_vec(&config)?)?;
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(file).args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "error",
        ]);
        Ok(command)
    }

    fn chain(&self, leaf: &Leaf) -> Value {
        let (tenant, _) = self.owner(&leaf.name);
        let logs = if self.setting.log_unread {
            json!([{
                "name": "envoy.access_loggers.stdout",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
                },
            }])
        } else {
            json!([])
        };
        json!({
            "filter_chain_match": { "server_names": [leaf.name] },
            "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": tenant,
                    "access_log": logs,
                    "http_filters": [{
                        "name": "envoy.filters.http.router",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        },
                    }],
                    "route_config": {
                        "virtual_hosts": [{
                            "name": tenant,
                            "domains": ["*"],
                            "routes": [{
                                "match": { "prefix": "/" },
                                "route": { "cluster": tenant },
                            }],
                        }],
                    },
                },
            }],
            "transport_socket": {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    "common_tls_context": {
                        "alpn_protocols": ["h2", "http/1.1"],
                        "tls_certificates": [{
                            "certificate_chain": { "inline_string": leaf.certificate_pem },
                            "private_key": { "inline_string": leaf.key_pem },
                        }],
                    },
                },
            },
        })
    }
}

fn address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn attachment(listener: String, hostname: &str) -> Attachment {
    let hostname = RouteHostname {
        r#match: hostname.to_owned(),
        rank: hostname.to_owned(),
        ..Default::default()
    };
    Attachment {
        listener,
        hostnames: vec![hostname],
    }
}

fn backend_name(address: SocketAddr) -> String {
    format!("bench/backend:{}", address.port())
}

fn bind(at: SocketAddr) -> Bind {
    Bind {
        address: at.ip().to_string(),
        port: u32::from(at.port()),
        transport: Transport::Tcp.into(),
    }
}
