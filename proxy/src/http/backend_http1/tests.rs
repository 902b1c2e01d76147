use std::convert::Infallible;

use futures::SinkExt;
use futures::channel::mpsc;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::*;

type Fields = Vec<(String, String)>;

/// What a client gets: the status, the fields, the content, the trailers.
type Got = Result<(u16, Fields, Vec<u8>, Fields), ()>;

fn fields(of: &hyper::HeaderMap) -> Fields {
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut all: Fields = of
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect();
    all.sort();
    all
}

async fn taken<B: Body<Data = Bytes> + Unpin>(response: Response<B>) -> Got {
    let (head, mut body) = response.into_parts();
    let (mut content, mut trailers) = (Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| ())?.into_data() {
            Ok(data) => content.extend_from_slice(&data),
            Err(frame) => trailers = fields(&frame.into_trailers().unwrap_or_default()),
        }
    }
    Ok((
        head.status.as_u16(),
        fields(&head.headers),
        content,
        trailers,
    ))
}

fn request(method: &Method) -> Request<Empty<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri("/")
        .header("host", "a");
    request.body(Empty::new()).unwrap()
}

/// A server that answers the first request with these bytes, in pieces of `size`, and closes.
async fn answers(mut far: DuplexStream, bytes: Vec<u8>, size: usize) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if far.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    for piece in bytes.chunks(size) {
        if far.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// What this client makes of an answer, and whether another request could follow.
async fn ours(bytes: &[u8], size: usize, method: &Method) -> (Got, bool) {
    let (near, far) = duplex(100_000);
    let server = tokio::spawn(answers(far, bytes.to_vec(), size));
    let mut connection = Http1Backend::<_, Empty<Bytes>>::new(near, None);
    let got = match connection.send(request(method), SCRATCH).await {
        Ok(response) => taken(response).await,
        Err(_) => Err(()),
    };
    let is_reusable = connection.is_reusable();
    drop(connection);
    server.await.unwrap();
    (got, is_reusable)
}

/// What hyper's client makes of it.
async fn hypers(bytes: &[u8], method: &Method) -> Got {
    let (near, far) = duplex(100_000);
    let server = tokio::spawn(answers(far, bytes.to_vec(), usize::MAX));
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(near));
    let (mut sender, connection) = handshake.await.unwrap();
    let driver = tokio::spawn(connection);
    let got = match sender.send_request(request(method)).await {
        Ok(response) => taken(response).await,
        Err(_) => Err(()),
    };
    driver.abort();
    server.abort();
    got
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

/// Checks an answer in pieces of several sizes, and against hyper.
fn check(bytes: &[u8], method: &Method) -> (Got, bool) {
    block_on(async {
        let whole = ours(bytes, usize::MAX, method).await;
        let text = String::from_utf8_lossy(bytes);
        for size in [1, 2, 3, 7, 64] {
            // Whether another request may follow depends on whether bytes behind the end came with it.
            let (got, _) = ours(bytes, size, method).await;
            assert_eq!(got, whole.0, "{size} of {text:?}");
        }
        if let Ok((status, mut fields, content, trailers)) = whole.0.clone() {
            // hyper leaves this one as it came, in whatever form, and beside chunks.
            let is_other = |field: &(String, String)| field.0 != "content-length";
            fields.retain(is_other);
            let mut hypers = hypers(bytes, method).await;
            if let Ok((_, fields, ..)) = &mut hypers {
                fields.retain(is_other);
            }
            assert_eq!(hypers, Ok((status, fields, content, trailers)), "{text:?}");
        }
        whole
    })
}

#[test]
fn a_response_ends_where_its_head_says() {
    let get = Method::GET;
    for (answer, content, follows) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "ok", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "", true),
        ("HTTP/1.1 204 None\r\n\r\n", "", true),
        ("HTTP/1.1 304 None\r\ncontent-length: 9\r\n\r\n", "", true),
        (
            "HTTP/1.1 200 OK\r\n\r\nuntil the end",
            "until the end",
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: a, Close\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "ok",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n1;a=b\r\no\r\n01 \r\nk\r\n0;c\r\nx: y\r\n\r\n",
            "ok",
            true,
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
        ),
        (
            "\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
        ),
        // Two statements of the length, one of which counts.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "ok",
            false,
        ),
        // Bytes behind the end belong to no response.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nsmugg",
            "ok",
            false,
        ),
        ("HTTP/1.1 204 None\r\n\r\nbody", "", false),
    ] {
        let (got, follow) = block_on(ours(answer.as_bytes(), usize::MAX, &get));
        let got = got.map(|(_, _, content, _)| String::from_utf8(content).unwrap());
        assert_eq!(
            (got, follow),
            (Ok(content.to_owned()), follows),
            "{answer:?}"
        );
        // With the bytes behind the end in a piece of their own, nobody reads them before the connection is looked at.
        if follows {
            let (checked, _) = check(answer.as_bytes(), &get);
            assert!(checked.is_ok());
        }
    }
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n";
    let (got, follows) = check(head, &Method::HEAD);
    assert_eq!(
        got.unwrap().1,
        [("content-length".to_owned(), "1000".to_owned())]
    );
    assert!(follows);
}

#[test]
fn a_response_whose_end_nobody_knows_is_refused() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no",
        "HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nno field\r\n\r\n",
        "HTTP/1.1 200 OK\r\nfolded: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nname : value\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 099 Low\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "",
    ] {
        assert_eq!(
            check(answer.as_bytes(), &Method::GET),
            (Err(()), false),
            "{answer:?}"
        );
    }
}

#[test]
fn chunks_before_a_wrong_one_are_content() {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let (chunks, wrong) = (b"5\r\nhello\r\n1\r\n!\r\n", b"no size\r\n");
    let bytes = [&head[..], chunks, wrong].concat();
    for size in 1..bytes.len() {
        let mut reader = ResponseReader::default();
        let (mut content, mut has_begun, mut has_failed) = (Vec::new(), false, false);
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            if has_begun {
                match reader.body(&mut piece) {
                    Ok(count) => content.extend_from_slice(&piece[..count]),
                    Err(_) => has_failed = true,
                }
            } else if let Some(begun) = reader.head(&mut piece).unwrap() {
                content.extend_from_slice(&begun.first);
                has_begun = true;
            }
            has_failed |= reader.check().is_err();
            if has_failed {
                break;
            }
        }
        assert_eq!((content, has_failed), (b"hello!".to_vec(), true), "{size}");
        assert!(!reader.lets_another_follow());
    }
}

#[test]
fn a_head_and_trailers_have_an_end() {
    let endless = |before: &str| {
        let mut bytes = before.as_bytes().to_vec();
        bytes.extend(std::iter::repeat_n(b'a', 100_000));
        bytes.extend_from_slice(b"\r\n\r\n");
        let (got, _) = block_on(ours(&bytes, 1000, &Method::GET));
        assert_eq!(got, Err(()), "{before:?}");
    };
    endless("HTTP/1.1 200 OK\r\na: ");
    endless("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: ");
    endless("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;");
    let many = "a: b\r\n".repeat(101);
    let (got, _) = block_on(ours(
        format!("HTTP/1.1 204 None\r\n{many}\r\n").as_bytes(),
        usize::MAX,
        &Method::GET,
    ));
    assert_eq!(got, Err(()));
}

/// Lines that say something about the end of a body, rightly or not, and others.
fn line() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "content-length: 5",
        "content-length: 5, 5",
        "Content-Length:5",
        "content-length: 05",
        "content-length: 7",
        "content-length: five",
        "transfer-encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "transfer-encoding: chunked, gzip",
        "transfer-encoding: identity",
        "connection: close",
        "connection: keep-alive",
        "trailer: x",
        "x: y",
        "x:",
        "x: \u{e4}",
    ]);
    prop_oneof![8 => fixed.prop_map(str::to_owned), 1 => "[ -~]{0,20}"]
}

fn body() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "hello",
        "hello and more",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;ext=\"a\"\r\nhello\r\n0\r\nx: y\r\n\r\n",
        "2\r\nhe\r\n003\r\nllo\r\n00\r\n\r\n",
        "5\r\nhello\r\n",
        "5\r\nhello0\r\n\r\n",
        "5 \r\nhello\r\n0 \r\n\r\n",
        "",
    ]);
    prop_oneof![4 => fixed.prop_map(str::to_owned), 1 => "[0-9a-f\r\n; hello]{0,30}"]
}

/// An answer in which some bytes may be others, or missing, or there twice.
fn answer() -> impl Strategy<Value = Vec<u8>> {
    let first = prop::sample::select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204 ",
        "HTTP/1.1 304",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
        "\r\nHTTP/1.1 500 \u{e4}",
    ]);
    let lines = prop::collection::vec(line(), 0..4);
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    let changes = prop::collection::vec(change, 0..2);
    (first, lines, body(), changes).prop_map(|(first, lines, body, changes)| {
        let mut bytes = first.as_bytes().to_vec();
        for line in lines {
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(line.as_bytes());
        }
        bytes.extend_from_slice(b"\r\n\r\n");
        bytes.extend_from_slice(body.as_bytes());
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(keep_failures_with_cases(2000))]

    /// What this client takes for a response, hyper takes for the same one.
    #[test]
    fn nothing_is_read_otherwise_than_hyper_does(answer in answer(), is_head in any::<bool>()) {
        let method = if is_head { Method::HEAD } else { Method::GET };
        let _checked = check(&answer, &method);
    }
}

/// A connection, and its other end.
fn connected<B: RequestBody>() -> (Http1Backend<DuplexStream, B>, DuplexStream) {
    let (near, far) = duplex(64);
    (Http1Backend::new(near, None), far)
}

/// Sends a request, and answers it with these bytes as soon as its head is there.
async fn answered<B: RequestBody>(
    connection: &mut Http1Backend<DuplexStream, B>,
    far: &mut DuplexStream,
    request: Request<B>,
    answer: &str,
) -> Response<Http1Answer<DuplexStream, B>> {
    let server = async {
        read_until(far, b"\r\n\r\n").await;
        far.write_all(answer.as_bytes()).await.unwrap();
    };
    let (response, ()) = tokio::join!(connection.send(request, SCRATCH), server);
    response.map_err(|failed| failed.error).unwrap()
}

async fn read_until(far: &mut DuplexStream, end: &[u8]) -> String {
    let mut all = Vec::new();
    while !all.ends_with(end) {
        assert_ne!(far.read_buf(&mut all).await.unwrap(), 0);
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn a_connection_has_one_request_after_the_other() {
    let (mut connection, mut far) = connected();
    for number in 0..3 {
        assert!(connection.is_open());
        let body = Full::new(Bytes::from(format!("body {number}")));
        let request = Request::put("/a?b").header("host", "h").body(body).unwrap();
        let server = async {
            let request = read_until(&mut far, format!("body {number}").as_bytes()).await;
            let head = "PUT /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 6\r\n\r\n";
            assert_eq!(request, format!("{head}body {number}"));
            let answer = b"HTTP/1.1 200 Fine\r\ncontent-length: 2\r\n\r\nok";
            far.write_all(answer).await.unwrap();
        };
        let (response, ()) = tokio::join!(connection.send(request, SCRATCH), server);
        let response = response.map_err(|failed| failed.error).unwrap();
        let reason = response.extensions().get::<hyper::ext::ReasonPhrase>();
        assert_eq!(reason.unwrap().as_bytes(), b"Fine");
        assert_eq!(taken(response).await.unwrap().2, b"ok");
        assert!(connection.is_reusable());
    }
    // What comes without a request is no answer.
    far.write_all(b"HTTP/1.1 408 Late\r\n\r\n").await.unwrap();
    assert!(!connection.is_open());
}

#[tokio::test]
async fn a_connection_that_has_ended_is_not_open() {
    let (connection, far) = connected::<Empty<Bytes>>();
    assert!(connection.is_open());
    drop(far);
    poll_fn(|cx| {
        // The task that asks has nothing left of its budget.
        while pin!(tokio::task::coop::consume_budget())
            .poll(cx)
            .is_ready()
        {}
        assert!(!connection.is_open());
        Poll::Ready(())
    })
    .await;
}

/// The reader takes no byte behind the end, so these are still in the socket.
#[tokio::test]
async fn a_second_response_is_for_no_request() {
    let (near, mut far) = duplex(1000);
    let mut connection = Http1Backend::new(near, None);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let twice = format!("{head}ok{head}no");
    far.write_all(twice.as_bytes()).await.unwrap();
    let response = connection.send(request(&Method::GET), head.len()).await;
    let response = response.map_err(|failed| failed.error).unwrap();
    assert_eq!(taken(response).await.unwrap().2, b"ok");
    assert!(connection.is_reusable());
    assert!(!connection.is_open());
}

#[tokio::test]
async fn sizes_of_chunks_may_be_padded() {
    let chunks = "1     \r\nx\r\n".repeat(10_000);
    let answer =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0     \r\n\r\n");
    let (got, follows) = ours(answer.as_bytes(), 5000, &Method::GET).await;
    assert_eq!((got.unwrap().2.len(), follows), (10_000, true));
}

/// A body whose pieces a test sends.
type Sent = StreamBody<mpsc::Receiver<Result<Frame<Bytes>, Infallible>>>;

fn sent() -> (
    mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
    Request<Sent>,
) {
    let (sender, pieces) = mpsc::channel(0);
    let request = Request::post("/").header("transfer-encoding", "chunked");
    (sender, request.body(StreamBody::new(pieces)).unwrap())
}

#[tokio::test]
async fn a_body_without_a_length_is_chunks() {
    let (mut connection, mut far) = connected();
    let (mut pieces, request) = sent();
    let client = async {
        for piece in ["one", "", "and another one"] {
            let frame = Frame::data(Bytes::from(piece));
            pieces.send(Ok(frame)).await.unwrap();
        }
        let mut trailers = hyper::HeaderMap::new();
        trailers.insert("x", hyper::header::HeaderValue::from_static("y"));
        pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
    };
    let server = async {
        let request = read_until(&mut far, b"0\r\nx: y\r\n\r\n").await;
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        assert_eq!(
            body,
            "3\r\none\r\nf\r\nand another one\r\n0\r\nx: y\r\n\r\n"
        );
        far.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    };
    let (response, (), ()) = tokio::join!(connection.send(request, SCRATCH), client, server);
    assert!(response.is_ok());
    assert!(connection.is_reusable());
}

/// The client takes nothing of the response until the backend has everything.
#[tokio::test]
async fn the_rest_of_a_request_is_sent_after_the_response_began() {
    let (mut connection, mut far) = connected();
    let (mut pieces, request) = sent();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let response = answered(&mut connection, &mut far, request, answer).await;
    let client = async {
        for _ in 0..100 {
            let frame = Frame::data(Bytes::from_static(&[b'x'; 100]));
            pieces.send(Ok(frame)).await.unwrap();
        }
        drop(pieces);
    };
    let ((), body) = tokio::join!(client, read_until(&mut far, b"\r\n0\r\n\r\n"));
    assert_eq!(body.matches('x').count(), 100 * 100);
    far.write_all(b"ok").await.unwrap();
    assert_eq!(taken(response).await.unwrap().2, b"ok");
    assert!(connection.is_reusable());
}

/// The backend has answered and takes the rest, or has closed.
#[tokio::test]
async fn a_request_that_outlasts_its_response_ends_with_the_backend() {
    for closes in [false, true] {
        let (mut connection, mut far) = connected();
        let (mut pieces, request) = sent();
        let answer = "HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n";
        let response = answered(&mut connection, &mut far, request, answer).await;
        drop(response);
        assert!(!connection.is_reusable());
        connection.retire();
        if closes {
            drop(far);
            // The body is given up as soon as its task has run.
            while !pieces.is_closed() {
                tokio::task::yield_now().await;
            }
        } else {
            let last = Frame::data(Bytes::from_static(b"the rest"));
            pieces.send(Ok(last)).await.unwrap();
            drop(pieces);
            read_until(&mut far, b"the rest\r\n0\r\n\r\n").await;
            // Then the connection ends.
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        }
    }
}

/// Whoever gives up a response ends its connection, and the rest of the request.
#[tokio::test]
async fn a_response_that_nobody_wants_ends_its_connection() {
    let (mut connection, mut far) = connected();
    let (pieces, request) = sent();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
    let response = answered(&mut connection, &mut far, request, answer).await;
    drop(connection);
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    while !pieces.is_closed() {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken(response).await, Err(()));
}

/// A body that breaks after its response began ends the response, too.
#[tokio::test]
async fn a_broken_request_breaks_its_response() {
    let (near, mut far) = duplex(64);
    let (mut pieces, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(0);
    let request = Request::post("/").header("transfer-encoding", "chunked");
    let request = request.body(StreamBody::new(body)).unwrap();
    let mut connection = Http1Backend::new(near, None);
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
    let response = answered(&mut connection, &mut far, request, answer).await;
    let client = async {
        let broken = std::io::ErrorKind::ConnectionReset.into();
        pieces.send(Err(broken)).await.unwrap();
    };
    let ((), got) = tokio::join!(client, taken(response));
    assert_eq!(got, Err(()));
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
}

/// The body breaks in the moment in which the response begins. The backend must not take half of it for all.
#[tokio::test]
async fn a_broken_request_never_looks_complete() {
    let (near, mut far) = duplex(1000);
    let (mut pieces, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(2);
    let half = Frame::data(Bytes::from_static(b"half"));
    pieces.try_send(Ok(half)).unwrap();
    let broken = std::io::ErrorKind::ConnectionReset.into();
    pieces.try_send(Err(broken)).unwrap();
    drop(pieces);
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    far.write_all(answer).await.unwrap();
    let request = Request::post("/").header("transfer-encoding", "chunked");
    let request = request.body(StreamBody::new(body)).unwrap();
    let mut connection = Http1Backend::new(near, None);
    let response = connection.send(request, SCRATCH).await;
    assert!(response.is_ok());
    assert!(!connection.is_reusable());
    connection.retire();
    let mut got = String::new();
    far.read_to_string(&mut got).await.unwrap();
    assert!(got.ends_with("\r\n\r\n4\r\nhalf\r\n"), "{got:?}");
}

#[tokio::test]
async fn a_request_of_which_nothing_was_sent_comes_back() {
    let (mut connection, far) = connected::<Empty<Bytes>>();
    drop(far);
    let failed = connection.send(request(&Method::GET), SCRATCH).await;
    let failed = failed.err().unwrap();
    assert!(failed.unseen.is_some(), "{}", failed.error);
    // The backend has seen it.
    let (mut connection, mut far) = connected::<Empty<Bytes>>();
    let server = async {
        read_until(&mut far, b"\r\n\r\n").await;
        drop(far);
    };
    let (failed, ()) = tokio::join!(connection.send(request(&Method::GET), SCRATCH), server);
    assert!(failed.err().unwrap().unseen.is_none());
}

#[tokio::test]
async fn a_large_response_is_read_in_large_pieces() {
    let (near, mut far) = duplex(1 << 20);
    let mut connection = Http1Backend::<_, Empty<Bytes>>::new(near, None);
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
    far.write_all(answer).await.unwrap();
    far.write_all(&vec![b'x'; 1_000_000]).await.unwrap();
    let response = connection.send(request(&Method::GET), SCRATCH).await;
    let mut body = response.map_err(|failed| failed.error).unwrap().into_body();
    let mut sizes = Vec::new();
    while let Some(frame) = body.frame().await {
        sizes.push(frame.unwrap().into_data().unwrap().len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 1_000_000);
    assert!(sizes.len() < 20, "{sizes:?}");
    assert!(connection.is_reusable());
}
