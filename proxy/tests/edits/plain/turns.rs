//! Two configurations that take turns as fast as they can, for what is decided within microseconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use vestibule_stream::{Resource, ResourceKey, ResourceKind as Kind};

use super::{HOST, NEW, OLD, quiet, versioned, who};
use vestibule_proxy_testing::web::{http_route, rule};
use vestibule_proxy_testing::*;

/// Has two configurations take turns while clients ask all the time, until there were so many answers.
/// Says which answers there were.
async fn turns(
    rig: &mut Rig,
    ask: &str,
    there: impl Fn() -> (Vec<Resource>, Vec<ResourceKey>),
    back: impl Fn() -> (Vec<Resource>, Vec<ResourceKey>),
) -> BTreeMap<String, usize> {
    const CLIENTS: usize = 4;
    const EACH: usize = 500;
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (address, done) = (rig.address, Arc::clone(&done));
            let text = format!("{ask}\r\nhost: {HOST}\r\n\r\n");
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let mut answers = Vec::new();
                for _ in 0..EACH {
                    stream.write_all(text.as_bytes()).await.unwrap();
                    answers.push(answered_by(&mut stream).await);
                }
                done.fetch_add(1, Ordering::SeqCst);
                answers
            })
        })
        .collect();
    while done.load(Ordering::SeqCst) < CLIENTS {
        for batch in [there(), back()] {
            assert_eq!(rig.change(batch.0, batch.1), Vec::<String>::new());
            tokio::task::yield_now().await;
        }
    }
    let mut counts = BTreeMap::new();
    for client in clients {
        for answer in client.await.unwrap() {
            *counts.entry(answer).or_insert(0) += 1;
        }
    }
    counts
}

/// One request on a connection that stays, and who answered.
pub(super) async fn ask_on(stream: &mut TcpStream) -> String {
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    answered_by(stream).await
}

/// Who answered, on a connection that stays.
async fn answered_by(stream: &mut TcpStream) -> String {
    let answer = web::one_answer(stream).await;
    let answer = answer.expect("the connection ended");
    let (status, name, version) = who(&answer);
    let (name, version) = (name.unwrap_or("-"), version.unwrap_or("-"));
    format!("{status} {name} {version}")
}

/// As the public benchmark gateway-api-bench edits a live route: its backend moves between two ports of
/// a Service, each of them held only while it is used, and a response filter comes and goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_route_moves_between_two_ports_and_nobody_notices() {
    let (one, two) = (web::Echo::start("one").await, web::Echo::start("two").await);
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            http_route("web", HOST, vec![rule("/", OLD)]),
            backend(OLD, &[one.address]),
        ]
    });
    let there = || {
        let upserts = vec![versioned(NEW, "v2"), backend(NEW, &[two.address])];
        (upserts, vec![ResourceKey::new(Kind::Backend, OLD)])
    };
    let back = || {
        let route = http_route("web", HOST, vec![rule("/", OLD)]);
        let upserts = vec![route, backend(OLD, &[one.address])];
        (upserts, vec![ResourceKey::new(Kind::Backend, NEW)])
    };
    let mut answers = turns(&mut rig, "GET / HTTP/1.1", there, back).await;
    answers.retain(|answer, _| answer != "200 one -" && answer != "200 two v2");
    assert!(answers.is_empty(), "{answers:?}");
}

/// A challenge is answered or the route is, never neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_a_challenges_or_a_routes() {
    let echo = web::Echo::start("one").await;
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            acme::http_challenge(port, HOST),
            backend(OLD, &[echo.address]),
        ]
    });
    let challenge = acme::http_challenge(rig.address.port(), HOST);
    let key = challenge.key().unwrap();
    let there = || (vec![versioned(OLD, "v1")], vec![key.clone()]);
    let back = || {
        let route = ResourceKey::new(Kind::HttpRoute, "team-a/web");
        (vec![challenge.clone()], vec![route])
    };
    let ask = format!("GET /.well-known/acme-challenge/{} HTTP/1.1", acme::TOKEN);
    let mut answers = turns(&mut rig, &ask, there, back).await;
    answers.retain(|answer, _| answer != "200 - -" && answer != "200 one v1");
    assert!(answers.is_empty(), "{answers:?}");
}
