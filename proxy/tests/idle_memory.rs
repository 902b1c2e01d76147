//! What an idle HTTP/1.1 connection costs in memory. In a process of its own, since it counts what the process has
//! allocated.

use std::alloc::System;

use cap::Cap;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
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

/// Makes a request and reads the answer.
async fn ask(client: &mut TcpStream) {
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(one_answer(client).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_http_connections_hold_no_buffers_and_are_served_again() {
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
        let mut client = rig.connect().await;
        ask(&mut client).await;
        clients.push(client);
    }
    for _ in 0..2 {
        eventually("the connections give back their buffers", async || {
            ALLOCATED.allocated().saturating_sub(base) / CLIENTS <= MOST
        })
        .await;
        for client in &mut clients {
            ask(client).await;
        }
    }
}
