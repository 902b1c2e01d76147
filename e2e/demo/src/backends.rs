//! The tenants' backends: orchard's speaks TLS with a certificate of its own, bakery's plain HTTP.
//! There are two versions of each, so that an edited route shows.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::certificate::{Made, Seen};

/// Longest request head that is read.
const MAX_HEAD: usize = 8 << 10;

/// Ports of the backends, and where to leave what the demo compares with.
#[derive(Debug, Args)]
pub(crate) struct Backends {
    /// Ports: orchard v1, orchard v2, bakery v1, bakery v2
    #[arg(num_args = 4, required = true)]
    ports: Vec<u16>,
    /// Directory for orchard's CA certificate (orchard-ca.crt) and fingerprint (orchard.sha256)
    #[arg(long)]
    output: PathBuf,
}

impl Backends {
    #[tokio::main(flavor = "current_thread")]
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let made = Made::new("shop.orchard.example", "orchard's own CA")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.certificate.clone()], made.key()?)?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let mut servers = Vec::new();
        for (port, (tls, answer)) in self.ports.iter().zip([
            (Some(tls.clone()), "orchard: the shop, version 1\n"),
            (Some(tls), "orchard: the shop, version 2\n"),
            (None, "bakery: the bread, version 1\n"),
            (None, "bakery: the bread, version 2\n"),
        ]) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?;
            servers.push(tokio::spawn(serve(listener, tls, answer)));
        }
        // Last, so that it is the sign that the backends listen.
        std::fs::write(self.output.join("orchard-ca.crt"), &made.ca_pem)?;
        let seen = Seen::of(&made.certificate)?;
        std::fs::write(self.output.join("orchard.sha256"), seen.fingerprint)?;
        for server in servers {
            server.await?;
        }
        Ok(())
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, answer: &'static str) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, say: they come back.
            tokio::task::yield_now().await;
            continue;
        };
        let tls = tls.clone();
        tokio::spawn(async move {
            // A client that goes away is no news.
            let _ = match tls {
                None => respond(stream, answer).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => respond(stream, answer).await,
                    Err(error) => Err(error),
                },
            };
        });
    }
}

/// Answers one request, whatever it is, and closes.
async fn respond(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &str,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let response = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
