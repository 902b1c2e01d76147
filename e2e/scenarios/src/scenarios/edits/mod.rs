//! Nothing fails while anything changes: clients of every kind ask, while routes, Services, pods, endpoints,
//! certificates, sets, Gateways, policies and grants are edited and what serves them is restarted.
//!
//! Every edit leads from a configuration that serves what the clients ask for to another one that does, so each failed
//! request is a fault. Edits are in lanes: those of a lane follow one another and are made to the lane's own objects;
//! lanes do not share routes or pods, and may go on side by side.

mod platform;
mod pods;
mod restarts;
mod routes;
mod scene;

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::runner::{Verdict, print};
use crate::traffic::{Clients, Tallies};
use crate::world::Stage;
use scene::Scene;

/// How often each edit is made every day.
const EVERYDAY: usize = 5;
/// How often when it is asked for; the variable `VESTIBULE_EDITS` says otherwise.
const MANY: usize = 200;
/// The variable that names kinds of edits, separated by commas.
const KINDS: &str = "VESTIBULE_KINDS";
/// How long all kinds at once go on; the variable `VESTIBULE_MINUTES` says otherwise.
const MINUTES: u64 = 10;
/// What a client that stays waits between two requests: where lanes are side by side, and where there is one.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(2)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Routes,
    Pods,
    Platform,
    /// Made to what all lanes share, beside the clients of [`Lane::Routes`].
    Restarts,
}

type Edit = for<'a> fn(&'a Stage, &'a Scene, usize) -> LocalBoxFuture<'a, Result<()>>;

/// A kind of edit. The function makes the nth one, and waits until it is served or recorded.
struct Kind {
    name: &'static str,
    lane: Lane,
    edit: Edit,
}

macro_rules! kind {
    ($lane:ident, $name:literal, $function:path) => {
        Kind {
            name: $name,
            lane: Lane::$lane,
            edit: |_, scene, number| $function(scene, number).boxed_local(),
        }
    };
}

fn kinds() -> Vec<Kind> {
    vec![
        kind!(Routes, "route backend", routes::backend),
        kind!(Routes, "route port", routes::port),
        kind!(Routes, "route weights", routes::weights),
        kind!(Routes, "route filters", routes::filters),
        kind!(Routes, "route hostnames", routes::hostnames),
        kind!(Routes, "Service port", routes::service_port),
        kind!(Routes, "Service targetPort", routes::target_port),
        kind!(Pods, "pods rolled", pods::rolled),
        kind!(Pods, "pods scaled to 1 and back", pods::scaled),
        kind!(Pods, "pod deleted", pods::deleted),
        kind!(Platform, "EndpointSlices", platform::slices),
        kind!(Platform, "certificate", platform::certificate),
        kind!(Platform, "ListenerSets beside", platform::sets),
        Kind {
            name: "Gateway's listener",
            lane: Lane::Platform,
            edit: |stage, scene, number| {
                platform::gateway_listener(stage, scene, number).boxed_local()
            },
        },
        kind!(Platform, "BackendTLSPolicy", platform::backend_tls),
        kind!(Platform, "grants", platform::grants),
        kind!(Restarts, "proxies restarted", restarts::proxies),
        kind!(Restarts, "operators restarted", restarts::operators),
        kind!(Restarts, "API server restarted", restarts::api_server),
    ]
}

/// Edits of one kind, and the results of the requests meanwhile.
struct Row {
    name: &'static str,
    edits: usize,
    took: Duration,
    tallies: Tallies,
}

impl Row {
    fn line(&self) -> String {
        format!(
            "{:<26} {:>4} edits, {:>6.1} s: {}",
            self.name,
            self.edits,
            self.took.as_secs_f64(),
            self.tallies
        )
    }
}

/// Each kind of edit five times, three lanes at a time; then the proxies and the operators are restarted once. (The
/// API server is killed by `api-away`, proxies and operators by other scenarios, too.)
pub(super) async fn nothing_fails_while_anything_changes(stage: &Stage) -> Result<Verdict> {
    let scenes = Box::pin(Scenes::new(stage)).await?;
    let [beside, _] = PAUSES;
    let mut rows = scenes.run_beside(&[], EVERYDAY).await?;
    let names = ["proxies restarted", "operators restarted"];
    rows.extend(scenes.run(Lane::Restarts, &names, 1, beside).await?);
    verdict(&rows)
}

/// Each kind 200 times, three lanes at a time; then the restarts. This takes hours, so [`KINDS`] may name some of the
/// kinds.
pub(super) async fn each_edit_two_hundred_times(stage: &Stage) -> Result<Verdict> {
    let count = setting("VESTIBULE_EDITS", MANY)?;
    let asked = env::var(KINDS).unwrap_or_default();
    let names = asked.split(',').map(str::trim);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let known = kinds();
    for name in &names {
        let is_known = known.iter().any(|kind| kind.name == *name);
        ensure!(is_known, "{KINDS} names no kind of edit: {name:?}");
    }
    let scenes = Box::pin(Scenes::new(stage)).await?;
    let mut rows = scenes.run_beside(&names, count).await?;
    let [_, alone] = PAUSES;
    rows.extend(scenes.run(Lane::Restarts, &names, count, alone).await?);
    verdict(&rows)
}

/// All kinds in turn in every lane, and all lanes at once, for ten minutes.
pub(super) async fn everything_at_once_for_ten_minutes(stage: &Stage) -> Result<Verdict> {
    // A proxy ends, and the API server is away before its successor has started: for half of this time the ending one
    // serves its node. The default is five minutes, and other scenarios wait for the end of drains.
    stage
        .world
        .install(&["--set", "proxy.drainSeconds=60"])
        .await?
        .must()?;
    let verdict = everything_at_once(stage).await;
    stage.world.install(&[]).await?.must()?;
    verdict
}

async fn everything_at_once(stage: &Stage) -> Result<Verdict> {
    let scenes = Box::pin(Scenes::new(stage)).await?;
    let minutes = setting("VESTIBULE_MINUTES", MINUTES)?;
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    let clients = [Lane::Routes, Lane::Pods, Lane::Platform]
        .map(|lane| scenes.clients(lane, PAUSES[0], false));
    let made = tokio::try_join!(
        scenes.in_turn(Lane::Routes, until),
        scenes.in_turn(Lane::Pods, until),
        scenes.in_turn(Lane::Platform, until),
        scenes.in_turn(Lane::Restarts, until),
    );
    let mut tallies = Tallies::default();
    for clients in clients {
        tallies.merge(clients?.stop().await?);
    }
    let made = made?;
    let row = Row {
        name: "all at once",
        edits: made.0 + made.1 + made.2 + made.3,
        took: Duration::from_secs(minutes * 60),
        tallies,
    };
    verdict(&[row])
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> Result<T> {
    match env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text
            .parse()
            .ok()
            .with_context(|| format!("{name} is no number: {text}")),
    }
}

/// Passed, if no request failed; either way with all rows.
fn verdict(rows: &[Row]) -> Result<Verdict> {
    let lines: Vec<String> = rows.iter().map(Row::line).collect();
    let failed: u64 = rows.iter().map(|row| row.tallies.failed()).sum();
    if failed > 0 {
        bail!("{failed} requests failed\n      {}", lines.join("\n      "));
    }
    let requests: u64 = rows.iter().map(|row| row.tallies.requests()).sum();
    ensure!(requests > 0, "nobody asked for anything");
    Ok(Verdict::Passed(lines))
}

/// What the edits are made to.
struct Scenes<'a> {
    stage: &'a Stage,
    routes: Scene,
    pods: Scene,
    platform: Scene,
}

impl<'a> Scenes<'a> {
    async fn new(stage: &'a Stage) -> Result<Self> {
        let gateway = scene::gateway(stage).await?;
        let (routes, pods, platform) = tokio::try_join!(
            Scene::new(stage, "routes", &gateway, 1),
            Scene::new(stage, "pods", &gateway, pods::REPLICAS),
            Scene::new(stage, "around", &gateway, 1),
        )?;
        platform::prepare(stage, &platform).await?;
        // The first grant closes what nobody was granted, so the set of each lane waits for its own.
        for scene in [&routes, &pods, &platform] {
            let all = format!("*.{}", scene.domain);
            platform::grant(scene, &scene.team.namespace, &all).await?;
        }
        for scene in [&routes, &pods, &platform] {
            scene.recorded().await?;
            scene.answered_by(|_| Ok(())).await?;
        }
        Ok(Self {
            stage,
            routes,
            pods,
            platform,
        })
    }

    fn scene(&self, lane: Lane) -> &Scene {
        match lane {
            Lane::Routes | Lane::Restarts => &self.routes,
            Lane::Pods => &self.pods,
            Lane::Platform => &self.platform,
        }
    }

    /// The clients of a lane. Where proxies are restarted nobody can hold a connection.
    fn clients(&self, lane: Lane, pause: Duration, holding: bool) -> Result<Clients> {
        let scene = self.scene(lane);
        let mut clients = scene.clients(pause)?;
        if holding {
            scene.hold(&mut clients)?;
        }
        if lane == Lane::Platform {
            let own = scene::own_host(&self.stage.name);
            scene.visit(&mut clients, &own, pause)?;
        }
        Ok(clients)
    }

    /// So many edits of each of these kinds, of all if none is named, in the three lanes that can go on side by side.
    async fn run_beside(&self, names: &[&str], count: usize) -> Result<Vec<Row>> {
        let [beside, _] = PAUSES;
        let lanes = tokio::try_join!(
            self.run(Lane::Routes, names, count, beside),
            self.run(Lane::Pods, names, count, beside),
            self.run(Lane::Platform, names, count, beside),
        )?;
        Ok([lanes.0, lanes.1, lanes.2].into_iter().flatten().collect())
    }

    /// So many edits of each of these kinds of a lane, of all if none is named, kind after kind.
    async fn run(
        &self,
        lane: Lane,
        names: &[&str],
        count: usize,
        pause: Duration,
    ) -> Result<Vec<Row>> {
        let mut wanted = kinds();
        wanted.retain(|kind| kind.lane == lane && (names.is_empty() || names.contains(&kind.name)));
        let mut rows = Vec::new();
        // What fails is told with an edit, so nobody asks where none is made.
        if wanted.is_empty() {
            return Ok(rows);
        }
        let scene = self.scene(lane);
        let clients = self.clients(lane, pause, lane != Lane::Restarts)?;
        for kind in wanted {
            let started = Instant::now();
            for number in 1..=count {
                let edit = (kind.edit)(self.stage, scene, number).await;
                edit.with_context(|| format!("{}, edit {number}", kind.name))?;
            }
            let row = Row {
                name: kind.name,
                edits: count,
                took: started.elapsed(),
                tallies: clients.take(),
            };
            if count > EVERYDAY {
                print(&format!("      {}", row.line()));
            }
            rows.push(row);
        }
        let rest = clients.stop().await?;
        if let Some(last) = rows.last_mut() {
            last.tallies.merge(rest);
        }
        Ok(rows)
    }

    /// One edit of each kind of the lane after another until the time is over; gives how many there were.
    async fn in_turn(&self, lane: Lane, until: Instant) -> Result<usize> {
        let scene = self.scene(lane);
        let mut made = 0;
        for round in 1.. {
            for kind in kinds().iter().filter(|kind| kind.lane == lane) {
                if Instant::now() >= until {
                    return Ok(made);
                }
                let edit = (kind.edit)(self.stage, scene, round).await;
                edit.with_context(|| format!("{}, round {round}", kind.name))?;
                made += 1;
            }
        }
        Ok(made)
    }
}
