//! Runs scenarios: in order, those that do not disturb each other together, one line for each. Each has to leave the
//! cluster as it found it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::process::Command;

use crate::world::{Stage, Survey, World};

/// How many scenarios of [`Phase::Together`] run at one time.
const AT_ONCE: usize = 3;
/// How many scenarios of [`Phase::Heavy`] run at one time.
const HEAVY_AT_ONCE: usize = 2;
/// File among those of the run with what the program beside them printed.
const BESIDE: &str = "beside.log";

/// When a scenario runs. Inside a phase, order is that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Before all others, one after another.
    First,
    /// With others at the same time.
    Together,
    /// With others of this phase at the same time, and with no scenario of another phase. It changes how many pods a
    /// part has, or puts load on it, and whatever uses the part has to withstand that.
    Heavy,
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
    /// Whether the cluster is another one afterwards, as it is meant to be: what the chart brings comes or goes.
    pub(crate) lasting: bool,
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
    /// A program that runs beside the scenarios of [`Phase::Together`]. Its caller judges it.
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
    if !chosen.iter().any(|scenario| scenario.lasting) && !world.is_installed().await? {
        print("      the chart is not installed: it is now");
        world.set_up().await?;
    }
    let mut totals = Totals::default();
    let mut before = Survey::take(&world).await?;
    while !chosen.is_empty() {
        let phase = chosen[0].phase;
        let at_once = match phase {
            Phase::Together => AT_ONCE,
            Phase::Heavy => HEAVY_AT_ONCE,
            Phase::First | Phase::Alone | Phase::Asked | Phase::Last => 1,
        };
        // Those that run at the same time are one group. What is left behind is left by one of the group.
        let size = match at_once {
            1 => 1,
            _ => chosen.iter().take_while(|s| s.phase == phase).count(),
        };
        let rest = chosen.split_off(size);
        let group = std::mem::replace(&mut chosen, rest);
        let beside = options.beside.as_deref();
        let beside = beside.filter(|_| phase == Phase::Together);
        let beside = beside.map(|program| tokio::spawn(output_of(program.to_owned())));
        let lasting = group.iter().any(|scenario| scenario.lasting);
        let alone = size == 1 && beside.is_none() && !lasting;
        let (compared, failed_before) = (alone.then_some(&before), totals.failed);
        let mut results = futures::stream::iter(group)
            .map(|scenario| one(&world, scenario, options.keep, compared))
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
        let failed = totals.failed > failed_before;
        if !alone && !lasting && !failed && !all_as(&before, &world, phase, options.keep).await {
            totals.failed += 1;
        }
        // The next ones are not blamed for it.
        if lasting || totals.failed > failed_before {
            before = Survey::take(&world).await?;
        }
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

/// Whether what ran in a phase at the same time left the cluster as it was. Says what is different.
async fn all_as(before: &Survey, world: &World, phase: Phase, keep: bool) -> bool {
    let Err(error) = before.until_unchanged(world, keep).await else {
        return true;
    };
    let name = format!("{phase:?}").to_lowercase();
    print(&format!(
        "FAIL  {name}: what ran in this phase left the cluster changed: {error:#}"
    ));
    collect(world, &name).await;
    false
}

/// Runs a scenario and takes its namespaces away. `before` is the cluster as it has to leave it.
async fn one(
    world: &Arc<World>,
    scenario: Scenario,
    keep: bool,
    before: Option<&Survey>,
) -> Option<Verdict> {
    let started = Instant::now();
    let stage = Arc::new(Stage::new(world, scenario.name));
    // A scenario that panics has failed, like any other that does not come to its end.
    let result = std::panic::AssertUnwindSafe((scenario.run)(stage.clone()))
        .catch_unwind()
        .await;
    let seconds = started.elapsed().as_secs_f64();
    let name = scenario.name;
    let why = match result {
        Ok(Ok(verdict)) => match left(&stage, keep, before).await {
            Ok(()) => {
                match &verdict {
                    Verdict::Passed(notes) => {
                        print(&format!("ok    {name} ({seconds:.1} s)"));
                        for note in notes {
                            print(&format!("      {note}"));
                        }
                    }
                    Verdict::Skipped(why) => print(&format!("skip  {name}: {why}")),
                }
                return Some(verdict);
            }
            Err(error) => format!("it left the cluster changed: {error:#}"),
        },
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "it panicked".to_owned(),
    };
    print(&format!("FAIL  {name} ({seconds:.1} s): {why}"));
    collect(world, name).await;
    None
}

/// Leaves the stage, and looks whether the cluster is as it was.
async fn left(stage: &Stage, keep: bool, before: Option<&Survey>) -> Result<()> {
    if !keep {
        stage.strike().await.context("its namespaces remain")?;
    }
    match before {
        Some(before) => before.until_unchanged(&stage.world, keep).await,
        None => Ok(()),
    }
}

async fn collect(world: &World, name: &str) {
    let folder = world.out.join(name);
    match world.collect(&folder).await {
        Ok(()) => print(&format!("      state and logs: {}", folder.display())),
        Err(error) => print(&format!("      state and logs could not be had: {error:#}")),
    }
}

/// Prints a line.
#[expect(clippy::print_stdout, reason = "what a test runner is for")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}
