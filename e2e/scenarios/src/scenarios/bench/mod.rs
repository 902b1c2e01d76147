//! The methods of gateway-api-bench (github.com/howardjohn/gateway-api-bench), bounded for two cores: attached routes,
//! probe, route changes, route scale, ListenerSet scale, backend failover; and a table of what they gave beside what
//! was published of others. They assert nothing but that they come to their end.

mod published;
mod routes;
mod scale;

use std::env;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{failing, live_route};
use crate::load::percentile;
use crate::runner::Verdict;
use crate::world::{Stage, World};

pub(super) use routes::{attached_routes, probe};
pub(super) use scale::{listener_set_scale, route_scale};

/// Edits of a live route.
const CHANGES: usize = 200;
/// Times that a pod fails, and for how long.
const FLIPS: usize = 3;
const FLIP: Duration = Duration::from_secs(10);
/// Pods of the backend, the failing one among them.
const PODS: usize = 4;

/// Edits of a live route every 200 ms, with closed-loop clients: any failed request is a failure.
pub(super) async fn route_changes(stage: &Stage) -> Result<Verdict> {
    let edits = setting("CHANGES", CHANGES)?;
    let tallies = live_route::edited(stage, edits).await?;
    let result = if tallies.failed() == 0 {
        "no"
    } else {
        "FAILED"
    };
    let figure = format!(
        "{result} errors: {} of {} requests over {edits} edits",
        tallies.failed(),
        tallies.requests()
    );
    keep(&stage.world, "changes", &figure).await?;
    Ok(Verdict::Passed(vec![figure, tallies.to_string()]))
}

/// One of four pods refuses for a while, again and again.
pub(super) async fn backend_failover(stage: &Stage) -> Result<Verdict> {
    let scene = failing::Scene::new(stage, PODS).await?;
    let (mut lines, mut lost, mut backs) = (Vec::new(), 0.0, Vec::new());
    for _ in 0..setting("FLIPS", FLIPS)? {
        let outcome = scene.fail("refuse", FLIP).await?;
        lost += outcome.lost();
        backs.extend(outcome.back);
        lines.push(outcome.line("refuse"));
    }
    backs.sort_unstable();
    let back = percentile(&backs, 1.0);
    let figure = format!(
        "{:.2} % lost while 1 of {PODS} pods refuses (what was refused is tried elsewhere); used again {} of {} times, \
         after {:.1} s at most",
        lost / lines.len().max(1) as f64,
        backs.len(),
        lines.len(),
        back.as_secs_f64()
    );
    keep(&stage.world, "failover", &figure).await?;
    lines.insert(0, figure);
    Ok(Verdict::Passed(lines))
}

/// What all of them gave, and what was published of others.
pub(super) async fn table(stage: &Stage) -> Result<Verdict> {
    let mut lines = Vec::new();
    for method in published::METHODS {
        let file = stage.world.out.join(format!("bench.{}", method.name));
        let ours = tokio::fs::read_to_string(file).await;
        let ours = ours.unwrap_or_else(|_| "not run".to_owned());
        lines.push(format!("{}: {}", method.title, method.what));
        lines.push(format!("  {:<22} {ours}", "Vestibule, here"));
        for (whose, figure) in method.others {
            lines.push(format!("  {whose:<22} {figure}"));
        }
    }
    lines.push(published::WHERE.to_owned());
    Ok(Verdict::Passed(lines))
}

/// A bound that the environment may set otherwise: `VESTIBULE_BENCH_<NAME>`.
fn setting(name: &str, default: usize) -> Result<usize> {
    let name = format!("VESTIBULE_BENCH_{name}");
    match env::var(&name) {
        Err(_) => Ok(default),
        Ok(text) => text
            .parse()
            .ok()
            .with_context(|| format!("{name} is no number: {text}")),
    }
}

/// Keeps a figure for the table.
async fn keep(world: &World, method: &str, figure: &str) -> Result<()> {
    tokio::fs::write(world.out.join(format!("bench.{method}")), figure).await?;
    Ok(())
}
