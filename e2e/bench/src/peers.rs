//! The proxies compared: how each is configured and started.

mod envoy;
mod haproxy;
mod hitch;
mod nginx;
mod ours;
mod sozu;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::backend::Ports;
use crate::child::{self, Guarded, Output};
use crate::grpc::SERVICE;
use crate::metric::{Group, Logging, Setting};
use crate::tls::Leaf;

/// A proxy that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// No proxy.
    Direct,
    /// vestibule-proxy with the settings that all peers have.
    Ours,
    /// vestibule-proxy as it comes: with its log, whatever the others do.
    OursDefault,
    /// vestibule-proxy, while CAs are to check names: those that are served and a thousand more.
    OursChallenged,
    /// Debian's `HAProxy`.
    Haproxy,
    /// `HAProxy` with splicing on.
    HaproxySplice,
    /// A newer `HAProxy`, given with --haproxy-next.
    HaproxyNext,
    /// The newer `HAProxy` with splicing on.
    HaproxyNextSplice,
    /// Envoy from `PyPI`.
    Envoy,
    /// Debian's nginx with the stream module.
    Nginx,
    /// Debian's hitch.
    Hitch,
    /// sozu from crates.io.
    Sozu,
}

/// Challenges for names that are not served.
const CHALLENGES: usize = 1000;

/// What the proxy is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Route by server name, pass the bytes.
    Passthrough,
    /// Terminate TLS, pass plain bytes.
    Terminate,
    /// Route HTTP requests by host and path.
    Http,
    /// Terminate TLS and route HTTP requests by host and path.
    Https,
    /// Pass the bytes of a port.
    Tcp,
    /// Pass the datagrams of a port.
    Udp,
    /// Route calls of gRPC by host and service.
    Grpc,
    /// Route HTTP requests to endpoints that fail, and try up to three times more.
    Retries,
}

/// How often a request is tried again in [`Role::Retries`].
const RETRIES: u32 = 3;

/// Where the peers' binaries are.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    /// vestibule-proxy.
    pub(crate) ours: PathBuf,
    /// Envoy.
    pub(crate) envoy: PathBuf,
    /// The newer `HAProxy`.
    pub(crate) haproxy_next: Option<PathBuf>,
    /// sozu.
    pub(crate) sozu: Option<PathBuf>,
}

/// One start of a proxy.
pub(crate) struct Scenario<'a> {
    /// What it does.
    pub(crate) role: Role,
    /// Hostnames that it serves, where it terminates TLS or speaks HTTP.
    pub(crate) hosts: usize,
    /// Routes of each hostname by path; with one there is no path to match.
    pub(crate) paths: usize,
    /// Certificates, at least as many as hosts where it terminates TLS.
    pub(crate) leaves: &'a [Leaf],
    /// The backend's addresses.
    pub(crate) ports: Ports,
    /// The web server behind the roles that speak HTTP.
    pub(crate) web: SocketAddr,
    /// Workers and logs.
    pub(crate) setting: Setting,
    /// A folder of its own for configuration and logs.
    pub(crate) folder: &'a Path,
    /// Cores it is pinned to.
    pub(crate) cores: &'a [usize],
}

impl Scenario<'_> {
    /// Server names and the backend of each, for the roles that pass bytes.
    fn routes(&self) -> Vec<(String, SocketAddr)> {
        match self.role {
            Role::Passthrough => vec![
                (crate::tls::RAW_HOST.to_owned(), self.ports.raw),
                (crate::tls::TLS_HOST.to_owned(), self.ports.tls),
            ],
            Role::Terminate => self.hosts().map(|host| (host, self.ports.plain)).collect(),
            Role::Http | Role::Https => self.hosts().map(|host| (host, self.web)).collect(),
            Role::Tcp | Role::Udp | Role::Grpc | Role::Retries => Vec::new(),
        }
    }

    /// The one backend of a port, for the roles that look at nothing else.
    fn behind_port(&self) -> SocketAddr {
        match self.role {
            Role::Udp => self.ports.datagrams,
            _ => self.ports.plain,
        }
    }

    /// Endpoints of the one backend of the roles that speak HTTP.
    fn endpoints(&self) -> Vec<SocketAddr> {
        match self.role {
            Role::Grpc => vec![self.ports.grpc],
            Role::Retries => self.ports.failing.to_vec(),
            _ => vec![self.web],
        }
    }

    fn hosts(&self) -> impl Iterator<Item = String> {
        (0..self.hosts).map(crate::tls::host)
    }

    /// Beginnings of the paths that each host has a route for: "/" where there is one for everything.
    fn prefixes(&self) -> Vec<String> {
        match (self.role, self.paths) {
            (Role::Grpc, _) => vec![format!("/{SERVICE}/")],
            (_, 1) => vec!["/".to_owned()],
            (_, several) => (0..several).map(crate::wire::path).collect(),
        }
    }

    /// Whether a line is to be written for each connection or request.
    fn logs(&self) -> bool {
        self.setting.logging == Logging::File
    }

    /// The file for these lines, of those who open it themselves. The others' standard output is a file too.
    fn access_log(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// Certificates of the hosts.
    fn leaves(&self) -> &[Leaf] {
        match self.role {
            Role::Terminate | Role::Https => self.leaves.get(..self.hosts).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// A proxy that serves.
pub(crate) struct Running {
    /// Its address.
    pub(crate) listen: SocketAddr,
    /// The process; none for a direct connection.
    pub(crate) process: Option<Guarded>,
}

impl Running {
    /// The proxy's process, if there is a proxy.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Guarded::pid)
    }
}

impl Peer {
    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct, no proxy",
            Self::Ours => "Vestibule",
            Self::OursDefault => "Vestibule as it comes",
            Self::OursChallenged => "Vestibule, with challenges",
            Self::Haproxy => "HAProxy",
            Self::HaproxySplice => "HAProxy, splice on",
            Self::HaproxyNext => "newer HAProxy",
            Self::HaproxyNextSplice => "newer HAProxy, splice on",
            Self::Envoy => "Envoy",
            Self::Nginx => "nginx",
            Self::Hitch => "hitch",
            Self::Sozu => "sozu",
        }
    }

    /// Whether it is one of those that ours is held against.
    pub(crate) fn is_rival(self) -> bool {
        !matches!(
            self,
            Self::Direct | Self::Ours | Self::OursDefault | Self::OursChallenged
        )
    }

    /// Whether the peer does this at all.
    pub(crate) fn can(self, group: Group, logging: Logging) -> bool {
        match self {
            Self::Direct => matches!(
                group,
                Group::Passthrough | Group::Http | Group::Tcp | Group::Udp | Group::Grpc
            ),
            // Splicing is nothing to a proxy that encrypts, or that takes HTTP/2 apart.
            Self::HaproxySplice | Self::HaproxyNextSplice => {
                matches!(group, Group::Passthrough | Group::Http | Group::Tcp)
            }
            Self::Haproxy | Self::HaproxyNext => group != Group::Udp,
            // hitch has no routes, and its log is not one line for each connection.
            Self::Hitch => group == Group::Terminate && logging == Logging::Off,
            // nginx 1.22 has one server per port in a stream.
            Self::Nginx => group != Group::Hosts,
            Self::Sozu => matches!(group, Group::Http | Group::Https | Group::Routes),
            // Challenges are looked at by server name.
            Self::OursChallenged => matches!(
                group,
                Group::Passthrough | Group::Terminate | Group::Hosts | Group::Https
            ),
            Self::Ours | Self::OursDefault | Self::Envoy => true,
        }
    }

    /// Whether it is there, and which version it is.
    pub(crate) fn version(self, binaries: &Binaries) -> Option<String> {
        let (path, flag) = match self {
            Self::Direct => return Some(String::new()),
            Self::Ours | Self::OursDefault | Self::OursChallenged => {
                (binaries.ours.clone(), "--version")
            }
            Self::Haproxy | Self::HaproxySplice => ("haproxy".into(), "-v"),
            Self::HaproxyNext | Self::HaproxyNextSplice => (binaries.haproxy_next.clone()?, "-v"),
            Self::Envoy => (binaries.envoy.clone(), "--version"),
            Self::Nginx => ("nginx".into(), "-v"),
            Self::Hitch => ("hitch".into(), "--version"),
            Self::Sozu => (binaries.sozu.clone()?, "--version"),
        };
        let output = Command::new(path).arg(flag).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Some(
            text.lines()
                .find(|line| !line.trim().is_empty())
                .unwrap_or_default()
                .trim()
                .to_owned(),
        )
    }

    /// Starts it and waits until it accepts.
    pub(crate) fn start(self, scenario: &Scenario<'_>, binaries: &Binaries) -> Result<Running> {
        if self == Self::Direct {
            let listen = match scenario.role {
                Role::Passthrough => scenario.ports.raw,
                Role::Terminate | Role::Tcp => scenario.ports.plain,
                Role::Http | Role::Https | Role::Retries => scenario.web,
                Role::Udp => scenario.ports.datagrams,
                Role::Grpc => scenario.ports.grpc,
            };
            return Ok(Running {
                listen,
                process: None,
            });
        }
        std::fs::create_dir_all(scenario.folder)?;
        // In the family of addresses that the backends have.
        let any = SocketAddr::new(scenario.web.ip(), 0);
        let listen = match scenario.role {
            Role::Udp => UdpSocket::bind(any)?.local_addr()?,
            _ => TcpListener::bind(any)?.local_addr()?,
        };
        let haproxy = |binary: &Path, splice| haproxy::command(binary, scenario, listen, splice);
        let ours = |as_it_comes, challenges| {
            ours::command(&binaries.ours, scenario, listen, as_it_comes, challenges)
        };
        let next = || {
            binaries
                .haproxy_next
                .as_deref()
                .context("no --haproxy-next given")
        };
        let debian = Path::new("haproxy");
        let command = match self {
            Self::Direct => bail!("nothing to start"),
            Self::Ours => ours(false, 0)?,
            Self::OursDefault => ours(true, 0)?,
            Self::OursChallenged => ours(false, CHALLENGES)?,
            Self::Haproxy => haproxy(debian, false)?,
            Self::HaproxySplice => haproxy(debian, true)?,
            Self::HaproxyNext => haproxy(next()?, false)?,
            Self::HaproxyNextSplice => haproxy(next()?, true)?,
            Self::Envoy => envoy::command(&binaries.envoy, scenario, listen)?,
            Self::Nginx => nginx::command(scenario, listen)?,
            Self::Hitch => hitch::command(scenario, listen)?,
            Self::Sozu => {
                let binary = binaries.sozu.as_deref();
                sozu::command(binary.context("no --sozu given")?, scenario, listen)?
            }
        };
        let log = scenario.folder.join("log");
        let output = Output::File;
        let mut process = Guarded::start_with(command, self.name(), scenario.cores, &log, output)?;
        let up = child::poll(Duration::from_mins(2), "accepting connections", || {
            if let Some(status) = process.ended()? {
                bail!("it ended: {status}");
            }
            // Looked up rather than tried: a connection would be the proxy's first work.
            let up = match scenario.role {
                Role::Udp => is_bound(listen),
                _ => is_listening(listen),
            };
            Ok(up.then_some(()))
        });
        if let Err(error) = up {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<_> = text.lines().rev().take(8).collect();
            return Err(error.context(format!("{}: {}", self.name(), tail.join(" | "))));
        }
        Ok(Running {
            listen,
            process: Some(process),
        })
    }
}

/// A loopback port that nothing uses now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Whether `/proc/net` shows a listening socket on the port.
pub(crate) fn is_listening(address: SocketAddr) -> bool {
    has_socket(address, ["/proc/net/tcp", "/proc/net/tcp6"], "0A")
}

/// The same of a socket of datagrams that is connected to nobody.
fn is_bound(address: SocketAddr) -> bool {
    has_socket(address, ["/proc/net/udp", "/proc/net/udp6"], "07")
}

fn has_socket(address: SocketAddr, tables: [&str; 2], wanted_state: &str) -> bool {
    let wanted = format!(":{:04X}", address.port());
    tables.iter().any(|table| {
        std::fs::read_to_string(table)
            .unwrap_or_default()
            .lines()
            .any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let (local, state) = (
                    words.next().unwrap_or_default(),
                    words.nth(1).unwrap_or_default(),
                );
                state == wanted_state && local.ends_with(&wanted)
            })
    })
}
