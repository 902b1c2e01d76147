//! Proxies under attack: how much of their memory they use, and that another team does not notice.

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use crate::api::{self, name};
use crate::attacks::Kind;
use crate::client::{Failure, Target};
use crate::conditions;
use crate::echo::{LARGE, LARGE_BYTES};
use crate::load::Load;
use crate::manifests;
use crate::memory::Memory;
use crate::proxies::{Door, doors};
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{NAMESPACE, PROXY, Stage, Team, World};

/// The memory limit of the proxies meanwhile, in MiB: an eighth of the chart's.
const LIMIT: u64 = 256;
const MIB: u64 = 1024 * 1024;
/// Connections to each proxy in the attacks that need few, at most. An eighth of the chart's limit has an eighth of the
/// fifty connections that `docs/limits.md` counts with, rounded up. Each of their hundred requests has a connection to
/// the backend.
const FEW: usize = 7;
/// Pages that the kernel needs for the two ends of those hundred connections (ADR 27).
const PAGES: usize = 100 * 64;
/// Connections to all proxies together in the attacks that need many.
const MANY: usize = 2000;
/// New connections a second of the neighbour.
const RATE: u32 = 20;

/// The proxies run with a small memory limit while one team's hostname is attacked in five ways. They stay below the
/// limit, and every connection of another team is answered.
pub(super) async fn proxies_stay_below_their_memory_limit(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (neighbour, target) = super::faults::served(stage).await?;
    let team = stage.team("b", &neighbour.gateway).await?;
    let host = format!("www.{}.test", stage.name);
    site(stage, &team, &host).await?;
    let result = limited(world, &team, &host, target).await;
    // Whatever came of it, the scenarios after this one need the limit of the chart.
    let restored = restored(world).await;
    let notes = result?;
    restored?;
    Ok(Verdict::Passed(notes))
}

/// Installs the chart as it was.
async fn restored(world: &World) -> Result<()> {
    world.install(&[]).await?.must()?;
    world.only(PROXY, 2).await?;
    Ok(())
}

/// Serves a hostname of a team by HTTPS.
async fn site(stage: &Stage, team: &Team, host: &str) -> Result<()> {
    stage.backend(team, &[host]).await?;
    let space = &team.namespace;
    let leaf = team.authority.leaf(&[host])?;
    let listener = manifests::https_listener("site", host, "site-tls");
    let parent = manifests::to_listener_set("web", None);
    let objects = [
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::listener_set(space, "web", team.parent(), &[listener]),
        manifests::http_route(space, "site", &parent, host, ("web", 80)),
    ];
    team.kubectl.apply(&objects).await?.must()?;
    stage
        .see(api::LISTENER_SET, space, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;
    stage
        .see(api::HTTP_ROUTE, space, "site", conditions::is_attached)
        .await?;
    Ok(())
}

/// Attacks proxies that have the small limit.
async fn limited(world: &World, team: &Team, host: &str, target: Target) -> Result<Vec<String>> {
    let limit = format!("proxy.resources.limits.memory={LIMIT}Mi");
    world.install(&["--set", &limit]).await?.must()?;
    let proxies = world.only(PROXY, 2).await?;
    let doors = doors(world, team.parent(), 443).await?;
    ensure!(
        doors.len() == proxies.len(),
        "a proxy is not ready any more"
    );
    for door in &doors {
        for version in [Version::One, Version::Two] {
            let roots = team.authority.roots()?;
            answers(&Origin::tls(door.address, host, roots, version)).await?;
        }
    }
    let load = Load::start(target, RATE);
    let attacked = attack(team, host, &doors).await;
    let counts = load.stop().await?;
    // A proxy that was killed is why everything else went wrong.
    let mut notes = Vec::new();
    for proxy in &proxies {
        notes.push(stayed_below(world, proxy).await?);
    }
    notes.extend(attacked?);
    ensure!(counts.failed.is_empty(), "of another team: {counts}");
    notes.push(format!("of another team meanwhile: {counts}"));
    Ok(notes)
}

/// Waits until the long answer comes. Without it, the attacks would show nothing.
async fn answers(origin: &Origin) -> Result<()> {
    let ask = async || origin.open().await?.ask(LARGE).await;
    until("the long answer", SOON, async || {
        let got = ask()
            .await
            .map_err(|failure: Failure| anyhow!("{failure:?}"))?;
        ensure!(
            got.body_length() == LARGE_BYTES,
            "{} bytes",
            got.body_length()
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Makes one attack after another, each on all proxies at the same time. Returns a line about each.
async fn attack(team: &Team, host: &str, doors: &[Door]) -> Result<Vec<String>> {
    let roots = team.authority.roots()?;
    let mut notes = Vec::new();
    for kind in Kind::ALL {
        let origin = |door: &Door| Origin::tls(door.address, host, roots.clone(), kind.version());
        let origins: Vec<Origin> = doors.iter().map(origin).collect();
        let each = match kind {
            Kind::SlowRead | Kind::RapidReset | Kind::Bodies => few_connections(origins.len()),
            Kind::Idle | Kind::SlowHello => many_connections() / origins.len(),
        };
        let all = each * origins.len();
        let stood = kind.attack(&origins, each).await;
        ensure!(stood > 0, "{kind:?}: none of {all} connections stood");
        notes.push(format!("{kind:?}: {stood} of {all} connections stood"));
    }
    Ok(notes)
}

/// [`FEW`], or fewer where all of them would need more than a quarter of what the kernel may have for TCP before it comes
/// under pressure: from then on, it drops segments of everybody.
fn few_connections(proxies: usize) -> usize {
    let pages = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
    let pages: Option<usize> = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(FEW, |pages| FEW.min(pages / 4 / (proxies * PAGES)).max(1))
}

/// [`MANY`], or fewer where this process would need more than half of the files that it may open.
fn many_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files: Option<usize> = limits.lines().find_map(|line| {
        let files = line.strip_prefix("Max open files")?;
        files.split_whitespace().next()?.parse().ok()
    });
    MANY.min(files.unwrap_or(1024) / 2)
}

/// Checks that a proxy's container was not restarted and was below its limit all the time. Returns a line about it.
async fn stayed_below(world: &World, proxy: &Value) -> Result<String> {
    const RESTARTS: &str = "/status/containerStatuses/0/restartCount";
    let pod = name(proxy);
    let now = world.api.must_get(api::POD, NAMESPACE, pod).await?;
    ensure!(
        now.pointer(RESTARTS) == proxy.pointer(RESTARTS),
        "{pod} was restarted"
    );
    let memory = Memory::of(world, proxy).await?;
    ensure!(
        memory.limit == LIMIT * MIB,
        "{pod} has a limit of {} bytes",
        memory.limit
    );
    ensure!(memory.kills == 0, "{pod}: {memory:?}");
    let Some(peak) = memory.peak else {
        return Ok(format!(
            "{pod}: no kill at {LIMIT} MiB; this kernel keeps no peak"
        ));
    };
    ensure!(peak < memory.limit, "{pod}: {memory:?}");
    Ok(format!("{pod}: at most {} of {LIMIT} MiB", peak / MIB))
}
