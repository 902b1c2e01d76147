//! iperf3 through a TCP and a UDP listener of one port number: its client and server agree over TCP on what they
//! measure, and measure it by datagrams.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::limits::UdpLimits;
use vestibule_proxy_testing::*;

const TCP_BACKEND: &str = "team-a/iperf:5201";
const UDP_BACKEND: &str = "team-a/iperf:5201/udp";
/// Datagrams of one measurement, and bytes of each.
const DATAGRAMS: u64 = 300;
const LENGTH: u64 = 1200;
/// Streams of a measurement, each of which is a session.
const STREAMS: u64 = 3;

/// iperf3's server, until this is dropped.
struct Server {
    address: SocketAddr,
    child: Child,
    /// Told each time that it listens: it begins anew after each measurement.
    listens: mpsc::Receiver<()>,
}

impl Server {
    fn start() -> Self {
        // A port that was free may be taken by somebody else before the server has it: then it ends.
        for _ in 0..20 {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = tcp.local_addr().unwrap();
            let Ok(udp) = UdpSocket::bind(address) else {
                continue;
            };
            drop((tcp, udp));
            let port = address.port().to_string();
            let mut child = Command::new("iperf3")
                .args([
                    "--server",
                    "--bind",
                    "127.0.0.1",
                    "--forceflush",
                    "--port",
                    &port,
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("iperf3 is installed (e2e/prepare packages)");
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let (told, listens) = mpsc::sync_channel(16);
            // Whatever else it says is read, so that it is never kept from saying it.
            std::thread::spawn(move || {
                let lines = lines.map_while(Result::ok);
                for _ in lines.filter(|line| line.starts_with("Server listening")) {
                    let _ = told.send(());
                }
            });
            let server = Self {
                address,
                child,
                listens,
            };
            if server.listens.recv().is_ok() {
                return server;
            }
        }
        panic!("no free port");
    }

    /// Waits until it listens once more.
    async fn again(self) -> Self {
        let waiting = tokio::task::spawn_blocking(move || {
            self.listens.recv().expect("iperf3 serves on");
            self
        });
        within("the server", waiting).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What iperf3 says of a measurement.
async fn measured(port: u16, direction: Option<&'static str>) -> serde_json::Value {
    let mut command = Command::new("iperf3");
    command
        .args(["--client", "127.0.0.1", "--port", &port.to_string()])
        .args(["--udp", "--json"])
        .args(["--bitrate", "20M", "--length", &LENGTH.to_string()])
        .args(["--blockcount", &DATAGRAMS.to_string()])
        .args(["--parallel", &STREAMS.to_string()])
        .args(direction)
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = within("iperf3", output).await.unwrap().unwrap();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn iperf3_measures_datagrams_through_tcp_and_udp_of_one_number() {
    let mut server = Server::start();
    let limits = ProxyLimits {
        access_log: false,
        udp: UdpLimits {
            idle: Duration::from_hours(1),
            ..UdpLimits::default()
        },
        ..ProxyLimits::default()
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            tcp(port, "control"),
            tcp_route("control", 0, "control", &[(TCP_BACKEND, 1)]),
            backend(TCP_BACKEND, &[server.address]),
            udp(port, "data"),
            udp_route("data", 0, "data", &[(UDP_BACKEND, 1)]),
            backend(UDP_BACKEND, &[server.address]),
        ]
    });
    let counted = |series: &str| {
        let page = rig.plane.metrics.encode().unwrap();
        value(&page, &format!("vestibule_proxy_{series}"))
    };
    // From the client to the server, and the other way round.
    for (round, direction) in (1..).zip([None, Some("--reverse")]) {
        // The server opens its socket anew for each stream. A stream whose first datagram comes just then gets no answer,
        // and iperf3 says so after half a minute.
        let mut said = measured(rig.address.port(), direction).await;
        if said.get("error").is_some() {
            server = server.again().await;
            said = measured(rig.address.port(), direction).await;
        }
        let sum = &said["end"]["sum"];
        let (sent, lost) = (&sum["packets"], &sum["lost_packets"]);
        let (Some(sent), Some(lost)) = (sent.as_u64(), lost.as_u64()) else {
            panic!("{direction:?}: {said:#}");
        };
        let arrived = sent - lost;
        // Where a queue is full, datagrams get lost. That some arrive says that they go the right way.
        assert!(arrived > 0, "{direction:?}: {said:#}");
        let streams = said["end"]["streams"].as_array().unwrap();
        assert_eq!(streams.len() as u64, STREAMS, "{direction:?}: {said:#}");
        assert!(counted("udp_sessions_total") >= round * STREAMS);
        server = server.again().await;
    }
}
