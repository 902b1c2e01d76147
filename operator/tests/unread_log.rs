//! The operator's process, and a log that nobody reads.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, KeyPair};
use tokio::net::TcpListener;
use tokio::time::timeout;
use vestibule_test_support::process::{Process, full_pipe, kubeconfig};
use vestibule_test_support::{BOUND, free_port, http_get};

/// A certificate, in PEM.
fn certificate() -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["api.example".to_owned()]).unwrap();
    params.self_signed(&key).unwrap().pem()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_goes_on_while_nobody_reads_its_log() {
    let api_server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (ca, config) = (folder.join("unread.pem"), folder.join("unread.yaml"));
    fs::write(&ca, certificate()).unwrap();
    fs::write(&config, kubeconfig(api_server.local_addr().unwrap(), &ca)).unwrap();
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (log, unread) = full_pipe().await;
    let mut process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_vestibule-operator"))
            .env_clear()
            .env("KUBECONFIG", config)
            .args(["--namespace=vestibule-system", "--proxy-selector=app=proxy"])
            .arg("--stream=127.0.0.1:0")
            .arg(format!("--admin={admin}"))
            .stdout(log),
    );
    // The operator logs that it has started before it asks the API server anything.
    let asked = timeout(BOUND, api_server.accept()).await;
    drop(asked.expect("a request in time").unwrap());
    let metrics = http_get(admin, "/metrics").await.1;
    let counted = "vestibule_operator_log_lines_dropped_total 0";
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    drop(api_server);
    process.terminate();
    process.ended().await;
    assert!(unread.is_untouched().await);
}
