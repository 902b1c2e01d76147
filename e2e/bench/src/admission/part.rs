//! One size of the admission bench: a process that is the webhook, with everything it would have read.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::policy::Policy;
use vestibule_webhook::Admission;
use vestibule_webhook::server::{WATCHED, Webhook, WebhookConfig};

use super::world::{CONTROLLER, World};
use crate::stdin_closed;
use crate::tls::Authority;

/// Server name of the webhook.
pub(super) const NAME: &str = "webhook.bench.test";
/// Times that readiness is looked at.
const LOOKS: usize = 60_000;

/// Arguments of one part.
#[derive(clap::Args, Debug)]
pub(crate) struct PartArgs {
    /// ListenerSets.
    #[arg(long)]
    sets: usize,
    /// Where its certificate goes.
    #[arg(long)]
    folder: PathBuf,
}

/// What it says once everything is in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Where it serves.
    pub(super) address: SocketAddr,
    /// Objects.
    pub(super) objects: usize,
    /// Seconds until it was ready.
    pub(super) seconds: f64,
}

/// Runs it until standard input is closed.
pub(crate) fn run(args: &PartArgs) -> Result<()> {
    // As the binary.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &PartArgs) -> Result<()> {
    let leaf = Authority::new()?.leaf(NAME, &args.folder)?;
    fs::write(args.folder.join("tls.crt"), &leaf.certificate_pem)?;
    fs::write(args.folder.join("tls.key"), &leaf.key_pem)?;
    let world = World { sets: args.sets };
    let start = Instant::now();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = WebhookConfig::new(loopback, loopback, args.folder.clone());
    let mut webhook = Webhook::start(config, Admission::new(CONTROLLER, Policy::default()))?;
    let events = world.objects().filter_map(event);
    let synced = WATCHED.into_iter().map(Event::Synced);
    let events = futures::stream::iter(events.chain(synced));
    webhook.follow(events.chain(futures::stream::pending()));
    let admin = webhook.admin();
    let mut looks = 0;
    while !is_ready(admin).await? {
        looks += 1;
        if looks > LOOKS {
            bail!("it does not become ready");
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let ready = Ready {
        address: webhook.address(),
        objects: world.objects().count(),
        seconds: start.elapsed().as_secs_f64(),
    };
    println!("{}", serde_json::to_string(&ready)?);
    let _ = stdin_closed().await;
    Ok(())
}

fn event(value: serde_json::Value) -> Option<Event> {
    let (object, findings) = vestibule_crds::decode(value).into_object()?;
    Some(Event::Put(Box::new(Watched {
        key: object.key(),
        object,
        findings,
        uid: "".into(),
        resource_version: "1".into(),
        status: serde_json::Value::Null,
    })))
}

async fn is_ready(admin: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(admin).await.context("its admin port")?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}
