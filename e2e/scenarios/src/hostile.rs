//! Requests to the admission server by somebody who means no good: from the pod network, where anybody may
//! connect, and without a certificate, of which API servers show none either.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use crate::api::{self, text};
use crate::encoding::from_base64;
use crate::runner::print;
use crate::world::{NAMESPACE, RELEASE, WEBHOOK, World};

/// How long one of them goes on.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of the long ones.
const LONG: usize = 256 * 1024;

/// Arguments of `hostile`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port of the admission server.
    #[arg(long)]
    address: SocketAddr,
    /// Name in its certificate.
    #[arg(long)]
    name: String,
    /// PEM of the root that signed it.
    #[arg(long, env = "ROOT")]
    root: String,
    /// Requests a second.
    #[arg(long)]
    rate: u32,
    /// Seconds to go on.
    #[arg(long)]
    seconds: u64,
}

/// Sends them, and prints how many were answered how.
pub(crate) async fn run_for(args: Args) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(args.root.as_bytes()) {
        roots.add(root?)?;
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client {
        address: args.address,
        name: ServerName::try_from(args.name)?,
        connector: TlsConnector::from(Arc::new(config)),
    };
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(run(client, args.rate, stopped));
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    drop(stop);
    print(&serde_json::to_string(&running.await?)?);
    Ok(())
}

/// A pod that does it.
pub(crate) async fn pod(world: &World, namespace: &str, rate: u32, seconds: u64) -> Result<Value> {
    let service = world.component(WEBHOOK);
    let object = world
        .api
        .must_get(api::SERVICE, NAMESPACE, &service)
        .await?;
    let address = text(&object, "/spec/clusterIP");
    let selector = format!("app.kubernetes.io/instance={RELEASE}");
    let configurations = world.api.list(api::WEBHOOK, "", &selector).await?;
    let configuration = configurations.first().context("no configuration")?;
    let bundle = from_base64(text(configuration, "/webhooks/0/clientConfig/caBundle"))?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hostile", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "hostile",
                "image": world.image("e2e"),
                "imagePullPolicy": "IfNotPresent",
                "args": [
                    "hostile",
                    format!("--address={address}:443"),
                    format!("--name={service}.{NAMESPACE}.svc"),
                    format!("--rate={rate}"),
                    format!("--seconds={seconds}"),
                ],
                "env": [{"name": "ROOT", "value": String::from_utf8(bundle)?}],
            }],
        },
    }))
}

#[derive(Clone)]
struct Client {
    address: SocketAddr,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Client {
    async fn attack(&self, number: usize) -> String {
        match timeout(PATIENCE, self.one(number)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => "closed".to_owned(),
            Err(_) => "held".to_owned(),
        }
    }

    /// One of ten kinds. Gives the status line's code.
    async fn one(&self, number: usize) -> Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        if number % 10 == 9 {
            // No handshake at all.
            stream.write_all(&[0x16; 64]).await?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await?;
            return Ok("no TLS".to_owned());
        }
        let mut stream = self.connector.connect(self.name.clone(), stream).await?;
        let review = |body: &str| {
            format!(
                "POST /validate HTTP/1.1\r\nhost: webhook\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
        };
        let request = match number % 10 {
            0 => review("not JSON"),
            1 => review(&"[".repeat(LONG)),
            2 => review(&format!("{{\"request\":{}", "{\"a\":".repeat(LONG / 8))),
            3 => review(
                r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"x"}}"#,
            ),
            4 => review(&format!("\"{}\"", "a".repeat(LONG))),
            // More than anybody takes, promised.
            5 => "POST /validate HTTP/1.1\r\nhost: webhook\r\ncontent-length: 4000000000\r\n\r\n{"
                .to_owned(),
            // A head without an end.
            6 => format!(
                "POST /validate HTTP/1.1\r\n{}",
                "a: b\r\n".repeat(LONG / 64)
            ),
            7 => "GET /secrets HTTP/1.1\r\nhost: webhook\r\nconnection: close\r\n\r\n".to_owned(),
            // Nothing after the handshake.
            _ => String::new(),
        };
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok(String::from_utf8_lossy(head.get(9..).unwrap_or_default()).into_owned())
    }
}

async fn run(
    client: Client,
    rate: u32,
    mut stopped: oneshot::Receiver<()>,
) -> BTreeMap<String, usize> {
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (results, mut received) = mpsc::channel(rate as usize * 30 + 16);
    let mut counts = BTreeMap::new();
    let mut number = 0;
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(answer) = received.recv() => *counts.entry(answer).or_default() += 1,
            _ = ticks.tick() => {
                let (client, results) = (client.clone(), results.clone());
                tokio::spawn(async move {
                    let _ = results.send(client.attack(number).await).await;
                });
                number += 1;
            }
        }
    }
    drop(results);
    while let Some(answer) = received.recv().await {
        *counts.entry(answer).or_default() += 1;
    }
    counts
}
