//! What Programmed means: every ready proxy has it. Shown with one proxy's stream held up.

use anyhow::{Result, bail, ensure};

use crate::api::{self, text};
use crate::conditions;
use crate::held::Held;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{PROXY, Stage, Team};

/// The condition of routes.
const ROUTE: &str = "vestibule.dev/Programmed";

/// With one proxy's stream held up, Programmed of the set and of its routes stays Pending and says "1/2 acked";
/// released, it is True.
pub(super) async fn programmed_waits_for_every_ready_proxy(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let (terminated, passed) = ("t.programmed.test", "p.programmed.test");
    stage.backend(&team, &[terminated, passed]).await?;
    let pods = world.ready(PROXY, 2).await?;
    let Some(proxy) = pods.first() else {
        bail!("no proxy");
    };
    let held = Held::start(world, proxy).await?;
    // Whatever comes of it, the stream must flow again for the scenarios after this one.
    let seen = pending(stage, &team, terminated, passed).await;
    held.release().await?;
    let message = seen?;
    team.served(stage).await?;
    stage
        .see(api::TLS_ROUTE, &team.namespace, "passed", |route| {
            conditions::of_route(route, ROUTE, "True", Some("Programmed"))
        })
        .await?;
    world.ready(PROXY, 2).await?;
    world.must_not_have_restarted().await?;
    Ok(Verdict::noting(format!("while held up: {message}")))
}

async fn pending(stage: &Stage, team: &Team, terminated: &str, passed: &str) -> Result<String> {
    team.kubectl
        .apply(&team.story(terminated, passed)?)
        .await?
        .must()?;
    let is_pending = |set: &serde_json::Value| {
        let message = conditions::of_object(set, "Programmed", "False", Some("Pending"))?;
        ensure!(message.contains("1/2"), "the message is: {message}");
        Ok(message)
    };
    let set = stage
        .see(api::LISTENER_SET, &team.namespace, "web", |set| {
            is_pending(set).map(drop)
        })
        .await?;
    stage
        .see(api::TLS_ROUTE, &team.namespace, "passed", |route| {
            conditions::of_route(route, ROUTE, "False", Some("Pending"))
        })
        .await?;
    // The other proxy has it and serves it, for longer than the status is held back.
    let target = team.target(&stage.world, terminated).await?;
    until("an answer of the other proxy", SOON, async || {
        target.ask().await.map_err(|failure| format!("{failure:?}"))
    })
    .await?;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    let set = stage
        .world
        .api
        .must_get(
            api::LISTENER_SET,
            &team.namespace,
            text(&set, "/metadata/name"),
        )
        .await?;
    is_pending(&set)
}
