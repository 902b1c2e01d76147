//! The steady tenant's clients, a process of their own: requests and handshakes at rates that do not depend
//! on the answers.
//!
//! What one lane begins late because the one before took long is counted from when it should have begun, as
//! `wrk2` does it, so a proxy that stands still is seen by everything that came meanwhile. What begins late
//! because this process was late to wake up is not the proxy's doing, and is told apart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http1;
use crate::tls::{Groups, client_config};

/// Connections that carry the requests.
const REQUEST_LANES: u32 = 50;
/// Handshakes that can be under way at one time.
const HANDSHAKE_LANES: u32 = 100;
/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time before the clocks run.
const WARM_UP: Duration = Duration::from_millis(500);

/// Options of the process.
#[derive(Args, Clone, Debug)]
pub(crate) struct SteadyArgs {
    /// The proxy.
    #[arg(long)]
    target: SocketAddr,
    /// The tenant's hostname.
    #[arg(long)]
    name: String,
    /// Requests a second, over connections that stay.
    #[arg(long)]
    requests: f64,
    /// Connections a second, each with a full handshake and one request.
    #[arg(long)]
    handshakes: f64,
    /// How long.
    #[arg(long)]
    seconds: f64,
}

/// Times of one kind, milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    /// How many.
    pub(crate) count: usize,
    /// How many of them failed; their times do not count.
    pub(crate) failed: usize,
    /// Median.
    pub(crate) p50: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
    /// 99.9th percentile.
    pub(crate) p999: f64,
}

/// Times and failures of one tenant's steady load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SteadyOutcome {
    /// Requests over connections that stay.
    pub(crate) requests: Times,
    /// Connections with a handshake and a request.
    pub(crate) handshakes: Times,
    /// How late this process woke up, 99th percentile, milliseconds.
    pub(crate) late: f64,
    /// What failed, by its message.
    pub(crate) failures: BTreeMap<String, usize>,
}

/// Makes the load and prints the outcome.
pub(crate) fn run(args: &SteadyArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(load(args))?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// What one lane saw.
#[derive(Default)]
struct Seen {
    times: Vec<f64>,
    late: Vec<f64>,
    failures: Vec<String>,
}

async fn load(args: &SteadyArgs) -> Result<SteadyOutcome> {
    let dialer = Arc::new(Dialer {
        target: args.target,
        name: ServerName::try_from(args.name.clone())?,
        config: client_config(Groups::X25519, false)?,
        request: format!("GET /small HTTP/1.1\r\nhost: {}\r\n\r\n", args.name).into_bytes(),
    });
    let begin = Instant::now() + Duration::from_millis(50);
    let end = begin + WARM_UP + Duration::from_secs_f64(args.seconds);
    let kinds = [
        (true, REQUEST_LANES, args.requests),
        (false, HANDSHAKE_LANES, args.handshakes),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (stays, lanes, rate) in kinds {
        for lane in 0..lanes {
            let schedule = Schedule {
                first: begin + Duration::from_secs_f64(f64::from(lane) / rate),
                every: Duration::from_secs_f64(f64::from(lanes) / rate),
                counts: begin + WARM_UP,
                end,
            };
            let dialer = Arc::clone(&dialer);
            tasks.spawn(async move { (stays, run_lane(&dialer, &schedule, stays).await) });
        }
    }
    let mut outcome = SteadyOutcome::default();
    let (mut requests, mut handshakes, mut late) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(lane) = tasks.join_next().await {
        let (stays, seen) = lane?;
        let (times, of) = if stays {
            (&mut requests, &mut outcome.requests)
        } else {
            (&mut handshakes, &mut outcome.handshakes)
        };
        of.failed += seen.failures.len();
        times.extend(seen.times);
        late.extend(seen.late);
        for failure in seen.failures {
            *outcome.failures.entry(failure).or_default() += 1;
        }
    }
    for (times, of) in [
        (requests, &mut outcome.requests),
        (handshakes, &mut outcome.handshakes),
    ] {
        *of = times_of(times, of.failed);
    }
    late.sort_by(f64::total_cmp);
    outcome.late = percentile(&late, 0.99);
    Ok(outcome)
}

fn times_of(mut times: Vec<f64>, failed: usize) -> Times {
    times.sort_by(f64::total_cmp);
    Times {
        count: times.len() + failed,
        failed,
        p50: percentile(&times, 0.5),
        p99: percentile(&times, 0.99),
        p999: percentile(&times, 0.999),
    }
}

/// Of sorted figures; 0 of none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is an index"
)]
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

/// When a lane begins what.
struct Schedule {
    first: Instant,
    every: Duration,
    /// What should have begun earlier does not count.
    counts: Instant,
    end: Instant,
}

async fn run_lane(dialer: &Dialer, schedule: &Schedule, stays: bool) -> Seen {
    let mut seen = Seen::default();
    let mut kept = None;
    let mut due = schedule.first;
    while due < schedule.end {
        if Instant::now() > schedule.end + PATIENCE {
            seen.failures.push("was never begun".to_owned());
            due += schedule.every;
            continue;
        }
        let in_time = Instant::now() <= due;
        sleep_until(due).await;
        let now = Instant::now();
        let from = if in_time { now } else { due };
        let result = match timeout(PATIENCE, dialer.ask(&mut kept, stays)).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("no answer within {PATIENCE:?}")),
        };
        if result.is_err() {
            kept = None;
        }
        if due >= schedule.counts {
            if in_time {
                seen.late.push(milliseconds(now - due));
            }
            match result {
                Ok(()) => seen.times.push(milliseconds(from.elapsed())),
                Err(error) => seen.failures.push(format!("{error:#}")),
            }
        }
        due += schedule.every;
    }
    seen
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

struct Dialer {
    target: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
}

impl Dialer {
    /// One request, on the connection that is kept or on a new one.
    async fn ask(&self, kept: &mut Option<TlsStream<TcpStream>>, stays: bool) -> Result<()> {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => self.open().await?,
        };
        stream.write_all(&self.request).await.context("sending")?;
        stream.flush().await.context("sending")?;
        let answer = http1::answer(&mut stream).await?;
        ensure!(answer.status == 200, "status {}", answer.status);
        if stays {
            *kept = Some(stream);
        }
        Ok(())
    }

    async fn open(&self) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.target)
            .await
            .context("connecting")?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector
            .connect(self.name.clone(), stream)
            .await
            .context("TLS handshake")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_is_there() {
        let times = times_of((1..=1000).rev().map(f64::from).collect(), 2);
        assert_eq!((times.count, times.failed), (1002, 2));
        let figures = [times.p50, times.p99, times.p999];
        let expected = [501.0, 991.0, 1000.0];
        for (figure, expected) in figures.into_iter().zip(expected) {
            assert!((figure - expected).abs() < f64::EPSILON, "{figures:?}");
        }
        assert!(percentile(&[], 0.99).abs() < f64::EPSILON);
    }
}
