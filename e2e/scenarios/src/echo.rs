//! `echo`: the backend. Answers every request but those for a long answer with who it is and what it saw of the
//! connection.
//!
//! It speaks as much HTTP/1.1 as curl needs: a request's head, no body, connections kept open, web sockets. A client
//! that begins with HTTP/2 (by prior knowledge) is answered in HTTP/2. Told to
//! stop, it ends as a well-behaved application does; told to fail, it fails in one of three ways.

mod serve;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::select_all;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::certificate::Authority;

/// A protocol that nobody but this backend offers: who sees it agreed on has spoken with the backend.
pub(crate) const OWN_ALPN: &[u8] = b"vestibule-e2e";
/// The path of a request that gets a long answer. While the backend sends it, the backend reads nothing.
pub(crate) const LARGE: &str = "/large";
/// The length of its body.
pub(crate) const LARGE_BYTES: usize = 10 * 1024 * 1024;
/// The path of a request in HTTP/1.1 that gets no answer.
pub(crate) const SILENT: &str = "/silent";
/// How long connections that are in use may go on after the last one was accepted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `echo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Addresses for plain connections (repeatable).
    #[arg(long, default_value = "0.0.0.0:8080")]
    plain: Vec<SocketAddr>,
    /// Addresses for TLS connections (repeatable).
    #[arg(long, default_value = "0.0.0.0:8443")]
    tls: Vec<SocketAddr>,
    /// Addresses for connections of both kinds: the first byte says which (repeatable).
    #[arg(long)]
    either: Vec<SocketAddr>,
    /// Address that stays in order whatever the others do. A request to `/be/refuse`, `/be/reset`, `/be/hang` or
    /// `/be/well` says what the others do from then on.
    #[arg(long)]
    steady: Option<SocketAddr>,
    /// Seconds to go on as before when told to stop, until everybody knows.
    #[arg(long, default_value_t = 0)]
    linger: u64,
    /// Directory with tls.crt and tls.key; without it a certificate is made at start.
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// Names in the certificate that is made at start.
    #[arg(long, default_value = "localhost")]
    name: Vec<String>,
    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "")]
    pod: String,
    /// Namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "")]
    namespace: String,
}

/// What a backend answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Name of the pod that answered.
    pub(crate) pod: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Server name in the TLS connection that the backend terminated; none on plain connections.
    pub(crate) sni: Option<String>,
    /// Whose address the backend saw: a proxy's.
    pub(crate) peer: String,
    /// The pod's port that was connected to.
    #[serde(default)]
    pub(crate) port: u16,
}

/// How it is with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It answers.
    Well,
    /// Nobody listens, and what was open is closed.
    Refuse,
    /// Connections are taken and reset.
    Reset,
    /// Connections are taken, and never answered.
    Hang,
    /// It is about to end: nothing new is taken, and idle connections are closed.
    Ending,
}

impl FromStr for Health {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "well" => Self::Well,
            "refuse" => Self::Refuse,
            "reset" => Self::Reset,
            "hang" => Self::Hang,
            _ => bail!("no such way to fail: {text}"),
        })
    }
}

/// What all connections share.
#[derive(Clone)]
struct Shared {
    pod: Arc<str>,
    namespace: Arc<str>,
    acceptor: TlsAcceptor,
    health: watch::Sender<Health>,
    /// Held by every connection: when all of them are gone, so are they.
    #[expect(dead_code, reason = "it is dropped")]
    alive: mpsc::Sender<()>,
}

/// Serves until it is told to stop.
pub(crate) async fn run(args: Args) -> Result<()> {
    // The attacks of `memory-limit` make thousands of connections, and the soft limit is often 1,024.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).context("the limit of open files")?;
    let (alive, mut all_gone) = mpsc::channel(1);
    let (health, _) = watch::channel(Health::Well);
    let shared = Shared {
        acceptor: TlsAcceptor::from(Arc::new(configuration(&args)?)),
        pod: args.pod.as_str().into(),
        namespace: args.namespace.as_str().into(),
        health: health.clone(),
        alive,
    };
    // The first process of a container is not ended by a signal that it does not handle.
    let mut terminated = signal(SignalKind::terminate())?;
    let kinds = [
        (&args.plain, serve::Kind::Plain),
        (&args.tls, serve::Kind::Tls),
        (&args.either, serve::Kind::Either),
    ];
    let mut listeners = Vec::new();
    for (addresses, kind) in kinds {
        for &address in addresses {
            listeners.push(tokio::spawn(serve::listen(address, kind, shared.clone())));
        }
    }
    if let Some(address) = args.steady {
        let kind = serve::Kind::Steady;
        listeners.push(tokio::spawn(serve::listen(address, kind, shared.clone())));
    }
    drop(shared);
    let waited = async {
        terminated.recv().await;
        tokio::time::sleep(Duration::from_secs(args.linger)).await;
    };
    tokio::select! {
        (ended, _, _) = select_all(listeners) => return ended?,
        () = waited => {}
    }
    health.send_replace(Health::Ending);
    let _ = timeout(PATIENCE, all_gone.recv()).await;
    Ok(())
}

fn configuration(args: &Args) -> Result<ServerConfig> {
    let (chain, key) = if let Some(directory) = &args.certificate {
        let chain = std::fs::read(directory.join("tls.crt")).context("tls.crt")?;
        (
            chain,
            std::fs::read(directory.join("tls.key")).context("tls.key")?,
        )
    } else {
        let names: Vec<&str> = args.name.iter().map(String::as_str).collect();
        let leaf = Authority::new("echo")?.leaf(&names)?;
        (leaf.chain.into_bytes(), leaf.key.into_bytes())
    };
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&key)?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![OWN_ALPN.to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
