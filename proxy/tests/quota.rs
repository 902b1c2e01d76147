//! How many connections each tenant may have: one that takes all it can get, by real clients on loopback, and what is
//! left to its neighbour.

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::resource::Resource as Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, ResourceKind, proto};

const OF_A: &str = "a.example.com";
const OF_B: &str = "b.example.com";
/// The Gateway's own listener.
const OWN: &str = "Gateway/infra/edge/web";

/// Nothing is rejected.
const NONE: [String; 0] = [];

/// With three tenants each has a share of 2, and there are 6 to lend.
fn twelve() -> ProxyLimits {
    ProxyLimits {
        max_connections: 12,
        guaranteed_percent: 50,
        ..quiet()
    }
}

/// Both teams' hostnames and routes on the Gateway's own listener, in plaintext or within TLS.
async fn shared_listener(limits: &ProxyLimits, identity: Option<&Identity>) -> Rig {
    let echo = Echo::start("web").await;
    let certificate = identity.map(|_| "infra/edge");
    Rig::start(limits, |port| {
        let listener = http(port, "web", "*.example.com", certificate);
        let both = [("team-a", OF_A), ("team-b", OF_B)];
        let of_both = both.iter().flat_map(|(tenant, hostname)| {
            [
                owner(hostname, tenant),
                backend(&format!("{tenant}/web:80"), &[echo.address]),
                route_of(tenant, OWN, hostname, all_paths()),
            ]
        });
        let listener = [called(OWN, listener)].into_iter();
        let certificate = identity.map(|of| of.resource("infra/edge"));
        listener.chain(certificate).chain(of_both).collect()
    })
}

/// A request on a connection that stays.
async fn status(client: &mut TcpStream, host: &str) -> u16 {
    let text = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    one_answer(client).await.unwrap().status
}

/// Connections that were answered and stay, until one is refused and closed because no place is left.
async fn all_for(rig: &Rig, host: &str) -> Vec<TcpStream> {
    let mut open = Vec::new();
    loop {
        let mut client = rig.connect().await;
        match status(&mut client, host).await {
            200 => open.push(client),
            refused => {
                assert_eq!(refused, 503);
                assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
                return open;
            }
        }
        assert!(open.len() < 100, "nothing is refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_that_takes_all_connections_leaves_its_neighbours_theirs() {
    let rig = shared_listener(&twelve(), None).await;
    let mut of_a = all_for(&rig, OF_A).await;
    assert_eq!(of_a.len(), 2 + 6);
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_tenant_refused_connections_total{tenant=\"team-a\",reason=\"TenantLimit\"} 1\n",
        "vestibule_proxy_tenant_refused_connections_total{tenant=\"team-a\",reason=\"Overload\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    let mut of_b = all_for(&rig, OF_B).await;
    assert_eq!(of_b.len(), 2);
    // Those that stand go on.
    for client in &mut of_a {
        assert_eq!(status(client, OF_A).await, 200);
    }
    // Whatever host a connection was used for first, it counts for the one that it is used for. The refused one ends,
    // and what it held can be lent.
    let mut turned = of_a.pop().unwrap();
    assert_eq!(status(&mut turned, OF_B).await, 503);
    assert_eq!(read_to_end(&mut turned).await.unwrap(), b"");
    // Its client may hear of the end before its place is free.
    let left = of_a.len() + of_b.len();
    wait("its place", || rig.plane.active() == left).await;
    let mut turned = of_b.pop().unwrap();
    assert_eq!(status(&mut turned, OF_A).await, 200);
    assert_eq!(status(&mut turned, OF_B).await, 200);
    drop((of_a, turned));
    wait("room", || rig.plane.active() == of_b.len()).await;
    assert_eq!(all_for(&rig, OF_B).await.len() + of_b.len(), 2 + 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_http2_that_is_one_too_many_ends() {
    let rig = shared_listener(&twelve(), None).await;
    let of_a = all_for(&rig, OF_A).await;
    let io = TokioIo::new(rig.connect().await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = || {
        let request = Request::get(format!("http://{OF_A}/"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };
    let answer = within("an answer", sender.send_request(request())).await;
    assert_eq!(answer.unwrap().status(), 503);
    // Others are refused in the same way until the client knows that the proxy takes no more.
    while let Ok(answer) = within("an answer", sender.send_request(request())).await {
        assert_eq!(answer.status(), 503);
    }
    within("the end", connection).await.unwrap().unwrap();
    wait("its end", || rig.plane.active() == of_a.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_http2_for_another_namespace_goes_on() {
    let rig = shared_listener(&twelve(), None).await;
    let _of_b = all_for(&rig, OF_B).await;
    let io = TokioIo::new(rig.connect().await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    for (host, expected) in [(OF_A, 200), (OF_B, 503), (OF_A, 200), (OF_B, 503)] {
        let request = Request::get(format!("http://{host}/"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = within("an answer", sender.send_request(request)).await;
        assert_eq!(answer.unwrap().status(), expected, "{host}");
    }
    drop(sender);
    within("the end", connection).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_more_shares_is_sure_of_more() {
    let mut rig = shared_listener(&twelve(), None).await;
    let of_b = all_for(&rig, OF_B).await;
    assert_eq!(of_b.len(), 2 + 6);
    // While b has all that it can get, a comes to have four of six shares.
    assert_eq!(rig.apply(vec![tenant("team-a", 4, 0)]), NONE);
    let of_a = all_for(&rig, OF_A).await;
    assert_eq!(of_a.len(), 4);
    let page = rig.plane.metrics.encode().unwrap();
    for (series, expected) in [
        ("tenant_guaranteed_connections", 1),
        ("tenant_connection_shares{tenant=\"team-a\"}", 4),
        ("tenant_connection_shares{tenant=\"team-b\"}", 1),
        ("tenant_held_connections{tenant=\"team-a\"}", 4),
    ] {
        let series = format!("vestibule_proxy_{series}");
        assert_eq!(value(&page, &series), expected, "{series} in\n{page}");
    }
    // The other way round, b is sure of less than before.
    drop((of_a, of_b));
    wait("room", || rig.plane.active() == 0).await;
    let of_a = all_for(&rig, OF_A).await;
    assert_eq!(of_a.len(), 4 + 6);
    assert_eq!(all_for(&rig, OF_B).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_a_limit_has_no_more_connections_and_keeps_those_that_stand() {
    let mut rig = shared_listener(&twelve(), None).await;
    assert_eq!(rig.apply(vec![tenant("team-a", 0, 3)]), NONE);
    let mut of_a = all_for(&rig, OF_A).await;
    assert_eq!(of_a.len(), 3);
    let page = rig.plane.metrics.encode().unwrap();
    let refused = "vestibule_proxy_tenant_refused_connections_total{tenant=\"team-a\",reason=\"TenantLimit\"}";
    assert!(value(&page, refused) > 0, "{page}");
    assert_eq!(rig.apply(vec![tenant("team-a", 0, 1)]), NONE);
    for client in &mut of_a {
        assert_eq!(status(client, OF_A).await, 200);
    }
    let mut client = rig.connect().await;
    assert_eq!(status(&mut client, OF_A).await, 503);
    drop(client);
    // What a may not have is there for b.
    let of_b = all_for(&rig, OF_B).await;
    assert_eq!(of_b.len(), 2 + 5);
    drop(of_b);
    wait("room", || rig.plane.active() == of_a.len()).await;
    rig.remove(ResourceKind::Tenant, "team-a");
    assert_eq!(all_for(&rig, OF_A).await.len() + of_a.len(), 2 + 6);
}

/// A connection within TLS that asks for nothing; none if it is refused.
async fn idle(rig: &Rig, identity: &Identity, host: &str) -> Option<TlsStream<TcpStream>> {
    tls(rig.connect().await, client_config(identity), host)
        .await
        .ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_ask_for_nothing_count_for_whose_the_server_name_is() {
    let identity = Identity::new("*.example.com");
    let rig = shared_listener(&twelve(), Some(&identity)).await;
    let mut open = Vec::new();
    for (host, expected) in [(OF_A, 2 + 6), (OF_B, 2), ("c.example.com", 2)] {
        let before = open.len();
        let refused = rig.closed(CloseReason::TenantLimit);
        while let Some(client) = idle(&rig, &identity, host).await {
            open.push(client);
            assert!(open.len() < 100, "nothing is refused");
        }
        assert_eq!(open.len() - before, expected, "{host}");
        rig.wait_closed(CloseReason::TenantLimit, refused + 1).await;
    }
}

/// A listener of a tenant's ListenerSet, and its route.
fn passed_through(port: u16, tenant: &str, hostname: &str) -> [Resource; 2] {
    let name = format!("ListenerSet/{tenant}/web/tls");
    let mut route = route("web", hostname, Some("team-a/web:443"));
    route.name = format!("{tenant}/web");
    if let Some(Wire::TlsRoute(of)) = &mut route.resource {
        tenant.clone_into(&mut of.tenant);
        of.attachments[0].listener.clone_from(&name);
    }
    let listener = called(&name, listener(port, "web", hostname, None));
    [listener, route]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_for_what_is_passed_through() {
    let limits = ProxyLimits {
        max_connections: 8,
        ..twelve()
    };
    let echo = serve(echo).await;
    let rig = Rig::start(&limits, |port| {
        let sets = [
            passed_through(port, "team-a", OF_A),
            passed_through(port, "team-b", OF_B),
        ];
        let backend = [backend("team-a/web:443", &[echo])];
        sets.into_iter().flatten().chain(backend).collect()
    });
    let mut open = Vec::new();
    // The recorded hello is for team-a.
    let refused = loop {
        let mut client = rig.connect().await;
        client.write_all(HELLO).await.unwrap();
        let mut back = vec![0; HELLO.len()];
        match within("an end", client.read_exact(&mut back)).await {
            Ok(_) => open.push(client),
            Err(_) => break open.len(),
        }
        assert!(open.len() < 100, "nothing is refused");
    };
    assert_eq!(refused, 2 + 4);
    rig.wait_closed(CloseReason::TenantLimit, 1).await;
    let hello = |of: &str| {
        let text = String::from_utf8_lossy(HELLO);
        assert!(text.contains(OF_A));
        let at = HELLO
            .windows(OF_A.len())
            .position(|at| at == OF_A.as_bytes());
        let mut hello = HELLO.to_vec();
        let at = at.unwrap();
        hello[at..at + of.len()].copy_from_slice(of.as_bytes());
        hello
    };
    for _ in 0..2 {
        let mut client = rig.connect().await;
        let hello = hello(OF_B);
        client.write_all(&hello).await.unwrap();
        let mut back = vec![0; hello.len()];
        within("the echo", client.read_exact(&mut back))
            .await
            .unwrap();
        open.push(client);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_for_nobody_are_bounded_by_their_source() {
    let limits = ProxyLimits {
        max_hellos: 4,
        ..twelve()
    };
    let rig = shared_listener(&limits, None).await;
    // These are somebody's, and do not count here.
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut client = rig.connect().await;
        assert_eq!(status(&mut client, OF_A).await, 200);
        open.push(client);
    }
    for _ in 0..2 {
        let mut client = rig.connect().await;
        assert_eq!(status(&mut client, "nobody.test").await, 404);
        open.push(client);
    }
    let mut client = rig.connect().await;
    assert!(
        read_to_end(&mut client)
            .await
            .is_ok_and(|all| all.is_empty())
    );
    rig.wait_closed(CloseReason::Limit, 1).await;
    // One of them finds somebody.
    let last = open.last_mut().unwrap();
    assert_eq!(status(last, OF_B).await, 200);
    let mut client = rig.connect().await;
    assert_eq!(status(&mut client, "nobody.test").await, 404);
}
