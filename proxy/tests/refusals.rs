//! Connections that the proxy ends: hostile clients, names that match nothing, dead backends,
//! limits, drain. Each is closed without a byte in answer, and counted by its reason.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::*;

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:443";

fn rig(limits: &ProxyLimits, address: std::net::SocketAddr) -> Rig {
    Rig::start(limits, |port| {
        vec![
            listener(port, "web", NAME, None),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    })
}

fn impatient() -> ProxyLimits {
    ProxyLimits {
        hello_deadline: Duration::from_secs(1),
        hello_bytes: 4096,
        ..ProxyLimits::default()
    }
}

/// Asserts that the proxy closes without saying anything. A reset is as good as an end.
async fn closed_silently(client: &mut TcpStream) {
    match read_to_end(client).await {
        Ok(bytes) => assert_eq!(bytes, b"", "an answer"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_clients_are_closed_and_counted() {
    let rig = rig(&impatient(), nobody());
    let too_long = [&b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"[..], &[0; 100]].concat();
    let not_a_hello = b"\x16\x03\x01\x00\x04\x02\x00\x00\x00";
    let ssl_v2 = b"\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10";
    for (bytes, reason) in [
        (
            &b"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"[..],
            CloseReason::NotTls,
        ),
        (ssl_v2, CloseReason::SslV2),
        (&[0; 5000], CloseReason::NotTls),
        (&too_long, CloseReason::HelloTooLarge),
        (not_a_hello, CloseReason::MalformedHello),
        (&HELLO[..100], CloseReason::HelloTimeout),
        (&[], CloseReason::HelloTimeout),
    ] {
        let before = rig.closed(reason);
        let mut client = rig.connect().await;
        client.write_all(bytes).await.unwrap();
        closed_silently(&mut client).await;
        rig.wait_closed(reason, before + 1).await;
    }
    assert_eq!(rig.plane.active(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_byte_at_a_time_ends_at_the_deadline() {
    let rig = rig(&impatient(), nobody());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            // The hello is 1,500 bytes long: the deadline comes first.
            for byte in HELLO {
                if client.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("the whole hello was taken");
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    rig.wait_closed(CloseReason::HelloTimeout, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_early_are_told_apart() {
    let rig = rig(&ProxyLimits::default(), nobody());
    drop(rig.connect().await);
    rig.wait_closed(CloseReason::ClientSilent, 1).await;
    let mut client = rig.connect().await;
    client.write_all(&HELLO[..100]).await.unwrap();
    client.shutdown().await.unwrap();
    closed_silently(&mut client).await;
    rig.wait_closed(CloseReason::HelloIncomplete, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_matches_nothing_is_closed_without_an_alert() {
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "other", "other.example.com", None),
            listener(port, "unrouted", "a.example.com", None),
        ]
    });
    let expect = async |hello: &[u8], reason| {
        let mut client = rig.connect().await;
        client.write_all(hello).await.unwrap();
        closed_silently(&mut client).await;
        rig.wait_closed(reason, 1).await;
    };
    expect(HELLO, CloseReason::NoRoute).await;
    expect(HELLO_NO_NAME, CloseReason::NoServerName).await;
    let text = |name: &[u8]| {
        let mut hello = HELLO.to_vec();
        let at = hello
            .windows(NAME.len())
            .position(|w| w == NAME.as_bytes())
            .unwrap();
        hello[at..at + NAME.len()].copy_from_slice(name);
        hello
    };
    expect(&text(b"b.example.com"), CloseReason::UnknownServerName).await;
    let mut client = rig.connect().await;
    client.write_all(&text(b"b..example.co")).await.unwrap();
    closed_silently(&mut client).await;
    rig.wait_closed(CloseReason::UnknownServerName, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_without_a_live_backend_close() {
    for (resources, reason) in [
        (vec![route("web", NAME, None)], CloseReason::InvalidBackend),
        (
            vec![route("web", NAME, Some(BACKEND))],
            CloseReason::NoEndpoints,
        ),
        (
            vec![
                route("web", NAME, Some(BACKEND)),
                backend(BACKEND, &[nobody()]),
            ],
            CloseReason::BackendConnectFailed,
        ),
    ] {
        for certificate in [None, Some("team-a/absent")] {
            let rig = Rig::start(&ProxyLimits::default(), |port| {
                let mut all = resources.clone();
                all.push(listener(port, "web", NAME, certificate));
                all
            });
            let mut client = rig.connect().await;
            client.write_all(HELLO).await.unwrap();
            closed_silently(&mut client).await;
            let connects = reason == CloseReason::BackendConnectFailed;
            let reason = if certificate.is_some() && connects {
                CloseReason::NoCertificate
            } else {
                reason
            };
            rig.wait_closed(reason, 1).await;
        }
    }
}

/// Waits for the backend to echo a byte to a new client, which speaks TLS to the proxy if it is given its certificate.
async fn is_echoed(rig: &Rig, own: Option<&Identity>) {
    let mut client = rig.connect().await;
    if let Some(own) = own {
        let mut client = tls(client, client_config(own), NAME).await.unwrap();
        client.write_all(b"x").await.unwrap();
        within("the echo", client.read_u8()).await.unwrap();
    } else {
        client.write_all(HELLO).await.unwrap();
        within("the echo", client.read_u8()).await.unwrap();
    }
}

/// Otherwise the hello that is passed through would come back, and go round until its tenant has no connection left.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_the_proxy_itself_is_not_connected_to() {
    let live = serve(echo).await;
    for certificate in [None, Some("team-a/web")] {
        let own = Identity::new(NAME);
        let mut rig = Rig::start(&ProxyLimits::default(), |port| {
            vec![
                listener(port, "web", NAME, certificate),
                route("web", NAME, Some(BACKEND)),
                own.resource("team-a/web"),
            ]
        });
        let itself = rig.address;
        rig.apply(vec![backend(BACKEND, &[itself])]);
        let mut client = rig.connect().await;
        if certificate.is_some() {
            let mut client = tls(client, client_config(&own), NAME).await.unwrap();
            let ended = within("the end", read_to_end(&mut client)).await;
            assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes.is_empty()));
        } else {
            client.write_all(HELLO).await.unwrap();
            closed_silently(&mut client).await;
        }
        rig.wait_closed(CloseReason::BackendLoop, 1).await;
        // No connection was made: not even one that ended without a byte.
        let metrics = rig.plane.metrics.encode().unwrap();
        assert!(
            metrics.contains("vestibule_proxy_connections_accepted_total 1"),
            "{metrics}"
        );
        // What else listens on this host is a backend like any other.
        rig.apply(vec![backend(BACKEND, &[itself, live])]);
        for _ in 0..16 {
            is_echoed(&rig, certificate.map(|_| &own)).await;
        }
        assert_eq!(rig.closed(CloseReason::BackendLoop), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_is_passed_over_for_another() {
    let live = serve(echo).await;
    for certificate in [None, Some("team-a/web")] {
        let own = Identity::new(NAME);
        let rig = Rig::start(&ProxyLimits::default(), |port| {
            vec![
                listener(port, "web", NAME, certificate),
                route("web", NAME, Some(BACKEND)),
                backend(BACKEND, &[nobody(), live, nobody()]),
                own.resource("team-a/web"),
            ]
        });
        for _ in 0..30 {
            is_echoed(&rig, certificate.map(|_| &own)).await;
        }
        assert_eq!(rig.closed(CloseReason::BackendConnectFailed), 0);
        let metrics = rig.plane.metrics.encode().unwrap();
        let retries = metrics
            .lines()
            .find_map(|line| line.strip_prefix("vestibule_proxy_backend_connect_retries_total "));
        assert!(retries.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_than_the_limit_are_closed() {
    let limits = ProxyLimits {
        max_connections: 3,
        ..ProxyLimits::default()
    };
    let rig = rig(&limits, serve(echo).await);
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = rig.connect().await;
        client.write_all(HELLO).await.unwrap();
        let mut back = vec![0; HELLO.len()];
        within("the echo", client.read_exact(&mut back))
            .await
            .unwrap();
        open.push(client);
    }
    let mut client = rig.connect().await;
    client.write_all(HELLO).await.unwrap();
    closed_silently(&mut client).await;
    rig.wait_closed(CloseReason::TenantLimit, 1).await;
    drop(open.pop());
    wait("room", || rig.plane.active() < 3).await;
    let mut client = rig.connect().await;
    client.write_all(HELLO).await.unwrap();
    within("the echo", client.read_u8()).await.unwrap();

    // The same for hellos, of which one source may have half.
    let limits = ProxyLimits {
        max_hellos: 4,
        ..ProxyLimits::default()
    };
    let rig = self::rig(&limits, nobody());
    let _slow = [rig.connect().await, rig.connect().await];
    wait("the slow ones", || rig.plane.active() == 2).await;
    closed_silently(&mut rig.connect().await).await;
    rig.wait_closed(CloseReason::Limit, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_lets_connections_end_and_then_ends_them() {
    let mut rig = rig(&ProxyLimits::default(), serve(echo).await);
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut client = rig.connect().await;
        client.write_all(HELLO).await.unwrap();
        let mut back = vec![0; HELLO.len()];
        within("the echo", client.read_exact(&mut back))
            .await
            .unwrap();
        open.push(client);
    }
    // In the kernel's queue when the drain begins, or taken already: served either way.
    let mut queued: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        queued.push(rig.connect().await);
    }
    let workers = rig.workers.take().unwrap();
    let draining = tokio::spawn(workers.drain(Duration::from_secs(5)));
    for client in &mut queued {
        client.write_all(HELLO).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(client).await.unwrap(), HELLO);
    }
    wait("the end of listening", || {
        std::net::TcpStream::connect(rig.address).is_err()
    })
    .await;
    // Open ones go on, and may end by themselves.
    for client in &mut open {
        client.write_all(b"still here").await.unwrap();
        let mut back = [0; 10];
        within("the echo", client.read_exact(&mut back))
            .await
            .unwrap();
        assert_eq!(&back, b"still here");
    }
    let mut ending = open.pop().unwrap();
    ending.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut ending).await.unwrap(), b"");
    assert_eq!(within("the drain", draining).await.unwrap(), 4);
    for client in &mut open {
        let mut rest = Vec::new();
        let _ = within("the end", client.read_to_end(&mut rest)).await;
        assert_eq!(rest, b"");
    }
    assert_eq!(rig.closed(CloseReason::Drained), 4);
    assert_eq!(rig.plane.active(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_early_when_nothing_is_left() {
    let mut rig = rig(&ProxyLimits::default(), nobody());
    let workers = rig.workers.take().unwrap();
    let drained = workers.drain(Duration::from_hours(1));
    assert_eq!(within("the drain", drained).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_keeps_what_it_started_with() {
    let mut rig = rig(&ProxyLimits::default(), serve(echo).await);
    let mut client = rig.connect().await;
    client.write_all(HELLO).await.unwrap();
    let mut back = vec![0; HELLO.len()];
    within("the echo", client.read_exact(&mut back))
        .await
        .unwrap();
    // Its backend goes, its route too, and its listener gets another hostname.
    let port = rig.address.port();
    let edits = vec![
        listener(port, "web", "other.example.com", None),
        route("web", "other.example.com", None),
        backend(BACKEND, &[]),
    ];
    assert_eq!(rig.apply(edits), Vec::<String>::new());
    let mut late = rig.connect().await;
    late.write_all(HELLO).await.unwrap();
    closed_silently(&mut late).await;
    rig.wait_closed(CloseReason::UnknownServerName, 1).await;
    client.write_all(b"still here").await.unwrap();
    let mut back = [0; 10];
    within("the echo", client.read_exact(&mut back))
        .await
        .unwrap();
    assert_eq!(&back, b"still here");
}
