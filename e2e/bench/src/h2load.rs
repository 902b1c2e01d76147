//! nghttp2's `h2load`: a client that others wrote, for HTTP/1.1 and HTTP/2 requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::client::LoadOutcome;

/// Protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// So many requests, the next on each connection or stream when an answer came.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// Protocol.
    pub(crate) version: Version,
    /// Whether over TLS.
    pub(crate) tls: bool,
    /// Connections.
    pub(crate) connections: usize,
    /// Requests at a time on each.
    pub(crate) streams: usize,
    /// Requests in all.
    pub(crate) count: usize,
    /// Hostname that is asked for.
    pub(crate) host: String,
    /// Path that is asked for.
    pub(crate) path: &'static str,
    /// Fields besides those that h2load sends.
    pub(crate) fields: &'static [&'static str],
    /// File that is the body of each request.
    pub(crate) body: Option<PathBuf>,
}

/// Whether it is there, and which version it is.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("h2load").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}

impl Requests {
    /// The command for it. Each connection ends after `limit` seconds, even if its requests fail.
    pub(crate) fn command(&self, target: SocketAddr, limit: u64) -> Command {
        let mut command = Command::new("h2load");
        command.args(["-t", "1", "-c", &self.connections.to_string()]);
        command.args(["-m", &self.streams.to_string()]);
        command.args(["-n", &self.count.to_string()]);
        let limit = format!("{limit}s");
        command.args(["-T", &limit, "-N", &limit]);
        if self.version == Version::Http1 {
            command.arg("--h1");
        }
        for field in self.fields {
            command.args(["-H", field]);
        }
        if let Some(body) = &self.body {
            command.arg("-d").arg(body);
        }
        command.arg(format!("--connect-to={target}"));
        let scheme = if self.tls { "https" } else { "http" };
        command.arg(format!("{scheme}://{}{}", self.host, self.path));
        command
    }

    /// What it said. All requests must have been answered, and with 2xx.
    pub(crate) fn outcome(&self, text: &str) -> Result<LoadOutcome> {
        let line = |prefix: &str| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix(prefix))
                .with_context(|| format!("h2load says nothing of {prefix:?}"))
        };
        let requests = line("requests: ")?;
        let succeeded = requests.split(", ").find_map(|part| {
            let count = part.strip_suffix(" succeeded")?;
            count.parse::<usize>().ok()
        });
        ensure!(
            succeeded == Some(self.count),
            "not all requests were answered with 2xx: {requests}; {}",
            line("status codes: ").unwrap_or_default()
        );
        let finished = line("finished in ")?;
        let time = finished.split(',').next().unwrap_or_default();
        Ok(LoadOutcome {
            seconds: seconds(time).with_context(|| format!("no time in {finished:?}"))?,
            connections: self.connections,
            answered: self.count,
            ..LoadOutcome::default()
        })
    }
}

/// Reads a time as h2load writes it, such as "1.23s", "45.6ms" or "2m".
fn seconds(text: &str) -> Option<f64> {
    let units = [
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    units.into_iter().find_map(|(unit, length)| {
        let number = text.strip_suffix(unit)?;
        Some(number.parse::<f64>().ok()? * length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(count: usize) -> Requests {
        Requests {
            version: Version::Http1,
            tls: false,
            connections: 4,
            streams: 1,
            count,
            host: "a.test".to_owned(),
            path: "/",
            fields: &[],
            body: None,
        }
    }

    const SAID: &str = "\nfinished in 512.50ms, 39024.39 req/s, 4.65MB/s\n\
        requests: 20000 total, 20000 started, 20000 done, 20000 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 20000 2xx, 0 3xx, 0 4xx, 0 5xx\n";

    #[test]
    fn h2load_output_is_read() {
        let outcome = requests(20_000).outcome(SAID).unwrap();
        assert_eq!(outcome.answered, 20_000);
        assert!((outcome.seconds - 0.5125).abs() < 1e-9);
        for (text, expected) in [("1.50s", 1.5), ("250us", 0.00025), ("2m", 120.0)] {
            assert!((seconds(text).unwrap() - expected).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn requests_that_failed_are_no_figure() {
        assert!(requests(20_001).outcome(SAID).is_err());
        assert!(requests(1).outcome("").is_err());
    }
}
