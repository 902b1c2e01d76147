//! Makes requests that the backend always fails, and finds out how often the proxy tried each of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{ClientArgs, LoadOutcome, request};
use crate::backend::SEEN;
use crate::http1;

/// Options of the load.
#[derive(Args, Clone, Debug)]
pub(crate) struct FailingArgs {
    /// Connections.
    connections: usize,
    /// How long.
    seconds: f64,
    /// The backend itself, which is asked how many requests it has seen.
    #[arg(long)]
    backend: SocketAddr,
}

/// Makes the load.
pub(super) async fn run(args: &ClientArgs, load: &FailingArgs) -> Result<LoadOutcome> {
    let mut backend = TcpStream::connect(load.backend).await?;
    let before = seen(&mut backend).await?;
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(load.seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..load.connections {
        tasks.spawn(lane(args.target, request(&args.name, "/"), end));
    }
    let mut answered = 0;
    while let Some(lane) = tasks.join_next().await {
        answered += lane??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let tries = seen(&mut backend).await? - before;
    Ok(LoadOutcome {
        seconds,
        connections: load.connections,
        answered,
        tries,
        ..LoadOutcome::default()
    })
}

async fn lane(target: SocketAddr, request: Vec<u8>, end: Instant) -> Result<usize> {
    let mut stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let mut answered = 0;
    loop {
        stream.write_all(&request).await?;
        let answer = http1::answer(&mut stream).await?;
        // The backend answers 503; a proxy that gives up may answer something else.
        ensure!(answer.status >= 500, "status {}", answer.status);
        answered += 1;
        if Instant::now() >= end {
            return Ok(answered);
        }
    }
}

async fn seen(backend: &mut TcpStream) -> Result<u64> {
    backend.write_all(&request("backend", SEEN)).await?;
    let answer = http1::answer(backend).await?;
    let count = String::from_utf8(answer.body)?;
    Ok(count.parse()?)
}
