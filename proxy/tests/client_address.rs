//! The address of a client behind a load balancer, by real connections on loopback: PROXY headers before TLS and HTTP,
//! hops that name the client of a request, and how far the proxy believes each of them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:443";
const CLIENT: &str = "198.51.100.7";
/// From [`CLIENT`], in both versions.
const V1: &[u8] = b"PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0f\xc6\x33\x64\x07\xc0\x00\x02\x01\x12\x67\x01\xbb\x04\x00\x00";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
/// Where the connections of these tests come from.
const LOOPBACK: &str = "127.0.0.0/8";
const ELSEWHERE: &str = "10.0.0.0/8";

fn protocol(mode: proto::ProxyProtocolMode, trusted: &str) -> proto::ClientAddress {
    proto::ClientAddress {
        proxy_protocol: Some(proto::ProxyProtocol {
            mode: mode.into(),
            trusted_cidrs: vec![trusted.into()],
        }),
        forwarded_headers: None,
    }
}

fn strict() -> proto::ClientAddress {
    protocol(proto::ProxyProtocolMode::Strict, LOOPBACK)
}

fn optional(trusted: &str) -> proto::ClientAddress {
    protocol(proto::ProxyProtocolMode::Optional, trusted)
}

fn hops(header: proto::ForwardedHeader, hops: u32, trusted: &str) -> proto::ClientAddress {
    proto::ClientAddress {
        proxy_protocol: None,
        forwarded_headers: Some(proto::ForwardedHeaders {
            header: header.into(),
            trusted_hops: Some(hops),
            trusted: Some(proto::Cidrs {
                cidrs: vec![trusted.into()],
            }),
        }),
    }
}

/// The settings of a Gateway behind others.
fn settings(how: &proto::ClientAddress) -> proto::GatewaySettings {
    proto::GatewaySettings {
        client_address: Some(how.clone()),
        ..Default::default()
    }
}

/// A listener behind others, with the settings of its Gateway.
fn behind(listener: Resource, how: &proto::ClientAddress) -> [Resource; 2] {
    with_settings(listener, settings(how))
}

/// HTTP in plaintext, or HTTPS, with a backend that says what it was asked.
async fn web(how: &proto::ClientAddress, limits: &ProxyLimits, identity: Option<&Identity>) -> Rig {
    let echo = Echo::start("web").await;
    let certificate = identity.map(|_| "team-a/web");
    Rig::start(limits, |port| {
        let [listener, settings] = behind(http(port, "web", NAME, certificate), how);
        let all = [
            listener,
            settings,
            http_route("web", NAME, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ];
        let certificate = identity.map(|of| of.resource("team-a/web"));
        all.into_iter().chain(certificate).collect()
    })
}

/// Passthrough, or TLS that ends here, with a backend that sends back what comes.
async fn tls_rig(
    how: &proto::ClientAddress,
    limits: &ProxyLimits,
    identity: Option<&Identity>,
) -> Rig {
    let address = serve(echo).await;
    let certificate = identity.map(|_| "team-a/web");
    Rig::start(limits, |port| {
        let [listener, settings] = behind(listener(port, "web", NAME, certificate), how);
        let all = [
            listener,
            settings,
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ];
        let certificate = identity.map(|of| of.resource("team-a/web"));
        all.into_iter().chain(certificate).collect()
    })
}

const GET: &str = "GET / HTTP/1.1\r\nhost: a.example.com\r\nconnection: close\r\n";

/// What comes back for `header`, and a request with `fields` behind it.
async fn ask_with(rig: &Rig, header: &[u8], fields: &str) -> Answer {
    let mut stream = rig.connect().await;
    let request = [header, GET.as_bytes(), fields.as_bytes(), b"\r\n"].concat();
    stream.write_all(&request).await.unwrap();
    parse(&String::from_utf8_lossy(
        &read_to_end(&mut stream).await.unwrap(),
    ))
}

/// The client that the backend saw.
async fn seen(rig: &Rig, header: &[u8]) -> Option<String> {
    let answer = ask_with(rig, header, "").await;
    let (list, one) = (answer.echoed("x-forwarded-for"), answer.echoed("x-real-ip"));
    assert_eq!(list, one);
    one
}

/// Sends this, and nothing comes back.
async fn refused(rig: &Rig, bytes: &[u8], reason: CloseReason) {
    let before = rig.closed(reason);
    let mut stream = rig.connect().await;
    // The connection may be closed before all of it is taken, and what was not read makes the close a reset.
    let _ = stream.write_all(bytes).await;
    let answer = read_to_end(&mut stream).await.unwrap_or_default();
    assert_eq!(answer, b"");
    rig.wait_closed(reason, before + 1).await;
}

fn request() -> Vec<u8> {
    [GET.as_bytes(), b"\r\n"].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_see_the_client_that_the_balancer_names() {
    let rig = web(&strict(), &quiet(), None).await;
    assert_eq!(seen(&rig, V1).await.as_deref(), Some(CLIENT));
    assert_eq!(seen(&rig, V2).await.as_deref(), Some(CLIENT));
    // A check of the balancer's own, and a client that it does not know, are from who connects.
    for own in [LOCAL, b"PROXY UNKNOWN\r\n"] {
        assert_eq!(seen(&rig, own).await.as_deref(), Some("127.0.0.1"));
    }
    let metrics = rig.plane.metrics.encode().unwrap();
    for line in [
        "vestibule_proxy_proxy_headers_total{source=\"client\"} 2",
        "vestibule_proxy_proxy_headers_total{source=\"peer\"} 2",
    ] {
        assert!(metrics.lines().any(|of| of == line), "{line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_protocol_header_is_read_wherever_it_is_cut() {
    let rig = web(&strict(), &quiet(), None).await;
    for header in [V1, V2] {
        let whole = [header, &request()].concat();
        for cut in [
            1,
            5,
            6,
            12,
            13,
            20,
            header.len() - 1,
            header.len(),
            header.len() + 1,
        ] {
            let mut stream = rig.connect().await;
            stream.set_nodelay(true).unwrap();
            let (first, rest) = whole.split_at(cut);
            stream.write_all(first).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(rest).await.unwrap();
            let bytes = read_to_end(&mut stream).await.unwrap();
            let answer = parse(&String::from_utf8_lossy(&bytes));
            assert_eq!(answer.echoed("x-real-ip").as_deref(), Some(CLIENT), "{cut}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_takes_nobody_without_a_header_and_nobody_else() {
    let rig = web(&strict(), &quiet(), None).await;
    refused(&rig, &request(), CloseReason::ProxyHeaderMissing).await;
    refused(&rig, HELLO, CloseReason::ProxyHeaderMissing).await;
    for malformed in [
        &b"PROXY TCP4 198.51.100.7\r\n"[..],
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        &[b"PROXY UNKNOWN ", &[b'x'; 107][..]].concat(),
    ] {
        refused(&rig, malformed, CloseReason::ProxyHeaderMalformed).await;
    }
    let rig = web(
        &protocol(proto::ProxyProtocolMode::Strict, ELSEWHERE),
        &quiet(),
        None,
    )
    .await;
    refused(&rig, &request(), CloseReason::UntrustedPeer).await;
    refused(&rig, &[V1, &request()].concat(), CloseReason::UntrustedPeer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn optional_takes_both_and_believes_only_who_is_trusted() {
    let rig = web(&optional(LOOPBACK), &quiet(), None).await;
    assert_eq!(seen(&rig, V1).await.as_deref(), Some(CLIENT));
    assert_eq!(seen(&rig, b"").await.as_deref(), Some("127.0.0.1"));
    let rig = web(&optional(ELSEWHERE), &quiet(), None).await;
    assert_eq!(seen(&rig, b"").await.as_deref(), Some("127.0.0.1"));
    for header in [V1, V2, LOCAL, b"PROXY nonsense\r\n"] {
        let bytes = [header, &request()].concat();
        refused(&rig, &bytes, CloseReason::UntrustedPeer).await;
    }
}

/// Where nothing is said of it, a header is what it always was: no request and no hello.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_nobody_is_believed() {
    let rig = web(&proto::ClientAddress::default(), &quiet(), None).await;
    let answer = ask_with(&rig, V1, "").await;
    assert_eq!(answer.status, 400);
    let rig = tls_rig(&proto::ClientAddress::default(), &quiet(), None).await;
    refused(&rig, &[V1, HELLO].concat(), CloseReason::NotTls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_is_no_part_of_what_is_passed_through() {
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&quiet(), |port| {
        let [listener, settings] = behind(listener(port, "web", NAME, None), &strict());
        vec![
            listener,
            settings,
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    });
    let mut client = rig.connect().await;
    client
        .write_all(&[V2, HELLO, b"more"].concat())
        .await
        .unwrap();
    let mut server = accepted.await;
    let mut got = vec![0; HELLO.len() + 4];
    within("the hello", server.read_exact(&mut got))
        .await
        .unwrap();
    assert!(got == [HELLO, b"more"].concat());
    server.write_all(b"back").await.unwrap();
    drop(server);
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"back");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_ends_behind_a_header() {
    let identity = Identity::new(NAME);
    let rig = tls_rig(&strict(), &quiet(), Some(&identity)).await;
    for header in [V1, V2] {
        let mut tcp = rig.connect().await;
        tcp.write_all(header).await.unwrap();
        let mut client = tls(tcp, client_config(&identity), NAME).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut client).await.unwrap(), b"ping");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_asked_behind_a_header() {
    let identity = Identity::new(NAME);
    let rig = web(&strict(), &quiet(), Some(&identity)).await;
    let mut tcp = rig.connect().await;
    tcp.write_all(V1).await.unwrap();
    let mut client = tls(tcp, client_config(&identity), NAME).await.unwrap();
    client.write_all(&request()).await.unwrap();
    let bytes = read_to_end(&mut client).await.unwrap();
    let answer = parse(&String::from_utf8_lossy(&bytes));
    assert_eq!(answer.echoed("x-forwarded-for").as_deref(), Some(CLIENT));
    assert_eq!(answer.echoed("x-forwarded-proto").as_deref(), Some("https"));
}

/// A client of the balancer's that says nothing behind its header, as the source that it is.
async fn silent(rig: &Rig, source: &str) -> TcpStream {
    let mut stream = rig.connect().await;
    let header = format!("PROXY TCP4 {source} 192.0.2.1 1 443\r\n");
    stream.write_all(header.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn places_before_the_hello_are_shared_between_the_clients_and_not_between_balancers() {
    let limits = ProxyLimits {
        max_hellos: 8,
        hello_deadline: PATIENCE,
        ..quiet()
    };
    let rig = tls_rig(&strict(), &limits, None).await;
    let counted = |rig: &Rig| {
        let metrics = rig.plane.metrics.encode().unwrap();
        let name = "vestibule_proxy_proxy_headers_total{source=\"client\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<usize>().unwrap())
    };
    let mut open = Vec::new();
    // One source gets half of the places, although all come from one balancer.
    for _ in 0..4 {
        open.push(silent(&rig, "198.51.100.1").await);
        wait("the header", || counted(&rig) == open.len()).await;
    }
    let mut fifth = silent(&rig, "198.51.100.1").await;
    assert_eq!(read_to_end(&mut fifth).await.unwrap_or_default(), b"");
    rig.wait_closed(CloseReason::Limit, 1).await;
    wait("its end", || rig.plane.active() == open.len()).await;
    // Others of the same balancer still find theirs. (One may fall on the count of another, but not all.)
    let before = rig.closed(CloseReason::Limit);
    for other in ["203.0.113.1", "203.0.113.2"] {
        let asked = counted(&rig);
        let _other = silent(&rig, other).await;
        wait("the header", || counted(&rig) == asked + 1).await;
    }
    assert!(rig.closed(CloseReason::Limit) < before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_has_the_time_of_a_hello_and_no_more() {
    let limits = ProxyLimits {
        hello_deadline: std::time::Duration::from_millis(200),
        ..quiet()
    };
    let rig = tls_rig(&strict(), &limits, None).await;
    for begun in [&b"PROXY"[..], V1, &[V2, &HELLO[..9]].concat()] {
        refused(&rig, begun, CloseReason::HelloTimeout).await;
    }
    // A client that closes within it is no attacker: health checks do so.
    let client = rig.connect().await;
    drop(client);
    rig.wait_closed(CloseReason::ClientSilent, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_hop_is_believed_and_anybody_else_replaced() {
    use proto::ForwardedHeader::XForwardedFor;
    let fields = "x-forwarded-for: 203.0.113.9, 198.51.100.7\r\nx-forwarded-proto: https\r\nx-forwarded-host: shop.example.com\r\nx-request-id: from-the-hop\r\nforwarded: for=203.0.113.66\r\n";
    let rig = web(&hops(XForwardedFor, 1, LOOPBACK), &quiet(), None).await;
    let answer = ask_with(&rig, b"", fields).await;
    let echoed = |name: &str| answer.echoed(name);
    let list = "203.0.113.9, 198.51.100.7, 127.0.0.1";
    assert_eq!(echoed("x-forwarded-for").as_deref(), Some(list));
    assert_eq!(echoed("x-real-ip").as_deref(), Some(CLIENT));
    assert_eq!(echoed("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(
        echoed("x-forwarded-host").as_deref(),
        Some("shop.example.com")
    );
    assert_eq!(echoed("x-forwarded-port").as_deref(), Some("443"));
    assert_eq!(echoed("x-request-id").as_deref(), Some("from-the-hop"));
    // The hop does not write this one, so it is the client's.
    assert_eq!(echoed("forwarded"), None);

    for how in [
        hops(XForwardedFor, 1, ELSEWHERE),
        proto::ClientAddress::default(),
    ] {
        let rig = web(&how, &quiet(), None).await;
        let answer = ask_with(&rig, b"", fields).await;
        let echoed = |name: &str| answer.echoed(name);
        assert_eq!(echoed("x-forwarded-for").as_deref(), Some("127.0.0.1"));
        assert_eq!(echoed("x-real-ip").as_deref(), Some("127.0.0.1"));
        assert_eq!(echoed("x-forwarded-proto").as_deref(), Some("http"));
        assert_eq!(echoed("x-forwarded-host").as_deref(), Some(NAME));
        let id = echoed("x-request-id").unwrap();
        assert_eq!(id.len(), 32, "{id}");
        assert_eq!(echoed("forwarded"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_is_kept_and_added_to() {
    let how = hops(proto::ForwardedHeader::Forwarded, 1, LOOPBACK);
    let rig = web(&how, &quiet(), None).await;
    let fields = "forwarded: for=203.0.113.9\r\nforwarded: for=198.51.100.7;proto=https;host=shop.example.com\r\nx-forwarded-for: 203.0.113.66\r\n";
    let answer = ask_with(&rig, b"", fields).await;
    let echoed = |name: &str| answer.echoed(name);
    let list = format!(
        "for=203.0.113.9, for=198.51.100.7;proto=https;host=shop.example.com, for=127.0.0.1;host=\"{NAME}\";proto=http"
    );
    assert_eq!(echoed("forwarded").as_deref(), Some(&*list));
    assert_eq!(echoed("x-forwarded-for").as_deref(), Some(CLIENT));
    assert_eq!(echoed("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(
        echoed("x-forwarded-host").as_deref(),
        Some("shop.example.com")
    );
}

/// A balancer that only moves bytes in front of one that speaks HTTP behind it: the header says which hop it is.
#[tokio::test(flavor = "multi_thread")]
async fn hops_count_from_whom_the_header_names() {
    let mut how = hops(proto::ForwardedHeader::XForwardedFor, 1, "198.51.100.0/24");
    how.proxy_protocol = strict().proxy_protocol;
    let rig = web(&how, &quiet(), None).await;
    let answer = ask_with(&rig, V1, "x-forwarded-for: 203.0.113.9\r\n").await;
    let list = "203.0.113.9, 198.51.100.7";
    assert_eq!(answer.echoed("x-forwarded-for").as_deref(), Some(list));
    assert_eq!(answer.echoed("x-real-ip").as_deref(), Some("203.0.113.9"));
    let answer = ask_with(&rig, LOCAL, "x-forwarded-for: 203.0.113.9\r\n").await;
    assert_eq!(answer.echoed("x-real-ip").as_deref(), Some("127.0.0.1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_to_how_the_client_asked() {
    let how = hops(proto::ForwardedHeader::XForwardedFor, 1, LOOPBACK);
    let rig = Rig::start(&quiet(), |port| {
        let mut moved = rule("/", BACKEND);
        moved.backends.clear();
        let to = proto::HttpRedirect {
            hostname: "b.example.com".into(),
            status: 302,
            ..Default::default()
        };
        moved.filters = vec![filter(proto::http_filter::Filter::Redirect(to))];
        let [listener, settings] = behind(http(port, "web", NAME, None), &how);
        vec![listener, settings, http_route("web", NAME, vec![moved])]
    });
    let answer = ask_with(&rig, b"", "x-forwarded-proto: https\r\n").await;
    assert_eq!(answer.header("location"), Some("https://b.example.com/"));
    let port = rig.address.port();
    let answer = ask_with(&rig, b"", "").await;
    let plain = format!("http://b.example.com:{port}/");
    assert_eq!(answer.header("location"), Some(&*plain));
}

/// The listeners of a Gateway serve nobody before the proxy knows whom to believe there.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_settings_of_the_gateway_nobody_is_served() {
    let echo = Echo::start("web").await;
    let mut rig = Rig::start(&quiet(), |port| {
        vec![
            needs_settings(http(port, "web", NAME, None)),
            http_route("web", NAME, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ]
    });
    let mut early = rig.connect().await;
    let _ = early.write_all(&request()).await;
    let answer = read_to_end(&mut early).await.unwrap_or_default();
    assert!(answer.is_empty());
    rig.wait_closed(CloseReason::NoListener, 1).await;
    let edit = vec![gateway_settings(settings(&strict()))];
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    assert_eq!(seen(&rig, V1).await.as_deref(), Some(CLIENT));
    assert_eq!(echo.requests(), 1);
}

/// The setting counts from the next connection on, and for requests at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_counts_at_once() {
    let echo = Echo::start("web").await;
    let trusting = hops(proto::ForwardedHeader::XForwardedFor, 1, LOOPBACK);
    let mut rig = Rig::start(&quiet(), |port| {
        let [listener, settings] = behind(http(port, "web", NAME, None), &trusting);
        vec![
            listener,
            settings,
            http_route("web", NAME, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ]
    });
    let mut client = rig.connect().await;
    let request = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\nx-forwarded-for: {CLIENT}\r\n\r\n");
    for (how, expected) in [(None, CLIENT), (Some(&strict()), "127.0.0.1")] {
        if let Some(how) = how {
            let edit = vec![gateway_settings(settings(how))];
            assert_eq!(rig.apply(edit), Vec::<String>::new());
        }
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = one_answer(&mut client).await.unwrap();
        assert_eq!(answer.echoed("x-real-ip").as_deref(), Some(expected));
    }
    assert_eq!(seen(&rig, V1).await.as_deref(), Some(CLIENT));
}
