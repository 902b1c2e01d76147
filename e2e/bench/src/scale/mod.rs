//! The scale bench: the operator's own store and statuses, and a proxy on the real stream, with a few
//! ListenerSets and with thousands, side by side. Prints a table; asserts no time.

mod control;
mod counted;
pub(crate) mod part;
mod probe;
mod report;
pub(crate) mod simulate;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::child::{Guarded, stopped};
use crate::proc::Machine;
use crate::{network, sys, watch_for_stop};
use part::{Loaded, Round};
use world::Routes;

/// Ports of one part: the stream, the proxy's admin endpoint, and two that the operator gives out.
const PORTS: u16 = 4;
/// What a part runs.
const INCLUDED: &str = "In each size: the operator's queue of events, in which namespaces take turns, its store \
    (watch events decoded, translation, claims with their HostnameClaims, certificate requests, internal ports, \
    wishes for Services, Secrets read), its publisher and its statuses, and a proxy on the stream. Half of the \
    listeners end TLS, each with a Secret of its own. Left out: the API server and its answers' time, admission, the \
    engines that issue certificates, the writes of Services, the Lease.";

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct ScaleArgs {
    /// ListenerSets of each part; ratios are to the first.
    #[arg(long, value_delimiter = ',', default_value = "10,2500", value_parser = clap::value_parser!(u32).range(1..))]
    sets: Vec<u32>,
    /// Namespaces that the sets are spread over.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    namespaces: u32,
    /// One size after the other, each alone, where they do not all fit in memory.
    #[arg(long)]
    one_at_a_time: bool,
    /// Kinds of route, each measured for itself.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tls,http")]
    routes: Vec<Routes>,
    /// Rounds of edits; in each, every part has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Edits of one round that are measured one by one, warmed up; as many follow back to back.
    #[arg(long, default_value_t = 90)]
    edits: usize,
    /// vestibule-proxy [default: beside this binary]
    #[arg(long)]
    proxy: Option<PathBuf>,
    /// Write every figure there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Stay in the machine's network namespace, and take ports from this one on.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(16_000..=32_000))]
    shared_network: Option<u16>,
}

/// Figures of one part: a number of ListenerSets with one kind of route.
#[derive(Debug, Serialize)]
pub(crate) struct ScaleOutcome {
    routes: Routes,
    sets: u32,
    loaded: Loaded,
    rounds: Vec<Round>,
    /// Most CPU that others used during a round, in cores.
    foreign: f64,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs it.
pub(crate) fn run(args: &ScaleArgs) -> Result<()> {
    println!("Loopback of {}.", network(args.shared_network.is_some()));
    watch_for_stop()?;
    let folder =
        Folder(std::env::temp_dir().join(format!("vestibule-scale-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let cores = sys::cores();
    let (proxy_core, own_core) = (
        *cores.first().context("no core")?,
        *cores.last().context("no core")?,
    );
    println!(
        "Proxies on core {proxy_core}, the operator's part, clients and backends on core {own_core}. {} rounds of {} \
         edits one by one, and as many back to back, at each size in turn.\n",
        args.rounds, args.edits
    );
    println!("{INCLUDED}\n");
    let mut outcomes = Vec::new();
    for routes in &args.routes {
        let groups: Vec<&[u32]> = if args.one_at_a_time {
            args.sets.chunks(1).collect()
        } else {
            vec![&args.sets]
        };
        let mut measured = Vec::new();
        for sets in groups {
            let cores = [proxy_core, own_core];
            measured.extend(measure(args, sets, *routes, &folder.0, cores)?);
        }
        let namespaces = args.namespaces as usize;
        println!("{}", report::markdown(*routes, namespaces, &measured));
        outcomes.extend(measured);
    }
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&outcomes)?).context("writing the JSON")?;
    }
    Ok(())
}

/// Some sizes with one kind of route: each is a process of its own, and they take turns.
fn measure(
    args: &ScaleArgs,
    sizes: &[u32],
    routes: Routes,
    folder: &Path,
    [proxy_core, own_core]: [usize; 2],
) -> Result<Vec<ScaleOutcome>> {
    let itself = std::env::current_exe()?;
    let proxy = args
        .proxy
        .clone()
        .unwrap_or_else(|| itself.with_file_name("vestibule-proxy"));
    ensure!(proxy.exists(), "{} is not there", proxy.display());
    let mut parts = Vec::new();
    let mut port = args.shared_network.unwrap_or(20_000);
    for sets in sizes {
        eprintln!("{}s: bringing {sets} sets in", routes.kind());
        let mut command = Command::new(&itself);
        command
            .arg("size")
            .args(["--sets", &sets.to_string()])
            .args(["--namespaces", &args.namespaces.to_string()])
            .args(["--routes", &routes.to_string()])
            .args(["--proxy-core", &proxy_core.to_string()])
            .args(["--port", &port.to_string()])
            .arg("--proxy")
            .arg(&proxy)
            .arg("--folder")
            .arg(folder);
        let name = format!("the part of {sets} sets");
        let log = folder.join(format!("part-{sets}.log"));
        let mut child = Guarded::start(command, &name, own_core, &log, true)?;
        let loaded = child.line::<Loaded>().with_context(|| tail(&log))?;
        parts.push((
            child,
            log,
            ScaleOutcome {
                routes,
                sets: *sets,
                loaded,
                rounds: Vec::new(),
                foreign: 0.0,
            },
        ));
        port += PORTS;
    }
    let pids: Vec<u32> = parts.iter().map(|(child, ..)| child.pid()).collect();
    for round in 0..args.rounds {
        for (child, log, outcome) in &mut parts {
            if stopped() {
                break;
            }
            eprintln!(
                "{}s: round {} with {} sets",
                routes.kind(),
                round + 1,
                outcome.sets
            );
            let before = Machine::read(&pids);
            child.tell(&args.edits.to_string())?;
            outcome
                .rounds
                .push(child.line::<Round>().with_context(|| tail(log))?);
            outcome.foreign = outcome
                .foreign
                .max(Machine::read(&pids).foreign_since(&before));
        }
    }
    let mut outcomes = Vec::new();
    for (mut child, _, outcome) in parts {
        child.finish(Duration::from_mins(1))?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What a part said last on standard error.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
