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
mod goal;
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
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use crate::measure::{Bench, Plan, Sizes};
use crate::metric::{Group, Load, Logging, Setting};
use crate::peers::{Binaries, Peer};

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
    run: RunArgs,
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
    Web,
    /// The clients that are measured.
    #[command(hide = true)]
    Steady(neighbours::steady::SteadyArgs),
    /// What is done to the proxy.
    #[command(hide = true)]
    Attack(neighbours::attack::AttackArgs),
}

#[derive(clap::Args, Debug)]
struct RunArgs {
    /// Whom to measure; those not installed are left out and named.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "direct,ours,ours-default,haproxy,haproxy-splice,haproxy-next,haproxy-next-splice,envoy,nginx,hitch,sozu"
    )]
    peers: Vec<Peer>,
    /// Groups of rows to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "passthrough,terminate,hosts,http,https,routes"
    )]
    rows: Vec<Group>,
    /// Only these loads of the groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Vec<Load>,
    /// Log lines for each connection or request: nobody's, or everybody's in a file; each for itself.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "off")]
    logging: Vec<Logging>,
    /// Workers of each proxy, which has as many cores, if there are as many; each number for itself.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: Vec<u8>,
    /// Count system calls, in a further run of each load.
    #[arg(long)]
    syscalls: bool,
    /// Rounds over all peers; medians are of these [default: 5, or 1 with --quick].
    #[arg(long)]
    rounds: Option<usize>,
    /// Smaller loads: minutes become seconds, figures become rough.
    #[arg(long)]
    quick: bool,
    /// Idle connections to hold (fewer if the limit of open files is lower).
    #[arg(long)]
    idle: Option<usize>,
    /// Hostnames and certificates of the row "hosts".
    #[arg(long)]
    hosts: Option<usize>,
    /// Hosts of the row "routes", each with sixteen routes.
    #[arg(long)]
    routes: Option<usize>,
    /// CPU used by others, in cores, from which on a figure is noisy and taken again.
    #[arg(long, default_value_t = 0.1)]
    noise: f64,
    /// Attempts at a figure before a noisy one is kept, and marked.
    #[arg(long, default_value_t = 3)]
    attempts: usize,
    /// vestibule-proxy [default: beside this binary]
    #[arg(long)]
    ours: Option<PathBuf>,
    /// Envoy [default: from PATH]
    #[arg(long, env = "VESTIBULE_BENCH_ENVOY", default_value = "envoy")]
    envoy: PathBuf,
    /// Another `HAProxy`, for the peers haproxy-next and haproxy-next-splice.
    #[arg(long, env = "VESTIBULE_BENCH_HAPROXY_NEXT")]
    haproxy_next: Option<PathBuf>,
    /// sozu, which e2e/bench/run builds if it is asked to.
    #[arg(long, env = "VESTIBULE_BENCH_SOZU")]
    sozu: Option<PathBuf>,
    /// Write every figure there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write a page with plots and tables there.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Stay in the machine's network namespace, with its settings.
    #[arg(long)]
    shared_network: bool,
    /// Only start the first peer for the first row, print where it is, and wait for Ctrl-C.
    #[arg(long)]
    hold: bool,
    /// Seconds a single load may take.
    #[arg(long, default_value_t = 120)]
    limit: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.part {
        Some(Part::Backend(args)) => with_open_files(|| backend::run(&args)),
        Some(Part::Client(args)) => with_open_files(|| client::run(&args)),
        Some(Part::Scale(args)) => scale::run(&args),
        Some(Part::Size(args)) => scale::part::run(&args),
        Some(Part::Admission(args)) => admission::run(&args),
        Some(Part::AdmissionSize(args)) => admission::part::run(&args),
        Some(Part::Neighbours(args)) => neighbours::run(&args),
        Some(Part::Soak(args)) => with_open_files(|| soak::run(&args)),
        Some(Part::Web) => with_open_files(web::run),
        Some(Part::Steady(args)) => with_open_files(|| neighbours::steady::run(&args)),
        Some(Part::Attack(args)) => with_open_files(|| neighbours::attack::run(&args)),
        None => run(cli.run),
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

/// A network namespace of our own where we may, and what came of it, for the report.
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

fn run(args: RunArgs) -> Result<()> {
    let mut about = vec![format!(
        "Loopback of {}; {}.",
        network(args.shared_network),
        sys::machine()
    )];
    let cores = sys::cores();
    let sizes = sizes(&args, &mut about)?;
    let binaries = Binaries {
        ours: args.ours.map_or_else(
            || std::env::current_exe().map(|path| path.with_file_name("vestibule-proxy")),
            Ok,
        )?,
        envoy: args.envoy,
        haproxy_next: args.haproxy_next,
        sozu: args.sozu,
    };
    let mut peers = Vec::new();
    for peer in args.peers {
        match peer.version(&binaries) {
            Some(version) => {
                about.push(format!("{}: {version}", peer.name()));
                peers.push(peer);
            }
            None => about.push(format!("{}: not there, left out", peer.name())),
        }
    }
    ensure!(!peers.is_empty(), "nobody to measure");
    let mut groups = args.rows;
    match h2load::version() {
        Some(version) => about.push(format!("Client of HTTP requests: {version}")),
        None => {
            about.push("h2load is not there, so http and https are left out.".to_owned());
            groups.retain(|group| !matches!(group, Group::Http | Group::Https));
        }
    }
    ensure!(!groups.is_empty(), "nothing to measure");
    let syscalls = args.syscalls && measure::can_count_syscalls();
    if args.syscalls && !syscalls {
        about.push("perf may not count system calls here.".to_owned());
    }
    let of = |workers: u8| {
        let logging = args.logging.iter();
        logging.map(move |logging| Setting {
            workers: usize::from(workers),
            logging: *logging,
        })
    };
    let settings: Vec<Setting> = args
        .workers
        .iter()
        .flat_map(|workers| of(*workers))
        .collect();
    let most = settings.iter().map(|setting| setting.workers).max();
    if most >= Some(cores.len()) {
        about.push(format!(
            "With {} cores, a proxy of as many workers shares one with client and backend.",
            cores.len()
        ));
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    about.push(format!("Rounds: {rounds}; {sizes}."));
    for line in &about {
        println!("- {line}");
    }
    println!(
        "\nMedians; in brackets the ratio to the best peer of the line; `~`: no round was quiet.\n"
    );

    watch_for_stop()?;
    let mut bench = Bench::new(Plan {
        peers,
        groups,
        loads: args.loads,
        settings,
        rounds,
        sizes,
        noise: args.noise,
        attempts: args.attempts,
        syscalls,
        binaries,
        cores,
        limit: args.limit,
    })?;
    if args.hold {
        return bench.hold();
    }
    let result = bench.run();
    print!("{}", report::markdown(&bench.samples));
    for failure in &bench.failures {
        println!("- not measured: {failure}");
    }
    if let Some(path) = args.json {
        let all = serde_json::json!({
            "about": about, "sizes": sizes, "samples": bench.samples, "failures": bench.failures,
        });
        fs::write(&path, serde_json::to_vec_pretty(&all)?).context("writing the JSON")?;
    }
    if let Some(path) = args.html {
        let page = page::page(&bench.samples, &about, &bench.failures);
        fs::write(&path, page).context("writing the page")?;
        println!("\nPlots: {}", path.display());
    }
    result
}

fn sizes(args: &RunArgs, about: &mut Vec<String>) -> Result<Sizes> {
    /// Routes of each host.
    const PATHS: usize = 16;
    let full = Sizes {
        bulk: 6_000_000_000,
        connections: 15_000,
        seconds: 4.0,
        handshakes: 6_000,
        idle: 10_000,
        hosts: 10_000,
        requests: 100_000,
        bodies: 300,
        routes: [2_500, PATHS],
    };
    let quick = Sizes {
        bulk: 1_000_000_000,
        connections: 2_000,
        seconds: 0.8,
        handshakes: 1_000,
        idle: 2_000,
        hosts: 500,
        requests: 10_000,
        bodies: 40,
        routes: [2_500, PATHS],
    };
    let mut sizes = if args.quick { quick } else { full };
    sizes.hosts = args.hosts.unwrap_or(sizes.hosts).max(2);
    sizes.routes[0] = args.routes.unwrap_or(sizes.routes[0]).max(2);
    sizes.idle = args.idle.unwrap_or(sizes.idle);
    // A proxy holds two descriptors per connection, and some of its own.
    let wanted = 2 * sizes.idle as u64 + 500;
    let limit = sys::raise_open_files(wanted)?;
    let fit = usize::try_from(limit.saturating_sub(200) / 2)?;
    if sizes.idle > fit {
        about.push(format!(
            "Open files are limited to {limit}: {fit} idle connections instead of {}.",
            sizes.idle
        ));
        sizes.idle = fit;
    }
    Ok(sizes)
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
