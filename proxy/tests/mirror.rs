//! Mirrors on loopback: who gets copies, of what, and that no request waits for one. The cases of upstream's conformance
//! tests `HTTPRouteRequestMirror`, `-MultipleMirrors` and `-PercentageMirror` are among these.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::HOST as HOST_FIELD;
use hyper::{HeaderMap, Response};
use parking_lot::Mutex;
use proto::http_filter::Filter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};

const HOST: &str = "a.example.com";
const ONE: &str = "team-a/one:80";

/// A request that a mirror got.
#[derive(Clone, Debug)]
struct Copied {
    target: String,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

/// A backend that keeps what it is asked.
struct Mirror {
    address: SocketAddr,
    copies: Arc<Mutex<Vec<Copied>>>,
}

impl Mirror {
    async fn start() -> Self {
        Self::of(false).await
    }

    async fn of(two: bool) -> Self {
        let copies = Arc::<Mutex<Vec<Copied>>>::default();
        let kept = Arc::clone(&copies);
        let address = serve(move |stream| {
            let kept = Arc::clone(&kept);
            serve_http(stream, two, move |request| {
                let kept = Arc::clone(&kept);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap();
                    let target = format!("{} {}", head.method, head.uri.path_and_query().unwrap());
                    kept.lock().push(Copied {
                        target,
                        headers: head.headers,
                        trailers: body.trailers().cloned(),
                        body: body.to_bytes(),
                    });
                    // Nobody is told.
                    let text = http_body_util::Full::new(Bytes::from_static(b"of the mirror"));
                    Response::builder().status(500).body(text).unwrap()
                }
            })
        })
        .await;
        Self { address, copies }
    }

    fn count(&self) -> usize {
        self.copies.lock().len()
    }

    async fn wait(&self, count: usize) -> Vec<Copied> {
        wait("copies", || self.count() >= count).await;
        self.copies.lock().clone()
    }
}

fn mirror(backend: &str, (numerator, denominator): (u32, u32)) -> proto::HttpFilter {
    filter(Filter::Mirror(proto::Mirror {
        backend: backend.into(),
        numerator,
        denominator,
    }))
}

fn rig(rules: &[proto::HttpRule], backends: &[(&str, SocketAddr)]) -> Rig {
    Rig::start(&quiet(), |port| {
        let mut resources = vec![
            http(port, "web", "", None),
            http_route("web", "", rules.to_vec()),
        ];
        resources.extend(
            backends
                .iter()
                .map(|(name, address)| backend(name, &[*address])),
        );
        resources
    })
}

fn count(rig: &Rig, result: &str) -> usize {
    let metrics = rig.plane.metrics.encode().unwrap();
    let begin = format!("vestibule_proxy_requests_mirrored_total{{result=\"{result}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&begin));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mirror_gets_the_request_as_the_backend_does() {
    let (one, two, three) = (
        Echo::start("one").await,
        Mirror::start().await,
        Mirror::start().await,
    );
    let edit = proto::HeaderModifier {
        set: vec![proto::HttpField {
            name: "x-header-set".into(),
            value: "set-overwrites-values".into(),
        }],
        add: vec![proto::HttpField {
            name: "x-header-add-append".into(),
            value: "header-val-2".into(),
        }],
        remove: vec!["x-header-remove".into()],
    };
    let rewrite = proto::UrlRewrite {
        hostname: "b.example.com".into(),
        path: Some(proto::PathModifier {
            path: Some(proto::path_modifier::Path::Prefix("/new".into())),
        }),
    };
    let with_mirrors = proto::HttpRule {
        filters: vec![
            mirror("team-a/two:80", (1, 1)),
            mirror("team-a/three:80", (1, 1)),
            filter(Filter::RequestHeaders(edit)),
            filter(Filter::Rewrite(rewrite)),
        ],
        ..rule("/old", ONE)
    };
    let rig = rig(
        &[with_mirrors],
        &[
            (ONE, one.address),
            ("team-a/two:80", two.address),
            ("team-a/three:80", three.address),
        ],
    );
    let head = format!(
        "POST /old/x?id=7 HTTP/1.1\r\nhost: {HOST}\r\nx-header-remove: remove-val\r\n\
         x-header-add-append: append-val-1\r\ncontent-length: 5"
    );
    let answer = ask(&rig, &head, "hello").await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with("hello"), "{answer:?}");
    for mirror in [&two, &three] {
        let copies = mirror.wait(1).await;
        let [copy] = copies.as_slice() else {
            panic!("{copies:?}");
        };
        assert_eq!(copy.target, "POST /new/x?id=7");
        assert_eq!(copy.body, "hello");
        assert_eq!(copy.headers[HOST_FIELD], "b.example.com");
        assert_eq!(copy.headers["x-header-set"], "set-overwrites-values");
        assert!(!copy.headers.contains_key("x-header-remove"));
        let appended = copy.headers.get_all("x-header-add-append");
        assert_eq!(appended.iter().count(), 2);
        assert!(copy.headers.contains_key("x-request-id"));
        assert_eq!(copy.headers["x-forwarded-host"], HOST);
    }
    wait("answers of mirrors", || count(&rig, "Answered") == 2).await;
    assert_eq!((one.requests(), two.count(), three.count()), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_of_a_backend_reference_and_of_http_2_get_copies_too() {
    let (one, two) = (Echo::start("one").await, Mirror::of(true).await);
    let mut to_one = to(ONE, 1);
    to_one.filters.push(mirror("team-a/two:80", (1, 1)));
    let with_mirror = proto::HttpRule {
        backends: vec![to_one],
        ..rule("/", ONE)
    };
    let mut rig = rig(&[with_mirror], &[(ONE, one.address)]);
    let h2c = proto::BackendProtocol::H2c;
    let resource = backend_of("team-a/two:80", &[two.address], h2c);
    assert!(rig.apply(vec![resource]).is_empty());
    assert_eq!(get(&rig, HOST, "/x").await.status, 200);
    let copies = two.wait(1).await;
    assert_eq!(copies[0].target, "GET /x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_requests_is_copied() {
    let one = Echo::start("one").await;
    // Six standard deviations of 500 choices.
    let shares = [
        ("/20", (20, 100), 46..=154),
        ("/half", (25, 50), 183..=317),
        ("/none", (0, 100), 0..=0),
    ];
    let mut rules = Vec::new();
    let mut backends = vec![(ONE.to_owned(), one.address)];
    let mut mirrors = Vec::new();
    for (prefix, share, expected) in shares {
        let name = format!("team-a{prefix}:80");
        let copies = Mirror::start().await;
        backends.push((name.clone(), copies.address));
        rules.push(proto::HttpRule {
            filters: vec![mirror(&name, share)],
            ..rule(prefix, ONE)
        });
        mirrors.push((prefix, copies, expected));
    }
    let backends: Vec<_> = backends.iter().map(|(name, at)| (&**name, *at)).collect();
    let rig = rig(&rules, &backends);
    for (prefix, copies, expected) in &mirrors {
        let mut stream = rig.connect().await;
        for _ in 0..500 {
            let text = format!("GET {prefix} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
            stream.write_all(text.as_bytes()).await.unwrap();
            assert_eq!(one_answer(&mut stream).await.unwrap().status, 200);
        }
        copies.wait(*expected.start()).await;
    }
    for (prefix, copies, expected) in &mirrors {
        assert!(
            expected.contains(&copies.count()),
            "{prefix}: {}",
            copies.count()
        );
    }
    assert_eq!(one.requests(), 1500);
}

/// A mirror that takes connections and says nothing.
async fn silent(asked: &Arc<AtomicUsize>) -> SocketAddr {
    let asked = Arc::clone(asked);
    serve(move |mut stream| {
        asked.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut bytes = [0; 4096];
            while let Ok(1..) = stream.read(&mut bytes).await {}
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_waits_for_a_mirror_and_their_number_is_bounded() {
    let one = Echo::start("one").await;
    let asked = Arc::new(AtomicUsize::new(0));
    let with_mirror = proto::HttpRule {
        filters: vec![mirror("team-a/two:80", (1, 1))],
        ..rule("/", ONE)
    };
    let rig = rig(
        &[with_mirror],
        &[(ONE, one.address), ("team-a/two:80", silent(&asked).await)],
    );
    // One connection is one worker's. Its namespace alone has half of the 128 places.
    let mut stream = rig.connect().await;
    for _ in 0..200 {
        let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        assert_eq!(one_answer(&mut stream).await.unwrap().status, 200);
    }
    assert_eq!(one.requests(), 200);
    let limited = count(&rig, "Limit");
    let timeouts = count(&rig, "Timeout");
    assert!(asked.load(Ordering::SeqCst) <= 64 + timeouts);
    assert!(limited >= 200 - 64 - timeouts, "{limited} {timeouts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_is_not_there_is_nobody_s_loss() {
    let one = Echo::start("one").await;
    let with_mirror = proto::HttpRule {
        filters: vec![
            mirror("team-a/refusing:80", (1, 1)),
            mirror("team-a/empty:80", (1, 1)),
        ],
        ..rule("/", ONE)
    };
    let rig = rig(
        &[with_mirror],
        &[(ONE, one.address), ("team-a/refusing:80", refusing())],
    );
    for _ in 0..10 {
        assert_eq!(get(&rig, HOST, "/").await.status, 200);
    }
    // Each of them was tried once.
    wait("the last copy", || count(&rig, "Failed") == 20).await;
    assert_eq!(one.requests(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_the_bound_ends_the_copy_and_not_the_request() {
    let (one, two) = (Echo::start("one").await, Mirror::start().await);
    let with_mirror = proto::HttpRule {
        filters: vec![mirror("team-a/two:80", (1, 1))],
        ..rule("/", ONE)
    };
    let rig = rig(
        &[with_mirror],
        &[(ONE, one.address), ("team-a/two:80", two.address)],
    );
    let post = async |size: usize| {
        let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {size}");
        let body = "x".repeat(size);
        let answer = ask(&rig, &head, &body).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with(&body));
    };
    post(64 * 1024).await;
    let copies = two.wait(1).await;
    assert_eq!(copies[0].body.len(), 64 * 1024);
    post(64 * 1024 + 1).await;
    post(5_000_000).await;
    assert_eq!(count(&rig, "BodyTooLarge"), 2);
    // In chunks, so that nobody knows its length before.
    let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked");
    let answer = ask(&rig, &head, "5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n").await;
    assert!(answer.body.ends_with("helloyou"));
    let copies = two.wait(2).await;
    assert_eq!(copies[1].body, "helloyou");
    // A client that goes before its body is whole.
    let mut stream = rig.connect().await;
    let text = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 9\r\n\r\nhel");
    stream.write_all(text.as_bytes()).await.unwrap();
    drop(stream);
    wait("a copy that is given up", || {
        count(&rig, "BodyIncomplete") == 1
    })
    .await;
    assert_eq!(two.count(), 2);
}

/// A backend, and a mirror that gets a copy of each request.
async fn mirrored() -> (Rig, Echo, Mirror) {
    let (one, two) = (Echo::start("one").await, Mirror::start().await);
    let mirrored = proto::HttpRule {
        filters: vec![mirror("team-a/two:80", (1, 1))],
        ..rule("/", ONE)
    };
    let backends = [(ONE, one.address), ("team-a/two:80", two.address)];
    (rig(&[mirrored], &backends), one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_the_trailers_of_their_request() {
    let (rig, _one, two) = mirrored().await;
    let head =
        format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ntransfer-encoding: chunked\r\ntrailer: x-sum");
    let body = "5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n";
    assert_eq!(ask(&rig, &head, body).await.status, 200);
    let copies = two.wait(1).await;
    assert_eq!(copies[0].body, "hello");
    let trailers = copies[0].trailers.as_ref();
    assert_eq!(trailers.unwrap()["x-sum"], "1", "{copies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_become_a_websocket_is_copied_whatever_it_asks_for() {
    let (rig, _one, two) = mirrored().await;
    let asks = format!("host: {HOST}\r\nconnection: upgrade\r\nupgrade: websocket");
    let with_body = format!("POST /body HTTP/1.1\r\n{asks}\r\ncontent-length: 5");
    assert_eq!(ask(&rig, &with_body, "hello").await.status, 200);
    let copies = two.wait(1).await;
    assert_eq!(
        (&*copies[0].target, &*copies[0].body),
        ("POST /body", &b"hello"[..])
    );
    assert_eq!(
        ask(&rig, &format!("GET /old HTTP/1.0\r\n{asks}"), "")
            .await
            .status,
        200
    );
    assert_eq!(two.wait(2).await[1].target, "GET /old");
}

/// The client decides when its body is whole. The route and the mirror's backend must not have changed until then:
/// an endpoint that is gone may be somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_waited_for_its_body_is_sent_only_as_the_configuration_still_says() {
    let other = Mirror::start().await;
    let plain = || http_route("web", "", vec![rule("/", ONE)]);
    let edits: [(Resource, bool); 3] = [
        (backend("team-a/two:80", &[other.address]), false),
        (plain(), false),
        (backend("team-b/web:80", &[other.address]), true),
    ];
    for (edit, is_sent) in edits {
        let (mut rig, one, two) = mirrored().await;
        let mut stream = rig.connect().await;
        let head = format!(
            "POST / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-length: 9\r\n\r\nhel"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        wait("the request at its backend", || one.connections() == 1).await;
        rig.apply(vec![edit]);
        stream.write_all(b"lo you").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        let outcome = if is_sent {
            "Answered"
        } else {
            "NoLongerServed"
        };
        wait(outcome, || count(&rig, outcome) == 1).await;
        assert_eq!(two.count(), usize::from(is_sent));
        assert_eq!(other.count(), 0);
    }
}
