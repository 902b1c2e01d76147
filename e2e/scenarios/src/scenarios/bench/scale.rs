//! Many routes, and many ListenerSets: what they cost.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::super::live_route::{GATEWAY, plain_gateway};
use super::{keep, setting};
use crate::api::{self, Kind};
use crate::certificate::Authority;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::report::{Usage, resident};
use crate::runner::Verdict;
use crate::wait::until;
use crate::world::{OPERATOR, PROXY, Stage, World};

/// Namespaces, and routes in each: a fifth of what was published.
const SPACES: usize = 10;
const ROUTES: usize = 100;
/// Namespaces, and ListenerSets in each. Published: 50 and 50, `VESTIBULE_BENCH_SET_SPACES` and `_SETS`.
const SET_SPACES: usize = 5;
const SETS: usize = 10;
/// Routes of a ListenerSet.
const ROUTES_OF_SET: usize = 16;
/// Requests to the API server at a time.
const AT_ONCE: usize = 8;
/// Bound for all statuses to be complete.
const WITHIN: Duration = Duration::from_mins(30);

/// Routes that each lead to a Service of their own.
pub(in super::super) async fn route_scale(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (spaces, routes) = (setting("SPACES", SPACES)?, setting("ROUTES", ROUTES)?);
    let platform = plain_gateway(stage).await?;
    let mut parent = manifests::to_gateway(GATEWAY);
    parent["namespace"] = platform.as_str().into();
    let mut objects = Vec::new();
    let mut names = Vec::new();
    for number in 0..spaces {
        let space = stage.namespace(&format!("n{number}")).await?;
        for route in 0..routes {
            let name = format!("app-{route}");
            let host = format!("{name}.n{number}.bench.test");
            let object = manifests::http_route(&space, &name, &parent, &host, (&name, 80));
            objects.push((api::SERVICE, space.clone(), service(&space, &name)));
            objects.push((api::HTTP_ROUTE, space.clone(), object));
        }
        names.push(space);
    }
    let what = format!("{} routes", spaces * routes);
    brought_in(world, "routes", &what, objects, async || {
        all_attached(world, &names, routes).await
    })
    .await
}

/// ListenerSets, each with a certificate, an HTTPS listener and 16 routes by path.
pub(in super::super) async fn listener_set_scale(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (spaces, sets) = (setting("SET_SPACES", SET_SPACES)?, setting("SETS", SETS)?);
    let gateway = stage.gateway().await?;
    let leaf = Authority::new("bench")?.leaf(&["*.bench.test"])?;
    let mut objects = Vec::new();
    let mut names = Vec::new();
    for number in 0..spaces {
        let space = stage.namespace(&format!("n{number}")).await?;
        let secret = manifests::tls_secret(&space, "site-tls", &leaf.chain, &leaf.key);
        objects.push((api::SECRET, space.clone(), secret));
        for set in 0..sets {
            let name = format!("app-{set}");
            let host = format!("app-{set}-n{number}.bench.test");
            let mut listener = manifests::listener("site", &host, Mode::Terminate("site-tls"));
            listener["protocol"] = "HTTPS".into();
            let parent = (gateway.0.as_str(), gateway.1.as_str());
            let object = manifests::listener_set(&space, &name, parent, &[listener]);
            objects.push((api::SERVICE, space.clone(), service(&space, &name)));
            objects.push((api::LISTENER_SET, space.clone(), object));
            for route in 0..ROUTES_OF_SET {
                let parent = manifests::to_listener_set(&name, None);
                let called = format!("{name}-{route}");
                let mut object =
                    manifests::http_route(&space, &called, &parent, &host, (&name, 80));
                let path = json!({"path": {"type": "PathPrefix", "value": format!("/{route}")}});
                object["spec"]["rules"][0]["matches"] = json!([path]);
                objects.push((api::HTTP_ROUTE, space.clone(), object));
            }
        }
        names.push(space);
    }
    let routes = spaces * sets * ROUTES_OF_SET;
    let what = format!("{} ListenerSets, {routes} routes", spaces * sets);
    brought_in(world, "sets", &what, objects, async || {
        for space in &names {
            let found = world.api.list(api::LISTENER_SET, space, "").await?;
            let of = |set: &&Value| conditions::is_served(set, ROUTES_OF_SET as u64).is_ok();
            let served = found.iter().filter(of).count();
            ensure!(served == sets, "{served} sets of {space}");
        }
        all_attached(world, &names, sets * ROUTES_OF_SET).await
    })
    .await
}

fn service(space: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": space},
        "spec": {"ports": [{"port": 80}]}})
}

/// Checks that each namespace has so many routes, and all of them are attached.
async fn all_attached(world: &World, spaces: &[String], routes: usize) -> Result<()> {
    for space in spaces {
        let found = world.api.list(api::HTTP_ROUTE, space, "").await?;
        let attached = found.iter().filter(|r| conditions::is_attached(r).is_ok());
        let attached = attached.count();
        ensure!(attached == routes, "{attached} routes of {space}");
    }
    Ok(())
}

/// Makes the objects, waits until they are served, and says what that took.
async fn brought_in(
    world: &World,
    method: &str,
    what: &str,
    objects: Vec<(Kind, String, Value)>,
    mut complete: impl AsyncFnMut() -> Result<()>,
) -> Result<Verdict> {
    let before = (
        resident(world, PROXY).await?,
        resident(world, OPERATOR).await?,
    );
    let usage = Usage::start(world).await?;
    let (count, started) = (objects.len(), Instant::now());
    futures::stream::iter(
        objects.into_iter().map(|(kind, space, object)| async move {
            world.api.create(kind, &space, &object).await
        }),
    )
    .buffer_unordered(AT_ONCE)
    .try_for_each(|_| async { Ok(()) })
    .await?;
    let made = started.elapsed();
    until("complete statuses", WITHIN, async || complete().await).await?;
    let rest = started.elapsed().saturating_sub(made);
    let lines = usage.finish(world).await?;
    let figure = format!(
        "{what}: proxy {:.0} MB ({:.0} before), operator {:.0} MB ({:.0}); {count} objects in {:.0} s, complete {:.1} s \
         later",
        resident(world, PROXY).await?,
        before.0,
        resident(world, OPERATOR).await?,
        before.1,
        made.as_secs_f64(),
        rest.as_secs_f64()
    );
    keep(world, method, &figure).await?;
    Ok(Verdict::Passed([vec![figure], lines].concat()))
}
