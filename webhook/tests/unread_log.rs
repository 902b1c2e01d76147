//! The webhook's process and whoever reads its log. There is no API server, so it judges by what it knows: nothing.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use tokio::time::timeout;
use vestibule_test_support::process::{Process, full_pipe, kubeconfig};
use vestibule_test_support::{eventually, free_port};
use vestibule_webhook_testing::objects::listener_set;
use vestibule_webhook_testing::{Certificate, Client, PATIENCE, TlsDir, created, get, loopback};

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// The directory of a webhook, with a certificate and a kubeconfig.
fn directory(name: &str) -> (TlsDir, Certificate) {
    let (dir, certificate) = (TlsDir::new(name), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let text = kubeconfig(free_address(), &dir.path.join("tls.crt"));
    fs::write(dir.path.join("kubeconfig"), text).expect("a file");
    (dir, certificate)
}

fn webhook(dir: &TlsDir, listen: SocketAddr, admin: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vestibule-webhook"));
    command
        .env_clear()
        .env("KUBECONFIG", dir.path.join("kubeconfig"))
        .arg("--tls-dir")
        .arg(&dir.path)
        .arg(format!("--listen={listen}"))
        .arg(format!("--admin={admin}"))
        .args(["--shutdown-delay-seconds=0", "--drain-seconds=1"]);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_answered_while_nobody_reads_the_log() {
    let (dir, certificate) = directory("unread");
    let (listen, admin) = (free_address(), free_address());
    let (log, unread) = full_pipe().await;
    let mut process = Process::start(
        webhook(&dir, listen, admin)
            .env("RUST_LOG", "info,vestibule_webhook=debug")
            .stdout(log),
    );
    let trusted = std::slice::from_ref(&certificate.der);
    let mut client = eventually("a connection", async || {
        Client::connect(listen, trusted).await.ok()
    })
    .await;
    // At this level, each of them is logged before it is answered.
    for name in ["a", "b", "c"] {
        let set = listener_set("alpha", name, &format!("{name}.example"));
        let answer = timeout(PATIENCE, client.post(created(&set).to_string())).await;
        let answer = answer.expect("an answer in time").expect("an answer");
        let answer = answer.json();
        assert!(answer["response"]["allowed"].is_boolean(), "{answer}");
    }
    let metrics = get(admin, "/metrics").await.1;
    let counted = "vestibule_webhook_log_lines_dropped_total 0";
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    // The last lines are given up.
    process.terminate();
    assert!(process.ended().await.success());
    assert!(unread.is_untouched().await);
}

#[test]
fn the_last_line_is_written_before_the_process_ends() {
    let (dir, _) = directory("last-line");
    let taken = TcpListener::bind(loopback()).expect("a port");
    let admin = taken.local_addr().expect("an address");
    let output = webhook(&dir, loopback(), admin).output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains("cannot serve on"), "{text}");
}
