//! Runs scenarios: in order, those that do not disturb each other together, one line for each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::process::Command;

use crate::world::{Stage, World};

/// How many scenarios of [`Phase::Together`] run at one time.
const AT_ONCE: usize = 3;
/// The same of [`Phase::Abreast`].
const AT_ONCE_ABREAST: usize = 2;
/// File among those of the run with what the program beside them printed.
const BESIDE: &str = "beside.log";

/// When a scenario runs. Inside a phase, order is that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Before all others, one after another.
    First,
    /// With others at the same time.
    Together,
    /// With others of this phase at the same time, and with none besides: it changes how many there are of a part, or
    /// loads it, which whoever uses it has to stand.
    Abreast,
    /// Alone, since it breaks or measures what others use.
    Alone,
    /// Alone, and only if a filter is in its name: it takes minutes.
    Asked,
    /// After all others.
    Last,
}

/// What a scenario has to say beside that it passed.
pub(crate) enum Verdict {
    /// It passed; these lines are printed below it.
    Passed(Vec<String>),
    /// It could not be run here.
    Skipped(String),
}

impl Verdict {
    /// Passed, with nothing to say.
    pub(crate) fn passed() -> Self {
        Self::Passed(Vec::new())
    }

    /// Passed, with one line.
    pub(crate) fn noting(line: impl Into<String>) -> Self {
        Self::Passed(vec![line.into()])
    }
}

/// A scenario.
pub(crate) struct Scenario {
    /// Its name, which says what is shown. Also the prefix of its namespaces.
    pub(crate) name: &'static str,
    /// When it runs.
    pub(crate) phase: Phase,
    /// What it does.
    pub(crate) run: fn(Arc<Stage>) -> LocalBoxFuture<'static, Result<Verdict>>,
}

/// Which scenarios run, and what happens to what they leave.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Only those whose name contains one of these; if there is none, all but those that are asked for.
    pub(crate) filter: Vec<String>,
    /// Leave namespaces of passed scenarios, too.
    pub(crate) keep: bool,
    /// A program that runs beside the scenarios of [`Phase::Together`]: whose it is judges it.
    pub(crate) beside: Option<PathBuf>,
}

#[derive(Default)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs the scenarios. True if none failed.
pub(crate) async fn run(
    world: Arc<World>,
    scenarios: Vec<Scenario>,
    options: &Options,
) -> Result<bool> {
    let mut chosen: Vec<Scenario> = scenarios
        .into_iter()
        .filter(|scenario| is_chosen(scenario, &options.filter))
        .collect();
    chosen.sort_by_key(|scenario| scenario.phase);
    let started = Instant::now();
    let mut totals = Totals::default();
    while !chosen.is_empty() {
        let phase = chosen[0].phase;
        let same = chosen.iter().take_while(|s| s.phase == phase).count();
        let rest = chosen.split_off(same);
        let together = phase == Phase::Together;
        let at_once = match phase {
            Phase::Together => AT_ONCE,
            Phase::Abreast => AT_ONCE_ABREAST,
            Phase::First | Phase::Alone | Phase::Asked | Phase::Last => 1,
        };
        let beside = options.beside.as_deref().filter(|_| together);
        let beside = beside.map(|program| tokio::spawn(output_of(program.to_owned())));
        let mut results = futures::stream::iter(chosen)
            .map(|scenario| one(world.clone(), scenario, options.keep))
            .buffer_unordered(at_once);
        while let Some(result) = results.next().await {
            match result {
                Some(Verdict::Passed(_)) => totals.passed += 1,
                Some(Verdict::Skipped(_)) => totals.skipped += 1,
                None => totals.failed += 1,
            }
        }
        drop(results);
        if let Some(beside) = beside {
            tokio::fs::write(world.out.join(BESIDE), beside.await??).await?;
        }
        chosen = rest;
    }
    print(&format!(
        "scenarios took {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    let Totals {
        passed,
        failed,
        skipped,
    } = totals;
    print(&format!(
        "{passed} passed, {failed} failed, {skipped} skipped"
    ));
    Ok(failed == 0)
}

/// What a program prints, and a last line if it fails: not all that fails it is among what it counts.
async fn output_of(program: PathBuf) -> Result<Vec<u8>> {
    let output = Command::new(&program).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    let end = if output.status.success() {
        String::new()
    } else {
        format!("it ended with {}\n", output.status)
    };
    Ok([output.stdout, output.stderr, end.into_bytes()].concat())
}

fn is_chosen(scenario: &Scenario, filter: &[String]) -> bool {
    if filter.is_empty() {
        scenario.phase != Phase::Asked
    } else {
        filter.iter().any(|part| scenario.name.contains(part))
    }
}

async fn one(world: Arc<World>, scenario: Scenario, keep: bool) -> Option<Verdict> {
    let started = Instant::now();
    let stage = Arc::new(Stage::new(&world, scenario.name));
    // A scenario that panics has failed, like any other that does not come to its end.
    let result = std::panic::AssertUnwindSafe((scenario.run)(stage.clone()))
        .catch_unwind()
        .await;
    let seconds = started.elapsed().as_secs_f64();
    let name = scenario.name;
    let why = match result {
        Ok(Ok(verdict)) => {
            match &verdict {
                Verdict::Passed(notes) => {
                    print(&format!("ok    {name} ({seconds:.1} s)"));
                    for note in notes {
                        print(&format!("      {note}"));
                    }
                }
                Verdict::Skipped(why) => print(&format!("skip  {name}: {why}")),
            }
            if !keep && let Err(error) = stage.strike().await {
                print(&format!("      its namespaces remain: {error:#}"));
            }
            return Some(verdict);
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "it panicked".to_owned(),
    };
    print(&format!("FAIL  {name} ({seconds:.1} s): {why}"));
    let folder = world.out.join(name);
    match world.collect(&folder).await {
        Ok(()) => print(&format!("      state and logs: {}", folder.display())),
        Err(error) => print(&format!("      state and logs could not be had: {error:#}")),
    }
    None
}

/// Prints a line.
#[expect(clippy::print_stdout, reason = "what a test runner is for")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}
