//! Clients that have to show a certificate: who is let in, who stays connected, and that no session ticket is a way
//! around.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use h2::Reason;
use h2::client::SendRequest;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use parking_lot::Mutex;
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, NamedGroup, SignatureScheme, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::{counting, http_route, rule};
use vestibule_proxy_testing::*;
use vestibule_proxy_testing::{Authority, Identity};
use vestibule_stream::{ResourceKind, proto};

use proto::ClientValidationMode as Mode;

/// Terminated by a TLS listener that validates, and one that does not.
const VALIDATING: &str = "a.example.com";
const OPEN: &str = "b.example.com";
/// By an HTTPS listener that validates.
const WEB: &str = "c.example.com";
const BACKEND: &str = "team-a/web:80";
/// A backend of HTTP.
const HELD: &str = "team-a/held:80";
const BUNDLE: &str = "ConfigMap/infra/clients";
const NONE: Vec<String> = Vec::new();

struct World {
    rig: Rig,
    server: Identity,
    clients: Authority,
}

/// Three listeners on one port.
async fn world(mode: Mode) -> World {
    let server = Identity::new("*.example.com");
    let clients = Authority::new("clients");
    let address = serve(echo).await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        let certificate = Some("team-a/cert");
        vec![
            validating(
                listener(port, "a", VALIDATING, certificate),
                &[BUNDLE],
                mode,
            ),
            listener(port, "b", OPEN, certificate),
            validating(http(port, "c", WEB, certificate), &[BUNDLE], mode),
            route("a", VALIDATING, Some(BACKEND)),
            route("b", OPEN, Some(BACKEND)),
            backend(BACKEND, &[address]),
            server.resource("team-a/cert"),
            Authority::bundle(BUNDLE, &[&clients]),
        ]
    });
    World {
        rig,
        server,
        clients,
    }
}

/// What a client has, and what it was asked for.
#[derive(Debug)]
struct Shows {
    certified: Mutex<Option<Arc<CertifiedKey>>>,
    asked: Mutex<Vec<usize>>,
}

impl rustls::client::ResolvesClientCert for Shows {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.lock().push(hints.len());
        self.certified.lock().clone()
    }

    fn has_certs(&self) -> bool {
        self.certified.lock().is_some()
    }
}

fn shows(leaf: Option<&Identity>) -> Arc<Shows> {
    signs(leaf.map(|leaf| (leaf, leaf)))
}

/// Shows a certificate without having its key, and signs with another one.
fn pretends(leaf: &Identity) -> Arc<Shows> {
    signs(Some((leaf, &Identity::new("pretender"))))
}

/// Shows the certificate of the first, and signs with the key of the second.
fn signs(with: Option<(&Identity, &Identity)>) -> Arc<Shows> {
    let certified = with.map(|(leaf, signer)| certified(leaf, signer));
    Arc::new(Shows {
        certified: Mutex::new(certified),
        asked: Mutex::default(),
    })
}

fn certified(leaf: &Identity, signer: &Identity) -> Arc<CertifiedKey> {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&signer.key()).unwrap();
    Arc::new(CertifiedKey::new(leaf.chain.clone(), key))
}

fn client(
    server: &Identity,
    version: &'static SupportedProtocolVersion,
    shows: Arc<Shows>,
) -> ClientConfig {
    let mut config = client_config_with(server, provider(), &[version]);
    config.client_auth_cert_resolver = shows;
    config
}

/// Whether a client is let in, and how: it counts only what comes back, as in TLS 1.3 a client is done
/// before the server has looked at its certificate.
async fn visit(rig: &Rig, config: &ClientConfig, name: &str) -> Option<HandshakeKind> {
    let mut stream = tls(rig.connect().await, config.clone(), name).await.ok()?;
    let (sent, expected) = if name == WEB {
        let request = format!("GET / HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
        (request, &b"HTTP/1.1 404"[..])
    } else {
        ("ping".to_owned(), &b"ping"[..])
    };
    stream.write_all(sent.as_bytes()).await.ok()?;
    let mut back = vec![0; expected.len()];
    within("an answer", stream.read_exact(&mut back))
        .await
        .ok()?;
    assert_eq!(back, expected);
    let kind = stream.get_ref().1.handshake_kind();
    let _ = stream.shutdown().await;
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_valid_certificate_are_let_in() {
    let World {
        rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    let other = Authority::new("others");
    let good = clients.client("good");
    let bad = other.client("bad");
    // Issued by the right authority, for another use.
    let misused = clients.server(&["a.example.com"], &[]);
    let mut refused = 0;
    for version in [&TLS13, &TLS12] {
        for name in [VALIDATING, WEB] {
            let asked = shows(Some(&good));
            let config = client(&server, version, Arc::clone(&asked));
            assert!(visit(&rig, &config, name).await.is_some(), "{name}");
            assert_eq!(*asked.asked.lock(), [1], "with one authority");
            for leaf in [None, Some(&bad), Some(&misused)] {
                let config = client(&server, version, shows(leaf));
                assert_eq!(visit(&rig, &config, name).await, None, "{name}");
                refused += 1;
            }
        }
        let config = client(&server, version, shows(None));
        assert!(visit(&rig, &config, OPEN).await.is_some());
    }
    rig.wait_closed(CloseReason::HandshakeFailed, refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_insecure_mode_everybody_is_asked_and_let_in() {
    let World {
        rig,
        server,
        clients,
    } = world(Mode::AllowInsecureFallback).await;
    let good = clients.client("good");
    let bad = Authority::new("others").client("bad");
    for version in [&TLS13, &TLS12] {
        for name in [VALIDATING, WEB] {
            for leaf in [None, Some(&bad), Some(&good)] {
                let asked = shows(leaf);
                let config = client(&server, version, Arc::clone(&asked));
                assert!(visit(&rig, &config, name).await.is_some(), "{name}");
                assert_eq!(asked.asked.lock().len(), 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bundle_nobody_is_let_in() {
    for mode in [Mode::AllowValidOnly, Mode::AllowInsecureFallback] {
        let World {
            mut rig,
            server,
            clients,
        } = world(mode).await;
        let good = client(&server, &TLS13, shows(Some(&clients.client("good"))));
        assert!(visit(&rig, &good, VALIDATING).await.is_some());
        rig.remove(ResourceKind::TrustBundle, BUNDLE);
        for name in [VALIDATING, WEB] {
            assert_eq!(visit(&rig, &good, name).await, None);
        }
        rig.wait_closed(CloseReason::NoTrustBundle, 2).await;
        assert!(visit(&rig, &good, OPEN).await.is_some());
        assert_eq!(
            rig.apply(vec![Authority::bundle(BUNDLE, &[&clients])]),
            NONE
        );
        for name in [VALIDATING, WEB] {
            assert!(visit(&rig, &good, name).await.is_some());
        }
        // One that does not parse leaves the last good one.
        let rejects = rig.apply(vec![Authority::bundle(BUNDLE, &[])]);
        assert!(rejects[0].starts_with("MissingField"), "{rejects:?}");
        assert!(visit(&rig, &good, VALIDATING).await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stands_is_asked_by_the_settings_of_now() {
    let World {
        mut rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    let others = Authority::new("others");
    let port = rig.address.port();
    let open = move || http(port, "c", WEB, Some("team-a/cert"));
    let closed = move |mode| validating(open(), &[BUNDLE], mode);
    let request = format!("GET / HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
    for version in [&TLS13, &TLS12] {
        let bundle = Authority::bundle(BUNDLE, &[&clients]);
        rig.apply(vec![bundle, closed(Mode::AllowValidOnly)]);
        let config = client(&server, version, shows(Some(&clients.client("good"))));
        let mut known = tls(rig.connect().await, config, WEB).await.unwrap();
        rig.apply(vec![open()]);
        let config = client(&server, version, shows(None));
        let mut stranger = tls(rig.connect().await, config, WEB).await.unwrap();
        // Nobody is asked for anything while validation is off, or lets everybody in.
        for listener in [open(), closed(Mode::AllowInsecureFallback)] {
            rig.apply(vec![listener]);
            for stream in [&mut stranger, &mut known] {
                assert_eq!(status(stream, &request).await, Some(404));
            }
        }
        rig.apply(vec![closed(Mode::AllowValidOnly)]);
        assert_eq!(status(&mut known, &request).await, Some(404));
        refused(status(&mut stranger, &request).await);
        assert_eq!(status(&mut stranger, &request).await, None);
        // Another authority comes beside the first, and then instead of it.
        let both = Authority::bundle(BUNDLE, &[&clients, &others]);
        rig.apply(vec![both]);
        assert_eq!(status(&mut known, &request).await, Some(404));
        rig.apply(vec![Authority::bundle(BUNDLE, &[&others])]);
        refused(status(&mut known, &request).await);
    }
}

/// A request is not served on a connection whose client is not admitted any more. On a slow machine, the connection has
/// ended by itself before the request.
fn refused(status: Option<u16>) {
    assert!(matches!(status, Some(421) | None), "{status:?}");
}

/// The status of an answer without a body that is read; none if the connection is over.
async fn status(stream: &mut TlsStream<TcpStream>, request: &str) -> Option<u16> {
    stream.write_all(request.as_bytes()).await.ok()?;
    Some(web::one_answer(stream).await?.status)
}

/// A connection of HTTP/2 for [`WEB`], and what ends with it.
async fn two(rig: &Rig, mut config: ClientConfig) -> (SendRequest<Bytes>, JoinHandle<()>) {
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tls(rig.connect().await, config, WEB).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let ends = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, ends)
}

/// The status of an answer of HTTP/2, which is read to its end.
async fn asked(sender: SendRequest<Bytes>) -> Result<u16, h2::Error> {
    let mut sender = sender.ready().await?;
    let request = Request::get(format!("https://{WEB}/")).body(()).unwrap();
    let (answer, _) = sender.send_request(request, true)?;
    let (head, mut body) = within("an answer", answer).await?.into_parts();
    while let Some(piece) = within("its body", body.data()).await {
        piece?;
    }
    Ok(head.status.as_u16())
}

/// Waits until the connection takes no more requests, which GOAWAY says.
async fn takes_no_more(sender: &SendRequest<Bytes>) {
    let mut error = None;
    wait("GOAWAY", || {
        let ready = sender.clone().ready().now_or_never();
        error = ready.and_then(Result::err);
        error.is_some()
    })
    .await;
    let error = error.unwrap();
    assert!(error.is_go_away(), "{error}");
    assert_eq!(error.reason(), Some(Reason::NO_ERROR), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_http2_that_stands_is_refused_by_the_settings_of_now_and_ends() {
    let World {
        mut rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    let port = rig.address.port();
    let open = move || http(port, "c", WEB, Some("team-a/cert"));
    let closed = move || validating(open(), &[BUNDLE], Mode::AllowValidOnly);
    for version in [&TLS13, &TLS12] {
        assert_eq!(rig.apply(vec![closed()]), NONE);
        let config = client(&server, version, shows(Some(&clients.client("good"))));
        let (known, stays) = two(&rig, config).await;
        assert_eq!(asked(known.clone()).await.unwrap(), 404);
        assert_eq!(rig.apply(vec![open()]), NONE);
        let (stranger, ends) = two(&rig, client(&server, version, shows(None))).await;
        assert_eq!(asked(stranger.clone()).await.unwrap(), 404);
        assert_eq!(rig.apply(vec![closed()]), NONE);
        refused(asked(stranger.clone()).await.ok());
        takes_no_more(&stranger).await;
        assert!(asked(stranger).await.is_err());
        within("the end", ends).await.unwrap();
        wait("its end", || rig.plane.active() == 1).await;
        assert_eq!(asked(known.clone()).await.unwrap(), 404);
        assert!(!stays.is_finished());
        drop(known);
        within("the end", stays).await.unwrap();
        wait("its end", || rig.plane.active() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_end_with_the_edit_that_no_longer_admits_their_clients() {
    let World {
        mut rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    let port = rig.address.port();
    let open = || http(port, "c", WEB, Some("team-a/cert"));
    let closed = || validating(open(), &[BUNDLE], Mode::AllowValidOnly);
    let request = format!("GET / HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
    let good = clients.client("good");
    let known = || client(&server, &TLS13, shows(Some(&good)));
    let mut known_one = tls(rig.connect().await, known(), WEB).await.unwrap();
    let (known_two, _stays) = two(&rig, known()).await;
    assert_eq!(status(&mut known_one, &request).await, Some(404));
    assert_eq!(asked(known_two.clone()).await.unwrap(), 404);
    assert_eq!(rig.apply(vec![open()]), NONE);
    let stranger = || client(&server, &TLS13, shows(None));
    // One has asked for something, and the others have not.
    let mut one = tls(rig.connect().await, stranger(), WEB).await.unwrap();
    let mut silent = tls(rig.connect().await, stranger(), WEB).await.unwrap();
    let (two, ends) = two(&rig, stranger()).await;
    assert_eq!(status(&mut one, &request).await, Some(404));
    assert_eq!(rig.apply(vec![closed()]), NONE);
    for stream in [&mut one, &mut silent] {
        assert_eq!(read_to_end(stream).await.unwrap(), b"");
    }
    takes_no_more(&two).await;
    within("the end", ends).await.unwrap();
    wait("their end", || rig.plane.active() == 2).await;
    assert!(rig.closed(CloseReason::NoLongerServed) >= 2);
    assert_eq!(status(&mut known_one, &request).await, Some(404));
    assert_eq!(asked(known_two).await.unwrap(), 404);
    // The authority of the others is not trusted any more.
    let others = Authority::new("others");
    assert_eq!(rig.apply(vec![Authority::bundle(BUNDLE, &[&others])]), NONE);
    assert_eq!(read_to_end(&mut known_one).await.unwrap(), b"");
    wait("the end of all", || rig.plane.active() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_was_shown_without_a_check_of_its_key_lets_nobody_stay() {
    let World {
        mut rig,
        server,
        clients,
    } = world(Mode::AllowInsecureFallback).await;
    let port = rig.address.port();
    let web = move |mode| validating(http(port, "c", WEB, Some("team-a/cert")), &[BUNDLE], mode);
    let request = format!("GET / HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
    let good = clients.client("good");
    for version in [&TLS13, &TLS12] {
        // Nobody looks whether this one has the key, so it has to come again too.
        let owner = || client(&server, version, shows(Some(&good)));
        let pretender = || client(&server, version, pretends(&good));
        for config in [pretender(), owner()] {
            assert_eq!(rig.apply(vec![web(Mode::AllowInsecureFallback)]), NONE);
            let mut one = tls(rig.connect().await, config.clone(), WEB).await.unwrap();
            let mut silent = tls(rig.connect().await, config, WEB).await.unwrap();
            assert_eq!(status(&mut one, &request).await, Some(404));
            assert_eq!(rig.apply(vec![web(Mode::AllowValidOnly)]), NONE);
            refused(status(&mut one, &request).await);
            assert_eq!(status(&mut one, &request).await, None);
            assert_eq!(read_to_end(&mut silent).await.unwrap(), b"");
        }
        assert_eq!(visit(&rig, &pretender(), WEB).await, None);
        assert!(visit(&rig, &owner(), WEB).await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_under_way_are_answered_before_their_connection_ends() {
    let World {
        mut rig, server, ..
    } = world(Mode::AllowValidOnly).await;
    let (go, waits) = watch::channel(false);
    let (address, asks) = held(waits).await;
    let port = rig.address.port();
    let open = || http(port, "c", WEB, Some("team-a/cert"));
    let resources = vec![
        open(),
        http_route("c", WEB, vec![rule("/", HELD)]),
        backend(HELD, &[address]),
    ];
    assert_eq!(rig.apply(resources), NONE);
    let stranger = || client(&server, &TLS13, shows(None));
    let (two, ends) = two(&rig, stranger()).await;
    let answer = tokio::spawn(asked(two.clone()));
    let mut one = tls(rig.connect().await, stranger(), WEB).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
    one.write_all(request.as_bytes()).await.unwrap();
    wait("the requests", || asks.load(Ordering::SeqCst) == 2).await;
    let closed = validating(open(), &[BUNDLE], Mode::AllowValidOnly);
    assert_eq!(rig.apply(vec![closed]), NONE);
    takes_no_more(&two).await;
    assert!(asked(two).await.is_err());
    assert!(!answer.is_finished() && !ends.is_finished());
    go.send_replace(true);
    let answer = within("the answer", answer).await.unwrap();
    assert_eq!(answer.unwrap(), 200);
    within("the end", ends).await.unwrap();
    let answer = web::one_answer(&mut one).await.unwrap();
    assert_eq!((answer.status, &*answer.body), (200, "whole"));
    assert_eq!(read_to_end(&mut one).await.unwrap(), b"");
    rig.wait_closed(CloseReason::NoLongerServed, 2).await;
}

/// A backend whose answers wait until they may go, and the number of requests that it got.
async fn held(waits: watch::Receiver<bool>) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    counting(move |_: Request<Incoming>| {
        let mut waits = waits.clone();
        async move {
            waits.wait_for(|go| *go).await.unwrap();
            Response::new(Full::new(Bytes::from_static(b"whole")))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_mode_is_rejected() {
    let World { mut rig, .. } = world(Mode::AllowValidOnly).await;
    let port = rig.address.port();
    let listener = listener(port, "a", VALIDATING, Some("team-a/cert"));
    let rejects = rig.apply(vec![validating(listener, &[BUNDLE], Mode::Unspecified)]);
    assert!(rejects[0].starts_with("UnknownResource"), "{rejects:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_with_the_settings_that_they_were_made_with() {
    for version in [&TLS13, &TLS12] {
        let World {
            mut rig,
            server,
            clients,
        } = world(Mode::AllowValidOnly).await;
        let port = rig.address.port();
        let listener = || listener(port, "a", VALIDATING, Some("team-a/cert"));
        let strict = || validating(listener(), &[BUNDLE], Mode::AllowValidOnly);
        let lax = || validating(listener(), &[BUNDLE], Mode::AllowInsecureFallback);
        let config = client(&server, version, shows(Some(&clients.client("good"))));
        let visit = async |rig: &Rig| visit(rig, &config, VALIDATING).await;
        let full = Some(HandshakeKind::Full);
        assert_eq!(visit(&rig).await, full);
        assert_eq!(visit(&rig).await, Some(HandshakeKind::Resumed));
        // The same again is no change.
        assert_eq!(rig.apply(vec![strict()]), NONE);
        assert_eq!(
            rig.apply(vec![Authority::bundle(BUNDLE, &[&clients])]),
            NONE
        );
        assert_eq!(rig.apply(vec![server.resource("team-a/cert")]), NONE);
        assert_eq!(visit(&rig).await, Some(HandshakeKind::Resumed));
        assert_eq!(rig.apply(vec![lax()]), NONE);
        assert!(matches!(visit(&rig).await, Some(kind) if kind != HandshakeKind::Resumed));
        assert_eq!(rig.apply(vec![listener()]), NONE);
        assert!(matches!(visit(&rig).await, Some(kind) if kind != HandshakeKind::Resumed));
        assert_eq!(rig.apply(vec![strict()]), NONE);
        assert!(matches!(visit(&rig).await, Some(kind) if kind != HandshakeKind::Resumed));
        assert_eq!(visit(&rig).await, Some(HandshakeKind::Resumed));
        // The authority is no longer trusted: its clients' sessions are worth nothing.
        let others = Authority::new("others");
        assert_eq!(rig.apply(vec![Authority::bundle(BUNDLE, &[&others])]), NONE);
        assert_eq!(visit(&rig).await, None);
    }
}

/// How a connection ends whose client has an expired certificate. It is the second of them if the certificate expires
/// between the two halves of the handshake.
const ENDS: [CloseReason; 2] = [CloseReason::HandshakeFailed, CloseReason::NoLongerServed];

/// Each session that is resumed has new tickets, so a client could go on from one to the next for ever.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_with_the_certificate_of_their_client() {
    let World {
        rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    // Usually long enough for a few handshakes.
    let mut seconds = 6;
    let (visitors, end, before) = loop {
        let end = UnixTime::now().as_secs() + seconds;
        let short = clients.client_until("short", end);
        let mut visitors = Vec::new();
        for version in [&TLS13, &TLS12] {
            for name in [VALIDATING, WEB] {
                let shown = shows(Some(&short));
                let config = client(&server, version, Arc::clone(&shown));
                visitors.push((name, shown, config));
            }
        }
        let mut met = Vec::new();
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            for (name, _, config) in &visitors {
                met.push(visit(&rig, config, name).await == Some(expected));
            }
        }
        let closed = || -> u64 { ENDS.iter().map(|reason| rig.closed(*reason)).sum() };
        if met.iter().all(|met| *met) {
            break (visitors, end, closed());
        }
        // A machine was too slow, so the certificate has expired meanwhile.
        assert!(UnixTime::now().as_secs() > end, "{met:?}");
        seconds *= 4;
    };
    let renewed = clients.client("renewed");
    for (refused, (name, shown, config)) in (before + 1..).zip(&visitors) {
        let until_refused = async {
            while let Some(kind) = visit(&rig, config, name).await {
                assert_eq!(kind, HandshakeKind::Resumed, "{name}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within("the end of the session", until_refused).await;
        assert!(UnixTime::now().as_secs() > end, "{name}");
        let closed = || -> u64 { ENDS.iter().map(|reason| rig.closed(*reason)).sum() };
        wait("its end", || refused == closed()).await;
        // The client may still have tickets of the session. With a new certificate it is let in at once all the same.
        *shown.certified.lock() = Some(certified(&renewed, &renewed));
        assert_eq!(
            visit(&rig, config, name).await,
            Some(HandshakeKind::Full),
            "{name}"
        );
    }
}

/// A session contains what the client showed. With a ticket for it, the next ClientHello would be too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_long_certificates_is_let_in_again() {
    let World {
        rig,
        server,
        clients,
    } = world(Mode::AllowValidOnly).await;
    let mut long = clients.client("long");
    let names: Vec<String> = (0..80).map(|n| format!("{n:060}.example")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Nobody looks at these.
    for _ in 0..4 {
        long.chain.extend(Identity::of(&names).chain);
    }
    let bytes: usize = long.chain.iter().map(|one| one.len()).sum();
    assert!(bytes > ProxyLimits::default().hello_bytes, "{bytes}");
    for version in [&TLS13, &TLS12] {
        for name in [VALIDATING, WEB] {
            let config = client(&server, version, shows(Some(&long)));
            for _ in 0..2 {
                let kind = visit(&rig, &config, name).await;
                assert_eq!(kind, Some(HandshakeKind::Full), "{version:?} {name}");
            }
        }
    }
}

/// Remembers sessions whatever the server's name, as a hostile client does.
#[derive(Debug, Default)]
struct AnyName {
    tls12: Mutex<Option<Tls12ClientSessionValue>>,
    tls13: Mutex<VecDeque<Tls13ClientSessionValue>>,
}

impl ClientSessionStore for AnyName {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        *self.tls12.lock() = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.tls12.lock().clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'_>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.tls13.lock().push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'_>) -> Option<Tls13ClientSessionValue> {
        self.tls13.lock().pop_back()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_one_listener_is_none_with_another() {
    for version in [&TLS13, &TLS12] {
        let World {
            mut rig, server, ..
        } = world(Mode::AllowValidOnly).await;
        let mut config = client(&server, version, shows(None));
        config.resumption = Resumption::store(Arc::new(AnyName::default()));
        assert!(visit(&rig, &config, OPEN).await.is_some());
        let again = visit(&rig, &config, OPEN).await;
        assert_eq!(again, Some(HandshakeKind::Resumed));
        for name in [VALIDATING, WEB] {
            assert!(visit(&rig, &config, OPEN).await.is_some());
            assert_eq!(visit(&rig, &config, name).await, None, "{name}");
        }
        // Neither on the listener itself, once it validates.
        assert!(visit(&rig, &config, OPEN).await.is_some());
        let port = rig.address.port();
        let strict = listener(port, "b", OPEN, Some("team-a/cert"));
        let strict = validating(strict, &[BUNDLE], Mode::AllowValidOnly);
        assert_eq!(rig.apply(vec![strict]), NONE);
        assert_eq!(visit(&rig, &config, OPEN).await, None);
    }
}

/// Runs openssl, says something, and returns what came back and whether the session was resumed.
fn openssl(rig: &Rig, version: &str, name: &str, more: &[&str]) -> (bool, bool) {
    let mut process = std::process::Command::new("openssl");
    process
        .args(["s_client", version, "-servername", name, "-connect"])
        .arg(rig.address.to_string())
        .args(["-ign_eof"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = process.spawn().expect("openssl is installed");
    // The backend sends it back and, at its end, ends the connection.
    let mut stdin = child.stdin.take().unwrap();
    let _ = std::io::Write::write_all(&mut stdin, b"a line that comes back\n");
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (
        text.contains("a line that comes back"),
        text.contains("Reused, TLSv1."),
    )
}

/// Sends the first line back and ends.
async fn line(mut stream: TcpStream) {
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => return,
        }
    }
    let _ = stream.write_all(&text).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openssl_gets_around_nothing_with_a_session() {
    let World {
        mut rig, clients, ..
    } = world(Mode::AllowValidOnly).await;
    let address = serve(line).await;
    assert_eq!(rig.apply(vec![backend(BACKEND, &[address])]), NONE);
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = |name: &str| {
        let name = format!("client-validation-{name}-{}", std::process::id());
        directory.join(name).to_str().unwrap().to_owned()
    };
    let (certificate, key) = clients.client("good").pem();
    std::fs::write(path("cert"), certificate).unwrap();
    std::fs::write(path("key"), key).unwrap();
    let (session, cert, key) = (path("session"), path("cert"), path("key"));
    let shown = ["-cert", &cert, "-key", &key];
    let run = async |version: &'static str, name: &'static str, more: &[&str]| {
        let more: Vec<String> = more.iter().map(|arg| (*arg).to_owned()).collect();
        let rig = &rig;
        tokio::task::block_in_place(|| {
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            openssl(rig, version, name, &more)
        })
    };
    for version in ["-tls1_3", "-tls1_2"] {
        let out = ["-sess_out", &session];
        let with = ["-sess_in", &session];
        assert_eq!(run(version, OPEN, &out).await, (true, false));
        // It is a session that can be resumed, and not with another listener.
        assert_eq!(run(version, OPEN, &with).await, (true, true));
        let (let_in, _) = run(version, VALIDATING, &with).await;
        assert!(!let_in, "{version}");
        // A client that has shown its certificate need not show it again.
        let full = [&shown[..], &out].concat();
        assert_eq!(run(version, VALIDATING, &full).await, (true, false));
        assert_eq!(run(version, VALIDATING, &with).await, (true, true));
        assert_eq!(run(version, VALIDATING, &shown).await, (true, false));
        let (let_in, _) = run(version, VALIDATING, &[]).await;
        assert!(!let_in, "{version}");
    }
}
