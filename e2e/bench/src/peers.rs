//! The proxies compared: how each is configured and started, one worker each.

mod envoy;
mod haproxy;
mod hitch;
mod nginx;
mod ours;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::backend::Ports;
use crate::child::{self, Guarded};
use crate::tls::Leaf;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// No proxy.
    Direct,
    /// vestibule-proxy as it comes, with its line per connection.
    Ours,
    /// vestibule-proxy without its line per connection, as the peers' default is.
    OursQuiet,
    /// vestibule-proxy as it comes, while CAs are to check names: those that are served and a thousand more.
    OursChallenged,
    /// Debian's `HAProxy`.
    Haproxy,
    /// `HAProxy` with splicing on.
    HaproxySplice,
    /// `HAProxy` with a log line per connection.
    HaproxyLog,
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
}

/// Challenges for names that are not served.
const CHALLENGES: usize = 1000;

/// What the proxy is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Route by server name, pass the bytes.
    Passthrough,
    /// Terminate TLS, pass plain bytes.
    Terminate,
}

/// Where the peers' binaries are.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    /// vestibule-proxy.
    pub(crate) ours: PathBuf,
    /// Envoy.
    pub(crate) envoy: PathBuf,
    /// The newer `HAProxy`.
    pub(crate) haproxy_next: Option<PathBuf>,
}

/// One start of a proxy.
pub(crate) struct Scenario<'a> {
    /// What it does.
    pub(crate) role: Role,
    /// Terminated hosts.
    pub(crate) leaves: &'a [Leaf],
    /// The backend's addresses.
    pub(crate) ports: Ports,
    /// A folder of its own for configuration and logs.
    pub(crate) folder: &'a Path,
    /// Core it is pinned to.
    pub(crate) core: usize,
}

impl Scenario<'_> {
    /// Server names and the backend of each.
    fn routes(&self) -> Vec<(String, SocketAddr)> {
        match self.role {
            Role::Passthrough => vec![
                (crate::tls::RAW_HOST.to_owned(), self.ports.raw),
                (crate::tls::TLS_HOST.to_owned(), self.ports.tls),
            ],
            Role::Terminate => self
                .leaves
                .iter()
                .map(|leaf| (leaf.name.clone(), self.ports.plain))
                .collect(),
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

impl Peer {
    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct, no proxy",
            Self::Ours => "Vestibule",
            Self::OursQuiet => "Vestibule, no connection log",
            Self::OursChallenged => "Vestibule, with challenges",
            Self::Haproxy => "HAProxy",
            Self::HaproxySplice => "HAProxy, splice on",
            Self::HaproxyLog => "HAProxy, connection log",
            Self::HaproxyNext => "newer HAProxy",
            Self::HaproxyNextSplice => "newer HAProxy, splice on",
            Self::Envoy => "Envoy",
            Self::Nginx => "nginx stream",
            Self::Hitch => "hitch",
        }
    }

    /// Whether the peer does this at all.
    pub(crate) fn can(self, role: Role, hosts: usize) -> bool {
        match self {
            // Splicing is nothing to a proxy that encrypts.
            Self::Direct | Self::HaproxySplice | Self::HaproxyNextSplice => {
                role == Role::Passthrough
            }
            // nginx 1.22 has one server per port in a stream, and hitch no routes.
            Self::Hitch => role == Role::Terminate && hosts == 1,
            Self::Nginx => hosts == 1,
            _ => true,
        }
    }

    /// Whether it is there, and which version it is.
    pub(crate) fn version(self, binaries: &Binaries) -> Option<String> {
        let (path, flag) = match self {
            Self::Direct => return Some(String::new()),
            Self::Ours | Self::OursQuiet | Self::OursChallenged => {
                (binaries.ours.clone(), "--version")
            }
            Self::Haproxy | Self::HaproxySplice | Self::HaproxyLog => ("haproxy".into(), "-v"),
            Self::HaproxyNext | Self::HaproxyNextSplice => (binaries.haproxy_next.clone()?, "-v"),
            Self::Envoy => (binaries.envoy.clone(), "--version"),
            Self::Nginx => ("nginx".into(), "-v"),
            Self::Hitch => ("hitch".into(), "--version"),
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
            return Ok(Running {
                listen: scenario.ports.raw,
                process: None,
            });
        }
        std::fs::create_dir_all(scenario.folder)?;
        let listen = free_address()?;
        let haproxy =
            |binary: &Path, splice, log| haproxy::command(binary, scenario, listen, splice, log);
        let next = || {
            binaries
                .haproxy_next
                .as_deref()
                .context("no --haproxy-next given")
        };
        let debian = Path::new("haproxy");
        let command = match self {
            Self::Direct => bail!("nothing to start"),
            Self::Ours => ours::command(&binaries.ours, scenario, listen, true, 0)?,
            Self::OursQuiet => ours::command(&binaries.ours, scenario, listen, false, 0)?,
            Self::OursChallenged => {
                ours::command(&binaries.ours, scenario, listen, true, CHALLENGES)?
            }
            Self::Haproxy => haproxy(debian, false, false)?,
            Self::HaproxySplice => haproxy(debian, true, false)?,
            Self::HaproxyLog => haproxy(debian, false, true)?,
            Self::HaproxyNext => haproxy(next()?, false, false)?,
            Self::HaproxyNextSplice => haproxy(next()?, true, false)?,
            Self::Envoy => envoy::command(&binaries.envoy, scenario, listen)?,
            Self::Nginx => nginx::command(scenario, listen)?,
            Self::Hitch => hitch::command(scenario, listen)?,
        };
        let log = scenario.folder.join("log");
        let mut process = Guarded::start(command, self.name(), scenario.core, &log, false)?;
        let up = child::poll(Duration::from_mins(2), "accepting connections", || {
            if let Some(status) = process.ended()? {
                bail!("it ended: {status}");
            }
            // Looked up rather than tried: a connection would be the proxy's first work.
            Ok(is_listening(listen).then_some(()))
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
    let wanted = format!(":{:04X}", address.port());
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table)
            .unwrap_or_default()
            .lines()
            .any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let (local, state) = (
                    words.next().unwrap_or_default(),
                    words.nth(1).unwrap_or_default(),
                );
                state == "0A" && local.ends_with(&wanted)
            })
    })
}
