//! Connections of HTTP routes to their backends on loopback: which are used again, what is never tried
//! twice, HTTP/2, upgrades, and bodies that flow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::header::HeaderName;
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::BackendProtocol;
use proto::http_filter::Filter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;
use vestibule_stream::proto::resource::Resource as Wire;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

fn rig_of(limits: &ProxyLimits, address: SocketAddr, protocol: BackendProtocol) -> Rig {
    Rig::start(limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], protocol),
        ]
    })
}

fn rig(address: SocketAddr) -> Rig {
    rig_of(&quiet(), address, BackendProtocol::Unspecified)
}

/// A request without body on a connection that stays, and the answer by its length.
async fn on(stream: &mut TcpStream, head: &str) -> Answer {
    let text = format!("{head}\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    answer(stream).await
}

async fn answer(stream: &mut (impl AsyncReadExt + Unpin)) -> Answer {
    let mut text = String::new();
    let read = async {
        while !text.ends_with("\r\n\r\n") {
            text.push(char::from(stream.read_u8().await.unwrap()));
        }
        let head = parse(&text);
        let length = head.header("content-length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        String::from_utf8(body).unwrap()
    };
    let body = within("an answer", read).await;
    Answer {
        body,
        ..parse(&text)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_used_again_and_kept_for_a_while() {
    let one = Echo::start("one").await;
    let rig = rig(one.address);
    let mut stream = rig.connect().await;
    for n in 1..=20 {
        assert_eq!(on(&mut stream, "GET / HTTP/1.1").await.status, 200);
        assert_eq!(one.requests(), n);
    }
    // One worker serves the connection, and each of its requests comes after the answer to the last.
    assert_eq!(one.connections(), 1);
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_backend_http_connections_opened_total 1",
        "vestibule_proxy_backend_http_connections_reused_total 19",
        "vestibule_proxy_tenant_responses_total{gateway=\"infra/edge\",tenant=\"team-a\",class=\"2xx\"}",
    ] {
        if line.contains("tenant") {
            continue;
        }
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ended_while_idle_costs_nothing() {
    // Ends each connection after one answer, without saying so.
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let address = serve(move |mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            let _ = stream.write_all(ok).await;
        }
    })
    .await;
    let rig = rig(address);
    let mut stream = rig.connect().await;
    for n in 1..=20 {
        let answer = on(&mut stream, "POST / HTTP/1.1\r\ncontent-length: 0").await;
        assert_eq!((answer.status, &*answer.body), (200, "ok"), "request {n}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 20);
}

/// A connection on which a backend said HTTP/1.0 would get bodies without a length no more. One on which it answered
/// before it had the body, or got a body that its method has no use for, may be at another place than this proxy thinks.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_in_doubt_is_not_used_again() {
    let bodies = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let connections = Arc::new(AtomicUsize::new(0));
    let (kept, count) = (Arc::clone(&bodies), Arc::clone(&connections));
    let address = serve(move |mut stream: TcpStream| {
        count.fetch_add(1, Ordering::SeqCst);
        let kept = Arc::clone(&kept);
        async move {
            let mut seen = String::new();
            while let Ok(byte) = stream.read_u8().await {
                seen.push(char::from(byte));
                // One answers early, and the others when they have the end of a body in chunks.
                let early = seen.starts_with("POST /early ") && seen.ends_with("\r\n\r\n");
                if !early && !seen.ends_with("0\r\n\r\n") {
                    continue;
                }
                let version = if seen.contains(" /old ") {
                    "1.0"
                } else {
                    "1.1"
                };
                let head = format!(
                    "HTTP/{version} 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok"
                );
                if !early {
                    kept.lock().push(std::mem::take(&mut seen));
                }
                if stream.write_all(head.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let rig = rig(address);
    let mut stream = rig.connect().await;
    let chunked = format!("host: {HOST}\r\ntransfer-encoding: chunked\r\n\r\n");
    for (head, body, opened) in [
        ("POST /usual HTTP/1.1", "5\r\nhello\r\n0\r\n\r\n", 1),
        ("POST /old HTTP/1.1", "5\r\nhello\r\n0\r\n\r\n", 1),
        ("POST /after-old HTTP/1.1", "5\r\nhello\r\n0\r\n\r\n", 2),
        ("GET /unusual HTTP/1.1", "5\r\nhello\r\n0\r\n\r\n", 2),
        ("POST /after-unusual HTTP/1.1", "5\r\nhello\r\n0\r\n\r\n", 3),
    ] {
        let request = format!("{head}\r\n{chunked}{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut stream).await.body, "ok", "{head}");
        assert_eq!(connections.load(Ordering::SeqCst), opened, "{head}");
    }
    for seen in &*bodies.lock() {
        assert!(seen.contains("hello"), "{seen}");
    }
    // The answer comes first, and then the rest of the body.
    let request = format!("POST /early HTTP/1.1\r\n{chunked}");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.body, "ok");
    stream.write_all(b"5\r\nhello\r\n0\r\n\r\n").await.unwrap();
    let mut stream = rig.connect().await;
    let request = format!("POST /after-early HTTP/1.1\r\n{chunked}5\r\nhello\r\n0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.body, "ok");
    let last = bodies.lock().pop().unwrap();
    assert!(last.starts_with("POST /after-early "), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_a_backend_may_have_seen_is_not_tried_again() {
    // Reads each request and breaks off.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            let mut head = [0; 4096];
            if matches!(stream.read(&mut head).await, Ok(1..)) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let rig = rig(address);
    let answer = get(&rig, HOST, "/").await;
    assert_eq!(answer.status, 502);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_is_no_http_is_a_bad_gateway() {
    let address = serve(|mut stream| async move {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let _ = stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n").await;
    })
    .await;
    assert_eq!(get(&rig(address), HOST, "/").await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_too_long_to_look_at_are_refused() {
    let one = Echo::start("one").await;
    let to_one = rig(one.address);
    let list = |entries| vec!["a"; entries].join(",");
    for (name, entries, status) in [
        ("connection", 64, 200),
        ("connection", 65, 400),
        ("connection", 30_000, 400),
        ("cdn-loop", 32, 200),
        ("cdn-loop", 33, 431),
        ("cdn-loop", 30_000, 431),
    ] {
        let mut client = to_one.connect().await;
        let head = format!("GET / HTTP/1.1\r\n{name}: {}", list(entries));
        let answer = on(&mut client, &head).await;
        assert_eq!(answer.status, status, "{name} of {entries}");
    }
    // The same for what a backend answers.
    for (entries, status) in [(64, 200), (65, 502)] {
        let head = format!("HTTP/1.1 200 OK\r\nconnection: {}", list(entries));
        let answer = format!("{head}\r\ncontent-length: 0\r\n\r\n");
        let address = serve(move |mut stream| {
            let answer = answer.clone();
            async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        })
        .await;
        assert_eq!(get(&rig(address), HOST, "/").await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interim_answers_without_end_are_a_bad_gateway() {
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";
    let flood = serve(move |mut stream| async move {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let some = early.repeat(100);
        while stream.write_all(some.as_bytes()).await.is_ok() {}
    })
    .await;
    let flooded = rig(flood);
    assert_eq!(get(&flooded, HOST, "/").await.status, 502);
    flooded.wait_backend_given_up().await;
    // Some of them, and a large head, are no flood. Nor are those of many requests on one connection.
    let some = serve(move |mut stream| async move {
        let mut head = [0; 4096];
        while let Ok(1..) = stream.read(&mut head).await {
            let early = early.repeat(1000);
            let large = "x".repeat(40_000);
            let end = format!("HTTP/1.1 200 OK\r\nx: {large}\r\ncontent-length: 2\r\n\r\nok");
            let answer = early + &end;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    let rig = rig(some);
    for _ in 0..5 {
        let answer = get(&rig, HOST, "/").await;
        assert_eq!((answer.status, &*answer.body), (200, "ok"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_is_not_completed() {
    let address = serve(|mut stream| async move {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        let _ = stream.write_all(cut).await;
    })
    .await;
    let rig = rig(address);
    let mut stream = rig.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut got)).await;
    let text = String::from_utf8_lossy(&got);
    assert!(text.contains("hello"), "{text}");
    assert!(!text.contains("0\r\n\r\n"), "{text}");
}

type Any = BoxBody<Bytes, hyper::Error>;

fn full(text: &str) -> Any {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes()));
    body.map_err(|never| match never {}).boxed()
}

async fn h2_client(rig: &Rig) -> http2::SendRequest<Any> {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn h2_ask(
    sender: &mut http2::SendRequest<Any>,
    request: Request<Any>,
) -> (StatusCode, String) {
    let answer = within("an answer", sender.send_request(request)).await;
    let answer = answer.unwrap();
    assert_eq!(answer.version(), Version::HTTP_2);
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_by_prior_knowledge_to_the_backend() {
    let one = Echo::h2c("one").await;
    let rig = rig_of(&quiet(), one.address, BackendProtocol::H2c);
    let answer = get(&rig, HOST, "/x?y").await;
    assert_eq!(answer.status, 200);
    let first = format!("GET http://{HOST}/x?y HTTP/2.0\n");
    assert!(answer.body.starts_with(&first), "{}", answer.body);

    // Requests of one connection share one to the backend, at the same time.
    let before = one.connections();
    let sender = h2_client(&rig).await;
    let request = |path: &str| {
        let uri = format!("http://{HOST}{path}");
        Request::post(uri).body(full("hello")).unwrap()
    };
    let asked = (0..50).map(|_| {
        let (mut sender, request) = (sender.clone(), request("/?delay=50"));
        async move { h2_ask(&mut sender, request).await }
    });
    for (status, body) in futures::future::join_all(asked).await {
        assert_eq!(status, StatusCode::OK);
        assert!(body.ends_with("\n\nhello"), "{body}");
    }
    assert!(
        one.connections() <= before + 1,
        "{} connections",
        one.connections()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_content_end_with_their_head() {
    let address = serve(|stream: TcpStream| {
        serve_http(stream, true, |request: Request<Incoming>| async move {
            let mut answer = Response::new(Full::new(Bytes::from_static(b"body")));
            *answer.status_mut() = request.uri().path()[1..].parse().unwrap();
            answer
        })
    })
    .await;
    let rig = rig_of(&quiet(), address, BackendProtocol::H2c);
    let mut client = h2_client(&rig).await;
    for (status, ends) in [("204", true), ("205", true), ("304", true), ("200", false)] {
        let uri = format!("http://{HOST}/{status}");
        let request = Request::get(uri).body(full("")).unwrap();
        let answer = within("an answer", client.send_request(request)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status().as_str(), status);
        assert_eq!(answer.body().is_end_stream(), ends, "{status}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, if ends { "" } else { "body" });
        // In HTTP/1.1 too.
        let answer = get(&rig, HOST, &format!("/{status}")).await;
        assert_eq!(answer.status.to_string(), status);
        assert_eq!(answer.body, if ends { "" } else { "body" });
    }
}

/// The requests of one tenant cannot break those of another one by anything that they do to a connection.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_no_http2_connection_to_a_service_that_both_use() {
    let one = Echo::h2c("one").await;
    let rig = Rig::start(&quiet(), |port| {
        let route = |name: &str, tenant: &str| {
            let host = format!("{tenant}.example.com");
            let mut route = http_route(name, &host, vec![rule("/", BACKEND)]);
            if let Some(Wire::HttpRoute(route)) = &mut route.resource {
                tenant.clone_into(&mut route.tenant);
            }
            route
        };
        vec![
            http(port, "one", "team-a.example.com", None),
            http(port, "two", "team-b.example.com", None),
            route("one", "team-a"),
            route("two", "team-b"),
            backend_of(BACKEND, &[one.address], BackendProtocol::H2c),
        ]
    });
    // Requests of one connection have one worker, and so one pool.
    let mut client = h2_client(&rig).await;
    for round in 0..3 {
        for (tenant, connections) in [("team-a", 1), ("team-b", 2)] {
            let uri = format!("http://{tenant}.example.com/");
            let request = Request::get(uri).body(full("")).unwrap();
            assert_eq!(h2_ask(&mut client, request).await.0, StatusCode::OK);
            let expected = if round == 0 { connections } else { 2 };
            assert_eq!(one.connections(), expected, "{tenant} in round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_clients_reach_http1_backends() {
    let one = Echo::start("one").await;
    let rig = rig(one.address);
    let mut sender = h2_client(&rig).await;
    let request = Request::post(format!("http://{HOST}/x"))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers")
        .body(full("hello"))
        .unwrap();
    let (status, body) = h2_ask(&mut sender, request).await;
    assert_eq!(status, StatusCode::OK);
    let answer = Answer {
        status: 200,
        head: String::new(),
        body,
    };
    assert!(
        answer.body.starts_with("POST /x HTTP/1.1\n"),
        "{}",
        answer.body
    );
    assert_eq!(answer.echoed("host").as_deref(), Some(HOST));
    assert_eq!(answer.echoed("cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!(answer.echoed("te").as_deref(), Some("trailers"));
    assert_eq!(answer.echoed("connection").as_deref(), Some("te"));
    assert!(answer.body.ends_with("\n\nhello"), "{}", answer.body);
}

/// A backend that says in a trailer which trailers it got, and sends some that are not for the client.
async fn trailing(two: bool) -> SocketAddr {
    serve(move |stream: TcpStream| {
        serve_http(stream, two, move |request| async move {
            let collected = request.into_body().collect().await.unwrap();
            let got = collected.trailers().map(|trailers| {
                let mut names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
                names.sort_unstable();
                names.join(" ")
            });
            let mut trailers = HeaderMap::new();
            let got = got.unwrap_or_else(|| "none".into());
            trailers.insert("x-seen", got.parse().unwrap());
            trailers.insert("grpc-status", "0".parse().unwrap());
            // In HTTP/2 that would be an error.
            if !two {
                trailers.insert("keep-alive", "timeout=5".parse().unwrap());
            }
            let frames = [
                Ok::<_, hyper::Error>(Frame::data(collected.to_bytes())),
                Ok(Frame::trailers(trailers)),
            ];
            let body = StreamBody::new(futures::stream::iter(frames));
            Response::builder()
                .header("trailer", "x-seen, grpc-status, keep-alive")
                .body(body)
                .unwrap()
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_go_through_and_are_no_way_around() {
    const NAMES: [&str; 6] = [
        "x-sum",
        "x-forwarded-for",
        "x_forwarded_for",
        "x-edited",
        "forwarded",
        "expect",
    ];
    let two = trailing(true).await;
    let one = trailing(false).await;
    let mut rig = rig_of(&quiet(), two, BackendProtocol::H2c);
    let mut edited = rule("/", BACKEND);
    edited
        .filters
        .push(filter(Filter::RequestHeaders(proto::HeaderModifier {
            remove: vec!["x-edited".into()],
            ..Default::default()
        })));
    assert_eq!(
        rig.apply(vec![http_route("web", "", vec![edited])]),
        Vec::<String>::new()
    );
    for (address, protocol) in [
        (two, BackendProtocol::H2c),
        (one, BackendProtocol::Unspecified),
    ] {
        rig.apply(vec![backend_of(BACKEND, &[address], protocol)]);
        // HTTP/2.
        let mut sender = h2_client(&rig).await;
        let mut trailers = HeaderMap::new();
        for name in NAMES {
            trailers.insert(name, "6.6.6.6".parse().unwrap());
        }
        let frames = [
            Ok::<_, hyper::Error>(Frame::data(Bytes::from_static(b"hello"))),
            Ok(Frame::trailers(trailers)),
        ];
        let body = StreamBody::new(futures::stream::iter(frames)).boxed();
        let request = Request::post(format!("http://{HOST}/"))
            .header("trailer", NAMES.join(", "))
            .header("te", "trailers")
            .body(body)
            .unwrap();
        let answer = within("an answer", sender.send_request(request)).await;
        let collected = answer.unwrap().into_body().collect().await.unwrap();
        let trailers = collected.trailers().unwrap();
        assert_eq!(trailers["x-seen"], "x-sum", "{protocol:?}");
        assert_eq!(trailers["grpc-status"], "0");
        assert!(!trailers.contains_key("keep-alive"), "{trailers:?}");

        // HTTP/1.1, and without any that is left.
        for (first, seen) in [("x-sum: 1\r\n", "x-sum"), ("", "none")] {
            let fields = format!("{}: 6.6.6.6\r\n", NAMES[1..].join(": 6.6.6.6\r\n"));
            let head = format!(
                "POST / HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked\r\nte: trailers\r\n\
                 trailer: {}",
                NAMES.join(", ")
            );
            let body = format!("5\r\nhello\r\n0\r\n{first}{fields}\r\n");
            let answer = ask(&rig, &head, &body).await;
            assert_eq!(answer.status, 200);
            let text = &answer.body;
            assert!(text.contains("hello"), "{text}");
            assert!(text.contains(&format!("\r\nx-seen: {seen}\r\n")), "{text}");
            assert!(text.contains("\r\ngrpc-status: 0\r\n"), "{text}");
            assert!(!text.contains("keep-alive"), "{text}");
        }
    }
}

/// Answers an upgrade, and then sends back what comes.
async fn upgrading(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let asked = text.contains("\r\nconnection: upgrade\r\n")
        && text.contains("\r\nupgrade: websocket\r\n")
        && text.contains("\r\nsec-websocket-key: k\r\n");
    if !asked {
        let _ = stream
            .write_all(b"HTTP/1.1 426 Upgrade\r\ncontent-length: 0\r\n\r\n")
            .await;
        return;
    }
    let agreed =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-accept: a\r\n\r\nfirst";
    stream.write_all(agreed).await.unwrap();
    echo(stream).await;
}

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nhost: a.example.com\r\nconnection: keep-alive, Upgrade\r\n\
                       upgrade: WebSocket\r\nsec-websocket-key: k\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn websockets_go_both_ways_in_plaintext_and_tls() {
    let address = serve(upgrading).await;
    let own = Identity::new(HOST);
    for protocol in [BackendProtocol::Unspecified, BackendProtocol::Websocket] {
        let mut rig = Rig::start(&quiet(), |port| {
            vec![
                own.resource("team-a/own"),
                http(port, "web", HOST, Some("team-a/own")),
                http_route("web", HOST, vec![rule("/", BACKEND)]),
                backend_of(BACKEND, &[address], protocol),
            ]
        });
        let stream = tls(rig.connect().await, client_config(&own), HOST).await;
        websocket(stream.unwrap()).await;
        rig.wait_closed(CloseReason::ClientClosed, 1).await;
        let plain = rig_of(&quiet(), address, protocol);
        websocket(plain.connect().await).await;
        plain.wait_closed(CloseReason::ClientClosed, 1).await;
        // A drain waits for them, and cuts them in the end.
        let mut stream = tls(rig.connect().await, client_config(&own), HOST)
            .await
            .unwrap();
        stream.write_all(UPGRADE.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut stream).await.status, 101);
        let workers = rig.workers.take().unwrap();
        assert_eq!(within("the drain", workers.drain(Duration::ZERO)).await, 1);
    }
}

async fn websocket(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    let got = answer(&mut stream).await;
    assert_eq!(got.status, 101, "{}", got.head);
    assert_eq!(got.header("upgrade"), Some("websocket"));
    assert_eq!(got.header("sec-websocket-accept"), Some("a"));
    let mut first = [0; 5];
    within("bytes", stream.read_exact(&mut first))
        .await
        .unwrap();
    assert_eq!(&first, b"first");
    let (mut read, mut write) = tokio::io::split(stream);
    let sends = async {
        send(&mut write, 3, 3_000_000).await;
        write.shutdown().await.unwrap();
    };
    let receives = async {
        receive(&mut read, 3, 3_000_000).await;
        assert_eq!(read_to_end(&mut read).await.unwrap(), b"");
    };
    tokio::join!(sends, receives);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_websocket_that_breaks_names_the_side_that_broke() {
    for (is_client, reason) in [
        (true, CloseReason::ClientReset),
        (false, CloseReason::BackendReset),
    ] {
        let (address, accepted) = one_connection().await;
        let rig = rig(address);
        let mut client = rig.connect().await;
        client.write_all(UPGRADE.as_bytes()).await.unwrap();
        let mut server = accepted.await;
        let read = server.read(&mut [0; 4096]).await;
        assert!(read.unwrap() > 0);
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                      upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";
        server.write_all(agreed.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut client).await.status, 101);
        // By the time that a byte comes through, it is a tunnel.
        client.write_all(b"x").await.unwrap();
        within("a byte", server.read_u8()).await.unwrap();
        let (breaks, _stays) = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        breaks.set_zero_linger().unwrap();
        drop(breaks);
        rig.wait_closed(reason, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_websockets_is_upgraded() {
    let address = serve(upgrading).await;
    let rig = rig(address);
    for (from, to) in [
        ("upgrade: WebSocket", "upgrade: h2c"),
        ("keep-alive, Upgrade", "keep-alive"),
    ] {
        let mut stream = rig.connect().await;
        stream
            .write_all(UPGRADE.replace(from, to).as_bytes())
            .await
            .unwrap();
        assert_eq!(answer(&mut stream).await.status, 426);
    }
    // A backend that changes the protocol by itself is not believed.
    let rude = serve(|mut stream| async move {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let switched =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        let _ = stream.write_all(switched).await;
        let _ = stream.read(&mut head).await;
    })
    .await;
    assert_eq!(get(&self::rig(rude), HOST, "/").await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_flow_and_are_not_kept() {
    // Reads nothing of a body until it is told to.
    let (go, wait) = tokio::sync::watch::channel(false);
    let address = serve(move |stream| {
        let wait = wait.clone();
        async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let mut wait = wait.clone();
                async move {
                    wait.wait_for(|go| *go).await.unwrap();
                    // And then sends it back as it comes.
                    Ok::<_, std::convert::Infallible>(Response::new(request.into_body()))
                }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await;
    let rig = rig(address);
    let length = 64_000_000_u64;
    let stream = rig.connect().await;
    let (mut read, mut write) = stream.into_split();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    write.write_all(head.as_bytes()).await.unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let sends = tokio::spawn(async move {
        let chunk = vec![7; 64 * 1024];
        let mut left = length;
        while left > 0 {
            let now = left.min(chunk.len() as u64);
            write
                .write_all(&chunk[..usize::try_from(now).unwrap()])
                .await
                .unwrap();
            count.fetch_add(usize::try_from(now).unwrap(), Ordering::SeqCst);
            left -= now;
        }
        write
    });
    // It comes to a halt well before the end: what is under way is in sockets and small buffers.
    let mut last = usize::MAX;
    let halted = async {
        loop {
            let now = sent.load(Ordering::SeqCst);
            if now == last && now > 0 {
                return now;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let halted = within("a halt", halted).await;
    assert!(halted < 40_000_000, "{halted} bytes were taken");
    go.send(true).unwrap();
    let mut got = 0;
    let mut buffer = vec![0; 64 * 1024];
    let receives = async {
        loop {
            match read.read(&mut buffer).await.unwrap() {
                0 => return,
                n => got += n,
            }
        }
    };
    within("the rest", receives).await;
    assert!(got as u64 > length, "{got} bytes of head and body");
    sends.await.unwrap();
}

/// Several clients' requests are on one connection to an HTTP/2 backend.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_takes_nothing_holds_up_no_other_client_of_an_http2_backend() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream: TcpStream| {
        let asked = Arc::clone(&count);
        stream.set_nodelay(true).unwrap();
        serve_http(stream, true, move |request| {
            asked.fetch_add(1, Ordering::SeqCst);
            let length = if request.uri().path() == "/big" {
                10_000_000
            } else {
                1000
            };
            std::future::ready(Response::new(Full::new(Bytes::from(vec![7; length]))))
        })
    })
    .await;
    let rig = rig_of(&quiet(), address, BackendProtocol::H2c);
    // HTTP/1.1: what is not read waits in the proxy and behind it.
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut stream = rig.connect().await;
        let head = format!("GET /big HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    wait("the requests", || asked.load(Ordering::SeqCst) == 20).await;
    for _ in 0..50 {
        let answer = get(&rig, HOST, "/small").await;
        assert_eq!(answer.body.len(), 1000);
    }
    // And they get all of it when they come to read.
    for stream in &mut idle[..2] {
        let head = within("an answer", async {
            let mut text = String::new();
            while !text.ends_with("\r\n\r\n") {
                text.push(char::from(stream.read_u8().await.unwrap()));
            }
            parse(&text)
        });
        let length = head.await.header("content-length").unwrap().to_owned();
        let mut body = vec![0; length.parse().unwrap()];
        within("the body", stream.read_exact(&mut body))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_when_the_backend_takes_it() {
    let one = Echo::start("one").await;
    let rig = rig(one.address);
    let mut stream = rig.connect().await;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {HOST}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 100);
    stream.write_all(b"hello").await.unwrap();
    assert!(answer(&mut stream).await.body.ends_with("\n\nhello"));
    // Where there is no route, the body is not asked for.
    let nowhere = rig_of(&quiet(), nobody(), BackendProtocol::Unspecified);
    let mut stream = nowhere.connect().await;
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 503);
}

/// hyper has no way to send interim answers in HTTP/2. A client that waits for one sends its body after a while, as RFC 9110
/// section 10.1.1 has it, and is answered then.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_taken_without_being_asked_for_in_http2() {
    let one = Echo::start("one").await;
    let rig = rig(one.address);
    let (sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let request = Request::post(format!("http://{HOST}/")).header("expect", "100-continue");
    let request = request.body(()).unwrap();
    let (mut answer, mut upload) = sender.send_request(request, false).unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "an answer before the body: {early:?}");
    let body = Bytes::from_static(b"hello");
    upload.send_data(body, true).unwrap();
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(piece) = within("the body", body.data()).await {
        text.extend_from_slice(&piece.unwrap());
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("\n\nhello"), "{text}");
    assert!(!text.contains("expect: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_takes_its_request_along() {
    // Tells when the proxy's connection to it ends.
    let (tell, ended) = tokio::sync::mpsc::channel(1);
    let address = serve(move |mut stream| {
        let tell = tell.clone();
        async move {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes).await;
            let _ = tell.send(()).await;
        }
    })
    .await;
    let rig = rig(address);
    let mut stream = rig.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let opened = || {
        rig.plane
            .metrics
            .encode()
            .unwrap()
            .contains("connections_opened_total 1")
    };
    wait("a backend connection", opened).await;
    // By a reset: one that only ends its side waits for the answer (`half_close.rs`).
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    let mut ended = ended;
    within("the backend's end", ended.recv()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_stall_end_their_connection() {
    let one = Echo::start("one").await;
    let limits = ProxyLimits {
        http: HttpLimits {
            head_deadline: Duration::from_millis(500),
            stall: Duration::from_secs(1),
            ..HttpLimits::default()
        },
        ..quiet()
    };
    let rig = rig_of(&limits, one.address, BackendProtocol::Unspecified);
    let mut slow = rig.connect().await;
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 1000\r\n\r\nx");
    slow.write_all(head.as_bytes()).await.unwrap();
    let _ = within("the end", slow.read_to_end(&mut Vec::new())).await;
    rig.wait_closed(CloseReason::ClientStalled, 1).await;
    // A backend that takes its time is none of the client's doing.
    assert_eq!(get(&rig, HOST, "/?delay=2000").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_requests_end() {
    let one = Echo::start("one").await;
    let mut rig = rig(one.address);
    let mut stream = rig.connect().await;
    let head = format!("GET /?delay=500 HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    wait("the request", || one.requests() == 1).await;
    let workers = rig.workers.take().unwrap();
    let drained = tokio::spawn(workers.drain(Duration::from_hours(1)));
    let got = answer(&mut stream).await;
    assert_eq!(got.status, 200);
    assert_eq!(got.header("connection"), Some("close"));
    assert_eq!(within("the drain", drained).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn https_routes_by_listener_and_refuses_other_listeners_names() {
    let (one, two) = (Echo::start("one").await, Echo::start("two").await);
    let own = Identity::new("*.example.com");
    let rig = Rig::start(&quiet(), |port| {
        vec![
            own.resource("team-a/own"),
            http(port, "a", "a.example.com", Some("team-a/own")),
            http(port, "b", "b.example.com", Some("team-a/own")),
            http_route("a", "a.example.com", vec![rule("/", BACKEND)]),
            http_route("b", "b.example.com", vec![rule("/", "team-a/two:80")]),
            backend(BACKEND, &[one.address]),
            backend("team-a/two:80", &[two.address]),
        ]
    });
    for (host, status, name) in [
        ("a.example.com", 200, Some("one")),
        ("b.example.com", 421, None),
        ("c.example.com", 404, None),
    ] {
        let mut stream = tls(rig.connect().await, client_config(&own), HOST)
            .await
            .unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = read_to_end(&mut stream).await.unwrap();
        let answer = parse(&String::from_utf8_lossy(&text));
        assert_eq!(answer.status, status, "{host}");
        assert_eq!(answer.header("x-backend"), name);
        if status == 200 {
            assert_eq!(answer.echoed("x-forwarded-proto").as_deref(), Some("https"));
        }
    }
}
