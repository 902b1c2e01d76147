//! `helm upgrade` under load.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::client::Failure;
use crate::load::{Hold, Load, describe};
use crate::runner::Verdict;
use crate::wait::{LATER, until};
use crate::world::{NAMESPACE, PROXY, Stage, World};

/// Connections that are open meanwhile.
const OPEN: usize = 200;
/// New connections a second.
const RATE: u32 = 50;

/// With 200 open connections and 50 new ones a second: no new connection fails, open ones end by drain,
/// never by reset.
pub(super) async fn an_upgrade_breaks_nothing(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (_, target) = super::faults::served(stage).await?;
    let hold = Hold::open(&target, OPEN)
        .await
        .map_err(|f| anyhow!("{f:?}"))?;
    let load = Load::start(target, RATE);
    let old: Vec<String> = names(&world.pods(PROXY).await?);
    let started = Instant::now();
    // A label on every pod: all three components are rolled.
    let rolled = [
        "--set",
        "proxy.podLabels.rolled=yes",
        "--set",
        "operator.podLabels.rolled=yes",
        "--set",
        "webhook.podLabels.rolled=yes",
    ];
    world.install(&rolled).await?.must()?;
    until("the old proxies to go", LATER, async || {
        let pods = world
            .api
            .list(crate::api::POD, NAMESPACE, &World::selector(PROXY))
            .await?;
        let left = names(&pods)
            .into_iter()
            .filter(|pod| old.contains(pod))
            .count();
        ensure!(left == 0, "{left} left");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let took = started.elapsed();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let counts = load.stop().await?;
    ensure!(
        hold.still_open() == 0,
        "{} connections outlived their proxies",
        hold.still_open()
    );
    let ends = hold.finish().await?;
    world.all_ready().await?;
    let notes = vec![
        format!("upgraded in {:.0} s", took.as_secs_f64()),
        format!("new, at {RATE} a second: {counts}"),
        format!("{OPEN} open ones ended: {}", describe(&ends)),
    ];
    ensure!(
        counts.failed.is_empty(),
        "new connections failed: {}",
        notes.join("; ")
    );
    let drained = ends.iter().all(|end| end.failure == Some(Failure::Closed));
    ensure!(drained, "not all ended by drain: {}", notes.join("; "));
    Ok(Verdict::Passed(notes))
}

fn names(pods: &[serde_json::Value]) -> Vec<String> {
    pods.iter()
        .map(|pod| crate::api::name(pod).to_owned())
        .collect()
}
