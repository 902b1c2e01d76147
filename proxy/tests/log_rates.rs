//! How many lines of the access log each tenant may have. In a binary of its own, as the subscriber is the process's.

use tokio::io::AsyncWriteExt;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::sink::Sink;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_test_support::frames::{PING, frame, preface};

const OWN: &str = "Gateway/infra/edge/web";
const MANY: usize = 200;

fn lines_of(sink: &Sink, tenant: &str) -> usize {
    let lines = sink.lines().into_iter();
    lines.filter(|line| line["tenant"] == tenant).count()
}

async fn rig(limits: ProxyLimits) -> Rig {
    let echo = Echo::start("web").await;
    Rig::start(&limits, |port| {
        let listener = http(port, "web", "*.example.com", None);
        let both = ["team-a", "team-b"].into_iter().flat_map(|tenant| {
            let hostname = format!("{tenant}.example.com");
            [
                owner(&hostname, tenant),
                backend(&format!("{tenant}/web:80"), &[echo.address]),
                route_of(tenant, OWN, &hostname, all_paths()),
            ]
        });
        [called(OWN, listener)].into_iter().chain(both).collect()
    })
}

async fn ask(rig: &Rig, tenant: &str, times: usize) {
    let mut client = rig.connect().await;
    for _ in 0..times {
        let text = format!("GET / HTTP/1.1\r\nhost: {tenant}.example.com\r\n\r\n");
        client.write_all(text.as_bytes()).await.unwrap();
        assert_eq!(one_answer(&mut client).await.unwrap().status, 200);
    }
}

fn dropped(rig: &Rig, tenant: &str) -> usize {
    let metrics = rig.plane.metrics.encode().unwrap();
    let series = format!("vestibule_proxy_tenant_log_lines_dropped_total{{tenant=\"{tenant}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_floods_the_log_leaves_its_neighbours_their_lines() {
    let sink = Sink::subscribe("info");
    let one = rig(ProxyLimits {
        access_log_lines_per_second: 1,
        ..ProxyLimits::default()
    });
    let one = one.await;
    ask(&one, "team-a", MANY).await;
    ask(&one, "team-b", 1).await;
    wait("the lines", || {
        lines_of(&sink, "team-a") + dropped(&one, "team-a") == MANY
            && lines_of(&sink, "team-b") == 1
    })
    .await;
    assert!(dropped(&one, "team-a") > 0);
    assert_eq!(dropped(&one, "team-b"), 0);
    drop(one);

    // What is left out by choice is not dropped.
    let before = lines_of(&sink, "team-a");
    let none = rig(ProxyLimits {
        access_log_percent: 0,
        ..ProxyLimits::default()
    });
    let none = none.await;
    ask(&none, "team-a", MANY).await;
    wait("the end", || none.plane.active() == 0).await;
    assert_eq!(
        (lines_of(&sink, "team-a"), dropped(&none, "team-a")),
        (before, 0)
    );
    drop(none);
    lines_about_endpoints_count_for_the_namespace_of_the_backend(&sink).await;
    no_client_makes_a_library_log(&sink).await;
}

/// h2 warns of each answer to a PING that it never sent, and no rate would bound these lines.
async fn no_client_makes_a_library_log(sink: &Sink) {
    let rig = rig(ProxyLimits::default()).await;
    let mut client = rig.connect().await;
    let answer = frame(PING, 1, 0, &[7; 8]);
    let flood = [preface(), answer.repeat(2 * MANY * MANY)].concat();
    // The proxy ends the connection before it has read all of it.
    let _ = client.write_all(&flood).await;
    rig.wait_closed(CloseReason::TooManyFrames, 1).await;
    assert!(!sink.text().contains("PING"));
}

async fn lines_about_endpoints_count_for_the_namespace_of_the_backend(sink: &Sink) {
    let limits = ProxyLimits {
        access_log: false,
        access_log_lines_per_second: 1,
        ..ProxyLimits::default()
    };
    let endpoints: Vec<_> = (0..30).map(|_| refusing()).collect();
    let rig = Rig::start(&limits, |port| {
        vec![
            called(OWN, http(port, "web", "*.example.com", None)),
            owner("team-a.example.com", "team-a"),
            backend("team-a/web:80", &endpoints),
            route_of("team-a", OWN, "team-a.example.com", all_paths()),
        ]
    });
    let passed_over = || {
        let metrics = rig.plane.metrics.encode().unwrap();
        let of = |line: &str| line.starts_with("vestibule_proxy_endpoints_passed_over_total");
        let lines = metrics.lines().filter(|line| of(line));
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap();
        lines.map(value).sum::<usize>()
    };
    while passed_over() < endpoints.len() {
        let answer = get(&rig, "team-a.example.com", "/").await;
        assert_eq!(answer.status, 503);
    }
    let logged = || sink.text().matches("an endpoint is passed over").count();
    wait("the lines", || {
        logged() + dropped(&rig, "team-a") == passed_over()
    })
    .await;
    assert!(logged() > 0 && dropped(&rig, "team-a") > 0);
}
