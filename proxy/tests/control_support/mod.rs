//! Shared by the component tests: backends that answer lines, TLS clients, and an operator that
//! makes batches.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary uses a part"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use vestibule_stream::proto::{self, resource::Resource as Wire};
use vestibule_stream::{Batch, Encoded, Generation, Resource, ResourceKey, ResourceKind};
pub use vestibule_test_support::free_port;

/// Longest that a test waits for something that should be there at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A certificate with its key, in DER.
#[derive(Clone)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// A self-signed certificate for `names`.
pub fn identity(names: &[&str]) -> Identity {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    Identity {
        certificate: made.cert.der().to_vec(),
        key: made.signing_key.serialize_der(),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
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
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(identity.certificate.clone())],
            PrivateKeyDer::try_from(identity.key.clone()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
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
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(root.to_vec())).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = tokio::time::timeout(PATIENCE, connector.connect(name, stream)).await??;
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

pub fn listener(
    name: &str,
    bind: SocketAddr,
    hostname: &str,
    certificates: Option<&[&str]>,
) -> Resource {
    use proto::tls_listener::Mode;
    let mode = match certificates {
        None => Mode::Passthrough(proto::TlsPassthrough {}),
        Some(names) => Mode::Terminate(proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    Resource::new(
        name,
        Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(proto::Bind {
                address: bind.ip().to_string(),
                port: bind.port().into(),
                transport: proto::Transport::Tcp.into(),
            }),
            hostname: hostname.into(),
            tenant: name.split('/').nth(1).unwrap().into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(mode),
            })),
            ..Default::default()
        }),
    )
}

/// A route with one hostname on one listener and one backend.
pub fn route(name: &str, listener: &str, hostname: &str, backend: &str) -> Resource {
    Resource::new(
        name,
        Wire::TlsRoute(proto::TlsRoute {
            tenant: name.split('/').next().unwrap().into(),
            created: 1_700_000_000,
            attachments: vec![proto::Attachment {
                listener: listener.into(),
                hostnames: vec![proto::RouteHostname {
                    r#match: hostname.into(),
                    rank: hostname.into(),
                    shared: false,
                    paths: Vec::new(),
                }],
            }],
            backends: vec![proto::WeightedBackend {
                backend: backend.into(),
                weight: 1,
            }],
        }),
    )
}

/// Says whose a hostname is on the Gateway of [`listener`].
pub fn owner(hostname: &str, tenant: &str) -> Resource {
    let owner = proto::HostnameOwner {
        gateway: "infra/edge".into(),
        hostname: hostname.into(),
        tenant: tenant.into(),
    };
    Resource::new(format!("infra/edge/{hostname}"), Wire::HostnameOwner(owner))
}

pub fn backend(name: &str, endpoints: &[SocketAddr]) -> Resource {
    Resource::new(
        name,
        Wire::Backend(proto::Backend {
            endpoints: endpoints
                .iter()
                .map(|address| proto::Endpoint {
                    address: address.ip().to_string(),
                    port: address.port().into(),
                })
                .collect(),
            ..Default::default()
        }),
    )
}

pub fn certificate(name: &str, identity: &Identity) -> Resource {
    Resource::new(
        name,
        Wire::Certificate(proto::Certificate {
            chain: vec![identity.certificate.clone().into()],
            private_key: identity.key.clone(),
        }),
    )
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

pub fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, name)
}

/// One request to an endpoint: status and body.
pub async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
