//! Where requests and answers end, in front of backends and clients on loopback: what is cut off never looks complete,
//! and what two readers could measure differently has one length or is refused.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;
use vestibule_test_support::frames::{
    END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame, preface,
};

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

fn rig(address: SocketAddr, protocol: BackendProtocol) -> Rig {
    rig_with(&quiet(), address, protocol)
}

fn rig_with(limits: &ProxyLimits, address: SocketAddr, protocol: BackendProtocol) -> Rig {
    Rig::start(limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], protocol),
        ]
    })
}

async fn client(rig: &Rig) -> http2::SendRequest<Full<Bytes>> {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The answer to a request of HTTP/2: its status, its lengths and its body, if that comes whole.
async fn two(
    rig: &Rig,
    request: Request<Full<Bytes>>,
) -> (StatusCode, Vec<String>, Option<String>) {
    let mut sender = client(rig).await;
    let answer = within("an answer", sender.send_request(request)).await;
    let answer = answer.unwrap();
    let lengths = answer.headers().get_all("content-length").iter();
    let lengths = lengths.map(|length| length.to_str().unwrap().to_owned());
    let (status, lengths) = (answer.status(), lengths.collect());
    let body = within("the body", answer.into_body().collect()).await.ok();
    let text = body.map(|body| String::from_utf8(body.to_bytes().to_vec()).unwrap());
    (status, lengths, text)
}

fn request(method: Method, host: &str, body: &'static str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from_static(body.as_bytes()));
    let uri = format!("http://{host}/");
    let request = Request::builder().method(method).uri(uri);
    request.body(body).unwrap()
}

/// Reads the head of a request, and `more` bytes.
async fn read_head(stream: &mut TcpStream, more: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.ok()?);
    }
    let mut body = vec![0; more];
    stream.read_exact(&mut body).await.ok()?;
    bytes.extend(body);
    Some(String::from_utf8(bytes).unwrap())
}

/// A backend of HTTP/1.1 that gives each request the same answer, and then ends the connection.
async fn saying(answer: &'static str) -> SocketAddr {
    serve(move |mut stream| async move {
        if read_head(&mut stream, 0).await.is_some() {
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await
}

/// A backend of HTTP/1.1 that reports each request, with `more` bytes of its body.
async fn reporting(more: usize) -> (SocketAddr, mpsc::Receiver<String>) {
    let (report, reports) = mpsc::channel(8);
    let address = serve(move |mut stream| {
        let report = report.clone();
        async move {
            while let Some(request) = read_head(&mut stream, more).await {
                report.send(request).await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                let _ = stream.write_all(answer).await;
            }
        }
    })
    .await;
    (address, reports)
}

/// Begins an upload, and resets it with `NO_ERROR` when the answer is there.
async fn reset_upload(rig: &Rig) {
    let (sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let request = Request::post(format!("http://{HOST}/")).body(()).unwrap();
    let (answer, mut upload) = sender.send_request(request, false).unwrap();
    upload
        .send_data(Bytes::from_static(b"hello"), false)
        .unwrap();
    assert_eq!(within("an answer", answer).await.unwrap().status(), 200);
    upload.send_reset(h2::Reason::NO_ERROR);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_reset_does_not_look_complete() {
    // HTTP/1.1: the backend answers before the request has ended, and reports all that came.
    let (report, mut reports) = mpsc::channel(1);
    let address = serve(move |mut stream| {
        let report = report.clone();
        async move {
            let chunk = "5\r\nhello\r\n";
            let mut all = read_head(&mut stream, chunk.len()).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            let _ = stream.read_to_string(&mut all).await;
            report.send(all).await.unwrap();
        }
    })
    .await;
    let one = rig(address, BackendProtocol::Unspecified);
    reset_upload(&one).await;
    let got = within("the end of the upload", reports.recv())
        .await
        .unwrap();
    assert!(got.ends_with("\r\n\r\n5\r\nhello\r\n"), "{got}");

    // HTTP/2.
    let (report, mut reports) = mpsc::channel(1);
    let address = serve(move |stream| {
        let report = report.clone();
        serve_http(stream, true, move |request: Request<Incoming>| {
            let report = report.clone();
            tokio::spawn(async move {
                let whole = request.into_body().collect().await.is_ok();
                report.send(whole).await.unwrap();
            });
            std::future::ready(hyper::Response::new(Empty::<Bytes>::new()))
        })
    })
    .await;
    let two = rig(address, BackendProtocol::H2c);
    reset_upload(&two).await;
    let whole = within("the end of the upload", reports.recv()).await;
    assert_eq!(whole, Some(false));
}

/// A backend of HTTP/2 whose answers end with a reset of `NO_ERROR`. `whole` says whether they are complete before.
async fn resetting(whole: bool) -> SocketAddr {
    serve(move |stream: TcpStream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut answer))) = connection.accept().await {
            let head = hyper::Response::new(());
            let mut body = answer.send_response(head, false).unwrap();
            body.send_data(Bytes::from_static(b"hello"), whole).unwrap();
            // h2 forgets what waits to be sent when it resets a stream, so the connection is driven in between. A
            // complete answer resets by itself, since nobody reads the rest of the request.
            if !whole {
                let flushed = std::future::poll_fn(|cx| {
                    let _ = connection.poll_closed(cx);
                    std::task::Poll::Ready(())
                });
                flushed.await;
                answer.send_reset(h2::Reason::NO_ERROR);
            }
            drop(request);
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_reset_does_not_look_complete() {
    let rig = rig(resetting(false).await, BackendProtocol::H2c);
    let mut stream = rig.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut got)).await;
    let got = String::from_utf8(got).unwrap();
    // Its head may not be on its way yet when the reset comes.
    assert!(!got.ends_with("0\r\n\r\n"), "{got}");
    let mut sender = client(&rig).await;
    let whole = async {
        let answer = sender.send_request(request(Method::GET, HOST, "")).await;
        answer?.into_body().collect().await
    };
    assert!(within("the end", whole).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_the_request_is_complete() {
    let rig = rig(resetting(true).await, BackendProtocol::H2c);
    let mut stream = rig.connect().await;
    // The rest of this body never comes.
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 10\r\n\r\nbegin");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    let read = async {
        while !got.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n") {
            got.push(char::from(stream.read_u8().await.unwrap()));
        }
    };
    within("the answer", read).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_the_request_is_read_from_a_connection_that_was_reset() {
    // They close with a part of the request unread, so TCP resets the connection.
    let one = saying("HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge").await;
    let two = serve(|mut stream: TcpStream| async move {
        // A part of the body is among them.
        let mut begin = [0; 2000];
        stream.read_exact(&mut begin).await.unwrap();
        stream.write_all(LARGE).await.unwrap();
    })
    .await;
    uploads_are_answered(&rig(one, BackendProtocol::Unspecified)).await;
    uploads_are_answered(&rig(two, BackendProtocol::H2c)).await;
}

/// The frames of HTTP/2 for the status 413, a length of 5, and as many bytes.
const LARGE: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0\
    \0\0\x09\x01\x04\0\0\0\x01\x08\x03413\x0f\x0d\x015\
    \0\0\x05\0\x01\0\0\0\x01large";

/// Sends uploads that are refused before they are complete.
async fn uploads_are_answered(rig: &Rig) {
    let body = "x".repeat(1_000_000);
    let chunked = format!("{:x}\r\n{body}\r\n", body.len());
    // Whether a write fails before the answer is read is chance.
    for _ in 0..20 {
        for (framing, body) in [
            ("content-length: 9000000", &body),
            ("transfer-encoding: chunked", &chunked),
        ] {
            let (mut read, mut write) = rig.connect().await.into_split();
            let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\n{framing}\r\n\r\n");
            let send = async {
                write.write_all(head.as_bytes()).await?;
                write.write_all(body.as_bytes()).await
            };
            // The proxy may end the connection before all of it is sent.
            let (answer, _) = tokio::join!(one_answer(&mut read), send);
            let answer = answer.unwrap();
            let got = (answer.status, &*answer.body);
            assert_eq!(got, (413, "large"), "{framing}");
        }
    }
}

/// A backend of HTTP/1.1 that answers each request at once, and then reads its body and reports how long it was.
async fn hasty() -> (SocketAddr, mpsc::Receiver<usize>) {
    let (report, reports) = mpsc::channel(8);
    let address = serve(move |mut stream| {
        let report = report.clone();
        async move {
            while let Some(head) = read_head(&mut stream, 0).await {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                let _ = stream.write_all(answer).await;
                let mut lines = head.lines();
                let length = lines.find_map(|line| line.strip_prefix("content-length: "));
                let length = length.map_or(0, |length| length.parse().unwrap());
                if stream.read_exact(&mut vec![0; length]).await.is_ok() {
                    report.send(length).await.unwrap();
                }
            }
        }
    })
    .await;
    (address, reports)
}

/// The connection is not idle meanwhile, so neither the time for idle ones nor the return of its buffers ends it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_may_outlast_its_answer() {
    const PIECE: usize = 1000;
    const PAUSE: Duration = Duration::from_millis(1200);
    let limits = ProxyLimits {
        http: HttpLimits {
            idle: Duration::from_millis(1500),
            ..HttpLimits::default()
        },
        ..quiet()
    };
    let (address, mut reports) = hasty().await;
    let rig = rig_with(&limits, address, BackendProtocol::Unspecified);
    let mut stream = rig.connect().await;
    let length = 3 * PIECE;
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; PIECE]).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().body, "ok");
    for _ in 0..2 {
        tokio::time::sleep(PAUSE).await;
        stream.write_all(&[b'x'; PIECE]).await.unwrap();
    }
    assert_eq!(within("the body", reports.recv()).await, Some(length));
    // No answer has announced an end, so the next request is served.
    let next = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(next.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().body, "ok");
    assert_eq!(within("no body", reports.recv()).await, Some(0));

    // The same in HTTP/2.
    let (sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{HOST}/");
    let mut sender = sender.ready().await.unwrap();
    let post = Request::post(&uri).header("content-length", length);
    let (answer, mut upload) = sender.send_request(post.body(()).unwrap(), false).unwrap();
    let piece = Bytes::from(vec![b'x'; PIECE]);
    upload.send_data(piece.clone(), false).unwrap();
    let mut body = within("an answer", answer).await.unwrap().into_body();
    while let Some(read) = within("the answer", body.data()).await {
        read.unwrap();
    }
    for ends in [false, true] {
        tokio::time::sleep(PAUSE).await;
        upload.send_data(piece.clone(), ends).unwrap();
    }
    assert_eq!(within("the body", reports.recv()).await, Some(length));
    let mut sender = sender.ready().await.unwrap();
    let get = Request::get(&uri).body(()).unwrap();
    let (answer, _) = sender.send_request(get, true).unwrap();
    assert_eq!(within("an answer", answer).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_one_length() {
    for (head, length, body) in [
        // The chunks count (RFC 9112 section 6.3).
        (
            "200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            None,
            "hello",
        ),
        (
            "200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            Some("5"),
            "hello",
        ),
        (
            "200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
            Some("5"),
            "hello",
        ),
        ("204 No Content\r\ncontent-length: 5\r\n\r\n", None, ""),
    ] {
        let answer = format!("HTTP/1.1 {head}");
        let rig = rig(saying(answer.leak()).await, BackendProtocol::Unspecified);
        let got = get(&rig, HOST, "/").await;
        let lengths: Vec<_> = got.headers("content-length").collect();
        assert_eq!(lengths, Vec::from_iter(length), "{head}");
        assert!(got.body.contains(body), "{head}: {}", got.body);
        let (_, lengths, got) = two(&rig, request(Method::GET, HOST, "")).await;
        assert_eq!(lengths, Vec::from_iter(length), "{head}");
        assert_eq!(got.as_deref(), Some(body), "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_a_coding_that_the_proxy_does_not_know_is_refused() {
    for coding in [
        "gzip, chunked",
        "gzip\r\ntransfer-encoding: chunked",
        "chunked, chunked",
        "gzip",
        "",
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        );
        let rig = rig(saying(answer.leak()).await, BackendProtocol::Unspecified);
        let got = get(&rig, HOST, "/").await;
        assert_eq!(got.status, 502, "{coding}");
        // The backend is well, and would say the same again.
        assert_eq!(rig.plane.metrics.requests_repeated.get(), 0, "{coding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_length() {
    let (address, mut reports) = reporting("hello".len()).await;
    let plain = rig(address, BackendProtocol::Unspecified);
    let mut twice = request(Method::PUT, HOST, "hello");
    for _ in 0..2 {
        twice
            .headers_mut()
            .append("content-length", "5".parse().unwrap());
    }
    assert_eq!(two(&plain, twice).await.0, StatusCode::OK);
    let got = reports.recv().await.unwrap();
    assert_eq!(got.matches("content-length: 5\r\n").count(), 1, "{got}");

    // A method that may have a body says that there is none.
    let (address, mut reports) = reporting(0).await;
    let plain = rig(address, BackendProtocol::Unspecified);
    for (method, is_said) in [(Method::POST, true), (Method::GET, false)] {
        let head = format!("{method} / HTTP/1.1\r\nhost: {HOST}");
        assert_eq!(ask(&plain, &head, "").await.status, 200);
        let got = reports.recv().await.unwrap();
        assert_eq!(got.contains("\r\ncontent-length: 0\r\n"), is_said, "{got}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_proxy_to_head_has_no_body() {
    let rig = rig(nobody(), BackendProtocol::Unspecified);
    let nowhere = |method| request(method, "nowhere.example.com", "");
    let (status, of_get, body) = two(&rig, nowhere(Method::GET)).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(of_get, [body.unwrap().len().to_string()]);
    // A body would be an error of the stream.
    let (status, of_head, body) = two(&rig, nowhere(Method::HEAD)).await;
    assert_eq!((status, body.as_deref()), (StatusCode::NOT_FOUND, Some("")));
    assert_eq!(of_head, of_get);
    let head = "HEAD / HTTP/1.1\r\nhost: nowhere.example.com";
    let answer = ask(&rig, head, "").await;
    assert_eq!((answer.status, &*answer.body), (404, ""));
    assert_eq!(answer.header("content-length"), Some(&*of_get[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_has_a_path() {
    let echo = Echo::start("one").await;
    let rig = rig(echo.address, BackendProtocol::Unspecified);
    for (line, seen) in [
        (format!("GET {HOST} HTTP/1.1"), None),
        ("GET * HTTP/1.1".into(), None),
        ("GET ?a HTTP/1.1".into(), None),
        ("OPTIONS * HTTP/1.1".into(), Some("OPTIONS * HTTP/1.1\n")),
        (
            format!("OPTIONS http://{HOST} HTTP/1.1"),
            Some("OPTIONS / HTTP/1.1\n"),
        ),
        (
            format!("OPTIONS http://{HOST}/ HTTP/1.1"),
            Some("OPTIONS / HTTP/1.1\n"),
        ),
        (
            format!("OPTIONS http://{HOST}?x HTTP/1.1"),
            Some("OPTIONS /?x HTTP/1.1\n"),
        ),
        (
            format!("GET http://{HOST} HTTP/1.1"),
            Some("GET / HTTP/1.1\n"),
        ),
        (
            format!("GET http://{HOST}?x HTTP/1.1"),
            Some("GET /?x HTTP/1.1\n"),
        ),
    ] {
        let answer = ask(&rig, &format!("{line}\r\nhost: {HOST}"), "").await;
        let status = if seen.is_some() { 200 } else { 400 };
        assert_eq!(answer.status, status, "{line}");
        let seen = seen.unwrap_or_default();
        assert!(answer.body.starts_with(seen), "{line}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_and_its_host_field_may_differ_by_the_default_port() {
    let echo = Echo::start("one").await;
    let rig = rig(echo.address, BackendProtocol::Unspecified);
    for (target, field, status) in [
        (format!("{HOST}:80"), HOST.to_owned(), 200),
        (HOST.to_owned(), format!("{HOST}:80"), 200),
        (format!("{HOST}:8080"), HOST.to_owned(), 400),
        (format!("{HOST}:80"), "b.example.com".to_owned(), 400),
    ] {
        let head = format!("GET http://{target}/ HTTP/1.1\r\nhost: {field}");
        let answer = ask(&rig, &head, "").await;
        assert_eq!(answer.status, status, "{head}");
        if status == 200 {
            // The target counts (RFC 9112 section 3.2.2).
            assert_eq!(answer.echoed("host"), Some(target));
        }
    }
}

/// hyper leaves the length out in HTTP/1.1, where it is optional (RFC 9110 section 8.6).
#[tokio::test(flavor = "multi_thread")]
async fn a_304_has_its_length_in_http_2_alone() {
    let answer = "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n";
    let rig = rig(saying(answer).await, BackendProtocol::Unspecified);
    let got = get(&rig, HOST, "/").await;
    assert_eq!((got.status, got.header("content-length")), (304, None));
    let (status, lengths, body) = two(&rig, request(Method::GET, HOST, "")).await;
    assert_eq!(status, StatusCode::NOT_MODIFIED);
    assert_eq!(lengths, ["5"]);
    assert_eq!(body.as_deref(), Some(""));
}

/// The first byte of the fields that answer a request of HTTP/2. It is an index for the common statuses (RFC 7541
/// appendix A). It is 0 if h2 itself refuses the request and resets the stream. hyper's client could not write these
/// requests.
async fn raw_two(rig: &Rig, method: &str, path: &[u8]) -> u8 {
    let mut stream = rig.connect().await;
    let mut block = vec![0x86];
    for (name, value) in [(2, method.as_bytes()), (4, path), (1, HOST.as_bytes())] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value);
    }
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block);
    let bytes = [preface(), request].concat();
    stream.write_all(&bytes).await.unwrap();
    loop {
        let mut head = [0; 9];
        within("a frame", stream.read_exact(&mut head))
            .await
            .unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length.try_into().unwrap()];
        within("its payload", stream.read_exact(&mut payload))
            .await
            .unwrap();
        match head[3] {
            HEADERS => return payload[0],
            RST_STREAM => return 0,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_http2_has_the_method_and_the_path_that_http1_allows() {
    const OK: u8 = 0x88;
    const BAD_REQUEST: u8 = 0x8c;
    const RESET: u8 = 0;
    let (most, more) = ("M".repeat(32), "M".repeat(33));
    for two in [false, true] {
        let (echo, protocol) = if two {
            (Echo::h2c("two").await, BackendProtocol::H2c)
        } else {
            (Echo::start("one").await, BackendProtocol::Unspecified)
        };
        let rig = rig(echo.address, protocol);
        let mut served = 0;
        for (method, path, is_served) in [
            ("GET", "/", true),
            ("GET", "/x?y", true),
            ("GET", "/%C3%A4", true),
            ("GET", "#a", false),
            ("GET", "?a", false),
            ("GET", "a", false),
            ("GET", "*", false),
            ("GET", "/\u{e4}", false),
            ("GET", "/?\u{9b}\u{2028}", false),
            (&*most, "/", true),
            (&*more, "/", false),
        ] {
            let got = raw_two(&rig, method, path.as_bytes()).await;
            let fits = match got {
                OK => is_served,
                BAD_REQUEST | RESET => !is_served,
                _ => false,
            };
            assert!(fits, "{method} {path}: {got:x}");
            served += usize::from(is_served);
        }
        assert_eq!(echo.requests(), served);
    }
}
