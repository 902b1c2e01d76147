//! The run: rounds over the peers, each figure taken from the proxy's own CPU clock and memory, and
//! thrown away when others used the machine meanwhile.

mod calls;
mod datagrams;
mod http;
mod idle;
mod paced;
mod streams;
mod syscalls;
mod udp;

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::backend::{self, Ports};
use crate::child::{self, Guarded, Output};
use crate::client::LoadOutcome;
use crate::h2load::Requests;
use crate::metric::{Figure, Group, Load, Metric, Setting};
use crate::peers::{Binaries, Peer, Role, Running, Scenario};
use crate::proc::{self, Machine, Memory};
use crate::tls::{self, Authority, Leaf};
use crate::web;

/// Short connections and handshakes under way at once.
const CONCURRENCY: usize = 16;
/// Connections that exchange messages at once: enough that neither core falls asleep between them,
/// since waking a core of a virtual machine takes longer than any proxy.
const MESSAGE_CONNECTIONS: usize = 8;
/// Connections of requests that begin at given times, and of `WebSockets`.
const REQUEST_CONNECTIONS: usize = 64;

pub(crate) use syscalls::available as can_count_syscalls;

/// How much of each load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sizes {
    /// Bytes per bulk transfer, all connections together.
    pub(crate) bulk: u64,
    /// Short connections.
    pub(crate) connections: usize,
    /// Seconds of each load of messages.
    pub(crate) seconds: f64,
    /// Handshakes of each kind.
    pub(crate) handshakes: usize,
    /// Idle connections.
    pub(crate) idle: usize,
    /// Hostnames and certificates of the hosts group.
    pub(crate) hosts: usize,
    /// Requests with small answers.
    pub(crate) requests: usize,
    /// Bodies of 10 MB.
    pub(crate) bodies: usize,
    /// Hosts of the routes group, each with so many routes.
    pub(crate) routes: [usize; 2],
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [hosts, paths] = self.routes;
        write!(
            f,
            "{} bytes per transfer, {} connections, {} s of messages at a time, {} handshakes of each kind, {} idle \
             connections, {} hosts, {} requests, {} bodies of 10 MB, {} routes",
            self.bulk,
            self.connections,
            self.seconds,
            self.handshakes,
            self.idle,
            self.hosts,
            self.requests,
            self.bodies,
            hosts * paths
        )
    }
}

/// One trial: the loads of a group, on one peer with one setting, in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Trial {
    /// Group it belongs to.
    pub(crate) group: Group,
    /// Whose.
    pub(crate) peer: Peer,
    /// With which workers and logs.
    pub(crate) setting: Setting,
    /// Round, from 1.
    pub(crate) round: usize,
}

/// One figure of one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// The trial that it comes from.
    #[serde(flatten)]
    pub(crate) trial: Trial,
    /// Which.
    #[serde(flatten)]
    pub(crate) metric: Metric,
    /// The figure.
    pub(crate) value: f64,
    /// Cores' worth of CPU that others used meanwhile.
    pub(crate) foreign: f64,
    /// Whether that was little enough.
    pub(crate) quiet: bool,
}

/// Settings of the run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Whom, in the order of the first round.
    pub(crate) peers: Vec<Peer>,
    /// What.
    pub(crate) groups: Vec<Group>,
    /// Which loads of these; all if there is none.
    pub(crate) loads: Vec<Load>,
    /// With which workers and logs, each for itself.
    pub(crate) settings: Vec<Setting>,
    /// How often.
    pub(crate) rounds: usize,
    /// How much.
    pub(crate) sizes: Sizes,
    /// Foreign CPU that makes a figure noisy, in cores.
    pub(crate) noise: f64,
    /// Attempts at a figure before a noisy one is kept.
    pub(crate) attempts: usize,
    /// Whether system calls are counted, in a further run of each load.
    pub(crate) syscalls: bool,
    /// Peers' binaries.
    pub(crate) binaries: Binaries,
    /// Where proxies and backends listen.
    pub(crate) loopback: IpAddr,
    /// Cores, of which the proxy has the first and the load the last.
    pub(crate) cores: Vec<usize>,
    /// Seconds a single load may take.
    pub(crate) limit: u64,
}

/// Everything that outlives a round.
pub(crate) struct Bench {
    plan: Plan,
    folder: Folder,
    backend: Guarded,
    server: Guarded,
    ports: Ports,
    web: SocketAddr,
    root: PathBuf,
    leaves: Vec<Leaf>,
    /// What was measured.
    pub(crate) samples: Vec<Sample>,
    /// What could not be, and why.
    pub(crate) failures: Vec<String>,
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What is done.
#[derive(Clone, Debug)]
enum Work {
    /// By our own client, with these arguments.
    Client(Vec<String>),
    /// By h2load.
    Requests(Requests),
}

/// A load and what it cost.
struct Cost {
    outcome: LoadOutcome,
    cpu: Duration,
    switches: u64,
    softirq: Duration,
    foreign: f64,
    /// Counted in another run of the same load.
    syscalls: Option<f64>,
}

impl Bench {
    /// Makes certificates and starts the backends.
    pub(crate) fn new(plan: Plan) -> Result<Self> {
        let folder =
            Folder(std::env::temp_dir().join(format!("vestibule-bench-{}", std::process::id())));
        fs::create_dir_all(&folder.0)?;
        let authority = Authority::new()?;
        let root = folder.0.join("root.der");
        fs::write(&root, &authority.root)?;
        let own = authority.leaf(tls::TLS_HOST, &folder.0)?;
        let hosts = if plan.groups.contains(&Group::Hosts) {
            plan.sizes.hosts
        } else {
            1
        };
        let leaves = (0..hosts)
            .map(|index| authority.leaf(&tls::host(index), &folder.0))
            .collect::<Result<_>>()?;

        let [certificate, key, data, body] =
            ["backend.der", "backend-key.der", "data", "body"].map(|name| folder.0.join(name));
        fs::write(&certificate, &own.certificate)?;
        fs::write(&key, &own.key)?;
        fs::write(body, vec![b'b'; web::FILE])?;
        backend::data(&data)?;
        let load_core = *plan.cores.last().context("no core")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("backend").arg("--certificate").arg(certificate);
        command.arg("--key").arg(key).arg("--data").arg(data);
        let loopback = ["--loopback".to_owned(), plan.loopback.to_string()];
        command.args(&loopback);
        let log = folder.0.join("backend.log");
        let mut backend = Guarded::start(command, "the backend", load_core, &log, true)?;
        let ports = backend.line()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("web").args(&loopback);
        let log = folder.0.join("web.log");
        let mut server = Guarded::start(command, "the web server", load_core, &log, true)?;
        let listening: web::Listening = server.line()?;
        Ok(Self {
            plan,
            folder,
            backend,
            server,
            ports,
            web: listening.listen,
            root,
            leaves,
            samples: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// All rounds. A peer that fails is noted and does not end the run; a request to stop does.
    pub(crate) fn run(&mut self) -> Result<()> {
        for setting in self.plan.settings.clone() {
            for round in 1..=self.plan.rounds {
                for group in self.plan.groups.clone() {
                    self.round(group, setting, round);
                    if child::stopped() {
                        return Ok(());
                    }
                }
            }
        }
        self.backend.finish(Duration::from_secs(10))?;
        self.server.finish(Duration::from_secs(10))?;
        Ok(())
    }

    /// One round of one group: what is to be as fast as it can over all peers, then what comes at a rate, which the
    /// slowest of them sets.
    fn round(&mut self, group: Group, setting: Setting, round: usize) {
        let mut peers = self.plan.peers.clone();
        peers.retain(|peer| peer.can(group, setting.logging));
        if peers.is_empty() {
            return;
        }
        // Nobody comes always after the same one.
        let turn = (round - 1) % peers.len();
        peers.rotate_left(turn);
        let paced = Load::PACES.iter().any(|(load, _)| self.wants(group, *load));
        for pass in [Pass::Busy, Pass::Paced] {
            if pass == Pass::Paced && !paced {
                continue;
            }
            for peer in &peers {
                let trial = Trial {
                    group,
                    peer: *peer,
                    setting,
                    round,
                };
                eprintln!(
                    "{setting}, round {round}: {}, {}",
                    group.title(),
                    peer.name()
                );
                let result = match (pass, group) {
                    (Pass::Paced, _) => self.paced(trial),
                    (Pass::Busy, Group::Passthrough | Group::Tcp) => self.passthrough(trial),
                    (Pass::Busy, Group::Terminate) => self.terminate(trial),
                    (Pass::Busy, Group::Http | Group::Https) => self.http(trial),
                    (Pass::Busy, Group::Hosts | Group::Routes) => self.many(trial),
                    (Pass::Busy, Group::Udp) => self.udp(trial),
                    (Pass::Busy, Group::Grpc) => self.grpc(trial),
                    (Pass::Busy, Group::Retries) => self.retries(trial),
                };
                if child::stopped() {
                    return;
                }
                if let Err(error) = result {
                    self.fail(trial, &error);
                }
            }
        }
    }

    fn fail(&mut self, trial: Trial, error: &anyhow::Error) {
        let Trial {
            group,
            peer,
            setting,
            round,
        } = trial;
        let (group, peer) = (group.title(), peer.name());
        self.failures.push(format!(
            "{setting}, round {round}, {group}, {peer}: {error:#}"
        ));
        eprintln!("  failed: {error:#}");
    }

    fn wants(&self, group: Group, load: Load) -> bool {
        group.loads().contains(&load)
            && (self.plan.loads.is_empty() || self.plan.loads.contains(&load))
    }

    /// Starts the first peer for the first group and leaves it running until asked to stop, for a
    /// profiler and loads made by hand.
    pub(crate) fn hold(&self) -> Result<()> {
        let first = (
            self.plan.groups.first(),
            self.plan.peers.first(),
            self.plan.settings.first(),
        );
        let (Some(&group), Some(&peer), Some(&setting)) = first else {
            anyhow::bail!("nothing to hold")
        };
        let running = self.start(peer, group, setting, self.hosts(group), self.paths(group))?;
        let (pid, core) = (running.pid().unwrap_or(0), self.load_core());
        println!(
            "{} is process {pid} at {}; for instance:",
            peer.name(),
            running.listen
        );
        let work = match group {
            Group::Http | Group::Https | Group::Routes => {
                Work::Requests(self.requests(group, Load::Http1)?)
            }
            Group::Passthrough | Group::Terminate | Group::Hosts | Group::Tcp => {
                with_options(group, &["bulk", "down", "1", "6000000000"])
            }
            Group::Udp => self.messages(group, None),
            Group::Grpc => with_options(group, &["calls", "unary", "16", "8", "10"]),
            Group::Retries => self.failing(100, 10.0),
        };
        let command = self.command(&running, &work)?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        println!("taskset -c {core} {}", words.join(" "));
        while !child::stopped() {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Hosts of a group, where all are configured.
    fn hosts(&self, group: Group) -> usize {
        match group {
            Group::Hosts => self.plan.sizes.hosts,
            Group::Routes => self.plan.sizes.routes[0],
            _ => 1,
        }
    }

    fn paths(&self, group: Group) -> usize {
        match group {
            Group::Routes => self.plan.sizes.routes[1],
            _ => 1,
        }
    }

    fn load_core(&self) -> usize {
        self.plan.cores.last().copied().unwrap_or_default()
    }

    fn start(
        &self,
        peer: Peer,
        group: Group,
        setting: Setting,
        hosts: usize,
        paths: usize,
    ) -> Result<Running> {
        let folder = self.folder.0.join("proxy");
        let _ = fs::remove_dir_all(&folder);
        let cores = &self.plan.cores[..setting.workers.min(self.plan.cores.len())];
        let scenario = Scenario {
            role: role(group),
            hosts,
            paths,
            leaves: &self.leaves,
            ports: self.ports,
            web: self.web,
            setting,
            folder: &folder,
            cores,
        };
        peer.start(&scenario, &self.plan.binaries)
    }

    /// Starts it with one host, or none where it passes bytes, and has it answer once.
    fn start_one(&self, trial: Trial) -> Result<Running> {
        let running = self.start(trial.peer, trial.group, trial.setting, 1, 1)?;
        if trial.peer != Peer::Direct {
            self.check(&running, trial.group, 1, 1)?;
        }
        Ok(running)
    }

    /// A right answer for the first and the last host, over TLS that is verified where there is TLS; retried, since
    /// a proxy may bind before it is configured.
    fn check(&self, running: &Running, group: Group, hosts: usize, paths: usize) -> Result<()> {
        let (paths, root) = (paths.to_string(), self.root.display().to_string());
        let check = ["check", "--root", &root];
        let of = |host: &str, options: &[&str]| {
            let name = ["--name", host];
            let words = name.iter().chain(options).chain(&check);
            Work::Client(words.map(|word| (*word).to_owned()).collect())
        };
        let (first, last) = (tls::host(0), tls::host(hosts - 1));
        let works = match role(group) {
            Role::Passthrough => vec![of(tls::TLS_HOST, &[])],
            Role::Tcp => vec![of(&first, &["--plain"])],
            Role::Terminate => vec![of(&first, &[]), of(&last, &[])],
            Role::Http => [first, last]
                .map(|host| of(&host, &["--http", "--paths", &paths]))
                .to_vec(),
            Role::Https => [first, last]
                .map(|host| of(&host, &["--http", "--tls"]))
                .to_vec(),
            Role::Udp => vec![with_options(
                group,
                &["datagrams", "64", "1", "1", "--once"],
            )],
            Role::Grpc => vec![with_options(group, &["calls", "stream", "1", "1", "0"])],
            Role::Retries => vec![self.failing(1, 0.0)],
        };
        for work in works {
            let mut last = None;
            child::poll(Duration::from_mins(1), "a right answer", || {
                match self.load(running, &work) {
                    Ok(_) => Ok(Some(())),
                    Err(error) => {
                        last = Some(error);
                        Ok(None)
                    }
                }
            })
            .map_err(|error| match last.take() {
                Some(last) => error.context(format!("{last:#}")),
                None => error,
            })?;
        }
        Ok(())
    }

    fn command(&self, running: &Running, work: &Work) -> Result<Command> {
        Ok(match work {
            Work::Client(args) => {
                let mut command = Command::new(std::env::current_exe()?);
                let (target, limit) = (running.listen.to_string(), self.plan.limit.to_string());
                command
                    .args(["client", "--target", &target, "--limit", &limit])
                    .args(args);
                command
            }
            Work::Requests(requests) => requests.command(running.listen, self.plan.limit),
        })
    }

    fn client(&self, running: &Running, work: &Work) -> Result<Guarded> {
        let command = self.command(running, work)?;
        let core = [self.load_core()];
        Guarded::start_with(
            command,
            "the client",
            &core,
            &self.client_log(),
            Output::Talk,
        )
    }

    fn client_log(&self) -> PathBuf {
        self.folder.0.join("client.log")
    }

    fn load(&self, running: &Running, work: &Work) -> Result<LoadOutcome> {
        let mut client = self.client(running, work)?;
        let outcome = match work {
            Work::Client(_) => client.line(),
            Work::Requests(requests) => client.text().and_then(|text| requests.outcome(&text)),
        };
        client.finish(Duration::from_secs(5))?;
        outcome.map_err(|error| self.client_said(error))
    }

    /// Why a client failed: what it said of it, or what became of its output.
    fn client_said(&self, error: anyhow::Error) -> anyhow::Error {
        let log = fs::read_to_string(self.client_log()).unwrap_or_default();
        match log.trim() {
            "" => error.context("the client"),
            log => anyhow::anyhow!("the client said: {}", log.replace('\n', " | ")),
        }
    }

    /// Runs the load until one run of it was quiet, or keeps the quietest.
    fn cost(&self, running: &Running, work: &Work) -> Result<Cost> {
        let mut best: Option<Cost> = None;
        let pid = running.pid();
        for _ in 0..self.plan.attempts.max(1) {
            let servers = [self.backend.pid(), self.server.pid()];
            let pids: Vec<u32> = pid.into_iter().chain(servers).collect();
            let used = || pid.map_or(Duration::ZERO, proc::cpu);
            let slept = || pid.map_or(0, proc::voluntary_switches);
            let (machine, before, switches) = (Machine::read(&pids), used(), slept());
            let outcome = self.load(running, work)?;
            let after = Machine::read(&pids);
            settle(pid);
            let cost = Cost {
                outcome,
                cpu: used().saturating_sub(before),
                switches: slept().saturating_sub(switches),
                softirq: after.softirq_since(&machine),
                foreign: after.foreign_since(&machine),
                syscalls: None,
            };
            let quiet = cost.foreign <= self.plan.noise;
            if best.as_ref().is_none_or(|best| cost.foreign < best.foreign) {
                best = Some(cost);
            }
            if quiet {
                break;
            }
        }
        let mut cost = best.context("no attempt was made")?;
        if let Some(pid) = pid.filter(|_| self.plan.syscalls) {
            let counter = syscalls::Counter::start(pid, &self.folder.0)?;
            let outcome = self.load(running, work)?;
            let calls = counter.stop()?;
            // As many as the run that is measured would have had.
            let share = (cost.outcome.answered.max(1)) as f64 / (outcome.answered.max(1)) as f64;
            cost.syscalls = Some(calls * share);
        }
        Ok(cost)
    }

    fn add(&mut self, trial: Trial, load: Load, foreign: f64, figures: &[(Figure, f64)]) {
        let quiet = foreign <= self.plan.noise;
        for &(figure, value) in figures {
            self.samples.push(Sample {
                trial,
                metric: Metric { load, figure },
                value,
                foreign,
                quiet,
            });
        }
    }

    /// What a load of so many units cost, for each of them.
    fn record(&mut self, trial: Trial, load: Load, cost: &Cost, units: f64) -> Result<()> {
        ensure!(units > 0.0, "nothing was done");
        let (_, scale) = trial.group.unit(load).time();
        let time = |time: Duration| time.as_secs_f64() * scale / units;
        let mut figures = vec![(Figure::Softirq, time(cost.softirq))];
        if load.figures().contains(&Figure::Rate) {
            figures.push((Figure::Rate, units / cost.outcome.seconds));
        }
        if trial.peer != Peer::Direct {
            figures.push((Figure::Cpu, time(cost.cpu)));
            figures.push((Figure::Switches, cost.switches as f64 / units));
            if let Some(calls) = cost.syscalls {
                figures.push((Figure::Syscalls, calls / units));
            }
        }
        self.add(trial, load, cost.foreign, &figures);
        Ok(())
    }
}

/// The two halves of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Loads that keep the proxy busy.
    Busy,
    /// Loads that begin at given times.
    Paced,
}

fn role(group: Group) -> Role {
    match group {
        Group::Passthrough => Role::Passthrough,
        Group::Terminate | Group::Hosts => Role::Terminate,
        Group::Http | Group::Routes => Role::Http,
        Group::Https => Role::Https,
        Group::Tcp => Role::Tcp,
        Group::Udp => Role::Udp,
        Group::Grpc => Role::Grpc,
        Group::Retries => Role::Retries,
    }
}

/// Options of our own client for the one host of a group.
fn options(group: Group) -> Vec<String> {
    let host = tls::host(0);
    let words: &[&str] = match role(group) {
        Role::Passthrough | Role::Udp => &[],
        Role::Tcp => &["--plain"],
        Role::Grpc | Role::Retries => &["--name", &host],
        Role::Terminate => &["--tls", "--name", &host],
        Role::Http => &["--http", "--name", &host],
        Role::Https => &["--http", "--tls", "--name", &host],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Work of our own client with the one host of a group.
fn with_options(group: Group, own: &[&str]) -> Work {
    let own = own.iter().map(|word| (*word).to_owned());
    Work::Client(options(group).into_iter().chain(own).collect())
}

/// Waits until the proxy has done what the load left to do: two looks in a row without work, at most
/// two seconds.
fn settle(pid: Option<u32>) {
    const LOOK: Duration = Duration::from_millis(50);
    let Some(pid) = pid else { return };
    let deadline = Instant::now() + Duration::from_secs(2);
    let (mut last, mut still) = (proc::cpu(pid), 0);
    while still < 2 && Instant::now() < deadline {
        thread::sleep(LOOK);
        let now = proc::cpu(pid);
        still = if now.saturating_sub(last) < Duration::from_millis(1) {
            still + 1
        } else {
            0
        };
        last = now;
    }
}

/// Waits until the process has given no memory back for 3 s, at most 20 s, and returns what it holds then. Whoever gives
/// memory back does not do so at once.
fn settled_memory(pid: u32) -> Memory {
    const LOOK: Duration = Duration::from_millis(250);
    const STILL: Duration = Duration::from_secs(3);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut least = proc::memory(pid);
    let mut since = Instant::now();
    while since.elapsed() < STILL && Instant::now() < deadline {
        thread::sleep(LOOK);
        let now = proc::memory(pid);
        // Less than a hundredth is no news.
        if now.user < least.user / 100 * 99 {
            since = Instant::now();
            least = now;
        }
    }
    proc::memory(pid)
}
