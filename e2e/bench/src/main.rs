//! Side by side measurements of vestibule-proxy and its peers: loopback only, as many workers each, the
//! proxy on the first cores and client plus backend on the last. Prints tables of medians; asserts nothing.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool: tables and the children's JSON go to stdout, progress to stderr"
)]

mod admission;
mod backend;
mod child;
mod client;
mod compare;
mod goal;
mod grpc;
mod h2load;
mod http1;
mod measure;
mod metric;
mod neighbours;
mod page;
mod peers;
mod plot;
mod proc;
mod report;
mod scale;
mod soak;
mod sys;
mod tls;
mod web;
mod wire;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::Result;
use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

/// The allocator of the product, because parts of it run in this process.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Completes when the parent closes our standard input, which is how it asks us to end.
pub(crate) type StdinClosed = tokio::sync::oneshot::Receiver<()>;

/// See [`StdinClosed`].
pub(crate) fn stdin_closed() -> StdinClosed {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let mut sink = [0; 64];
        while matches!(std::io::stdin().read(&mut sink), Ok(1..)) {}
        let _ = sender.send(());
    });
    receiver
}

#[derive(Parser, Debug)]
#[command(
    version,
    about = "Measures vestibule-proxy beside HAProxy, Envoy, nginx and hitch"
)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    run: compare::CompareArgs,
}

/// Another bench, and the processes of a run, which are started by it.
#[derive(Subcommand, Debug)]
enum Part {
    /// Answers on loopback.
    #[command(hide = true)]
    Backend(backend::BackendArgs),
    /// Makes load.
    #[command(hide = true)]
    Client(client::ClientArgs),
    /// Measures operator and proxy with thousands of ListenerSets, in place of the peers.
    Scale(scale::ScaleArgs),
    /// One size of that.
    #[command(hide = true)]
    Size(scale::part::PartArgs),
    /// Simulates sizes beyond one machine: operator, claims, and hundreds of proxies that start at once.
    Simulate(scale::simulate::SimulateArgs),
    /// One size of that.
    #[command(hide = true)]
    SimulateSize(scale::simulate::size::SizeArgs),
    /// Claims alone.
    #[command(hide = true)]
    SimulateClaims(scale::simulate::claims::ClaimsArgs),
    /// Measures the webhook's answers, in place of the peers.
    Admission(admission::AdmissionArgs),
    /// One size of that.
    #[command(hide = true)]
    AdmissionSize(admission::part::PartArgs),
    /// Measures what a tenant's clients notice of hostile neighbours, beside `HAProxy` and Envoy.
    Neighbours(neighbours::NeighbourArgs),
    /// Runs for half an hour with traffic, edits, deaths and restarts: nothing fails, and memory is flat.
    Soak(soak::SoakArgs),
    /// Answers HTTP on loopback.
    #[command(hide = true)]
    Web(web::WebArgs),
    /// The clients that are measured.
    #[command(hide = true)]
    Steady(neighbours::steady::SteadyArgs),
    /// What is done to the proxy.
    #[command(hide = true)]
    Attack(neighbours::attack::AttackArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.part {
        Some(Part::Backend(args)) => with_open_files(|| backend::run(&args)),
        Some(Part::Client(args)) => with_open_files(|| client::run(&args)),
        Some(Part::Scale(args)) => scale::run(&args),
        Some(Part::Size(args)) => scale::part::run(&args),
        Some(Part::Simulate(args)) => scale::simulate::run(&args),
        Some(Part::SimulateSize(args)) => scale::simulate::size::run(&args),
        Some(Part::SimulateClaims(args)) => scale::simulate::claims::run(&args),
        Some(Part::Admission(args)) => admission::run(&args),
        Some(Part::AdmissionSize(args)) => admission::part::run(&args),
        Some(Part::Neighbours(args)) => neighbours::run(&args),
        Some(Part::Soak(args)) => with_open_files(|| soak::run(&args)),
        Some(Part::Web(args)) => with_open_files(|| web::run(&args)),
        Some(Part::Steady(args)) => with_open_files(|| neighbours::steady::run(&args)),
        Some(Part::Attack(args)) => with_open_files(|| neighbours::attack::run(&args)),
        None => compare::run(cli.run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// With as many open files as the machine lets us have.
fn with_open_files(part: impl FnOnce() -> Result<()>) -> Result<()> {
    sys::raise_open_files(0)?;
    part()
}

/// Makes a network namespace of our own where we may, and returns the result for the report.
pub(crate) fn network(shared: bool) -> String {
    let folder = Path::new("/proc/sys/net/ipv4");
    let set = |name: &str, value: &str| fs::write(folder.join(name), value).is_ok();
    let control = || {
        let text = fs::read_to_string(folder.join("tcp_congestion_control"));
        text.unwrap_or_default().trim().to_owned()
    };
    if shared {
        return format!("the machine's network, congestion control {}", control());
    }
    if let Err(error) = sys::own_network() {
        return format!(
            "the machine's network (no namespace: {error}), congestion control {}",
            control()
        );
    }
    // BBR's timers for segments that take microseconds would be most of what is measured. A
    // namespace may be allowed no other than reno.
    if control() == "bbr" && !set("tcp_congestion_control", "cubic") {
        set("tcp_congestion_control", "reno");
    }
    // Looking for a free port among those of connections just closed takes longer than all the rest
    // of a connection, and would make a peer pay for the peers before it.
    let ports = set("ip_local_port_range", "1024 65535") && set("tcp_max_tw_buckets", "1000");
    format!(
        "a network namespace of its own, congestion control {}{}",
        control(),
        if ports {
            ""
        } else {
            "; ports of closed connections may run short"
        }
    )
}

/// SIGINT and SIGTERM end the run in order: children first, then what was measured so far is printed.
pub(crate) fn watch_for_stop() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut terminate = {
        let _inside = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        child::STOP.store(true, Ordering::Relaxed);
    });
    Ok(())
}
