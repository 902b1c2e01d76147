//! A namespace that serves a name keeps it: against older objects that take it up later, and while its own object is
//! gone for a moment.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::grants::site;
use crate::api;
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::runner::Verdict;
use crate::scenarios::admission::{let_in, passing_set, without_admission};
use crate::scenarios::quiet::restarted;
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, Team, World};

const WANTED: &str = "wanted.hijack.test";
/// New connections a second.
const RATE: u32 = 40;

/// An older set is edited to have a name that a younger one serves, and one to speak TCP on the port: refused.
/// With the webhook gone both come in, are told of the conflict, and change nothing: not for one connection, and
/// not when the operators start anew.
pub(in super::super) async fn hostname_and_port_that_another_tenant_serves_cannot_be_taken(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    tokio::try_join!(
        stage.backend(&a, &[WANTED]),
        stage.backend(&b, &[WANTED, "b.hijack.test"])
    )?;
    // B's are the older ones: by their times, or within one second by their names.
    let (old, raw) = (
        passing_set(&b, "old", "b.hijack.test"),
        passing_set(&b, "raw", "raw.hijack.test"),
    );
    b.kubectl.apply(&[old, raw]).await?.must()?;
    let web = site(&a, "web", WANTED);
    a_second_later(world, &b, &web[0]).await?;
    a.kubectl.apply(&web).await?.must()?;
    let target = a.target(world, WANTED).await?;
    a.answers(&target).await?;
    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;

    let [hostname, raw] = edits(&b);
    let mut notes = Vec::new();
    for edit in [&hostname, &raw] {
        let message = b
            .kubectl
            .apply(std::slice::from_ref(edit))
            .await?
            .must_fail()?;
        ensure!(
            !message.contains(&a.namespace),
            "it names the holder: {message}"
        );
        // What was asked for stands before it.
        let verdict = message.rsplit("admission webhook").next();
        notes.push(verdict.unwrap_or_default().trim().replace('\n', " "));
    }

    let hold = Hold::open(&target, 4).await;
    let hold = hold.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    let load = Load::start(target.clone(), RATE);
    let result = without_admission(world, async {
        for edit in [&hostname, &raw] {
            let_in(&b, edit).await?;
        }
        let routes = &site(&b, "old", WANTED)[1..];
        b.kubectl.apply(routes).await?.must()?;
        told(stage, &b, &a).await
    })
    .await;
    let result = match result {
        Ok(()) => restarted(world).await,
        Err(error) => Err(error),
    };
    let (counts, ends) = (load.stop().await?, hold.finish().await?);
    result?;
    // The new operators judge as the old ones did.
    told(stage, &b, &a).await?;
    a.answers(&target).await?;
    let web = a.get(api::LISTENER_SET, "web").await?;
    conditions::is_served(&web, 1)?;
    ensure!(counts.failed.is_empty(), "the holder: {counts}");
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "connections to the holder: {}",
        describe(&ends)
    );
    notes.push(format!("the holder, meanwhile: {counts}"));
    Ok(Verdict::Passed(notes))
}

/// B's older sets, with A's name, and with TCP on the port.
fn edits(b: &Team) -> [Value; 2] {
    let mut raw = passing_set(b, "raw", WANTED);
    raw["spec"]["listeners"] = json!([{"name": "site", "port": 443, "protocol": "TCP"}]);
    [passing_set(b, "old", WANTED), raw]
}

/// Waits until both of B's sets have heard that they lost, in words that name nothing of A.
async fn told(stage: &Stage, b: &Team, a: &Team) -> Result<()> {
    let refusals = [
        ("old", "Conflicted", "True", "HostnameConflict"),
        ("raw", "Accepted", "False", "HostnameNotOwned"),
    ];
    for (name, condition, truth, why) in refusals {
        stage
            .see(api::LISTENER_SET, &b.namespace, name, |set| {
                let message = conditions::of_listener(set, "site", condition, truth, Some(why))?;
                conditions::of_listener(set, "site", "Programmed", "False", None)?;
                ensure!(
                    !message.contains(&a.namespace),
                    "it names the holder: {message}"
                );
                Ok(())
            })
            .await?;
    }
    Ok(())
}

/// The API server's clock decides which object is older, and it counts in seconds.
pub(super) async fn a_second_later(world: &World, b: &Team, next: &Value) -> Result<()> {
    let old = b.get(api::LISTENER_SET, "old").await?;
    let created = api::text(&old, "/metadata/creationTimestamp");
    let space = api::text(next, "/metadata/namespace");
    let path = format!("{}?dryRun=All", api::path(api::LISTENER_SET, space, ""));
    until("the next second", SOON, async || {
        let now = world.api.post(&path, next).await?;
        let now = api::text(&now, "/metadata/creationTimestamp");
        ensure!(now > created, "it is still {now}");
        Ok(())
    })
    .await
}

/// A's set is deleted and made again while B's waits for the name: nobody is ever answered by B. When A stays
/// away, B has it.
pub(in super::super) async fn listener_set_that_comes_back_in_time_has_lost_nothing(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let wanted = "wanted.back.test";
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let names = [wanted];
    tokio::try_join!(stage.backend(&a, &names), stage.backend(&b, &names))?;
    let web = site(&a, "web", wanted);
    a.kubectl.apply(&web).await?.must()?;
    let (of_a, of_b) = (
        a.target(world, wanted).await?,
        b.target(world, wanted).await?,
    );
    a.answers(&of_a).await?;
    let waits = site(&b, "waits", wanted);
    let refused = b.kubectl.apply(&waits[..1]).await?.must_fail()?;

    let mut notes = vec![refused.trim().replace('\n', " ")];
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let started = Instant::now();
        a.api.delete(api::LISTENER_SET, &a.namespace, "web").await?;
        // While A's object is gone, B is told that the name is still taken.
        b.kubectl.apply(&waits[..1]).await?.must_fail()?;
        a.kubectl.apply(&web).await?.must()?;
        never_by(&of_b, &of_a).await?;
        longest = longest.max(started.elapsed());
    }
    notes.push(format!(
        "deleted and made again, three times: served again after {} ms at most",
        longest.as_millis()
    ));
    let started = Instant::now();
    a.api.delete(api::LISTENER_SET, &a.namespace, "web").await?;
    until("the name to be free", LATER, async || {
        b.kubectl.apply(&waits).await?.must().map(drop)
    })
    .await?;
    b.answers(&of_b).await?;
    notes.push(format!(
        "left: another may have it after {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    let refused = a.kubectl.apply(&web[..1]).await?.must_fail()?;
    ensure!(
        !refused.contains(&b.namespace),
        "it names the holder: {refused}"
    );
    Ok(Verdict::Passed(notes))
}

/// Waits until the one is answered; the other never is.
pub(super) async fn never_by(other: &Target, one: &Target) -> Result<()> {
    until("the holder to be served again", SOON, async || {
        ensure!(other.ask().await.is_err(), "the other one was answered");
        one.ask()
            .await
            .map(drop)
            .map_err(|failure| anyhow::anyhow!("{failure:?}"))
    })
    .await
}
