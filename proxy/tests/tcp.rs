//! Listeners of bytes, by real clients and backends on loopback: who speaks first does not matter, ends and resets are
//! carried, and a route's backends, limits and age are those of every other connection.

use std::net::SocketAddr;
use std::time::Duration;

use proto::resource::Resource as Wire;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use vestibule_proxy::bounds::Bounds;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::Authority;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, ResourceKey, ResourceKind, proto};

const BACKEND: &str = "team-a/db:5432";
const GREETING: &[u8] = b"220 ready\r\n";

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

fn rig(limits: &ProxyLimits, address: SocketAddr) -> Rig {
    Rig::start(limits, |port| {
        vec![
            tcp(port, "db"),
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    })
}

/// A backend that says `greeting` at once, and nothing more.
async fn greets(greeting: &'static [u8]) -> SocketAddr {
    serve(move |mut stream| async move {
        let _ = stream.write_all(greeting).await;
        let _ = read_to_end(&mut stream).await;
    })
    .await
}

/// Whether a client that sends this is reset, be it before it knows that it is connected.
async fn is_reset(rig: &Rig, bytes: &[u8]) -> bool {
    let Ok(mut client) = TcpStream::connect(rig.address).await else {
        return true;
    };
    let _ = client.write_all(bytes).await;
    read_to_end(&mut client).await.is_err()
}

/// What a backend says that speaks first.
async fn greeting(client: &mut TcpStream) -> Vec<u8> {
    let mut greeting = vec![0; GREETING.len()];
    let read = client.read_exact(&mut greeting);
    within("the greeting", read).await.unwrap();
    greeting
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_first_is_heard_by_a_client_that_says_nothing() {
    let rig = rig(&quiet(), greets(GREETING).await);
    let mut client = rig.connect().await;
    assert_eq!(greeting(&mut client).await, GREETING);
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_arrive_as_they_were_sent_whatever_they_look_like() {
    let rig = rig(&quiet(), serve(echo).await);
    for first in [
        HELLO,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"\0",
    ] {
        let mut client = rig.connect().await;
        client.write_all(first).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut client).await.unwrap(), first);
    }
    // Enough for pipes, in both directions at one time.
    let (mut read, mut write) = rig.connect().await.into_split();
    let length = 3_000_001;
    let sent = tokio::spawn(async move {
        send(&mut write, 7, length).await;
        write.shutdown().await.unwrap();
    });
    receive(&mut read, 7, length).await;
    sent.await.unwrap();
    assert_eq!(read_to_end(&mut read).await.unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ended_its_side_gets_the_rest() {
    let (address, backend) = one_connection().await;
    let rig = rig(&quiet(), address);
    let mut client = rig.connect().await;
    client.write_all(b"query").await.unwrap();
    client.shutdown().await.unwrap();
    let mut backend = backend.await;
    assert_eq!(read_to_end(&mut backend).await.unwrap(), b"query");
    backend.write_all(b"answer").await.unwrap();
    drop(backend);
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"answer");
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_one_side_is_a_reset_for_the_other() {
    let (address, far) = one_connection().await;
    let mut rig = rig(&quiet(), address);
    let mut client = rig.connect().await;
    let mut backend_side = far.await;
    backend_side.write_all(b"half of a row").await.unwrap();
    let mut half = [0; 13];
    client.read_exact(&mut half).await.unwrap();
    SockRef::from(&backend_side)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(backend_side);
    assert!(read_to_end(&mut client).await.is_err());
    rig.wait_closed(CloseReason::BackendReset, 1).await;

    let (address, far) = one_connection().await;
    rig.apply(vec![backend(BACKEND, &[address])]);
    let client = rig.connect().await;
    let mut backend_side = far.await;
    SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    assert!(read_to_end(&mut backend_side).await.is_err());
    rig.wait_closed(CloseReason::ClientReset, 1).await;
}

/// Sends so much that the bytes move through a pipe, and urgent bytes in between. These have a place of their own, and the
/// proxy does not pass them on.
async fn urgent_bytes_are_left_out(mut from: TcpStream, mut to: TcpStream) {
    let send_urgent = |from: &TcpStream| SockRef::from(from).send_out_of_band(b"!").unwrap();
    let bulk = 1 << 20;
    tokio::join!(send(&mut from, 7, bulk), receive(&mut to, 7, bulk));
    // The bytes behind the mark arrive although nothing follows.
    for round in 1..4 {
        send_urgent(&from);
        from.write_all(&[round; 5000]).await.unwrap();
        let mut got = [0; 5000];
        let read = to.read_exact(&mut got);
        within("the bytes behind the mark", read).await.unwrap();
        assert_eq!(got, [round; 5000]);
    }
    // The end comes behind all bytes.
    let (before, behind) = (vec![8; 50_000], vec![9; 50_000]);
    from.write_all(&before).await.unwrap();
    send_urgent(&from);
    from.write_all(&behind).await.unwrap();
    from.shutdown().await.unwrap();
    let rest = read_to_end(&mut to).await.unwrap();
    assert!(rest == [before, behind].concat(), "{}", rest.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_bytes_neither_end_nor_stall_a_bulk_transfer() {
    let (address, far) = one_connection().await;
    let mut rig = rig(&quiet(), address);
    let client = rig.connect().await;
    urgent_bytes_are_left_out(client, far.await).await;
    rig.wait_closed(CloseReason::ClientClosed, 1).await;

    let (address, far) = one_connection().await;
    rig.apply(vec![backend(BACKEND, &[address])]);
    let client = rig.connect().await;
    urgent_bytes_are_left_out(far.await, client).await;
    rig.wait_closed(CloseReason::BackendClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_kept_and_the_share_of_an_invalid_backend_is_reset() {
    let (one, two) = (greets(b"1").await, greets(b"2").await);
    let never = greets(b"0").await;
    let rig = Rig::start(&quiet(), |port| {
        let backends = [
            ("team-a/one:1", 6),
            ("team-a/two:1", 2),
            ("team-a/no:1", 0),
            ("", 2),
        ];
        vec![
            tcp(port, "db"),
            tcp_route("db", 0, "db", &backends),
            backend("team-a/one:1", &[one]),
            backend("team-a/two:1", &[two]),
            backend("team-a/no:1", &[never]),
        ]
    });
    let (mut counts, mut resets) = ([0_u32; 3], 0_u32);
    for _ in 0..1000 {
        let said = async {
            let mut client = TcpStream::connect(rig.address).await?;
            client.read_u8().await
        };
        match within("a byte or the end", said).await {
            Ok(said) => counts[usize::from(said - b'0')] += 1,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                resets += 1;
            }
        }
    }
    assert_eq!(counts[0], 0, "without a weight it gets nothing");
    // Six standard deviations each.
    assert!(counts[1].abs_diff(600) < 93, "{counts:?}, {resets}");
    assert!(counts[2].abs_diff(200) < 76, "{counts:?}, {resets}");
    assert!(resets.abs_diff(200) < 76, "{counts:?}, {resets}");
    assert_eq!(rig.closed(CloseReason::InvalidBackend), u64::from(resets));
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_connection_that_cannot_be_served_is_reset_and_its_reason_counted() {
    let mut rig = Rig::start(&quiet(), |port| vec![tcp(port, "db")]);
    let refused = async |rig: &Rig, reason| {
        assert!(is_reset(rig, b"").await, "{reason:?}");
        rig.wait_closed(reason, 1).await;
    };
    refused(&rig, CloseReason::NoRoute).await;
    rig.apply(vec![tcp_route("db", 0, "db", &[("", 1)])]);
    refused(&rig, CloseReason::InvalidBackend).await;
    rig.apply(vec![tcp_route("db", 0, "db", &[(BACKEND, 1)])]);
    refused(&rig, CloseReason::NoEndpoints).await;
    rig.apply(vec![backend(BACKEND, &[nobody()])]);
    refused(&rig, CloseReason::BackendConnectFailed).await;
    // A route of TLS on such a listener is none of its.
    rig.remove(ResourceKind::TcpRoute, "team-a/db");
    rig.apply(vec![route("db", "a.example.com", Some(BACKEND))]);
    assert!(is_reset(&rig, HELLO).await);
    rig.wait_closed(CloseReason::NoRoute, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_is_passed_over() {
    let good = greets(GREETING).await;
    let rig = Rig::start(&quiet(), |port| {
        vec![
            tcp(port, "db"),
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            backend(BACKEND, &[nobody(), good, nobody()]),
        ]
    });
    for _ in 0..20 {
        let mut client = rig.connect().await;
        assert_eq!(greeting(&mut client).await, GREETING);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_routes_the_oldest_has_the_listener() {
    let (old, young) = (greets(b"old").await, greets(b"new").await);
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            tcp(port, "db"),
            tcp_route("a-young-one", 20, "db", &[("team-a/young:1", 1)]),
            tcp_route("the-old-one", 10, "db", &[("team-a/old:1", 1)]),
            backend("team-a/old:1", &[old]),
            backend("team-a/young:1", &[young]),
        ]
    });
    let said = async |rig: &Rig| {
        let mut client = rig.connect().await;
        let mut said = [0; 3];
        let read = client.read_exact(&mut said);
        within("three bytes", read).await.unwrap();
        said
    };
    for _ in 0..20 {
        assert_eq!(&said(&rig).await, b"old");
    }
    rig.remove(ResourceKind::TcpRoute, "team-a/the-old-one");
    assert_eq!(&said(&rig).await, b"new");
    // By name where both are of one age, and however many there are.
    let many = (0..20).map(|n| tcp_route(&format!("b{n}"), 20, "db", &[("team-a/old:1", 1)]));
    rig.apply(many.collect());
    assert_eq!(&said(&rig).await, b"new");
    rig.remove(ResourceKind::TcpRoute, "team-a/a-young-one");
    assert_eq!(&said(&rig).await, b"old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_speaks_one_thing_and_a_hostname_is_no_part_of_bytes() {
    let mut rig = rig(&quiet(), serve(echo).await);
    let port = rig.address.port();
    let rejects = rig.apply(vec![listener(port, "tls", "a.example.com", None)]);
    assert!(rejects[0].starts_with("ProtocolConflict"), "{rejects:?}");
    let rejects = rig.apply(vec![tcp(port, "other")]);
    assert!(rejects[0].starts_with("HostnameConflict"), "{rejects:?}");
    let mut named = tcp(port, "named");
    if let Some(Wire::Listener(listener)) = &mut named.resource {
        listener.hostname = "a.example.com".into();
    }
    let rejects = rig.apply(vec![named]);
    assert!(rejects[0].starts_with("InvalidHostname"), "{rejects:?}");
    // In one batch it may come to speak something else.
    let gone = ResourceKey::new(ResourceKind::Listener, "ListenerSet/team-a/db/tls");
    let tls = listener(port, "web", "a.example.com", None);
    assert_eq!(rig.change(vec![tls], vec![gone]), Vec::<String>::new());
    let mut client = rig.connect().await;
    client.write_all(b"SELECT 1;").await.unwrap();
    let _ = read_to_end(&mut client).await;
    rig.wait_closed(CloseReason::NotTls, 1).await;
}

/// The owners of hostnames do not matter on a port without hostnames.
#[tokio::test(flavor = "multi_thread")]
async fn owner_of_every_hostname_has_no_say_about_a_port_without_hostnames() {
    let mut rig = rig(&quiet(), greets(GREETING).await);
    let owner = proto::HostnameOwner {
        gateway: "infra/edge".into(),
        hostname: String::new(),
        tenant: "team-b".into(),
    };
    let owner = Resource::new("infra/edge/", Wire::HostnameOwner(owner));
    assert_eq!(rig.apply(vec![owner]), Vec::<String>::new());
    let mut client = rig.connect().await;
    assert_eq!(greeting(&mut client).await, GREETING);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_no_more_connections_than_its_share() {
    let limits = ProxyLimits {
        max_connections: 4,
        guaranteed_percent: 50,
        ..quiet()
    };
    let rig = rig(&limits, greets(GREETING).await);
    let mut open = Vec::new();
    loop {
        let first = async {
            let mut client = TcpStream::connect(rig.address).await?;
            client.read_u8().await?;
            std::io::Result::Ok(client)
        };
        let Ok(client) = within("a byte or the end", first).await else {
            break;
        };
        open.push(client);
        assert!(open.len() <= 4, "nothing is refused");
    }
    assert!(!open.is_empty());
    rig.wait_closed(CloseReason::TenantLimit, 1).await;
}

/// A client that never said a word has had its backend from the beginning, so it does not count as one that keeps
/// others waiting.
#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_keep_no_places_of_hellos() {
    let limits = ProxyLimits {
        max_hellos: 2,
        ..quiet()
    };
    let rig = rig(&limits, greets(GREETING).await);
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut client = rig.connect().await;
        assert_eq!(greeting(&mut client).await, GREETING);
        open.push(client);
    }
    assert_eq!(rig.closed(CloseReason::Limit), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_and_one_that_is_drained_end_with_a_reset() {
    let idle = ProxyLimits {
        bounds: Bounds {
            tunnel_idle: Some(Duration::from_secs(1)),
            ..Bounds::default()
        },
        ..quiet()
    };
    let idle = rig(&idle, greets(GREETING).await);
    let mut client = idle.connect().await;
    assert_eq!(greeting(&mut client).await, GREETING);
    assert!(
        read_to_end(&mut client).await.is_err(),
        "it would look whole"
    );
    idle.wait_closed(CloseReason::TunnelIdleTimeout, 1).await;

    let mut drained = rig(&quiet(), greets(GREETING).await);
    let mut client = drained.connect().await;
    assert_eq!(greeting(&mut client).await, GREETING);
    let workers = drained.workers.take().unwrap();
    let ended = tokio::spawn(async move { workers.drain(Duration::ZERO).await });
    assert!(
        read_to_end(&mut client).await.is_err(),
        "it would look whole"
    );
    within("the end", ended).await.unwrap();
    assert_eq!(drained.closed(CloseReason::Drained), 1);
}

const V1: &[u8] = b"PROXY TCP4 198.51.100.7 192.0.2.1 4711 5432\r\n";

fn behind(mode: proto::ProxyProtocolMode, trusted: &str, port: u16) -> [Resource; 2] {
    let client_address = proto::ClientAddress {
        proxy_protocol: Some(proto::ProxyProtocol {
            mode: mode.into(),
            trusted_cidrs: vec![trusted.into()],
        }),
        forwarded_headers: None,
    };
    let settings = proto::GatewaySettings {
        client_address: Some(client_address),
        ..Default::default()
    };
    with_settings(tcp(port, "db"), settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_says_who_the_client_is_and_its_header_goes_no_further() {
    let strict = proto::ProxyProtocolMode::Strict;
    let address = serve(|mut stream| async move {
        let _ = stream.write_all(GREETING).await;
        echo(stream).await;
    })
    .await;
    let rig = Rig::start(&quiet(), |port| {
        let [listener, settings] = behind(strict, "127.0.0.0/8", port);
        vec![
            listener,
            settings,
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    });
    // Header alone: the server speaks next.
    let mut client = rig.connect().await;
    client.write_all(V1).await.unwrap();
    assert_eq!(greeting(&mut client).await, GREETING);
    // Header and bytes in one piece.
    let mut client = rig.connect().await;
    client.write_all(&[V1, b"hello"].concat()).await.unwrap();
    client.shutdown().await.unwrap();
    let all = read_to_end(&mut client).await.unwrap();
    assert_eq!(all, [GREETING, b"hello"].concat());
    let mut client = rig.connect().await;
    client.write_all(b"no header").await.unwrap();
    assert!(read_to_end(&mut client).await.is_err());
    rig.wait_closed(CloseReason::ProxyHeaderMissing, 1).await;
}

/// A client that waits for the server to begin would wait forever if the proxy waited for a header that need not come.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_header_is_not_awaited_from_a_client_that_may_not_send_one() {
    let optional = proto::ProxyProtocolMode::Optional;
    let address = greets(GREETING).await;
    let rig = Rig::start(&quiet(), |port| {
        let [listener, settings] = behind(optional, "10.0.0.0/8", port);
        vec![
            listener,
            settings,
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    });
    let mut client = rig.connect().await;
    assert_eq!(greeting(&mut client).await, GREETING);
}

/// A BackendTLSPolicy holds for bytes as for everything else: there is TLS to the backend, or no connection.
#[tokio::test(flavor = "multi_thread")]
async fn where_a_policy_says_so_the_backend_is_spoken_to_over_tls() {
    const INNER: &str = "backend.internal";
    const BUNDLE: &str = "ConfigMap/team-a/ca";
    let authority = Authority::new("inner");
    let config = authority.server(&[INNER], &[]).server_config();
    let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));
    let address = serve(move |tcp| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(tcp).await else {
                return;
            };
            let _ = stream.write_all(GREETING).await;
            let _ = stream.flush().await;
            let (mut read, mut write) = tokio::io::split(stream);
            if tokio::io::copy(&mut read, &mut write).await.is_ok() {
                let _ = write.shutdown().await;
            }
        }
    })
    .await;
    let secured = |hostname: &str| {
        let mut resource = backend(BACKEND, &[address]);
        if let Some(Wire::Backend(backend)) = &mut resource.resource {
            backend.tls = Some(proto::BackendTls {
                hostname: hostname.into(),
                trust_bundles: vec![BUNDLE.into()],
                ..Default::default()
            });
        }
        resource
    };
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            tcp(port, "db"),
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            secured(INNER),
            Authority::bundle(BUNDLE, &[&authority]),
        ]
    });
    let (mut read, mut write) = rig.connect().await.into_split();
    let mut said = vec![0; GREETING.len()];
    within("the greeting", read.read_exact(&mut said))
        .await
        .unwrap();
    assert_eq!(said, GREETING);
    let length = 1_000_001;
    let sent = tokio::spawn(async move {
        send(&mut write, 3, length).await;
        write.shutdown().await.unwrap();
    });
    receive(&mut read, 3, length).await;
    sent.await.unwrap();
    assert_eq!(read_to_end(&mut read).await.unwrap(), b"");
    rig.wait_closed(CloseReason::ClientClosed, 1).await;

    // Not who the policy wants: nothing of the client's goes there.
    rig.apply(vec![secured("somebody.else")]);
    assert!(is_reset(&rig, b"secret").await);
    rig.wait_closed(CloseReason::BackendTlsFailed, 1).await;
}
