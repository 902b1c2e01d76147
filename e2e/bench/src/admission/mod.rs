//! The admission bench: how long the webhook takes to answer, over TLS as an API server asks, with a few
//! ListenerSets and with thousands, side by side; and what it holds. Prints a table; asserts no time.

pub(crate) mod part;
mod world;

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::child::{Guarded, stopped};
use crate::proc::{self, Machine};
use crate::tls::{Groups, client_config};
use crate::{network, sys, watch_for_stop};
use part::Ready;
use world::{Ask, LISTENERS, NAMESPACES, World};

const MEBIBYTE: f64 = 1_048_576.0;
/// Longest answer that is read.
const MAX_ANSWER: usize = 1 << 20;
/// Longest wait for the end of a part.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct AdmissionArgs {
    /// ListenerSets of each part; ratios are to the first.
    #[arg(long, value_delimiter = ',', default_value = "10,2500", value_parser = clap::value_parser!(u32).range(2..))]
    sets: Vec<u32>,
    /// Rounds; in each, every part has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Reviews of each kind in a round, one after the other.
    #[arg(long, default_value_t = 1000)]
    reviews: usize,
    /// Write every figure there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Stay in the machine's network namespace.
    #[arg(long)]
    shared_network: bool,
}

/// Figures of one part: a number of ListenerSets.
#[derive(Debug, Serialize)]
struct AdmissionOutcome {
    sets: u32,
    ready: Ready,
    /// Heap and resident set before anybody asked, and after, MiB.
    memory: [(f64, f64); 2],
    /// Milliseconds of each kind of review, of all rounds, sorted.
    reviews: Vec<(Ask, Vec<f64>)>,
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
pub(crate) fn run(args: &AdmissionArgs) -> Result<()> {
    println!("Loopback of {}.", network(args.shared_network));
    watch_for_stop()?;
    let path = std::env::temp_dir().join(format!("vestibule-admission-{}", std::process::id()));
    fs::create_dir_all(&path)?;
    let folder = Folder(path);
    let core = *sys::cores().first().context("no core")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcomes = runtime.block_on(measure(args, &folder.0, core))?;
    println!("{}", markdown(&outcomes));
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&outcomes)?).context("writing the JSON")?;
    }
    Ok(())
}

async fn measure(
    args: &AdmissionArgs,
    folder: &Path,
    core: usize,
) -> Result<Vec<AdmissionOutcome>> {
    let mut parts = Vec::new();
    for sets in &args.sets {
        eprintln!("bringing {sets} sets in");
        let folder = folder.join(sets.to_string());
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("admission-size")
            .args(["--sets", &sets.to_string()])
            .arg("--folder")
            .arg(&folder);
        let name = format!("the webhook with {sets} sets");
        let mut child = Guarded::start(command, &name, core, &folder.join("log"), true)?;
        let ready: Ready = child.line()?;
        let before = memory(child.pid());
        let outcome = AdmissionOutcome {
            sets: *sets,
            ready,
            memory: [before, before],
            reviews: Ask::ALL.map(|ask| (ask, Vec::new())).into(),
            foreign: 0.0,
        };
        parts.push((child, outcome));
    }
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for (child, outcome) in &mut parts {
            let machine = Machine::read(&[child.pid()]);
            turn(args.reviews, round, outcome).await?;
            let foreign = Machine::read(&[child.pid()]).foreign_since(&machine);
            outcome.foreign = outcome.foreign.max(foreign);
            outcome.memory[1] = memory(child.pid());
        }
    }
    let mut outcomes = Vec::new();
    for (mut child, mut outcome) in parts {
        child.finish(PATIENCE)?;
        for (_, millis) in &mut outcome.reviews {
            millis.sort_by(f64::total_cmp);
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// One round at one size: reviews of every kind, one after the other on one connection.
async fn turn(reviews: usize, round: usize, outcome: &mut AdmissionOutcome) -> Result<()> {
    let world = World {
        sets: usize::try_from(outcome.sets)?,
    };
    let mut connection = Connection::open(outcome.ready.address).await?;
    // The first ones of a connection warm it up.
    for n in 0..=reviews {
        for (ask, millis) in &mut outcome.reviews {
            let body = world.review(*ask, round * (reviews + 1) + n);
            let start = Instant::now();
            let answer = connection.post(&body).await?;
            let took = start.elapsed().as_secs_f64() * 1_000.0;
            let answer: Value = serde_json::from_slice(&answer)?;
            ensure!(
                answer["response"]["allowed"] == ask.is_allowed(),
                "{}: {answer}",
                ask.what()
            );
            if n > 0 {
                millis.push(took);
            }
        }
        if stopped() {
            bail!("asked to stop");
        }
    }
    Ok(())
}

fn memory(pid: u32) -> (f64, f64) {
    let memory = proc::memory_alone(pid);
    (
        memory.user as f64 / MEBIBYTE,
        memory.resident as f64 / MEBIBYTE,
    )
}

/// A connection as an API server keeps one.
struct Connection(TlsStream<TcpStream>);

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(client_config(Groups::X25519, false)?);
        let name = ServerName::try_from(part::NAME)?;
        Ok(Self(connector.connect(name, stream).await?))
    }

    async fn post(&mut self, body: &[u8]) -> Result<Vec<u8>> {
        let mut request = format!(
            "POST /validate?timeout=5s HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            part::NAME,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.0.write_all(&request).await?;
        let mut answer = Vec::new();
        loop {
            let mut buffer = [0; 8192];
            let read = self.0.read(&mut buffer).await?;
            ensure!(read > 0 && answer.len() < MAX_ANSWER, "the connection ends");
            answer.extend_from_slice(buffer.get(..read).unwrap_or_default());
            if let Some(whole) = body_of(&answer)? {
                return Ok(whole.to_vec());
            }
        }
    }
}

/// The body, once all of it is there.
fn body_of(answer: &[u8]) -> Result<Option<&[u8]>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let (head, body) = answer.split_at(end + 4);
    let head = String::from_utf8_lossy(head).to_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "{head}");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .context("an answer without its length")?;
    let length: usize = length.trim().parse()?;
    Ok((body.len() >= length).then_some(body))
}

/// The value that so many of a hundred are not above.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .copied()
        .unwrap_or(f64::NAN)
}

fn markdown(outcomes: &[AdmissionOutcome]) -> String {
    let mut out = format!(
        "{LISTENERS} listeners for each set and a TLSRoute for each listener, {NAMESPACES} namespaces with a HostnameGrant \
         each, one Gateway\n\n| |"
    );
    for outcome in outcomes {
        let routes = outcome.sets as usize * LISTENERS;
        let _ = write!(out, " {} sets, {routes} routes |", outcome.sets);
    }
    out.push_str(" Growth | Goal |\n|---|");
    out.push_str(&"---:|".repeat(outcomes.len() + 1));
    out.push_str("---|\n");
    let mut line = |what: &str, values: &[f64], goal: &str| {
        let cells: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
        let growth = match (values.first(), values.last()) {
            (Some(first), Some(last)) => last / first,
            _ => f64::NAN,
        };
        let _ = writeln!(
            out,
            "| {what} | {} | {growth:.2} | {goal} |",
            cells.join(" | ")
        );
    };
    let of = |ask: Option<Ask>, percent: usize| -> Vec<f64> {
        outcomes
            .iter()
            .map(|outcome| {
                let reviews = outcome.reviews.iter();
                let chosen = reviews.filter(|(kind, _)| ask.is_none_or(|ask| ask == *kind));
                let mut all: Vec<f64> = chosen.flat_map(|(_, millis)| millis).copied().collect();
                all.sort_by(f64::total_cmp);
                percentile(&all, percent)
            })
            .collect()
    };
    line("answer, all kinds, p50, ms", &of(None, 50), "growth ≤ 1.5");
    line("answer, all kinds, p99, ms", &of(None, 99), "≤ 10 ms");
    for ask in Ask::ALL {
        for percent in [50, 99] {
            line(
                &format!("{}, p{percent}, ms", ask.what()),
                &of(Some(ask), percent),
                "",
            );
        }
    }
    let memory = |at: usize| -> Vec<f64> {
        let of = |outcome: &AdmissionOutcome| outcome.memory.get(at).map_or(f64::NAN, |m| m.0);
        outcomes.iter().map(of).collect()
    };
    line("heap once everything is read, MiB", &memory(0), "");
    line("heap after the reviews, MiB", &memory(1), "");
    let ready: Vec<f64> = outcomes
        .iter()
        .map(|outcome| outcome.ready.seconds)
        .collect();
    line("reading everything, s", &ready, "");
    let foreign = outcomes.iter().map(|outcome| outcome.foreign);
    let _ = writeln!(
        out,
        "\nOthers used up to {:.2} cores during a round.",
        foreign.fold(0.0, f64::max)
    );
    out
}
