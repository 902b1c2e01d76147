//! Limits in time and in bytes that a release or a Gateway sets, with real clients and backends: tunnels that
//! are idle, connections that are old, requests that take too long, and bodies that are too large. Limits are
//! as small as there are, and clients wait for what is to come; nothing here says how fast it comes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::bounds::Bounds;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";
/// Of a listener where TLS ends.
const OTHER: &str = "b.example.com";
const BACKEND: &str = "team-a/one:80";
/// The shortest that a limit in time can be.
const SOON: Duration = Duration::from_millis(1);

/// No limit that counts bytes or time but those that `set` says.
fn limits(set: impl FnOnce(&mut Bounds)) -> ProxyLimits {
    let mut bounds = Bounds {
        stream_idle: None,
        request: None,
        tunnel_idle: None,
        connection_age: None,
        request_body: None,
    };
    set(&mut bounds);
    ProxyLimits {
        bounds,
        age_grace: Duration::from_hours(1),
        ..quiet()
    }
}

/// The settings of a Gateway with these limits.
fn limited(limits: proto::ListenerLimits) -> proto::GatewaySettings {
    proto::GatewaySettings {
        limits: Some(limits),
        ..Default::default()
    }
}

fn web(limits: &ProxyLimits, backends: &[SocketAddr], rule: &proto::HttpRule) -> Rig {
    Rig::start(limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule.clone()]),
            backend(BACKEND, backends),
        ]
    })
}

fn to_backend() -> proto::HttpRule {
    rule("/", BACKEND)
}

/// What the proxy counted of requests that a limit ended.
fn over_limit(rig: &Rig, reason: &str) -> u64 {
    let line = format!("vestibule_proxy_requests_over_limit_total{{reason=\"{reason}\"}} ");
    let text = rig.plane.metrics.encode().unwrap();
    let value = text.lines().find_map(|text| text.strip_prefix(&line));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Reads what comes until the end, whether that is in order or a reset.
async fn until_the_end(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut bytes)).await;
    bytes
}

/// Answers each request with this, and keeps the connection open.
async fn answering(answer: &'static str) -> SocketAddr {
    serve(move |mut stream: TcpStream| async move {
        let mut asked = [0; 4096];
        while matches!(stream.read(&mut asked).await, Ok(1..)) {
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await
}

/// Says nothing, and counts the connections.
async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let address = serve(move |mut stream: TcpStream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    })
    .await;
    (address, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_tunnel_is_closed_whether_tls_ends_here_or_not() {
    let address = serve(echo).await;
    let own = Identity::new(OTHER);
    let idle = limits(|bounds| bounds.tunnel_idle = Some(SOON));
    let rig = Rig::start(&idle, |port| {
        vec![
            own.resource("team-a/own"),
            listener(port, "a", HOST, None),
            listener(port, "b", OTHER, Some("team-a/own")),
            route("a", HOST, Some(BACKEND)),
            route("b", OTHER, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    });
    let mut passed = rig.connect().await;
    passed.write_all(HELLO).await.unwrap();
    assert_eq!(until_the_end(&mut passed).await, HELLO);
    rig.wait_closed(CloseReason::TunnelIdleTimeout, 1).await;
    let config = client_config(&own);
    let mut ended = tls(rig.connect().await, config, OTHER).await.unwrap();
    ended.write_all(b"hello").await.unwrap();
    assert_eq!(until_the_end(&mut ended).await, b"hello");
    rig.wait_closed(CloseReason::TunnelIdleTimeout, 2).await;
}

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: a.example.com\r\nconnection: Upgrade\r\n\
                       upgrade: WebSocket\r\nsec-websocket-key: k\r\n\r\n";
const UPGRADED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                        upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_is_a_tunnel_and_no_request() {
    let address = answering(UPGRADED).await;
    let idle = limits(|bounds| {
        bounds.tunnel_idle = Some(SOON);
        // Neither of these is for what is no request any more.
        bounds.stream_idle = Some(Duration::from_hours(1));
        bounds.request = Some(Duration::from_hours(1));
    });
    let rig = web(&idle, &[address], &to_backend());
    let mut stream = rig.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    let answer = until_the_end(&mut stream).await;
    assert!(answer.starts_with(b"HTTP/1.1 101"));
    rig.wait_closed(CloseReason::TunnelIdleTimeout, 1).await;
    // And by age as well.
    let old = ProxyLimits {
        age_grace: Duration::ZERO,
        ..limits(|bounds| bounds.connection_age = Some(SOON))
    };
    let rig = web(&old, &[address], &to_backend());
    let mut stream = rig.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    until_the_end(&mut stream).await;
    rig.wait_closed(CloseReason::MaxConnectionAge, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_sets_its_own_limits_and_others_keep_the_releases() {
    let address = serve(echo).await;
    let off = limits(|_| {});
    let own = Identity::new(OTHER);
    let set = proto::ListenerLimits {
        tunnel_idle: Some(1),
        ..Default::default()
    };
    let mut rig = Rig::start(&off, |port| {
        vec![
            own.resource("team-a/own"),
            needs_settings(listener(port, "a", HOST, None)),
            gateway_settings(limited(set)),
            listener(port, "b", OTHER, Some("team-a/own")),
            route("a", HOST, Some(BACKEND)),
            route("b", OTHER, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    });
    let connect = async |rig: &Rig| {
        let stream = tls(rig.connect().await, client_config(&own), OTHER).await;
        stream.unwrap()
    };
    let mut other = connect(&rig).await;
    let mut limited_one = rig.connect().await;
    limited_one.write_all(HELLO).await.unwrap();
    until_the_end(&mut limited_one).await;
    rig.wait_closed(CloseReason::TunnelIdleTimeout, 1).await;
    // An edit is for tunnels that begin after it.
    let listener = listener(rig.address.port(), "b", OTHER, Some("team-a/own"));
    assert_eq!(
        rig.apply(vec![needs_settings(listener)]),
        Vec::<String>::new()
    );
    let mut later = connect(&rig).await;
    until_the_end(&mut later).await;
    rig.wait_closed(CloseReason::TunnelIdleTimeout, 2).await;
    other.write_all(b"still here").await.unwrap();
    let mut back = [0; 10];
    within("the echo", other.read_exact(&mut back))
        .await
        .unwrap();
    assert_eq!(&back, b"still here");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tunnels_are_closed_though_they_are_busy() {
    let address = serve(echo).await;
    let old = ProxyLimits {
        age_grace: Duration::ZERO,
        ..limits(|bounds| bounds.connection_age = Some(SOON))
    };
    let rig = Rig::start(&old, |port| {
        vec![
            listener(port, "a", HOST, None),
            route("a", HOST, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    });
    let mut stream = rig.connect().await;
    stream.write_all(HELLO).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let writes = tokio::spawn(async move {
        while write.write_all(b"on and on").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    until_the_end(&mut read).await;
    within("the writer", writes).await.unwrap();
    rig.wait_closed(CloseReason::MaxConnectionAge, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_http1_connections_end_with_an_answer() {
    let one = Echo::start("one").await;
    let old = limits(|bounds| bounds.connection_age = Some(SOON));
    let rig = web(&old, &[one.address], &to_backend());
    let mut stream = rig.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    // The proxy does not close it between two requests: one may be on its way.
    loop {
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = one_answer(&mut stream).await.expect("an answer");
        assert_eq!(answer.status, 200);
        if answer.header("connection") == Some("close") {
            break;
        }
    }
    assert_eq!(until_the_end(&mut stream).await, b"");
    rig.wait_closed(CloseReason::MaxConnectionAge, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_http2_connections_take_no_more_and_let_requests_end() {
    let (go, told) = tokio::sync::watch::channel(false);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream: TcpStream| {
        let (count, told) = (Arc::clone(&count), told.clone());
        serve_http(stream, false, move |request| {
            let waits = request.uri().path() == "/long";
            count.fetch_add(usize::from(waits), Ordering::SeqCst);
            let mut told = told.clone();
            async move {
                if waits {
                    told.wait_for(|go| *go).await.unwrap();
                }
                hyper::Response::new(Full::new(Bytes::from_static(b"whole")))
            }
        })
    })
    .await;
    let old = limits(|bounds| bounds.connection_age = Some(SOON));
    let rig = web(&old, &[address], &to_backend());
    let request = |path: &str| {
        let request = Request::get(format!("http://{HOST}{path}"));
        request.body(Full::new(Bytes::new())).unwrap()
    };
    let mut connections = 0;
    // On a slow machine a connection may be old before its first request comes, and take none.
    let (mut sender, connection, under_way) = loop {
        connections += 1;
        let io = TokioIo::new(rig.connect().await);
        let made = http2::handshake(TokioExecutor::new(), io).await;
        let (mut sender, connection) = made.unwrap();
        let connection = tokio::spawn(connection);
        let under_way = tokio::spawn(sender.send_request(request("/long")));
        let is_asked = || asked.load(Ordering::SeqCst) == 1;
        wait("the request", || is_asked() || under_way.is_finished()).await;
        if is_asked() {
            break (sender, connection, under_way);
        }
    };
    // Others are taken until the proxy says that it takes no more.
    while within("an answer", sender.send_request(request("/short")))
        .await
        .is_ok()
    {}
    go.send_replace(true);
    let answer = within("the answer", under_way).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "whole");
    let _ = within("the end", connection).await;
    rig.wait_closed(CloseReason::MaxConnectionAge, connections)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_says_nothing_is_not_waited_for_for_ever() {
    let (address, _) = silent().await;
    let idle = limits(|bounds| bounds.stream_idle = Some(SOON));
    let rig = web(&idle, &[address], &to_backend());
    let answer = get(&rig, HOST, "/").await;
    assert_eq!(answer.status, 504);
    assert_eq!(over_limit(&rig, "StreamIdleTimeout"), 1);
    // A client that does not send what it began is told so.
    let mut stream = rig.connect().await;
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 10\r\n\r\nx");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = one_answer(&mut stream).await.expect("an answer");
    assert_eq!(answer.status, 408);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(over_limit(&rig, "StreamIdleTimeout"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_stops_is_cut_and_so_is_one_that_takes_too_long() {
    let begun = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegun";
    let address = answering(begun).await;
    let idle = limits(|bounds| bounds.stream_idle = Some(SOON));
    let rig = web(&idle, &[address], &to_backend());
    let mut stream = rig.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let text = until_the_end(&mut stream).await;
    assert!(text.ends_with(b"begun"), "and no more than that");
    assert_eq!(over_limit(&rig, "StreamIdleTimeout"), 1);
    rig.wait_closed(CloseReason::AnswerTimeout, 1).await;

    // Trickles without end, so that it is never idle.
    let trickle = serve(|mut stream: TcpStream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
        while stream.write_all(b"1\r\nx\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // By the default, and by the rule's own, which covers the answer too.
    let by_default = limits(|bounds| bounds.request = Some(Duration::from_secs(2)));
    let of_rule = proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request: Some(2000),
            backend_request: Some(2000),
        }),
        ..to_backend()
    };
    // The time of one attempt covers its answer too. What has begun is not made again.
    let of_attempt = proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request: None,
            backend_request: Some(2000),
        }),
        retry: Some(proto::HttpRetry {
            codes: vec![504],
            attempts: 1,
            backoff: None,
        }),
        ..to_backend()
    };
    for (limits, rule, reason) in [
        (by_default, to_backend(), "RequestTimeout"),
        (limits(|_| {}), of_rule, "RequestTimeout"),
        (limits(|_| {}), of_attempt, "BackendTimeout"),
    ] {
        let rig = web(&limits, &[trickle], &rule);
        let mut stream = rig.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = until_the_end(&mut stream).await;
        let text = String::from_utf8_lossy(&text);
        // On a machine that is very slow, the time is over before the head has come.
        let cut = text.starts_with("HTTP/1.1 200") && !text.ends_with("0\r\n\r\n");
        assert!(cut || text.starts_with("HTTP/1.1 504"), "{text}");
        assert_eq!(over_limit(&rig, reason), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_try_has_its_time_and_the_request_has_one_for_all() {
    // The first backend breaks the connection when it has the request, the second one says nothing.
    let (address, tries) = silent().await;
    let breaks = serve(|mut stream: TcpStream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    })
    .await;
    for (request, backend, reason) in [
        (None, Some(100), "BackendTimeout"),
        (Some(100), None, "RequestTimeout"),
        (Some(0), Some(100), "BackendTimeout"),
    ] {
        let timed = proto::HttpRule {
            timeouts: Some(proto::HttpTimeouts {
                request,
                backend_request: backend,
            }),
            ..to_backend()
        };
        // A default that a rule's own time, or its zero, comes before.
        let limits = limits(|bounds| bounds.request = Some(Duration::from_hours(1)));
        let rig = web(&limits, &[breaks, address], &timed);
        assert_eq!(get(&rig, HOST, "/").await.status, 504);
        assert_eq!(over_limit(&rig, reason), 1);
    }
    assert!(tries.load(Ordering::SeqCst) >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_bounded_by_what_is_said_and_by_what_comes() {
    let one = Echo::start("one").await;
    let bounded = limits(|bounds| bounds.request_body = Some(1000));
    let mut rig = web(&bounded, &[one.address], &to_backend());
    let post = |fields: &str| format!("POST / HTTP/1.1\r\nhost: {HOST}\r\n{fields}");
    let fits = ask(&rig, &post("content-length: 1000"), &"x".repeat(1000)).await;
    assert_eq!(fits.status, 200);
    assert_eq!(one.requests(), 1);
    // By its length alone, before a byte of it and before a backend is asked.
    let mut stream = rig.connect().await;
    let head = post("content-length: 1001\r\nexpect: 100-continue\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let refused = one_answer(&mut stream).await.expect("an answer");
    assert_eq!(refused.status, 413);
    assert_eq!(refused.header("connection"), Some("close"));
    drop(stream);
    assert_eq!(one.requests(), 1);
    // Without a length, and much more than fits into buffers: the client gets its answer all the same.
    let chunk = format!("fa0\r\n{}\r\n", "x".repeat(4000));
    let head = post("transfer-encoding: chunked\r\n\r\n");
    for n in 1..=5 {
        let mut stream = rig.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..200 {
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
        let refused = one_answer(&mut stream).await.expect("an answer");
        assert_eq!(refused.status, 413);
        assert_eq!(over_limit(&rig, "BodyTooLarge"), 1 + n);
    }
    // It is none of the backend's doing, which would be left alone after three.
    let metrics = rig.plane.metrics.encode().unwrap();
    assert!(
        !metrics.contains("endpoints_passed_over_total{"),
        "{metrics}"
    );
    // A Gateway allows more, at once.
    let more = proto::ListenerLimits {
        request_body: Some(0),
        ..Default::default()
    };
    let listener = http(rig.address.port(), "web", "", None);
    let edit = with_settings(listener, limited(more)).to_vec();
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    let fits = ask(&rig, &post("content-length: 9000"), &"x".repeat(9000)).await;
    assert_eq!(fits.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_bodies_are_bounded_and_the_connection_goes_on() {
    let one = Echo::h2c("one").await;
    let bounded = limits(|bounds| bounds.request_body = Some(1000));
    let rig = Rig::start(&bounded, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![to_backend()]),
            backend_of(BACKEND, &[one.address], proto::BackendProtocol::H2c),
        ]
    });
    let io = TokioIo::new(rig.connect().await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    for (bytes, status) in [(1000, 200), (1001, 413), (500_000, 413), (10, 200)] {
        // Without a length, so that what comes is counted.
        let body = http_body_util::StreamBody::new(futures::stream::iter([Ok::<_, hyper::Error>(
            hyper::body::Frame::data(Bytes::from(vec![b'x'; bytes])),
        )]));
        let request = Request::post(format!("http://{HOST}/")).body(body).unwrap();
        let answer = within("an answer", sender.send_request(request)).await;
        assert_eq!(answer.unwrap().status(), status, "{bytes}");
    }
    assert_eq!(over_limit(&rig, "BodyTooLarge"), 2);
}
