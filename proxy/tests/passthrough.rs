//! Passthrough end to end: bytes, ends and resets go through as they came.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::*;

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:443";

fn rig(address: std::net::SocketAddr) -> Rig {
    Rig::start(&ProxyLimits::default(), |port| {
        vec![
            listener(port, "web", NAME, None),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
        ]
    })
}

/// A client that has sent a hello, and its backend's end, which has received it.
async fn pair() -> (Rig, TcpStream, TcpStream) {
    let (address, accepted) = one_connection().await;
    let rig = rig(address);
    let mut client = rig.connect().await;
    client.write_all(HELLO).await.unwrap();
    let mut server = accepted.await;
    let mut hello = vec![0; HELLO.len()];
    within("the hello", server.read_exact(&mut hello))
        .await
        .unwrap();
    assert!(hello == HELLO);
    (rig, client, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backend_does_the_handshake() {
    let identity = Identity::new(NAME);
    let acceptor = identity.acceptor();
    let address = serve(move |tcp| {
        let acceptor = acceptor.clone();
        async move {
            let mut tls = acceptor.accept(tcp).await.unwrap();
            assert_eq!(tls.get_ref().1.server_name(), Some(NAME));
            let mut line = [0; 4];
            tls.read_exact(&mut line).await.unwrap();
            tls.write_all(&line).await.unwrap();
            tls.shutdown().await.unwrap();
        }
    })
    .await;
    let rig = rig(address);
    let mut client = tls(rig.connect().await, client_config(&identity), NAME)
        .await
        .unwrap();
    client.write_all(b"ping").await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"ping");
    client.shutdown().await.unwrap();
    drop(client);
    wait("the connection's end", || rig.plane.active() == 0).await;
    assert_eq!(rig.closed(CloseReason::BackendClosed), 1);
    let metrics = &rig.plane.metrics;
    assert!(metrics.bytes_upstream.get() > 1400);
    assert!(metrics.bytes_downstream.get() > 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_client_leaves_the_other_direction_open() {
    let (rig, mut client, server) = pair().await;
    one_ends_first(&mut client, server).await;
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_backend_leaves_the_other_direction_open() {
    let (rig, client, mut server) = pair().await;
    one_ends_first(&mut server, client).await;
    rig.wait_closed(CloseReason::BackendClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_arrives_whole_in_both_directions_at_once() {
    const LENGTH: u64 = 64 << 20;
    let (rig, client, server) = pair().await;
    let _ends = both_send(client.into_split(), server.into_split(), LENGTH).await;
    wait("the connection's end", || rig.plane.active() == 0).await;
    assert_eq!(
        rig.plane.metrics.bytes_upstream.get(),
        LENGTH + HELLO.len() as u64
    );
    assert_eq!(rig.plane.metrics.bytes_downstream.get(), LENGTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_and_conversation_take_turns() {
    let (rig, mut client, server) = pair().await;
    let echoing = tokio::spawn(echo(server));
    for turn in 0..4 {
        let (mut read, mut write) = client.split();
        tokio::join!(
            send(&mut write, turn, 1 << 20),
            receive(&mut read, turn, 1 << 20)
        );
        for message in 0..40_u8 {
            client.write_all(&[message; 100]).await.unwrap();
            let mut back = [0; 100];
            within("the echo", client.read_exact(&mut back))
                .await
                .unwrap();
            assert_eq!(back, [message; 100]);
        }
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    echoing.await.unwrap();
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_does_not_read_holds_the_sender_back() {
    let (rig, mut client, mut server) = pair().await;
    // Until nothing more is taken: then all buffers on the way are full.
    let mut sent = 0_u64;
    let block = vec![7; 1 << 16];
    while let Ok(written) =
        tokio::time::timeout(std::time::Duration::from_millis(300), client.write(&block)).await
    {
        sent += written.unwrap() as u64;
        assert!(sent < 1 << 30, "nothing holds the sender back");
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut server).await.unwrap().len() as u64, sent);
    drop(server);
    rig.wait_closed(CloseReason::ClientClosed, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_passed_on() {
    let (rig, client, mut server) = pair().await;
    client.set_zero_linger().unwrap();
    drop(client);
    assert!(read_to_end(&mut server).await.is_err());
    rig.wait_closed(CloseReason::ClientReset, 1).await;

    let (rig, mut client, server) = pair().await;
    server.set_zero_linger().unwrap();
    drop(server);
    assert!(read_to_end(&mut client).await.is_err());
    rig.wait_closed(CloseReason::BackendReset, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_with_hellos_in_pieces() {
    let rig = rig(serve(echo).await);
    let mut clients = tokio::task::JoinSet::new();
    for index in 0..200_usize {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            client.set_nodelay(true).unwrap();
            let cut = 1 + index * 7 % (HELLO.len() - 1);
            client.write_all(&HELLO[..cut]).await.unwrap();
            tokio::task::yield_now().await;
            client.write_all(&HELLO[cut..]).await.unwrap();
            client
                .write_all(&[u8::try_from(index).unwrap(); 100])
                .await
                .unwrap();
            client.shutdown().await.unwrap();
            let back = read_to_end(&mut client).await.unwrap();
            let (hello, rest) = back.split_at(HELLO.len());
            assert!(hello == HELLO);
            assert_eq!(rest, [u8::try_from(index).unwrap(); 100]);
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    rig.wait_closed(CloseReason::ClientClosed, 200).await;
    assert_eq!(rig.plane.active(), 0);
}
