//! TLS again behind terminated TLS: who a backend has to be, what it is shown, and that there is
//! nothing else where that cannot be had.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::version::{TLS12, TLS13};
use rustls::{ConnectionTrafficSecrets, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::*;
use vestibule_proxy_testing::{Authority, Identity};
use vestibule_stream::{Resource, ResourceKind, proto};

use proto::resource::Resource as Wire;
use proto::subject_alt_name::Name;

const NAME: &str = "a.example.com";
/// The name that the policy gives the backend.
const INNER: &str = "backend.internal";
const URI: &str = "spiffe://example.com/ns/team-a";
const BACKEND: &str = "team-a/web:443";
const BUNDLE: &str = "ConfigMap/team-a/ca";
const SHOWN: &str = "infra/gateway";
const NONE: Vec<String> = Vec::new();

fn policy() -> proto::BackendTls {
    proto::BackendTls {
        hostname: INNER.into(),
        trust_bundles: vec![BUNDLE.into()],
        ..Default::default()
    }
}

fn with_names(names: &[Name]) -> proto::BackendTls {
    let names = names.iter().cloned().map(Some);
    proto::BackendTls {
        subject_alt_names: names.map(|name| proto::SubjectAltName { name }).collect(),
        ..policy()
    }
}

fn secured(addresses: &[SocketAddr], tls: Option<proto::BackendTls>) -> Resource {
    let mut resource = backend(BACKEND, addresses);
    if let Some(Wire::Backend(backend)) = &mut resource.resource {
        backend.tls = tls;
    }
    resource
}

fn shown(listener: Resource) -> Vec<Resource> {
    let settings = proto::GatewaySettings {
        backend_certificate: SHOWN.into(),
        ..Default::default()
    };
    with_settings(listener, settings).to_vec()
}

/// What a backend saw of its handshake.
struct Met {
    stream: TlsStream<TcpStream>,
    server_name: Option<String>,
    alpn: Option<Vec<u8>>,
    /// How many certificates the proxy showed.
    shown: usize,
    resumed: bool,
}

/// A backend that hands over what comes through its handshake.
struct Far {
    address: SocketAddr,
    met: mpsc::Receiver<Met>,
    connections: Arc<AtomicUsize>,
}

impl Far {
    async fn start(config: rustls::ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, met) = mpsc::channel(64);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let session = stream.get_ref().1;
                    let met = Met {
                        server_name: session.server_name().map(str::to_owned),
                        alpn: session.alpn_protocol().map(<[u8]>::to_vec),
                        shown: session.peer_certificates().map_or(0, <[_]>::len),
                        resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
                        stream,
                    };
                    let _ = sender.send(met).await;
                });
            }
        });
        Self {
            address,
            met,
            connections,
        }
    }

    async fn next(&mut self) -> Met {
        within("a connection of the proxy", self.met.recv())
            .await
            .unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

struct World {
    rig: Rig,
    outer: Identity,
    ca: Authority,
    far: Far,
}

async fn world_with(make: impl FnOnce(&Authority) -> rustls::ServerConfig) -> World {
    let (outer, ca) = (Identity::new(NAME), Authority::new("backends"));
    let far = Far::start(make(&ca)).await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            secured(&[far.address], Some(policy())),
            outer.resource("team-a/cert"),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    World {
        rig,
        outer,
        ca,
        far,
    }
}

async fn world() -> World {
    world_with(|ca| ca.server(&[INNER], &[URI]).server_config()).await
}

impl World {
    async fn client(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let config = client_config(&self.outer);
        tls(self.rig.connect().await, config, NAME).await.unwrap()
    }

    /// A client that is served, and its backend's end.
    async fn pair(&mut self) -> (tokio_rustls::client::TlsStream<TcpStream>, Met) {
        let client = self.client().await;
        (client, self.far.next().await)
    }

    /// Has a client come and go unserved.
    async fn refused(&self, reason: CloseReason) {
        let before = self.rig.closed(reason);
        let mut client = self.client().await;
        client.write_all(b"secret").await.unwrap();
        assert!(read_to_end(&mut client).await.is_err());
        self.rig.wait_closed(reason, before + 1).await;
    }

    fn set(&mut self, tls: Option<proto::BackendTls>) {
        let resource = secured(&[self.far.address], tls);
        assert_eq!(self.rig.apply(vec![resource]), NONE);
    }

    fn set_listener(&mut self, resources: impl Fn(u16) -> Vec<Resource>) {
        let resources = resources(self.rig.address.port());
        assert_eq!(self.rig.apply(resources), NONE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_arrive_whole_both_ways_whoever_speaks_first() {
    const LENGTH: u64 = 16 << 20;
    let mut world = world().await;
    let (mut client, mut met) = world.pair().await;
    assert_eq!(met.server_name.as_deref(), Some(INNER));
    assert_eq!((met.alpn, met.shown), (None, 0));
    met.stream.write_all(b"220 ready").await.unwrap();
    met.stream.flush().await.unwrap();
    let mut greeting = [0; 9];
    within("the greeting", client.read_exact(&mut greeting))
        .await
        .unwrap();
    assert_eq!(&greeting, b"220 ready");

    let (mut client_in, mut client_out) = tokio::io::split(client);
    let (mut far_in, mut far_out) = tokio::io::split(met.stream);
    let up = async {
        send(&mut client_out, 3, LENGTH).await;
        client_out.shutdown().await.unwrap();
    };
    let down = async {
        send(&mut far_out, 4, LENGTH).await;
        far_out.shutdown().await.unwrap();
    };
    let at_far = async {
        receive(&mut far_in, 3, LENGTH).await;
        assert_eq!(read_to_end(&mut far_in).await.unwrap(), b"");
    };
    let at_client = async {
        receive(&mut client_in, 4, LENGTH).await;
        assert_eq!(read_to_end(&mut client_in).await.unwrap(), b"");
    };
    tokio::join!(up, down, at_far, at_client);
    wait("the end", || world.rig.plane.active() == 0).await;
    assert_eq!(world.rig.plane.metrics.bytes_upstream.get(), LENGTH);
    assert_eq!(world.rig.plane.metrics.bytes_downstream.get(), LENGTH + 9);
}

/// Sends session tickets until the proxy no longer takes them. rustls sends no such records, so they are made here.
async fn send_tickets(stream: TlsStream<TcpStream>) {
    let (mut tcp, session) = stream.into_inner();
    let (mut sequence, secrets) = session.dangerous_extract_secrets().unwrap().tx;
    let (algorithm, key, iv) = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
        _ => panic!("an unknown algorithm"),
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
    // Lifetime, age, an empty nonce, a ticket of one byte, no extensions.
    let ticket = [4, 0, 0, 14, 0, 0, 14, 16, 0, 0, 0, 1, 0, 0, 1, b'T', 0, 0];
    loop {
        let mut record = [&ticket.repeat(900)[..], &[22]].concat();
        let length = u16::try_from(record.len() + algorithm.tag_len()).unwrap();
        let header = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
        let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
        for (byte, of) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= of;
        }
        sequence += 1;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = key.seal_in_place_append_tag(nonce, Aad::from(&header), &mut record);
        sealed.unwrap();
        if tcp.write_all(&[header, record].concat()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_tickets_without_end_end_the_connection() {
    let mut world = world_with(|ca| {
        let mut config = ca.server(&[INNER], &[URI]).server_config();
        config.enable_secret_extraction = true;
        config
    })
    .await;
    // First for a client of TLS, and then where an answer is expected.
    let (mut client, met) = world.pair().await;
    let sent = tokio::spawn(send_tickets(met.stream));
    assert!(read_to_end(&mut client).await.is_err());
    world.rig.wait_closed(CloseReason::BackendReset, 1).await;
    world.rig.wait_backend_given_up().await;
    within("the end", sent).await.unwrap();
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            http(port, "web", "", None),
            web::http_route("web", "", vec![web::rule("/", BACKEND)]),
            secured(&[world.far.address], Some(policy())),
            Authority::bundle(BUNDLE, &[&world.ca]),
        ]
    });
    let head = format!("POST / HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: 0");
    let asks = web::ask(&rig, &head, "");
    let floods = async {
        let mut met = world.far.next().await;
        let _ = met.stream.read(&mut [0; 1024]).await;
        send_tickets(met.stream).await;
    };
    let (answer, ()) = tokio::join!(asks, floods);
    assert_eq!(answer.status, 502);
    rig.wait_backend_given_up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_backend_gets_all_of_it() {
    let mut world = world().await;
    let (mut client, mut met) = world.pair().await;
    let length = 3_000_000;
    let sending = tokio::spawn(async move {
        send(&mut client, 5, length).await;
        client.shutdown().await.unwrap();
        client
    });
    // Until nothing more fits between the two.
    let moved = || world.rig.plane.active() == 1;
    wait("the connection", moved).await;
    receive(&mut met.stream, 5, length).await;
    assert_eq!(read_to_end(&mut met.stream).await.unwrap(), b"");
    let mut client = sending.await.unwrap();
    met.stream.write_all(b"done").await.unwrap();
    met.stream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"done");
    world.rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_passed_on_as_what_they_are() {
    let mut world = world().await;
    // The backend's, in order; the other direction stays open.
    let (mut client, mut met) = world.pair().await;
    met.stream.write_all(b"bye").await.unwrap();
    met.stream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"bye");
    client.write_all(b"more").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut met.stream).await.unwrap(), b"more");
    world.rig.wait_closed(CloseReason::BackendClosed, 1).await;

    // Without close_notify: what came is passed on, and that something may be missing.
    let (mut client, mut met) = world.pair().await;
    met.stream.write_all(b"cut").await.unwrap();
    met.stream.flush().await.unwrap();
    met.stream.get_mut().0.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let ended = within("the end", client.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"cut");
    let kind = ended.map_err(|error| error.kind());
    assert_eq!(kind, Err(std::io::ErrorKind::UnexpectedEof));
    client.shutdown().await.unwrap();
    world
        .rig
        .wait_closed(CloseReason::BackendTruncated, 1)
        .await;

    let (mut client, mut met) = world.pair().await;
    client.write_all(b"half").await.unwrap();
    client.get_mut().0.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let ended = within("the end", met.stream.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"half");
    let kind = ended.map_err(|error| error.kind());
    assert_eq!(kind, Err(std::io::ErrorKind::UnexpectedEof));
    // The other direction stays open.
    met.stream.write_all(b"answer").await.unwrap();
    met.stream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"answer");
    world.rig.wait_closed(CloseReason::ClientTruncated, 1).await;

    // A reset, either way.
    let (mut client, met) = world.pair().await;
    met.stream.get_ref().0.set_zero_linger().unwrap();
    drop(met);
    assert!(read_to_end(&mut client).await.is_err());
    world.rig.wait_closed(CloseReason::BackendReset, 1).await;
    let (client, mut met) = world.pair().await;
    client.get_ref().0.set_zero_linger().unwrap();
    drop(client);
    assert!(read_to_end(&mut met.stream).await.is_err());
    world.rig.wait_closed(CloseReason::ClientReset, 1).await;
}

/// Where only the backend's side speaks TLS. A write can be the first to meet a reset.
#[tokio::test(flavor = "multi_thread")]
async fn the_side_that_broke_during_a_transfer_is_named() {
    let ca = Authority::new("backends");
    let mut far = Far::start(ca.server(&[INNER], &[URI]).server_config()).await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            tcp(port, "web"),
            tcp_route("web", 0, "web", &[(BACKEND, 1)]),
            secured(&[far.address], Some(policy())),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    let bytes = vec![7; 1 << 16];
    let mut client = rig.connect().await;
    let mut met = far.next().await;
    let sends = async { while client.write_all(&bytes).await.is_ok() {} };
    let breaks = async {
        within("a byte", met.stream.read_u8()).await.unwrap();
        met.stream.get_ref().0.set_zero_linger().unwrap();
        drop(met);
    };
    let both = async { tokio::join!(sends, breaks) };
    within("the end of the upload", both).await;
    rig.wait_closed(CloseReason::BackendReset, 1).await;

    let mut client = rig.connect().await;
    let mut met = far.next().await;
    let sends = async { while met.stream.write_all(&bytes).await.is_ok() {} };
    let breaks = async {
        within("a byte", client.read_u8()).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
    };
    let both = async { tokio::join!(sends, breaks) };
    within("the end of the download", both).await;
    rig.wait_closed(CloseReason::ClientReset, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_has_to_be_who_the_policy_says() {
    let mut world = world().await;
    let uri = Name::Uri(URI.into());
    let dns = |name: &str| Name::Dns(name.into());
    for tls in [
        policy(),
        with_names(std::slice::from_ref(&uri)),
        with_names(&[dns("other.internal"), dns(INNER)]),
        with_names(&[dns("*.internal")]),
    ] {
        world.set(Some(tls));
        drop(world.pair().await);
    }
    let other_host = proto::BackendTls {
        hostname: "other.internal".into(),
        ..policy()
    };
    for tls in [
        other_host,
        // Where there are alternative names, the hostname is none of them.
        with_names(&[dns("other.internal")]),
        with_names(&[Name::Uri("spiffe://example.com/ns/team-b".into())]),
        with_names(&[dns("*.example.com")]),
        // Nobody gave this backend a certificate that the world trusts.
        proto::BackendTls {
            system_trust: true,
            ..policy()
        },
    ] {
        world.set(Some(tls));
        world.refused(CloseReason::BackendTlsFailed).await;
    }
    world.set(Some(policy()));
    drop(world.pair().await);
    let others = Authority::new("others");
    let bundle = Authority::bundle(BUNDLE, &[&others]);
    assert_eq!(world.rig.apply(vec![bundle]), NONE);
    world.refused(CloseReason::BackendTlsFailed).await;
    let bundle = Authority::bundle(BUNDLE, &[&others, &world.ca]);
    assert_eq!(world.rig.apply(vec![bundle]), NONE);
    drop(world.pair().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_what_it_needs_no_connection_is_made() {
    let mut world = world().await;
    drop(world.pair().await);
    let before = world.far.connections();
    let invalid = proto::BackendTls {
        invalid: true,
        ..policy()
    };
    let elsewhere = proto::BackendTls {
        trust_bundles: vec!["ConfigMap/team-a/missing".into()],
        ..policy()
    };
    let unreadable = proto::BackendTls {
        hostname: "not a name".into(),
        ..policy()
    };
    let unknown = proto::BackendTls {
        subject_alt_names: vec![proto::SubjectAltName { name: None }],
        ..policy()
    };
    for tls in [
        invalid,
        elsewhere,
        unreadable,
        unknown,
        proto::BackendTls::default(),
    ] {
        world.set(Some(tls));
        world.refused(CloseReason::BackendTlsInvalid).await;
    }
    world.set(Some(policy()));
    world.rig.remove(ResourceKind::TrustBundle, BUNDLE);
    world.refused(CloseReason::BackendTlsInvalid).await;
    assert_eq!(world.far.connections(), before);
    // It is made again when it can be, without another word about the backend.
    let bundle = Authority::bundle(BUNDLE, &[&world.ca]);
    assert_eq!(world.rig.apply(vec![bundle]), NONE);
    drop(world.pair().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_certificate_is_shown() {
    let clients = Authority::new("clients");
    let leaf = clients.client("gateway");
    let mut world = world_with(|ca| ca.server(&[INNER], &[]).server_config_for(&clients)).await;
    // The backend wants one. In TLS 1.3 the proxy hears of it after its own handshake.
    let mut client = world.client().await;
    assert!(read_to_end(&mut client).await.is_err());
    let plain = |port| listener(port, "web", NAME, Some("team-a/cert"));
    world.set_listener(|port| shown(plain(port)));
    // The Gateway has one that is not held: rather none at all.
    let before = world.far.connections();
    world.refused(CloseReason::BackendTlsInvalid).await;
    assert_eq!(world.far.connections(), before);
    assert_eq!(world.rig.apply(vec![leaf.resource(SHOWN)]), NONE);
    let (_client, met) = world.pair().await;
    assert_eq!(met.shown, 1);
    // Another one, and what was open stays.
    let next = clients.client("gateway again");
    assert_eq!(world.rig.apply(vec![next.resource(SHOWN)]), NONE);
    let (mut client, mut met) = world.pair().await;
    let seen = met.stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(seen, &next.chain[..]);
    world.rig.remove(ResourceKind::Certificate, SHOWN);
    world.refused(CloseReason::BackendTlsInvalid).await;
    client.write_all(b"still here").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut met.stream).await.unwrap(), b"still here");
}

/// The Gateway shows it to the backends of some namespaces only.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_the_gateways_certificate_is_not_for_is_not_shown_it() {
    let clients = Authority::new("clients");
    let leaf = clients.client("gateway");
    let mut world = world_with(|ca| ca.server(&[INNER], &[]).server_config_for(&clients)).await;
    assert_eq!(world.rig.apply(vec![leaf.resource(SHOWN)]), NONE);
    world.set_listener(|port| {
        let settings = proto::GatewaySettings {
            selective_backend_certificate: SHOWN.into(),
            ..Default::default()
        };
        let listener = listener(port, "web", NAME, Some("team-a/cert"));
        with_settings(listener, settings).to_vec()
    });
    let withheld = |world: &World| world.rig.plane.metrics.backend_certificates_withheld.get();
    // Another Gateway's, or its own: both say so of themselves in each order.
    for (gateways, shown) in [
        (&[][..], false),
        (&["infra/edge"][..], true),
        (&["infra/other"], false),
        (&["infra/other", "infra/edge"], true),
    ] {
        let mut resource = secured(&[world.far.address], Some(policy()));
        if let Some(Wire::Backend(backend)) = &mut resource.resource {
            backend.certificate_of = gateways.iter().map(ToString::to_string).collect();
        }
        assert_eq!(world.rig.apply(vec![resource]), NONE);
        let before = withheld(&world);
        if shown {
            let (_client, met) = world.pair().await;
            assert_eq!((met.shown, withheld(&world)), (1, before), "{gateways:?}");
        } else {
            // The backend wants one, and gets none.
            let mut client = world.client().await;
            assert!(read_to_end(&mut client).await.is_err(), "{gateways:?}");
            assert!(world.far.met.try_recv().is_err(), "{gateways:?}");
            assert_eq!(withheld(&world), before + 1, "{gateways:?}");
        }
    }
    // One that the Gateway has and that is not held is no reason to refuse those who would not be shown it.
    world.rig.remove(ResourceKind::Certificate, SHOWN);
    world.refused(CloseReason::BackendTlsInvalid).await;
    let before = withheld(&world);
    world.set(Some(policy()));
    let mut client = world.client().await;
    assert!(read_to_end(&mut client).await.is_err());
    assert_eq!(withheld(&world), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_come_and_go_under_connections() {
    let mut world = world().await;
    let (mut client, mut met) = world.pair().await;
    // Without a policy the backend is spoken to in plaintext, which this one does not understand.
    world.set(None);
    let mut other = world.client().await;
    other
        .write_all(b"in plaintext, as nobody asked for more")
        .await
        .unwrap();
    assert!(world.far.met.try_recv().is_err());
    world.set(Some(policy()));
    drop(world.pair().await);
    // One whose backend goes and comes back has lost nothing but its sessions.
    world.rig.remove(ResourceKind::Backend, BACKEND);
    let tcp = world.rig.connect().await;
    assert!(tls(tcp, client_config(&world.outer), NAME).await.is_err());
    world.rig.wait_closed(CloseReason::NoEndpoints, 1).await;
    world.set(Some(policy()));
    drop(world.pair().await);
    client.write_all(b"x").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut met.stream).await.unwrap(), b"x");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_resumed_with_what_made_them() {
    for version in [&TLS13, &TLS12] {
        let mut world = world_with(|ca| {
            let leaf: Identity = ca.server(&[INNER], &[]);
            let builder = rustls::ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .unwrap();
            builder
                .with_no_client_auth()
                .with_single_cert(leaf.chain.clone(), leaf.key())
                .unwrap()
        })
        .await;
        // The tickets come with the first bytes.
        let visit = async |world: &mut World| {
            let (mut client, mut met) = world.pair().await;
            met.stream.write_all(b"x").await.unwrap();
            met.stream.shutdown().await.unwrap();
            assert_eq!(read_to_end(&mut client).await.unwrap(), b"x");
            met.resumed
        };
        assert!(!visit(&mut world).await);
        assert!(visit(&mut world).await, "{version:?}");
        // Endpoints that come and go are no other backend.
        let more = secured(&[world.far.address, world.far.address], Some(policy()));
        assert_eq!(world.rig.apply(vec![more]), NONE);
        assert!(visit(&mut world).await);
        // With other trust nothing of before is taken over.
        let others = Authority::new("others");
        let bundle = Authority::bundle(BUNDLE, &[&world.ca, &others]);
        assert_eq!(world.rig.apply(vec![bundle]), NONE);
        assert!(!visit(&mut world).await);
        assert!(visit(&mut world).await);
        world.set(Some(with_names(&[Name::Dns(INNER.into())])));
        assert!(!visit(&mut world).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_does_not_speak_tls_gets_nothing_of_the_clients() {
    let (address, accepted) = one_connection().await;
    let mut world = world().await;
    let resource = secured(&[address], Some(policy()));
    assert_eq!(world.rig.apply(vec![resource]), NONE);
    let mut client = world.client().await;
    client.write_all(b"secret").await.unwrap();
    let mut plain = accepted.await;
    plain.write_all(b"220 I speak first\r\n").await.unwrap();
    let got = read_to_end(&mut plain).await.unwrap_or_default();
    assert!(!got.windows(6).any(|window| window == b"secret"));
    assert!(read_to_end(&mut client).await.is_err());
    world
        .rig
        .wait_closed(CloseReason::BackendTlsFailed, 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_says_nothing_is_given_up() {
    let (address, accepted) = one_connection().await;
    let (outer, ca) = (Identity::new(NAME), Authority::new("backends"));
    let limits = ProxyLimits {
        connect_deadline: std::time::Duration::from_secs(1),
        ..ProxyLimits::default()
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            secured(&[address], Some(policy())),
            outer.resource("team-a/cert"),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    let config = client_config(&outer);
    let mut client = tls(rig.connect().await, config, NAME).await.unwrap();
    let silent = accepted.await;
    assert!(read_to_end(&mut client).await.is_err());
    rig.wait_closed(CloseReason::BackendConnectTimeout, 1).await;
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_endpoint_is_tried_where_one_is_not_who_it_should_be() {
    let mut world = world().await;
    let stranger = Authority::new("strangers").server(&[INNER], &[]);
    let stranger = Far::start(stranger.server_config()).await;
    let both = secured(&[stranger.address, world.far.address], Some(policy()));
    assert_eq!(world.rig.apply(vec![both]), NONE);
    for _ in 0..8 {
        drop(world.pair().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passthrough_is_left_alone() {
    let mut world = world().await;
    let invalid = proto::BackendTls {
        invalid: true,
        ..policy()
    };
    world.set(Some(invalid));
    world.set_listener(|port| vec![listener(port, "web", NAME, None)]);
    let leaf = world.ca.roots();
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(leaf)
        .with_no_client_auth();
    // The backend's own certificate, which has another name, reaches the client.
    let error = tls(world.rig.connect().await, config, NAME)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(INNER), "{error}");
}
