//! Tunnels end when the configuration no longer serves them, and only then. Each test has a second tunnel that it ends on
//! purpose: once that one is gone, the first would be gone too.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::{http_route, rule};
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, ResourceKey, ResourceKind, proto};
use vestibule_test_support::free_port;

use proto::ClientValidationMode as Mode;
use proto::resource::Resource as Wire;

const HOST: &str = "a.example.com";
/// The name of the tunnel that a test ends on purpose.
const CONTROL: &str = "control.example.com";
const BACKEND: &str = "team-a/web:80";
const CERTIFICATE: &str = "team-a/cert";
const BUNDLE: &str = "ConfigMap/infra/clients";
const NONE: Vec<String> = Vec::new();
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: a.example.com\r\nconnection: Upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";

/// What carries a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Passthrough,
    Terminated,
    WebSocket,
    WebSocketInTls,
}

const KINDS: [Kind; 4] = [
    Kind::Passthrough,
    Kind::Terminated,
    Kind::WebSocket,
    Kind::WebSocketInTls,
];

impl Kind {
    fn is_http(self) -> bool {
        matches!(self, Self::WebSocket | Self::WebSocketInTls)
    }

    fn route_kind(self) -> ResourceKind {
        if self.is_http() {
            ResourceKind::HttpRoute
        } else {
            ResourceKind::TlsRoute
        }
    }

    /// The listener of the ListenerSet `set`.
    fn listener(self, port: u16, set: &str, hostname: &str) -> Resource {
        match self {
            Self::Passthrough => listener(port, set, hostname, None),
            Self::Terminated => listener(port, set, hostname, Some(CERTIFICATE)),
            Self::WebSocket => http(port, set, hostname, None),
            Self::WebSocketInTls => http(port, set, hostname, Some(CERTIFICATE)),
        }
    }

    /// The route `name` on the listener of the same name.
    fn route(self, name: &str, hostname: &str, backend: &str) -> Resource {
        if self.is_http() {
            http_route(name, hostname, vec![rule("/", backend)])
        } else {
            route(name, hostname, Some(backend))
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

type Tunnel = Box<dyn Stream>;

/// A data plane with a listener and a route for [`HOST`], and the same of another namespace for [`CONTROL`].
struct World {
    kind: Kind,
    rig: Rig,
    own: Identity,
}

impl World {
    async fn start(kind: Kind) -> Self {
        let own = Identity::of(&[HOST, CONTROL]);
        let address = if kind.is_http() {
            serve(upgrading).await
        } else {
            serve(echo).await
        };
        let limits = ProxyLimits {
            access_log: false,
            ..ProxyLimits::default()
        };
        let rig = Rig::start(&limits, |port| {
            vec![
                own.resource(CERTIFICATE),
                kind.listener(port, "a", HOST),
                kind.route("a", HOST, BACKEND),
                of_team_b(kind.listener(port, "control", CONTROL)),
                of_team_b(kind.route("control", CONTROL, BACKEND)),
                backend(BACKEND, &[address]),
            ]
        });
        Self { kind, rig, own }
    }

    fn port(&self) -> u16 {
        self.rig.address.port()
    }

    async fn tunnel(&self, host: &str) -> Tunnel {
        self.tunnel_by(host, client_config(&self.own)).await
    }

    async fn tunnel_by(&self, host: &str, config: rustls::ClientConfig) -> Tunnel {
        let stream = self.rig.connect().await;
        let mut tunnel: Tunnel = match self.kind {
            Kind::Passthrough => {
                let mut stream = stream;
                // The recorded hello is for `HOST`.
                assert_eq!(host, HOST);
                stream.write_all(HELLO).await.unwrap();
                let mut back = vec![0; HELLO.len()];
                within("the hello", stream.read_exact(&mut back))
                    .await
                    .unwrap();
                Box::new(stream)
            }
            Kind::WebSocket => Box::new(stream),
            Kind::Terminated | Kind::WebSocketInTls => {
                Box::new(tls(stream, config, host).await.unwrap())
            }
        };
        if self.kind.is_http() {
            let asked = UPGRADE.replace(HOST, host);
            tunnel.write_all(asked.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let byte = within("the head", tunnel.read_u8()).await.unwrap();
                head.push(byte);
            }
            assert!(head.starts_with(b"HTTP/1.1 101"));
        }
        answers(&mut tunnel).await;
        tunnel
    }

    /// A tunnel that is ended on purpose. The recorded hello has another name, so passthrough has a real one.
    async fn control(&self) -> Tunnel {
        if self.kind == Kind::Passthrough {
            let mut stream = self.rig.connect().await;
            let mut hello = Vec::new();
            let name = CONTROL.try_into().unwrap();
            let config = Arc::new(client_config(&self.own));
            let mut session = rustls::ClientConnection::new(config, name).unwrap();
            session.write_tls(&mut hello).unwrap();
            stream.write_all(&hello).await.unwrap();
            let mut back = vec![0; hello.len()];
            within("the hello", stream.read_exact(&mut back))
                .await
                .unwrap();
            return Box::new(stream);
        }
        self.tunnel(CONTROL).await
    }

    /// Ends the control, and waits until it is gone. Before that, everything that was to end has ended.
    async fn end(&mut self, control: Tunnel) {
        let ended = self.rig.closed(CloseReason::NoLongerServed);
        self.rig.remove(self.kind.route_kind(), "team-b/control");
        self.rig
            .wait_closed(CloseReason::NoLongerServed, ended + 1)
            .await;
        drop(control);
    }

    fn apply(&mut self, resources: Vec<Resource>) {
        assert_eq!(self.rig.apply(resources), NONE);
    }

    /// How many tunnels were woken by changes.
    fn judged(&self) -> u64 {
        let page = self.rig.plane.metrics.encode().unwrap();
        value(&page, "vestibule_proxy_tunnels_judged_total")
    }
}

/// Gives a listener or a route to another namespace.
fn of_team_b(mut resource: Resource) -> Resource {
    resource.name = resource.name.replace("team-a", "team-b");
    let tenant = "team-b".to_owned();
    let attached = |attachments: &mut Vec<proto::Attachment>| {
        for attachment in attachments {
            attachment.listener = attachment.listener.replace("team-a", "team-b");
        }
    };
    match resource.resource.as_mut().unwrap() {
        Wire::Listener(listener) => listener.tenant = tenant,
        Wire::TlsRoute(route) => {
            route.tenant = tenant;
            attached(&mut route.attachments);
        }
        Wire::HttpRoute(route) => {
            route.tenant = tenant;
            attached(&mut route.attachments);
        }
        other => panic!("{other:?}"),
    }
    resource
}

/// Answers an upgrade, and then sends back what comes.
async fn upgrading(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let agreed = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                   upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";
    stream.write_all(agreed).await.unwrap();
    echo(stream).await;
}

/// Checks that a tunnel carries bytes.
async fn answers(tunnel: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    tunnel.write_all(b"are you there?").await.unwrap();
    let mut back = [0; 14];
    within("the echo", tunnel.read_exact(&mut back))
        .await
        .unwrap();
    assert_eq!(&back, b"are you there?");
}

/// Waits until a tunnel ends, in order or by a reset.
async fn ends(tunnel: &mut (impl AsyncRead + Unpin)) {
    let _ = within("the end", tunnel.read_to_end(&mut Vec::new())).await;
}

fn limited(listener: Resource) -> Vec<Resource> {
    let limits = proto::ListenerLimits {
        tunnel_idle: Some(1234),
        ..Default::default()
    };
    let settings = proto::GatewaySettings {
        limits: Some(limits),
        ..Default::default()
    };
    with_settings(listener, settings).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_goes_on_over_edits_that_take_nothing_away_and_is_not_even_woken() {
    for kind in KINDS {
        let mut world = World::start(kind).await;
        let port = world.port();
        let (mut tunnel, control) = (world.tunnel(HOST).await, world.control().await);
        let renewed = Identity::of(&[HOST, CONTROL]);
        world.apply(vec![backend(BACKEND, &[nobody()])]);
        world.apply(vec![renewed.resource(CERTIFICATE)]);
        world.apply(limited(kind.listener(port, "a", HOST)));
        world.apply(vec![kind.route("a", HOST, "team-a/other:80")]);
        world.apply(vec![kind.listener(port, "b", "b.example.com")]);
        world.apply(vec![owner(HOST, "team-a"), owner(CONTROL, "team-b")]);
        world.end(control).await;
        assert_eq!(world.judged(), 1, "{kind:?}: only the control");
        answers(&mut tunnel).await;
        assert_eq!(world.rig.closed(CloseReason::NoLongerServed), 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_that_loses_everything_wakes_only_its_own_tunnels() {
    for kind in KINDS {
        let mut world = World::start(kind).await;
        let mut tunnels = Vec::new();
        for _ in 0..10 {
            tunnels.push(world.tunnel(HOST).await);
        }
        let mut control = world.control().await;
        let port = world.port();
        let listener = of_team_b(kind.listener(port, "control", CONTROL));
        let key = || ResourceKey::new(ResourceKind::Listener, "ListenerSet/team-b/control/tls");
        for _ in 0..10 {
            assert_eq!(world.rig.change(Vec::new(), vec![key()]), NONE);
            assert_eq!(world.rig.apply(vec![listener.clone()]), NONE);
        }
        wait("the first look", || world.judged() > 0).await;
        answers(&mut control).await;
        let route = kind.route_kind();
        let route = ResourceKey::new(route, "team-b/control");
        assert_eq!(world.rig.change(Vec::new(), vec![key(), route]), NONE);
        world.rig.wait_closed(CloseReason::NoLongerServed, 1).await;
        ends(&mut control).await;
        // Changes of the same second woke the one tunnel once, and the ten others never.
        assert!(world.judged() <= 10, "{kind:?}: {}", world.judged());
        for tunnel in &mut tunnels {
            answers(tunnel).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_ends_when_its_route_its_listener_or_its_name_is_taken_away() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 6] = [
        ("route", |world| {
            world.rig.remove(world.kind.route_kind(), "team-a/a");
        }),
        ("listener", |world| {
            world
                .rig
                .remove(ResourceKind::Listener, "ListenerSet/team-a/a/tls");
        }),
        ("owner", |world| world.apply(vec![owner(HOST, "team-b")])),
        ("owner of all", |world| {
            world.apply(vec![owner("*.example.com", "team-b")]);
        }),
        ("hostnames", |world| {
            let route = world.kind.route("a", "x.example.com", BACKEND);
            world.apply(vec![route]);
        }),
        ("another route", |world| {
            let mut route = world.kind.route("a", HOST, BACKEND);
            route.name = "team-a/other".to_owned();
            let gone = ResourceKey::new(world.kind.route_kind(), "team-a/a");
            assert_eq!(world.rig.change(vec![route], vec![gone]), NONE);
        }),
    ];
    for kind in KINDS {
        for (name, change) in &changes {
            let mut world = World::start(kind).await;
            let mut tunnel = world.tunnel(HOST).await;
            change(&mut world);
            ends(&mut tunnel).await;
            world.rig.wait_closed(CloseReason::NoLongerServed, 1).await;
            assert!(world.judged() > 0, "{kind:?}, {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_goes_on_if_its_listener_or_route_comes_back_or_moves_to_another_set() {
    for kind in KINDS {
        let mut world = World::start(kind).await;
        let (mut tunnel, control) = (world.tunnel(HOST).await, world.control().await);
        let port = world.port();
        // The two halves come one after the other.
        world
            .rig
            .remove(ResourceKind::Listener, "ListenerSet/team-a/a/tls");
        world.rig.remove(kind.route_kind(), "team-a/a");
        world.apply(vec![kind.route("a", HOST, BACKEND)]);
        world.apply(vec![kind.listener(port, "a", HOST)]);
        // And here all of it in one.
        let mut moved = kind.route("moved", HOST, BACKEND);
        moved.name = "team-a/a".to_owned();
        let old = ResourceKey::new(ResourceKind::Listener, "ListenerSet/team-a/a/tls");
        let new = vec![kind.listener(port, "moved", HOST), moved];
        assert_eq!(world.rig.change(new, vec![old]), NONE);
        world.end(control).await;
        answers(&mut tunnel).await;
        assert_eq!(world.rig.closed(CloseReason::NoLongerServed), 1, "{kind:?}");
    }
}

/// The client certificate of a client.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl rustls::client::ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A client that shows the certificate of `leaf`, and signs with the key of `signer`.
fn showing(server: &Identity, leaf: &Identity, signer: &Identity) -> rustls::ClientConfig {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&signer.key()).unwrap();
    let certified = Arc::new(CertifiedKey::new(leaf.chain.clone(), key));
    let mut config = client_config(server);
    config.client_auth_cert_resolver = Arc::new(Shows(certified));
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_ends_when_its_client_is_no_longer_admitted() {
    for kind in [Kind::Terminated, Kind::WebSocketInTls] {
        let mut world = World::start(kind).await;
        let (clients, others) = (Authority::new("clients"), Authority::new("others"));
        let port = world.port();
        world.apply(vec![
            Authority::bundle(BUNDLE, &[&clients]),
            validating(
                kind.listener(port, "a", HOST),
                &[BUNDLE],
                Mode::AllowValidOnly,
            ),
        ]);
        let leaf = clients.client("good");
        let config = showing(&world.own, &leaf, &leaf);
        let mut tunnel = world.tunnel_by(HOST, config).await;
        // The client is admitted by these settings too.
        let judged = world.judged();
        world.apply(vec![Authority::bundle(BUNDLE, &[&others, &clients])]);
        wait("the look", || world.judged() > judged).await;
        answers(&mut tunnel).await;
        let control = world.control().await;
        world.end(control).await;
        answers(&mut tunnel).await;
        world.apply(vec![Authority::bundle(BUNDLE, &[&others])]);
        ends(&mut tunnel).await;
        world.rig.wait_closed(CloseReason::NoLongerServed, 2).await;
        // A client that nobody asked for a certificate has none to show.
        world.apply(vec![kind.listener(port, "a", HOST)]);
        let mut stranger = world.tunnel(HOST).await;
        let listener = kind.listener(port, "a", HOST);
        world.apply(vec![validating(listener, &[BUNDLE], Mode::AllowValidOnly)]);
        ends(&mut stranger).await;
        world.rig.wait_closed(CloseReason::NoLongerServed, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_ends_whose_client_showed_a_certificate_without_its_key() {
    for kind in [Kind::Terminated, Kind::WebSocketInTls] {
        let mut world = World::start(kind).await;
        let clients = Authority::new("clients");
        let port = world.port();
        let listener = |mode| validating(kind.listener(port, "a", HOST), &[BUNDLE], mode);
        world.apply(vec![
            Authority::bundle(BUNDLE, &[&clients]),
            listener(Mode::AllowInsecureFallback),
        ]);
        // Everybody is let in there, and nobody has to have a key.
        let config = showing(&world.own, &clients.client("good"), &Identity::new("bad"));
        let mut tunnel = world.tunnel_by(HOST, config).await;
        world.apply(vec![listener(Mode::AllowValidOnly)]);
        ends(&mut tunnel).await;
        world.rig.wait_closed(CloseReason::NoLongerServed, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_a_port_ends_with_its_route_by_a_reset() {
    let address = serve(echo).await;
    let mut rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            tcp(port, "raw"),
            tcp_route("raw", 0, "raw", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    });
    let mut client = rig.connect().await;
    answers(&mut client).await;
    let edits = vec![
        tcp_route("raw", 0, "raw", &[("team-a/other:80", 1)]),
        // This one comes before it, but its own is still there.
        tcp_route("older", -1, "raw", &[("team-a/other:80", 1)]),
        backend(BACKEND, &[nobody()]),
    ];
    assert_eq!(rig.apply(edits), NONE);
    answers(&mut client).await;
    rig.remove(ResourceKind::TcpRoute, "team-a/raw");
    let read = within("the end", client.read_to_end(&mut Vec::new())).await;
    assert!(
        read.is_err(),
        "an orderly end would look like a whole stream"
    );
    rig.wait_closed(CloseReason::NoLongerServed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_session_ends_when_its_route_is_removed() {
    let backend_socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = backend_socket.local_addr().unwrap();
    let name = "team-a/dns:53/udp";
    let port = free_port();
    let mut rig = Rig::start(&ProxyLimits::default(), |_| {
        vec![
            udp(port, "dns"),
            udp_route("dns", 0, "dns", &[(name, 1)]),
            backend(name, &[address]),
        ]
    });
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client
        .connect(SocketAddr::from(([127, 0, 0, 1], port)))
        .await
        .unwrap();
    client.send(b"question").await.unwrap();
    let mut buffer = [0; 16];
    let received = backend_socket.recv_from(&mut buffer);
    within("the datagram", received).await.unwrap();
    rig.remove(ResourceKind::UdpRoute, "team-a/dns");
    let series = "vestibule_proxy_udp_sessions_closed_total{reason=\"EndpointGone\"}";
    let ended = || value(&rig.plane.metrics.encode().unwrap(), series) == 1;
    // It would be silent for a minute before it ended by itself.
    wait("the end of the session", ended).await;
}
