//! What tests of the whole proxy need: backends that answer lines, clients that ask for them, and an operator that makes
//! batches.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use vestibule_model::endpoint::EndpointRules;
use vestibule_proxy::{ConfigSource, ProxyConfig};
use vestibule_stream::{Batch, Encoded, Generation, Resource, ResourceKey};

use crate::pki::{Identity, provider, tls, trusting};
use crate::waiting::PATIENCE;

/// The settings of a proxy whose backends are on loopback.
pub fn proxy_config(source: ConfigSource) -> ProxyConfig {
    let mut config = ProxyConfig::new(source);
    config.endpoint_rules = EndpointRules::with_loopback();
    config
}

/// Answers each line with `<name> <line>`; ends with its clients.
pub async fn plain_backend(name: &'static str, address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(name, stream));
        }
    });
    address
}

/// As [`plain_backend`], with a certificate of its own.
pub async fn tls_backend(name: &'static str, address: &str, identity: &Identity) -> SocketAddr {
    let acceptor = identity.acceptor();
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    answer(name, stream).await;
                }
            });
        }
    });
    address
}

async fn answer(name: &str, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while matches!(stream.read_line(&mut line).await, Ok(1..)) {
        let reply = format!("{name} {line}");
        line.clear();
        if stream.write_all(reply.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// A client's end of a connection.
pub struct Client(BufReader<TlsStream<TcpStream>>);

impl Client {
    /// Connects to `address` for `name`, trusting exactly `root`.
    pub async fn connect(address: SocketAddr, name: &str, root: &[u8]) -> std::io::Result<Self> {
        Self::over(TcpStream::connect(address).await?, name, root).await
    }

    /// As [`Self::connect`], on a connection that is there.
    pub async fn over(stream: TcpStream, name: &str, root: &[u8]) -> std::io::Result<Self> {
        let root = CertificateDer::from(root.to_vec());
        let config = trusting(&root, provider(), rustls::ALL_VERSIONS);
        let stream = tls(stream, config, name).await?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a line and returns the answer.
    pub async fn ask(&mut self, line: &str) -> std::io::Result<String> {
        let exchange = async {
            self.0.write_all(format!("{line}\n").as_bytes()).await?;
            self.0.flush().await?;
            let mut reply = String::new();
            self.0.read_line(&mut reply).await?;
            Ok(reply.trim_end().to_owned())
        };
        tokio::time::timeout(PATIENCE, exchange).await?
    }

    /// The certificate that the server showed.
    pub fn certificate(&self) -> Vec<u8> {
        let (_, session) = self.0.get_ref().get_ref();
        session.peer_certificates().unwrap()[0].to_vec()
    }
}

/// Connects and asks once.
pub async fn request(address: SocketAddr, name: &str, root: &[u8]) -> std::io::Result<String> {
    Client::connect(address, name, root).await?.ask("hi").await
}

/// Makes batches, one generation after the other.
#[derive(Default)]
pub struct Operator {
    last: Option<Generation>,
}

impl Operator {
    /// The first batch is full, later ones are deltas.
    pub fn batch(&mut self, upserts: &[Resource], removals: &[ResourceKey]) -> Batch {
        let base = self.last;
        let generation = Generation::new(1, base.map_or(1, |g| g.counter + 1));
        self.last = Some(generation);
        Batch {
            generation: Some(generation),
            base,
            full: base.is_none(),
            keep_held: false,
            upserts: upserts
                .iter()
                .map(|resource| Encoded::new(resource).unwrap().upsert())
                .collect(),
            removals: removals.to_vec(),
            digest: Vec::new(),
        }
    }
}
