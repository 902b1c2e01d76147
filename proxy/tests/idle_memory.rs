//! What an idle HTTP/1.1 connection costs in memory. In a process of its own, since it counts what the process has
//! allocated.

use std::alloc::System;

use cap::Cap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_test_support::eventually;

#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
const CLIENTS: usize = 200;
/// Most bytes for each idle connection, with what the client in this process has. With the buffers of hyper there are more
/// than 20 KiB.
const MOST: usize = 6 * 1024;

/// The same within TLS. Most of it is the client's. With the buffers of hyper there are 47 KiB or more.
const MOST_WITHIN_TLS: usize = 38 * 1024;

/// Makes a request and reads the answer.
async fn ask(client: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(one_answer(client).await.unwrap().status, 200);
}

/// One after the other, because both count what the process has allocated.
#[tokio::test(flavor = "multi_thread")]
async fn idle_http_connections_hold_no_buffers_and_are_served_again() {
    in_plaintext().await;
    within_tls().await;
}

async fn in_plaintext() {
    let echo = Echo::start("one").await;
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, None),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ]
    });
    // What the first connection sets up is not that of the others.
    let mut first = rig.connect().await;
    ask(&mut first).await;
    let base = ALLOCATED.allocated();
    let mut clients = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        clients.push(rig.connect().await);
    }
    for _ in 0..2 {
        for client in &mut clients {
            ask(client).await;
        }
        eventually("they give back their buffers", async || {
            ALLOCATED.allocated().saturating_sub(base) / CLIENTS <= MOST
        })
        .await;
    }
}

async fn within_tls() {
    let echo = Echo::start("one").await;
    let own = Identity::new(HOST);
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", HOST, Some("team-a/web")),
            own.resource("team-a/web"),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ]
    });
    let connect = async || {
        tls(rig.connect().await, client_config(&own), HOST)
            .await
            .unwrap()
    };
    let mut first = connect().await;
    ask(&mut first).await;
    let base = ALLOCATED.allocated();
    let mut clients = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        clients.push(connect().await);
    }
    for round in 0..3 {
        // In the first round, they do so before their first request.
        eventually("they give back their buffers", async || {
            ALLOCATED.allocated().saturating_sub(base) / CLIENTS <= MOST_WITHIN_TLS
        })
        .await;
        for client in &mut clients {
            // Two requests in one record.
            let request = format!("GET /{round} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
            client
                .write_all(request.repeat(2).as_bytes())
                .await
                .unwrap();
            let mut bytes = Vec::new();
            for _ in 0..2 {
                let answer = within("an answer", read_answer(client, &mut bytes)).await;
                assert_eq!(answer.unwrap().status, 200);
                let next = bytes.windows(9).skip(1).position(|at| at == b"HTTP/1.1 ");
                bytes.drain(..next.map_or(bytes.len(), |next| next + 1));
            }
        }
    }
    for client in &mut clients {
        client.shutdown().await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
    }
}
