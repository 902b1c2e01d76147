//! A client: one socket, so one source port, and any number of connections over it.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use tokio::time::timeout;

use super::{ALPN, patient};
use crate::echo::Answer;

/// How long a handshake, or one request, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024;

/// Somebody with one source port.
pub(crate) struct Client {
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    hostname: String,
}

/// A connection to a backend.
pub(crate) struct Connection {
    requests: SendRequest<h3_quinn::OpenStreams, Bytes>,
    uri: String,
}

impl Client {
    /// Of a hostname at an address, which is verified with these roots.
    pub(crate) fn new(address: SocketAddr, hostname: &str, roots: RootCertStore) -> Result<Self> {
        let mut tls =
            rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
                .with_root_certificates(roots)
                .with_no_client_auth();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(patient());
        let mut endpoint = quinn::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
        endpoint.set_default_client_config(config);
        Ok(Self {
            endpoint,
            address,
            hostname: hostname.to_owned(),
        })
    }

    /// Connects and shakes hands.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let opening = async {
            let quic = self.endpoint.connect(self.address, &self.hostname)?.await?;
            let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(quic)).await?;
            // It ends with the connection.
            tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
            Ok::<_, anyhow::Error>(requests)
        };
        let requests = timeout(PATIENCE, opening).await.context("no handshake")??;
        Ok(Connection {
            requests,
            uri: format!("https://{}/", self.hostname),
        })
    }
}

impl Connection {
    /// Sends a request and reads the answer.
    pub(crate) async fn ask(&mut self) -> Result<Answer> {
        timeout(PATIENCE, self.exchange())
            .await
            .context("no answer")?
    }

    async fn exchange(&mut self) -> Result<Answer> {
        let request = http::Request::get(&self.uri).body(())?;
        let mut stream = self.requests.send_request(request).await?;
        stream.finish().await?;
        let status = stream.recv_response().await?.status();
        ensure!(status.is_success(), "{status}");
        let mut body = Vec::new();
        while let Some(mut part) = stream.recv_data().await? {
            body.extend(part.copy_to_bytes(part.remaining()));
            ensure!(body.len() <= MAX_ANSWER, "an answer that is too long");
        }
        Ok(serde_json::from_slice(&body)?)
    }
}
