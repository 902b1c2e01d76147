//! The admission server while it is rolled, gets another certificate, another authority, loses a replica, is attacked,
//! is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use super::admission::passing_set;
use super::authority::{self, touch};
use crate::api::{self, items, name, text};
use crate::applies::Applies;
use crate::conditions;
use crate::hostile;
use crate::load::Load;
use crate::manifests;
use crate::runner::Verdict;
use crate::tools::run;
use crate::wait::{LATER, SOON, until};
use crate::world::{EXEMPT, NAMESPACE, Stage, Team, WEBHOOK, World};

/// Applies a second.
const APPLIES: u32 = 20;
/// Hostile requests a second, and for how many.
const ATTACKS: u32 = 200;
const ATTACKED: u64 = 10;
/// New connections a second to what is served meanwhile.
const RATE: u32 = 50;

/// Under twenty applies a second the pods are rolled, the certificate is exchanged, the authority is, a pod is deleted:
/// each apply gets its verdict. A pod is killed: each apply gets it when it is applied again.
pub(super) async fn webhook_fails_no_apply_whatever_happens_to_one_of_its_pods(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let mut notes = Vec::new();

    let applies = Applies::start(&team, "rolled.test", APPLIES);
    let result = roll(world).await;
    let counts = applies.stop().await?;
    notes.push(format!("rolled: {counts}"));
    result?;
    counts.must("rolled")?;

    let applies = Applies::start(&team, "exchanged.test", APPLIES);
    let result = exchange(world).await;
    let counts = applies.stop().await?;
    notes.push(format!("another certificate: {counts}"));
    result?;
    counts.must("another certificate")?;

    let applies = Applies::start(&team, "signed.test", APPLIES);
    let result = authority::exchange(world, async |root| signed_by(world, root).await).await;
    let counts = applies.stop().await?;
    let trusted = result?;
    notes.push(format!("another authority, {trusted} trusted: {counts}"));
    counts.must("another authority")?;
    // The proxies follow an operator whose certificate is by the new one, too.
    let after = passing_set(&team, "after", "after.rolled.test");
    team.kubectl.apply(&[after]).await?.must()?;
    stage
        .see(api::LISTENER_SET, &team.namespace, "after", |set| {
            conditions::is_served(set, 0)
        })
        .await?;

    let applies = Applies::start(&team, "deleted.test", APPLIES);
    let result = lose_one(world, "30").await;
    let counts = applies.stop().await?;
    notes.push(format!("a pod deleted: {counts}"));
    result?;
    counts.must("a pod deleted")?;

    let applies = Applies::start_persistent(&team, "killed.test", APPLIES);
    let result = lose_one(world, "0").await;
    let counts = applies.stop().await?;
    notes.push(format!("a pod killed: {counts}"));
    result?;
    counts.must("a pod killed")?;
    Ok(Verdict::Passed(notes))
}

async fn roll(world: &World) -> Result<()> {
    let deployment = world.component(WEBHOOK);
    let before = generation_seen(world, &deployment).await?;
    let restart = [
        "rollout",
        "restart",
        "deployment",
        &deployment,
        "-n",
        NAMESPACE,
    ];
    world.kubectl.run(&restart).await?.must()?;
    until("the rollout to end", LATER, async || {
        ensure!(rolled(world, &deployment, before).await?, "not yet");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    world.ready(WEBHOOK, 2).await?;
    // The last old endpoint is gone from the nodes a moment later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// The serving certificate's Secret is deleted: the operator makes another, and every pod shows it.
async fn exchange(world: &World) -> Result<()> {
    let secret = format!("{}-tls", world.component(WEBHOOK));
    let before = served(world).await?;
    world.api.delete(api::SECRET, NAMESPACE, &secret).await?;
    until("another certificate", SOON, async || {
        world
            .api
            .must_get(api::SECRET, NAMESPACE, &secret)
            .await
            .map(drop)
    })
    .await?;
    // A kubelet looks at the Secrets of a pod about once a minute, or when the pod changes.
    touch(world, &[WEBHOOK]).await?;
    until("both pods to show it", LATER, async || {
        let now = served(world).await?;
        ensure!(
            now.len() == 1 && now.is_disjoint(&before),
            "{} certificates, {} of them as before",
            now.len(),
            now.intersection(&before).count()
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Certificates that the pods show.
async fn served(world: &World) -> Result<BTreeSet<Vec<u8>>> {
    let mut shown = BTreeSet::new();
    for pod in world.pods(WEBHOOK).await? {
        let connect = format!("{}:9443", text(&pod, "/status/podIP"));
        let done = run(
            "openssl".as_ref(),
            &["s_client", "-connect", &connect],
            &[],
            "",
        )
        .await?;
        let leaf = CertificateDer::from_pem_slice(done.stdout.as_bytes());
        shown.insert(leaf.context("no certificate")?.to_vec());
    }
    Ok(shown)
}

/// Checks that every pod shows a certificate by the authority in this file.
async fn signed_by(world: &World, root: &str) -> Result<()> {
    for pod in world.pods(WEBHOOK).await? {
        let connect = format!("{}:9443", text(&pod, "/status/podIP"));
        let words = [
            "s_client",
            "-connect",
            &connect,
            "-CAfile",
            root,
            "-verify_return_error",
        ];
        run("openssl".as_ref(), &words, &[], "").await?.must()?;
    }
    Ok(())
}

/// Deletes one of the pods, and waits for the next one. Without grace the process has a second to end in.
async fn lose_one(world: &World, grace: &str) -> Result<()> {
    let pods = world.ready(WEBHOOK, 2).await?;
    let victim = pods.first().context("no pod")?;
    let path = format!(
        "{}?gracePeriodSeconds={grace}",
        api::path(api::POD, NAMESPACE, name(victim))
    );
    world.api.delete_at(&path).await?;
    until("another pod", LATER, async || {
        let pods = world.ready(WEBHOOK, 2).await?;
        ensure!(
            pods.iter().all(|pod| name(pod) != name(victim)),
            "it is still there"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Two hundred requests a second that mean no good, from a pod, among them reviews that might be real, for just
/// the names that a team applies meanwhile: its applies get their verdicts all the same.
pub(super) async fn hostile_requests_harm_nobody_else(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let applies = Applies::start(&team, "calm.test", APPLIES);
    tokio::time::sleep(Duration::from_secs(ATTACKED / 2)).await;
    let mut notes = vec![format!("before: {}", applies.stop().await?)];
    let wanted = "attacked.test";
    let pod = hostile::pod(world, &team, wanted, ATTACKS, ATTACKED).await?;
    world.kubectl.apply(&[pod]).await?.must()?;
    let phase = async |wanted: &str| {
        until(&format!("the attack to be {wanted}"), LATER, async || {
            let pod = world
                .api
                .must_get(api::POD, &team.namespace, "hostile")
                .await?;
            let phase = text(&pod, "/status/phase");
            ensure!(phase == wanted || phase == "Succeeded", "it is {phase}");
            Ok::<_, anyhow::Error>(())
        })
        .await
    };
    phase("Running").await?;
    let applies = Applies::start(&team, wanted, APPLIES);
    let result = phase("Succeeded").await;
    let counts = applies.stop().await?;
    result?;
    let logs = ["logs", "hostile", "-n", &team.namespace];
    let answers = world.kubectl.run(&logs).await?.must()?;
    let answers: BTreeMap<String, u64> = serde_json::from_str(&answers)?;
    let attacks: u64 = answers.values().sum();
    notes.push(format!("meanwhile: {counts}"));
    notes.push(format!(
        "{attacks} hostile requests in {ATTACKED} s, by answer: {answers:?}"
    ));
    let forged = answers.get("forged 200").copied().unwrap_or_default();
    ensure!(forged > 0, "no forged review was answered: {answers:?}");
    counts.must("attacked")?;
    for pod in world.pods(WEBHOOK).await? {
        for container in items(&pod, "/status/containerStatuses") {
            ensure!(
                container["restartCount"] == 0,
                "{} was restarted",
                name(&pod)
            );
        }
    }
    Ok(Verdict::Passed(notes))
}

/// No replica is left: what tenants write of the guarded kinds is refused, and nothing else; traffic does not
/// notice.
pub(super) async fn without_webhooks_only_guarded_writes_are_refused(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let (team, target) = super::faults::served(stage).await?;
    let load = Load::start(target.clone(), RATE);
    world.scale(WEBHOOK, 0).await?;
    let result = without_webhooks(stage, &team).await;
    // Whatever came of it, the scenarios after this one need them.
    world.scale(WEBHOOK, 2).await?;
    world.ready(WEBHOOK, 2).await?;
    let counts = load.stop().await?;
    let refused = result?;
    ensure!(counts.failed.is_empty(), "meanwhile: {counts}");
    team.answers(&target).await?;
    // Back as it was.
    let set = passing_set(&team, "another", "another.no-webhook.test");
    until("an apply after it", SOON, async || {
        let set = std::slice::from_ref(&set);
        team.kubectl.apply(set).await?.must().map(drop)
    })
    .await?;
    Ok(Verdict::Passed(vec![
        format!("refused: {}", refused.trim().replace('\n', " ")),
        format!("meanwhile: {counts}"),
    ]))
}

async fn without_webhooks(stage: &Stage, team: &Team) -> Result<String> {
    let world = &stage.world;
    let space = &team.namespace;
    until("no webhook", LATER, async || {
        let selector = World::selector(WEBHOOK);
        let left = world.api.list(api::POD, NAMESPACE, &selector).await?.len();
        ensure!(left == 0, "{left} pods");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    // Guarded: a new set, an edit of one, a route, an issuer.
    let parent = manifests::to_listener_set("web", None);
    let mut refused = String::new();
    for object in [
        passing_set(team, "another", "another.no-webhook.test"),
        passing_set(team, "web", "edited.no-webhook.test"),
        manifests::tls_route(space, "more", &parent, "p.no-webhook.test", ("web", 443)),
        manifests::acme_issuer(
            space,
            "ca",
            "https://ca.example.com/dir",
            team.authority.root(),
            &[],
        ),
    ] {
        refused = team.kubectl.apply(&[object]).await?.must_fail()?;
        ensure!(
            refused.contains("failed calling webhook"),
            "refused for another reason: {refused}"
        );
    }

    // Everything else: labels and deletions of guarded kinds, kinds that are only advised on, all other kinds,
    // namespaces that are exempt, and what the operator writes.
    let label = json!({"metadata": {"labels": {"looked": "at"}}});
    team.api
        .patch(api::LISTENER_SET, space, "web", &label)
        .await?;
    let http = manifests::http_route(space, "plain", &parent, "p.no-webhook.test", ("web", 80));
    team.kubectl.apply(&[http]).await?.must()?;
    let settings = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": space},
    });
    world.kubectl.apply(&[settings]).await?.must()?;
    let gateway = json!({"metadata": {"labels": {"looked": "at"}}});
    world
        .api
        .patch(api::GATEWAY, &team.gateway.0, &team.gateway.1, &gateway)
        .await?;
    let mut set = passing_set(team, "exempt", "exempt.no-webhook.test");
    set["metadata"]["namespace"] = EXEMPT.into();
    world.kubectl.apply(&[set]).await?.must()?;
    world
        .api
        .delete(api::LISTENER_SET, EXEMPT, "exempt")
        .await?;
    team.api.delete(api::TLS_ROUTE, space, "passed").await?;
    stage
        .see(api::LISTENER_SET, space, "web", |set| {
            conditions::counts_routes(set, &[("terminated", 1), ("passed", 0)])
        })
        .await?;
    Ok(refused)
}

async fn generation_seen(world: &World, deployment: &str) -> Result<u64> {
    let object = world
        .api
        .must_get(api::DEPLOYMENT, NAMESPACE, deployment)
        .await?;
    object
        .pointer("/status/observedGeneration")
        .and_then(Value::as_u64)
        .context("no observed generation")
}

async fn rolled(world: &World, deployment: &str, before: u64) -> Result<bool> {
    if generation_seen(world, deployment).await? <= before {
        return Ok(false);
    }
    let selector = World::selector(WEBHOOK);
    let pods = world.api.list(api::POD, NAMESPACE, &selector).await?;
    let object = world
        .api
        .must_get(api::DEPLOYMENT, NAMESPACE, deployment)
        .await?;
    let count = |field: &str| {
        object
            .pointer(&format!("/status/{field}"))
            .and_then(Value::as_u64)
    };
    // Pods that are still terminating count, too: their endpoints are what a rollout can lose.
    Ok(pods.len() == 2
        && count("updatedReplicas") == Some(2)
        && count("availableReplicas") == Some(2))
}
