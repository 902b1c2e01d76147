//! The web server behind the proxies, a process of its own: small answers, a large file, and answers that
//! come late.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backend::{accept, listen};

/// Length of the large file, as in the issue that asks for this bench.
const FILE: usize = 10_000_000;
/// Length of every other answer.
const SMALL: usize = 1_000;
/// How late the late answer is.
const LATE: Duration = Duration::from_secs(1);
/// Longest head that is read: longer than the longest path of an attack.
const HEAD: usize = 128 << 10;

/// First line of output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Where it answers.
    pub(crate) listen: SocketAddr,
}

/// Serves until standard input closes.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = crate::stdin_closed();
    runtime.block_on(async move {
        let listener = listen()?;
        let listening = Listening {
            listen: listener.local_addr()?,
        };
        println!("{}", serde_json::to_string(&listening)?);
        tokio::spawn(accept(listener, serve));
        ended.await.context("waiting for the end of standard input")
    })
}

/// Requests without bodies, one after the other.
async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let piece = vec![b'f'; 64 << 10];
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > HEAD || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let path = buffer.split(|byte| *byte == b' ').nth(1);
        let length = match path {
            Some(b"/file") => FILE,
            Some(b"/late") => {
                tokio::time::sleep(LATE).await;
                SMALL
            }
            _ => SMALL,
        };
        buffer.drain(..end);
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        let first = length.min(SMALL);
        answer.extend_from_slice(&piece[..first]);
        stream.write_all(&answer).await?;
        let mut left = length - first;
        while left > 0 {
            let now = left.min(piece.len());
            stream.write_all(&piece[..now]).await?;
            left -= now;
        }
    }
}
