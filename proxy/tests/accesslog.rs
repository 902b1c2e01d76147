//! The line that a connection leaves in the log. In a binary of its own, as the subscriber is the
//! process's.

mod common;

use std::io::Write;
use std::sync::Arc;

use common::*;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tracing_subscriber::EnvFilter;
use vestibule_proxy::connection::CloseReason;
use vestibule_proxy::worker::Limits;

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:80";

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn lines(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().clone();
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &serde_json::Value| line["target"] == "access")
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_leaves_one_line() {
    let sink = Sink::default();
    let writer = sink.clone();
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(EnvFilter::new("info"))
        .with_writer(move || writer.clone())
        .init();
    let identity = Identity::new(NAME);
    let address = serve(echo).await;
    let rig = Rig::start(&Limits::default(), |port| {
        vec![
            listener(port, "web", NAME, Some("team-a/cert")),
            route("web", NAME, Some(BACKEND)),
            backend(BACKEND, &[address]),
            identity.resource("team-a/cert"),
        ]
    });

    let config = client_config(&identity);
    let mut client = tls(rig.connect().await, config, NAME).await.unwrap();
    client.write_all(b"ping").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"ping");
    drop(client);
    wait("a line", || sink.lines().len() == 1).await;
    let mut line = sink.lines().remove(0);
    let fields = line.as_object_mut().unwrap();
    // What differs from run to run is only looked for.
    for key in ["timestamp", "client", "duration_ms"] {
        assert!(fields.remove(key).is_some(), "{key} is missing");
    }
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "access",
        "bind": rig.address.to_string(),
        "server_name": NAME,
        "tenant": "team-a",
        "gateway": "infra/edge",
        "listener": "ListenerSet/team-a/web/tls",
        "route": "team-a/web",
        "backend": BACKEND,
        "endpoint": address.to_string(),
        "bytes_in": 4,
        "bytes_out": 4,
        "tls_version": "1.3",
        "resumed": false,
        "reason": "ClientClosed",
    });
    assert_eq!(line, expected);

    // Refused: what is known is there, and nothing else.
    let mut client = rig.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = read_to_end(&mut client).await;
    wait("a line", || sink.lines().len() == 2).await;
    let line = sink.lines().remove(1);
    assert_eq!(line["reason"], "NotTls");
    assert!(line.get("server_name").is_none() && line.get("listener").is_none());

    // Health checks, which say nothing, leave no line at this level.
    drop(rig.connect().await);
    rig.wait_closed(CloseReason::ClientSilent, 1).await;
    wait("the end", || rig.plane.active() == 0).await;
    assert_eq!(sink.lines().len(), 2);
}
