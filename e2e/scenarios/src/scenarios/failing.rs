//! A pod that dies silently: one of three refuses, resets or hangs, and nobody tells the cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::live_route::{BACKEND, GATEWAY, backend, plain_gateway};
use crate::api::{self, name, text};
use crate::app::STEADY;
use crate::client::Failure;
use crate::manifests;
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::Stage;

/// Pods, all told.
const REPLICAS: usize = 3;
/// How long the pod fails, and how long it is watched when it is well again.
const FAILS: Duration = Duration::from_secs(15);
/// New requests a second.
const RATE: u32 = 100;
/// Longest that an answer may take: a rule's timeout, as an application sets one. What hangs is over then.
const TIMEOUT: &str = "2s";

/// Three pods, one of which refuses, then resets, then hangs: prints how many requests fail, how many at most would
/// without any care, and how soon the pod is used again when it is well.
pub(super) async fn a_pod_dies_without_a_word(stage: &Stage) -> Result<Verdict> {
    let scene = Scene::new(stage, REPLICAS).await?;
    let mut lines = Vec::new();
    for how in ["refuse", "reset", "hang"] {
        let outcome = scene
            .fail(how, FAILS)
            .await
            .with_context(|| how.to_owned())?;
        ensure!(
            outcome.back.is_some(),
            "{how}: the pod is not used again: {}",
            outcome.line(how)
        );
        lines.push(outcome.line(how));
    }
    Ok(Verdict::Passed(lines))
}

/// A backend of which one pod fails at will.
pub(super) struct Scene<'a> {
    stage: &'a Stage,
    space: String,
    origin: Origin,
    victim: String,
    steady: SocketAddr,
    replicas: usize,
}

/// Results of the requests around a failure.
#[derive(Debug, Default)]
pub(super) struct FailureOutcome {
    /// Requests while the pod failed, and those among them that failed, by reason.
    pub(super) requests: usize,
    pub(super) failed: BTreeMap<String, usize>,
    /// Requests that failed when it was well again.
    pub(super) failed_after: usize,
    /// From the first failed request to the last one, while the pod failed.
    lossy: Option<Duration>,
    /// From being well again to the first answer of the pod.
    pub(super) back: Option<Duration>,
    replicas: usize,
}

impl FailureOutcome {
    /// The share of requests that failed, in percent.
    pub(super) fn lost(&self) -> f64 {
        let failed: usize = self.failed.values().sum();
        100.0 * failed as f64 / self.requests.max(1) as f64
    }

    pub(super) fn line(&self, how: &str) -> String {
        let reasons: Vec<String> = self
            .failed
            .iter()
            .map(|(why, count)| format!("{count} × {why}"))
            .collect();
        format!(
            "{how}: {:.2} % of {} requests lost [{}] (1 of {} pods fails: {:.0} % without any care), over {:.1} s; when \
             it is well again, {} lost, and used again after {}",
            self.lost(),
            self.requests,
            reasons.join(", "),
            self.replicas,
            100.0 / self.replicas as f64,
            self.lossy.unwrap_or_default().as_secs_f64(),
            self.failed_after,
            self.back.map_or_else(
                || "never".to_owned(),
                |b| format!("{:.1} s", b.as_secs_f64())
            )
        )
    }
}

/// A request: when it began, and who answered.
type Asked = (Instant, Result<String, Failure>);

impl<'a> Scene<'a> {
    /// With so many pods.
    pub(super) async fn new(stage: &'a Stage, replicas: usize) -> Result<Self> {
        let world = &stage.world;
        let space = plain_gateway(stage).await?;
        backend(stage, &space, replicas).await?;
        let host = format!("app.{}.test", stage.name);
        let parent = manifests::to_gateway(GATEWAY);
        let mut route = manifests::http_route(&space, "app", &parent, &host, (BACKEND, 80));
        route["spec"]["rules"][0]["timeouts"] = json!({"request": TIMEOUT});
        world.api.create(api::HTTP_ROUTE, &space, &route).await?;
        let selector = format!("app={BACKEND}");
        let pods = world.api.list(api::POD, &space, &selector).await?;
        let victim = pods.first().context("no pod")?;
        let steady = format!("{}:{STEADY}", text(victim, "/status/podIP"));
        let address = world.address(&space, GATEWAY, 80).await?;
        let scene = Self {
            stage,
            origin: Origin::plain(address, &host, Version::One),
            victim: name(victim).to_owned(),
            steady: steady.parse()?,
            space,
            replicas,
        };
        until("an answer of every pod", SOON, async || {
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..replicas * 8 {
                let answer = scene.origin.ask().await.and_then(|got| got.answer());
                seen.insert(answer.map_err(|failure| format!("{failure:?}"))?.pod);
            }
            if seen.len() == replicas {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
        .await?;
        Ok(scene)
    }

    /// Tells the pod how to be.
    async fn be(&self, how: &str) -> Result<()> {
        let steady = Origin::plain(self.steady, "steady", Version::One);
        let told = async {
            let mut connection = steady.open().await?;
            connection.ask(&format!("/be/{how}")).await?.answer()
        };
        let told = told.await.map_err(|f| anyhow::anyhow!("{f:?}"))?;
        ensure!(told.pod == self.victim, "{} was told", told.pod);
        Ok(())
    }

    /// Has the pod fail so for a while under load, and be well again for as long.
    pub(super) async fn fail(&self, how: &str, during: Duration) -> Result<FailureOutcome> {
        let (stop, stopped) = watch::channel(false);
        let load = tokio::spawn(load(self.origin.clone(), stopped));
        let told = async {
            self.be(how).await?;
            let failing = Instant::now();
            tokio::time::sleep(during).await;
            self.be("well").await?;
            let well = Instant::now();
            tokio::time::sleep(during).await;
            Ok::<_, anyhow::Error>((failing, well))
        }
        .await;
        stop.send_replace(true);
        let asked = load.await?;
        let (failing, well) = told?;
        // Nobody told the cluster, and nobody found out.
        let world = &self.stage.world;
        let pod = world
            .api
            .must_get(api::POD, &self.space, &self.victim)
            .await?;
        ensure!(crate::world::is_ready(&pod), "the cluster noticed");
        Ok(self.judge(&asked, failing, well))
    }

    fn judge(&self, asked: &[Asked], failing: Instant, well: Instant) -> FailureOutcome {
        let mut outcome = FailureOutcome {
            replicas: self.replicas,
            ..FailureOutcome::default()
        };
        let mut lost: Option<(Instant, Instant)> = None;
        for (began, result) in asked {
            if *began < failing {
                continue;
            }
            match result {
                Err(_) if *began >= well => outcome.failed_after += 1,
                Err(failure) => {
                    let why = match failure {
                        Failure::Answer(text) => text.clone(),
                        failure => failure.reason().to_owned(),
                    };
                    *outcome.failed.entry(why).or_default() += 1;
                    let first = lost.map_or(*began, |(first, _)| first);
                    lost = Some((first, *began));
                }
                Ok(pod) if *began >= well && *pod == self.victim => {
                    outcome.back.get_or_insert(began.duration_since(well));
                }
                Ok(_) => {}
            }
            if *began < well {
                outcome.requests += 1;
            }
        }
        outcome.lossy = lost.map(|(first, last)| last.duration_since(first));
        outcome
    }
}

/// Requests at a fixed rate, each on a new connection, in order of their beginning.
async fn load(origin: Origin, mut stopped: watch::Receiver<bool>) -> Vec<Asked> {
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut under_way, mut asked) = (JoinSet::new(), Vec::new());
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            Some(Ok(done)) = under_way.join_next() => asked.push(done),
            _ = ticks.tick() => {
                let origin = origin.clone();
                under_way.spawn(async move {
                    let began = Instant::now();
                    let answer = origin.ask().await.and_then(|got| got.answer());
                    (began, answer.map(|answer| answer.pod))
                });
            }
        }
    }
    asked.extend(under_way.join_all().await);
    asked.sort_by_key(|(began, _)| *began);
    asked
}
