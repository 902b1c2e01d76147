//! What goes down while connections go on: operators, proxies, the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::api::{self, name, text};
use crate::client::Target;
use crate::clock;
use crate::load::{Hold, Load, burst, describe};
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{NAMESPACE, OPERATOR, PROXY, Stage, Team, World, is_ready};

/// New connections a second of the loads here.
const RATE: u32 = 50;

/// A team that is served, and its terminated hostname as a target.
pub(super) async fn served(stage: &Stage) -> Result<(Team, Target)> {
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let (terminated, passed) = (
        format!("t.{}.test", stage.name),
        format!("p.{}.test", stage.name),
    );
    stage.backend(&team, &[&terminated, &passed]).await?;
    team.kubectl
        .apply(&team.story(&terminated, &passed)?)
        .await?
        .must()?;
    team.served(stage).await?;
    let target = team.target(&stage.world, &terminated).await?;
    team.answers(&target).await?;
    Ok((team, target))
}

/// All operators are killed: traffic goes on. A proxy is deleted, too: once its endpoint is gone, 1,000
/// new connections succeed on the other one. The replacement stays unready until an operator is back.
pub(super) async fn without_operators_traffic_goes_on(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (_, target) = served(stage).await?;
    let load = Load::start(target.clone(), RATE);
    world.scale(OPERATOR, 0).await?;
    world.kill_all(OPERATOR).await?;
    until("no operator", SOON, async || {
        let left = world
            .api
            .list(api::POD, NAMESPACE, &World::selector(OPERATOR))
            .await?
            .len();
        ensure!(left == 0, "{left} operators");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let result = without_operators(world, &target, load).await;
    // Whatever came of it, the scenarios after this one need operators.
    world.scale(OPERATOR, 2).await?;
    let (mut notes, replacement) = result?;
    let started = Instant::now();
    world.all_ready().await?;
    let pods = world.pods(PROXY).await?;
    ensure!(
        pods.iter().any(|pod| name(pod) == replacement),
        "{replacement} was replaced again"
    );
    notes.push(format!(
        "all ready {:.1} s after the operators were told to come back",
        started.elapsed().as_secs_f64()
    ));
    Ok(Verdict::Passed(notes))
}

async fn without_operators(
    world: &World,
    target: &Target,
    load: Load,
) -> Result<(Vec<String>, String)> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let counts = load.stop().await?;
    ensure!(
        counts.failed.is_empty(),
        "while the operators died: {counts}"
    );
    let mut notes = vec![format!("operators killed: {counts}")];

    let pods = world.pods(PROXY).await?;
    let [victim, survivor] = pods.as_slice() else {
        bail!("{} proxies", pods.len());
    };
    world.api.kill_pod(NAMESPACE, name(victim)).await?;
    world.endpoint_gone(text(victim, "/status/podIP")).await?;
    let counts = burst(target, 1000, 20).await;
    ensure!(
        counts.failed.is_empty() && counts.ok == 1000,
        "on the other proxy: {counts}"
    );
    notes.push(format!("one proxy left: {counts}"));

    let replacement = until("the replacement to run", LATER, async || {
        let pods = world.pods(PROXY).await?;
        let new = pods
            .iter()
            .find(|pod| name(pod) != name(survivor) && name(pod) != name(victim));
        let new = new.context("there is none")?;
        let running = text(new, "/status/phase") == "Running";
        ensure!(running, "it is {}", text(new, "/status/phase"));
        Ok::<_, anyhow::Error>(name(new).to_owned())
    })
    .await?;
    // It has nothing to serve, and keeps saying so.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(6) {
        let pod = world
            .api
            .must_get(api::POD, NAMESPACE, &replacement)
            .await?;
        ensure!(
            !is_ready(&pod),
            "the replacement is ready without an operator"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let counts = burst(target, 200, 10).await;
    ensure!(
        counts.failed.is_empty(),
        "beside an unready proxy: {counts}"
    );
    Ok((notes, replacement))
}

/// Waits until former scenarios have left nothing that goes later: the proxies would hear of it.
async fn former_are_gone(world: &World) -> Result<()> {
    const CALM: SignedDuration = SignedDuration::from_secs(2);
    until("what was before to be gone", LATER, async || {
        let since = clock::now() - CALM;
        let mut there = BTreeSet::new();
        for namespace in world.api.list(api::NAMESPACE, "", "").await? {
            let going = namespace.pointer("/metadata/deletionTimestamp").is_some();
            ensure!(!going, "{} is on its way", name(&namespace));
            there.insert(name(&namespace).to_owned());
        }
        // Names that were held are free after a grace.
        for claim in world.api.list(api::HOSTNAME_CLAIM, "", "").await? {
            let holder = text(&claim, "/spec/holder");
            let unused = claim.pointer("/spec/unusedSince").is_some();
            ensure!(
                !unused && there.contains(holder),
                "{} of {holder} is not free yet",
                name(&claim)
            );
        }
        let applied = entries_applied(world, since).await?;
        ensure!(applied.entries == 0, "{} entries just now", applied.entries);
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// The leader alone is killed: a follower takes over, no proxy reads again what it has, no status flaps.
pub(super) async fn a_follower_takes_over(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (team, target) = served(stage).await?;
    former_are_gone(world).await?;
    let before = statuses(world).await?;
    let began = clock::now();
    let leader = world.leader().await?;
    let load = Load::start(target.clone(), RATE);
    let started = Instant::now();
    world.api.kill_pod(NAMESPACE, &leader).await?;
    until("a follower to take over", LATER, async || {
        let now = world.leader().await?;
        ensure!(now != leader, "still {leader}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let taken = started.elapsed();
    world.ready(OPERATOR, 2).await?;
    let counts = load.stop().await?;
    ensure!(
        counts.failed.is_empty(),
        "while leadership changed: {counts}"
    );
    let changed = changes(&before, &statuses(world).await?);
    ensure!(
        changed.is_empty(),
        "statuses changed with the leader: {changed:?}"
    );
    let sent = until(
        "both proxies to hear of the new leader",
        LATER,
        async || {
            let sent = entries_applied(world, began).await?;
            ensure!(sent.batches > 1, "{} batches", sent.batches);
            Ok::<_, anyhow::Error>(sent)
        },
    )
    .await?;
    ensure!(
        sent.entries == 0,
        "proxies read {} entries again",
        sent.entries
    );

    // The follower leads: an edit gets through to the proxies and into its status.
    let started = Instant::now();
    team.kubectl
        .apply(&team.story("t2.takeover.test", "p2.takeover.test")?)
        .await?
        .must()?;
    team.served(stage).await?;
    Ok(Verdict::Passed(vec![
        format!(
            "another holder of the Lease after {:.1} s",
            taken.as_secs_f64()
        ),
        format!(
            "meanwhile {counts}; {} batches with 0 entries",
            sent.batches
        ),
        format!(
            "an edit under it: statuses complete after {:.1} s",
            started.elapsed().as_secs_f64()
        ),
    ]))
}

/// Statuses of everything of ours by object, without what is not a status.
async fn statuses(world: &World) -> Result<BTreeMap<String, Value>> {
    let mut statuses = BTreeMap::new();
    for kind in [
        api::GATEWAY_CLASS,
        api::GATEWAY,
        api::LISTENER_SET,
        api::TLS_ROUTE,
    ] {
        for object in world.api.list(kind, "", "").await? {
            let key = format!(
                "{kind:?} {}/{}",
                text(&object, "/metadata/namespace"),
                name(&object)
            );
            // The resource version tells a write that wrote the same, too.
            let seen = serde_json::json!([object["status"], object["metadata"]["resourceVersion"]]);
            statuses.insert(key, seen);
        }
    }
    Ok(statuses)
}

fn changes(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<String> {
    before
        .iter()
        .filter(|(key, status)| after.get(*key) != Some(*status))
        .map(|(key, _)| key.clone())
        .collect()
}

/// What the proxies took from their streams.
#[derive(Default)]
struct Applied {
    batches: usize,
    entries: u64,
}

/// What the proxies' logs say that they took since then; the release under test logs it.
async fn entries_applied(world: &World, began: Timestamp) -> Result<Applied> {
    let mut applied = Applied::default();
    let since = format!("--since-time={began}");
    for pod in world.pods(PROXY).await? {
        let log = ["logs", name(&pod), "-n", NAMESPACE, &since];
        for line in world.kubectl.run(&log).await?.must()?.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let field = |name: &str| {
                line.pointer(&format!("/fields/{name}"))
                    .or_else(|| line.get(name))
            };
            // The kubelet knows whole seconds only.
            let at: Timestamp = text(&line, "/timestamp").parse().context("timestamp")?;
            if at < began {
                continue;
            }
            if field("message").and_then(Value::as_str) == Some("the proxy has applied a batch") {
                applied.batches += 1;
                applied.entries += field("entries")
                    .and_then(Value::as_u64)
                    .context("no entries")?;
            }
        }
    }
    Ok(applied)
}

/// A proxy that is killed under load breaks its own connections and no other.
pub(super) async fn a_killed_proxy_breaks_its_own_connections_only(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let (_, target) = served(stage).await?;
    let pods = world.ready(PROXY, 2).await?;
    let hold = Hold::open(&target, 100)
        .await
        .map_err(|f| anyhow!("{f:?}"))?;
    let by_proxy = hold.by_proxy();
    ensure!(by_proxy.len() == 2, "held connections are on {by_proxy:?}");
    let [victim, _] = pods.as_slice() else {
        bail!("{} proxies", pods.len());
    };
    let address = text(victim, "/status/podIP").to_owned();
    let own = by_proxy.get(address.as_str()).copied().unwrap_or_default();
    let load = Load::start(target.clone(), RATE);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.api.kill_pod(NAMESPACE, name(victim)).await?;
    world.endpoint_gone(&address).await?;
    let gone = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let counts = load.stop().await?;
    let ends = hold.finish().await?;
    world.ready(PROXY, 2).await?;
    let others: Vec<_> = ends.iter().filter(|end| end.via != address).collect();
    let broken = others.iter().filter(|end| end.failure.is_some()).count();
    ensure!(
        broken == 0,
        "{broken} of {} connections of the other proxy broke",
        others.len()
    );
    ensure!(
        counts.failed_after(gone) == 0,
        "after the endpoint was gone: {counts}"
    );
    Ok(Verdict::Passed(vec![
        format!(
            "held: {own} on the killed proxy, {} on the other; ends: {}",
            others.len(),
            describe(&ends)
        ),
        format!("new, at {RATE} a second: {counts}; none failed once the endpoint was gone"),
    ]))
}

/// The API server is gone for a minute: no connection fails.
pub(super) async fn the_api_server_is_gone_for_a_minute(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (a, target) = served(stage).await?;
    let b = stage.team("b", &a.gateway).await?;
    let (terminated, passed) = ("t.back.test", "p.back.test");
    stage.backend(&b, &[terminated, passed]).await?;
    let hold = Hold::open(&target, 50)
        .await
        .map_err(|f| anyhow!("{f:?}"))?;
    let load = Load::start(target.clone(), RATE);
    let started = Instant::now();
    world.fault(&["api-down", "60"]).await?.must()?;
    let gone = started.elapsed();
    until("the API server", LATER, async || {
        let ready = ["get", "--raw", "/readyz", "--request-timeout=2s"];
        world.kubectl.run(&ready).await?.must().map(drop)
    })
    .await?;
    // What happens when it is back must not break anything either.
    world.all_ready().await?;
    // The nodes take up to a minute until they lead pods to the API server again.
    let answers = clock::now();
    until("the operators to reach the API server", LATER, async || {
        let renewed = world.leader_renewed().await?;
        ensure!(renewed > answers, "the Lease was renewed at {renewed}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    b.kubectl
        .apply(&b.story(terminated, passed)?)
        .await?
        .must()?;
    b.served(stage).await?;
    b.answers(&b.target(world, terminated).await?).await?;
    let back = started.elapsed();
    let counts = load.stop().await?;
    let ends = hold.finish().await?;
    ensure!(counts.failed.is_empty(), "{counts}");
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "held connections: {}",
        describe(&ends)
    );
    Ok(Verdict::Passed(vec![
        format!(
            "API server away for {:.0} s, an edit served after {:.0} s",
            gone.as_secs_f64(),
            back.as_secs_f64()
        ),
        format!("{counts}; held: {}", describe(&ends)),
    ]))
}
