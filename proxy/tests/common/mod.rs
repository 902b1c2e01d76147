//! A data plane on loopback with its configuration, and clients and backends to put around it.

#![allow(dead_code, reason = "every test file uses another part")]

pub(crate) mod acme;
pub(crate) mod frames;
pub(crate) mod sink;
pub(crate) mod web;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use vestibule_proxy::apply::State;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::metrics::Metrics;
use vestibule_proxy::plane::DataPlane;
use vestibule_proxy::table::Snapshot;
use vestibule_proxy::worker::Workers;
use vestibule_stream::{Change, Generation, Resource, ResourceKey, ResourceKind, proto};
use vestibule_test_support::free_port;

use proto::resource::Resource as Wire;

/// How long a condition may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A recorded hello with the server name `a.example.com`.
pub(crate) const HELLO: &[u8] = include_bytes!("../hellos/go-mlkem.bin");
/// One without a server name.
pub(crate) const HELLO_NO_NAME: &[u8] = include_bytes!("../hellos/openssl-no-sni.bin");

/// A data plane that listens on one port of loopback.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) plane: Arc<DataPlane>,
    pub(crate) workers: Option<Workers>,
    state: State,
    counter: u64,
}

impl Rig {
    /// Starts two workers. `configure` gets the port and says what is served.
    pub(crate) fn start(limits: &ProxyLimits, configure: impl Fn(u16) -> Vec<Resource>) -> Self {
        Self::start_on(2, limits, configure)
    }

    /// The same with so many workers.
    pub(crate) fn start_on(
        workers: usize,
        limits: &ProxyLimits,
        configure: impl Fn(u16) -> Vec<Resource>,
    ) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let published = Arc::new(ArcSwap::<Snapshot>::default());
        let state = State::new(Arc::clone(&published)).unwrap();
        let (tenants, accounts) = (state.tenants().clone(), state.accounts().clone());
        let metrics = Metrics::observing(tenants, accounts, state.expiries().clone());
        let metrics = Arc::new(metrics);
        let plane = Arc::new(DataPlane::new(published, metrics, limits.clone()));
        let workers = Workers::start(Arc::clone(&plane), workers).unwrap();
        let mut rig = Self {
            address,
            plane,
            workers: Some(workers),
            state,
            counter: 0,
        };
        assert_eq!(rig.apply(configure(address.port())), Vec::<String>::new());
        rig
    }

    /// Applies resources; what was rejected is returned.
    pub(crate) fn apply(&mut self, upserts: Vec<Resource>) -> Vec<String> {
        self.change(upserts, Vec::new())
    }

    /// What is in force, as the admin endpoint shows it.
    pub(crate) fn dump(&self) -> String {
        serde_json::to_string(&self.state.dump()).unwrap()
    }

    /// Takes a resource away.
    pub(crate) fn remove(&mut self, kind: ResourceKind, name: &str) {
        let rejects = self.change(Vec::new(), vec![ResourceKey::new(kind, name)]);
        assert_eq!(rejects, Vec::<String>::new());
    }

    /// Applies resources and takes others away, in one batch; what was rejected is returned.
    pub(crate) fn change(
        &mut self,
        upserts: Vec<Resource>,
        removals: Vec<ResourceKey>,
    ) -> Vec<String> {
        self.counter += 1;
        let change = Change {
            generation: Generation::new(1, self.counter),
            full: false,
            upserts: upserts.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals,
        };
        let mut sockets = self.workers.as_ref().unwrap().sockets();
        let rejects = self.state.apply(&change, &mut sockets);
        rejects
            .into_iter()
            .map(|r| format!("{} {}", r.reason, r.message))
            .collect()
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) fn closed(&self, reason: CloseReason) -> u64 {
        self.plane.metrics.closed_count(reason.reason())
    }

    /// Waits until as many connections have ended for `reason`.
    pub(crate) async fn wait_closed(&self, reason: CloseReason, count: u64) {
        let what = format!("{count} × {reason:?}");
        let metrics = || self.plane.metrics.encode().unwrap();
        wait_or(&what, || self.closed(reason) >= count, metrics).await;
        assert_eq!(self.closed(reason), count, "{reason:?}");
    }

    /// Waits until the proxy has given up a connection to a backend that sends without end what leads to nothing.
    pub(crate) async fn wait_backend_given_up(&self) {
        let series = "vestibule_proxy_backend_connections_given_up_total{reason=\"NoProgress\"}";
        let metrics = || self.plane.metrics.encode().unwrap();
        let given_up = || value(&metrics(), series) > 0;
        wait_or("a backend that is given up", given_up, metrics).await;
    }
}

/// What a series of a metrics page says; 0 if it is not there.
pub(crate) fn value(page: &str, series: &str) -> u64 {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Polls a condition until it holds.
pub(crate) async fn wait(what: &str, condition: impl FnMut() -> bool) {
    wait_or(what, condition, String::new).await;
}

async fn wait_or(what: &str, mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        let in_time = tokio::time::Instant::now() < end;
        assert!(in_time, "waited in vain for {what}\n{}", state());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Bounds a step that would otherwise hang.
pub(crate) async fn within<T>(what: &str, step: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, step).await;
    done.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// A port of loopback.
pub(crate) fn bind(port: u16) -> proto::Bind {
    proto::Bind {
        address: Ipv4Addr::LOCALHOST.to_string(),
        port: port.into(),
        transport: proto::Transport::Tcp.into(),
    }
}

pub(crate) fn listener(
    port: u16,
    name: &str,
    hostname: &str,
    certificate: Option<&str>,
) -> Resource {
    use proto::tls_listener::Mode;
    let mode = match certificate {
        None => Mode::Passthrough(proto::TlsPassthrough {}),
        Some(name) => Mode::Terminate(proto::TlsTerminate {
            certificates: vec![name.into()],
            ..Default::default()
        }),
    };
    Resource {
        name: format!("ListenerSet/team-a/{name}/tls"),
        resource: Some(Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(bind(port)),
            hostname: hostname.into(),
            tenant: "team-a".into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(mode),
            })),
            ..Default::default()
        })),
    }
}

/// As [`listener`], for HTTP, or HTTPS with a certificate.
pub(crate) fn http(port: u16, name: &str, hostname: &str, certificate: Option<&str>) -> Resource {
    let mut resource = listener(port, name, hostname, None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        let terminate = certificate.map(|name| proto::TlsTerminate {
            certificates: vec![name.into()],
            ..Default::default()
        });
        let http = proto::HttpListener { terminate };
        listener.protocol = Some(proto::listener::Protocol::Http(http));
    }
    resource
}

/// A route of the same name as its listener. Without a backend, the reference is an invalid one.
pub(crate) fn route(name: &str, hostname: &str, backend: Option<&str>) -> Resource {
    Resource {
        name: format!("team-a/{name}"),
        resource: Some(Wire::TlsRoute(proto::TlsRoute {
            tenant: "team-a".into(),
            created: 0,
            attachments: vec![proto::Attachment {
                listener: format!("ListenerSet/team-a/{name}/tls"),
                hostnames: vec![proto::RouteHostname {
                    r#match: hostname.into(),
                    rank: hostname.into(),
                    shared: false,
                    paths: Vec::new(),
                }],
            }],
            backends: vec![proto::WeightedBackend {
                backend: backend.unwrap_or_default().into(),
                weight: 1,
            }],
        })),
    }
}

/// A listener of bytes, which the port alone selects.
pub(crate) fn tcp(port: u16, name: &str) -> Resource {
    let mut resource = listener(port, name, "", None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        listener.protocol = Some(proto::listener::Protocol::Tcp(proto::TcpListener {}));
    }
    resource
}

/// A TCPRoute on the listener `on`, with weighted backends; an empty name is an invalid reference.
pub(crate) fn tcp_route(name: &str, created: i64, on: &str, backends: &[(&str, u32)]) -> Resource {
    let weighted = |(backend, weight): &(&str, u32)| proto::WeightedBackend {
        backend: (*backend).into(),
        weight: *weight,
    };
    Resource {
        name: format!("team-a/{name}"),
        resource: Some(Wire::TcpRoute(proto::TcpRoute {
            tenant: "team-a".into(),
            created,
            listeners: vec![format!("ListenerSet/team-a/{on}/tls")],
            backends: backends.iter().map(weighted).collect(),
        })),
    }
}

/// A listener of datagrams on the port of UDP.
pub(crate) fn udp(port: u16, name: &str) -> Resource {
    let mut resource = listener(port, name, "", None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        listener.protocol = Some(proto::listener::Protocol::Udp(proto::UdpListener {}));
        let bind = listener.bind.as_mut().unwrap();
        bind.transport = proto::Transport::Udp.into();
    }
    resource
}

/// As [`tcp_route`], of a listener of datagrams.
pub(crate) fn udp_route(name: &str, created: i64, on: &str, backends: &[(&str, u32)]) -> Resource {
    let mut resource = tcp_route(name, created, on, backends);
    if let Some(Wire::TcpRoute(route)) = resource.resource.take() {
        resource.resource = Some(Wire::UdpRoute(route));
    }
    resource
}

/// The endpoint of a backend at an address.
pub(crate) fn endpoint(address: &SocketAddr) -> proto::Endpoint {
    proto::Endpoint {
        address: address.ip().to_string(),
        port: address.port().into(),
    }
}

pub(crate) fn backend(name: &str, addresses: &[SocketAddr]) -> Resource {
    Resource {
        name: name.into(),
        resource: Some(Wire::Backend(proto::Backend {
            endpoints: addresses.iter().map(endpoint).collect(),
            ..Default::default()
        })),
    }
}

/// A self-signed certificate.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Identity {
    pub(crate) fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Self {
            chain: vec![made.cert.der().clone()],
            key: made.signing_key.serialize_der(),
        }
    }

    pub(crate) fn resource(&self, name: &str) -> Resource {
        Resource {
            name: name.into(),
            resource: Some(Wire::Certificate(proto::Certificate {
                chain: self.chain.iter().map(|der| der.to_vec().into()).collect(),
                private_key: self.key.clone(),
            })),
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.server_config()))
    }

    pub(crate) fn server_config(&self) -> rustls::ServerConfig {
        let key = PrivateKeyDer::try_from(self.key.clone()).unwrap();
        rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), key)
            .unwrap()
    }
}

pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A client configuration that trusts `identity`.
pub(crate) fn client_config(identity: &Identity) -> rustls::ClientConfig {
    client_config_with(identity, provider(), rustls::ALL_VERSIONS)
}

pub(crate) fn client_config_with(
    identity: &Identity,
    provider: Arc<rustls::crypto::CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.chain[0].clone()).unwrap();
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub(crate) async fn tls(
    tcp: TcpStream,
    config: rustls::ClientConfig,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    within("the handshake", connector.connect(name, tcp)).await
}

/// A backend that hands every connection to `serve`.
pub(crate) async fn serve<F, S>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A backend that hands its first connection over to the test.
pub(crate) async fn one_connection() -> (SocketAddr, impl Future<Output = TcpStream>) {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    (address, async move {
        within("a connection", listener.accept()).await.unwrap().0
    })
}

/// Sends back what comes until the end, then ends too.
pub(crate) async fn echo(mut stream: TcpStream) {
    let (mut read, mut write) = stream.split();
    if tokio::io::copy(&mut read, &mut write).await.is_ok() {
        let _ = write.shutdown().await;
    }
}

/// An address where nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// An address at which nobody listens, and nobody can begin to, be it for connections or for datagrams.
pub(crate) fn refusing() -> SocketAddr {
    loop {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let Ok(datagrams) = std::net::UdpSocket::bind(address) else {
            continue;
        };
        // A socket that is connected to itself takes from nobody else, and so the kernel says that nobody is there.
        datagrams.connect(address).unwrap();
        std::mem::forget((socket, datagrams));
        return address;
    }
}

/// Reads to the end; `Err` is a reset.
pub(crate) async fn read_to_end(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within("the end of the stream", stream.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

/// A stream of bytes that differ from place to place, so that loss, doubling and reordering show.
struct Pattern {
    state: u64,
    left: u64,
}

impl Pattern {
    fn new(seed: u64, length: u64) -> Self {
        let state = seed.wrapping_mul(2).wrapping_add(1);
        Self {
            state,
            left: length,
        }
    }

    fn next(&mut self, buffer: &mut [u8]) -> usize {
        let length = usize::try_from(self.left.min(buffer.len() as u64)).unwrap();
        // Whole words only, except at the end.
        let length = if length as u64 == self.left {
            length
        } else {
            length / 8 * 8
        };
        for chunk in buffer[..length].chunks_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            chunk.copy_from_slice(&self.state.to_le_bytes()[..chunk.len()]);
        }
        self.left -= length as u64;
        length
    }
}

/// Sends a pattern in pieces of many sizes.
pub(crate) async fn send(stream: &mut (impl AsyncWriteExt + Unpin), seed: u64, length: u64) {
    let mut pattern = Pattern::new(seed, length);
    let mut buffer = vec![0; 200_000];
    let mut size = 1000;
    loop {
        let length = pattern.next(&mut buffer[..size]);
        if length == 0 {
            break;
        }
        let written = stream.write_all(&buffer[..length]);
        within("room", written).await.unwrap();
        size = (size * 7 + 13) % 199_000 + 8;
    }
    within("room", stream.flush()).await.unwrap();
}

/// Receives what [`send`] sent.
pub(crate) async fn receive(stream: &mut (impl AsyncReadExt + Unpin), seed: u64, length: u64) {
    let mut pattern = Pattern::new(seed, length);
    let (mut expected, mut got) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut at = 0;
    loop {
        let length = pattern.next(&mut expected);
        if length == 0 {
            return;
        }
        let read = stream.read_exact(&mut got[..length]);
        within("the rest", read).await.unwrap();
        assert!(
            expected[..length] == got[..length],
            "bytes differ near {at}"
        );
        at += length;
    }
}
