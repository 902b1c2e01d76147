//! HTTP routes on loopback: which backend a request reaches, and what filters make of it.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::http_filter::Filter;
use proto::path_modifier::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{EscapedSlashes, HttpLimits, ProxyLimits, Underscores};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";

/// A listener with a route of these rules, and the backends named.
fn rig(rules: &[proto::HttpRule], backends: &[(&str, &[std::net::SocketAddr])]) -> Rig {
    rig_with(&quiet(), rules, backends)
}

fn rig_with(
    limits: &ProxyLimits,
    rules: &[proto::HttpRule],
    backends: &[(&str, &[std::net::SocketAddr])],
) -> Rig {
    Rig::start(limits, |port| {
        let mut all = vec![
            http(port, "web", "*.example.com", None),
            http_route("web", "*.example.com", rules.to_vec()),
        ];
        all.extend(backends.iter().map(|(name, at)| backend(name, at)));
        all
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_the_backend_of_their_rule() {
    let (one, two) = (Echo::start("one").await, Echo::start("two").await);
    let rules = [rule("/", "team-a/one:80"), rule("/two", "team-a/two:80")];
    let rig = rig(
        &rules,
        &[
            ("team-a/one:80", &[one.address]),
            ("team-a/two:80", &[two.address]),
        ],
    );
    for (path, name) in [
        ("/", "one"),
        ("/two", "two"),
        ("/two/x?y=z", "two"),
        ("/twox", "one"),
    ] {
        let answer = get(&rig, HOST, path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("x-backend"), Some(name), "{path}");
        let first = format!("GET {path} HTTP/1.1\n");
        assert!(answer.body.starts_with(&first), "{}", answer.body);
        assert_eq!(answer.echoed("host").as_deref(), Some(HOST));
        assert_eq!(answer.header("keep-alive"), None);
    }
    let answer = get(&rig, "a.example.org", "/").await;
    assert_eq!(
        (answer.status, &*answer.body),
        (404, "no listener is for this host\n")
    );

    let head = format!("POST /two HTTP/1.1\r\nhost: {HOST}:8080\r\ncontent-length: 5");
    let answer = ask(&rig, &head, "hello").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.echoed("host"), Some(format!("{HOST}:8080")));
    assert!(answer.body.ends_with("\n\nhello"), "{}", answer.body);
    // hyper as a client would leave out the body of a GET whose length it does not know.
    for method in ["POST", "GET", "DELETE"] {
        let head = format!("{method} /two HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked");
        let answer = ask(&rig, &head, "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n").await;
        assert!(answer.body.ends_with("\n\nhello"), "{}", answer.body);
        assert_eq!(
            answer.echoed("transfer-encoding").as_deref(),
            Some("chunked"),
            "{method}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_leads_nowhere_gets_a_status_for_its_cause() {
    let one = Echo::start("one").await;
    let mut half = rule("/half", "team-a/one:80");
    half.backends.push(to("", 1));
    let mut none = rule("/none", "");
    none.backends.clear();
    let mut zero = rule("/zero", "team-a/one:80");
    zero.backends[0].weight = 0;
    let rules = [
        half,
        none,
        zero,
        rule("/invalid", ""),
        rule("/empty", "team-a/empty:80"),
        rule("/unknown", "team-a/unknown:80"),
        rule("/gone", "team-a/gone:80"),
    ];
    let rig = rig(
        &rules,
        &[
            ("team-a/one:80", &[one.address]),
            ("team-a/empty:80", &[]),
            ("team-a/gone:80", &[nobody(), nobody()]),
        ],
    );
    for (path, status) in [
        ("/none", 500),
        ("/zero", 500),
        ("/invalid", 500),
        ("/empty", 503),
        ("/unknown", 503),
        ("/gone", 503),
        ("/other", 404),
    ] {
        assert_eq!(get(&rig, HOST, path).await.status, status, "{path}");
    }
    let mut counts = BTreeMap::new();
    for _ in 0..200 {
        *counts
            .entry(get(&rig, HOST, "/half").await.status)
            .or_insert(0) += 1;
    }
    assert!((60..140).contains(&counts[&200]), "{counts:?}");
    assert_eq!(counts[&200] + counts[&500], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_kept_and_an_endpoint_that_is_gone_is_passed_over() {
    let (one, nine) = (Echo::start("one").await, Echo::start("nine").await);
    let mut weighted = rule("/", "team-a/one:80");
    weighted.backends.push(to("team-a/nine:80", 9));
    let rig = rig(
        &[weighted],
        &[
            ("team-a/one:80", &[one.address]),
            ("team-a/nine:80", &[nobody(), nine.address]),
        ],
    );
    let mut counts = BTreeMap::new();
    for _ in 0..400 {
        let answer = get(&rig, HOST, "/").await;
        assert_eq!(answer.status, 200);
        let name = answer.header("x-backend").unwrap().to_owned();
        *counts.entry(name).or_insert(0) += 1;
    }
    assert!((15..75).contains(&counts["one"]), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_a_route_is_for_the_next_request() {
    let (one, two) = (Echo::start("one").await, Echo::start("two").await);
    let mut rig = rig(
        &[rule("/", "team-a/one:80")],
        &[
            ("team-a/one:80", &[one.address]),
            ("team-a/two:80", &[two.address]),
        ],
    );
    assert_eq!(get(&rig, HOST, "/").await.header("x-backend"), Some("one"));
    let rules = vec![rule("/", "team-a/two:80")];
    let edited = http_route("web", "*.example.com", rules);
    assert_eq!(rig.apply(vec![edited]), Vec::<String>::new());
    assert_eq!(get(&rig, HOST, "/").await.header("x-backend"), Some("two"));
    // What cannot be put in force leaves the last good one.
    let mut bad = rule("/", "team-a/one:80");
    bad.filters.push(filter(Filter::Fail(200)));
    let rejects = rig.apply(vec![http_route("web", "*.example.com", vec![bad])]);
    assert!(rejects[0].starts_with("InvalidFilter "), "{rejects:?}");
    assert_eq!(get(&rig, HOST, "/").await.header("x-backend"), Some("two"));
}

fn field(name: &str, value: &str) -> proto::HttpField {
    proto::HttpField {
        name: name.into(),
        value: value.into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_changed_on_the_way_and_back() {
    let one = Echo::start("one").await;
    let edit = |suffix: &str| proto::HeaderModifier {
        set: vec![field("x-set", &format!("set{suffix}"))],
        add: vec![field("x-add", &format!("add{suffix}"))],
        remove: vec!["x-remove".into()],
    };
    let mut with = rule("/", "team-a/one:80");
    with.filters = vec![
        filter(Filter::RequestHeaders(edit("-rule"))),
        filter(Filter::ResponseHeaders(edit("-rule"))),
    ];
    with.backends[0].filters = vec![
        filter(Filter::RequestHeaders(edit("-backend"))),
        filter(Filter::ResponseHeaders(edit("-backend"))),
    ];
    let rig = rig(&[with], &[("team-a/one:80", &[one.address])]);
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nX-Set: own\r\nX-Add: own\r\nX-Remove: own\r\nx-other: own"
    );
    let answer = ask(&rig, &head, "").await;
    assert_eq!(answer.status, 200);
    let echoed = |name| answer.echoed(name);
    assert_eq!(echoed("x-set").as_deref(), Some("set-backend"));
    assert_eq!(echoed("x-add").as_deref(), Some("own,add-rule,add-backend"));
    assert_eq!(echoed("x-remove"), None);
    assert_eq!(echoed("x-other").as_deref(), Some("own"));
    assert_eq!(answer.header("x-set"), Some("set-backend"));
    assert_eq!(answer.head.matches("x-add: add-").count(), 2);
    assert_eq!(answer.header("x-remove"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_learns_who_asked_from_the_proxy_alone() {
    let one = Echo::start("one").await;
    let rig = rig(
        &[rule("/", "team-a/one:80")],
        &[("team-a/one:80", &[one.address])],
    );
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nx-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\n\
         forwarded: for=192.0.2.1\r\nx-forwarded-user: admin\r\nte: trailers\r\nexpect: 100-continue"
    );
    let answer = ask(&rig, &head, "").await;
    let echoed = |name| answer.echoed(name);
    assert_eq!(echoed("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(echoed("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(echoed("x-forwarded-host").as_deref(), Some(HOST));
    assert_eq!(
        echoed("x-forwarded-port"),
        Some(rig.address.port().to_string())
    );
    assert_eq!(echoed("te").as_deref(), Some("trailers"));
    assert_eq!(echoed("connection").as_deref(), Some("te"));
    for name in ["forwarded", "x-forwarded-user", "expect"] {
        assert_eq!(echoed(name), None, "{name}");
    }
}

/// Passes connections on to a port of loopback that is told later: what is behind it is not to be seen from here.
async fn detour() -> (
    std::net::SocketAddr,
    std::sync::Arc<std::sync::atomic::AtomicU16>,
) {
    let to = std::sync::Arc::new(std::sync::atomic::AtomicU16::new(0));
    let port = std::sync::Arc::clone(&to);
    let address = serve(move |mut from| {
        let port = port.load(std::sync::atomic::Ordering::Acquire);
        async move {
            let to = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to.unwrap()).await;
        }
    })
    .await;
    (address, to)
}

/// The backend of the route is the proxy itself, by an address that is not the proxy's.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_goes_round_in_circles_ends() {
    for hidden in [false, true] {
        let (address, to) = detour().await;
        let mut round = rule("/", "team-a/round:80");
        if hidden {
            round.filters = vec![filter(Filter::RequestHeaders(proto::HeaderModifier {
                remove: vec!["cdn-loop".into()],
                ..Default::default()
            }))];
        }
        let rig = Rig::start(&quiet(), |port| {
            vec![
                http(port, "web", HOST, None),
                http_route("web", HOST, vec![round.clone()]),
                backend("team-a/round:80", &[address]),
            ]
        });
        to.store(rig.address.port(), std::sync::atomic::Ordering::Release);
        assert_eq!(get(&rig, HOST, "/").await.status, 508);
        let text = rig.plane.metrics.encode().unwrap();
        let requests = text.lines().filter_map(|line| {
            let of = line.strip_prefix("vestibule_proxy_requests_total{")?;
            of.rsplit_once(' ')?.1.parse::<u64>().ok()
        });
        // The client has its answer before the proxy has counted the last of them.
        assert!(requests.sum::<u64>() <= 9);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_the_proxy_itself_gets_no_request() {
    let one = Echo::start("one").await;
    let rig = Rig::start(&quiet(), |port| {
        let itself = ([127, 0, 0, 1], port).into();
        vec![
            http(port, "web", HOST, None),
            http_route(
                "web",
                HOST,
                vec![rule("/", "team-a/round:80"), rule("/two", "team-a/two:80")],
            ),
            backend("team-a/round:80", &[itself]),
            backend("team-a/two:80", &[itself, one.address]),
        ]
    });
    let answer = get(&rig, HOST, "/").await;
    assert_eq!(answer.status, 508);
    assert!(
        answer.body.contains("the Gateway itself"),
        "{}",
        answer.body
    );
    // An endpoint beside it serves.
    for _ in 0..16 {
        assert_eq!(get(&rig, HOST, "/two").await.status, 200);
    }
    let metrics = rig.plane.metrics.encode().unwrap();
    let refused = r#"connect_failures_total{reason="BackendLoop"}"#;
    assert!(metrics.contains(refused), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn underscores_do_not_pass_for_dashes() {
    let one = Echo::start("one").await;
    let of = |underscores| {
        let mut limits = quiet();
        limits.http.underscores = underscores;
        rig_with(
            &limits,
            &[rule("/", "team-a/one:80")],
            &[("team-a/one:80", &[one.address])],
        )
    };
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nX_Forwarded_For: 6.6.6.6\r\nX_Own: 1\r\nx-own: 2"
    );
    let answer = ask(&of(Underscores::default()), &head, "").await;
    assert_eq!(answer.status, 200);
    for name in ["x_forwarded_for", "x_own"] {
        assert_eq!(answer.echoed(name), None, "{name}");
    }
    let echoed = |answer: &Answer, name| answer.echoed(name);
    assert_eq!(echoed(&answer, "x-own").as_deref(), Some("2"));

    let answer = ask(&of(Underscores::Allow), &head, "").await;
    assert_eq!(echoed(&answer, "x_own").as_deref(), Some("1"));
    assert_eq!(echoed(&answer, "x_forwarded_for"), None);

    let before = one.requests();
    let refuses = of(Underscores::Refuse);
    let answer = ask(&refuses, &head, "").await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("underscore"), "{}", answer.body);
    assert_eq!(one.requests(), before);
    assert_eq!(get(&refuses, HOST, "/?a_b=c_d").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn escaped_slashes_are_kept_where_they_may_be_and_dots_never() {
    let one = Echo::start("one").await;
    let mut limits = quiet();
    limits.http.escaped_slashes = EscapedSlashes::Keep;
    let rig = rig_with(
        &limits,
        &[rule("/raw", "team-a/one:80")],
        &[("team-a/one:80", &[one.address])],
    );
    for path in ["/raw/a%2Fx", "/raw/a\\x", "/raw/%5c", "/raw/%252f.."] {
        let answer = get(&rig, HOST, path).await;
        assert_eq!(answer.status, 200, "{path}");
        let line = format!("GET {path} HTTP/1.1\n");
        assert!(answer.body.starts_with(&line), "{}", answer.body);
    }
    let before = one.requests();
    for path in ["/raw/..;/x", "/raw/..%2fx", "/raw/..\\x", "/raw/%5c.."] {
        assert_eq!(get(&rig, HOST, path).await.status, 400, "{path}");
    }
    assert_eq!(one.requests(), before);
}

/// The rule is found by the path that the backend gets, also behind a redirect filter and in HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn escaped_slashes_are_decoded_once_before_a_rule_is_found() {
    let (one, two) = (Echo::start("one").await, Echo::start("two").await);
    let (mirrored, mut copies) = tokio::sync::mpsc::channel(8);
    let (mirror, _) = counting(move |request: Request<Incoming>| {
        let mirrored = mirrored.clone();
        async move {
            mirrored.send(request.uri().to_string()).await.unwrap();
            Response::new(Empty::<Bytes>::new())
        }
    })
    .await;
    let mut limits = quiet();
    limits.http.escaped_slashes = EscapedSlashes::Unescape;
    let mut moved = rule("/moved", "");
    moved.backends.clear();
    moved
        .filters
        .push(filter(Filter::Redirect(proto::HttpRedirect {
            status: 302,
            scheme: "https".into(),
            ..Default::default()
        })));
    let mut rewritten = rule("/old", "team-a/two:80");
    rewritten.filters = vec![
        filter(Filter::Mirror(proto::Mirror {
            backend: "team-a/three:80".into(),
            numerator: 1,
            denominator: 1,
        })),
        filter(Filter::Rewrite(proto::UrlRewrite {
            hostname: String::new(),
            path: Some(path(Path::Prefix("/new".into()))),
        })),
    ];
    let rig = rig_with(
        &limits,
        &[
            rule("/", "team-a/one:80"),
            rule("/raw/x", "team-a/two:80"),
            moved,
            rewritten,
        ],
        &[
            ("team-a/one:80", &[one.address]),
            ("team-a/two:80", &[two.address]),
            ("team-a/three:80", &[mirror]),
        ],
    );
    let cases = [
        ("/raw%2Fx", "two", "/raw/x"),
        ("/raw%2fx%2Fy?z=%2F", "two", "/raw/x/y?z=%2F"),
        ("/raw%252Fx", "one", "/raw%252Fx"),
        ("/%2Fraw%2Fx", "one", "//raw/x"),
        ("/a%20b%2F?c", "one", "/a%20b/?c"),
        ("/old%2Fx%20y", "two", "/new/x%20y"),
    ];
    for (path, backend, expected) in cases {
        let answer = get(&rig, HOST, path).await;
        assert_eq!(answer.header("x-backend"), Some(backend), "{path}");
        let line = format!("GET {expected} HTTP/1.1\n");
        assert!(answer.body.starts_with(&line), "{}", answer.body);
    }
    let answer = get(&rig, HOST, "/moved%2F%2Fb.example.org").await;
    let location = format!("https://{HOST}/moved//b.example.org");
    assert_eq!(answer.header("location"), Some(&*location));
    let before = (one.requests(), two.requests());
    for path in [
        "/raw%5Cx",
        "/raw\\x",
        "/raw%2F..%2Fx",
        "/raw/..%2fx",
        "/a%2f%2e",
    ] {
        assert_eq!(get(&rig, HOST, path).await.status, 400, "{path}");
    }
    assert_eq!((one.requests(), two.requests()), before);

    let io = TokioIo::new(rig.connect().await);
    let made = http2::handshake(TokioExecutor::new(), io).await;
    let (mut sender, connection) = made.unwrap();
    tokio::spawn(connection);
    for (path, backend, expected) in cases {
        let request = Request::get(format!("http://{HOST}{path}"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = within("an answer", sender.send_request(request)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.headers()["x-backend"], backend, "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let line = format!("GET {expected} HTTP/1.1\n");
        assert!(body.starts_with(line.as_bytes()), "{body:?}");
    }
    // The mirror of the rewrite got the same path as the backend, of either version.
    for _ in 0..2 {
        let copy = within("a copy", copies.recv()).await;
        assert_eq!(copy.as_deref(), Some("/new/x%20y"));
    }
}

fn path(path: Path) -> proto::PathModifier {
    proto::PathModifier { path: Some(path) }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_answer_without_a_backend() {
    let redirect = |prefix: &str, redirect: proto::HttpRedirect| {
        let mut rule = rule(prefix, "");
        rule.backends.clear();
        rule.filters.push(filter(Filter::Redirect(redirect)));
        rule
    };
    let with = |status| proto::HttpRedirect {
        status,
        ..Default::default()
    };
    let rules = [
        redirect(
            "/host",
            proto::HttpRedirect {
                hostname: "b.example.org".into(),
                ..with(301)
            },
        ),
        redirect(
            "/https",
            proto::HttpRedirect {
                scheme: "https".into(),
                ..with(308)
            },
        ),
        redirect(
            "/prefix",
            proto::HttpRedirect {
                port: 8443,
                path: Some(path(Path::Prefix("/new/".into()))),
                ..with(307)
            },
        ),
        redirect(
            "/full",
            proto::HttpRedirect {
                port: 80,
                path: Some(path(Path::Full("/all".into()))),
                ..with(303)
            },
        ),
    ];
    let rig = rig(&rules, &[]);
    let port = rig.address.port();
    for (path, status, location) in [
        (
            "/host/x?y",
            301,
            format!("http://b.example.org:{port}/host/x?y"),
        ),
        ("/https", 308, format!("https://{HOST}/https")),
        ("/prefix/x", 307, format!("http://{HOST}:8443/new/x")),
        ("/full/x?y", 303, format!("http://{HOST}/all?y")),
    ] {
        let answer = get(&rig, &format!("{HOST}:99"), path).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("location"), Some(&*location), "{path}");
        assert_eq!(answer.header("content-length"), Some("0"), "{path}");
        assert_eq!(answer.header("cache-control"), None, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rewrites_are_what_the_backend_sees() {
    let one = Echo::start("one").await;
    let rewrite = |prefix: &str, hostname: &str, path: Option<proto::PathModifier>| {
        let mut rule = rule(prefix, "team-a/one:80");
        rule.filters.push(filter(Filter::Rewrite(proto::UrlRewrite {
            hostname: hostname.into(),
            path,
        })));
        rule
    };
    let mut late = rule("/late", "team-a/one:80");
    late.backends[0].filters = rewrite("", "", Some(path(Path::Full("/late/full".into())))).filters;
    let rules = [
        rewrite("/prefix/one", "", Some(path(Path::Prefix("/one".into())))),
        rewrite("/strip", "", Some(path(Path::Prefix("/".into())))),
        rewrite(
            "/full",
            "b.example.org",
            Some(path(Path::Full("/all".into()))),
        ),
        late,
    ];
    let rig = rig(&rules, &[("team-a/one:80", &[one.address])]);
    for (path, seen, host) in [
        ("/prefix/one/two?q=1", "/one/two?q=1", HOST),
        ("/strip", "/", HOST),
        ("/strip/x/", "/x/", HOST),
        ("/full/x?q", "/all?q", "b.example.org"),
        ("/late/x", "/late/full", HOST),
    ] {
        let answer = get(&rig, HOST, path).await;
        let first = format!("GET {seen} HTTP/1.1\n");
        assert!(answer.body.starts_with(&first), "{path}: {}", answer.body);
        assert_eq!(answer.echoed("host").as_deref(), Some(host), "{path}");
        assert_eq!(answer.echoed("x-forwarded-host").as_deref(), Some(HOST));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_end_a_request_and_zero_is_none() {
    let one = Echo::start("one").await;
    let with = |prefix: &str, request, backend_request| proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request,
            backend_request,
        }),
        ..rule(prefix, "team-a/one:80")
    };
    let rules = [
        with("/request", Some(100), None),
        with("/backend", None, Some(100)),
        with("/both", Some(60_000), Some(100)),
        with("/off", Some(0), Some(0)),
    ];
    let rig = rig(&rules, &[("team-a/one:80", &[one.address])]);
    for path in ["/request", "/backend", "/both", "/off"] {
        assert_eq!(get(&rig, HOST, path).await.status, 200, "{path}");
    }
    for path in ["/request", "/backend", "/both"] {
        let answer = get(&rig, HOST, &format!("{path}?delay=60000")).await;
        assert_eq!(answer.status, 504, "{path}");
    }
    assert_eq!(get(&rig, HOST, "/off?delay=300").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_fails_answers_every_request() {
    let mut failing = rule("/", "team-a/one:80");
    failing.filters.push(filter(Filter::Fail(500)));
    let rig = rig(&[failing], &[]);
    assert_eq!(get(&rig, HOST, "/x").await.status, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_is_unclear_or_asks_for_a_tunnel_is_refused() {
    let one = Echo::start("one").await;
    let rig = rig(
        &[rule("/", "team-a/one:80")],
        &[("team-a/one:80", &[one.address])],
    );
    for path in ["/a/../b", "/a/%2e%2E/b", "/."] {
        assert_eq!(get(&rig, HOST, path).await.status, 400, "{path}");
    }
    for path in [
        "/raw/..;/x",
        "/raw/..%2fx",
        "/raw/..\\x",
        "/raw/%5c..",
        "/raw/a%2Fx",
        "/raw\\x",
    ] {
        let answer = get(&rig, HOST, path).await;
        assert_eq!(answer.status, 400, "{path}");
        let text = answer.body.contains("so it is not clear what it is for");
        assert!(text, "{path}: {}", answer.body);
    }
    let head = format!("CONNECT {HOST}:443 HTTP/1.1\r\nhost: {HOST}:443");
    assert_eq!(ask(&rig, &head, "").await.status, 405);
    assert_eq!(one.requests(), 0);
}

/// The cost of patterns such as `/<count>` that read a whole path is bounded. A request does not get in by a rule that
/// comes after those that were not tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_would_be_matched_for_too_long_reaches_nobody() {
    let one = Echo::start("one").await;
    let slow = |n: usize| proto::HttpMatch {
        path: Some(proto::http_match::Path::Regex(format!("/.*x{n}"))),
        ..Default::default()
    };
    let mut guarded = rule("/", "team-a/one:80");
    guarded.matches = (0..60).map(slow).collect();
    guarded.filters.push(filter(Filter::Fail(500)));
    let rig = rig(
        &[guarded, rule("/", "team-a/one:80")],
        &[("team-a/one:80", &[one.address])],
    );
    let path = |length: usize, end: &str| format!("/{}{end}", "1".repeat(length));
    let status = async |path: String| get(&rig, HOST, &path).await.status;
    // These are 242,000 steps, which have to wait for their turn.
    assert_eq!(status(path(4_000, "")).await, 200);
    assert_eq!(status(path(4_000, "x59")).await, 500);
    let before = one.requests();
    for end in ["", "x0", "x59"] {
        let answer = get(&rig, HOST, &path(60_000, end)).await;
        let text = answer.body.contains("too long to find out");
        assert!(answer.status == 503 && text, "{end}: {answer:?}");
    }
    assert_eq!(one.requests(), before);
}

/// The proxy answers every request by itself. `/redirect`, `/invalid` and `/empty` are redirected, 500 and 503.
fn answering(limits: &ProxyLimits) -> Rig {
    let mut redirect = rule("/redirect", "");
    redirect.backends.clear();
    redirect
        .filters
        .push(filter(Filter::Redirect(proto::HttpRedirect {
            status: 302,
            ..Default::default()
        })));
    let rules = [
        redirect,
        rule("/invalid", ""),
        rule("/empty", "team-a/empty:80"),
    ];
    rig_with(limits, &rules, &[("team-a/empty:80", &[])])
}

fn post(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: {HOST}\r\n{fields}\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_body_that_nobody_needs_leaves_the_connection_to_the_next_request() {
    let rig = answering(&quiet());
    for (path, status) in [
        ("/redirect", 302),
        ("/invalid", 500),
        ("/empty", 503),
        ("/nowhere", 404),
    ] {
        let mut stream = rig.connect().await;
        for _ in 0..3 {
            let head = post(path, "content-length: 3000");
            stream.write_all(head.as_bytes()).await.unwrap();
            let answer = one_answer(&mut stream).await.unwrap();
            assert_eq!(answer.status, status, "{path}");
            assert_eq!(answer.header("connection"), None, "{path}");
            // The body comes after the answer.
            stream.write_all(&[b'x'; 3000]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_nobody_reads_ends_the_connection_with_the_answer() {
    let rig = answering(&quiet());
    let long = "x".repeat(200_000);
    for (fields, body) in [
        ("content-length: 200000", &*long),
        ("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        for path in ["/redirect", "/invalid", "/empty", "/nowhere"] {
            let (mut read, mut write) = rig.connect().await.into_split();
            let request = format!("{}{body}", post(path, fields));
            // The client sends everything, and the answer is there although nobody read it.
            let (sent, answer) =
                tokio::join!(write.write_all(request.as_bytes()), read_to_end(&mut read));
            let answer = String::from_utf8(answer.unwrap()).unwrap();
            sent.unwrap();
            let answer = parse(&answer);
            assert_eq!(answer.header("connection"), Some("close"), "{path}");
            let length = answer.body.len().to_string();
            assert_eq!(answer.header("content-length"), Some(&*length), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_waits_to_be_asked_for_is_not_asked_for_in_vain() {
    let rig = answering(&quiet());
    let mut stream = rig.connect().await;
    let head = post("/redirect", "content-length: 5\r\nexpect: 100-continue");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = one_answer(&mut stream).await.unwrap();
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(read_to_end(&mut stream).await.unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_does_not_finish_a_body_is_not_waited_for_without_end() {
    let rig = answering(&ProxyLimits {
        http: HttpLimits {
            head_deadline: Duration::from_millis(100),
            stall: Duration::from_millis(200),
            ..HttpLimits::default()
        },
        ..quiet()
    });
    let mut stream = rig.connect().await;
    let head = post("/redirect", "content-length: 5");
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 302);
    stream.write_all(b"xxxx").await.unwrap();
    let _ = within("the end", stream.read_to_end(&mut Vec::new())).await;
    rig.wait_closed(CloseReason::ClientStalled, 1).await;
}

/// A backend that reads requests to their last byte, and goes away.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_a_backend_has_read_leaves_the_connection_to_the_next_request() {
    let address = serve(|mut stream: tokio::net::TcpStream| async move {
        let mut request = Vec::new();
        while !request.ends_with(b"hello") && !request.ends_with(b"hello\r\n0\r\n\r\n") {
            if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                return;
            }
        }
    })
    .await;
    let mut retried = rule("/retried", "team-a/one:80");
    retried.retry = Some(proto::HttpRetry {
        attempts: 1,
        codes: vec![500],
        ..Default::default()
    });
    let rules = [rule("/", "team-a/one:80"), retried];
    let rig = rig(&rules, &[("team-a/one:80", &[address])]);
    let mut stream = rig.connect().await;
    for path in ["/", "/retried"] {
        for (fields, body) in [
            ("content-length: 5", "hello"),
            ("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
        ] {
            let request = format!("{}{body}", post(path, fields));
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = one_answer(&mut stream).await.unwrap();
            assert_eq!(answer.status, 502, "{path} {fields}");
            assert_eq!(answer.header("connection"), None, "{path} {fields}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_of_a_backend_arrives_whatever_the_client_still_sends() {
    let address = serve(|mut stream: tokio::net::TcpStream| async move {
        let mut request = Vec::new();
        while !request.windows(4).any(|at| at == b"\r\n\r\n") {
            stream.read_buf(&mut request).await.unwrap();
        }
        let answer = b"HTTP/1.1 401 no\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
        stream.write_all(answer).await.unwrap();
    })
    .await;
    let rig = rig(
        &[rule("/", "team-a/one:80")],
        &[("team-a/one:80", &[address])],
    );
    let (mut read, mut write) = rig.connect().await.into_split();
    let length = 1_000_000;
    let head = post("/", &format!("content-length: {length}"));
    let request = format!("{head}{}", "x".repeat(length));
    let (sent, answer) = tokio::join!(write.write_all(request.as_bytes()), one_answer(&mut read));
    let answer = answer.unwrap();
    sent.unwrap();
    assert_eq!((answer.status, &*answer.body), (401, "no"));
}
