//! `echo`: the backend. Answers every request with who it is and what it saw of the connection.
//!
//! It speaks as much HTTP/1.1 as curl needs: a request's head, no body, connections kept open.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::certificate::Authority;

/// A protocol that nobody but this backend offers: who sees it agreed on has spoken with the backend.
pub(crate) const OWN_ALPN: &[u8] = b"vestibule-e2e";
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Arguments of `echo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address for plain connections.
    #[arg(long, default_value = "0.0.0.0:8080")]
    plain: SocketAddr,
    /// Address for TLS connections.
    #[arg(long, default_value = "0.0.0.0:8443")]
    tls: SocketAddr,
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
}

/// Serves until it is told to stop.
pub(crate) async fn run(args: Args) -> Result<()> {
    let plain = TcpListener::bind(args.plain).await.context("plain")?;
    let tls = TcpListener::bind(args.tls).await.context("TLS")?;
    let acceptor = TlsAcceptor::from(Arc::new(configuration(&args)?));
    let identity = Arc::new((args.pod, args.namespace));
    // The first process of a container is not ended by a signal that it does not handle.
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            Ok((stream, peer)) = plain.accept() => {
                prompt(&stream);
                let identity = identity.clone();
                tokio::spawn(async move { answer(stream, &identity, None, peer).await });
            }
            Ok((stream, peer)) = tls.accept() => {
                prompt(&stream);
                tokio::spawn(answer_tls(stream, acceptor.clone(), identity.clone(), peer));
            }
            _ = terminated.recv() => return Ok(()),
        }
    }
}

/// Without it the answer behind a session ticket waits for its acknowledgement: 40 ms.
fn prompt(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
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

async fn answer_tls(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    identity: Arc<(String, String)>,
    peer: SocketAddr,
) {
    // A client that does not finish its handshake is that client's business.
    if let Ok(stream) = acceptor.accept(stream).await {
        let sni = stream.get_ref().1.server_name().map(str::to_owned);
        answer(stream, &identity, sni, peer).await;
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    identity: &(String, String),
    sni: Option<String>,
    peer: SocketAddr,
) {
    let answer = Answer {
        pod: identity.0.clone(),
        namespace: identity.1.clone(),
        sni,
        peer: peer.ip().to_string(),
    };
    let Ok(body) = serde_json::to_string(&answer) else {
        return;
    };
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}\n",
        body.len() + 1
    );
    let mut head = Vec::new();
    loop {
        match head.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => {
                head.drain(..end + 4);
                if stream.write_all(response.as_bytes()).await.is_err()
                    || stream.flush().await.is_err()
                {
                    return;
                }
            }
            None if head.len() > MAX_HEAD => return,
            None => match stream.read_buf(&mut head).await {
                Ok(0) => {
                    // The other side may still read: end in order.
                    let _ = stream.shutdown().await;
                    return;
                }
                Ok(_) => {}
                Err(_) => return,
            },
        }
    }
}
