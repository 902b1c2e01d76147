//! Handshakes that come all at once, and sources that open connections without end: by real clients on loopback.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_handshakes_comes_through_the_gate() {
    const EACH: usize = 60;
    let limits = ProxyLimits {
        handshake_deadline: PATIENCE,
        hello_deadline: PATIENCE,
        ..quiet()
    };
    let names = ["a.example.com", "b.example.com"];
    let identity = Arc::new(Identity::new("*.example.com"));
    let (address, web) = (serve(echo).await, Echo::start("web").await);
    let rig = Rig::start(&limits, |port| {
        vec![
            listener(port, "relayed", names[0], Some("team-a/cert")),
            route("relayed", names[0], Some("team-a/echo:80")),
            http(port, "web", names[1], Some("team-a/cert")),
            http_route("web", names[1], vec![rule("/", "team-a/web:80")]),
            backend("team-a/echo:80", &[address]),
            backend("team-a/web:80", &[web.address]),
            identity.resource("team-a/cert"),
        ]
    });
    let mut clients = JoinSet::new();
    for n in 0..EACH * 2 {
        let (tcp, identity) = (rig.connect().await, Arc::clone(&identity));
        clients.spawn(async move { tls(tcp, client_config(&identity), names[n % 2]).await });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap().unwrap();
    }
    assert_eq!(rig.closed(CloseReason::TooManyHandshakes), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_opens_so_many_connections_in_a_second_and_then_more() {
    let limits = ProxyLimits {
        source_connections_per_second: 1,
        ..quiet()
    };
    let echo = Echo::start("web").await;
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", "team-a/web:80")]),
            backend("team-a/web:80", &[echo.address]),
        ]
    });
    let mut tries = 0;
    while rig.closed(CloseReason::SourceRate) == 0 {
        let mut client = rig.connect().await;
        let _ = ask(&mut client).await;
        tries += 1;
        assert!(tries < 1000, "nothing is refused");
    }
    // A client that is refused now gets in later.
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut client = rig.connect().await;
        if ask(&mut client)
            .await
            .is_some_and(|answer| answer.status == 200)
        {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "never again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// None: the connection was closed instead.
async fn ask(client: &mut tokio::net::TcpStream) -> Option<Answer> {
    use tokio::io::AsyncWriteExt;
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .ok()?;
    one_answer(client).await
}
