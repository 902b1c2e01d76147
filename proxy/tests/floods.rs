//! HTTP/2 clients and backends that make the proxy work to no purpose: their connection ends after an amount of work
//! that does not depend on how much they send, and clients are told to calm down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;
use vestibule_test_support::frames::*;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
/// Many more than a connection takes of anything.
const MANY: u32 = 20_000;

/// A backend that answers no request for `/never`, with the number of requests that it got.
async fn counted() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|request: Request<Incoming>| async move {
        if request.uri().path() == "/never" {
            std::future::pending::<()>().await;
        }
        Response::new(Full::new(Bytes::from_static(b"whole")))
    })
    .await
}

fn rig(address: SocketAddr, cancels: Option<u32>) -> Rig {
    let mut limits = ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    };
    if let Some(cancels) = cancels {
        limits.http.cancels = cancels;
    }
    Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend(BACKEND, &[address]),
        ]
    })
}

/// `:method` GET, `:scheme` http, `:path` /never, `:authority`.
fn request(stream: u32, flags: u8) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x44, 6];
    block.extend_from_slice(b"/never");
    block.extend_from_slice(&[0x41, u8::try_from(HOST.len()).unwrap()]);
    block.extend_from_slice(HOST.as_bytes());
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_cancelled_without_end_end_the_connection() {
    let (address, asked) = counted().await;
    let rig = rig(address, None);
    let (mut read, mut write) = rig.connect().await.into_split();
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let reads = tokio::spawn(async move {
        let mut answer = Vec::new();
        let _ = read.read_to_end(&mut answer).await;
        end.store(true, Ordering::SeqCst);
        answer
    });
    write.write_all(&preface()).await.unwrap();
    // Each round is cancelled only when all of it is at the backend.
    for round in 0..40_u32 {
        let streams = (0..50).map(|n| 2 * (50 * round + n) + 1);
        let requests: Vec<u8> = streams
            .clone()
            .flat_map(|id| request(id, END_STREAM))
            .collect();
        let resets: Vec<u8> = streams.flat_map(reset).collect();
        let sent = 50 * (usize::try_from(round).unwrap() + 1);
        if write.write_all(&requests).await.is_err() {
            break;
        }
        let over = || ended.load(Ordering::SeqCst);
        wait("requests at the backend", || {
            asked.load(Ordering::SeqCst) >= sent || over()
        })
        .await;
        if over() || write.write_all(&resets).await.is_err() {
            break;
        }
    }
    let answer = within("the end", reads).await.unwrap();
    assert_eq!(goaway(&answer), Some(ENHANCE_YOUR_CALM));
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 1000, "{asked} requests reached the backend");
    rig.wait_closed(CloseReason::TooManyCancels, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_cancels_half_of_its_requests_is_still_served() {
    let (address, asked) = counted().await;
    let rig = rig(address, Some(20));
    let io = TokioIo::new(rig.connect().await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = |path: &str| {
        let uri = format!("http://{HOST}{path}");
        Request::get(uri).body(Empty::<Bytes>::new()).unwrap()
    };
    for round in 0..100 {
        let (mut sender_too, never) = (sender.clone(), request("/never"));
        let cancelled = tokio::spawn(async move { sender_too.send_request(never).await });
        let at_backend = || asked.load(Ordering::SeqCst) == 2 * round + 1;
        wait("a request at the backend", at_backend).await;
        cancelled.abort();
        let answer = within("an answer", sender.send_request(request("/")))
            .await
            .unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&*body, b"whole");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_ask_for_nothing_end_the_connection() {
    let (address, asked) = counted().await;
    let many = |frame: &[u8]| frame.repeat(usize::try_from(MANY).unwrap());
    let all = [
        // By the proxy.
        (
            "PING",
            many(&frame(6, 0, 0, &[0; 8])),
            Some(CloseReason::TooManyFrames),
        ),
        (
            "SETTINGS",
            many(&frame(SETTINGS, 0, 0, b"")),
            Some(CloseReason::TooManyFrames),
        ),
        (
            "PRIORITY",
            many(&frame(2, 0, 1, &[0, 0, 0, 0, 1])),
            Some(CloseReason::TooManyFrames),
        ),
        (
            "WINDOW_UPDATE",
            many(&frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
            Some(CloseReason::TooManyFrames),
        ),
        (
            "unknown frames",
            many(&frame(0xbe, 0, 0, b"")),
            Some(CloseReason::TooManyFrames),
        ),
        (
            "HEADERS of a stream that the proxy has reset",
            // Trailers without END_STREAM are an error of the stream.
            [
                request(1, 0),
                many(&frame(HEADERS, END_HEADERS, 1, &[0x40, 1, b'x', 1, b'y'])),
            ]
            .concat(),
            Some(CloseReason::TooManyFrames),
        ),
        // By h2.
        (
            "empty DATA",
            [request(1, 0), many(&frame(0, 0, 1, b""))].concat(),
            Some(CloseReason::HttpError),
        ),
        (
            "DATA of padding alone",
            [request(1, 0), many(&frame(0, 8, 1, &[3, 0, 0, 0]))].concat(),
            Some(CloseReason::HttpError),
        ),
        (
            "CONTINUATION",
            [frame(HEADERS, 0, 1, b""), many(&frame(9, 0, 1, b""))].concat(),
            Some(CloseReason::HttpError),
        ),
        // Whichever of the two is first: windows that overflow have the proxy reset the requests.
        (
            "resets that the client provokes",
            (0..MANY / 10)
                .flat_map(|n| {
                    let stream = 2 * n + 1;
                    let window = frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes());
                    [request(stream, END_STREAM), window].concat()
                })
                .collect(),
            None,
        ),
    ];
    for (what, flood, reason) in all {
        let rig = rig(address, None);
        let (mut read, mut write) = rig.connect().await.into_split();
        let all = [preface(), flood].concat();
        let sends = tokio::spawn(async move {
            let sent = write.write_all(&all).await;
            (write, sent.is_ok())
        });
        let mut answer = Vec::new();
        let _ = within(what, read.read_to_end(&mut answer)).await;
        assert_eq!(goaway(&answer), Some(ENHANCE_YOUR_CALM), "{what}");
        let _ = sends.await;
        match reason {
            Some(reason) => rig.wait_closed(reason, 1).await,
            None => wait(what, || rig.plane.active() == 0).await,
        }
    }
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 1000, "{asked} requests reached the backend");
}

/// A backend that answers the first request of each connection with these frames, again and again, with the number of
/// bytes that it could send.
async fn flooding(frames: Vec<u8>) -> (SocketAddr, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let address = serve(move |stream: TcpStream| {
        let (all, sent) = (frames.repeat(1000), Arc::clone(&count));
        async move {
            let (mut read, mut write) = stream.into_split();
            let _ = write.write_all(&frame(SETTINGS, 0, 0, b"")).await;
            let mut bytes = vec![0; 4096];
            let mut got = Vec::new();
            let asks = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"");
            while !got.windows(6).any(|at| at == &asks[3..]) {
                match read.read(&mut bytes).await {
                    Ok(length @ 1..) => got.extend_from_slice(&bytes[..length]),
                    _ => return,
                }
            }
            // What the proxy answers is read, so that it can go on.
            let reads =
                tokio::spawn(async move { while let Ok(1..) = read.read(&mut bytes).await {} });
            sent.fetch_add(1, Ordering::SeqCst);
            while write.write_all(&all).await.is_ok() {
                sent.fetch_add(all.len(), Ordering::SeqCst);
            }
            let _ = reads.await;
        }
    })
    .await;
    (address, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_backend_that_serve_no_request_end_its_connection() {
    for (what, frames) in [
        ("PING", frame(6, 0, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, b"")),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        (
            "WINDOW_UPDATE",
            frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        ),
        ("unknown frames", frame(0xbe, 0, 0, b"")),
        // `:status: 103`
        (
            "interim heads",
            frame(HEADERS, END_HEADERS, 1, &[0x08, 3, b'1', b'0', b'3']),
        ),
    ] {
        let (address, sent) = flooding(frames).await;
        let rig = rig_of_h2c(address);
        let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 0");
        assert_eq!(ask(&rig, &head, "").await.status, 502, "{what}");
        is_ended(what, &rig, &sent).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_goes_on_for_a_request_that_is_gone_is_ended() {
    // `:status: 103`. Of bodies, h2 itself bounds what comes without a window and without data.
    let early = frame(HEADERS, END_HEADERS, 1, &[0x08, 3, b'1', b'0', b'3']);
    let (address, sent) = flooding(early).await;
    let rig = rig_of_h2c(address);
    let mut client = rig.connect().await;
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 0\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    wait("the request", || sent.load(Ordering::SeqCst) > 0).await;
    drop(client);
    is_ended("interim heads", &rig, &sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_gets_on_ends_its_connection() {
    for (what, begins, goes_on) in [
        ("digits", "", "0"),
        ("spaces", "5", " "),
        ("extensions", "5;", "x"),
        ("trailers", "0\r\n", "a: b\r\n"),
    ] {
        let begins = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{begins}");
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let address = serve(move |mut stream: TcpStream| {
            let (begins, all, sent) = (begins.clone(), goes_on.repeat(10_000), Arc::clone(&count));
            async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(begins.as_bytes()).await;
                while stream.write_all(all.as_bytes()).await.is_ok() {
                    sent.fetch_add(all.len(), Ordering::SeqCst);
                }
            }
        })
        .await;
        let rig = rig(address, None);
        let mut client = rig.connect().await;
        let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let _ = read_to_end(&mut client).await;
        // The reader of chunks itself bounds these two.
        if ["extensions", "trailers"].contains(&what) {
            let ended = || rig.plane.active() == 0;
            wait(what, ended).await;
        } else {
            is_ended(what, &rig, &sent).await;
        }
    }
}

fn rig_of_h2c(address: SocketAddr) -> Rig {
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], proto::BackendProtocol::H2c),
        ]
    })
}

/// Waits until the proxy has given up the only connection to its backend, after a bounded number of bytes.
async fn is_ended(what: &str, rig: &Rig, sent: &AtomicUsize) {
    rig.wait_backend_given_up().await;
    let sent = sent.load(Ordering::SeqCst);
    // With what waits in the two sockets.
    assert!(sent < 16 * 1024 * 1024, "{what}: {sent} bytes");
}
