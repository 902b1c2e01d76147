//! Attached routes, and the probe.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

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
/// The hostname of the routes that are probed by path.
const PATHS: &str = "paths.bench.test";
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

/// A route for one path of [`PATHS`].
fn path_route(space: &str, number: usize, path: &str) -> Value {
    let parent = manifests::to_gateway(GATEWAY);
    let name = format!("path-{number}");
    let mut route = manifests::http_route(space, &name, &parent, PATHS, (BACKEND, 80));
    route["spec"]["rules"][0]["matches"] = json!([{"path": {"type": "PathPrefix", "value": path}}]);
    route
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
    let mut probed = Probed::default();
    for number in 0..count {
        let origin = Origin::plain(address, &host(number), Version::One);
        let created = async || {
            let route = route(&space, number);
            world.api.create(api::HTTP_ROUTE, &space, &route).await
        };
        probed.until_served(&origin, "/", created).await?;
    }
    // A further path under a name that the namespace holds waits for no record of the name. The first of these routes takes
    // the name, and is not counted.
    let (mut first, mut held) = (Probed::default(), Probed::default());
    let origin = Origin::plain(address, PATHS, Version::One);
    for number in 0..=count {
        let path = format!("/path-{number}");
        let created = async || {
            let route = path_route(&space, number, &path);
            world.api.create(api::HTTP_ROUTE, &space, &route).await
        };
        let probed = if number == 0 { &mut first } else { &mut held };
        probed.until_served(&origin, &path, created).await?;
    }
    let figure = format!("{probed}; names already held: {held}");
    keep(world, "probe", &figure).await?;
    Ok(Verdict::noting(figure))
}

/// How long routes took until they were served, and what was answered before that was neither 404 nor 200.
#[derive(Default)]
struct Probed {
    times: Vec<Duration>,
    errors: BTreeMap<String, usize>,
}

impl Probed {
    /// Creates a route, and asks for `path` from the API server's answer on until the status is 200.
    async fn until_served<T>(
        &mut self,
        origin: &Origin,
        path: &str,
        create: impl AsyncFnOnce() -> Result<T>,
    ) -> Result<()> {
        let mut connection = origin.open().await.ok();
        create().await?;
        let started = Instant::now();
        loop {
            let asked = match connection.take() {
                Some(connection) => Ok(connection),
                None => origin.open().await,
            };
            let got = match asked {
                Ok(mut open) => {
                    let got = open.ask(path).await;
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
                *self.errors.entry(error).or_default() += 1;
            }
            ensure!(
                started.elapsed() < SOON,
                "{}{path} is not served",
                origin.host
            );
            tokio::time::sleep(TRY).await;
        }
        self.times.push(started.elapsed());
        Ok(())
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut latest = self.times.clone();
        latest.drain(..latest.len().saturating_sub(50));
        latest.sort_unstable();
        let mut times = self.times.clone();
        times.sort_unstable();
        let at = |times: &[Duration], share| percentile(times, share).as_millis();
        write!(
            f,
            "p50 {} ms, p90 {} ms, p99 {} ms, max {} ms over {} routes (last 50: p50 {} ms), {} errors",
            at(&times, 0.5),
            at(&times, 0.9),
            at(&times, 0.99),
            at(&times, 1.0),
            times.len(),
            at(&latest, 0.5),
            self.errors.values().sum::<usize>(),
        )?;
        if !self.errors.is_empty() {
            write!(f, ": {:?}", self.errors)?;
        }
        Ok(())
    }
}
