//! The bench beside peers: its options, and the use of its figures.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::measure::{Bench, Plan, Sizes};
use crate::metric::{Group, Load, Logging, Setting};
use crate::peers::{Binaries, Peer};
use crate::{h2load, measure, network, page, report, sys, watch_for_stop};

/// Options of the bench.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct CompareArgs {
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
        default_value = "passthrough,terminate,hosts,http,https,routes,tcp,udp,grpc,retries"
    )]
    rows: Vec<Group>,
    /// Only these loads of the groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Vec<Load>,
    /// Log lines for each connection or request: of no proxy, or of every proxy in a file. Each value is measured for itself.
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
    /// Over IPv6, to the proxies and to the backends.
    #[arg(long)]
    ipv6: bool,
    /// Only start the first peer for the first row, print where it is, and wait for Ctrl-C.
    #[arg(long)]
    hold: bool,
    /// Seconds a single load may take.
    #[arg(long, default_value_t = 120)]
    limit: u64,
}

/// Measures and prints.
pub(crate) fn run(args: CompareArgs) -> Result<()> {
    let loopback: IpAddr = if args.ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let mut about = vec![format!(
        "Loopback ({loopback}) of {}; {}.",
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
    let peers = there(&args.peers, &binaries, &mut about)?;
    let groups = possible(args.rows, &mut about)?;
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
        loopback,
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
            "about": about, "loopback": loopback, "sizes": sizes, "samples": bench.samples, "failures": bench.failures,
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

/// The peers that are there, and what is said of them.
fn there(peers: &[Peer], binaries: &Binaries, about: &mut Vec<String>) -> Result<Vec<Peer>> {
    let mut found = Vec::new();
    for peer in peers {
        match peer.version(binaries) {
            Some(version) => {
                about.push(format!("{}: {version}", peer.name()));
                found.push(*peer);
            }
            None => about.push(format!("{}: not there, left out", peer.name())),
        }
    }
    ensure!(!found.is_empty(), "nobody to measure");
    Ok(found)
}

/// The groups for which there is a client.
fn possible(mut groups: Vec<Group>, about: &mut Vec<String>) -> Result<Vec<Group>> {
    if let Some(version) = h2load::version() {
        about.push(format!("Client of HTTP requests: {version}"));
    } else {
        about.push("h2load is not there, so http and https are left out.".to_owned());
        groups.retain(|group| !matches!(group, Group::Http | Group::Https));
    }
    ensure!(!groups.is_empty(), "nothing to measure");
    Ok(groups)
}

fn sizes(args: &CompareArgs, about: &mut Vec<String>) -> Result<Sizes> {
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
        seconds: 0.6,
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
