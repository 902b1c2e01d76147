//! Listeners of datagrams, by real clients and backends on loopback: a client has a session with an endpoint and a port
//! of its own, sessions end and give way as they should, and nobody is sent what no backend sent.
//!
//! Datagrams get lost where a queue is full. So a client here sends the next one when it has the answer to the one
//! before, or few enough that any queue takes them.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use vestibule_proxy::plane::ProxyLimits;
use vestibule_proxy::udp::UdpLimits;
use vestibule_stream::{Resource, ResourceKey, ResourceKind, proto};

const BACKEND: &str = "team-a/dns:53/udp";

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

fn limited(udp: UdpLimits) -> ProxyLimits {
    ProxyLimits { udp, ..quiet() }
}

fn serving(port: u16, addresses: &[SocketAddr]) -> Vec<Resource> {
    vec![
        udp(port, "dns"),
        udp_route("dns", 0, "dns", &[(BACKEND, 1)]),
        backend(BACKEND, addresses),
    ]
}

fn rig(limits: &ProxyLimits, addresses: &[SocketAddr]) -> Rig {
    Rig::start(limits, |port| serving(port, addresses))
}

async fn bound(address: &str) -> UdpSocket {
    UdpSocket::bind(address).await.unwrap()
}

/// A backend that answers each datagram with `name`, the port that it came from, and what it was.
async fn echo(name: &'static str) -> SocketAddr {
    echo_at("127.0.0.1:0", name).await
}

async fn echo_at(address: &str, name: &'static str) -> SocketAddr {
    let socket = bound(address).await;
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            let mut answer = format!("{name} {} ", from.port()).into_bytes();
            answer.extend(&buffer[..length]);
            let _ = socket.send_to(&answer, from).await;
        }
    });
    address
}

/// A client of its own port.
async fn client(rig: &Rig) -> UdpSocket {
    client_of("127.0.0.1:0", rig.address).await
}

async fn client_of(from: &str, address: SocketAddr) -> UdpSocket {
    let socket = bound(from).await;
    socket.connect(address).await.unwrap();
    socket
}

async fn receive_one(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let received = within("an answer", client.recv(&mut buffer)).await;
    buffer.truncate(received.unwrap());
    buffer
}

/// Which backend answers, what port it sees, and what it got.
async fn ask(client: &UdpSocket, question: &[u8]) -> (String, u16, Vec<u8>) {
    client.send(question).await.unwrap();
    let answer = receive_one(client).await;
    let mut parts = answer.splitn(3, |byte| *byte == b' ');
    let mut text = || String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
    let (name, port) = (text(), text().parse().unwrap());
    (name, port, parts.next().unwrap().to_vec())
}

fn metric(rig: &Rig, series: &str) -> u64 {
    value(
        &rig.plane.metrics.encode().unwrap(),
        &format!("vestibule_proxy_{series}"),
    )
}

fn dropped(rig: &Rig, reason: &str) -> u64 {
    metric(
        rig,
        &format!("udp_datagrams_dropped_total{{reason=\"{reason}\"}}"),
    )
}

fn closed(rig: &Rig, reason: &str) -> u64 {
    metric(
        rig,
        &format!("udp_sessions_closed_total{{reason=\"{reason}\"}}"),
    )
}

fn active(rig: &Rig) -> u64 {
    metric(rig, "udp_sessions_active")
}

fn begun(rig: &Rig) -> u64 {
    metric(rig, "udp_sessions_total")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_keeps_its_session_and_its_port_and_gets_its_own_answers() {
    let rig = rig(&quiet(), &[echo("a").await, echo("b").await]);
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(client(&rig).await);
    }
    let mut seen = BTreeMap::new();
    for round in 0..4 {
        for (number, client) in clients.iter().enumerate() {
            let question = format!("question {round} of {number}");
            let (name, port, got) = ask(client, question.as_bytes()).await;
            assert_eq!(got, question.as_bytes());
            let before = seen.entry(number).or_insert_with(|| (name.clone(), port));
            assert_eq!(*before, (name, port), "client {number} in round {round}");
        }
    }
    let ports: BTreeSet<u16> = seen.values().map(|(_, port)| *port).collect();
    assert_eq!(ports.len(), clients.len());
    let names: BTreeSet<&str> = seen.values().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a", "b"].into());
    assert_eq!((begun(&rig), active(&rig)), (50, 50));
    assert_eq!(
        metric(&rig, "udp_datagrams_total{direction=\"upstream\"}"),
        200
    );
    assert_eq!(
        metric(&rig, "udp_datagrams_total{direction=\"downstream\"}"),
        200
    );
    assert_eq!(rig.plane.active(), 50);
}
