//! The bench of neighbours: one tenant's clients at steady rates, alone and beside a hostile tenant or hostile
//! clients, at vestibule-proxy, `HAProxy` and Envoy. Prints a table, and a page with plots; asserts nothing.
//!
//! Everything is on loopback. The proxy has one core; the clients, the attackers and the backends have another
//! one, where the clients that are measured come before the attackers.

pub(crate) mod attack;
mod plot;
mod proxies;
mod report;
pub(crate) mod steady;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::attack::{Done, Kind, Ready};
use self::proxies::{NOISY, Proxy, REGEX, RSA, Running, STEADY, Setting, Site, hostname};
use self::steady::SteadyOutcome;
use crate::backend::{self, Ports};
use crate::child::{self, Guarded, Output};
use crate::peers::Binaries;
use crate::proc::{self, Machine};
use crate::sys;
use crate::tls::{Authority, TLS_HOST};
use crate::web;

/// The place of the proxy and of the clients that are measured, before whatever else runs on the machine. Only
/// root gets it.
const FIRST: i32 = -19;
/// The place of the attackers: behind those, and before the rest of the machine.
const SECOND: i32 = -10;
/// What a web server lets wait in the kernel for a connection. Clients that read nothing have thousands of connections, and
/// all of them share the memory for TCP of one machine here, which drops everybody's segments when it is used up.
const SEND_BUFFER: &str = "--send-buffer=65536";
/// Regular expressions of a route, as in the issue that asks for this bench.
const PATTERNS: usize = 60;

/// Options of `vestibule-bench neighbours`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NeighbourArgs {
    /// Neighbours to measure beside.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bulk,handshakes,tunnels,idle,slow-read,rapid-reset,regex,regex-largest,slow-hellos,rsa,log-pipe"
    )]
    only: Vec<Row>,
    /// Whom to measure; those not installed are left out and named.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "vestibule,haproxy,envoy"
    )]
    peers: Vec<Proxy>,
    /// Requests a second of the steady tenant; fewer where the machine does not carry them.
    #[arg(long, default_value_t = 1000.0)]
    requests: f64,
    /// Handshakes a second of the steady tenant, likewise.
    #[arg(long, default_value_t = 200.0)]
    handshakes: f64,
    /// Seconds of each measurement, alone and beside.
    #[arg(long)]
    seconds: Option<f64>,
    /// Idle connections (fewer if the limit of open files is lower).
    #[arg(long)]
    idle: Option<usize>,
    /// Rounds over all neighbours and proxies; medians are of these.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Shorter measurements and fewer idle connections.
    #[arg(long)]
    quick: bool,
    /// vestibule-proxy [default: beside this binary]
    #[arg(long)]
    ours: Option<PathBuf>,
    /// Envoy [default: from PATH]
    #[arg(long, env = "VESTIBULE_BENCH_ENVOY", default_value = "envoy")]
    envoy: PathBuf,
    /// Write every figure there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write a page with plots there.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Stay in the machine's network namespace, with its settings.
    #[arg(long)]
    shared_network: bool,
}

/// The neighbour that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Row {
    /// Bulk passthrough on 200 connections.
    Bulk,
    /// A flood of handshakes that the client has no work with.
    Handshakes,
    /// A flood of passed-through connections.
    Tunnels,
    /// 10,000 connections that do nothing.
    Idle,
    /// 50 HTTP/2 connections that ask for much and read nothing.
    SlowRead,
    /// Requests that are taken back, again and again.
    RapidReset,
    /// 60 expressions like `/([01]*1[01]{600})x7`, and paths of 64,000 bytes.
    Regex,
    /// 60 of the most expensive expressions that admission lets in, and the same paths.
    RegexLargest,
    /// 1,000 hellos a second that come byte by byte.
    SlowHellos,
    /// A flood of handshakes with an RSA-4096 key.
    Rsa,
    /// Nobody, but the proxy's log is a pipe that is not read.
    LogPipe,
}

impl Row {
    fn title(self) -> &'static str {
        match self {
            Self::Bulk => "bulk passthrough, 200 connections",
            Self::Handshakes => "flood of handshakes",
            Self::Tunnels => "flood of passed-through connections",
            Self::Idle => "idle connections",
            Self::SlowRead => "HTTP/2 slow reads",
            Self::RapidReset => "rapid resets",
            Self::Regex => "expressions that no limit lets in",
            Self::RegexLargest => "the largest expressions let in",
            Self::SlowHellos => "1,000 slow hellos a second",
            Self::Rsa => "flood of RSA-4096 handshakes",
            Self::LogPipe => "log that is not read",
        }
    }

    fn attack(self) -> Option<Kind> {
        match self {
            Self::Bulk => Some(Kind::Bulk),
            Self::Handshakes => Some(Kind::Handshakes),
            Self::Tunnels => Some(Kind::Tunnels),
            Self::Idle => Some(Kind::Idle),
            Self::SlowRead => Some(Kind::SlowRead),
            Self::RapidReset => Some(Kind::RapidReset),
            Self::Regex | Self::RegexLargest => Some(Kind::Regex),
            Self::SlowHellos => Some(Kind::SlowHellos),
            Self::Rsa => Some(Kind::Rsa),
            Self::LogPipe => None,
        }
    }

    /// First label of the hostname that the attack asks for.
    fn target(self) -> &'static str {
        match self {
            Self::Regex | Self::RegexLargest => REGEX,
            Self::Rsa => RSA,
            _ => NOISY,
        }
    }

    /// The noisy route's expressions.
    fn patterns(self) -> Vec<String> {
        let pattern: fn(usize) -> String = match self {
            Self::Regex => |number| format!("/([01]*1[01]{{600}})x{number}"),
            // Close to 64 states, each of which is met again and again.
            Self::RegexLargest => |number| format!("/([01]*1[01]{{5}})x{number}"),
            _ => return Vec::new(),
        };
        (0..PATTERNS).map(pattern).collect()
    }

    /// Whether there is anything like it at this proxy: only ours has expressions that tenants write, and the
    /// others' default limits refuse the paths.
    fn is_for(self, proxy: Proxy) -> bool {
        proxy == Proxy::Vestibule || !matches!(self, Self::Regex | Self::RegexLargest)
    }
}

/// What was measured of one proxy beside one neighbour in one round.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    row: Row,
    proxy: Proxy,
    round: usize,
    alone: SteadyOutcome,
    beside: SteadyOutcome,
    /// Cores' worth of CPU that the proxy used beside the neighbour.
    cpu: f64,
    /// Cores' worth of CPU that others used meanwhile.
    foreign: f64,
    /// The proxy's memory before the attack, bytes.
    resident: u64,
    /// The most memory that it had, bytes.
    peak: u64,
    /// Connections of the attack that stood at its beginning.
    standing: u64,
    attack: Done,
    /// The proxy was still there at the end.
    survived: bool,
}

/// What was asked of every proxy.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rates {
    requests: f64,
    handshakes: f64,
    seconds: f64,
    idle: usize,
}

/// Everything that outlives a row.
struct Bench {
    site: Site,
    binaries: Binaries,
    rates: Rates,
    cores: (usize, usize),
    /// The backends.
    servers: Vec<Guarded>,
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints.
pub(crate) fn run(args: &NeighbourArgs) -> Result<()> {
    let network = crate::network(args.shared_network);
    let binaries = Binaries {
        ours: args.ours.clone().map_or_else(
            || std::env::current_exe().map(|path| path.with_file_name("vestibule-proxy")),
            Ok,
        )?,
        envoy: args.envoy.clone(),
        haproxy_next: None,
        sozu: None,
    };
    println!(
        "Loopback of {network}; {}; load {}.\n",
        sys::machine(),
        load()
    );
    let mut proxies = Vec::new();
    for proxy in &args.peers {
        match proxy.version(&binaries) {
            Some(version) => {
                println!("- {}: {version}", proxy.name());
                proxies.push(*proxy);
            }
            None => println!("- {}: not there, left out", proxy.name()),
        }
    }
    ensure!(!proxies.is_empty(), "nobody to measure");
    let idle = idle(args)?;
    crate::watch_for_stop()?;
    let folder =
        Folder(std::env::temp_dir().join(format!("vestibule-bench-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let rates = Rates {
        requests: args.requests,
        handshakes: args.handshakes,
        seconds: args.seconds.unwrap_or(if args.quick { 4.0 } else { 15.0 }),
        idle,
    };
    let mut bench = Bench::new(folder.0.clone(), binaries, rates)?;
    bench.calibrate(proxies[0])?;
    let rates = bench.rates;
    println!(
        "\nThe steady tenant: {} requests and {} handshakes a second for {} s each time; {} idle connections; rounds: {}.\n",
        rates.requests, rates.handshakes, rates.seconds, rates.idle, args.rounds
    );
    let mut all = Vec::new();
    let mut failures = Vec::new();
    'rounds: for round in 1..=args.rounds {
        for row in &args.only {
            for proxy in proxies.iter().filter(|proxy| row.is_for(**proxy)) {
                eprintln!("round {round}: {}, {}", row.title(), proxy.name());
                match bench.measure(*row, *proxy, round) {
                    Ok(figures) => all.push(figures),
                    Err(error) => {
                        eprintln!("  failed: {error:#}");
                        let title = row.title();
                        failures.push(format!("{title}, {}: {error:#}", proxy.name()));
                    }
                }
                if child::stopped() {
                    break 'rounds;
                }
            }
        }
    }
    print!("{}", report::markdown(&all));
    for failure in &failures {
        println!("- not measured: {failure}");
    }
    println!("\nLoad at the end: {}.", load());
    if let Some(path) = &args.json {
        let value = serde_json::json!({
            "machine": sys::machine(), "rates": rates, "figures": all, "failures": failures,
        });
        fs::write(path, serde_json::to_vec_pretty(&value)?).context("writing the JSON")?;
    }
    if let Some(path) = &args.html {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, plot::page(&all, &rates, &sys::machine())).context("writing the page")?;
        println!("Plots: {}", path.display());
    }
    Ok(())
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// How many idle connections fit: the proxy has two descriptors for each, and so have client and backend
/// together.
fn idle(args: &NeighbourArgs) -> Result<usize> {
    let wanted = args.idle.unwrap_or(if args.quick { 1_000 } else { 10_000 });
    let limit = sys::raise_open_files(2 * wanted as u64 + 2_000)?;
    let fit = usize::try_from(limit.saturating_sub(1_000) / 2)?;
    if wanted > fit {
        println!("- open files are limited to {limit}: {fit} idle connections instead of {wanted}");
    }
    Ok(wanted.min(fit))
}

impl Bench {
    fn new(folder: PathBuf, binaries: Binaries, rates: Rates) -> Result<Self> {
        let cores = sys::cores();
        let first = *cores.first().context("no core")?;
        let last = *cores.last().context("no core")?;
        if first == last {
            println!("- one core only: everybody shares it, and the figures say little");
        }
        let authority = Authority::new()?;
        let leaves = [STEADY, NOISY, REGEX].map(|label| authority.leaf(&hostname(label), &folder));
        let mut leaves = leaves.into_iter().collect::<Result<Vec<_>>>()?;
        leaves.push(authority.rsa_leaf(&hostname(RSA), &folder)?);

        let mut servers = Vec::new();
        let mut web = |nice: i32, name: &str| -> Result<SocketAddr> {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("web").arg(SEND_BUFFER);
            sys::prioritise(&mut command, nice);
            let log = folder.join(format!("{name}.log"));
            let mut server = Guarded::start(command, name, last, &log, true)?;
            let listening: web::Listening = server.line()?;
            servers.push(server);
            Ok(listening.listen)
        };
        let (steady, noisy) = (web(FIRST, "steady-web")?, web(SECOND, "noisy-web")?);

        let own = authority.leaf(TLS_HOST, &folder)?;
        let [certificate, key, data] = ["raw.der", "raw-key.der", "data"].map(|n| folder.join(n));
        fs::write(&certificate, &own.certificate)?;
        fs::write(&key, &own.key)?;
        backend::data(&data)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("backend").arg("--certificate").arg(certificate);
        command.arg("--key").arg(key).arg("--data").arg(data);
        sys::prioritise(&mut command, SECOND);
        let log = folder.join("raw.log");
        let mut server = Guarded::start(command, "the raw backend", last, &log, true)?;
        let ports: Ports = server.line()?;
        servers.push(server);
        Ok(Self {
            site: Site {
                leaves,
                steady,
                noisy,
                raw: ports.raw,
                folder,
            },
            binaries,
            rates,
            cores: (first, last),
            servers,
        })
    }

    /// Halves the rates until a proxy carries them with room to spare.
    fn calibrate(&mut self, proxy: Proxy) -> Result<()> {
        /// Cores of CPU that the proxy may need for the steady tenant alone.
        const SHARE: f64 = 0.6;
        /// Lateness of the clients, milliseconds.
        const LATE: f64 = 25.0;
        for _ in 0..4 {
            let running = self.start(proxy, &Setting::default())?;
            let before = proc::cpu(running.process.pid());
            let outcome = self.steady(&running, self.rates.requests, self.rates.handshakes, 2.0)?;
            let used = proc::cpu(running.process.pid()).saturating_sub(before);
            let share = used.as_secs_f64() / 2.5;
            let failed = outcome.requests.failed + outcome.handshakes.failed;
            if share <= SHARE && failed == 0 && outcome.late <= LATE {
                return Ok(());
            }
            self.rates.requests /= 2.0;
            self.rates.handshakes /= 2.0;
            println!(
                "- the machine does not carry that many ({share:.2} of a core at {}, {failed} failed, the clients \
                 {:.1} ms late): now {} requests and {} handshakes a second",
                proxy.name(),
                outcome.late,
                self.rates.requests,
                self.rates.handshakes
            );
        }
        Ok(())
    }

    /// Starts a proxy that answers.
    fn start(&self, proxy: Proxy, setting: &Setting) -> Result<Running> {
        let running = proxy.start(&self.site, setting, &self.binaries, self.cores.0, FIRST)?;
        child::poll(Duration::from_secs(30), "a good answer", || {
            let outcome = self.steady(&running, 20.0, 20.0, 0.3)?;
            let failed = outcome.requests.failed + outcome.handshakes.failed;
            Ok((failed == 0).then_some(()))
        })?;
        Ok(running)
    }

    fn steady(
        &self,
        running: &Running,
        requests: f64,
        handshakes: f64,
        seconds: f64,
    ) -> Result<SteadyOutcome> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("steady").args(["--name", &hostname(STEADY)]);
        for (name, value) in [
            ("--target", running.https.to_string()),
            ("--requests", requests.to_string()),
            ("--handshakes", handshakes.to_string()),
            ("--seconds", seconds.to_string()),
        ] {
            command.args([name, &value]);
        }
        sys::prioritise(&mut command, FIRST);
        let log = self.site.folder.join("steady.log");
        let mut client = Guarded::start(command, "the clients", self.cores.1, &log, true)?;
        let outcome = client.line().map_err(|error| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            error.context(text.trim().to_owned())
        })?;
        client.finish(Duration::from_secs(5))?;
        Ok(outcome)
    }

    fn attack(&self, running: &Running, row: Row, kind: Kind) -> Result<Guarded> {
        let mut command = Command::new(std::env::current_exe()?);
        let kind = kind
            .to_possible_value()
            .context("an attack without a name")?;
        command.arg("attack").arg(kind.get_name());
        for (name, value) in [
            ("--target", running.https.to_string()),
            ("--passthrough", running.passthrough.to_string()),
            ("--name", hostname(row.target())),
        ] {
            command.args([name, &value]);
        }
        if row == Row::Idle {
            command.args(["--connections", &self.rates.idle.to_string()]);
        }
        sys::prioritise(&mut command, SECOND);
        let log = self.site.folder.join("attack.log");
        Guarded::start_with(command, "the attack", &[self.cores.1], &log, Output::Talk)
    }

    fn measure(&mut self, row: Row, proxy: Proxy, round: usize) -> Result<Figures> {
        let mut setting = Setting {
            patterns: row.patterns(),
            log_unread: false,
        };
        let Rates {
            requests,
            handshakes,
            seconds,
            ..
        } = self.rates;
        let mut running = self.start(proxy, &setting)?;
        let alone = self.steady(&running, requests, handshakes, seconds)?;
        if row == Row::LogPipe {
            drop(running);
            setting.log_unread = true;
            running = self.start(proxy, &setting)?;
        }
        let pid = running.process.pid();
        let resident = proc::memory(pid).resident;
        let mut attack = match row.attack() {
            Some(kind) => Some(self.attack(&running, row, kind)?),
            None => None,
        };
        let ready: Ready = attack
            .as_mut()
            .map_or(Ok(Ready::default()), Guarded::line)?;
        let mut pids: Vec<u32> = self.servers.iter().map(Guarded::pid).collect();
        pids.push(pid);
        pids.extend(attack.as_ref().map(Guarded::pid));
        let (machine, before) = (Machine::read(&pids), proc::cpu(pid));
        let begun = std::time::Instant::now();
        let beside = self.steady(&running, requests, handshakes, seconds)?;
        let wall = begun.elapsed().as_secs_f64();
        let used = proc::cpu(pid).saturating_sub(before);
        let foreign = Machine::read(&pids).foreign_since(&machine);
        let peak = proc::tree(pid).into_iter().map(proc::peak).sum();
        let survived = running.process.ended()?.is_none();
        let mut done = Done::default();
        if let Some(attack) = &mut attack {
            attack.finish(Duration::from_secs(20))?;
            done = attack.line()?;
        }
        Ok(Figures {
            row,
            proxy,
            round,
            alone,
            beside,
            cpu: used.as_secs_f64() / wall,
            foreign,
            resident,
            peak,
            standing: ready.standing,
            attack: done,
            survived,
        })
    }
}
