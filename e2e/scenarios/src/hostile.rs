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
use crate::manifests::{self, Mode};
use crate::runner::print;
use crate::world::{NAMESPACE, RELEASE, Team, WEBHOOK, World};

/// How long one of them goes on.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of the long ones.
const LONG: usize = 256 * 1024;
/// Which of the ten kinds is a review that nothing is wrong with, but who sends it; and for how many names, one
/// after another.
const FORGES: usize = 3;
const NAMES: usize = 100;

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
    /// A review that a real API server might send; NUMBER in it becomes another number each time.
    #[arg(long, env = "FORGED")]
    forged: String,
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
        forged: args.forged.into(),
    };
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(run(client, args.rate, stopped));
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    drop(stop);
    print(&serde_json::to_string(&running.await?)?);
    Ok(())
}

/// What asks for the names that an honest team applies at the same time, each before it and again after it.
/// It says to be of a namespace that there is not.
fn forged(gateway: (&str, &str), domain: &str) -> Value {
    let listener = manifests::listener("site", &format!("nNUMBER.{domain}"), Mode::Passthrough);
    let set = manifests::listener_set("e2e-nobody", "forged-NUMBER", gateway, &[listener]);
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "forged-NUMBER",
            "kind": {"group": "gateway.networking.k8s.io", "version": "v1", "kind": "ListenerSet"},
            "resource": {"group": "gateway.networking.k8s.io", "version": "v1", "resource": "listenersets"},
            "operation": "CREATE",
            "namespace": "e2e-nobody",
            "name": "forged-NUMBER",
            "userInfo": {"username": "system:serviceaccount:e2e-nobody:team"},
            "object": set,
            "oldObject": null,
            "dryRun": false,
        },
    })
}

/// A pod that does it, and wants the names that are applied below `domain` meanwhile.
pub(crate) async fn pod(
    world: &World,
    team: &Team,
    domain: &str,
    rate: u32,
    seconds: u64,
) -> Result<Value> {
    let namespace = &team.namespace;
    let forged = forged(team.parent(), domain).to_string();
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
                "env": [
                    {"name": "ROOT", "value": String::from_utf8(bundle)?},
                    {"name": "FORGED", "value": forged},
                ],
            }],
        },
    }))
}

#[derive(Clone)]
struct Client {
    address: SocketAddr,
    name: ServerName<'static>,
    connector: TlsConnector,
    forged: Arc<str>,
}

impl Client {
    async fn attack(&self, number: usize) -> String {
        match timeout(PATIENCE, self.one(number)).await {
            Ok(Ok(answer)) if number % 10 == FORGES => format!("forged {answer}"),
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
            // Every other one is a review of nothing.
            0 if number.is_multiple_of(20) => review(
                r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"x"}}"#,
            ),
            0 => review("not JSON"),
            1 => review(&"[".repeat(LONG)),
            2 => review(&format!("{{\"request\":{}", "{\"a\":".repeat(LONG / 8))),
            4 => review(&format!("\"{}\"", "a".repeat(LONG))),
            // More than anybody takes, promised.
            5 => "POST /validate HTTP/1.1\r\nhost: webhook\r\ncontent-length: 4000000000\r\n\r\n{"
                .to_owned(),
            // A head without an end.
            6 => format!(
                "POST /validate HTTP/1.1\r\n{}",
                "a: b\r\n".repeat(LONG / 64)
            ),
            FORGES => {
                let wanted = number / 10 % NAMES * 2;
                review(&self.forged.replace("NUMBER", &wanted.to_string()))
            }
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
