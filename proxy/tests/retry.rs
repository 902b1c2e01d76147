//! Retries that a route asks for, on loopback: what is made again and what is not, that bodies come whole each time,
//! and that many requests that fail at once do not multiply. The cases of upstream's conformance tests
//! `HTTPRouteRetry`, `-ConnectionError`, `-WithRequestTimeout` and `-WithBackendTimeout` are among these.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";
const ONE: &str = "team-a/one:80";

/// A backend that fails as its requests say: `?uuid=<name>&responseCode=<status>&succeedAfter=<times>`, and waits for
/// `delay` milliseconds before each answer. It echoes bodies.
struct Flaky {
    address: SocketAddr,
    /// Bodies by uuid.
    asked: Arc<Mutex<HashMap<String, Vec<Bytes>>>>,
}

impl Flaky {
    async fn start() -> Self {
        let asked = Arc::<Mutex<HashMap<String, Vec<Bytes>>>>::default();
        let kept = Arc::clone(&asked);
        let address = serve(move |stream| {
            let kept = Arc::clone(&kept);
            serve_http(stream, false, move |request| {
                let kept = Arc::clone(&kept);
                async move {
                    let query = request.uri().query().unwrap_or_default().to_owned();
                    let param = |name: &str| {
                        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
                    };
                    let number = |name| param(name).map(|text| text.parse::<u64>().unwrap());
                    let body = request.into_body().collect().await;
                    let body = body
                        .map(http_body_util::Collected::to_bytes)
                        .unwrap_or_default();
                    let uuid = param("uuid").unwrap_or_default().to_owned();
                    let before = {
                        let mut kept = kept.lock();
                        let of = kept.entry(uuid).or_default();
                        of.push(body.clone());
                        of.len() as u64 - 1
                    };
                    if let Some(delay) = number("delay") {
                        tokio::time::sleep(Duration::from_millis(delay)).await;
                    }
                    let fails = before < number("succeedAfter").unwrap_or(0);
                    let code = number("responseCode").filter(|_| fails).unwrap_or(200);
                    let mut response = Response::new(Full::new(body));
                    *response.status_mut() = u16::try_from(code).unwrap().try_into().unwrap();
                    response
                }
            })
        })
        .await;
        Self { address, asked }
    }

    fn asked(&self, uuid: &str) -> Vec<Bytes> {
        self.asked.lock().get(uuid).cloned().unwrap_or_default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as a rule has it")]
fn retry(codes: &[u32], attempts: u32) -> Option<proto::HttpRetry> {
    Some(proto::HttpRetry {
        codes: codes.to_vec(),
        attempts,
        backoff: None,
    })
}

fn with(prefix: &str, retry: Option<proto::HttpRetry>) -> proto::HttpRule {
    proto::HttpRule {
        retry,
        ..rule(prefix, ONE)
    }
}

fn rig(rules: &[proto::HttpRule], endpoints: &[SocketAddr]) -> Rig {
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", rules.to_vec()),
            backend(ONE, endpoints),
        ]
    })
}

fn metric(rig: &Rig, name: &str) -> u64 {
    let metrics = rig.plane.metrics.encode().unwrap();
    let begin = format!("vestibule_proxy_{name} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&begin));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Otherwise a backend that sends requests back to the Gateway would multiply them at every pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_is_not_multiplied() {
    let flaky = Flaky::start().await;
    let rig = rig(&[with("/", retry(&[503, 508], 3))], &[flaky.address]);
    for (uuid, code, passed, asked) in [
        ("first", 503, "", 4),
        ("nested", 503, "cdn-loop: vestibule.dev\r\n", 4),
        ("deep", 503, "cdn-loop: vestibule.dev, vestibule.dev\r\n", 1),
        ("loop", 508, "", 1),
    ] {
        let query = format!("uuid={uuid}&responseCode={code}&succeedAfter=9");
        let request = format!("GET /?{query} HTTP/1.1\r\nhost: {HOST}\r\n{passed}\r\n");
        let mut stream = rig.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        within(uuid, stream.read_exact(&mut status)).await.unwrap();
        assert_eq!(status, format!("HTTP/1.1 {code}").as_bytes(), "{uuid}");
        assert_eq!(flaky.asked(uuid).len(), asked, "{uuid}");
    }
}

/// One client after the other, of a backend that fails at once: few retries are under way at any time, but not few in
/// all.
#[tokio::test(flavor = "multi_thread")]
async fn retries_of_a_backend_that_always_fails_have_a_rate() {
    let flaky = Flaky::start().await;
    let never = proto::HttpRetry {
        backoff: Some(0),
        ..retry(&[503], 100).unwrap()
    };
    let rig = rig(&[with("/", Some(never))], &[flaky.address]);
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        let request = "/?uuid=all&responseCode=503&succeedAfter=1000000";
        assert_eq!(get(&rig, HOST, request).await.status, 503);
    }
    // A hundred are saved, and ten are added in a second.
    let most = 5 + 100 + 10 * (begun.elapsed().as_secs() + 1);
    let asked = flaky.asked("all").len() as u64;
    assert!((105..=most).contains(&asked), "{asked} of {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_s_cases_of_statuses_hold() {
    let flaky = Flaky::start().await;
    let all = [500, 502, 503, 504];
    let rules = [
        with("/500-3", retry(&[500], 3)),
        with("/all-2", retry(&all, 2)),
        with("/all-0", retry(&all, 0)),
    ];
    let rig = rig(&rules, &[flaky.address]);
    let mut cases = vec![
        ("/500-3", 500, 2, 200, 3),
        ("/500-3", 500, 4, 500, 4),
        ("/500-3", 503, 2, 503, 1),
    ];
    for code in all {
        cases.push(("/all-2", code, 1, 200, 2));
        cases.push(("/all-2", code, 3, u16::try_from(code).unwrap(), 3));
        cases.push(("/all-0", code, 1, u16::try_from(code).unwrap(), 1));
    }
    for (case, (path, code, after, status, times)) in cases.into_iter().enumerate() {
        let path = format!("{path}?uuid={case}&responseCode={code}&succeedAfter={after}");
        let answer = get(&rig, HOST, &path).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(flaky.asked(&case.to_string()).len(), times, "{path}");
    }
    let retried = metric(&rig, "requests_retried_total{reason=\"Status\"}");
    assert_eq!(retried, 2 + 3 + 4 * (1 + 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_s_cases_of_timeouts_hold() {
    let flaky = Flaky::start().await;
    let timed = |prefix, attempts, request, backend_request| proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request,
            backend_request,
        }),
        ..with(prefix, retry(&[500], attempts))
    };
    let rules = [
        // Long enough for a machine that has much else to do.
        timed("/in-time", 5, Some(60_000), None),
        timed("/request", 5, Some(2_000), None),
        timed("/backend", 3, Some(120_000), Some(60_000)),
        timed("/try", 1, Some(120_000), Some(300)),
    ];
    let rig = rig(&rules, &[flaky.address]);
    for (path, query, status) in [
        ("/in-time", "responseCode=500&succeedAfter=1", 200),
        (
            "/request",
            "responseCode=500&succeedAfter=2&delay=60000",
            504,
        ),
        (
            "/request",
            "responseCode=500&succeedAfter=1000&delay=800",
            504,
        ),
        ("/backend", "responseCode=500&succeedAfter=2&delay=100", 200),
    ] {
        let answer = get(&rig, HOST, &format!("{path}?uuid={path}&{query}")).await;
        assert_eq!(answer.status, status, "{path} {query}");
    }
    // Each try has its time, and a read is made again after it.
    let answer = get(&rig, HOST, "/try?uuid=late&delay=60000").await;
    assert_eq!(answer.status, 504);
    assert_eq!(flaky.asked("late").len(), 2);
    assert_eq!(
        metric(&rig, "requests_retried_total{reason=\"Timeout\"}"),
        1
    );
    // The backend may have done what this one asked for, and nobody said that it may be made again.
    let head =
        format!("POST /try?uuid=post&delay=60000 HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 0");
    assert_eq!(ask(&rig, &head, "").await.status, 504);
    assert_eq!(flaky.asked("post").len(), 1);
}

/// A `backoff` is the shortest wait, however near the deadline is.
#[tokio::test(flavor = "multi_thread")]
async fn a_backoff_is_never_shortened_and_without_time_for_it_there_is_no_retry() {
    const NOBODY: &str = "team-a/nobody:80";
    let flaky = Flaky::start().await;
    let timed = |prefix, to, request, backoff| proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request: Some(request),
            backend_request: None,
        }),
        retry: Some(proto::HttpRetry {
            backoff: Some(backoff),
            ..retry(&[503], 1).unwrap()
        }),
        ..rule(prefix, to)
    };
    let rules = vec![
        timed("/waits", ONE, 10_000, 5_500),
        timed("/late", ONE, 30_000, 60_000),
        timed("/nobody", NOBODY, 30_000, 60_000),
    ];
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", rules.clone()),
            backend(ONE, &[flaky.address]),
            backend(NOBODY, &[refusing(), refusing()]),
        ]
    });
    let begun = std::time::Instant::now();
    let path = |name: &str| format!("/{name}?uuid={name}&responseCode=503&succeedAfter=1");
    assert_eq!(get(&rig, HOST, &path("waits")).await.status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(5_500));
    assert_eq!(flaky.asked("waits").len(), 2);
    // The client gets what there is, long before the deadline.
    let begun = std::time::Instant::now();
    assert_eq!(get(&rig, HOST, &path("late")).await.status, 503);
    assert_eq!(flaky.asked("late").len(), 1);
    assert_eq!(get(&rig, HOST, "/nobody").await.status, 503);
    let failed = "backend_connect_failures_total{reason=\"BackendConnectFailed\"}";
    assert_eq!(metric(&rig, failed), 1);
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_s_case_of_connection_errors_holds() {
    let good = Echo::start("good").await;
    let rules = [
        with("/many", retry(&[], 100)),
        with("/none", retry(&[], 0)),
        with("/one", retry(&[], 1)),
    ];
    let rig = rig(&rules, &[refusing(), good.address]);
    for n in 0..20 {
        assert_eq!(get(&rig, HOST, "/many").await.status, 200, "{n}");
    }
    drop(rig);
    // Zero switches off what is made again otherwise.
    let rules = [with("/none", retry(&[], 0)), with("/one", retry(&[], 1))];
    let lonely = self::rig(&rules, &[refusing(), refusing(), refusing()]);
    for (path, connects) in [("/none", 1), ("/one", 2)] {
        let failures = || {
            metric(
                &lonely,
                "backend_connect_failures_total{reason=\"BackendConnectFailed\"}",
            )
        };
        let before = failures();
        assert_eq!(get(&lonely, HOST, path).await.status, 503, "{path}");
        assert_eq!(failures() - before, connects, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_that_failed_is_avoided() {
    // Every answer of this one is an error.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let bad = serve(move |stream| {
        let count = Arc::clone(&count);
        serve_http(stream, false, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Full::new(Bytes::from_static(b"bad")));
            *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
            std::future::ready(response)
        })
    })
    .await;
    let good = Echo::start("good").await;
    let rig = rig(&[with("/", retry(&[503], 1))], &[bad, good.address]);
    for n in 0..40 {
        assert_eq!(get(&rig, HOST, "/").await.status, 200, "{n}");
    }
    assert_eq!(good.requests(), 40);
    assert!(asked.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_come_whole_each_time_up_to_a_bound() {
    let flaky = Flaky::start().await;
    let rig = rig(&[with("/", retry(&[503], 3))], &[flaky.address]);
    let text: String = ('a'..='z').cycle().take(60_000).collect();
    let head = |uuid: &str, framing: &str| {
        format!(
            "POST /?uuid={uuid}&responseCode=503&succeedAfter=2 HTTP/1.1\r\nhost: {HOST}\r\n{framing}"
        )
    };
    let length = format!("content-length: {}", text.len());
    let answer = ask(&rig, &head("length", &length), &text).await;
    assert_eq!((answer.status, answer.body.len()), (200, text.len()));
    let asked = flaky.asked("length");
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|body| *body == text));
    let chunked = format!("{:x}\r\n{text}\r\n0\r\n\r\n", text.len());
    let chunks = head("chunks", "transfer-encoding: chunked");
    assert_eq!(ask(&rig, &chunks, &chunked).await.status, 200);
    assert!(flaky.asked("chunks").iter().all(|body| *body == text));
    // One that is larger is sent as it comes, and once.
    let large = "x".repeat(70_000);
    let length = format!("content-length: {}", large.len());
    assert_eq!(ask(&rig, &head("large", &length), &large).await.status, 503);
    assert_eq!(flaky.asked("large"), [Bytes::from(large)]);
    assert_eq!(metric(&rig, "retries_refused_total{reason=\"Body\"}"), 1);
}

/// A backend may answer before it has the body, and another one get all of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_body_is_read_by_the_attempt_that_is_under_way() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let hasty = serve(move |mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
            let _ = stream.write_all(busy).await;
            while let Ok(1..) = stream.read(&mut head).await {}
        }
    })
    .await;
    let good = Echo::start("good").await;
    let rig = rig(&[with("/", retry(&[503], 1))], &[hasty, good.address]);
    for _ in 0..20 {
        let before = good.requests();
        let mut stream = rig.connect().await;
        let head = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 10\r\n\r\nhello");
        stream.write_all(head.as_bytes()).await.unwrap();
        // The rest comes only when the good one is asked.
        wait("the good one", || good.requests() > before).await;
        stream.write_all(b"world").await.unwrap();
        let answer = one_answer(&mut stream).await.unwrap();
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with("helloworld"), "{answer:?}");
    }
    assert!(asked.load(Ordering::SeqCst) > 0);
}

/// A backend of HTTP/2 that refuses a request, or goes away before it looks at it, has not done what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn request_that_an_http2_backend_refused_is_made_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream| {
        let count = Arc::clone(&count);
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                if count.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                    continue;
                }
                tokio::spawn(async move {
                    let mut body = request.into_body();
                    let mut whole = Vec::new();
                    while let Some(Ok(piece)) = body.data().await {
                        let _ = body.flow_control().release_capacity(piece.len());
                        whole.extend_from_slice(&piece);
                    }
                    let mut sender = respond.send_response(Response::new(()), false).unwrap();
                    sender.send_data(Bytes::from(whole), true).unwrap();
                });
            }
        }
    })
    .await;
    let mut rig = rig(&[with("/", retry(&[], 1)), with("/once", None)], &[]);
    let h2c = proto::BackendProtocol::H2c;
    assert!(rig.apply(vec![backend_of(ONE, &[address], h2c)]).is_empty());
    let post = async |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 5");
        ask(&rig, &head, "hello").await
    };
    for n in 1..=5 {
        let answer = post("/").await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains("hello"), "{answer:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 2 * n);
    }
    assert_eq!(
        metric(&rig, "requests_retried_total{reason=\"Refused\"}"),
        5
    );
    assert_eq!(post("/once").await.status, 502);
}

/// A retry that waits for its time puts no load on the backend, so it does not keep others from theirs.
#[tokio::test(flavor = "multi_thread")]
async fn retries_that_wait_do_not_use_up_the_budget() {
    const WAITING: usize = 10;
    let flaky = Flaky::start().await;
    let patient = retry(&[503], 1).map(|retry| proto::HttpRetry {
        backoff: Some(60_000),
        ..retry
    });
    let rules = [with("/patient", patient), with("/", retry(&[503], 1))];
    let rig = Arc::new(rig(&rules, &[flaky.address]));
    let path = |uuid: &str| format!("?uuid={uuid}&responseCode=503&succeedAfter=1");
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            let (rig, path) = (
                Arc::clone(&rig),
                format!("/patient{}", path("patient").replace("After=1", "After=99")),
            );
            tokio::spawn(async move { get(&rig, HOST, &path).await.status })
        })
        .collect();
    wait("all requests", || flaky.asked("patient").len() == WAITING).await;
    for n in 0..20 {
        let uuid = n.to_string();
        let answer = get(&rig, HOST, &format!("/{}", path(&uuid))).await;
        assert_eq!((answer.status, flaky.asked(&uuid).len()), (200, 2));
    }
    for client in waiting {
        client.abort();
    }
}

/// A hundred requests fail at one moment. Each of them may be made again three times, and a fifth of them is.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_failures_does_not_multiply() {
    const CLIENTS: usize = 100;
    let asked = Arc::new(AtomicUsize::new(0));
    // Requests wait for each other, and those that are made again for the test.
    let gates = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    let served = (Arc::clone(&asked), gates.clone());
    let address = serve(move |stream| {
        let (asked, gates) = served.clone();
        serve_http(stream, false, move |_| {
            let place = asked.fetch_add(1, Ordering::SeqCst);
            let gate = Arc::clone(&gates[usize::from(place >= CLIENTS)]);
            async move {
                gate.acquire().await.unwrap().forget();
                let mut response = Response::new(Full::new(Bytes::new()));
                *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
                response
            }
        })
    })
    .await;
    let rig = Arc::new(rig(&[with("/", retry(&[503], 3))], &[address]));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { get(&rig, HOST, "/").await.status })
        })
        .collect();
    wait("all requests", || asked.load(Ordering::SeqCst) == CLIENTS).await;
    gates[0].add_permits(CLIENTS);
    let refused = || metric(&rig, "retries_refused_total{reason=\"Budget\"}");
    let retried = || metric(&rig, "requests_retried_total{reason=\"Status\"}");
    wait("answers", || refused() + retried() == CLIENTS as u64).await;
    assert_eq!(retried(), 20);
    // Those that are made again have the same budget for each further retry, and few requests are left.
    gates[1].add_permits(CLIENTS * 3);
    for client in clients {
        assert_eq!(within("an answer", client).await.unwrap(), 503);
    }
    let asked = asked.load(Ordering::SeqCst);
    assert_eq!(asked as u64, CLIENTS as u64 + retried());
    assert!(
        (CLIENTS + 20..=CLIENTS + 3 * 20).contains(&asked),
        "{asked}"
    );
}
