//! Tunnels whose backend takes nothing more: the proxy sees that the client is gone, although it reads nothing of it. If
//! the backend is gone, the client does not take that for an orderly end.

use std::io;
use std::time::Duration;

use proto::BackendProtocol;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:443";

/// Sends until nobody takes anything more.
async fn fill(client: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let bytes = vec![7; 1 << 20];
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(2), client.write(&bytes)).await
    {
        written?;
    }
    Ok(())
}

/// The client's bytes fill everything on the way, and the backend sends a part of an answer and resets its connection.
async fn sees_a_reset(client: &mut (impl AsyncRead + AsyncWrite + Unpin), mut server: TcpStream) {
    fill(client).await.unwrap();
    server.write_all(b"half an answer").await.unwrap();
    let mut half = [0; 14];
    let read = client.read_exact(&mut half);
    within("half of the answer", read).await.unwrap();
    assert_eq!(&half, b"half an answer");
    server.set_zero_linger().unwrap();
    drop(server);
    let error = read_to_end(client).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// The client resets its connection, and the proxy ends the tunnel.
async fn is_missed(rig: &Rig, client: TcpStream) {
    client.set_zero_linger().unwrap();
    drop(client);
    wait("the end", || rig.plane.active() == 0).await;
    assert_eq!(rig.closed(CloseReason::ClientReset), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_passthrough_is_missed() {
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "web", NAME, None),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    });
    let mut client = rig.connect().await;
    client.write_all(HELLO).await.unwrap();
    let _server = accepted.await;
    fill(&mut client).await.unwrap();
    is_missed(&rig, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_terminated_tls_is_missed() {
    let identity = Identity::new(NAME);
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
            identity.resource("team-a/cert"),
        ]
    });
    let connected = rig.connect().await;
    let mut client = tls(connected, client_config(&identity), NAME)
        .await
        .unwrap();
    let _server = accepted.await;
    fill(&mut client).await.unwrap();
    is_missed(&rig, client.into_inner().0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_bytes_sees_the_reset_of_its_backend() {
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            tcp(port, "web"),
            tcp_route("web", 0, "web", &[(BACKEND, 1)]),
            backend(BACKEND, &[address]),
        ]
    });
    let mut client = rig.connect().await;
    sees_a_reset(&mut client, accepted.await).await;
    rig.wait_closed(CloseReason::BackendReset, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_terminated_tls_sees_the_reset_of_its_backend() {
    let identity = Identity::new(NAME);
    for version in [&TLS12, &TLS13] {
        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&ProxyLimits::default(), |port| {
            vec![
                listener(port, "web", NAME, Some("team-a/cert")),
                route("web", NAME, Some(BACKEND)),
                backend(BACKEND, &[address]),
                identity.resource("team-a/cert"),
            ]
        });
        let config = client_config_with(&identity, provider(), &[version]);
        let connected = tls(rig.connect().await, config, NAME).await;
        let mut client = connected.unwrap();
        sees_a_reset(&mut client, accepted.await).await;
        rig.wait_closed(CloseReason::BackendReset, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_websocket_is_missed() {
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&ProxyLimits::default(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], BackendProtocol::Unspecified),
        ]
    });
    let mut client = rig.connect().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k";
    let request = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\n{upgrade}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut server = accepted.await;
    let mut head = [0; 4096];
    assert!(within("a request", server.read(&mut head)).await.unwrap() > 0);
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-accept: a\r\n\r\n";
    server.write_all(answer.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    within("an answer", client.read_exact(&mut first))
        .await
        .unwrap();
    assert_eq!(&first, b"HTTP/1.1 101");
    fill(&mut client).await.unwrap();
    is_missed(&rig, client).await;
}
