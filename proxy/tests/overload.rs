//! A proxy that runs short of something offers less, step by step, and more again when there is enough: by real clients on
//! loopback and readings that are made up.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::overload::{Readings, Usage};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;

const OF_A: &str = "a.example.com";
const OF_B: &str = "b.example.com";
const OWN: &str = "Gateway/infra/edge/web";

fn memory_at(percent: u64) -> Readings {
    Readings {
        memory: Some(Usage {
            used: percent,
            limit: 100,
        }),
        ..Readings::default()
    }
}

async fn rig(limits: &ProxyLimits) -> Rig {
    let echo = Echo::start("web").await;
    Rig::start(limits, |port| {
        let both = [("team-a", OF_A), ("team-b", OF_B)];
        let of_both = both.iter().flat_map(|(tenant, hostname)| {
            [
                owner(hostname, tenant),
                backend(&format!("{tenant}/web:80"), &[echo.address]),
                route_of(tenant, OWN, hostname, all_paths()),
            ]
        });
        let listener = http(port, "web", "*.example.com", None);
        [called(OWN, listener)].into_iter().chain(of_both).collect()
    })
}

async fn ask(client: &mut TcpStream, host: &str) -> Answer {
    let text = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    one_answer(client).await.unwrap()
}

fn says_close(answer: &Answer) -> bool {
    answer.header("connection") == Some("close")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_kept_while_something_is_short() {
    let rig = rig(&quiet()).await;
    let mut kept = rig.connect().await;
    assert!(!says_close(&ask(&mut kept, OF_A).await));
    rig.plane.observe(&memory_at(80));
    assert!(says_close(&ask(&mut kept, OF_A).await));
    assert_eq!(read_to_end(&mut kept).await.unwrap(), b"");
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_overload_step 1",
        "vestibule_proxy_overload_used_percent{resource=\"memory\"} 80",
    ] {
        assert!(metrics.lines().any(|of| of == line), "{line} in\n{metrics}");
    }
    // Until there is clearly enough.
    rig.plane.observe(&memory_at(76));
    assert!(says_close(&ask(&mut rig.connect().await, OF_A).await));
    rig.plane.observe(&memory_at(74));
    let mut kept = rig.connect().await;
    for _ in 0..3 {
        assert!(!says_close(&ask(&mut kept, OF_A).await));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_with_most_connections_gets_no_more_while_others_do() {
    let rig = rig(&quiet()).await;
    let mut of_a = Vec::new();
    for _ in 0..10 {
        let mut client = rig.connect().await;
        ask(&mut client, OF_A).await;
        of_a.push(client);
    }
    rig.plane.observe(&memory_at(87));
    let mut refused = rig.connect().await;
    assert_eq!(ask(&mut refused, OF_A).await.status, 503);
    assert_eq!(ask(&mut rig.connect().await, OF_B).await.status, 200);
    assert_eq!(ask(&mut of_a[0], OF_A).await.status, 200);
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_tenant_held_backend_connections{tenant=\"team-a\"}",
        "vestibule_proxy_tenant_refused_connections_total{tenant=\"team-a\",reason=\"TenantLimit\"} 0\n",
        "vestibule_proxy_tenant_refused_connections_total{tenant=\"team-a\",reason=\"Overload\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    rig.plane.observe(&memory_at(10));
    assert_eq!(ask(&mut rig.connect().await, OF_A).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_last_step_who_is_idle_or_slow_is_closed() {
    let limits = ProxyLimits {
        http: vestibule_proxy::limits::HttpLimits {
            idle: PATIENCE * 10,
            head_deadline: PATIENCE * 10,
            ..quiet().http
        },
        ..quiet()
    };
    let rig = rig(&limits).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut client = rig.connect().await;
        ask(&mut client, OF_A).await;
        idle.push(client);
    }
    let mut slow = rig.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: a.exa")
        .await
        .unwrap();
    rig.plane.observe(&memory_at(99));
    for client in &mut idle {
        let mut end = [0; 1];
        let read = within("the end", client.read(&mut end)).await;
        assert!(matches!(read, Ok(0)), "{read:?}");
    }
    let _ = read_to_end(&mut slow).await;
    rig.wait_closed(CloseReason::Overload, 20).await;
    rig.wait_closed(CloseReason::RequestTimeout, 1).await;
}
