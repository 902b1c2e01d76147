//! Endpoints that fail silently: what is tried elsewhere, what is not, and how an endpoint that
//! fails is left alone and taken back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vestibule_proxy::limits::{HttpLimits, ProxyLimits, Repeat};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_test_support::frames::PREFACE;

const BACKEND: &str = "team-a/one:80";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn rig_with(repeat: Repeat, rule: &proto::HttpRule, addresses: &[SocketAddr]) -> Rig {
    let limits = ProxyLimits {
        access_log: false,
        http: HttpLimits {
            repeat,
            ..HttpLimits::default()
        },
        ..ProxyLimits::default()
    };
    Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule.clone()]),
            backend(BACKEND, addresses),
        ]
    })
}

fn rig(addresses: &[SocketAddr]) -> Rig {
    rig_with(Repeat::default(), &rule("/", BACKEND), addresses)
}

/// Endpoints with this protocol.
fn rig_of(addresses: &[SocketAddr], protocol: proto::BackendProtocol) -> Rig {
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend_of(BACKEND, addresses, protocol),
        ]
    })
}

async fn post(rig: &Rig) -> Answer {
    let head = "POST / HTTP/1.1\r\nhost: a.example.com\r\ncontent-length: 2";
    ask(rig, head, "hi").await
}

async fn read(rig: &Rig) -> Answer {
    get(rig, "a.example.com", "/").await
}

fn metric(rig: &Rig, name: &str) -> u64 {
    let text = rig.plane.metrics.encode().unwrap();
    let lines = text
        .lines()
        .filter(|line| line.starts_with(&format!("vestibule_proxy_{name}")));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Takes connections and requests, and closes without an answer while it is bad.
struct Breaking {
    address: SocketAddr,
    bad: Arc<AtomicBool>,
    /// Requests that it got.
    asked: Arc<AtomicUsize>,
}

impl Breaking {
    async fn start() -> Self {
        let bad = Arc::new(AtomicBool::new(true));
        let asked = Arc::new(AtomicUsize::new(0));
        let (is_bad, count) = (Arc::clone(&bad), Arc::clone(&asked));
        let address = serve(move |mut stream| {
            let (is_bad, count) = (Arc::clone(&is_bad), Arc::clone(&count));
            async move {
                let mut head = [0; 4096];
                while let Ok(1..) = stream.read(&mut head).await {
                    count.fetch_add(1, Ordering::SeqCst);
                    if is_bad.load(Ordering::SeqCst) || stream.write_all(OK).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        Self {
            address,
            bad,
            asked,
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_costs_no_request() {
    let (one, two) = (Echo::start("one").await, Echo::start("two").await);
    let rig = rig(&[refusing(), one.address, two.address]);
    for n in 0..60 {
        assert_eq!(read(&rig).await.status, 200, "GET {n}");
        assert_eq!(post(&rig).await.status, 200, "POST {n}");
    }
    assert!(metric(&rig, "endpoints_passed_over_total") >= 1);
    // A third of the requests would meet it if it were not left alone.
    assert!(metric(&rig, "backend_connect_retries_total") < 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_broke_is_repeated_if_it_may_be() {
    let (broken, good) = (Breaking::start().await, Echo::start("good").await);
    let rig = rig(&[broken.address, good.address]);
    for n in 0..100 {
        assert_eq!(read(&rig).await.status, 200, "GET {n}");
    }
    let repeated = metric(&rig, "requests_repeated_total");
    assert_eq!(repeated, broken.asked() as u64);
    assert!((1..20).contains(&repeated), "{repeated}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_not_be_repeated_is_not() {
    let (broken, good) = (Breaking::start().await, Echo::start("good").await);
    let rig = rig(&[broken.address, good.address]);
    let mut lost = 0;
    for _ in 0..100 {
        let status = post(&rig).await.status;
        assert!(matches!(status, 200 | 502), "{status}");
        lost += usize::from(status == 502);
    }
    // Each was seen once, and after three in a row the endpoint is left alone.
    assert_eq!(lost, broken.asked());
    assert_eq!(good.requests(), 100 - lost);
    assert!((3..20).contains(&lost), "{lost}");
    assert_eq!(metric(&rig, "requests_repeated_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_a_backend_may_have_seen_is_not_repeated_where_so_set() {
    let broken = Breaking::start().await;
    let rig = rig_with(Repeat::Unseen, &rule("/", BACKEND), &[broken.address]);
    for n in 1..=5 {
        assert_eq!(read(&rig).await.status, 502);
        assert_eq!(broken.asked(), n);
    }
}

/// A backend that says the same on each connection as soon as it has the head of a request. In HTTP/2 that is a HEADERS
/// frame of stream 1.
async fn saying(answer: &'static [u8]) -> SocketAddr {
    serve(move |mut stream| async move {
        let mut got = Vec::new();
        let is_asked = |got: &[u8]| {
            let is_head = |at: &[u8]| at[0] == 1 && at[2..] == [0, 0, 0, 1];
            match got.strip_prefix(PREFACE) {
                Some(frames) => frames.windows(6).any(is_head),
                None => got.windows(4).any(|at| at == b"\r\n\r\n") && !got.starts_with(b"PRI"),
            }
        };
        while !is_asked(&got) {
            match stream.read_buf(&mut got).await {
                Ok(1..) => {}
                _ => return,
            }
        }
        let _ = stream.write_all(answer).await;
        // The rest is read, so that closing does not reset the answer.
        let mut rest = [0; 4096];
        while let Ok(1..) = stream.read(&mut rest).await {}
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_whose_body_has_broken_off_is_no_answer() {
    let one = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n";
    // SETTINGS, HEADERS with `:status: 200`, RST_STREAM with INTERNAL_ERROR.
    let two = b"\0\0\0\x04\0\0\0\0\0\
        \0\0\x01\x01\x04\0\0\0\x01\x88\
        \0\0\x04\x03\0\0\0\0\x01\0\0\0\x02";
    for (answer, protocol) in [
        (&one[..], proto::BackendProtocol::Unspecified),
        (&two[..], proto::BackendProtocol::H2c),
    ] {
        let broken = saying(answer).await;
        let rig = rig_of(&[broken], protocol);
        assert_eq!(post(&rig).await.status, 502, "{protocol:?}");
        assert_eq!(metric(&rig, "requests_repeated_total"), 0);
        // An HTTP/2 connection stays, and this backend says nothing more on it.
        let rig = rig_of(&[broken], protocol);
        assert_eq!(read(&rig).await.status, 502, "{protocol:?}");
        assert_eq!(metric(&rig, "requests_repeated_total"), 1);
    }
    let (broken, good) = (saying(one).await, Echo::start("good").await);
    let rig = rig(&[broken, good.address]);
    for n in 0..20 {
        assert_eq!(read(&rig).await.status, 200, "GET {n}");
    }
    assert!(metric(&rig, "requests_repeated_total") >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_breaks_off_reaches_the_client_up_to_that_point() {
    let one = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n";
    // As above, with a DATA frame before RST_STREAM.
    let two = b"\0\0\0\x04\0\0\0\0\0\
        \0\0\x01\x01\x04\0\0\0\x01\x88\
        \0\0\x05\0\0\0\0\0\x01hello\
        \0\0\x04\x03\0\0\0\0\x01\0\0\0\x02";
    for (answer, protocol) in [
        (&one[..], proto::BackendProtocol::Unspecified),
        (&two[..], proto::BackendProtocol::H2c),
    ] {
        let rig = rig_of(&[saying(answer).await], protocol);
        let answer = post(&rig).await;
        assert_eq!(answer.status, 200, "{protocol:?}");
        assert_eq!(answer.body, "5\r\nhello\r\n", "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_taken_back_when_it_answers() {
    let (broken, good) = (Breaking::start().await, Echo::start("good").await);
    let rig = rig(&[broken.address, good.address]);
    while metric(&rig, "endpoints_passed_over_total") == 0 {
        assert_eq!(read(&rig).await.status, 200);
    }
    broken.bad.store(false, Ordering::SeqCst);
    let asked = broken.asked();
    // No other endpoint is left: whatever is known of it, it is used.
    while broken.asked() < asked + 5 {
        assert_eq!(read(&rig).await.status, 200);
    }
    assert!(metric(&rig, "endpoints_taken_back_total") >= 1);
}

/// Takes requests, and never answers.
async fn silent() -> SocketAddr {
    serve(|mut stream| async move {
        let mut head = [0; 4096];
        while let Ok(1..) = stream.read(&mut head).await {}
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_does_not_answer_in_time_is_left_alone() {
    let silent = silent().await;
    let good = Echo::start("good").await;
    let timeout = proto::HttpTimeouts {
        backend_request: Some(2_000),
        ..Default::default()
    };
    let timed = proto::HttpRule {
        timeouts: Some(timeout),
        ..rule("/", BACKEND)
    };
    let rig = rig_with(Repeat::default(), &timed, &[silent, good.address]);
    let mut late = 0;
    for _ in 0..60 {
        let status = read(&rig).await.status;
        assert!(matches!(status, 200 | 504), "{status}");
        late += usize::from(status == 504);
    }
    assert!((3..12).contains(&late), "{late}");
    assert!(metric(&rig, "endpoints_passed_over_total{reason=\"Timeout\"}") >= 1);
}

/// The Service is one of team-a. Its own routes find out that endpoints do not answer. The timeouts of a route in
/// another namespace say nothing, because that namespace may have chosen them for this.
#[tokio::test(flavor = "multi_thread")]
async fn timeouts_of_another_namespace_do_not_count() {
    let endpoints = [silent().await, silent().await];
    let timed = proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            backend_request: Some(1_000),
            ..Default::default()
        }),
        ..rule("/", BACKEND)
    };
    for (tenant, passed_over) in [("team-b", 0), ("team-a", 1)] {
        let mut rig = rig_with(Repeat::default(), &timed, &endpoints);
        let mut made = http_route("web", "", vec![timed.clone()]);
        if let Some(Wire::HttpRoute(route)) = &mut made.resource {
            tenant.clone_into(&mut route.tenant);
        }
        assert!(rig.apply(vec![made]).is_empty());
        // One of the two endpoints gets at least three of six requests.
        let ask = async || assert_eq!(read(&rig).await.status, 504);
        tokio::join!(ask(), ask(), ask(), ask(), ask(), ask());
        // At most half of the endpoints are left alone.
        let name = "endpoints_passed_over_total{reason=\"Timeout\"}";
        assert_eq!(metric(&rig, name), passed_over, "{tenant}");
    }
}

/// Answers the first request of each connection, and closes when the next one comes.
async fn closes_on_the_second(asked: &Arc<AtomicUsize>) -> SocketAddr {
    let count = Arc::clone(asked);
    serve(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            let mut head = [0; 4096];
            for n in 0..2 {
                if !matches!(stream.read(&mut head).await, Ok(1..)) {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
                if n == 0 && stream.write_all(OK).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_crosses_the_end_of_an_idle_connection_is_repeated() {
    let asked = Arc::new(AtomicUsize::new(0));
    let rig = rig(&[closes_on_the_second(&asked).await]);
    let mut stream = rig.connect().await;
    let mut next = async |head: &str| {
        let text = format!("{head}\r\nhost: a.example.com\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        one_answer(&mut stream).await.unwrap().status
    };
    for n in 0..20 {
        assert_eq!(next("GET / HTTP/1.1").await, 200, "GET {n}");
    }
    // The first, and then on each connection one that was answered and one that was not.
    assert_eq!(asked.load(Ordering::SeqCst), 1 + 2 * 19);
    assert_eq!(next("POST / HTTP/1.1\r\ncontent-length: 0").await, 502);
    assert_eq!(asked.load(Ordering::SeqCst), 2 + 2 * 19);
    // It was no fault of the endpoint's.
    assert_eq!(metric(&rig, "endpoints_passed_over_total"), 0);
}
