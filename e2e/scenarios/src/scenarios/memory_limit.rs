//! Proxies under attack: how much of their memory they use, and that another team does not notice.

use anyhow::{Result, anyhow, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::api::{self, name};
use crate::attacks::{Kind, Site};
use crate::client::{Failure, Target};
use crate::conditions;
use crate::echo::{LARGE, LARGE_BYTES};
use crate::load::Load;
use crate::manifests::{self, Mode};
use crate::memory::Memory;
use crate::proxies::{Door, doors};
use crate::requests::Origin;
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
/// Connections to each proxy whose readers stop, at most: an eighth of two hundred. The pages of one are what may wait
/// for it in the proxy's two sockets, and in those of the client and of the backend.
const STOPPED: usize = 25;
const STOPPED_PAGES: usize = 2048;
/// Connections with a hundred large heads to each proxy, at most, and how many are made at a time. Each of them holds
/// several MB, so about half as many bring a proxy to the first overload step.
const HEADS: usize = 80;
const HEADS_AT_ONCE: usize = 4;
/// The overload step that a proxy has taken (`docs/limits.md`).
const STEP: &str = "vestibule_proxy_overload_step";
/// Connections to all proxies together in the attacks that need many.
const MANY: usize = 2000;
/// New connections a second of the neighbour.
const RATE: u32 = 20;

/// The proxies run with a small memory limit while one team's hostnames are attacked in several ways. They stay below
/// the limit, the last attack makes them take an overload step, and every connection of another team is answered.
pub(super) async fn proxies_stay_below_their_memory_limit(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let (neighbour, target) = super::faults::served(stage).await?;
    let team = stage.team("b", &neighbour.gateway).await?;
    serve(stage, &team).await?;
    let result = limited(stage, &team, target).await;
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

/// The hostname of a stage that is attacked.
fn host(stage: &Stage, site: Site) -> String {
    format!("{}.{}.test", site.label(), stage.name)
}

/// The hostname of a kind of attack, at a proxy.
fn origin(stage: &Stage, team: &Team, door: &Door, kind: Kind) -> Result<Origin> {
    let roots = team.authority.roots()?;
    let host = host(stage, kind.site());
    Ok(Origin::tls(door.address, &host, roots, kind.version()))
}

/// Serves the hostnames that are attacked, with one backend behind all of them.
async fn serve(stage: &Stage, team: &Team) -> Result<()> {
    let [web, h2c, rsa, pass] = Site::ALL.map(|site| host(stage, site));
    stage.backend(team, &[&web, &pass]).await?;
    let space = &team.namespace;
    // The same port in HTTP/2: the client's first bytes tell.
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "h2c", "namespace": space},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080, "appProtocol": "kubernetes.io/h2c"}],
        },
    });
    let leaf = team.authority.leaf(&[&web, &h2c])?;
    let slow = team.authority.rsa_leaf(&[&rsa])?;
    let listeners = [
        manifests::https_listener("www", &web, "site-tls"),
        manifests::https_listener("h2c", &h2c, "site-tls"),
        manifests::https_listener("rsa", &rsa, "rsa-tls"),
        manifests::listener("pass", &pass, Mode::Passthrough),
    ];
    let to = |listener| manifests::to_listener_set("web", Some(listener));
    let objects = [
        service,
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::tls_secret(space, "rsa-tls", &slow.chain, &slow.key),
        manifests::listener_set(space, "web", team.parent(), &listeners),
        manifests::http_route(space, "www", &to("www"), &web, ("web", 80)),
        manifests::http_route(space, "h2c", &to("h2c"), &h2c, ("h2c", 80)),
        manifests::http_route(space, "rsa", &to("rsa"), &rsa, ("web", 80)),
        manifests::tls_route(space, "pass", &to("pass"), &pass, ("web", 443)),
    ];
    team.kubectl.apply(&objects).await?.must()?;
    stage
        .see(api::LISTENER_SET, space, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;
    let routes = [
        (api::HTTP_ROUTE, "www"),
        (api::HTTP_ROUTE, "h2c"),
        (api::HTTP_ROUTE, "rsa"),
        (api::TLS_ROUTE, "pass"),
    ];
    for (kind, route) in routes {
        stage
            .see(kind, space, route, conditions::is_attached)
            .await?;
    }
    Ok(())
}

/// Attacks proxies that have the small limit.
async fn limited(stage: &Stage, team: &Team, target: Target) -> Result<Vec<String>> {
    let world = &stage.world;
    let limit = format!("proxy.resources.limits.memory={LIMIT}Mi");
    world.install(&["--set", &limit]).await?.must()?;
    let proxies = world.only(PROXY, 2).await?;
    let doors = doors(world, team.parent(), 443).await?;
    ensure!(
        doors.len() == proxies.len(),
        "a proxy is not ready any more"
    );
    for door in &doors {
        for kind in Kind::CROWDS {
            answers(&origin(stage, team, door, kind)?).await?;
        }
    }
    let load = Load::start(target, RATE);
    let attacked = attack(stage, team, &doors).await;
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
async fn attack(stage: &Stage, team: &Team, doors: &[Door]) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for kind in Kind::CROWDS {
        let origins = doors.iter().map(|door| origin(stage, team, door, kind));
        let origins = origins.collect::<Result<Vec<_>>>()?;
        let each = match kind {
            Kind::Idle | Kind::SlowHello => many_connections() / origins.len(),
            // Each of them costs a signature.
            Kind::Handshakes => many_connections() / 4 / origins.len(),
            Kind::StoppedReader => few_connections(STOPPED, STOPPED_PAGES, origins.len()),
            _ => few_connections(FEW, PAGES, origins.len()),
        };
        let all = each * origins.len();
        let stood = kind.attack(&origins, each).await;
        ensure!(stood > 0, "{kind:?}: none of {all} connections stood");
        notes.push(format!("{kind:?}: {stood} of {all} connections stood"));
    }
    let overloads = doors.iter().map(|door| overload(stage, team, door));
    notes.extend(try_join_all(overloads).await?);
    Ok(notes)
}

/// Makes connections with large heads to a proxy, a few at a time, until it takes an overload step. Only the last step
/// ends requests that wait for a backend, and only after 30 s, so more connections could go beyond the limit. Returns a line
/// about it.
async fn overload(stage: &Stage, team: &Team, door: &Door) -> Result<String> {
    let kind = Kind::LargeHeads;
    let origin = origin(stage, team, door, kind)?;
    until(
        "the overload of the attacks before to end",
        SOON,
        async || {
            let step = door.metric(STEP).await?;
            ensure!(step == 0.0, "{} is at step {step}", door.pod);
            Ok::<_, anyhow::Error>(())
        },
    )
    .await?;
    let mut held = Vec::new();
    loop {
        let (step, count, pod) = (door.metric(STEP).await?, held.len(), &door.pod);
        if step > 0.0 {
            return Ok(format!(
                "{kind:?}: {pod} took step {step} at {count} connections"
            ));
        }
        ensure!(
            count < HEADS,
            "{kind:?}: {pod} took no overload step at {count} connections"
        );
        let more = (0..HEADS_AT_ONCE).map(|_| kind.alone(&origin));
        held.extend(try_join_all(more).await?);
    }
}

/// So many connections to each proxy, or fewer where all of them would need more than a quarter of what the kernel may
/// have for TCP before it comes under pressure: from then on, it drops segments of everybody.
fn few_connections(most: usize, pages_of_one: usize, proxies: usize) -> usize {
    let pages = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
    let pages: Option<usize> = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(most, |pages| {
        most.min(pages / 4 / (proxies * pages_of_one)).max(1)
    })
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
