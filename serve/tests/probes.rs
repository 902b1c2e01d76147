//! The port for probes as strangers meet it: it stays open to the kubelet whatever they do.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use vestibule_serve::probes::{Limits, serve_within};

/// Longest wait for something that has to happen.
const PATIENCE: Duration = Duration::from_mins(1);
const NEVER: Duration = Duration::from_hours(1);

async fn port(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/healthz", get(async || "ok\n"));
    tokio::spawn(serve_within(limits, listener, router));
    address
}

async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// What comes back until the connection ends.
async fn ask(stream: &mut TcpStream, request: &str) -> String {
    let mut answer = Vec::new();
    // It may be closed meanwhile.
    let _ = stream.write_all(request.as_bytes()).await;
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the connection ends");
    String::from_utf8(answer).unwrap()
}

const LAST: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn sources_that_take_every_place_leave_one_to_a_probe_of_the_kubelet() {
    let address = port(Limits {
        connections: 8,
        head: NEVER,
        stay: NEVER,
    })
    .await;
    let mut silent = Vec::new();
    for last in [1, 2, 3] {
        for _ in 0..8 {
            silent.push(connect_from(last, address).await);
        }
    }
    // Those that are over the share of their source are closed without an answer.
    let probe = async {
        loop {
            let answer = ask(&mut connect_from(9, address).await, LAST).await;
            if answer.ends_with("ok\n") {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, probe).await.expect("a place for a probe");
    let greedy = ask(&mut connect_from(1, address).await, LAST).await;
    assert_eq!(greedy, "");
}

#[tokio::test]
async fn slow_and_endless_connections_end() {
    let short = Duration::from_millis(50);
    let impatient = port(Limits {
        connections: 64,
        head: short,
        stay: NEVER,
    })
    .await;
    for request in ["", "GET /healthz HTTP/1.1\r\nhost: a\r\n"] {
        let mut stream = TcpStream::connect(impatient).await.unwrap();
        assert!(!ask(&mut stream, request).await.contains("200 OK"));
    }
    // An idle one that was used.
    let kept = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut stream = TcpStream::connect(impatient).await.unwrap();
    assert!(ask(&mut stream, kept).await.contains("200 OK"));

    let brief = port(Limits {
        connections: 64,
        head: NEVER,
        stay: short,
    })
    .await;
    let mut stream = TcpStream::connect(brief).await.unwrap();
    ask(&mut stream, "").await;
}

#[tokio::test]
async fn heads_are_bounded() {
    let address = port(Limits {
        connections: 64,
        head: NEVER,
        stay: NEVER,
    })
    .await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let long = format!(
        "GET /healthz HTTP/1.1\r\na: {}\r\n\r\n",
        "b".repeat(64 << 10)
    );
    assert!(!ask(&mut stream, &long).await.contains("200 OK"));
}
