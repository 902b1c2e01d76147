//! The line that a connection leaves in the log. In a binary of its own, as the subscriber is the
//! process's.

use tokio::io::AsyncWriteExt;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::sink::Sink;
use vestibule_proxy_testing::*;
use vestibule_stream::{ResourceKind, proto};

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:80";
const DATAGRAMS: &str = "team-a/dns:53/udp";

/// What differs from run to run is only looked for.
fn take_what_differs(line: &mut serde_json::Value) {
    let fields = line.as_object_mut().unwrap();
    for key in ["timestamp", "client", "duration_ms"] {
        assert!(fields.remove(key).is_some(), "{key} is missing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_leaves_one_line() {
    let sink = Sink::subscribe("info,vestibule_proxy=trace,vestibule_stream=trace");
    let identity = Identity::new(NAME);
    let address = serve(echo).await;
    let identity_for_shop = Identity::new("shop.example.com");
    let mut rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
            identity.resource("team-a/cert"),
        ]
    });

    let config = client_config(&identity);
    let mut client = tls(rig.connect().await, config, NAME).await.unwrap();
    client.write_all(b"ping").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"ping");
    drop(client);
    wait("a line", || sink.lines().len() == 1).await;
    let mut line = sink.lines().remove(0);
    take_what_differs(&mut line);
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "server_name": NAME,
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/web/tls",
        "route": "team-a/web",
        "route_kind": "TLSRoute",
        "backend": BACKEND,
        "endpoint": address.to_string(),
        "bytes_in": 4,
        "bytes_out": 4,
        "tls_version": "1.3",
        "resumed": false,
        "reason": "ClientClosed",
    });
    assert_eq!(line, expected);

    // Refused: what is known is there, and nothing else.
    let mut client = rig.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = read_to_end(&mut client).await;
    wait("a line", || sink.lines().len() == 2).await;
    let line = sink.lines().remove(1);
    assert_eq!(line["reason"], "NotTls");
    assert!(line.get("server_name").is_none() && line.get("listener").is_none());

    // Health checks, which say nothing, leave no line at this level.
    drop(rig.connect().await);
    rig.wait_closed(CloseReason::ClientSilent, 1).await;
    wait("the end", || rig.plane.active() == 0).await;
    assert_eq!(sink.lines().len(), 2);

    a_request_leaves_one_line_and_its_connection_none(&mut rig, &sink, &identity_for_shop).await;
    a_request_that_was_served_says_by_whom(&mut rig, &sink, &identity_for_shop).await;
    a_call_of_grpc_says_how_it_ended(&rig, &sink, &identity_for_shop).await;
    a_ca_leaves_a_line_and_no_key(&mut rig, &sink).await;
    behind_others_a_line_names_the_client_and_the_peer(&mut rig, &sink, &identity_for_shop).await;
    bytes_leave_a_line_without_a_name(&sink).await;
    a_session_of_datagrams_leaves_one_line(&sink).await;
    a_line_has_the_host_in_one_value(&sink).await;
}

async fn a_line_has_the_host_in_one_value(sink: &Sink) {
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![http(port, "plain", NAME, None)]
    });
    let long = "a".repeat(1000);
    for (host, logged) in [
        (&*long, &long[..255]),
        (
            "x route=blue/bl status=200",
            "x%20route%3Dblue/bl%20status%3D200",
        ),
    ] {
        let lines = sink.lines().len();
        let mut client = rig.connect().await;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        read_to_end(&mut client).await.unwrap();
        wait("a line", || sink.lines().len() == lines + 1).await;
        assert_eq!(sink.lines()[lines]["authority"], logged);
    }
}

async fn a_session_of_datagrams_leaves_one_line(sink: &Sink) {
    let backend_socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = backend_socket.local_addr().unwrap();
    let mut rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            udp(port, "dns"),
            udp_route("dns", 0, "dns", &[(DATAGRAMS, 1)]),
            backend(DATAGRAMS, &[address]),
        ]
    });
    let lines = sink.lines().len();
    let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(rig.address).await.unwrap();
    client.send(b"question").await.unwrap();
    let mut buffer = [0; 64];
    let received = within("it", backend_socket.recv_from(&mut buffer)).await;
    let (_, session) = received.unwrap();
    for answer in ["one", "three"] {
        let sent = backend_socket.send_to(answer.as_bytes(), session).await;
        sent.unwrap();
        within("an answer", client.recv(&mut buffer)).await.unwrap();
    }
    rig.remove(ResourceKind::Listener, "ListenerSet/team-a/dns/tls");
    wait("a line", || sink.lines().len() == lines + 1).await;
    let mut line = sink.lines().remove(lines);
    take_what_differs(&mut line);
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": format!("{}/udp", rig.address),
        "protocol": "udp",
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/dns/tls",
        "route": "team-a/dns",
        "route_kind": "UDPRoute",
        "backend": DATAGRAMS,
        "endpoint": address.to_string(),
        "datagrams_in": 1,
        "datagrams_out": 2,
        "bytes_in": 8,
        "bytes_out": 8,
        "reason": "NoListener",
    });
    assert_eq!(line, expected);
}

async fn bytes_leave_a_line_without_a_name(sink: &Sink) {
    let address = serve(echo).await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            tcp(port, "db"),
            tcp_route("db", 0, "db", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    });
    let lines = sink.lines().len();
    let mut client = rig.connect().await;
    client.write_all(b"SELECT").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"SELECT");
    wait("a line", || sink.lines().len() == lines + 1).await;
    let mut line = sink.lines().remove(lines);
    take_what_differs(&mut line);
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/db/tls",
        "route": "team-a/db",
        "route_kind": "TCPRoute",
        "backend": BACKEND,
        "endpoint": address.to_string(),
        "bytes_in": 6,
        "bytes_out": 6,
        "reason": "ClientClosed",
    });
    assert_eq!(line, expected);
}

async fn a_call_of_grpc_says_how_it_ended(rig: &Rig, sink: &Sink, identity: &Identity) {
    let before = sink.lines().len();
    let config = client_config(identity);
    let client = tls(rig.connect().await, config, "shop.example.com").await;
    let mut client = client.unwrap();
    let request = "POST /shop.v1.Cart/Add HTTP/1.1\r\nhost: nobody.example.com\r\n\
                   content-type: application/grpc-web\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut client).await.unwrap();
    let answer = web::parse(&String::from_utf8(answer).unwrap());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("grpc-status"), Some("12"));
    wait("the end", || rig.plane.active() == 0).await;
    let line = sink.lines().remove(before);
    assert_eq!(line["status"], 200);
    assert_eq!(line["grpc_status"], 12);
    assert_eq!(line["reason"], "NoListener");
}

async fn behind_others_a_line_names_the_client_and_the_peer(
    rig: &mut Rig,
    sink: &Sink,
    identity: &Identity,
) {
    let shop = http(
        rig.address.port(),
        "shop",
        "shop.example.com",
        Some("team-a/shop"),
    );
    let client_address = proto::ClientAddress {
        proxy_protocol: Some(proto::ProxyProtocol {
            mode: proto::ProxyProtocolMode::Strict.into(),
            trusted_cidrs: vec!["127.0.0.0/8".into()],
        }),
        forwarded_headers: Some(proto::ForwardedHeaders {
            header: proto::ForwardedHeader::XForwardedFor.into(),
            trusted_hops: Some(1),
            trusted: None,
        }),
    };
    let settings = proto::GatewaySettings {
        client_address: Some(client_address),
        ..Default::default()
    };
    let edit = with_settings(shop, settings).to_vec();
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    let before = sink.lines().len();
    let header = b"PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n";

    // A connection without a request, and one with.
    let mut tcp = rig.connect().await;
    let peer = tcp.local_addr().unwrap().to_string();
    tcp.write_all(&[header, &b"GET / HTTP/1.1\r\n\r\n"[..]].concat())
        .await
        .unwrap();
    let _ = read_to_end(&mut tcp).await;
    wait("a line", || sink.lines().len() > before).await;
    let line = sink.lines().remove(before);
    assert_eq!(line["reason"], "NotTls");
    assert_eq!(line["client"], "198.51.100.7:4711");
    assert_eq!(line["peer"], peer);

    let mut tcp = rig.connect().await;
    let peer = tcp.local_addr().unwrap().to_string();
    tcp.write_all(header).await.unwrap();
    let client = tls(tcp, client_config(identity), "shop.example.com").await;
    let mut client = client.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: shop.example.com\r\nx-forwarded-for: 203.0.113.9\r\n\
                   x-request-id: kept\r\nconnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    read_to_end(&mut client).await.unwrap();
    wait("the end", || rig.plane.active() == 0).await;
    let line = sink.lines().remove(before + 1);
    assert_eq!(line["client"], "203.0.113.9");
    assert_eq!(line["peer"], peer);
    assert_eq!(line["request_id"], "kept");
}

async fn a_ca_leaves_a_line_and_no_key(rig: &mut Rig, sink: &Sink) {
    let before = sink.lines().len();
    let made = acme::ChallengeCertificate::new(NAME);
    let resource = made.resource(rig.address.port(), NAME);
    // Of another Gateway, which is rejected and said.
    let mut other = resource.clone();
    other.name = other.name.replace("edge", "other");
    assert_eq!(rig.apply(vec![resource, other]).len(), 1);
    let ca = acme::ca(&[acme::ACME_TLS], rustls::ALL_VERSIONS);
    let mut client = tls(rig.connect().await, ca, NAME).await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    drop(client);
    wait("the end", || rig.plane.active() == 0).await;
    let mut line = sink.lines().remove(before);
    take_what_differs(&mut line);
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "server_name": NAME,
        "tenant": "team-a",
        "gateway": "infra/edge",
        "challenge": "infra/edge/tls-alpn-01/a.example.com",
        "bytes_in": 0,
        "bytes_out": 0,
        "tls_version": "1.3",
        "resumed": false,
        "alpn": "acme-tls/1",
        "reason": "ChallengeAnswered",
    });
    assert_eq!(line, expected);
    let metrics = rig.plane.metrics.encode().unwrap();
    for text in [sink.text(), metrics] {
        assert_eq!(acme::leak(&text, &made.key), None);
    }
}

async fn a_request_that_was_served_says_by_whom(rig: &mut Rig, sink: &Sink, identity: &Identity) {
    let echo = web::Echo::start("one").await;
    let mut rule = web::rule("/", "team-a/shop:80");
    rule.name = "all".into();
    let edit = vec![
        web::http_route("shop", "shop.example.com", vec![rule]),
        backend("team-a/shop:80", &[echo.address]),
    ];
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    let config = client_config(identity);
    let client = tls(rig.connect().await, config, "shop.example.com").await;
    let mut client = client.unwrap();
    let request = "POST /cart?token=secret HTTP/1.1\r\nhost: shop.example.com\r\n\
                   content-length: 5\r\nconnection: close\r\n\r\nhello";
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut client).await.unwrap();
    let answer = web::parse(&String::from_utf8(answer).unwrap());
    assert_eq!(answer.status, 200);
    wait("the end", || rig.plane.active() == 0).await;
    let mut line = sink.lines().remove(3);
    let fields = line.as_object_mut().unwrap();
    for key in ["timestamp", "client", "duration_ms", "backend_ms"] {
        assert!(fields.remove(key).is_some(), "{key} is missing");
    }
    let id = fields.remove("request_id").unwrap();
    assert_eq!(id.as_str(), answer.echoed("x-request-id").as_deref());
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "server_name": "shop.example.com",
        "tls_version": "1.3",
        "protocol": "HTTP/1.1",
        "method": "POST",
        "authority": "shop.example.com",
        "path": "/cart",
        "status": 200,
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/shop/tls",
        "route": "team-a/shop",
        "route_kind": "HTTPRoute",
        "rule": "all",
        "rule_index": 0,
        "backend": "team-a/shop:80",
        "endpoint": echo.address.to_string(),
        "reused": false,
        "body_bytes_in": 5,
        "body_bytes_out": answer.body.len(),
        "reason": "Served",
    });
    assert_eq!(line, expected);
}

async fn a_request_leaves_one_line_and_its_connection_none(
    rig: &mut Rig,
    sink: &Sink,
    identity: &Identity,
) {
    let port = rig.address.port();
    let edit = vec![
        http(port, "shop", "shop.example.com", Some("team-a/shop")),
        identity.resource("team-a/shop"),
    ];
    assert_eq!(rig.apply(edit), Vec::<String>::new());
    let config = client_config(identity);
    let mut client = tls(rig.connect().await, config, "shop.example.com")
        .await
        .unwrap();
    let request = "GET /cart?token=secret HTTP/1.1\r\nhost: Shop.example.com:443\r\n";
    let request = format!("{request}connection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut client).await.unwrap();
    let body = "no route is for this request\n";
    assert!(String::from_utf8(answer).unwrap().ends_with(body));
    wait("the end", || rig.plane.active() == 0).await;
    assert_eq!(sink.lines().len(), 3);
    let mut line = sink.lines().remove(2);
    take_what_differs(&mut line);
    let id = line.as_object_mut().unwrap().remove("request_id").unwrap();
    assert_eq!(id.as_str().unwrap().len(), 32);
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "server_name": "shop.example.com",
        "tls_version": "1.3",
        "protocol": "HTTP/1.1",
        "method": "GET",
        "authority": "Shop.example.com:443",
        "path": "/cart",
        "status": 404,
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/shop/tls",
        "body_bytes_in": 0,
        "body_bytes_out": body.len(),
        "reason": "NoRoute",
    });
    assert_eq!(line, expected);
}
