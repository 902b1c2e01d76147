//! An admin deletes the claim to a name, and takes a name from its holder.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::grants::site;
use crate::api::{self, text};
use crate::conditions;
use crate::load::Load;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::Stage;

const WANTED: &str = "wanted.taken.test";
/// New connections a second.
const RATE: u32 = 40;

/// A serves a name. An admin deletes its claim, and then all claims there are: they are written again, and B gets nothing
/// by it. Taken from B, which does
/// not hold it, the name goes nowhere. Taken from A it stays with A, not one connection of which fails, until B asks for
/// it: then B has it at once, although A's object is the older one, and A is told.
pub(in super::super) async fn an_admin_takes_a_name_from_its_holder(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    tokio::try_join!(stage.backend(&a, &[WANTED]), stage.backend(&b, &[WANTED]))?;
    a.kubectl.apply(&site(&a, "web", WANTED)).await?.must()?;
    let (of_a, of_b) = (
        a.target(world, WANTED).await?,
        b.target(world, WANTED).await?,
    );
    a.answers(&of_a).await?;
    let namespace = &*gateway.0;
    let claim = async || -> Result<Value> {
        let claims = world.api.list(api::HOSTNAME_CLAIM, namespace, "").await?;
        let mut wanted = claims
            .into_iter()
            .filter(|claim| text(claim, "/spec/hostname") == WANTED);
        wanted.next().context("no claim")
    };

    let load = Load::start(of_a.clone(), RATE);
    let meanwhile = async {
        let first = claim().await?;
        let name = text(&first, "/metadata/name");
        for which in [name, "--all"] {
            let before = claim().await?;
            let delete = ["delete", "-n", namespace, "hostnameclaims", which];
            world.kubectl.run(&delete).await?.must()?;
            until("the claim to be written again", SOON, async || {
                let after = claim().await?;
                let uid = |claim: &Value| text(claim, "/metadata/uid").to_owned();
                ensure!(
                    uid(&after) != uid(&before),
                    "it is the one that was deleted"
                );
                ensure!(
                    text(&after, "/spec/holder") == a.namespace,
                    "its holder is another one: {after}"
                );
                Ok(())
            })
            .await?;
        }
        let refused = b.kubectl.apply(&site(&b, "web", WANTED)).await?;
        let refused = refused.must_fail()?;
        ensure!(refused.contains(WANTED), "another reason: {refused}");

        let take_from = |holder: &str| format!("vestibule.dev/take-from={holder}");
        let annotate = async |holder: &str| {
            let from = take_from(holder);
            let arguments = ["annotate", "-n", namespace, "hostnameclaims", name, &from];
            world.kubectl.run(&arguments).await
        };
        let refused = annotate(&b.namespace).await?.must_fail()?;
        ensure!(
            refused.contains(&a.namespace),
            "it does not name the holder: {refused}"
        );
        annotate(&a.namespace).await?.must()?;
        // The webhook has to hear of it first.
        until("B's set to be let in", SOON, async || {
            let asked = site(&b, "web", WANTED).remove(0);
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            b.kubectl
                .feed(&dry, &asked.to_string())
                .await?
                .must()
                .map(drop)
        })
        .await
    }
    .await;
    let counts = load.stop().await?;
    meanwhile?;
    ensure!(counts.failed.is_empty(), "the holder: {counts}");

    b.kubectl.apply(&site(&b, "web", WANTED)).await?.must()?;
    b.answers(&of_b).await?;
    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            let why = Some("HostnameConflict");
            conditions::of_listener(set, "site", "Conflicted", "True", why)?;
            ensure!(
                !set["status"].to_string().contains(&b.namespace),
                "it names the holder"
            );
            Ok(())
        })
        .await?;
    let after = claim().await?;
    ensure!(
        text(&after, "/spec/holder") == b.namespace,
        "its holder is another one: {after}"
    );
    ensure!(
        after["metadata"]["annotations"]["vestibule.dev/take-from"].is_null(),
        "the annotation stays: {after}"
    );
    Ok(Verdict::noting(format!(
        "the holder, until another asked: {counts}"
    )))
}
