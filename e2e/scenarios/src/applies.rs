//! Applies at a fixed rate: every other one has to be accepted, the others have to be refused by a verdict.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::api::{self, Api};
use crate::load::percentile;
use crate::manifests::{self, Mode};
use crate::world::Team;

/// How many sets take turns, so that none is written twice at a time.
const SETS: usize = 40;
/// Longest that one apply may take, before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause of somebody who applies again.
const AGAIN: Duration = Duration::from_millis(200);

/// Numbers of applies by their result.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    accepted: usize,
    refused: usize,
    /// Those that got their verdict when they were applied again, because nobody answered the first time.
    repeated: usize,
    /// Those that were neither as they should be: what was said instead.
    pub(crate) failed: Vec<String>,
    latencies: Vec<Duration>,
}

impl Counts {
    /// Checks that each got its verdict.
    pub(crate) fn must(&self, meanwhile: &str) -> Result<()> {
        let first = self.failed.first().map_or("", String::as_str);
        ensure!(
            self.failed.is_empty(),
            "{meanwhile}: {self}; first: {first}"
        );
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |share| percentile(&self.latencies, share).as_millis();
        write!(
            f,
            "{} applies accepted, {} refused by verdict, {} failed, {} repeated, p50 {} ms, p99 {} ms",
            self.accepted,
            self.refused,
            self.failed.len(),
            self.repeated,
            at(0.5),
            at(0.99)
        )
    }
}

/// A stream of them, until it is stopped.
pub(crate) struct Applies {
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Counts>,
}

impl Applies {
    /// Starts `rate` applies a second under a team's identity, for hostnames below `domain`.
    pub(crate) fn start(team: &Team, domain: &str, rate: u32) -> Self {
        Self::begin(team, domain, rate, false)
    }

    /// The same, by somebody who applies again what no webhook answered: a process that is killed takes with it what
    /// it was judging.
    pub(crate) fn start_persistent(team: &Team, domain: &str, rate: u32) -> Self {
        Self::begin(team, domain, rate, true)
    }

    fn begin(team: &Team, domain: &str, rate: u32, repeats: bool) -> Self {
        let (stop, stopped) = oneshot::channel();
        let writer = Writer {
            api: team.api.clone(),
            namespace: team.namespace.clone(),
            gateway: team.gateway.clone(),
            domain: domain.to_owned(),
            repeats,
        };
        Self {
            stop: Some(stop),
            running: tokio::spawn(run(writer, rate, stopped)),
        }
    }

    /// Starts no more, waits for those under way, and counts.
    pub(crate) async fn stop(mut self) -> Result<Counts> {
        drop(self.stop.take());
        Ok(self.running.await?)
    }
}

#[derive(Clone)]
struct Writer {
    api: Api,
    namespace: String,
    gateway: (String, String),
    domain: String,
    /// Whether what no webhook answered is applied again.
    repeats: bool,
}

/// The result of an apply.
#[derive(Debug, Clone, Copy)]
struct Judged {
    /// It was to be accepted, and was; otherwise it was to be refused, and was.
    accepted: bool,
    /// It had to be applied again.
    repeated: bool,
}

impl Writer {
    /// Applies the nth object.
    async fn write(&self, number: usize) -> Result<Judged, String> {
        let space = &self.namespace;
        let (kind, object) = if number.is_multiple_of(2) {
            let hostname = format!("n{number}.{}", self.domain);
            let listener = manifests::listener("site", &hostname, Mode::Passthrough);
            let name = format!("stream-{}", number / 2 % SETS);
            let gateway = (self.gateway.0.as_str(), self.gateway.1.as_str());
            let set = manifests::listener_set(space, &name, gateway, &[listener]);
            (api::LISTENER_SET, set)
        } else {
            let parent = manifests::to_listener_set("stream-0", None);
            let wildcard = format!("*.{}", self.domain);
            let route = manifests::tls_route(space, "refused", &parent, &wildcard, ("web", 443));
            (api::TLS_ROUTE, route)
        };
        let wanted = kind == api::LISTENER_SET;
        let (started, mut repeated) = (Instant::now(), false);
        loop {
            let judged = |accepted| Judged { accepted, repeated };
            return match timeout(PATIENCE, self.api.apply(kind, space, &object)).await {
                Err(_) => Err(format!("{number}: no answer")),
                Ok(Err(error)) => Err(format!("{number}: {error:#}")),
                Ok(Ok(None)) if wanted => Ok(judged(true)),
                Ok(Ok(Some((403, message)))) if !wanted && message.contains("wildcard") => {
                    Ok(judged(false))
                }
                Ok(Ok(Some((500, message))))
                    if self.repeats
                        && started.elapsed() < PATIENCE
                        && message.contains("failed calling webhook") =>
                {
                    repeated = true;
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Ok(Ok(verdict)) => Err(format!("{number}: {verdict:?}")),
            };
        }
    }
}

async fn run(writer: Writer, rate: u32, mut stopped: oneshot::Receiver<()>) -> Counts {
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (results, mut received) = mpsc::channel(rate as usize * 60 + 16);
    let mut counts = Counts::default();
    let mut number = 0;
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(result) = received.recv() => counts.add(result),
            _ = ticks.tick() => {
                let (writer, results) = (writer.clone(), results.clone());
                tokio::spawn(async move {
                    let started = Instant::now();
                    let result = writer.write(number).await;
                    let _ = results.send((started.elapsed(), result)).await;
                });
                number += 1;
            }
        }
    }
    drop(results);
    while let Some(result) = received.recv().await {
        counts.add(result);
    }
    counts.latencies.sort_unstable();
    counts
}

impl Counts {
    fn add(&mut self, (took, result): (Duration, Result<Judged, String>)) {
        match result {
            Ok(judged) => {
                let count = if judged.accepted {
                    &mut self.accepted
                } else {
                    &mut self.refused
                };
                *count += 1;
                self.repeated += usize::from(judged.repeated);
            }
            Err(why) => self.failed.push(why),
        }
        self.latencies.push(took);
    }
}
