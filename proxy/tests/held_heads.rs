//! Heads of one HTTP/2 client that wait for a backend: what they make the proxy hold together, and who passes. In a process of
//! its own, since it counts what the process has allocated, and reads the log of the process.

use std::alloc::System;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cap::Cap;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, COOKIE, HeaderName, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::sink::Sink;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
/// The backend that never answers.
const SILENT: &str = "team-a/silent:80";
/// Requests at one time on a connection.
const REQUESTS: usize = 100;
/// Most bytes that one client holds: 2 MiB for its heads, and what a hundred requests take besides, also in the client and the
/// backend, which are in this process. Without a bound on heads, they alone take more.
const MOST: usize = 5 * 1024 * 1024;

/// Counts the bytes that are allocated.
#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// A backend that never answers and keeps nothing, with the number of heads that it got.
async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heads);
    let address = serve(move |mut stream: TcpStream| {
        let counted = Arc::clone(&counted);
        async move {
            let (mut piece, mut last) = ([0; 1024], [0; 4]);
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                for byte in &piece[..length] {
                    last.rotate_left(1);
                    last[3] = *byte;
                    if last == *b"\r\n\r\n" {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        }
    })
    .await;
    (address, heads)
}

fn rig(silent: SocketAddr, echo: SocketAddr) -> Rig {
    Rig::start(&ProxyLimits::default(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/never", SILENT), rule("/", BACKEND)]),
            backend(SILENT, &[silent]),
            backend(BACKEND, &[echo]),
        ]
    })
}

type Client = http2::SendRequest<Empty<Bytes>>;

async fn client(rig: &Rig) -> Client {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A request with so many fields and cookies, each of which has a value of so many bytes.
fn request(path: &str, fields: usize, cookies: usize, value: usize) -> Request<Empty<Bytes>> {
    let uri = format!("http://{HOST}{path}");
    let mut request = Request::get(uri).body(Empty::new()).unwrap();
    let value = HeaderValue::try_from("v".repeat(value)).unwrap();
    let headers = request.headers_mut();
    for n in 0..fields {
        let name = HeaderName::try_from(format!("n-{n}")).unwrap();
        headers.insert(name, value.clone());
    }
    for _ in 0..cookies {
        headers.append(COOKIE, value.clone());
    }
    request
}

/// Sends as many requests as a connection may have at one time.
fn send(client: &Client, request: &Request<Empty<Bytes>>) -> Vec<JoinHandle<()>> {
    let sent = (0..REQUESTS).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        tokio::spawn(async move {
            let _ = client.send_request(request).await;
        })
    });
    sent.collect()
}

/// The status of a request that is answered.
async fn status(client: &mut Client, request: Request<Empty<Bytes>>) -> u16 {
    let answer = within("an answer", client.send_request(request)).await;
    answer.unwrap().status().as_u16()
}

fn counted(rig: &Rig, series: &str) -> usize {
    let page = rig.plane.metrics.encode().unwrap();
    usize::try_from(value(&page, series)).unwrap()
}

async fn a_call_gets_a_status_of_grpc(client: &mut Client, mut call: Request<Empty<Bytes>>) {
    *call.method_mut() = Method::POST;
    let grpc = HeaderValue::from_static("application/grpc");
    call.headers_mut().insert(CONTENT_TYPE, grpc);
    let answer = within("an answer", client.send_request(call)).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200);
    // RESOURCE_EXHAUSTED
    assert_eq!(answer.headers().get("grpc-status").unwrap(), "8");
}

/// No listener was selected, so the authority is all that tells.
async fn a_line_says_whose_request_was_refused(sink: &Sink) {
    // With that of the call.
    let is_refused = |line: &serde_json::Value| line["reason"] == "TooManyHeads";
    let is_call = |line: &serde_json::Value| is_refused(line) && line["grpc_status"] == 8;
    wait("the line of the call", || sink.lines().iter().any(is_call)).await;
    let lines = sink.lines();
    for line in lines.iter().filter(|line| is_refused(line)) {
        assert_eq!(line["authority"], HOST, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_wait_are_bounded_for_all_requests_of_a_client() {
    let sink = Sink::subscribe("info");
    let (address, heads) = silent().await;
    let echo = Echo::start("web").await;
    let rig = rig(address, echo.address);
    let refused = || {
        let series = "vestibule_proxy_requests_over_limit_total{reason=\"TooManyHeads\"}";
        counted(&rig, series)
    };
    let cancelled = || {
        let series = "vestibule_proxy_requests_total{protocol=\"HTTP/2\",code=\"499\"}";
        counted(&rig, series)
    };
    let at_backend = || heads.load(Ordering::SeqCst);
    // Whatever the first request sets up is not theirs.
    let mut neighbour = client(&rig).await;
    assert_eq!(status(&mut neighbour, request("/", 1, 0, 1)).await, 200);

    let mut greedy = client(&rig).await;
    let large = request("/never", 4, 0, 15_000);
    let before = ALLOCATED.allocated();
    let sent = send(&greedy, &large);
    wait("all large requests", || {
        at_backend() + refused() == REQUESTS
    })
    .await;
    let bytes = ALLOCATED.allocated().saturating_sub(before);
    let held = at_backend();
    assert!((30..=34).contains(&held), "{held} of the large heads wait");
    assert!(bytes < MOST, "{bytes} bytes for {held} heads");
    assert_eq!(status(&mut greedy, large.clone()).await, 431);
    a_call_gets_a_status_of_grpc(&mut greedy, large.clone()).await;
    a_line_says_whose_request_was_refused(&sink).await;
    assert_eq!(status(&mut neighbour, request("/", 20, 0, 400)).await, 200);

    // Requests that end give back what they weigh.
    for request in &sent {
        request.abort();
    }
    wait("the end of the large requests", || cancelled() == held).await;
    let refusals = refused();
    let _last = tokio::spawn(async move { greedy.send_request(large).await });
    wait("one more at the backend", || at_backend() == held + 1).await;
    assert_eq!(refused(), refusals);

    // A browser splits its cookies into fields. These are 8 KB of them.
    let browser = client(&rig).await;
    let sent = send(&browser, &request("/never", 18, 100, 80));
    wait("all requests of a browser", || {
        at_backend() == held + 1 + REQUESTS
    })
    .await;
    assert!(sent.iter().all(|request| !request.is_finished()));
    assert_eq!(refused(), refusals);
}
