//! HTTP and HTTPS listeners on loopback: which answer a request gets, what a hostile or slow client
//! gets, and the end of connections in a drain.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy_testing::*;
use vestibule_test_support::frames::{END_HEADERS, HEADERS, RST_STREAM, frame, preface};

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

fn plain_rig(limits: &ProxyLimits) -> Rig {
    Rig::start(limits, |port| {
        vec![http(port, "web", "*.example.com", None)]
    })
}

/// A certificate for every name below, and a rig that serves it for one of them.
fn https_rig(limits: &ProxyLimits) -> (Rig, Identity) {
    let own = Identity::new("*.example.com");
    let certificate = own.resource("team-a/web");
    let rig = Rig::start(limits, |port| {
        vec![
            http(port, "web", "a.example.com", Some("team-a/web")),
            http(port, "bare", "bare.example.com", Some("team-a/missing")),
            listener(port, "through", "through.example.com", None),
            certificate.clone(),
        ]
    });
    (rig, own)
}

/// Sends bytes and reads until the server ends the connection.
async fn exchange(rig: &Rig, request: &[u8]) -> String {
    let mut stream = rig.connect().await;
    stream.write_all(request).await.unwrap();
    let answer = read_to_end(&mut stream).await.unwrap();
    String::from_utf8(answer).unwrap()
}

fn get(host: &str) -> Vec<u8> {
    format!("GET /x?secret HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_in_plaintext_is_answered_with_404() {
    let mut rig = plain_rig(&quiet());
    let answer = exchange(&rig, &get("a.example.com")).await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    assert!(
        answer.ends_with("no route is for this request\n"),
        "{answer}"
    );
    let answer = exchange(&rig, &get("a.example.org:8080")).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(
        answer.ends_with("no listener is for this host\n"),
        "{answer}"
    );
    rig.wait_closed(CloseReason::ClientClosed, 2).await;

    // Several on one connection, one of which has a body that nobody reads.
    let mut stream = rig.connect().await;
    let upload = "POST / HTTP/1.1\r\nhost: a.example.com\r\ncontent-length: 5\r\n\r\nhello";
    let head = "HEAD / HTTP/1.1\r\nhost: a.example.com\r\n\r\n";
    let all = [upload.as_bytes(), head.as_bytes(), &get("a.example.com")].concat();
    stream.write_all(&all).await.unwrap();
    let answers = String::from_utf8(read_to_end(&mut stream).await.unwrap()).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 404 ").count(), 3, "{answers}");
    let metrics = rig.plane.metrics.encode().unwrap();
    let line = "vestibule_proxy_requests_total{protocol=\"HTTP/1.1\",code=\"404\"} 5";
    assert!(metrics.contains(line), "{metrics}");

    // A listener that comes is for the next request, also on a connection that is older.
    let mut stream = rig.connect().await;
    let keep = b"GET / HTTP/1.1\r\nhost: b.example.net\r\n\r\n";
    let no_listener = "no listener is for this host\n";
    assert!(ask(&mut stream, keep).await.ends_with(no_listener));
    let port = rig.address.port();
    assert_eq!(
        rig.apply(vec![http(port, "net", "b.example.net", None)]),
        Vec::<String>::new()
    );
    assert!(
        ask(&mut stream, keep)
            .await
            .ends_with("no route is for this request\n")
    );
}

/// One request and its answer on a connection that stays.
async fn ask(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let read = async {
        while !answer.ends_with('\n')
            || !answer.contains("\r\n\r\n")
            || answer.ends_with("\r\n\r\n")
        {
            let byte = stream.read_u8().await.unwrap();
            answer.push(char::from(byte));
        }
    };
    within("the answer", read).await;
    answer
}

async fn h2_over<S>(stream: S) -> http2::SendRequest<Empty<Bytes>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn h2_get(sender: &mut http2::SendRequest<Empty<Bytes>>, uri: &str) -> (StatusCode, Bytes) {
    let request = Request::get(uri).body(Empty::new()).unwrap();
    let answer = within("the answer", sender.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.version(), Version::HTTP_2);
    let status = answer.status();
    (
        status,
        answer.into_body().collect().await.unwrap().to_bytes(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_by_prior_knowledge_and_by_alpn() {
    let rig = plain_rig(&quiet());
    let mut sender = h2_over(rig.connect().await).await;
    let (status, body) = h2_get(&mut sender, "http://a.example.com/x").await;
    assert_eq!(
        (status, &*body),
        (
            StatusCode::NOT_FOUND,
            &b"no route is for this request\n"[..]
        )
    );
    let (status, _) = h2_get(&mut sender, "http://a.example.org/x").await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    let (rig, own) = https_rig(&quiet());
    let mut config = client_config(&own);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = tls(rig.connect().await, config, "a.example.com")
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut sender = h2_over(stream).await;
    let (status, _) = h2_get(&mut sender, "https://a.example.com/x").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // The certificate is for this name too, but another listener is (GEP-3567).
    let (status, _) = h2_get(&mut sender, "https://through.example.com/x").await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
    let (status, _) = h2_get(&mut sender, "https://other.example.com/x").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn https_shares_its_port_with_tls_and_never_speaks_plaintext() {
    let (rig, own) = https_rig(&quiet());
    let mut stream = tls(rig.connect().await, client_config(&own), "a.example.com")
        .await
        .unwrap();
    stream.write_all(&get("a.example.com")).await.unwrap();
    let answer = read_to_end(&mut stream).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 404 "));
    // close_notify came: the client cannot take it for cut.
    rig.wait_closed(CloseReason::ClientClosed, 1).await;

    for (name, reason) in [
        ("unknown.example.com", CloseReason::UnknownServerName),
        ("bare.example.com", CloseReason::NoCertificate),
        ("through.example.com", CloseReason::NoRoute),
    ] {
        assert!(
            tls(rig.connect().await, client_config(&own), name)
                .await
                .is_err()
        );
        rig.wait_closed(reason, 1).await;
    }
    let mut plain = rig.connect().await;
    plain.write_all(&get("a.example.com")).await.unwrap();
    // Nothing comes back; whether it is a reset depends on what was unread.
    if let Ok(bytes) = read_to_end(&mut plain).await {
        assert_eq!(bytes, b"");
    }
    rig.wait_closed(CloseReason::NotTls, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_two_readers_could_read_differently_are_refused() {
    let rig = plain_rig(&quiet());
    let host = "host: a.example.com\r\n";
    let heads = [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\n{host}{host}\r\n"),
        "GET / HTTP/1.1\r\nhost: a@b\r\n\r\n".to_owned(),
        format!("GET http://b.example.com/ HTTP/1.1\r\n{host}\r\n"),
        format!("GET / HTTP/1.1\r\n{host}content-length: 1\r\ncontent-length: 2\r\n\r\nx"),
        format!("GET / HTTP/1.1\r\n{host}content-length: +1\r\n\r\nx"),
        format!("GET / HTTP/1.1\r\n{host}content-length: 1, 1\r\n\r\nx"),
        format!("GET / HTTP/1.1\r\n{host}transfer-encoding: chunked, x\r\n\r\n"),
        format!("GET / HTTP/1.0\r\n{host}transfer-encoding: chunked\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}x : y\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}x: y\r\n z\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}x: \0\r\n\r\n"),
        format!("GET /\0 HTTP/1.1\r\n{host}\r\n"),
        format!("GET / HTTP/1.2\r\n{host}\r\n"),
        "no request at all\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\r\n\r\n".to_owned(),
    ];
    for head in heads {
        let answer = exchange(&rig, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{head:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_bounded_in_bytes_and_in_time() {
    let limits = ProxyLimits {
        http: HttpLimits {
            head_bytes: 16 * 1024,
            head_deadline: Duration::from_secs(1),
            idle: Duration::from_secs(1),
            ..HttpLimits::default()
        },
        hello_deadline: Duration::from_secs(1),
        ..quiet()
    };
    let rig = plain_rig(&limits);
    let host = "host: a.example.com\r\n";
    let long = format!("GET / HTTP/1.1\r\n{host}x: {}\r\n\r\n", "x".repeat(20_000));
    let answer = exchange(&rig, long.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    for (fields, status) in [(100, "404"), (101, "431")] {
        // Two of them are the host and this one.
        let many = "x: y\r\n".repeat(fields - 2);
        let many = format!("GET / HTTP/1.1\r\n{host}connection: close\r\n{many}\r\n");
        let answer = exchange(&rig, many.as_bytes()).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{answer}");
    }

    let mut silent = rig.connect().await;
    let mut slow = rig.connect().await;
    let mut idle = rig.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a").await.unwrap();
    ask(
        &mut idle,
        format!("GET / HTTP/1.1\r\n{host}\r\n").as_bytes(),
    )
    .await;
    for stream in [&mut silent, &mut slow, &mut idle] {
        let _ = within("the end", stream.read_to_end(&mut Vec::new())).await;
    }
    rig.wait_closed(CloseReason::HelloTimeout, 1).await;
    rig.wait_closed(CloseReason::RequestTimeout, 1).await;
    rig.wait_closed(CloseReason::IdleTimeout, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_without_end_end_the_connection() {
    let rig = plain_rig(&quiet());
    let mut stream = rig.connect().await;
    // Requests that are taken back at once.
    stream.write_all(&preface()).await.unwrap();
    // :method GET, :scheme http, :path /, :authority a.example.com
    let mut block = vec![0x82, 0x86, 0x84, 0x41, 13];
    block.extend_from_slice(b"a.example.com");
    let mut flood = Vec::new();
    for id in (1_u32..4000).step_by(2) {
        flood.extend(frame(HEADERS, END_HEADERS, id, &block));
        flood.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
    }
    let (mut read, mut write) = stream.into_split();
    let sends = tokio::spawn(async move { write.write_all(&flood).await.is_ok() });
    let mut answer = Vec::new();
    let _ = within("the end", read.read_to_end(&mut answer)).await;
    let _ = sends.await;
    rig.wait_closed(CloseReason::HttpError, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_tells_clients_to_go_elsewhere() {
    let mut rig = plain_rig(&ProxyLimits {
        hello_deadline: PATIENCE,
        ..quiet()
    });
    let request = b"GET / HTTP/1.1\r\nhost: a.example.com\r\n\r\n";
    let mut one = rig.connect().await;
    ask(&mut one, request).await;
    let mut idle = rig.connect().await;
    ask(&mut idle, request).await;
    let mut two = h2_over(rig.connect().await).await;
    h2_get(&mut two, "http://a.example.com/").await;
    // Its first request comes when the drain has begun.
    let mut silent = rig.connect().await;
    // While it still accepts, who asks is told to ask elsewhere next time.
    let mut early = rig.connect().await;
    rig.plane.begin_leaving();
    early.write_all(request).await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut early).await.unwrap()).unwrap();
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    h2_get(&mut two, "http://a.example.com/").await;
    let workers = rig.workers.take().unwrap();
    let drained = tokio::spawn(workers.drain(Duration::from_hours(1)));
    // Without a request under way HTTP/2 ends at once, in order.
    let closed = async {
        while !two.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("GOAWAY", closed).await;
    wait("the end of listening", || {
        std::net::TcpStream::connect(rig.address).is_err()
    })
    .await;
    // HTTP/1.1 has no word for it but an answer: a request may be on its way, and gets one.
    for client in [&mut one, &mut silent] {
        client.write_all(request).await.unwrap();
        let answer = String::from_utf8(read_to_end(client).await.unwrap()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    // A connection without a request is kept for a part of the time only.
    wait("the others' end", || rig.plane.active() == 1).await;
    rig.plane.close_idle();
    assert_eq!(read_to_end(&mut idle).await.unwrap(), b"");
    assert_eq!(within("the drain", drained).await.unwrap(), 0);
}
