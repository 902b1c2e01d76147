//! A route that serves is edited again and again, while clients ask as fast as they are answered: the method of
//! gateway-api-bench's "route changes".

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::app;
use crate::client::Failure;
use crate::manifests;
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::traffic::{Clients, Tallies};
use crate::wait::{SOON, until};
use crate::world::{CLASS, Stage};

/// Edits of every day. What failed, failed after 53 to 73.
const EDITS: usize = 100;
/// Clients of each kind. The public method has one; more of them find sooner what a request can run into.
const CLIENTS: usize = 8;
/// Pause after an edit.
const PAUSE: Duration = Duration::from_millis(200);
/// Names of the Gateway and of everything behind it.
pub(super) const GATEWAY: &str = "plain";
pub(super) const BACKEND: &str = "backend";
const ROUTE: &str = "route";

/// A hundred edits of a live route, with clients in HTTP/1.1 and HTTP/2: not one request fails.
pub(super) async fn a_route_that_serves_is_edited_all_the_time(stage: &Stage) -> Result<Verdict> {
    let tallies = edited(stage, EDITS).await?;
    ensure!(tallies.failed() == 0, "of {EDITS} edits: {tallies}");
    Ok(Verdict::noting(format!("{EDITS} edits: {tallies}")))
}

/// Makes so many edits, and returns the results of the requests meanwhile.
pub(super) async fn edited(stage: &Stage, edits: usize) -> Result<Tallies> {
    let world = &stage.world;
    let space = plain_gateway(stage).await?;
    backend(stage, &space, 1).await?;
    let host = format!("route.{}.test", stage.name);
    world
        .api
        .create(api::HTTP_ROUTE, &space, &route(&space, &host))
        .await?;
    let address = world.address(&space, GATEWAY, 80).await?;
    let origins = [Version::One, Version::Two].map(|v| Origin::plain(address, &host, v));
    for origin in &origins {
        let ask = async || origin.ask().await?.answer();
        until("the first answer", SOON, async || {
            ask()
                .await
                .map_err(|failure: Failure| format!("{failure:?}"))
        })
        .await?;
    }
    let mut clients = Clients::new();
    for _ in 0..CLIENTS {
        for origin in &origins {
            clients.stay(origin, Duration::ZERO);
        }
    }
    let started = Instant::now();
    let edited = async {
        for edit in 0..edits {
            let change = json!({"spec": {"rules": [rule(edit % 2 == 0)]}});
            world
                .api
                .patch(api::HTTP_ROUTE, &space, ROUTE, &change)
                .await?;
            // It is the method: the next edit comes whether or not this one is served.
            tokio::time::sleep(PAUSE).await;
        }
        Ok::<_, anyhow::Error>(())
    }
    .await;
    let tallies = clients.stop().await?;
    edited.map(|()| {
        crate::runner::print(&format!(
            "      {edits} edits in {:.0} s",
            started.elapsed().as_secs_f64()
        ));
        tallies
    })
}

/// A namespace with a Gateway that takes plain HTTP for all hostnames. Waits until it is programmed.
pub(super) async fn plain_gateway(stage: &Stage) -> Result<String> {
    let space = stage.namespace("platform").await?;
    let listener = json!({"name": "http", "port": 80, "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "All"}}});
    let gateway = manifests::gateway(&space, GATEWAY, CLASS, &[listener]);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    stage.gateway_served(&space, GATEWAY).await?;
    Ok(space)
}

/// The backend: a Service and so many pods. Waits for them.
pub(super) async fn backend(stage: &Stage, space: &str, replicas: usize) -> Result<()> {
    let leaf = crate::certificate::Authority::new("backend")?.leaf(&["backend.test"])?;
    let objects = [
        manifests::tls_secret(space, "app-tls", &leaf.chain, &leaf.key),
        app::deployment(space, BACKEND, &stage.world.image("e2e"), replicas),
        app::service(space, BACKEND, Some(BACKEND)),
    ];
    stage.world.kubectl.apply(&objects).await?.must()?;
    stage.available(space, BACKEND).await
}

fn route(space: &str, host: &str) -> Value {
    let parent = manifests::to_gateway(GATEWAY);
    manifests::http_route(space, ROUTE, &parent, host, (BACKEND, 8080))
}

/// To the first port with a filter, or to the second one without.
fn rule(first: bool) -> Value {
    let port = if first { 80 } else { 8080 };
    let mut rule = json!({"backendRefs": [{"name": BACKEND, "port": port}]});
    if first {
        rule["filters"] = json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {
            "add": [{"name": "x-edited", "value": "yes"}],
        }}]);
    }
    rule
}
