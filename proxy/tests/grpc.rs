//! gRPC routes on loopback, with calls framed by hand: which version of HTTP backends get, what clients are told where
//! no backend answers, deadlines, streams both ways, and how a call ends that either side leaves.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use proto::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Resource, ResourceKind, proto};
use vestibule_test_support::frames::*;

const HOST: &str = "api.example.com";
const BACKEND: &str = "team-a/one:80";
const NONE: Vec<String> = Vec::new();
const ECHO: &str = "/shop.v1.Cart/Add";

type Any = BoxBody<Bytes, std::io::Error>;

/// A gRPC route for everything, to a backend that says nothing of its protocol.
fn rig_of(limits: &ProxyLimits, address: SocketAddr) -> Rig {
    Rig::start(limits, |port| {
        vec![
            http(port, "web", "", None),
            grpc_route("web", "", vec![calls("", "", BACKEND)]),
            backend_of(BACKEND, &[address], BackendProtocol::Unspecified),
        ]
    })
}

async fn client(rig: &Rig) -> http2::SendRequest<Any> {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The head of a call.
fn head(path: &str) -> hyper::http::request::Builder {
    Request::post(format!("http://{HOST}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

fn message(text: &'static str) -> Any {
    let body = Full::new(Bytes::from_static(text.as_bytes()));
    body.map_err(|never| match never {}).boxed()
}

/// How a call ended: its head, its messages, and its trailers. Those of a call without messages are in the head.
struct Ended {
    status: u16,
    head: HeaderMap,
    body: Bytes,
    trailers: HeaderMap,
}

impl Ended {
    fn grpc(&self) -> &str {
        let fields = [&self.trailers, &self.head];
        let found = fields.iter().find_map(|fields| fields.get("grpc-status"));
        found.map_or("none", |value| value.to_str().unwrap())
    }
}

async fn end(answer: Response<Incoming>) -> Ended {
    let (parts, body) = answer.into_parts();
    let collected = within("the end of a call", body.collect()).await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ended {
        status: parts.status.as_u16(),
        head: parts.headers,
        body: collected.to_bytes(),
        trailers,
    }
}

async fn make(sender: &mut http2::SendRequest<Any>, request: Request<Any>) -> Ended {
    let answer = within("the head of an answer", sender.send_request(request)).await;
    end(answer.unwrap()).await
}

/// What becomes of one call without anything special about it.
async fn ask_for(rig: &Rig, path: &str) -> Ended {
    make(
        &mut client(rig).await,
        head(path).body(message("m")).unwrap(),
    )
    .await
}

/// A server of gRPC that answers each message with itself as it comes, and says at the end how many there were. It
/// counts calls whose client left.
struct Server {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

/// Counts, if the call is dropped before it is over.
struct Guarded(Arc<AtomicUsize>, bool);

impl Drop for Guarded {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Server {
    async fn start(name: &'static str) -> Self {
        let (left, calls) = (Arc::default(), Arc::default());
        let counts = (Arc::clone(&left), Arc::clone(&calls));
        let address = serve(move |stream: TcpStream| {
            let counts = counts.clone();
            serve_http(stream, true, move |request| {
                let (left, calls): (Arc<AtomicUsize>, Arc<AtomicUsize>) = counts.clone();
                calls.fetch_add(1, Ordering::SeqCst);
                ready(answer(name, request, left))
            })
        })
        .await;
        Self {
            address,
            left,
            calls,
        }
    }
}

fn answer(
    name: &'static str,
    request: Request<Incoming>,
    left: Arc<AtomicUsize>,
) -> Response<StreamBody<impl futures::Stream<Item = Result<Frame<Bytes>, hyper::Error>>>> {
    let seen = |field: &str| {
        let value = request.headers().get(field);
        value
            .map_or("none", |value| value.to_str().unwrap())
            .to_owned()
    };
    let response = Response::builder()
        .header("content-type", seen("content-type"))
        .header("x-backend", name)
        .header("x-te", seen("te"))
        .header("x-path", request.uri().path().to_owned());
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut guard = Guarded(left, false);
        let mut body = request.into_body();
        let mut count = 0;
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sender.closed() => return,
            };
            match frame {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    // The end of a body may come in a frame of its own.
                    if data.is_empty() {
                        continue;
                    }
                    count += 1;
                    if sender.send(Ok(Frame::data(data))).await.is_err() {
                        return;
                    }
                }
                Some(Err(_)) => return,
                None => break,
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        trailers.insert("x-messages", count.into());
        guard.1 = sender.send(Ok(Frame::trailers(trailers))).await.is_ok();
    });
    let frames = futures::stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?, receiver))
    });
    response.body(StreamBody::new(frames)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_get_http2_without_being_asked_and_trailers_come_back() {
    let one = Server::start("one").await;
    let mut rig = rig_of(&quiet(), one.address);
    let ended = ask_for(&rig, ECHO).await;
    assert_eq!((ended.status, ended.grpc()), (200, "0"));
    assert_eq!(&ended.body[..], b"m");
    assert_eq!(ended.trailers["x-messages"], "1");
    assert_eq!(ended.head["x-te"], "trailers");
    assert_eq!(ended.head["x-path"], ECHO);
    // What the Service's port says of HTTP does not matter, and neither does the client's version of it.
    rig.apply(vec![backend_of(
        BACKEND,
        &[one.address],
        BackendProtocol::H2c,
    )]);
    assert_eq!(ask_for(&rig, ECHO).await.grpc(), "0");
    let web = format!("POST {ECHO} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 5\r\n");
    let web = format!("{web}content-type: application/grpc-web+proto");
    let answer = ask(&rig, &web, "hello").await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("application/grpc-web+proto")
    );
    assert_eq!(answer.header("x-te"), Some("trailers"));
    assert!(answer.body.contains("hello"), "{}", answer.body);
    assert_eq!(one.calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_over_tls_are_offered_http2_alone() {
    let server = Identity::new("backend.example.com");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let protocols = Arc::clone(&seen);
    let mut config = server.server_config();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let address = serve(move |stream: TcpStream| {
        let (acceptor, protocols) = (acceptor.clone(), Arc::clone(&protocols));
        async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            protocols.lock().push(protocol);
            let left = Arc::default();
            serve_http(stream, true, move |request| {
                ready(answer("tls", request, Arc::clone(&left)))
            })
            .await;
        }
    })
    .await;
    let mut secured = backend(BACKEND, &[address]);
    if let Some(Wire::Backend(backend)) = &mut secured.resource {
        backend.tls = Some(proto::BackendTls {
            hostname: "backend.example.com".into(),
            trust_bundles: vec!["ConfigMap/team-a/ca".into()],
            ..Default::default()
        });
    }
    let mut rig = rig_of(&quiet(), address);
    let trust = proto::TrustBundle {
        certificates: vec![server.chain[0].to_vec()],
    };
    let trust = Resource::new("ConfigMap/team-a/ca", Wire::TrustBundle(trust));
    assert_eq!(rig.apply(vec![trust, secured.clone()]), NONE);
    let ended = ask_for(&rig, ECHO).await;
    assert_eq!(ended.grpc(), "0");
    assert_eq!(ended.head["x-backend"], "tls");
    assert_eq!(*seen.lock(), [Some(b"h2".to_vec())]);
    // Somebody else is not connected to.
    if let Some(Wire::Backend(backend)) = &mut secured.resource
        && let Some(tls) = &mut backend.tls
    {
        tls.hostname = "other.example.com".into();
    }
    rig.apply(vec![secured]);
    assert_eq!(ask_for(&rig, ECHO).await.grpc(), "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_call_that_is_not_served_gets_a_grpc_status() {
    let one = Server::start("one").await;
    let nobody = nobody();
    let fail = filter(proto::http_filter::Filter::Fail(500));
    let mut failing = calls("a.Failing", "", BACKEND);
    failing.filters.push(fail);
    let mut unweighted = calls("a.Unweighted", "", BACKEND);
    unweighted.backends[0].weight = 0;
    let rules = vec![
        calls("a.Served", "Call", BACKEND),
        calls("a.Invalid", "", ""),
        calls("a.Empty", "", "team-a/empty:80"),
        calls("a.Refused", "", "team-a/refused:80"),
        failing,
        unweighted,
    ];
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            grpc_route("web", HOST, rules.clone()),
            backend(BACKEND, &[one.address]),
            backend("team-a/empty:80", &[]),
            backend("team-a/refused:80", &[nobody]),
        ]
    });
    for (path, status) in [
        ("/a.Served/Call", "0"),
        ("/a.Served/Other", "12"),
        ("/a.Other/Call", "12"),
        ("/a.Invalid/Call", "14"),
        ("/a.Unweighted/Call", "14"),
        ("/a.Empty/Call", "14"),
        ("/a.Refused/Call", "14"),
        ("/a.Failing/Call", "13"),
    ] {
        let ended = ask_for(&rig, path).await;
        assert_eq!((ended.status, ended.grpc()), (200, status), "{path}");
        assert_eq!(ended.head["content-type"], "application/grpc", "{path}");
        if status != "0" {
            assert!(ended.body.is_empty() && ended.trailers.is_empty(), "{path}");
            assert!(ended.head.contains_key("grpc-message"), "{path}");
            assert_eq!(ended.head["cache-control"], "no-store", "{path}");
        }
    }
    // No listener is for the host.
    let mut sender = client(&rig).await;
    let other = Request::post("http://other.example.com/a.Served/Call")
        .header("content-type", "application/grpc+proto")
        .body(message("m"))
        .unwrap();
    let ended = make(&mut sender, other).await;
    assert_eq!((ended.status, ended.grpc()), (200, "12"));
    assert_eq!(ended.head["content-type"], "application/grpc+proto");
    // Whoever makes no call is told in HTTP, also where the path would fit.
    let answer = get(&rig, HOST, "/a.Served/Call").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.header("grpc-status"), None);
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_grpc_calls_total{status=\"OK\"} 1",
        "vestibule_proxy_grpc_calls_total{status=\"UNIMPLEMENTED\"} 3",
        "vestibule_proxy_grpc_calls_total{status=\"UNAVAILABLE\"} 4",
        "vestibule_proxy_grpc_calls_total{status=\"INTERNAL\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
}

/// A cache would keep a response with status 200.
#[tokio::test(flavor = "multi_thread")]
async fn a_get_with_the_content_type_of_a_call_is_answered_in_http() {
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/lost", ""), rule("/", BACKEND)]),
            grpc_route("calls", "", vec![calls("a.Served", "", BACKEND)]),
            backend(BACKEND, &[nobody()]),
        ]
    });
    let loops = ["vestibule.dev"; 8].join(", ");
    for (path, loops, status) in [
        ("/", &*loops, 508),
        ("/lost", "", 500),
        ("/a.Served/Call", "", 503),
    ] {
        let head = format!("{path} HTTP/1.1\r\nhost: {HOST}\r\ncdn-loop: {loops}");
        let head = format!("{head}\r\ncontent-type: application/grpc");
        let answer = ask(&rig, &format!("GET {head}"), "").await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("grpc-status"), None, "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        let head = format!("POST {head}\r\ncontent-length: 0");
        let answer = ask(&rig, &head, "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("grpc-status").is_some(), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_route_and_an_http_route_share_a_hostname_and_a_name() {
    let one = Server::start("one").await;
    let web = Echo::start("web").await;
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            http_route("web", HOST, vec![rule("/", "team-a/web:80")]),
            grpc_route("web", HOST, vec![calls("shop.v1.Cart", "", BACKEND)]),
            backend(BACKEND, &[one.address]),
            backend("team-a/web:80", &[web.address]),
        ]
    });
    assert_eq!(ask_for(&rig, ECHO).await.head["x-backend"], "one");
    let other = ask_for(&rig, "/other.Service/Call").await;
    assert_eq!(other.head["x-backend"], "web");
    let page = get(&rig, HOST, ECHO).await;
    assert_eq!(page.header("x-backend"), Some("web"));
    rig.remove(ResourceKind::GrpcRoute, "team-a/web");
    assert_eq!(ask_for(&rig, ECHO).await.head["x-backend"], "web");
    rig.remove(ResourceKind::HttpRoute, "team-a/web");
    assert_eq!(ask_for(&rig, ECHO).await.grpc(), "12");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_has_the_matches_of_its_kind() {
    let one = Server::start("one").await;
    let mut rig = rig_of(&quiet(), one.address);
    for resource in [
        grpc_route("bad", "", vec![rule("/", BACKEND)]),
        http_route("bad", "", vec![calls("a.B", "", BACKEND)]),
    ] {
        let rejects = rig.apply(vec![resource]);
        assert_eq!(rejects.len(), 1);
        assert!(rejects[0].starts_with("InvalidMatch"), "{rejects:?}");
    }
}

/// A call whose messages are sent one by one, and which an error resets.
fn stream_of(path: &str) -> (mpsc::Sender<std::io::Result<Bytes>>, Request<Any>) {
    let (sender, receiver) = mpsc::channel::<std::io::Result<Bytes>>(1);
    let frames = futures::stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?.map(Frame::data), receiver))
    });
    let body = StreamBody::new(frames).boxed();
    (sender, head(path).body(body).unwrap())
}

/// A call whose first message is sent, what sends the others, and the head of its answer.
async fn begin(
    sender: &mut http2::SendRequest<Any>,
    first: &'static str,
) -> (mpsc::Sender<std::io::Result<Bytes>>, Response<Incoming>) {
    let (messages, request) = stream_of(ECHO);
    let call = sender.send_request(request);
    messages.send(Ok(first.into())).await.unwrap();
    let answer = within("the head of an answer", call).await.unwrap();
    (messages, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_flow_both_ways_while_a_call_lasts() {
    let one = Server::start("one").await;
    let rig = rig_of(&quiet(), one.address);
    let mut sender = client(&rig).await;
    let (messages, mut answer) = begin(&mut sender, "m0").await;
    for n in 0..20 {
        let frame = within("a message", answer.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), format!("m{n}"));
        messages
            .send(Ok(format!("m{}", n + 1).into()))
            .await
            .unwrap();
    }
    drop(messages);
    let ended = end(answer).await;
    assert_eq!(ended.grpc(), "0");
    assert_eq!(ended.trailers["x-messages"], "21");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_takes_its_call_from_the_backend() {
    let one = Server::start("one").await;
    let rig = rig_of(&quiet(), one.address);
    let mut sender = client(&rig).await;
    let (messages, mut answer) = begin(&mut sender, "m").await;
    within("a message", answer.frame()).await.unwrap().unwrap();
    let reset = std::io::ErrorKind::Interrupted.into();
    messages.send(Err(reset)).await.unwrap();
    drop(answer);
    wait("the backend to see it", || {
        one.left.load(Ordering::SeqCst) == 1
    })
    .await;
    // The connection goes on.
    assert_eq!(
        make(&mut sender, head(ECHO).body(message("m")).unwrap())
            .await
            .grpc(),
        "0"
    );
}

/// A backend that takes calls and never answers; it counts those whose client left.
async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let left: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&left);
    let address = serve(move |stream: TcpStream| {
        let count = Arc::clone(&count);
        serve_http(stream, true, move |_| {
            let guard = Guarded(Arc::clone(&count), false);
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Response::new(Full::new(Bytes::new()))
            }
        })
    })
    .await;
    (address, left)
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_timeout_of_a_client_is_an_upper_bound() {
    let (address, left) = silent().await;
    let rig = rig_of(&quiet(), address);
    let mut sender = client(&rig).await;
    // Also one whose time is over before it begins: no backend gets it.
    for timeout in ["50m", "0S"] {
        let request = head(ECHO).header("grpc-timeout", timeout);
        let ended = make(&mut sender, request.body(message("m")).unwrap()).await;
        assert_eq!((ended.status, ended.grpc()), (200, "4"), "{timeout}");
    }
    wait("the backend to see it", || left.load(Ordering::SeqCst) == 1).await;
}

/// A client could otherwise choose a time in which no endpoint answers, and so which endpoints are avoided.
#[tokio::test(flavor = "multi_thread")]
async fn grpc_timeout_of_a_client_counts_against_no_endpoint() {
    let ((one, left), (two, left_two)) = (silent().await, silent().await);
    let mut rig = rig_of(&quiet(), one);
    let two = backend_of(BACKEND, &[one, two], BackendProtocol::Unspecified);
    assert!(rig.apply(vec![two]).is_empty());
    let mut sender = client(&rig).await;
    // Only requests without a body count at all.
    let seen = || left.load(Ordering::SeqCst) + left_two.load(Ordering::SeqCst);
    for n in 1..=6 {
        let request = head(ECHO).header("grpc-timeout", "300m");
        let empty = Full::new(Bytes::new()).map_err(|never| match never {});
        let ended = make(&mut sender, request.body(empty.boxed()).unwrap()).await;
        assert_eq!((ended.status, ended.grpc()), (200, "4"));
        wait("the backend to see it", || seen() == n).await;
    }
    let metrics = rig.plane.metrics.encode().unwrap();
    let passed_over = "endpoints_passed_over_total{";
    assert!(!metrics.contains(passed_over), "{metrics}");
}

/// Each of them makes the proxy reset a request at the backend, as if the client had cancelled it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_clients_do_not_wait_for_them_count_as_cancelled() {
    let (address, _) = silent().await;
    let mut limits = quiet();
    limits.http.cancels = 5;
    let rig = rig_of(&limits, address);
    let mut sender = client(&rig).await;
    let mut ended = 0;
    while within("room for a call", sender.ready()).await.is_ok() {
        let request = head(ECHO).header("grpc-timeout", "0S");
        let call = sender.send_request(request.body(message("m")).unwrap());
        if within("an answer", call).await.is_err() {
            break;
        }
        ended += 1;
        assert!(ended < 500, "the connection goes on");
    }
    assert!(ended >= 5, "{ended}");
    rig.wait_closed(CloseReason::TooManyCancels, 1).await;
}

/// Servers end a connection with too many resets, and with it the calls of everybody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_backend_is_left_alone_after_many_requests_that_were_given_up() {
    // For each connection, how many calls it had. Calls of `Hold` are answered when `release` is told.
    let calls: Arc<Mutex<Vec<usize>>> = Arc::default();
    let release = Arc::new(Notify::new());
    let (all, released) = (Arc::clone(&calls), Arc::clone(&release));
    let address = serve(move |stream: TcpStream| {
        let (all, released) = (Arc::clone(&all), Arc::clone(&released));
        let mut connections = all.lock();
        let index = connections.len();
        connections.push(0);
        drop(connections);
        serve_http(stream, true, move |request: Request<Incoming>| {
            let (all, released) = (Arc::clone(&all), Arc::clone(&released));
            async move {
                all.lock()[index] += 1;
                if !request.uri().path().ends_with("/Hold") {
                    std::future::pending::<()>().await;
                }
                released.notified().await;
                Response::new(Full::new(Bytes::from_static(b"held")))
            }
        })
    })
    .await;
    let mut limits = quiet();
    limits.http.cancels = 100_000;
    let rig = rig_of(&limits, address);
    // Calls of one client have one worker, and so one pool.
    let sender = client(&rig).await;
    let mut holder = sender.clone();
    let held = tokio::spawn(async move {
        let request = head("/shop.v1.Cart/Hold").body(message("m")).unwrap();
        make(&mut holder, request).await
    });
    wait("the call", || calls.lock().first() == Some(&1)).await;
    while calls.lock().len() < 3 {
        let some = (0..10).map(|_| {
            let mut sender = sender.clone();
            async move {
                let request = head(ECHO).header("grpc-timeout", "100m");
                make(&mut sender, request.body(message("m")).unwrap()).await
            }
        });
        for ended in futures::future::join_all(some).await {
            assert_eq!((ended.status, ended.grpc()), (200, "4"));
        }
        // Without a bound, all of them are on the first connection.
        assert!(calls.lock()[0] < 100, "{:?}", calls.lock());
    }
    // Ten are under way when the bound is reached.
    let calls = calls.lock().clone();
    assert!(calls.iter().all(|count| *count <= 60), "{calls:?}");
    // The call that was there before has not ended.
    release.notify_one();
    let held = within("the held call", held).await.unwrap();
    assert_eq!(held.body, "held");
}

/// What a backend of raw frames got.
#[derive(Default)]
struct Seen {
    /// The streams of requests.
    requests: Vec<u32>,
    /// The streams that were reset, each time.
    resets: Vec<u32>,
    /// How many PINGs were answered.
    pongs: usize,
}

/// Reads the frames of the proxy on a connection.
async fn read_frames(mut read: impl tokio::io::AsyncRead + Unpin, seen: Arc<Mutex<Seen>>) {
    let mut preface = [0; 24];
    let mut begun = read.read_exact(&mut preface).await.is_ok();
    while begun {
        let mut head = [0; 9];
        if read.read_exact(&mut head).await.is_err() {
            return;
        }
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
        let mut payload = vec![0; length];
        begun = read.read_exact(&mut payload).await.is_ok();
        let mut seen = seen.lock();
        match (kind, flags & 1) {
            (HEADERS, _) => seen.requests.push(u32::from_be_bytes(stream)),
            (RST_STREAM, _) => seen.resets.push(u32::from_be_bytes(stream)),
            (PING, 1) => seen.pongs += 1,
            _ => {}
        }
    }
}

/// Backends count resets, so the proxy must not answer a late answer by another reset. More requests are under way here than
/// the proxy gives up on a connection before it leaves that alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_is_reset_once_however_late_its_answer_comes() {
    const MANY: usize = 90;
    let (address, connection) = one_connection().await;
    let mut limits = quiet();
    limits.http.cancels = 100_000;
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            grpc_route("web", "", vec![calls("", "", BACKEND)]),
            backend_of(BACKEND, &[address], BackendProtocol::H2c),
        ]
    });
    let sender = client(&rig).await;
    let call = || {
        let (mut sender, body) = (sender.clone(), message("m"));
        let request = head(ECHO).body(body).unwrap();
        tokio::spawn(async move { sender.send_request(request).await })
    };
    // The first call is under way to the end, so the connection is.
    let held = call();
    let (read, mut write) = within("a connection", connection).await.into_split();
    let seen: Arc<Mutex<Seen>> = Arc::default();
    tokio::spawn(read_frames(read, Arc::clone(&seen)));
    write.write_all(&frame(SETTINGS, 0, 0, b"")).await.unwrap();
    wait("the first call", || seen.lock().requests.len() == 1).await;
    let given_up: Vec<_> = (0..MANY).map(|_| call()).collect();
    let is_asked = || seen.lock().requests.len() == MANY + 1;
    wait("the calls at the backend", is_asked).await;
    given_up.iter().for_each(tokio::task::JoinHandle::abort);
    wait("the resets", || seen.lock().resets.len() >= MANY).await;
    // The HTTP/2 library forgets them after a second, if nobody tells it otherwise.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let requests = seen.lock().requests.clone();
    // `:status: 200`, and a message that ends.
    let answers = requests.iter().skip(1).flat_map(|stream| {
        let begun = frame(HEADERS, END_HEADERS, *stream, &[0x88]);
        [begun, frame(0, END_STREAM, *stream, b"late")].concat()
    });
    write
        .write_all(&answers.collect::<Vec<u8>>())
        .await
        .unwrap();
    // The second PING is read after the answer to the first one was written, and with it all that was to be said
    // about what came before.
    for pongs in 1..=2 {
        write.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
        wait("an answer to a PING", || seen.lock().pongs == pongs).await;
    }
    let mut resets = seen.lock().resets.clone();
    resets.sort_unstable();
    assert_eq!(resets, &requests[1..]);
    held.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_time_is_over_in_the_middle_of_its_answer_says_so() {
    let one = Server::start("one").await;
    let rig = rig_of(&quiet(), one.address);
    let mut sender = client(&rig).await;
    let (messages, mut request) = stream_of(ECHO);
    let timeout = "300m".parse().unwrap();
    request.headers_mut().insert("grpc-timeout", timeout);
    let call = sender.send_request(request);
    messages.send(Ok("m".into())).await.unwrap();
    let answer = within("the head of an answer", call).await.unwrap();
    let ended = end(answer).await;
    assert_eq!((&ended.body[..], ended.grpc()), (&b"m"[..], "4"));
    wait("the backend to see it", || {
        one.left.load(Ordering::SeqCst) == 1
    })
    .await;
    drop(messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_breaks_off_is_unavailable() {
    // Ends its connections when it is told to.
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let address = serve(move |stream: TcpStream| {
        let stopped = Arc::clone(&stopped);
        async move {
            let left = Arc::default();
            let serving = serve_http(stream, true, move |request| {
                ready(answer("one", request, Arc::clone(&left)))
            });
            tokio::select! {
                () = serving => {}
                () = stopped.notified() => {}
            }
        }
    })
    .await;
    let rig = rig_of(&quiet(), address);
    let mut sender = client(&rig).await;
    let (messages, mut answer) = begin(&mut sender, "m").await;
    within("a message", answer.frame()).await.unwrap().unwrap();
    stop.notify_waiters();
    let ended = end(answer).await;
    assert_eq!(ended.grpc(), "14");
    assert_eq!(ended.trailers["grpc-message"], "the backend broke off");
    drop(messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_in_peace_while_the_proxy_drains() {
    let one = Server::start("one").await;
    let mut rig = rig_of(&quiet(), one.address);
    let mut sender = client(&rig).await;
    let (messages, mut answer) = begin(&mut sender, "m").await;
    within("a message", answer.frame()).await.unwrap().unwrap();
    let workers = rig.workers.take().unwrap();
    let drained = tokio::spawn(workers.drain(Duration::from_hours(1)));
    // GOAWAY: once it has come, no other call goes on this connection.
    let refused = async {
        loop {
            let next = head(ECHO).body(message("m")).unwrap();
            match sender.send_request(next).await {
                Ok(next) => assert_eq!(end(next).await.grpc(), "0"),
                Err(_) => return,
            }
        }
    };
    within("the end of calls", refused).await;
    messages.send(Ok("n".into())).await.unwrap();
    let frame = within("a message", answer.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "n");
    drop(messages);
    assert_eq!(end(answer).await.grpc(), "0");
    assert_eq!(within("the drain", drained).await.unwrap(), 0);
}
