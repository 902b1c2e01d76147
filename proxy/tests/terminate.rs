//! Termination end to end: every cipher, ends in both directions, key updates, hostile records.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::{Echo, http_route, rule};
use vestibule_proxy_testing::*;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Resource, ResourceKind};
use vestibule_test_support::properties::{keep_failures, quick};

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:80";

fn rig(identity: &Identity, address: std::net::SocketAddr, limits: &ProxyLimits) -> Rig {
    Rig::start(limits, |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
            identity.resource("team-a/cert"),
        ]
    })
}

async fn pair_with(config: impl FnOnce(&Identity) -> rustls::ClientConfig) -> Pair {
    let identity = Identity::new(NAME);
    let (address, accepted) = one_connection().await;
    let rig = rig(&identity, address, &ProxyLimits::default());
    let client = tls(rig.connect().await, config(&identity), NAME)
        .await
        .unwrap();
    Pair {
        rig,
        client,
        server: accepted.await,
    }
}

async fn pair() -> Pair {
    pair_with(client_config).await
}

/// A client whose TLS is terminated, and its backend's end.
struct Pair {
    rig: Rig,
    client: TlsStream<TcpStream>,
    server: TcpStream,
}

/// Every cipher suite in every version that it exists in.
fn ciphers() -> Vec<(&'static rustls::SupportedProtocolVersion, CipherSuite)> {
    provider()
        .cipher_suites
        .iter()
        // The certificate is an ECDSA one.
        .filter(|suite| !format!("{:?}", suite.suite()).contains("_RSA_"))
        .map(|suite| {
            (
                if suite.tls13().is_some() {
                    &TLS13
                } else {
                    &TLS12
                },
                suite.suite(),
            )
        })
        .collect()
}

fn with_cipher(
    identity: &Identity,
    version: &'static rustls::SupportedProtocolVersion,
    cipher: CipherSuite,
) -> rustls::ClientConfig {
    let mut provider = (*provider()).clone();
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == cipher);
    client_config_with(identity, Arc::new(provider), &[version])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cipher_carries_bytes_both_ways() {
    let ciphers = ciphers();
    assert_eq!(ciphers.len(), 6, "{ciphers:?}");
    for (version, cipher) in ciphers {
        let pair = pair_with(|identity| with_cipher(identity, version, cipher)).await;
        let Pair {
            rig,
            mut client,
            server,
        } = pair;
        assert_eq!(
            client
                .get_ref()
                .1
                .negotiated_cipher_suite()
                .unwrap()
                .suite(),
            cipher
        );
        let echoing = tokio::spawn(echo(server));
        for length in [1, 100, 16_383, 16_384, 16_385, 70_000, 1_000_000] {
            let (mut read, mut write) = tokio::io::split(client);
            tokio::join!(
                send(&mut write, length, length),
                receive(&mut read, length, length)
            );
            client = read.unsplit(write);
        }
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut client).await.unwrap(), b"", "{cipher:?}");
        echoing.await.unwrap();
        rig.wait_closed(CloseReason::ClientClosed, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_arrives_whole_in_both_directions_at_once() {
    const LENGTH: u64 = 64 << 20;
    let Pair {
        rig,
        client,
        server,
    } = pair().await;
    let _ends = both_send(tokio::io::split(client), server.into_split(), LENGTH).await;
    wait("the connection's end", || rig.plane.active() == 0).await;
    assert_eq!(rig.plane.metrics.bytes_upstream.get(), LENGTH);
    assert_eq!(rig.plane.metrics.bytes_downstream.get(), LENGTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_notify_of_the_client_leaves_the_other_direction_open() {
    let Pair {
        rig,
        mut client,
        server,
    } = pair().await;
    one_ends_first(&mut client, server).await;
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_backend_is_close_notify_and_leaves_the_other_direction_open() {
    let Pair {
        rig,
        client,
        mut server,
    } = pair().await;
    one_ends_first(&mut server, client).await;
    rig.wait_closed(CloseReason::BackendClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_without_close_notify_is_told_apart() {
    let Pair {
        rig,
        mut client,
        mut server,
    } = pair().await;
    client.write_all(b"request").await.unwrap();
    client.get_mut().0.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut server).await.unwrap(), b"request");
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"answer");
    rig.wait_closed(CloseReason::ClientTruncated, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_passed_on_without_close_notify() {
    let Pair {
        rig,
        client,
        mut server,
    } = pair().await;
    client.get_ref().0.set_zero_linger().unwrap();
    drop(client);
    assert!(read_to_end(&mut server).await.is_err());
    rig.wait_closed(CloseReason::ClientReset, 1).await;

    let Pair {
        rig,
        mut client,
        mut server,
    } = pair().await;
    // Else the reset may come before the proxy has seen that it is connected.
    client.write_all(b"x").await.unwrap();
    within("the byte", server.read_u8()).await.unwrap();
    server.set_zero_linger().unwrap();
    drop(server);
    assert!(read_to_end(&mut client).await.is_err());
    rig.wait_closed(CloseReason::BackendReset, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_updated_when_the_client_wishes() {
    let pair = pair_with(|identity| client_config_with(identity, provider(), &[&TLS13])).await;
    let Pair {
        rig,
        mut client,
        server,
    } = pair;
    let echoing = tokio::spawn(echo(server));
    for round in 0..50 {
        // Asks for an update of our keys too.
        client.get_mut().1.refresh_traffic_keys().unwrap();
        let (mut read, mut write) = tokio::io::split(client);
        tokio::join!(
            send(&mut write, round, 40_000),
            receive(&mut read, round, 40_000)
        );
        client = read.unsplit(write);
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    echoing.await.unwrap();
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_resumed_in_both_versions() {
    for version in [&TLS13, &TLS12] {
        let identity = Identity::new(NAME);
        let rig = rig(&identity, serve(echo).await, &ProxyLimits::default());
        let config = client_config_with(&identity, provider(), &[version]);
        for round in 0..3 {
            let mut client = tls(rig.connect().await, config.clone(), NAME)
                .await
                .unwrap();
            client.write_all(b"ping").await.unwrap();
            let mut back = [0; 4];
            // The tickets of TLS 1.3 come with the first bytes.
            within("the echo", client.read_exact(&mut back))
                .await
                .unwrap();
            let resumed = client.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
            assert_eq!(resumed, round > 0, "{version:?} round {round}");
            client.shutdown().await.unwrap();
            read_to_end(&mut client).await.unwrap();
        }
        let text = rig.plane.metrics.encode().unwrap();
        let name = if version == &TLS13 { "1.3" } else { "1.2" };
        for (resumed, count) in [("false", 1), ("true", 2)] {
            let line =
                format!("handshakes_total{{version=\"{name}\",resumed=\"{resumed}\"}} {count}");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    }
}

/// The certificate of a Secret with this UID.
fn of_secret(uid: &str, identity: &Identity) -> Resource {
    let mut resource = identity.resource("team-a/cert");
    if let Some(Wire::Certificate(wire)) = &mut resource.resource {
        uid.clone_into(&mut wire.secret_uid);
    }
    resource
}

/// Makes a request, and returns whether the session was resumed.
async fn resumes(rig: &Rig, config: &rustls::ClientConfig) -> bool {
    let stream = tls(rig.connect().await, config.clone(), NAME);
    let mut client = stream.await.unwrap();
    let text = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut client).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    client.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_the_secret_whose_certificate_it_began_with() {
    let one = Echo::start("one").await;
    let authority = Authority::new("everybody's");
    let new = |uid| of_secret(uid, &authority.server(&[NAME], &[]));
    let kinds = [
        (&TLS13, false),
        (&TLS13, true),
        (&TLS12, false),
        (&TLS12, true),
    ];
    for (version, is_http) in kinds {
        let listener_of = |port| {
            let on = if is_http { http } else { listener };
            on(port, "web", NAME, Some("team-a/cert"))
        };
        let mut rig = Rig::start(&ProxyLimits::default(), |port| {
            let attached = if is_http {
                http_route("web", NAME, vec![rule("/", BACKEND)])
            } else {
                route("web", NAME, Some(BACKEND))
            };
            let to = backend(BACKEND, &[one.address]);
            vec![listener_of(port), attached, to, new("first")]
        });
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(authority.roots())
            .with_no_client_auth();
        assert!(!resumes(&rig, &config).await);
        assert!(resumes(&rig, &config).await);
        // A renewal.
        assert_eq!(rig.apply(vec![new("first")]), Vec::<String>::new());
        assert!(resumes(&rig, &config).await, "{version:?}");
        // Another Secret of the same name, and an edit of the listener with it.
        let both = vec![listener_of(rig.address.port()), new("second")];
        assert_eq!(rig.apply(both), Vec::<String>::new());
        assert!(!resumes(&rig, &config).await, "{version:?}");
        assert!(resumes(&rig, &config).await);
        // One that comes after its name was free for a while.
        rig.remove(ResourceKind::Certificate, "team-a/cert");
        assert_eq!(rig.apply(vec![new("third")]), Vec::<String>::new());
        assert!(!resumes(&rig, &config).await, "{version:?}");
        // The same Secret that was not there for a while.
        rig.remove(ResourceKind::Certificate, "team-a/cert");
        assert_eq!(rig.apply(vec![new("third")]), Vec::<String>::new());
        assert!(resumes(&rig, &config).await, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_record_ends_the_connection_with_an_alert() {
    let Pair {
        rig,
        mut client,
        mut server,
    } = pair().await;
    client.write_all(b"good").await.unwrap();
    let mut good = [0; 4];
    within("the data", server.read_exact(&mut good))
        .await
        .unwrap();
    let forged = [&[23, 3, 3, 0, 32][..], &[0xaa; 32]].concat();
    client.get_mut().0.write_all(&forged).await.unwrap();
    let error = read_to_end(&mut client).await.unwrap_err();
    assert!(format!("{error:?}").contains("BadRecordMac"), "{error:?}");
    // The backend must not take what it got for all there was.
    assert!(read_to_end(&mut server).await.is_err());
    rig.wait_closed(CloseReason::TlsError, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_after_the_handshake_is_refused() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[21, 3, 3, 0, 2, 1, 0],
        &[20, 3, 3, 0, 1, 1],
    ] {
        let Pair {
            rig,
            mut client,
            mut server,
        } = pair().await;
        client.get_mut().0.write_all(bytes).await.unwrap();
        assert!(read_to_end(&mut client).await.is_err());
        assert!(read_to_end(&mut server).await.is_err());
        rig.wait_closed(CloseReason::TlsError, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_fail_or_stall_are_counted() {
    let identity = Identity::new(NAME);
    let limits = ProxyLimits {
        handshake_deadline: Duration::from_secs(1),
        ..ProxyLimits::default()
    };
    let rig = rig(&identity, serve(echo).await, &limits);
    // The client does not trust the certificate.
    let other = Identity::new("other.example.com");
    assert!(
        tls(rig.connect().await, client_config(&other), NAME)
            .await
            .is_err()
    );
    rig.wait_closed(CloseReason::HandshakeFailed, 1).await;
    // The client says nothing after its hello.
    let mut stalled = rig.connect().await;
    stalled.write_all(HELLO).await.unwrap();
    rig.wait_closed(CloseReason::HandshakeTimeout, 1).await;
    // The client goes away after its hello.
    let mut gone = rig.connect().await;
    gone.write_all(HELLO).await.unwrap();
    gone.shutdown().await.unwrap();
    rig.wait_closed(CloseReason::HandshakeFailed, 2).await;
    // No cipher in common: rustls' alert arrives.
    let mut old = rig.connect().await;
    old.write_all(include_bytes!("hellos/openssl-tls10.bin"))
        .await
        .unwrap();
    let answer = read_to_end(&mut old).await.unwrap();
    assert_eq!(answer.first(), Some(&21), "{answer:?}");
    rig.wait_closed(CloseReason::HandshakeFailed, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_gone_closes_after_the_handshake() {
    let identity = Identity::new(NAME);
    let rig = rig(&identity, nobody(), &ProxyLimits::default());
    let mut client = tls(rig.connect().await, client_config(&identity), NAME)
        .await
        .unwrap();
    assert!(
        read_to_end(&mut client).await.is_err(),
        "no close_notify may be sent"
    );
    rig.wait_closed(CloseReason::BackendConnectFailed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_in_the_flight_of_the_handshake_arrives() {
    // rustls buffers what is written before the handshake is done and sends it with its Finished.
    let identity = Identity::new(NAME);
    let (address, accepted) = one_connection().await;
    let rig = rig(&identity, address, &ProxyLimits::default());
    let name = rustls::pki_types::ServerName::try_from(NAME).unwrap();
    let mut client =
        rustls::ClientConnection::new(Arc::new(client_config(&identity)), name).unwrap();
    let tcp = rig.connect().await.into_std().unwrap();
    tcp.set_nonblocking(false).unwrap();
    let writing = tokio::task::spawn_blocking(move || {
        let mut tcp = tcp;
        std::io::Write::write_all(&mut client.writer(), &[5; 10_000].repeat(5)).unwrap();
        while client.is_handshaking() || client.wants_write() {
            client.complete_io(&mut tcp).unwrap();
        }
        client.send_close_notify();
        let mut stream = rustls::Stream::new(&mut client, &mut tcp);
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
        rest
    });
    let mut server = accepted.await;
    assert_eq!(
        read_to_end(&mut server).await.unwrap(),
        [5; 10_000].repeat(5)
    );
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert_eq!(within("the client", writing).await.unwrap(), b"answer");
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openssl_and_curl_are_served() {
    let identity = Identity::new(NAME);
    let address = serve(|mut stream| async move {
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read(&mut chunk).await {
                Ok(read) if read > 0 => request.extend_from_slice(&chunk[..read]),
                _ => return,
            }
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        let _ = stream.write_all(answer).await;
    })
    .await;
    let rig = rig(&identity, address, &ProxyLimits::default());
    let to = format!("{NAME}:443:{}", rig.address);
    let at = rig.address.to_string();
    let url = format!("https://{NAME}/");
    let commands: [&[&str]; 4] = [
        &["curl", "-sk", "--tls-max", "1.2", "--connect-to", &to, &url],
        &["curl", "-sk", "--tlsv1.3", "--connect-to", &to, &url],
        &[
            "openssl",
            "s_client",
            "-quiet",
            "-tls1_2",
            "-servername",
            NAME,
            "-connect",
            &at,
        ],
        &[
            "openssl",
            "s_client",
            "-quiet",
            "-tls1_3",
            "-servername",
            NAME,
            "-connect",
            &at,
        ],
    ];
    for command in commands {
        let mut process = std::process::Command::new(command[0]);
        process.args(&command[1..]);
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = process.spawn().expect("openssl and curl are installed");
        let mut stdin = child.stdin.take().unwrap();
        let running = tokio::task::spawn_blocking(move || {
            let _ = std::io::Write::write_all(&mut stdin, b"GET / HTTP/1.1\r\n\r\n");
            // openssl would leave at the end of its input.
            let output = child.wait_with_output().unwrap();
            drop(stdin);
            output
        });
        let output = within("the client's end", running).await.unwrap();
        assert!(output.stdout.ends_with(b"ok"), "{command:?}: {output:?}");
    }
    wait("the ends", || rig.plane.active() == 0).await;
    // A client that has the whole answer may leave before the backend's end comes. Each client here leaves in its own
    // way.
    let ends = [
        CloseReason::BackendClosed,
        CloseReason::ClientClosed,
        CloseReason::ClientTruncated,
        CloseReason::ClientReset,
    ];
    let ended: u64 = ends.into_iter().map(|reason| rig.closed(reason)).sum();
    assert_eq!(ended, 4);
}

/// A recorded hello with `tail` behind it in its record.
fn hello_with(tail: &[u8]) -> Vec<u8> {
    let mut hello = [HELLO, tail].concat();
    let length = u16::try_from(hello.len() - 5).unwrap();
    hello[3..5].copy_from_slice(&length.to_be_bytes());
    hello
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_behind_the_hello_in_its_record_are_refused() {
    let identity = Identity::new(NAME);
    let rig = rig(&identity, nobody(), &ProxyLimits::default());
    let tails: [&[u8]; 4] = [
        &[20],
        &[20, 0, 0, 1, 1],
        &[20, 0, 0, 8, 1],
        &[20, 0, 0, 1, 1, 20, 0],
    ];
    for (tail, count) in tails.into_iter().zip(1..) {
        let mut client = rig.connect().await;
        client.write_all(&hello_with(tail)).await.unwrap();
        client.shutdown().await.unwrap();
        let answer = read_to_end(&mut client).await.unwrap();
        assert!(!answer.is_empty(), "no alert for {tail:?}");
        rig.wait_closed(CloseReason::HandshakeFailed, count).await;
    }
    assert_eq!(rig.closed(CloseReason::Internal), 0);
}

/// Records of every type and of none, whole and cut.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let start = prop::collection::vec(prop::sample::select(vec![0, 1, 2, 8, 16, 20, 24]), 0..6);
    let rest = prop::collection::vec(any::<u8>(), 0..40);
    let record = (19..=24u8, start, rest, -1..=1i8).prop_map(|(kind, start, rest, off)| {
        let payload = [start, rest].concat();
        let length = u16::try_from(payload.len()).unwrap();
        let length = length.saturating_add_signed(off.into()).to_be_bytes();
        [&[kind, 3, 3], &length[..], &payload].concat()
    });
    prop::collection::vec(record, 0..4).prop_map(|records| records.concat())
}

#[test]
fn no_bytes_after_a_hello_make_the_handshake_panic() {
    use std::io::{Read, Write};
    let identity = Identity::new(NAME);
    let rig = rig(&identity, nobody(), &ProxyLimits::default());
    let tail = prop::collection::vec(prop::sample::select(vec![0, 1, 2, 8, 20, 24, 255]), 0..8);
    proptest!(keep_failures(), |(tail in tail, with in records(), later in records())| {
        let mut client = std::net::TcpStream::connect(rig.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(&[hello_with(&tail), with].concat()).unwrap();
        // Its end may be a reset.
        let _ = client.read(&mut [0; 4096]);
        let _ = client.write_all(&later);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
        prop_assert_eq!(rig.closed(CloseReason::Internal), 0);
        prop_assert_eq!(rig.closed(CloseReason::Drained), 0);
    });
    let served = rig.plane.metrics.connections_accepted.get();
    assert!(served >= u64::from(quick(256)), "{served}");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_updates_are_not_earned_by_a_byte_each() {
    let pair = pair_with(|identity| client_config_with(identity, provider(), &[&TLS13])).await;
    let Pair {
        rig,
        mut client,
        mut server,
    } = pair;
    for _ in 0..40 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
        // Fails once the proxy has had enough.
        if client.write_all(b"x").await.is_err() {
            break;
        }
    }
    assert!(read_to_end(&mut client).await.is_err());
    assert!(read_to_end(&mut server).await.is_err());
    rig.wait_closed(CloseReason::TlsError, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_is_a_reset_to_the_backend() {
    let Pair {
        mut rig,
        mut client,
        mut server,
    } = pair().await;
    client.write_all(b"half").await.unwrap();
    let mut half = [0; 4];
    within("the data", server.read_exact(&mut half))
        .await
        .unwrap();
    let workers = rig.workers.take().unwrap();
    assert_eq!(within("the drain", workers.drain(Duration::ZERO)).await, 1);
    assert!(read_to_end(&mut server).await.is_err());
    assert!(read_to_end(&mut client).await.is_err());
    assert_eq!(rig.closed(CloseReason::Drained), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_within_a_record_is_a_reset_to_the_backend() {
    let Pair {
        rig,
        mut client,
        mut server,
    } = pair().await;
    client.write_all(b"half").await.unwrap();
    let tcp = client.get_mut().0;
    tcp.write_all(&[23, 3, 3, 1, 0, 1, 2, 3]).await.unwrap();
    tcp.shutdown().await.unwrap();
    assert!(read_to_end(&mut server).await.is_err());
    rig.wait_closed(CloseReason::ClientReset, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_client_is_told_apart_also_after_the_backend_closed() {
    let Pair {
        rig,
        mut client,
        mut server,
    } = pair().await;
    server.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    client.get_mut().0.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut server).await.unwrap(), b"");
    rig.wait_closed(CloseReason::ClientTruncated, 1).await;
}

/// A hello of TLS 1.3, and where in it the group of the only key share is.
fn hello_with_one_share(identity: &Identity) -> (Vec<u8>, usize) {
    let mut provider = (*provider()).clone();
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
    let config = client_config_with(identity, Arc::new(provider), &[&TLS13]);
    let name = rustls::pki_types::ServerName::try_from(NAME).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    // The extension, its length, that of the list, and the group.
    let share = [0, 0x33, 0, 0x26, 0, 0x24, 0, 0x1d];
    let at = hello.windows(share.len()).position(|part| part == share);
    (hello, at.unwrap() + 6)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hello_for_another_name_is_refused_with_an_alert() {
    let identity = Identity::new(NAME);
    let address = serve(echo).await;
    let rig = rig(&identity, address, &ProxyLimits::default());
    let (mut second, group) = hello_with_one_share(&identity);
    // A share of a group that does not exist has the server ask for another one.
    let mut first = second.clone();
    first[group..group + 2].copy_from_slice(&[0x0a, 0x0a]);
    let name = NAME.as_bytes();
    let at = second.windows(name.len()).position(|part| part == name);
    second[at.unwrap()] = b'b';
    let mut client = rig.connect().await;
    client.write_all(&first).await.unwrap();
    // HelloRetryRequest.
    assert_eq!(within("an answer", client.read_u8()).await.unwrap(), 22);
    client.write_all(&second).await.unwrap();
    let mut rest = Vec::new();
    let read = within("the end", client.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "{read:?}");
    // A fatal one: illegal_parameter.
    assert!(rest.ends_with(&[21, 3, 3, 0, 2, 2, 47]), "{rest:x?}");
    rig.wait_closed(CloseReason::HandshakeFailed, 1).await;
}
