//! CORS filters on loopback: what pages of other origins are told, and that preflight requests reach no backend. The
//! cases of upstream's conformance test `HTTPRouteCORS` are among these.

use std::fmt::Write as _;

use proto::http_filter::Filter;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn cors(origins: &[&str]) -> proto::Cors {
    proto::Cors {
        allow_origins: list(origins),
        max_age: 5,
        ..Default::default()
    }
}

fn with(prefix: &str, cors: proto::Cors) -> proto::HttpRule {
    proto::HttpRule {
        filters: vec![filter(Filter::Cors(cors))],
        ..rule(prefix, BACKEND)
    }
}

async fn rig(rules: Vec<proto::HttpRule>) -> (Rig, Echo) {
    let one = Echo::start("one").await;
    let address = one.address;
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", rules.clone()),
            backend(BACKEND, &[address]),
        ]
    });
    (rig, one)
}

async fn send(rig: &Rig, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {HOST}");
    for (name, value) in fields {
        write!(head, "\r\n{name}: {value}").unwrap();
    }
    ask(rig, &head, "").await
}

/// What an answer says of CORS, without the beginning of the names.
fn said(answer: &Answer) -> Vec<String> {
    let mut lines: Vec<String> = answer
        .head
        .lines()
        .filter_map(|line| line.strip_prefix("access-control-"))
        .map(ToOwned::to_owned)
        .collect();
    lines.sort();
    lines
}

const ORIGIN: &str = "origin";
const METHOD: &str = "access-control-request-method";
const HEADERS: &str = "access-control-request-headers";

/// The routes of upstream's test.
async fn upstream() -> (Rig, Echo) {
    let everything = |credentials| proto::Cors {
        allow_methods: list(&["*"]),
        allow_headers: list(&["*"]),
        allow_credentials: credentials,
        ..cors(&["*"])
    };
    rig(vec![
        with(
            "/cors-1",
            proto::Cors {
                allow_credentials: true,
                allow_methods: list(&["GET", "OPTIONS"]),
                allow_headers: list(&["x-header-1", "x-header-2"]),
                expose_headers: list(&["x-header-3", "x-header-4"]),
                max_age: 3600,
                ..cors(&["https://www.foo.com", "https://*.bar.com"])
            },
        ),
        with(
            "/cors-2",
            proto::Cors {
                allow_methods: list(&["*"]),
                ..cors(&["https://www.foo.com"])
            },
        ),
        with(
            "/cors-wildcard-origin",
            proto::Cors {
                allow_methods: list(&["PUT"]),
                ..cors(&["*"])
            },
        ),
        with("/all", everything(true)),
        with("/all-unauth", everything(false)),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_s_cases_of_preflight_requests_hold() {
    let (rig, one) = upstream().await;
    for origin in [
        "https://www.foo.com",
        "https://www.bar.com",
        "https://xpto.www.bar.com",
    ] {
        let asked = [
            (ORIGIN, origin),
            (METHOD, "GET"),
            (HEADERS, "x-header-1, x-header-2"),
        ];
        let answer = send(&rig, "OPTIONS", "/cors-1", &asked).await;
        assert_eq!((answer.status, &*answer.body), (204, ""));
        let all = [
            "allow-credentials: true".to_owned(),
            "allow-headers: x-header-1, x-header-2".to_owned(),
            "allow-methods: GET, OPTIONS".to_owned(),
            format!("allow-origin: {origin}"),
            "expose-headers: x-header-3, x-header-4".to_owned(),
            "max-age: 3600".to_owned(),
        ];
        assert_eq!(said(&answer), all);
        assert_eq!(answer.header("vary"), Some("origin"));
    }
    let foreign = [(ORIGIN, "https://foobar.com"), (METHOD, "GET")];
    let answer = send(&rig, "OPTIONS", "/cors-1", &foreign).await;
    assert_eq!((answer.status, said(&answer)), (403, vec![]));
    let foo = [(ORIGIN, "https://www.foo.com"), (METHOD, "POST")];
    let answer = send(&rig, "OPTIONS", "/cors-2", &foo).await;
    let all = [
        "allow-methods: POST",
        "allow-origin: https://www.foo.com",
        "max-age: 5",
    ];
    assert_eq!((answer.status, said(&answer)), (204, list(&all)));
    for origin in ["https://foobar.com", "https://foobar.com:12345"] {
        let asked = [(ORIGIN, origin), (METHOD, "PUT")];
        let answer = send(&rig, "OPTIONS", "/cors-wildcard-origin", &asked).await;
        let all = ["allow-methods: PUT", "allow-origin: *", "max-age: 5"];
        assert_eq!((answer.status, said(&answer)), (204, list(&all)));
    }
    let other = [
        (ORIGIN, "https://other.foo.com"),
        (METHOD, "PUT"),
        (HEADERS, "x-header-1, x-header-2"),
    ];
    let answer = send(&rig, "OPTIONS", "/all", &other).await;
    let all = [
        "allow-credentials: true",
        "allow-headers: x-header-1, x-header-2",
        "allow-methods: PUT",
        "allow-origin: https://other.foo.com",
        "max-age: 5",
    ];
    assert_eq!((answer.status, said(&answer)), (204, list(&all)));
    let answer = send(&rig, "OPTIONS", "/all-unauth", &other).await;
    let all = [
        "allow-headers: x-header-1, x-header-2",
        "allow-methods: PUT",
        "allow-origin: *",
        "max-age: 5",
    ];
    assert_eq!((answer.status, said(&answer)), (204, list(&all)));
    // None of these reached the backend.
    assert_eq!(one.requests(), 0);
    let metrics = rig.plane.metrics.encode().unwrap();
    for (result, count) in [("Allowed", 8), ("Refused", 1)] {
        let line = format!("vestibule_proxy_cors_preflights_total{{result=\"{result}\"}} {count}");
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_s_cases_of_other_requests_hold() {
    let (rig, one) = upstream().await;
    for (method, path, origin, all) in [
        (
            "GET",
            "/cors-1",
            "https://www.foo.com",
            vec![
                "allow-credentials: true",
                "allow-origin: https://www.foo.com",
                "expose-headers: x-header-3, x-header-4",
            ],
        ),
        ("GET", "/cors-1", "https://foobar.com", vec![]),
        (
            "PUT",
            "/cors-wildcard-origin",
            "https://foobar.com:12345",
            vec!["allow-origin: *"],
        ),
        (
            "GET",
            "/all",
            "https://other.foo.com",
            vec![
                "allow-credentials: true",
                "allow-origin: https://other.foo.com",
            ],
        ),
        (
            "GET",
            "/all-unauth",
            "https://other.foo.com",
            vec!["allow-origin: *"],
        ),
    ] {
        let answer = send(&rig, method, path, &[(ORIGIN, origin)]).await;
        assert_eq!((answer.status, said(&answer)), (200, list(&all)), "{path}");
        assert_eq!(answer.header("x-backend"), Some("one"));
    }
    assert_eq!(one.requests(), 5);
}

/// Browsers do not accept `*` together with credentials, so they get the names beside it alone.
#[tokio::test(flavor = "multi_thread")]
async fn names_beside_the_wildcard_are_exposed_also_with_credentials() {
    let exposing = |prefix: &str, names: &[&str], credentials| {
        let filter = proto::Cors {
            expose_headers: list(names),
            allow_credentials: credentials,
            ..cors(&["https://a.example"])
        };
        with(prefix, filter)
    };
    let both = ["*", "x-a", "x-b"];
    let (rig, _) = rig(vec![
        exposing("/open", &both, false),
        exposing("/with", &both, true),
        exposing("/all", &["*"], false),
        exposing("/nothing", &["*"], true),
    ])
    .await;
    for (path, exposed) in [
        ("/open", Some("expose-headers: *, x-a, x-b")),
        ("/with", Some("expose-headers: x-a, x-b")),
        ("/all", Some("expose-headers: *")),
        ("/nothing", None),
    ] {
        let answer = send(&rig, "GET", path, &[(ORIGIN, "https://a.example")]).await;
        assert_eq!(answer.status, 200, "{path}");
        let lines = said(&answer);
        let line = lines.iter().find(|line| line.starts_with("expose-headers"));
        assert_eq!(line.map(String::as_str), exposed, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_proxy_itself_can_be_read_by_pages_too() {
    let redirect = proto::HttpRedirect {
        hostname: "b.example.com".into(),
        status: 302,
        ..Default::default()
    };
    let mut redirected = with("/redirect", cors(&["https://a.example"]));
    redirected.backends.clear();
    // Before the other: a browser does not follow a redirect that answers a preflight request.
    let redirect = filter(Filter::Redirect(redirect));
    redirected.filters.insert(0, redirect);
    let mut nowhere = with("/nowhere", cors(&["https://a.example"]));
    nowhere.backends = vec![to("", 1)];
    let mut failing = with("/fails", cors(&["https://a.example"]));
    failing.filters.push(filter(Filter::Fail(500)));
    let (rig, _) = rig(vec![redirected, nowhere, failing]).await;
    let origin = (ORIGIN, "https://a.example");
    let preflight = [origin, (METHOD, "PUT")];
    for (path, status, first) in [
        ("/redirect", 302, 204),
        ("/nowhere", 500, 204),
        ("/fails", 500, 500),
    ] {
        let answer = send(&rig, "GET", path, &[origin]).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(said(&answer), ["allow-origin: https://a.example"]);
        let answer = send(&rig, "OPTIONS", path, &preflight).await;
        assert_eq!(answer.status, first, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_change_what_is_refused_before_a_backend_is_asked() {
    let mut own = with("/", cors(&["https://a.example"]));
    own.filters
        .push(filter(Filter::ResponseHeaders(proto::HeaderModifier {
            set: vec![proto::HttpField {
                name: "x-frame-options".into(),
                value: "deny".into(),
            }],
            ..Default::default()
        })));
    let (mut rig, one) = rig(vec![own]).await;
    let listener = http(rig.address.port(), "web", "", None);
    let limits = proto::ListenerLimits {
        request_body: Some(10),
        ..Default::default()
    };
    let settings = proto::GatewaySettings {
        limits: Some(limits),
        ..Default::default()
    };
    let edit = with_settings(listener, settings).to_vec();
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    let circles = ["vestibule.dev"; 8].join(", ");
    for (name, value, status) in [("content-length", "11", 413), ("cdn-loop", &*circles, 508)] {
        let fields = [(ORIGIN, "https://a.example"), (name, value)];
        let answer = send(&rig, "POST", "/", &fields).await;
        assert_eq!(answer.status, status);
        assert_eq!(said(&answer), ["allow-origin: https://a.example"]);
        assert_eq!(answer.header("x-frame-options"), Some("deny"), "{name}");
    }
    assert_eq!(one.requests(), 0);
}

/// A backend that lets everybody in has no say.
#[tokio::test(flavor = "multi_thread")]
async fn cors_headers_of_a_backend_are_taken_out() {
    let address = serve(|mut stream| async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let open = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nvary: accept\r\n\
            access-control-allow-origin: https://evil.example\r\n\
            access-control-allow-credentials: true\r\n\
            access-control-allow-private-network: true\r\n\r\n";
        let _ = stream.write_all(open).await;
    })
    .await;
    let (mut rig, _) = rig(vec![with("/", cors(&["https://a.example"]))]).await;
    assert!(rig.apply(vec![backend(BACKEND, &[address])]).is_empty());
    for (origin, all) in [
        ("https://evil.example", vec![]),
        ("null", vec![]),
        ("https://a.example", vec!["allow-origin: https://a.example"]),
    ] {
        let answer = send(&rig, "GET", "/", &[(ORIGIN, origin)]).await;
        assert_eq!(
            (answer.status, said(&answer)),
            (200, list(&all)),
            "{origin}"
        );
        let vary: Vec<_> = answer.headers("vary").collect();
        assert_eq!(vary, ["accept", "origin"]);
    }
}
