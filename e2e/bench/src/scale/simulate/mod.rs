//! Simulates what no test cluster has: the operator with very many hostnames, claims by the million, and hundreds of
//! proxies that start at once against one leader. All of it is in process: there is no API server, no TLS and no network,
//! and the proxies keep nothing. `scale` has the table of a real proxy.

pub(crate) mod claims;
mod proxy;
mod report;
pub(crate) mod size;
mod thin;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::world::Routes;
use crate::child::{Guarded, Output, stopped};
use crate::{sys, watch_for_stop};
use claims::Claims;
use size::Size;

/// The sizes to simulate.
#[derive(clap::Args, Debug)]
pub(crate) struct SimulateArgs {
    /// ListenerSets of each size, with 16 hostnames, listeners and routes each.
    #[arg(long, value_delimiter = ',', default_value = "625,2500,6250")]
    sets: Vec<usize>,
    /// Namespaces that they are spread over.
    #[arg(long, default_value_t = 5_000)]
    namespaces: usize,
    /// Proxies that start at once, when everything is published.
    #[arg(long, default_value_t = 500)]
    proxies: usize,
    /// Kind of route.
    #[arg(long, value_enum, default_value = "http")]
    routes: Routes,
    /// Edits that are measured with one proxy, and again with all of them.
    #[arg(long, default_value_t = 100)]
    edits: usize,
    /// Bytes of large batches that are under way at a time, in MiB, to see what this bound does.
    #[arg(long, default_value_t = 256)]
    batch_mib: usize,
    /// Numbers of names, for claims by themselves.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    names: Vec<usize>,
    /// The objects are another release's, so that the operator reads and holds them and does nothing else.
    #[arg(long)]
    foreign: bool,
    /// A size that takes more memory than this ends, in GiB.
    #[arg(long, default_value_t = 8.0)]
    most_gib: f64,
    /// vestibule-proxy [default: beside this binary]
    #[arg(long)]
    proxy: Option<PathBuf>,
    /// Write every figure there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Time that something took.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Spent {
    pub(crate) seconds: f64,
    /// CPU of the process.
    pub(crate) cpu: f64,
}

/// A clock that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun(Instant, f64);

impl Spent {
    fn begin() -> Begun {
        Begun(Instant::now(), sys::own_cpu().as_secs_f64())
    }
}

impl Begun {
    fn end(self) -> Spent {
        Spent {
            seconds: self.0.elapsed().as_secs_f64(),
            cpu: sys::own_cpu().as_secs_f64() - self.1,
        }
    }
}

/// Everything.
#[derive(Debug, Default, Serialize)]
struct Simulated {
    sizes: Vec<Size>,
    claims: Vec<Claims>,
}

/// Runs it.
pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    watch_for_stop()?;
    let itself = std::env::current_exe()?;
    let binary = args.proxy.clone();
    let binary = binary.unwrap_or_else(|| itself.with_file_name("vestibule-proxy"));
    let file = |end: &str| {
        let name = format!("vestibule-simulate-{}.{end}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let (log, recording) = (file("log"), file("recording"));
    let mut simulated = Simulated::default();
    for sets in &args.sets {
        eprintln!("{sets} sets");
        let mut command = Command::new(&itself);
        command
            .arg("simulate-size")
            .args(["--sets", &sets.to_string()])
            .args(["--namespaces", &args.namespaces.to_string()])
            .args(["--proxies", &args.proxies.to_string()])
            .args(["--routes", &args.routes.to_string()])
            .args(["--edits", &args.edits.to_string()])
            .args(["--batch-mib", &args.batch_mib.to_string()])
            .args(["--most-gib", &args.most_gib.to_string()])
            .args(args.foreign.then_some("--foreign"))
            .arg("--recording")
            .arg(&recording);
        let Some(mut size) = child::<Size>(command, &log) else {
            continue;
        };
        eprintln!("{sets} sets: a proxy");
        if !args.foreign {
            size.proxy = Some(proxy::measure(&binary, &recording, &log)?);
        }
        simulated.sizes.push(size);
    }
    for names in &args.names {
        eprintln!("{names} names");
        let mut command = Command::new(&itself);
        command
            .arg("simulate-claims")
            .args(["--names", &names.to_string()])
            .args(["--namespaces", &args.namespaces.to_string()]);
        simulated.claims.extend(child(command, &log));
    }
    for file in [&log, &recording] {
        let _ = fs::remove_file(file);
    }
    println!(
        "{}",
        report::sizes(args.routes, args.namespaces, &simulated.sizes)
    );
    println!("{}", report::claims(args.namespaces, &simulated.claims));
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&simulated)?).context("writing the JSON")?;
    }
    Ok(())
}

/// Runs a child, and returns its figures. If it fails, this prints why, and the other children go on.
fn child<T: DeserializeOwned>(command: Command, log: &Path) -> Option<T> {
    if stopped() {
        return None;
    }
    let said = Guarded::start_with(command, "a size", &[], log, Output::Talk)
        .and_then(|mut child| child.line::<T>());
    match said {
        Ok(said) => Some(said),
        Err(error) => {
            let text = fs::read_to_string(log).unwrap_or_default();
            let last = text.lines().last().unwrap_or_default();
            println!("This size gave no figures: {error:#}. It said last: {last}\n");
            None
        }
    }
}
