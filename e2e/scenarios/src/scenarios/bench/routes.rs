//! Attached routes, and the probe.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;

use super::super::live_route::{BACKEND, GATEWAY, backend, plain_gateway};
use super::super::quiet;
use super::{keep, setting};
use crate::api;
use crate::clock;
use crate::conditions;
use crate::load::percentile;
use crate::manifests;
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, World};

/// Routes whose attachment is counted.
const ATTACHED: usize = 1000;
/// Routes of the probe. The published figures are of 3,000.
const PROBED: usize = 300;
/// Requests to the API server at a time.
const AT_ONCE: usize = 8;
/// How often a route that is not served yet is tried.
const TRY: Duration = Duration::from_millis(2);

fn route(space: &str, number: usize) -> Value {
    let parent = manifests::to_gateway(GATEWAY);
    let name = format!("route-{number}");
    let host = host(number);
    manifests::http_route(space, &name, &parent, &host, (BACKEND, 80))
}

fn host(number: usize) -> String {
    format!("route-{number}.bench.test")
}

/// A thousand routes come and go: how long after the last one the Gateway counts right, and how often it is written.
pub(in super::super) async fn attached_routes(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let count = setting("ATTACHED", ATTACHED)?;
    let space = plain_gateway(stage).await?;
    backend(stage, &space, 1).await?;
    let began = clock::now();
    futures::stream::iter((0..count).map(|number| {
        let route = route(&space, number);
        let space = &space;
        async move { world.api.create(api::HTTP_ROUTE, space, &route).await }
    }))
    .buffer_unordered(AT_ONCE)
    .try_for_each(|_| async { Ok(()) })
    .await?;
    let up = counted(world, &space, count).await?;
    futures::stream::iter((0..count).map(|number| {
        let (space, name) = (&space, format!("route-{number}"));
        async move { world.api.delete(api::HTTP_ROUTE, space, &name).await }
    }))
    .buffer_unordered(AT_ONCE)
    .try_for_each(|()| async { Ok(()) })
    .await?;
    let down = counted(world, &space, 0).await?;
    let writes = if world.audit_log().await?.is_some() {
        let writes = quiet::writes_since(world, began).await?;
        let of_gateway = format!("gateways/status {space}/");
        let of_gateway = writes.iter().filter(|(what, _)| what.contains(&of_gateway));
        format!("{} writes", of_gateway.map(|(_, n)| n).sum::<usize>())
    } else {
        "writes not counted".to_owned()
    };
    let figure = format!(
        "{:.1} s, {:.1} s, {writes} ({count} routes)",
        up.as_secs_f64(),
        down.as_secs_f64()
    );
    keep(world, "attached", &figure).await?;
    Ok(Verdict::noting(figure))
}

/// Waits until the Gateway counts so many routes.
async fn counted(world: &World, space: &str, count: usize) -> Result<Duration> {
    let started = Instant::now();
    until("the count of routes", LATER, async || {
        let gateway = world.api.must_get(api::GATEWAY, space, GATEWAY).await?;
        conditions::counts_routes(&gateway, &[("http", count as u64)])
    })
    .await?;
    Ok(started.elapsed())
}

/// Routes one after another: how long until each answers, and what else is answered until then.
pub(in super::super) async fn probe(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let count = setting("PROBED", PROBED)?;
    let space = plain_gateway(stage).await?;
    backend(stage, &space, 1).await?;
    let address = world.address(&space, GATEWAY, 80).await?;
    // The nodes take a new Service's address when they come to it; until then it is refused, and no proxy's fault.
    let nobody = Origin::plain(address, "nobody.bench.test", Version::One);
    until("the address to be there", SOON, async || {
        let got = nobody.ask().await.map_err(|f| anyhow!("{f:?}"))?;
        ensure!(got.status == 404, "{got}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let mut times = Vec::with_capacity(count);
    let mut errors = BTreeMap::<String, usize>::new();
    for number in 0..count {
        let origin = Origin::plain(address, &host(number), Version::One);
        let mut connection = origin.open().await.ok();
        let route = route(&space, number);
        world.api.create(api::HTTP_ROUTE, &space, &route).await?;
        let started = Instant::now();
        loop {
            let asked = match connection.take() {
                Some(connection) => Ok(connection),
                None => origin.open().await,
            };
            let got = match asked {
                Ok(mut open) => {
                    let got = open.ask("/").await;
                    connection = Some(open);
                    got
                }
                Err(failure) => Err(failure),
            };
            let error = match got {
                Ok(got) if got.status == 200 => break,
                Ok(got) if got.status == 404 => None,
                Ok(got) => Some(got.to_string()),
                Err(failure) => Some(failure.reason().to_owned()),
            };
            if let Some(error) = error {
                connection = None;
                *errors.entry(error).or_default() += 1;
            }
            ensure!(started.elapsed() < SOON, "route {number} is not served");
            tokio::time::sleep(TRY).await;
        }
        times.push(started.elapsed());
    }
    let last = times.len().saturating_sub(50);
    let mut latest = times.split_off(last);
    times.extend(&latest);
    times.sort_unstable();
    latest.sort_unstable();
    let at = |times: &[Duration], share| percentile(times, share).as_millis();
    let figure = format!(
        "p50 {} ms, p90 {} ms, p99 {} ms, max {} ms over {count} routes (last 50: p50 {} ms), {} errors{}",
        at(&times, 0.5),
        at(&times, 0.9),
        at(&times, 0.99),
        at(&times, 1.0),
        at(&latest, 0.5),
        errors.values().sum::<usize>(),
        if errors.is_empty() {
            String::new()
        } else {
            format!(": {errors:?}")
        }
    );
    keep(world, "probe", &figure).await?;
    Ok(Verdict::noting(figure))
}
