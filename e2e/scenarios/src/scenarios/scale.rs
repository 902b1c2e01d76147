//! Hundreds of ListenerSets with thousands of routes on the cluster: how long it takes, and what limits it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::quiet;
use crate::api::{self, Api};
use crate::clock;
use crate::load::percentile;
use crate::manifests::{self, Mode};
use crate::report::Usage;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team, World};
use crate::{client::Target, conditions};

/// Namespaces that the sets are spread over.
const SPACES: usize = 10;
/// Sets at first, and in the end.
const SIZES: [usize; 2] = [10, 250];
/// Listeners of a set, and routes.
const LISTENERS: usize = 16;
/// Edits at each size.
const EDITS: usize = 50;
/// Requests to the API server at a time.
const AT_ONCE: usize = 8;
/// Bound for all statuses to be complete.
const WITHIN: Duration = Duration::from_mins(15);
/// How often a hostname that is not served yet is tried. Bounds the resolution of the figure.
const TRY: Duration = Duration::from_millis(2);

/// The set that is edited, and the names that its listener has in turn.
const EDITED: &str = "edited";
const NAMES: [&str; 2] = ["one.scale.test", "two.scale.test"];

/// 10 sets with 160 routes, then 250 with 4,000: what bringing them in takes, and one edit among them.
pub(super) async fn thousands_of_routes(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    stage.backend(&team, &NAMES).await?;
    let targets = edited(&team, world).await?;
    let mut spaces = Vec::new();
    for number in 0..SPACES {
        let space = stage.namespace(&format!("n{number}")).await?;
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": space},
            "spec": {"ports": [{"port": 443}]}});
        world.api.create(api::SERVICE, &space, &service).await?;
        spaces.push(space);
    }

    let mut notes = Vec::new();
    let mut from = 0;
    for size in SIZES {
        let usage = Usage::start(world).await?;
        notes.push(bring_in(world, &spaces, team.parent(), from..size).await?);
        notes.extend(usage.finish(world).await?);
        notes.push(edits(&team, &targets, size).await?);
        from = size;
    }
    world.must_not_have_restarted().await?;
    Ok(Verdict::Passed(notes))
}

/// Makes these sets with their routes, and waits until every status is complete.
async fn bring_in(
    world: &World,
    spaces: &[String],
    gateway: (&str, &str),
    sets: std::ops::Range<usize>,
) -> Result<String> {
    let began = clock::now();
    let started = Instant::now();
    let due = sets.end;
    let objects = sets.clone().flat_map(|set| {
        let space = spaces[set % spaces.len()].as_str();
        objects(space, gateway, set)
    });
    let made = sets.len() * (LISTENERS + 1);
    futures::stream::iter(
        objects.map(|(kind, space, object)| create(&world.api, kind, space, object)),
    )
    .buffer_unordered(AT_ONCE)
    .try_collect::<Vec<()>>()
    .await?;
    let created = started.elapsed();
    until("complete statuses", WITHIN, async || {
        let mut served = 0;
        for space in spaces {
            let sets = world.api.list(api::LISTENER_SET, space, "").await?;
            served += sets
                .iter()
                .filter(|set| conditions::is_served(set, 1).is_ok())
                .count();
            ensure!(served == 0 || sets.len() <= due, "more sets than were made");
        }
        ensure!(served == due, "{served} of {due} sets");
        for space in spaces {
            let routes = world.api.list(api::TLS_ROUTE, space, "").await?;
            let attached = routes
                .iter()
                .filter(|route| conditions::is_attached(route).is_ok());
            let attached = attached.count();
            ensure!(
                attached == routes.len(),
                "{attached} of {} routes in {space}",
                routes.len()
            );
        }
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let complete = started.elapsed();
    let writes = match world.audit_log().await? {
        Some(_) => {
            let writes: usize = quiet::writes_since(world, began).await?.values().sum();
            format!("{writes} writes of ours for {made} objects")
        }
        None => format!("{made} objects; no audit log, so writes are not counted"),
    };
    let rate = made as f64 / created.as_secs_f64();
    Ok(format!(
        "to {due} sets with {} routes: created in {:.1} s ({rate:.0} objects a second, {AT_ONCE} requests at a \
         time: admission and the API server), all statuses complete {:.1} s later; {writes}",
        due * LISTENERS,
        created.as_secs_f64(),
        complete.saturating_sub(created).as_secs_f64()
    ))
}

type Placed<'a> = (api::Kind, &'a str, Value);

/// A set and its routes.
fn objects<'a>(space: &'a str, gateway: (&str, &str), set: usize) -> Vec<Placed<'a>> {
    let hostname = |number: usize| format!("app-{number}.set-{set}.scale.test");
    let section = |number: usize| format!("app-{number}");
    let name = format!("set-{set}");
    let listeners: Vec<Value> = (0..LISTENERS)
        .map(|n| manifests::listener(&section(n), &hostname(n), Mode::Passthrough))
        .collect();
    let set = manifests::listener_set(space, &name, gateway, &listeners);
    let routes = (0..LISTENERS).map(|n| {
        let parent = manifests::to_listener_set(&name, Some(&section(n)));
        let route = format!("{name}-{n}");
        let route = manifests::tls_route(space, &route, &parent, &hostname(n), ("web", 443));
        (api::TLS_ROUTE, space, route)
    });
    std::iter::once((api::LISTENER_SET, space, set))
        .chain(routes)
        .collect()
}

async fn create(api: &Api, kind: api::Kind, space: &str, object: Value) -> Result<()> {
    api.create(kind, space, &object).await.map(drop)
}

/// The team's set that will be edited, with a route that has both names. Waits until it is served.
async fn edited(team: &Team, world: &World) -> Result<[Target; 2]> {
    let space = &team.namespace;
    let listener = manifests::listener("site", NAMES[0], Mode::Passthrough);
    let set = manifests::listener_set(space, EDITED, team.parent(), &[listener]);
    let parent = manifests::to_listener_set(EDITED, None);
    let mut route = manifests::tls_route(space, EDITED, &parent, NAMES[0], ("web", 443));
    route["spec"]["hostnames"] = json!(NAMES);
    team.api.create(api::LISTENER_SET, space, &set).await?;
    team.api.create(api::TLS_ROUTE, space, &route).await?;
    let [first, second] = NAMES;
    let targets = [
        team.target(world, first).await?,
        team.target(world, second).await?,
    ];
    team.answers(&targets[0]).await?;
    Ok(targets)
}

/// The set's listener has one name and the other in turn: from the request to the API server to the first
/// answer, and to the status.
async fn edits(team: &Team, targets: &[Target; 2], size: usize) -> Result<String> {
    let space = &team.namespace;
    let mut served = Vec::with_capacity(EDITS);
    let mut stated = Vec::with_capacity(EDITS);
    for edit in 1..=EDITS {
        let next = edit % 2;
        let listener = manifests::listener("site", NAMES[next], Mode::Passthrough);
        let change = json!({"spec": {"listeners": [listener]}});
        let asked = Instant::now();
        let set = team
            .api
            .patch(api::LISTENER_SET, space, EDITED, &change)
            .await?;
        while let Err(failure) = targets[next].ask().await {
            ensure!(asked.elapsed() < SOON, "{}: {failure:?}", NAMES[next]);
            tokio::time::sleep(TRY).await;
        }
        served.push(asked.elapsed());
        let generation = set.pointer("/metadata/generation").cloned();
        until("the status of the edit", SOON, async || {
            let set = team.get(api::LISTENER_SET, EDITED).await?;
            ensure!(
                set.pointer("/metadata/generation") == generation.as_ref(),
                "another edit"
            );
            conditions::is_served(&set, 1)
        })
        .await?;
        stated.push(asked.elapsed());
    }
    // It ends as it began, for the next size.
    ensure!(EDITS.is_multiple_of(2), "an odd number of edits");
    served.sort_unstable();
    stated.sort_unstable();
    let figures = |values: &[Duration]| {
        let at = |share| percentile(values, share).as_secs_f64() * 1e3;
        format!("p50 {:.1} ms, p99 {:.1} ms", at(0.5), at(0.99))
    };
    Ok(format!(
        "one edit at {size} sets: to served {}; to its status {} (looked at every 150 ms)",
        figures(&served),
        figures(&stated)
    ))
}
