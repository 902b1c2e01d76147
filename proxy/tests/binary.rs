//! The binary as a pod runs it: flags, probes, and SIGTERM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_serve::log_queue;
use vestibule_stream::recording;
use vestibule_test_support::process::Process;
use vestibule_test_support::{free_port, http_get};

const SET: &str = "ListenerSet/team-b/web/tls";
const HOST: &str = "b.example.com";

/// The proxy's process, which logs to `to`.
fn process(to: Stdio, arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vestibule-proxy"));
    Process::start(command.args(arguments).stdout(to))
}

fn recorded(name: &str, bind: SocketAddr, endpoint: SocketAddr) -> PathBuf {
    let batch = Operator::default().batch(
        &[
            listener_at(SET, bind, HOST, None),
            tls_route("team-b/web", SET, HOST, "team-b/web:443"),
            backend("team-b/web:443", &[endpoint]),
        ],
        &[],
    );
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut bytes = Vec::new();
    recording::write(&mut bytes, &batch).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

async fn status(address: SocketAddr, path: &str) -> Option<u16> {
    // Not there yet, or no longer.
    TcpStream::connect(address).await.ok()?;
    Some(http_get(address, path).await.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_told_to_end_serves_until_everybody_knows() {
    let own = Identity::new(HOST);
    let endpoint = tls_backend("b", "127.0.0.1:0", &own).await;
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let health = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let file = recorded("binary.rec", bind, endpoint);
    let any = format!("[::]:{}", health.port());
    let arguments = [
        "--config-file",
        file.to_str().unwrap(),
        "--admin",
        "127.0.0.1:0",
        "--health",
        &any,
        "--workers",
        "2",
        "--access-log",
        "false",
        "--shutdown-delay-seconds",
        "2",
        "--drain-seconds",
        "30",
        "--allow-loopback-endpoints=true",
    ];
    let mut process = process(Stdio::null(), &arguments);
    let ready = async {
        while status(health, "/readyz").await != Some(200) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    let mut open = Client::connect(bind, HOST, &own.chain[0]).await.unwrap();
    assert_eq!(open.ask("x").await.unwrap(), "b x");

    let told = Instant::now();
    process.terminate();
    let unready = async {
        while status(health, "/readyz").await != Some(503) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, unready).await.unwrap();
    assert_eq!(status(health, "/healthz").await, Some(200));
    // New ones are served until the delay is over, and the open one after it.
    let mut served = 0;
    while let Ok(answer) = request(bind, HOST, &own.chain[0]).await {
        assert_eq!(answer, "b hi");
        served += 1;
    }
    assert!(told.elapsed() >= Duration::from_secs(2));
    assert!(served > 0);
    // It accepts no more, so it is no serving endpoint any more.
    assert_eq!(status(health, "/servingz").await, Some(503));
    assert_eq!(open.ask("y").await.unwrap(), "b y");
    assert!(process.exit().is_none());
    drop(open);
    assert!(process.ended().await.success());
}

/// The log is a pipe that nobody reads, as that of a container whose runtime hangs.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_does_not_wait_for_the_reader_of_its_log() {
    let own = Identity::new(HOST);
    let endpoint = tls_backend("b", "127.0.0.1:0", &own).await;
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let health = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let file = recorded("unread.rec", bind, endpoint);
    let (file, health_text) = (file.to_str().unwrap(), health.to_string());
    let admin = ["--admin", "127.0.0.1:0", "--health", &health_text];
    let more = [
        "--config-file",
        file,
        "--workers",
        "1",
        "--drain-seconds",
        "1",
        "--allow-loopback-endpoints=true",
    ];
    let mut process = process(Stdio::piped(), &[&more[..], &admin].concat());
    let ready = async {
        while status(health, "/readyz").await != Some(200) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    assert_eq!(dropped(health).await, 0);

    // Each of them is a line. A pipe holds a few hundred, and the queue thousands.
    let mut asked = 0;
    while dropped(health).await == 0 {
        assert!(asked < 100_000, "they wait somewhere");
        let clients = (0..4).map(|_| {
            tokio::spawn(async move {
                for _ in 0..250 {
                    no_hello(bind).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        asked += 1000;
    }
    // They belong to no namespace, and may fill half of the queue.
    assert!(asked > log_queue::QUEUE / 2);
    assert_eq!(request(bind, HOST, &own.chain[0]).await.unwrap(), "b hi");

    process.terminate();
    assert!(process.ended().await.success());
}

/// A connection that says something else than a ClientHello, up to its end.
async fn no_hello(address: SocketAddr) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"no hello").await.unwrap();
    // Closed, or reset because of what was not read.
    let _ = client.read(&mut [0; 8]).await;
}

async fn dropped(health: SocketAddr) -> u64 {
    let (_, text) = http_get(health, "/metrics").await;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("vestibule_proxy_log_lines_dropped_total "));
    line.expect("the metric").parse().unwrap()
}

#[test]
fn arguments_that_cannot_work_are_refused_at_the_start_with_a_reason() {
    let run = |arguments: &[&str]| {
        let binary = env!("CARGO_BIN_EXE_vestibule-proxy");
        let output = Command::new(binary).args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let stream = ["--config-stream", "edge-operator.vestibule.svc:9443"];
    let text = run(&[&stream[..], &["--config-token", "/x"]].concat());
    assert!(text.contains("--config-ca"), "{text}");
    let wrong = ["--config-ca", "/x", "--config-server-name", "no name"];
    let text = run(&[&stream[..], &wrong].concat());
    assert!(
        text.contains("not a name that a certificate can be for"),
        "{text}"
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = ["--config-file", "/x", "--admin", &taken];
    let text = run(&file);
    assert!(
        text.contains("choose another address with --admin"),
        "{text}"
    );
}
