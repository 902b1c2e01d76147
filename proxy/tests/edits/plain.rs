//! Faults that histories found or that reading found, each by itself and without chance: what is in
//! progress is stopped at the place in question, the configuration changes, and it goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use vestibule_proxy::limits::ProxyLimits;
use vestibule_stream::{Resource, ResourceKey, ResourceKind as Kind, proto};

use super::gate::{Gate, Stop};
use super::ledger::Ledger;
use super::rules;
use vestibule_proxy_testing::web::{Answer, backend_of, http_route, rule};
use vestibule_proxy_testing::*;
use vestibule_proxy_testing::{Authority, Identity};

mod turns;

use proto::resource::Resource as Wire;

const HOST: &str = "a.example.com";
const OLD: &str = "team-a/web:1";
const NEW: &str = "team-a/web:2";
const BUNDLE: &str = "ConfigMap/team-a/ca";
const INNER: &str = "backend.internal";
const SHOWN: &str = "infra/gateway";
const CERT: &str = "team-a/cert";

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

/// One batch, of which nothing is rejected.
fn change(rig: &mut Rig, upserts: Vec<Resource>, gone: &[(Kind, &str)]) {
    let gone = gone
        .iter()
        .map(|(kind, name)| ResourceKey::new(*kind, *name));
    let rejects = rig.change(upserts, gone.collect());
    assert_eq!(rejects, Vec::<String>::new());
}

// ---- Terminated TLS, stopped within the handshake

/// A backend that says its name.
async fn greeter(name: &'static str) -> SocketAddr {
    serve(move |mut stream| async move {
        let _ = stream.write_all(name.as_bytes()).await;
        echo(stream).await;
    })
    .await
}

/// A client that has got the proxy's part of the handshake, and has not answered yet.
struct Halfway {
    rest: tokio::task::JoinHandle<std::io::Result<TlsStream<Gate>>>,
    ledger: Arc<Ledger>,
}

impl Halfway {
    async fn start(rig: &Rig, server: &Identity) -> Self {
        let ledger = Arc::new(Ledger::new(Arc::default()));
        let gate = Gate::new(rig.connect().await, Stop::Answering, 1, &ledger);
        let stopped = Arc::clone(&gate.stopped);
        let connector = TlsConnector::from(Arc::new(client_config(server)));
        let name = HOST.try_into().unwrap();
        let rest = tokio::spawn(async move { connector.connect(name, gate).await });
        wait("the first half", || stopped.at().is_some()).await;
        Self { rest, ledger }
    }

    async fn finish(self) -> TlsStream<Gate> {
        self.ledger.end(1);
        let done = within("the second half", self.rest).await;
        done.unwrap().unwrap()
    }

    /// Says which backend greets.
    async fn greeted(self) -> String {
        let mut stream = self.finish().await;
        let mut name = [0; 3];
        match within("a name", stream.read_exact(&mut name)).await {
            Ok(_) => String::from_utf8(name.to_vec()).unwrap(),
            Err(error) => format!("nobody: {error}"),
        }
    }
}

fn terminated(rig_port: u16, server: &Identity, backend_name: &str) -> Vec<Resource> {
    vec![
        listener(rig_port, "web", HOST, Some(CERT)),
        route("web", HOST, Some(backend_name)),
        server.resource(CERT),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_reaches_the_backend_that_its_hello_chose_though_that_goes() {
    let server = Identity::new(HOST);
    let (old, new) = (greeter("old").await, greeter("new").await);
    let mut rig = Rig::start(&quiet(), |port| {
        let mut all = terminated(port, &server, OLD);
        all.push(backend(OLD, &[old]));
        all
    });
    let halfway = Halfway::start(&rig, &server).await;
    let moved = vec![route("web", HOST, Some(NEW)), backend(NEW, &[new])];
    change(&mut rig, moved, &[(Kind::Backend, OLD)]);
    assert_eq!(halfway.greeted().await, "old");
    assert_eq!(Halfway::start(&rig, &server).await.greeted().await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_reaches_the_endpoints_of_its_hello() {
    let (before, after) = (Identity::new(HOST), Identity::new(HOST));
    let (old, new) = (greeter("old").await, greeter("new").await);
    let mut rig = Rig::start(&quiet(), |port| {
        let mut all = terminated(port, &before, OLD);
        all.push(backend(OLD, &[old]));
        all
    });
    // A client that saw the certificate from before the edit does not reach the backend from after it.
    let halfway = Halfway::start(&rig, &before).await;
    let edit = vec![after.resource(CERT), backend(OLD, &[new])];
    change(&mut rig, edit, &[]);
    assert_eq!(halfway.greeted().await, "old");
    assert_eq!(Halfway::start(&rig, &after).await.greeted().await, "new");
}

/// A backend over TLS that says who its client is.
async fn asker(ca: &Authority, clients: &Authority, known: Vec<Vec<u8>>) -> SocketAddr {
    let config = ca.server(&[INNER], &[]).server_config_for(clients);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    serve(move |stream| {
        let (acceptor, known) = (acceptor.clone(), known.clone());
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            let name = if known[0] == shown { "old" } else { "new" };
            let _ = stream.write_all(name.as_bytes()).await;
            let _ = stream.flush().await;
            let _ = stream.read(&mut [0]).await;
        }
    })
    .await
}

fn secured(name: &str, addresses: &[SocketAddr]) -> Resource {
    let mut resource = backend(name, addresses);
    if let Some(Wire::Backend(backend)) = &mut resource.resource {
        backend.tls = Some(proto::BackendTls {
            hostname: INNER.into(),
            trust_bundles: vec![BUNDLE.into()],
            ..Default::default()
        });
    }
    resource
}

/// The listener of a Gateway that shows a certificate to its backends, with the settings of the Gateway.
fn showing(listener: Resource, shown: &str) -> [Resource; 2] {
    let settings = proto::GatewaySettings {
        backend_certificate: shown.into(),
        ..Default::default()
    };
    with_settings(listener, settings)
}

/// A Gateway that shows a certificate to its backends.
struct Shows {
    rig: Rig,
    server: Identity,
    next: Identity,
}

async fn shows() -> Shows {
    let server = Identity::new(HOST);
    let (ca, clients) = (Authority::new("backends"), Authority::new("clients"));
    let (first, next) = (clients.client("first"), clients.client("next"));
    let known = vec![first.chain[0].to_vec(), next.chain[0].to_vec()];
    let address = asker(&ca, &clients, known).await;
    let rig = Rig::start(&quiet(), |port| {
        let [listener, settings] = showing(listener(port, "web", HOST, Some(CERT)), SHOWN);
        vec![
            listener,
            settings,
            route("web", HOST, Some(OLD)),
            server.resource(CERT),
            first.resource(SHOWN),
            secured(OLD, &[address]),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    Shows { rig, server, next }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_is_shown_the_certificate_of_the_clients_hello() {
    let mut of = shows().await;
    let halfway = Halfway::start(&of.rig, &of.server).await;
    change(&mut of.rig, vec![of.next.resource(SHOWN)], &[]);
    assert_eq!(halfway.greeted().await, "old");
    let halfway = Halfway::start(&of.rig, &of.server).await;
    assert_eq!(halfway.greeted().await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_no_longer_shown_fails_nobody_who_was_to_show_it() {
    let mut of = shows().await;
    let plain = greeter("new").await;
    let halfway = Halfway::start(&of.rig, &of.server).await;
    let port = of.rig.address.port();
    let edit = vec![
        listener(port, "web", HOST, Some(CERT)),
        route("web", HOST, Some(NEW)),
        backend(NEW, &[plain]),
    ];
    change(&mut of.rig, edit, &[(Kind::Certificate, SHOWN)]);
    assert_eq!(halfway.greeted().await, "old");
    let halfway = Halfway::start(&of.rig, &of.server).await;
    assert_eq!(halfway.greeted().await, "new");
}

// ---- HTTP, stopped while a connection to the backend is opened

/// A backend over TLS whose first connection waits before its handshake.
struct Slow {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    go: watch::Sender<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    IsServed,
    Fails,
}

impl Slow {
    async fn start(ca: &Authority, name: &'static str, first: First, alpn: &[u8]) -> Self {
        let (go, waiting) = watch::channel(false);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let mut config = ca.server(&[INNER], &[]).server_config();
        config.alpn_protocols = vec![alpn.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let address = serve(move |tcp| {
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let (acceptor, mut waiting) = (acceptor.clone(), waiting.clone());
            async move {
                if is_first {
                    let _ = waiting.wait_for(|go| *go).await;
                    if first == First::Fails {
                        return;
                    }
                }
                if let Ok(stream) = acceptor.accept(tcp).await {
                    answer_all(stream, name).await;
                }
            }
        })
        .await;
        Self {
            address,
            connections,
            go,
        }
    }

    async fn wait(&self) {
        let met = || self.connections.load(Ordering::SeqCst) > 0;
        wait("a connection to the backend", met).await;
    }

    fn go(&self) {
        self.go.send_replace(true);
    }
}

async fn answer_all(stream: tokio_rustls::server::TlsStream<TcpStream>, name: &'static str) {
    let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let answer = move |_| async move {
        let answer = Response::builder().header("x-backend", name);
        answer.body(Full::<Bytes>::default()).unwrap()
    };
    web::serve_http(stream, two, answer).await;
}

/// A route to one backend, whose answers say which version of the route they are of.
fn versioned(name: &str, version: &str) -> Resource {
    let mut rule = rule("/", name);
    rule.filters = rules::stamps(version);
    http_route("web", HOST, vec![rule])
}

fn who(answer: &Answer) -> (u16, Option<&str>, Option<&str>) {
    let fields = ["x-backend", super::model::ANSWERED].map(|name| answer.header(name));
    (answer.status, fields[0], fields[1])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_a_connection_gets_it_though_the_backend_goes() {
    let ca = Authority::new("backends");
    let slow = Slow::start(&ca, "old", First::IsServed, b"h2").await;
    let other = web::Echo::start("new").await;
    let mut of_old = secured(OLD, &[slow.address]);
    if let Some(Wire::Backend(backend)) = &mut of_old.resource {
        backend.protocol = proto::BackendProtocol::H2c.into();
    }
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            http_route("web", HOST, vec![rule("/", OLD), rule("/other", NEW)]),
            of_old.clone(),
            backend(NEW, &[other.address]),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    let io = TokioIo::new(rig.connect().await);
    let begun = http2::handshake(TokioExecutor::new(), io).await;
    let (sender, connection) = begun.unwrap();
    tokio::spawn(connection);
    let ask = |path: &str| {
        let request = Request::get(format!("http://{HOST}{path}"));
        let answer = sender
            .clone()
            .send_request(request.body(Full::<Bytes>::default()).unwrap());
        tokio::spawn(async move { within("an answer", answer).await.unwrap() })
    };
    let opens = ask("/");
    slow.wait().await;
    let waits = ask("/");
    // Requests of a connection begin one after another: the one before this one waits by now.
    assert_eq!(ask("/other").await.unwrap().headers()["x-backend"], "new");
    let moved = vec![http_route("web", HOST, vec![rule("/", NEW)])];
    change(&mut rig, moved, &[(Kind::Backend, OLD)]);
    slow.go();
    for answer in [opens, waits] {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["x-backend"], "old");
    }
    let answer = ask("/").await.unwrap();
    assert_eq!(answer.headers()["x-backend"], "new");
    let _ = answer.into_body().collect().await;
}

/// A request whose first endpoint fails after an edit.
async fn tried_again(edit: impl FnOnce(&mut Rig, SocketAddr)) -> Answer {
    let ca = Authority::new("backends");
    let old = Slow::start(&ca, "old", First::Fails, b"http/1.1").await;
    // The same server once more: either may be tried first, and the second one is served.
    let again = SocketAddr::from(([127, 0, 0, 1], forward(old.address).await));
    let new = web::Echo::start("new").await;
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            versioned(OLD, "v1"),
            secured(OLD, &[old.address, again]),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    let mut stream = rig.connect().await;
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    old.wait().await;
    edit(&mut rig, new.address);
    old.go();
    let bytes = read_to_end(&mut stream).await.unwrap();
    web::parse(&String::from_utf8_lossy(&bytes))
}

/// A port that leads to an address.
async fn forward(to: SocketAddr) -> u16 {
    let from = serve(move |mut client| async move {
        let mut server = TcpStream::connect(to).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    from.await.port()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_tried_again_though_its_backend_went() {
    let answer = tried_again(|rig, new| {
        let moved = vec![versioned(NEW, "v2"), backend(NEW, &[new])];
        change(rig, moved, &[(Kind::Backend, OLD)]);
    });
    let answer = answer.await;
    let old = (200, Some("old"), Some("v1"));
    let new = (200, Some("new"), Some("v2"));
    assert!([old, new].contains(&who(&answer)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_not_tried_again_with_endpoints_of_another_configuration() {
    let answer = tried_again(|rig, new| {
        let moved = backend_of(OLD, &[new], proto::BackendProtocol::Unspecified);
        change(rig, vec![versioned(OLD, "v2"), moved], &[]);
    });
    let answer = answer.await;
    let old = (200, Some("old"), Some("v1"));
    let new = (200, Some("new"), Some("v2"));
    assert!([old, new].contains(&who(&answer)), "{answer:?}");
}

/// A terminated connection whose first endpoint fails after an edit. Says who answers.
async fn connected_again(edit: impl FnOnce(&mut Rig, SocketAddr)) -> String {
    let (server, ca) = (Identity::new(HOST), Authority::new("backends"));
    let old = Slow::start(&ca, "old", First::Fails, b"http/1.1").await;
    let again = SocketAddr::from(([127, 0, 0, 1], forward(old.address).await));
    let new = web::Echo::start("new").await;
    let mut rig = Rig::start(&quiet(), |port| {
        let mut all = terminated(port, &server, OLD);
        all.push(secured(OLD, &[old.address, again]));
        all.push(Authority::bundle(BUNDLE, &[&ca]));
        all
    });
    let stream = tls(rig.connect().await, client_config(&server), HOST).await;
    old.wait().await;
    edit(&mut rig, new.address);
    old.go();
    let mut stream = stream.unwrap();
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    let asked = stream.write_all(text.as_bytes()).await;
    let bytes = within("an answer", async {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    })
    .await;
    let text = String::from_utf8_lossy(&bytes);
    if text.is_empty() {
        return format!("nobody: {asked:?}");
    }
    let answer = web::parse(&text);
    answer.header("x-backend").unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_does_not_come_to_the_backend_of_another_certificate() {
    let next = Identity::new(HOST);
    let answered = connected_again(|rig, new| {
        change(rig, vec![next.resource(CERT), backend(OLD, &[new])], &[]);
    });
    assert_eq!(answered.await, "old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_tried_again_though_its_listener_is_of_another_mode_by_then() {
    let answered = connected_again(|rig, new| {
        let port = rig.address.port();
        let https = http(port, "web", HOST, Some(CERT));
        change(
            rig,
            vec![https, versioned(NEW, "v2"), backend(NEW, &[new])],
            &[],
        );
    });
    assert_eq!(answered.await, "old");
}

// ---- One after another

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_comes_back_without_tls_is_spoken_to_in_plaintext() {
    let ca = Authority::new("backends");
    let echo = web::Echo::start("new").await;
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            versioned(OLD, "v1"),
            secured(OLD, &[nobody()]),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    change(&mut rig, Vec::new(), &[(Kind::Backend, OLD)]);
    assert_eq!(web::get(&rig, HOST, "/").await.status, 503);
    change(&mut rig, vec![backend(OLD, &[echo.address])], &[]);
    let answer = web::get(&rig, HOST, "/").await;
    assert_eq!(who(&answer), (200, Some("new"), Some("v1")));
}

// ---- Connections that stand

/// A connection to the backend that stands must not be used where a new one would not be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_held_fails_requests_that_could_use_an_old_connection() {
    let ca = Authority::new("backends");
    let far = Slow::start(&ca, "old", First::IsServed, b"http/1.1").await;
    far.go();
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            versioned(OLD, "v1"),
            secured(OLD, &[far.address]),
            Authority::bundle(BUNDLE, &[&ca]),
        ]
    });
    // Requests of one connection are of one worker, which keeps its connections to backends.
    let mut stream = rig.connect().await;
    assert_eq!(turns::ask_on(&mut stream).await, "200 old v1");
    let web = http(rig.address.port(), "web", HOST, None);
    change(&mut rig, showing(web, SHOWN).to_vec(), &[]);
    assert_eq!(turns::ask_on(&mut stream).await, "500 - v1");
    assert_eq!(far.connections.load(Ordering::SeqCst), 1);
}

/// A listener that goes while another one of another object takes its name: who is connected is served on.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_moves_to_another_object_misdirects_nobody() {
    let server = Identity::new(HOST);
    let echo = web::Echo::start("one").await;
    let routed = || {
        let mut route = versioned(OLD, "v1");
        if let Some(Wire::HttpRoute(route)) = &mut route.resource {
            let mut other = route.attachments[0].clone();
            other.listener = "ListenerSet/team-a/moved/tls".into();
            route.attachments.push(other);
        }
        route
    };
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, Some(CERT)),
            routed(),
            server.resource(CERT),
            backend(OLD, &[echo.address]),
        ]
    });
    let mut stands = tls(rig.connect().await, client_config(&server), HOST)
        .await
        .unwrap();
    let halfway = Halfway::start(&rig, &server).await;
    let moved = http(rig.address.port(), "moved", HOST, Some(CERT));
    change(
        &mut rig,
        vec![moved],
        &[(Kind::Listener, "ListenerSet/team-a/web/tls")],
    );
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    let mut halfway = halfway.finish().await;
    halfway.write_all(text.as_bytes()).await.unwrap();
    let bytes = read_to_end(&mut halfway).await.unwrap();
    let answer = web::parse(&String::from_utf8_lossy(&bytes));
    assert_eq!(who(&answer), (200, Some("one"), Some("v1")), "{answer:?}");
    stands.write_all(text.as_bytes()).await.unwrap();
    let bytes = read_to_end(&mut stands).await.unwrap();
    let answer = web::parse(&String::from_utf8_lossy(&bytes));
    assert_eq!(who(&answer), (200, Some("one"), Some("v1")), "{answer:?}");
}
