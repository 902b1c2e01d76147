//! Clients that count: new connections at a fixed rate, and connections that are held.
//!
//! The rate is open-loop: a connection starts when its time has come, whether or not those before it are
//! done, so that a stall is seen as late and failed connections instead of fewer of them. Nothing is
//! tried twice.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{Failure, Target};
use crate::echo::Answer;
use crate::runner::print;

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address and port of the Gateway.
    #[arg(long)]
    address: SocketAddr,
    /// Hostname to ask for.
    #[arg(long)]
    hostname: String,
    /// PEM file with the root that the certificate is verified with.
    #[arg(long)]
    root: PathBuf,
    /// New connections a second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Connections to hold open meanwhile.
    #[arg(long, default_value_t = 0)]
    hold: usize,
    /// Seconds to go on.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// Loads a Gateway for a while and prints the counts.
pub(crate) async fn run_for(args: Args) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(&args.root)? {
        roots.add(root?)?;
    }
    let target = Target::new(args.address, &args.hostname, roots)?;
    let hold = Hold::open(&target, args.hold)
        .await
        .map_err(|f| anyhow!("{f:?}"))?;
    let load = Load::start(target, args.rate);
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    print(&load.stop().await?.to_string());
    if args.hold > 0 {
        print(&format!("held, by proxy: {:?}", hold.by_proxy()));
        print(&format!("held, ends: {}", describe(&hold.finish().await?)));
    }
    Ok(())
}

/// Numbers of connections by their result, and their times.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections that were answered.
    pub(crate) ok: u64,
    /// Those that were not, in order of their start: when they started, and why.
    pub(crate) failed: Vec<(Instant, Failure)>,
    /// Times from start to answer, sorted when the load has ended.
    latencies: Vec<Duration>,
}

impl Counts {
    fn add(&mut self, started: Instant, result: Result<Answer, Failure>) {
        match result {
            Ok(_) => {
                self.ok += 1;
                self.latencies.push(started.elapsed());
            }
            Err(failure) => self.failed.push((started, failure)),
        }
    }

    /// Latency that this share (0 to 1) of the answered connections did not exceed.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        percentile(&self.latencies, share)
    }

    /// How many that started after the instant failed.
    pub(crate) fn failed_after(&self, instant: Instant) -> usize {
        self.failed
            .iter()
            .filter(|(started, _)| *started > instant)
            .count()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections ok, {} failed",
            self.ok,
            self.failed.len()
        )?;
        let mut reasons = BTreeMap::<_, usize>::new();
        for (_, failure) in &self.failed {
            *reasons.entry(failure.reason()).or_default() += 1;
        }
        for (reason, count) in reasons {
            write!(f, " [{reason} {count}]")?;
        }
        write!(
            f,
            ", p50 {} ms, p99 {} ms",
            self.percentile(0.5).as_millis(),
            self.percentile(0.99).as_millis()
        )
    }
}

/// Value that this share (0 to 1) of the sorted values does not exceed; zero of none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is a small positive number"
)]
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// New connections at a fixed rate, until it is stopped.
pub(crate) struct Load {
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Counts>,
}

impl Load {
    /// Starts `rate` connections a second.
    pub(crate) fn start(target: Target, rate: u32) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self {
            stop: Some(stop),
            running: tokio::spawn(run(target, rate, stopped)),
        }
    }

    /// Starts no more, waits for those under way, and counts.
    pub(crate) async fn stop(mut self) -> Result<Counts> {
        drop(self.stop.take());
        Ok(self.running.await?)
    }
}

async fn run(target: Target, rate: u32, mut stopped: oneshot::Receiver<()>) -> Counts {
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    // Late ticks are made up for: the rate is what the scenario says.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    // As many as can be under way within a client's patience, twice over.
    let (results, mut received) = mpsc::channel(rate as usize * 20 + 16);
    let mut counts = Counts::default();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some((started, result)) = received.recv() => counts.add(started, result),
            _ = ticks.tick() => {
                let (target, results) = (target.clone(), results.clone());
                tokio::spawn(async move {
                    let started = Instant::now();
                    let result = target.ask().await;
                    let _ = results.send((started, result)).await;
                });
            }
        }
    }
    drop(results);
    while let Some((started, result)) = received.recv().await {
        counts.add(started, result);
    }
    counts.latencies.sort_unstable();
    counts.failed.sort_by_key(|(started, _)| *started);
    counts
}

/// Makes `count` connections, `at_once` at a time, and counts.
pub(crate) async fn burst(target: &Target, count: usize, at_once: usize) -> Counts {
    use futures::StreamExt as _;
    let mut counts = Counts::default();
    let mut results = futures::stream::iter(0..count)
        .map(|_| async {
            let started = Instant::now();
            (started, target.ask().await)
        })
        .buffer_unordered(at_once);
    while let Some((started, result)) = results.next().await {
        counts.add(started, result);
    }
    counts.latencies.sort_unstable();
    counts
}

/// How a held connection ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The proxy it went through, by the address that the backend saw.
    pub(crate) via: String,
    /// None: it was open when the hold ended, and still answered.
    pub(crate) failure: Option<Failure>,
}

/// Connections that are held open.
pub(crate) struct Hold {
    wake: tokio::sync::watch::Sender<bool>,
    tasks: Vec<JoinHandle<End>>,
    via: Vec<String>,
}

impl Hold {
    /// Opens `count` connections; each has asked once when this returns.
    pub(crate) async fn open(target: &Target, count: usize) -> Result<Self, Failure> {
        let (wake, woken) = tokio::sync::watch::channel(false);
        let mut hold = Self {
            wake,
            tasks: Vec::with_capacity(count),
            via: Vec::with_capacity(count),
        };
        for _ in 0..count {
            let mut conversation = target.open().await?;
            let via = conversation.ask().await?.peer;
            hold.via.push(via.clone());
            let mut woken = woken.clone();
            hold.tasks.push(tokio::spawn(async move {
                let ended = tokio::select! {
                    failure = conversation.ended() => Some(failure),
                    _ = woken.changed() => None,
                };
                let failure = match ended {
                    Some(failure) => Some(failure),
                    // Open is what still answers.
                    None => conversation.ask().await.err(),
                };
                if failure.is_none() {
                    conversation.close().await;
                }
                End { via, failure }
            }));
        }
        Ok(hold)
    }

    /// How many connections go through each proxy.
    pub(crate) fn by_proxy(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for via in &self.via {
            *counts.entry(via.as_str()).or_default() += 1;
        }
        counts
    }

    /// How many have not ended.
    pub(crate) fn still_open(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_finished()).count()
    }

    /// Asks on those that are open, closes them, and says how each ended.
    pub(crate) async fn finish(self) -> Result<Vec<End>> {
        let _ = self.wake.send(true);
        let mut ends = Vec::with_capacity(self.tasks.len());
        for task in self.tasks {
            ends.push(task.await?);
        }
        Ok(ends)
    }
}

/// Counts of ends: open, by FIN, by reset, by anything else.
pub(crate) fn describe(ends: &[End]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for end in ends {
        let how = end.failure.as_ref().map_or("open", Failure::reason);
        *counts.entry(how).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(how, n)| format!("{n} {how}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        let values: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&values, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
