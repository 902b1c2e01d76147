//! A Gateway that is deleted and made again: who had a name there has it again.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::grants::site;
use super::hijack::{a_second_later, never_by};
use crate::api;
use crate::conditions;
use crate::runner::Verdict;
use crate::scenarios::admission::{let_in, passing_set};
use crate::wait::{SOON, until};
use crate::world::Stage;

/// While the Gateway is away nobody is refused anything, so an older set of B takes up the name that A serves. The
/// Gateway comes back within the grace: it is A's again.
pub(in super::super) async fn names_outlive_their_gateway(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let wanted = "wanted.gateway-back.test";
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let names = [wanted];
    tokio::try_join!(stage.backend(&a, &names), stage.backend(&b, &names))?;
    let own = "old.gateway-back.test";
    let old = passing_set(&b, "old", own);
    // Its route is ready for both.
    let mut route = site(&b, "old", own).remove(1);
    route["spec"]["hostnames"] = json!([own, wanted]);
    b.kubectl.apply(&[old, route]).await?.must()?;
    let web = site(&a, "web", wanted);
    a_second_later(world, &b, &web[0]).await?;
    a.kubectl.apply(&web).await?.must()?;
    a.answers(&a.target(world, wanted).await?).await?;
    let taken = passing_set(&b, "old", wanted);
    let refused = b
        .kubectl
        .apply(std::slice::from_ref(&taken))
        .await?
        .must_fail()?;
    ensure!(refused.contains(wanted), "another reason: {refused}");

    let (namespace, name) = &gateway;
    let mut again = world.api.must_get(api::GATEWAY, namespace, name).await?;
    let started = Instant::now();
    world.api.delete(api::GATEWAY, namespace, name).await?;
    until("the Gateway to be gone", SOON, async || {
        let left = world.api.get(api::GATEWAY, namespace, name).await?;
        ensure!(left.is_none(), "it is there");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let_in(&b, &taken).await?;
    if let Some(fields) = again.as_object_mut() {
        fields.remove("status");
    }
    for field in [
        "uid",
        "resourceVersion",
        "managedFields",
        "creationTimestamp",
    ] {
        again["metadata"][field] = Value::Null;
    }
    world.api.create(api::GATEWAY, namespace, &again).await?;
    let away = started.elapsed();
    stage.gateway_served(namespace, name).await?;
    // Its address may be another one.
    let (of_a, of_b) = (
        a.target(world, wanted).await?,
        b.target(world, wanted).await?,
    );
    never_by(&of_b, &of_a).await?;
    stage
        .see(api::LISTENER_SET, &b.namespace, "old", |set| {
            let why = Some("HostnameConflict");
            conditions::of_listener(set, "site", "Conflicted", "True", why).map(drop)
        })
        .await?;
    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;
    ensure!(of_b.ask().await.is_err(), "the other one was answered");
    Ok(Verdict::noting(format!(
        "the Gateway was away for {} ms, and the name was its holder's again after {} ms",
        away.as_millis(),
        started.elapsed().as_millis()
    )))
}
