//! etcd is restored from a backup: nobody loses a name by it, and what is served goes on.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::api::{self, items, name, text};
use crate::load::Load;
use crate::runner::Verdict;
use crate::scenarios::handover::simple;
use crate::wait::{LATER, until};
use crate::world::{NAMESPACE, OPERATOR, Stage, Team, WEBHOOK, World};

/// New connections a second to what is served all the time.
const RATE: u32 = 20;
/// Writes between the backup and the restore, so that etcd is behind for some time afterwards, as after a real one.
const WRITES: usize = 4000;

/// After the backup a hostname goes from A to B. The restore brings A's listener back, and B's is gone. Operators and
/// webhooks notice, start anew, and A has its hostname again; its other one was served all the time.
pub(super) async fn etcd_is_restored_from_a_backup(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let [kept, moved] = ["kept", "moved"].map(|name| format!("{name}.{}.test", stage.name));
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let (of_a, of_b) = ([kept.as_str(), moved.as_str()], [moved.as_str()]);
    tokio::try_join!(stage.backend(&a, &of_a), stage.backend(&b, &of_b))?;
    for (name, hostname) in [("kept", &kept), ("moved", &moved)] {
        a.kubectl.apply(&simple(&a, name, hostname)).await?.must()?;
        a.answers(&a.target(world, hostname).await?).await?;
        holds(stage, &a, hostname).await?;
    }

    world.fault(&["etcd-backup"]).await?.must()?;
    world.all_ready().await?;
    a.api
        .delete(api::LISTENER_SET, &a.namespace, "moved")
        .await?;
    until("B to be let in", LATER, async || {
        b.kubectl.apply(&simple(&b, "moved", &moved)).await?.must()
    })
    .await?;
    holds(stage, &b, &moved).await?;
    for number in 0..WRITES {
        let change =
            json!({"metadata": {"annotations": {"vestibule-e2e/written": number.to_string()}}});
        world
            .api
            .patch(api::NAMESPACE, "", &b.namespace, &change)
            .await?;
    }

    let before = restarts(world).await?;
    let load = Load::start(a.target(world, &kept).await?, RATE);
    world.fault(&["etcd-restore"]).await?.must()?;
    until("operators and webhooks to start anew", LATER, async || {
        let now = restarts(world).await?;
        ensure!(
            now.len() == before.len(),
            "{} of {}",
            now.len(),
            before.len()
        );
        for (pod, count) in &now {
            let then = before.iter().find(|(name, _)| name == pod);
            let (_, then) = then.with_context(|| format!("{pod} is new"))?;
            ensure!(count > then, "{pod} goes on");
        }
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    world.all_ready().await?;
    holds(stage, &a, &moved).await?;
    a.answers(&a.target(world, &moved).await?).await?;
    let counts = load.stop().await?;
    ensure!(counts.failed.is_empty(), "over the restore: {counts}");
    Ok(Verdict::Passed(vec![format!("over the restore: {counts}")]))
}

/// Waits until the record says that the team holds the hostname.
async fn holds(stage: &Stage, team: &Team, hostname: &str) -> Result<()> {
    until("the holder", LATER, async || {
        let claims = stage
            .world
            .api
            .list(api::HOSTNAME_CLAIM, &team.gateway.0, "")
            .await?;
        let claim = claims
            .iter()
            .find(|claim| text(claim, "/spec/hostname") == hostname);
        let holder = text(claim.context("nobody has it")?, "/spec/holder");
        ensure!(holder == team.namespace, "{holder} has it");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// How often the container of each operator and webhook was started again.
async fn restarts(world: &World) -> Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    for component in [OPERATOR, WEBHOOK] {
        let pods = world
            .api
            .list(api::POD, NAMESPACE, &World::selector(component))
            .await?;
        for pod in &pods {
            let statuses = items(pod, "/status/containerStatuses");
            let counts = statuses
                .iter()
                .filter_map(|of| of.get("restartCount")?.as_u64());
            all.push((name(pod).to_owned(), counts.sum()));
        }
    }
    Ok(all)
}
