//! A whole hostname that two teams share, and the end of sharing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::paths::{HOST, Scene, attached, path};
use crate::api::{self, text};
use crate::runner::Verdict;
use crate::scenarios::admission::passing_set;
use crate::traffic::Clients;
use crate::wait::{SOON, until};
use crate::world::Stage;

/// A holds a hostname, and a grant shares all of it with B: the rules of both merge, and B holds nothing by it. When the
/// grant shares only a path, B keeps what lies inside; when the grant goes, B has nothing, its route says so and stays
/// editable, and A serves all of the name again. Not one of A's requests fails meanwhile. Shared once more, B goes on
/// after A's route is gone.
pub(in super::super) async fn a_hostname_is_shared_for_as_long_as_a_grant_says(
    stage: &Stage,
) -> Result<Verdict> {
    let scene = Scene::open(stage).await?;
    let (world, a, b) = (&stage.world, &scene.a, &scene.b);
    let whole = json!({"sharedHostnames": [HOST]});
    scene.share(&whole).await?;
    scene.apply(a, "rest", &path("PathPrefix", "/")).await?;
    scene.answered("/", a).await?;
    let rules = [
        ("docs", path("PathPrefix", "/docs")),
        ("exact", path("Exact", "/about")),
        ("regex", path("RegularExpression", "/[a-z]+[.]html")),
    ];
    for (name, of) in &rules {
        // The webhook hears of the grant by a watch of its own.
        until("B's route to be let in", SOON, async || {
            scene.apply(b, name, of).await
        })
        .await?;
        scene.accepted(b, name).await?;
    }
    for asked in ["/docs/deep", "/about", "/index.html"] {
        scene.answered(asked, b).await?;
    }
    let refused = b.kubectl.apply(&[passing_set(b, "web", HOST)]).await?;
    let message = refused.must_fail()?;
    ensure!(message.contains(HOST), "another reason: {message}");
    held_by_a(&scene).await?;

    let mut clients = Clients::new();
    clients.stay(&scene.origin(), Duration::from_millis(20));
    let ended = async {
        scene
            .share(&json!({"sharedPaths": [{"hostname": HOST, "paths": ["/docs"]}]}))
            .await?;
        for name in ["exact", "regex"] {
            scene.refused(name).await?;
        }
        scene.answered("/about", a).await?;
        scene.answered("/index.html", a).await?;
        scene.answered("/docs/deep", b).await?;

        let started = Instant::now();
        world
            .api
            .delete(api::HOSTNAME_GRANT, &scene.platform, &b.namespace)
            .await?;
        scene.answered("/docs/deep", a).await?;
        let took = started.elapsed();
        scene.refused("docs").await?;
        // What lost the name can be edited; nothing new gets in.
        scene
            .apply(b, "docs", &path("PathPrefix", "/docs/v2"))
            .await?;
        until("the refusal of a new route", SOON, async || {
            let new = attached(b, "new", &path("PathPrefix", "/new")).to_string();
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            let message = b.kubectl.feed(&dry, &new).await?.must_fail()?;
            ensure!(
                !message.contains(&a.namespace),
                "it names the holder: {message}"
            );
            Ok(())
        })
        .await?;
        held_by_a(&scene).await?;
        Ok::<_, anyhow::Error>(took)
    }
    .await;
    let tallies = clients.stop().await?;
    let took = ended?;
    ensure!(tallies.failed() == 0, "the holder: {tallies}");

    // The holder's route goes: B serves what its rules match, and nobody the rest.
    scene.share(&whole).await?;
    scene.answered("/docs/v2", b).await?;
    scene.delete(a, "rest").await?;
    until("the holder's route to be gone", SOON, async || {
        let got = scene.got("/").await?;
        ensure!(got.status == 404, "it is {got}");
        Ok(())
    })
    .await?;
    scene.answered("/docs/v2", b).await?;
    held_by_a(&scene).await?;
    Ok(Verdict::Passed(vec![
        format!(
            "grant gone: the holder's again after {} ms",
            took.as_millis()
        ),
        format!("the holder, while sharing was narrowed and ended: {tallies}"),
    ]))
}

/// Checks that the record names A alone as holder of the hostname, and nobody who shares it. When A has let go, the
/// record still names A until the grace is over.
async fn held_by_a(scene: &Scene<'_>) -> Result<()> {
    let api = &scene.stage.world.api;
    let claims = api.list(api::HOSTNAME_CLAIM, &scene.platform, "").await?;
    for claim in claims {
        if text(&claim, "/spec/hostname") == HOST {
            ensure!(
                text(&claim, "/spec/holder") == scene.a.namespace,
                "its holder is another one: {claim}"
            );
        }
    }
    Ok(())
}
