//! A real proxy that reads what one that keeps nothing has recorded.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::Spent;
use crate::child::{Guarded, allow_loopback, poll};
use crate::scale::part::Used;

/// Longest that a proxy may take to read everything.
const PATIENCE: Duration = Duration::from_mins(10);

/// The cost of a configuration at a proxy.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// From the start of its process until it has everything, edits too.
    pub(crate) ready: Spent,
    /// The memory that the proxy holds afterwards.
    pub(crate) used: Used,
    /// Batches after the first one.
    pub(crate) edits: usize,
    /// CPU of one edit, in milliseconds.
    pub(crate) edit: f64,
}

/// Measures a proxy with the whole recording, and one with its first batch only, so that the difference is the edits'.
pub(crate) fn measure(binary: &Path, recording: &Path, log: &Path) -> Result<Measured> {
    let first = recording.with_extension("first");
    let edits = cut(recording, &first)?;
    let full = start(binary, &first, log);
    let _ = std::fs::remove_file(&first);
    let (ready, used) = full?;
    let (with_edits, _) = start(binary, recording, log)?;
    Ok(Measured {
        ready,
        used,
        edits,
        edit: (with_edits.cpu - ready.cpu) * 1e3 / edits.max(1) as f64,
    })
}

/// Copies the first batch of a recording, and returns how many follow.
fn cut(recording: &Path, first: &Path) -> Result<usize> {
    let mut from = BufReader::new(File::open(recording)?);
    let mut batches = 0;
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while from.read(&mut byte)? == 1 {
            head.extend(byte);
            if byte[0] & 0x80 == 0 {
                break;
            }
        }
        if head.is_empty() {
            break;
        }
        let bytes = head.iter().rev();
        let length = bytes.fold(0, |length, byte| length << 7 | u64::from(byte & 0x7f));
        let mut batch = Read::by_ref(&mut from).take(length);
        if batches == 0 {
            let mut to = File::create(first)?;
            to.write_all(&head)?;
            std::io::copy(&mut batch, &mut to)?;
        } else {
            std::io::copy(&mut batch, &mut std::io::sink())?;
        }
        batches += 1;
    }
    Ok(batches - 1)
}

/// Starts a proxy, waits until it is ready, and returns what that took.
fn start(binary: &Path, recording: &Path, log: &Path) -> Result<(Spent, Used)> {
    let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = Command::new(binary);
    command
        .arg("--config-file")
        .arg(recording)
        .args(["--name", "proxy", "--admin", &admin.to_string()])
        .args(["--shutdown-delay-seconds", "0", "--drain-seconds", "0"])
        .args(["--access-log", "false"])
        .env("RUST_LOG", "warn");
    allow_loopback(&mut command);
    let begin = Spent::begin();
    let mut proxy = Guarded::start_with(
        command,
        "vestibule-proxy",
        &[],
        log,
        crate::child::Output::Null,
    )?;
    poll(PATIENCE, "a proxy that is ready", || {
        if let Some(ended) = proxy.ended()? {
            bail!("the proxy ended: {ended}");
        }
        Ok(is_ready(admin).then_some(()))
    })?;
    let used = Used::of(proxy.pid());
    let ready = Spent {
        cpu: used.cpu,
        ..begin.end()
    };
    Ok((ready, used))
}

/// Whether the admin endpoint says so.
fn is_ready(admin: std::net::SocketAddr) -> bool {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200 "))
}
