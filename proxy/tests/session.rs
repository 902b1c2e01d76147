//! Session persistence on loopback: by cookie and by header, in HTTP/1.1, HTTP/2 and gRPC, over connections and over
//! proxies; what gives a new session, and what a client cannot do with a token. In a binary of its own, as one test
//! reads the log of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{COOKIE, HeaderMap, SET_COOKIE};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::sink::Sink;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto::http_session::Carrier;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Resource, proto};

const HOST: &str = "a.example.com";
const ONE: &str = "team-a/one:80";
const TWO: &str = "team-a/two:80";
const NONE: Vec<String> = Vec::new();

fn keys(of: &[u8]) -> Vec<proto::SessionKey> {
    let key = |n: &u8| proto::SessionKey { key: vec![*n; 32] };
    of.iter().map(key).collect()
}

fn cookie(name: &str) -> Carrier {
    Carrier::Cookie(proto::SessionCookie {
        name: name.into(),
        path: "/".into(),
        permanent: false,
    })
}

#[expect(clippy::unnecessary_wraps, reason = "as a rule has it")]
fn session(carrier: Carrier, of: &[u8]) -> Option<proto::HttpSession> {
    Some(proto::HttpSession {
        carrier: Some(carrier),
        absolute_timeout: None,
        keys: keys(of),
    })
}

/// A route for everything, with one rule.
fn web(backends: &[(&str, u32)], session: Option<proto::HttpSession>) -> Resource {
    let rule = proto::HttpRule {
        backends: backends
            .iter()
            .map(|(name, weight)| to(name, *weight))
            .collect(),
        session,
        ..rule("/", ONE)
    };
    http_route("web", "", vec![rule])
}

fn rig_of(session: Option<proto::HttpSession>, endpoints: &[SocketAddr]) -> Rig {
    let route = web(&[(ONE, 1)], session);
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            route.clone(),
            backend(ONE, endpoints),
        ]
    })
}

async fn three() -> [Echo; 3] {
    [
        Echo::start("one").await,
        Echo::start("two").await,
        Echo::start("three").await,
    ]
}

fn addresses(of: &[Echo]) -> Vec<SocketAddr> {
    of.iter().map(|echo| echo.address).collect()
}

/// GET on a connection of its own with these fields, each with its line's end.
async fn get_with(rig: &Rig, fields: &str) -> Answer {
    let fields = fields.trim_end();
    let fields = if fields.is_empty() {
        String::new()
    } else {
        format!("\r\n{fields}")
    };
    let answer = ask(rig, &format!("GET / HTTP/1.1\r\nhost: {HOST}{fields}"), "").await;
    assert_eq!(answer.status, 200, "{}", answer.head);
    answer
}

/// Which endpoint has answered.
fn by(answer: &Answer) -> String {
    answer.header("x-backend").unwrap().to_owned()
}

/// `name=value` of the cookie that an answer sets.
fn pair(answer: &Answer) -> Option<String> {
    let value = answer.header("set-cookie")?;
    Some(value.split(';').next().unwrap().to_owned())
}

/// A session: who answers, and the cookie.
async fn begin(rig: &Rig) -> (String, String) {
    let answer = get_with(rig, "").await;
    (by(&answer), pair(&answer).expect("a cookie"))
}

fn with(cookie: &str) -> String {
    format!("cookie: {cookie}\r\n")
}

fn metric(rig: &Rig, result: &str) -> u64 {
    let metrics = rig.plane.metrics.encode().unwrap();
    let begin = format!("vestibule_proxy_session_requests_total{{result=\"{result}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&begin));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_keeps_a_client_at_its_endpoint_over_connections_and_proxies() {
    let backends = three().await;
    let sticky = session(cookie("sticky"), &[1]);
    let rig = rig_of(sticky.clone(), &addresses(&backends));
    let other = rig_of(sticky, &addresses(&backends));
    let answer = get_with(&rig, "").await;
    let said = answer.header("set-cookie").unwrap();
    let (token, attributes) = said.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    for n in 0..40 {
        let rig = if n % 2 == 0 { &rig } else { &other };
        let again = get_with(rig, &with(&format!("a=b; {token}; c=d"))).await;
        assert_eq!(by(&again), by(&answer));
        // The client knows already, and the backend sees what the client sends.
        assert_eq!(again.header("set-cookie"), None);
        assert_eq!(again.echoed("cookie"), Some(format!("a=b; {token}; c=d")));
    }
    assert_eq!((metric(&rig, "Began"), metric(&rig, "Kept")), (1, 20));
    // Clients without a session have all endpoints.
    let mut seen = BTreeSet::new();
    for _ in 0..1000 {
        seen.insert(begin(&rig).await.0);
        if seen.len() == backends.len() {
            break;
        }
    }
    assert_eq!(seen.len(), backends.len());
}

async fn two(rig: &Rig) -> http2::SendRequest<Full<Bytes>> {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn send(rig: &Rig, request: Request<Full<Bytes>>) -> Response<hyper::body::Incoming> {
    let mut sender = two(rig).await;
    within("an answer", sender.send_request(request))
        .await
        .unwrap()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_has_sessions_by_header_and_by_cookies_in_several_fields() {
    let backends = three().await;
    let rig = rig_of(
        session(Carrier::Header("x-session".into()), &[1]),
        &addresses(&backends),
    );
    let request = || Request::get(format!("http://{HOST}/"));
    let first = send(&rig, request().body(Full::default()).unwrap()).await;
    let (token, name) = (
        text(first.headers(), "x-session").unwrap(),
        text(first.headers(), "x-backend").unwrap(),
    );
    for _ in 0..20 {
        let request = request().header("x-session", token);
        let again = send(&rig, request.body(Full::default()).unwrap()).await;
        assert_eq!(text(again.headers(), "x-backend"), Some(name));
        assert_eq!(text(again.headers(), "x-session"), None);
    }
    assert_eq!(first.headers().get(SET_COOKIE), None);

    let rig = rig_of(session(cookie("sticky"), &[1]), &addresses(&backends));
    let (name, pair) = begin(&rig).await;
    for _ in 0..20 {
        let request = request().header(COOKIE, "a=b").header(COOKIE, &pair);
        let again = send(&rig, request.body(Full::default()).unwrap()).await;
        assert_eq!(text(again.headers(), "x-backend"), Some(&*name));
        assert_eq!(again.headers().get(SET_COOKIE), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_grpc_have_sessions() {
    let backends = [
        Echo::h2c("one").await,
        Echo::h2c("two").await,
        Echo::h2c("three").await,
    ];
    for carrier in [Carrier::Header("x-session".into()), cookie("sticky")] {
        let mut route = web(&[(ONE, 1)], session(carrier, &[1]));
        if let Some(Wire::HttpRoute(mut of)) = route.resource.take() {
            let any = proto::GrpcMethod::default();
            of.rules[0].matches[0].path = Some(proto::http_match::Path::GrpcMethod(any));
            route.resource = Some(Wire::GrpcRoute(of));
        }
        let rig = Rig::start(&quiet(), |port| {
            vec![
                http(port, "web", "", None),
                route.clone(),
                backend(ONE, &addresses(&backends)),
            ]
        });
        let call = || {
            Request::post(format!("http://{HOST}/shop.v1.Cart/Add"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
        };
        let first = send(&rig, call().body(Full::default()).unwrap()).await;
        let name = text(first.headers(), "x-backend").unwrap();
        let header = text(first.headers(), "x-session");
        let cookie = text(first.headers(), "set-cookie");
        let cookie = cookie.map(|cookie| cookie.split(';').next().unwrap());
        let (field, token) = match (header, cookie) {
            (Some(token), None) => ("x-session", token),
            (None, Some(pair)) => ("cookie", pair),
            other => panic!("{other:?}"),
        };
        for _ in 0..50 {
            let request = call().header(field, token);
            let again = send(&rig, request.body(Full::default()).unwrap()).await;
            assert_eq!(text(again.headers(), "x-backend"), Some(name));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_cookie_is_for_tls_and_a_permanent_one_has_an_end() {
    let identity = Identity::new(HOST);
    let echo = Echo::start("one").await;
    let permanent = proto::HttpSession {
        carrier: Some(Carrier::Cookie(proto::SessionCookie {
            name: "sticky".into(),
            path: "/shop".into(),
            permanent: true,
        })),
        absolute_timeout: Some(300_000),
        keys: keys(&[1]),
    };
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", Some("team-a/cert")),
            web(&[(ONE, 1)], Some(permanent.clone())),
            backend(ONE, &[echo.address]),
            identity.resource("team-a/cert"),
        ]
    });
    let mut stream = tls(rig.connect().await, client_config(&identity), HOST)
        .await
        .unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = one_answer(&mut stream).await.unwrap();
    let said = answer
        .header("set-cookie")
        .unwrap()
        .split_once("; ")
        .unwrap();
    assert_eq!(
        said.1,
        "Path=/shop; HttpOnly; SameSite=Strict; Secure; Max-Age=300"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_endpoint_is_gone_or_fails_begins_anew() {
    let backends = three().await;
    let all = addresses(&backends);
    let mut rig = rig_of(session(cookie("sticky"), &[1]), &all);
    let (name, first) = begin(&rig).await;
    let gone = ["one", "two", "three"].iter().position(|of| *of == name);
    let gone = gone.unwrap();
    let served = backends[gone].requests();
    // It goes on to answer, but is no endpoint any more.
    let rest: Vec<_> = all.iter().copied().filter(|at| *at != all[gone]).collect();
    assert_eq!(rig.apply(vec![backend(ONE, &rest)]), NONE);
    let moved = get_with(&rig, &with(&first)).await;
    assert_ne!(by(&moved), name);
    let second = pair(&moved).expect("a new session");
    for _ in 0..20 {
        let again = get_with(&rig, &with(&second)).await;
        assert_eq!((by(&again), pair(&again)), (by(&moved), None));
    }
    assert_eq!(backends[gone].requests(), served);
    assert_eq!(metric(&rig, "Moved"), 1);
    // And back: the first token means that endpoint again, and the second one stays where it is.
    assert_eq!(rig.apply(vec![backend(ONE, &all)]), NONE);
    assert_eq!(by(&get_with(&rig, &with(&first)).await), name);
    assert_eq!(by(&get_with(&rig, &with(&second)).await), by(&moved));

    // One that takes no connection: the request goes elsewhere, and the session with it.
    let dead = refusing();
    assert_eq!(rig.apply(vec![backend(ONE, &[dead])]), NONE);
    let unanswered = ask(&rig, &format!("GET / HTTP/1.1\r\nhost: {HOST}"), "").await;
    assert_eq!((unanswered.status, pair(&unanswered)), (503, None));
    assert_eq!(rig.apply(vec![backend(ONE, &[dead, all[1]])]), NONE);
    let answer = get_with(&rig, &with(&first)).await;
    assert_eq!(by(&answer), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_made_again_takes_its_session_along() {
    let flaky = serve(|stream| {
        serve_http(stream, false, |_| async {
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = 503.try_into().unwrap();
            response
        })
    })
    .await;
    let good = Echo::start("good").await;
    let sticky = session(cookie("sticky"), &[1]);
    let mut rig = rig_of(sticky.clone(), &[flaky]);
    // The answer of an endpoint is one, whatever its status.
    let answer = ask(&rig, &format!("GET / HTTP/1.1\r\nhost: {HOST}"), "").await;
    assert_eq!(answer.status, 503);
    let first = pair(&answer).unwrap();
    let mut route = web(&[(ONE, 1)], sticky);
    if let Some(Wire::HttpRoute(route)) = &mut route.resource {
        route.rules[0].retry = Some(proto::HttpRetry {
            codes: vec![503],
            attempts: 1,
            backoff: Some(1),
        });
    }
    let both = backend(ONE, &[flaky, good.address]);
    assert_eq!(rig.apply(vec![route, both]), NONE);
    let answer = get_with(&rig, &with(&first)).await;
    assert_eq!(by(&answer), "good");
    let second = pair(&answer).expect("a new session");
    for _ in 0..20 {
        assert_eq!(by(&get_with(&rig, &with(&second)).await), "good");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_hold_with_sessions_and_each_backend_has_one() {
    let backends = [
        Echo::start("one").await,
        Echo::start("two").await,
        Echo::start("three").await,
        Echo::start("four").await,
    ];
    let all = addresses(&backends);
    let sticky = session(cookie("sticky"), &[1]);
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            web(&[(ONE, 3), (TWO, 1)], sticky.clone()),
            backend(ONE, &all[..2]),
            backend(TWO, &all[2..]),
        ]
    });
    // 400 clients without a session, then one client with sessions.
    let mut of_one = 0;
    for _ in 0..400 {
        of_one += usize::from(["one", "two"].contains(&&*begin(&rig).await.0));
    }
    // 300 expected, and the deviation is 9.
    assert!((230..370).contains(&of_one), "{of_one}");
    let mut cookie = String::new();
    let mut counts = BTreeMap::<String, usize>::new();
    for _ in 0..400 {
        let answer = get_with(&rig, &with(&format!("a=b; {cookie}"))).await;
        cookie = pair(&answer).unwrap_or(cookie);
        *counts.entry(by(&answer)).or_default() += 1;
    }
    let of = |names: [&str; 2]| names.map(|name| counts.get(name).copied().unwrap_or(0));
    let (first, second) = (of(["one", "two"]), of(["three", "four"]));
    // One endpoint of each backend has all of its requests.
    assert!(first.contains(&0) && second.contains(&0), "{counts:?}");
    let of_one: usize = first.iter().sum();
    assert!((230..370).contains(&of_one), "{counts:?}");
    // One without a weight gets nothing, sessions or not (GEP-1619: sessions do not override traffic splitting) ...
    let only_two = web(&[(ONE, 0), (TWO, 1)], sticky.clone());
    assert_eq!(rig.apply(vec![only_two]), NONE);
    for _ in 0..40 {
        let answer = get_with(&rig, &with(&cookie)).await;
        assert!(second[usize::from(by(&answer) == "four")] > 0);
        assert_eq!(pair(&answer), None);
    }
    // ... and its sessions go on when it has one again.
    let only_one = web(&[(ONE, 1), (TWO, 0)], sticky);
    assert_eq!(rig.apply(vec![only_one]), NONE);
    for _ in 0..40 {
        let answer = get_with(&rig, &with(&cookie)).await;
        assert!(first[usize::from(by(&answer) == "two")] > 0);
        assert_eq!(pair(&answer), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rotate_with_an_overlap() {
    let backends = three().await;
    let sticky = |of: &[u8]| web(&[(ONE, 1)], session(cookie("sticky"), of));
    let mut rig = rig_of(session(cookie("sticky"), &[1]), &addresses(&backends));
    let (name, first) = begin(&rig).await;
    // The next key is known before it seals.
    assert_eq!(rig.apply(vec![sticky(&[1, 2])]), NONE);
    let answer = get_with(&rig, &with(&first)).await;
    assert_eq!((by(&answer), pair(&answer)), (name.clone(), None));
    assert_eq!(rig.apply(vec![sticky(&[2, 1])]), NONE);
    let answer = get_with(&rig, &with(&first)).await;
    assert_eq!(by(&answer), name);
    let renewed = pair(&answer).expect("the token sealed with the new key");
    assert_eq!(rig.apply(vec![sticky(&[2])]), NONE);
    let answer = get_with(&rig, &with(&renewed)).await;
    assert_eq!((by(&answer), pair(&answer)), (name, None));
    // What is sealed with a key that is gone is nothing.
    let answer = get_with(&rig, &with(&first)).await;
    assert!(pair(&answer).is_some());
    assert_eq!(metric(&rig, "Unreadable"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_is_not_the_clients_to_move() {
    let backends = three().await;
    let short = proto::HttpSession {
        absolute_timeout: Some(1000),
        ..session(cookie("sticky"), &[1]).unwrap()
    };
    let rig = rig_of(Some(short), &addresses(&backends));
    let (_, first) = begin(&rig).await;
    // The client goes on to send it, and it ends all the same.
    let end = tokio::time::Instant::now() + PATIENCE;
    while metric(&rig, "Expired") == 0 {
        assert!(
            tokio::time::Instant::now() < end,
            "the session does not end"
        );
        let answer = get_with(&rig, &with(&first)).await;
        assert_eq!(pair(&answer).is_some(), metric(&rig, "Expired") > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_rule_or_of_the_clients_making_steers_nowhere() {
    let own = three().await;
    let hidden = Echo::start("hidden").await;
    let other = Echo::start("other").await;
    // The same backend in two rules, whose keys differ as the operator makes them differ.
    let rules = [("/", 1), ("/two", 2)].map(|(prefix, key)| proto::HttpRule {
        session: session(cookie("sticky"), &[key]),
        ..rule(prefix, ONE)
    });
    let tenant = |host: &str, key| {
        let path = all_paths();
        let mut route = route_of("team-b", "ListenerSet/team-a/web/tls", host, path);
        if let Some(Wire::HttpRoute(route)) = &mut route.resource {
            route.rules[0].session = session(cookie("sticky"), &[key]);
        }
        route
    };
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", rules.to_vec()),
            tenant("b.example.com", 3),
            backend(ONE, &addresses(&own)),
            // Another tenant's backend, at addresses of the first one and one of its own.
            backend("team-b/web:80", &[other.address]),
        ]
    });
    let (_, first) = begin(&rig).await;
    let (_, token) = first.split_once('=').unwrap();
    let get = async |host: &str, path: &str, cookie: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}");
        ask(&rig, &head, "").await
    };
    for (host, path) in [(HOST, "/two"), ("b.example.com", "/")] {
        let before = metric(&rig, "Unreadable");
        let answer = get(host, path, &first).await;
        assert_eq!(answer.status, 200);
        assert!(pair(&answer).is_some());
        assert_eq!(metric(&rig, "Unreadable"), before + 1);
    }
    let other_first = if token.starts_with('A') { 'B' } else { 'A' };
    let guesses = [
        hidden.address.to_string(),
        format!("{token}{token}"),
        token[1..].to_owned(),
        format!("{other_first}{}", &token[1..]),
        "A".repeat(72),
        "%".repeat(20_000),
        String::new(),
    ];
    for guess in guesses {
        let answer = get(HOST, "/", &format!("sticky={guess}")).await;
        assert_eq!(answer.status, 200, "{guess}");
        assert!(pair(&answer).is_some_and(|pair| pair != first), "{guess}");
    }
    assert_eq!(hidden.requests(), 0);
    // An address can be read out of no token, in whatever way it is written.
    let raw = token.as_bytes();
    for at in addresses(&own) {
        let port = at.port().to_string();
        assert!(!raw.windows(port.len()).any(|part| part == port.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_log_nor_dump_has_keys_or_tokens() {
    let sink = Sink::subscribe("info,vestibule_proxy=trace,vestibule_stream=trace");
    let echo = Echo::start("one").await;
    let of = session(cookie("sticky"), &[0xAB]);
    let mut rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            http(port, "web", "", None),
            web(&[(ONE, 1)], of.clone()),
            backend(ONE, &[echo.address]),
        ]
    });
    let (_, first) = begin(&rig).await;
    let forged = format!("{first}x");
    get_with(&rig, &with(&first)).await;
    get_with(&rig, &with(&forged)).await;
    // One that is refused is not shown either.
    let bad = proto::HttpSession {
        keys: vec![proto::SessionKey {
            key: vec![0xCD; 31],
        }],
        ..of.unwrap()
    };
    let shown = format!("{bad:?}");
    let rejects = rig.apply(vec![web(&[(ONE, 1)], Some(bad))]);
    assert_eq!(rejects.len(), 1);
    wait("the lines", || {
        sink.lines()
            .iter()
            .filter(|line| line["backend"] == ONE)
            .count()
            >= 3
    })
    .await;
    let dump = rig.dump();
    assert!(dump.contains("cookie sticky"), "{dump}");
    let token = first.split_once('=').unwrap().1;
    for (what, text) in [
        ("log", sink.text()),
        ("dump", dump),
        ("debug", shown),
        ("reject", rejects.concat()),
    ] {
        for secret in [token, "abababab", "171, 171", "205, 205", "cdcdcdcd"] {
            assert!(
                !text.to_lowercase().contains(&secret.to_lowercase()),
                "{what}: {secret}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_cannot_be_kept_are_rejected() {
    let mut rig = rig_of(None, &[]);
    let good = session(cookie("sticky"), &[1]).unwrap();
    let of_cookie = |name: &str, path: &str, permanent| {
        Some(Carrier::Cookie(proto::SessionCookie {
            name: name.into(),
            path: path.into(),
            permanent,
        }))
    };
    let carriers = [
        None,
        Some(Carrier::Header("a b".into())),
        Some(Carrier::Header("Content-Length".into())),
        Some(Carrier::Header("Set-Cookie".into())),
        of_cookie("a;b", "/", false),
        of_cookie("sticky", "/; Domain=example.com", false),
        of_cookie("sticky", "/", true),
    ];
    let bad = carriers.map(|carrier| proto::HttpSession {
        carrier,
        ..good.clone()
    });
    let keyless = [vec![], keys(&[1, 2, 3, 4, 5])].map(|keys| proto::HttpSession {
        keys,
        ..good.clone()
    });
    for bad in bad.into_iter().chain(keyless) {
        let rejects = rig.apply(vec![web(&[(ONE, 1)], Some(bad.clone()))]);
        assert_eq!(rejects.len(), 1, "{bad:?}");
    }
    assert_eq!(rig.apply(vec![web(&[(ONE, 1)], Some(good))]), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_and_a_session_go_together() {
    let backends = three().await;
    let rig = rig_of(session(cookie("sticky"), &[1]), &addresses(&backends));
    let (name, pair) = begin(&rig).await;
    for _ in 0..10 {
        let request = Request::post(format!("http://{HOST}/")).header(COOKIE, &pair);
        let body = Full::new(Bytes::from_static(b"hello"));
        let answer = send(&rig, request.body(body).unwrap()).await;
        assert_eq!(text(answer.headers(), "x-backend"), Some(&*name));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(b"hello"));
    }
}
