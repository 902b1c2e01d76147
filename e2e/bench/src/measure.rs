//! The run: rounds over the peers, each figure taken from the proxy's own CPU clock and memory, and
//! thrown away when others used the machine meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::backend::{self, Ports};
use crate::child::{self, Guarded};
use crate::client::Outcome;
use crate::metric::{Group, Metric};
use crate::peers::{Binaries, Peer, Role, Running, Scenario};
use crate::proc::{self, Machine, Memory};
use crate::tls::{self, Authority, Leaf};

/// Short connections and handshakes under way at once.
const CONCURRENCY: usize = 16;
/// Connections that exchange messages at once: enough that neither core falls asleep between them,
/// since waking a core of a virtual machine takes longer than any proxy.
const ROUND_TRIP_CONNECTIONS: usize = 8;
/// Share of connections that must have resumed for the figure to be one of resumption.
const RESUMED: f64 = 0.95;

/// How much of each load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sizes {
    /// Bytes per bulk transfer, all connections together.
    pub(crate) bulk: u64,
    /// Short connections.
    pub(crate) connections: usize,
    /// Messages on the one connection.
    pub(crate) round_trips: usize,
    /// Handshakes of each kind.
    pub(crate) handshakes: usize,
    /// Idle connections.
    pub(crate) idle: usize,
    /// Hostnames and certificates of the hosts group.
    pub(crate) hosts: usize,
}

/// One figure of one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Group it belongs to.
    pub(crate) group: Group,
    /// Whose.
    pub(crate) peer: Peer,
    /// Which.
    pub(crate) metric: Metric,
    /// Round, from 1.
    pub(crate) round: usize,
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
    /// Whom, in order.
    pub(crate) peers: Vec<Peer>,
    /// What.
    pub(crate) groups: Vec<Group>,
    /// How often.
    pub(crate) rounds: usize,
    /// How much.
    pub(crate) sizes: Sizes,
    /// Foreign CPU that makes a figure noisy, in cores.
    pub(crate) noise: f64,
    /// Attempts at a figure before a noisy one is kept.
    pub(crate) attempts: usize,
    /// Peers' binaries.
    pub(crate) binaries: Binaries,
    /// Core of the proxy.
    pub(crate) proxy_core: usize,
    /// Core of client and backend.
    pub(crate) load_core: usize,
    /// Seconds a single load may take.
    pub(crate) limit: u64,
}

/// Everything that outlives a round.
pub(crate) struct Bench {
    plan: Plan,
    folder: Folder,
    backend: Guarded,
    ports: Ports,
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

/// A load and what it cost.
struct Cost {
    outcome: Outcome,
    cpu: Duration,
    foreign: f64,
}

impl Bench {
    /// Makes certificates and starts the backend.
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

        let (certificate, key) = (
            folder.0.join("backend.der"),
            folder.0.join("backend-key.der"),
        );
        fs::write(&certificate, &own.certificate)?;
        fs::write(&key, &own.key)?;
        let data = folder.0.join("data");
        backend::data(&data)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("backend")
            .arg("--certificate")
            .arg(certificate)
            .arg("--key")
            .arg(key)
            .arg("--data")
            .arg(data);
        let log = folder.0.join("backend.log");
        let mut backend = Guarded::start(command, "the backend", plan.load_core, &log, true)?;
        let ports = backend.line()?;
        Ok(Self {
            plan,
            folder,
            backend,
            ports,
            root,
            leaves,
            samples: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// All rounds. A peer that fails is noted and does not end the run; a request to stop does.
    pub(crate) fn run(&mut self) -> Result<()> {
        for round in 1..=self.plan.rounds {
            for group in self.plan.groups.clone() {
                for peer in self.plan.peers.clone() {
                    if !peer.can(role(group), hosts(group, &self.plan)) {
                        continue;
                    }
                    eprintln!("round {round}: {group:?}, {}", peer.name());
                    let result = match group {
                        Group::Passthrough => self.passthrough(peer, round),
                        Group::Terminate => self.terminate(peer, round),
                        Group::Hosts => self.hosts(peer, round),
                    };
                    if child::stopped() {
                        return Ok(());
                    }
                    if let Err(error) = result {
                        self.failures.push(format!(
                            "round {round}, {group:?}, {}: {error:#}",
                            peer.name()
                        ));
                        eprintln!("  failed: {error:#}");
                    }
                }
            }
        }
        self.backend.finish(Duration::from_secs(10))?;
        Ok(())
    }

    /// Starts the first peer for the first group and leaves it running until asked to stop, for a
    /// profiler and loads made by hand.
    pub(crate) fn hold(&self) -> Result<()> {
        let (group, peer) = self
            .plan
            .groups
            .first()
            .zip(self.plan.peers.first())
            .map(|(group, peer)| (*group, *peer))
            .context("nothing to hold")?;
        let running = self.start(peer, role(group), hosts(group, &self.plan))?;
        let pid = running.process.as_ref().map_or(0, Guarded::pid);
        let (listen, core) = (running.listen, self.plan.load_core);
        let tls = match role(group) {
            Role::Passthrough => String::new(),
            Role::Terminate => format!("--tls --name {} ", tls::host(0)),
        };
        println!(
            "{} is process {pid} at {listen}; for instance:",
            peer.name()
        );
        println!(
            "taskset -c {core} {} client --target {listen} {tls}bulk 1 6000000000",
            std::env::current_exe()?.display()
        );
        while !child::stopped() {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn start(&self, peer: Peer, role: Role, hosts: usize) -> Result<Running> {
        let leaves = self
            .leaves
            .get(..hosts)
            .context("more hosts than certificates")?;
        let folder = self.folder.0.join("proxy");
        let _ = fs::remove_dir_all(&folder);
        let scenario = Scenario {
            role,
            leaves,
            ports: self.ports,
            folder: &folder,
            core: self.plan.proxy_core,
        };
        peer.start(&scenario, &self.plan.binaries)
    }

    /// A verified TLS request for each name; retried, since a proxy may bind before it is configured.
    fn check(&self, running: &Running, names: &[String]) -> Result<()> {
        let root = self.root.display().to_string();
        for name in names {
            child::poll(
                Duration::from_secs(30),
                &format!("a verified answer for {name}"),
                || {
                    Ok(self
                        .load(running, &["--name", name, "check", "--root", &root])
                        .ok())
                },
            )?;
        }
        Ok(())
    }

    fn client(&self, running: &Running, args: &[&str]) -> Result<Guarded> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("client")
            .arg("--target")
            .arg(running.listen.to_string());
        command
            .arg("--limit")
            .arg(self.plan.limit.to_string())
            .args(args);
        Guarded::start(
            command,
            "the client",
            self.plan.load_core,
            &self.client_log(),
            true,
        )
    }

    fn client_log(&self) -> PathBuf {
        self.folder.0.join("client.log")
    }

    fn load(&self, running: &Running, args: &[&str]) -> Result<Outcome> {
        let mut client = self.client(running, args)?;
        let outcome = client.line();
        client.finish(Duration::from_secs(5))?;
        outcome.map_err(|error| {
            let log = fs::read_to_string(self.client_log()).unwrap_or_default();
            error.context(format!(
                "the client said: {}",
                log.trim().replace('\n', " | ")
            ))
        })
    }

    /// Runs the load until one run of it was quiet, or keeps the quietest.
    fn cost(&self, running: &Running, args: &[&str]) -> Result<Cost> {
        let mut best: Option<Cost> = None;
        for _ in 0..self.plan.attempts.max(1) {
            let pid = running.process.as_ref().map(Guarded::pid);
            let pids: Vec<u32> = pid.into_iter().chain([self.backend.pid()]).collect();
            let used = || pid.map_or(Duration::ZERO, proc::cpu);
            let (machine, before) = (Machine::read(&pids), used());
            let outcome = self.load(running, args)?;
            let foreign = Machine::read(&pids).foreign_since(&machine);
            settle(pid);
            let cost = Cost {
                outcome,
                cpu: used().saturating_sub(before),
                foreign,
            };
            let quiet = foreign <= self.plan.noise;
            if best.as_ref().is_none_or(|best| foreign < best.foreign) {
                best = Some(cost);
            }
            if quiet {
                break;
            }
        }
        best.context("no attempt was made")
    }

    fn add(
        &mut self,
        group: Group,
        peer: Peer,
        round: usize,
        foreign: f64,
        figures: &[(Metric, f64)],
    ) {
        let quiet = foreign <= self.plan.noise;
        for &(metric, value) in figures {
            self.samples.push(Sample {
                group,
                peer,
                metric,
                round,
                value,
                foreign,
                quiet,
            });
        }
    }

    fn bulk(
        &mut self,
        group: Group,
        peer: Peer,
        round: usize,
        running: &Running,
        options: &[&str],
    ) -> Result<()> {
        let pairs = [
            (1, Metric::CpuPerGb1, Metric::GbPerSecond1),
            (16, Metric::CpuPerGb16, Metric::GbPerSecond16),
        ];
        for (connections, cpu, speed) in pairs {
            let each = (self.plan.sizes.bulk / connections).to_string();
            let connections = connections.to_string();
            let args = [options, &["bulk", &connections, &each]].concat();
            let cost = self.cost(running, &args)?;
            let gigabytes = cost.outcome.bytes as f64 / 1e9;
            let figures = [
                (cpu, cost.cpu.as_secs_f64() / gigabytes),
                (speed, gigabytes / cost.outcome.seconds),
            ];
            self.add(group, peer, round, cost.foreign, &figures);
        }
        Ok(())
    }

    /// CPU of one connection of a kind, microseconds, and the outcome.
    fn connections(
        &self,
        running: &Running,
        count: usize,
        options: &[&str],
    ) -> Result<(f64, Cost)> {
        let (count, concurrency) = (count.to_string(), CONCURRENCY.to_string());
        let cost = self.cost(
            running,
            &[options, &["connect", &count, &concurrency]].concat(),
        )?;
        let made = cost.outcome.connections;
        // The tickets of a resuming client come from full handshakes before the clock of the client,
        // but within that of the proxy: too few to matter.
        ensure!(made > 0, "no connection was made");
        Ok((cost.cpu.as_secs_f64() * 1e6 / made as f64, cost))
    }

    fn passthrough(&mut self, peer: Peer, round: usize) -> Result<()> {
        let group = Group::Passthrough;
        let running = self.start(peer, Role::Passthrough, 1)?;
        if peer != Peer::Direct {
            self.check(&running, &[tls::TLS_HOST.to_owned()])?;
        }
        let (micros, cost) = self.connections(&running, self.plan.sizes.connections, &[])?;
        let rate = cost.outcome.connections as f64 / cost.outcome.seconds;
        let figures = [
            (Metric::CpuPerConnection, micros),
            (Metric::ConnectionsPerSecond, rate),
        ];
        self.add(group, peer, round, cost.foreign, &figures);

        let (count, lanes) = (
            self.plan.sizes.round_trips.to_string(),
            ROUND_TRIP_CONNECTIONS.to_string(),
        );
        let cost = self.cost(&running, &["round-trips", &count, &lanes])?;
        let pairs = [
            (Metric::Added50, Metric::RoundTrip50, cost.outcome.p50),
            (Metric::Added99, Metric::RoundTrip99, cost.outcome.p99),
        ];
        for (added, metric, value) in pairs {
            let direct = self.samples.iter().find(|sample| {
                (sample.peer, sample.metric, sample.round) == (Peer::Direct, metric, round)
            });
            // A difference is as noisy as the noisier of the two.
            let direct = direct.map(|direct| (direct.value, direct.foreign.max(cost.foreign)));
            self.add(group, peer, round, cost.foreign, &[(metric, value)]);
            if let Some((base, foreign)) = direct
                && peer != Peer::Direct
            {
                self.add(group, peer, round, foreign, &[(added, value - base)]);
            }
        }
        self.bulk(group, peer, round, &running, &[])?;
        drop(running);
        if peer == Peer::Direct {
            Ok(())
        } else {
            self.idle(group, peer, round)
        }
    }

    fn terminate(&mut self, peer: Peer, round: usize) -> Result<()> {
        let group = Group::Terminate;
        let running = self.start(peer, Role::Terminate, 1)?;
        let name = tls::host(0);
        self.check(&running, std::slice::from_ref(&name))?;
        let count = self.plan.sizes.handshakes;
        let kinds: [(Metric, &[&str]); 3] = [
            (Metric::Handshake, &["--tls"]),
            (Metric::Resumed, &["--tls", "--resume"]),
            (Metric::Hybrid, &["--tls", "--groups", "hybrid"]),
        ];
        for (metric, options) in kinds {
            match self.connections(&running, count, &[options, &["--name", &name]].concat()) {
                Ok((micros, cost)) => {
                    let share = cost.outcome.resumed as f64 / cost.outcome.connections as f64;
                    if metric == Metric::Resumed && share < RESUMED {
                        self.failures.push(format!(
                            "{}: only {share:.2} of sessions resumed",
                            peer.name()
                        ));
                    } else {
                        self.add(group, peer, round, cost.foreign, &[(metric, micros)]);
                    }
                }
                // Older TLS libraries do not know the hybrid group.
                Err(error) if metric == Metric::Hybrid => {
                    eprintln!("  no hybrid handshake: {}", error.root_cause());
                }
                Err(error) => return Err(error),
            }
        }
        self.bulk(group, peer, round, &running, &["--tls", "--name", &name])?;
        drop(running);
        self.idle(group, peer, round)
    }

    /// In a process of its own, so that nothing is reused from the loads before.
    fn idle(&mut self, group: Group, peer: Peer, round: usize) -> Result<()> {
        let running = self.start(peer, role(group), 1)?;
        let host = tls::host(0);
        let options: &[&str] = match group {
            Group::Passthrough => &[],
            Group::Terminate | Group::Hosts => &["--tls", "--name", &host],
        };
        let check = if options.is_empty() {
            tls::TLS_HOST
        } else {
            &host
        };
        self.check(&running, &[check.to_owned()])?;
        let pid = running
            .process
            .as_ref()
            .context("nothing to measure")?
            .pid();
        settle(Some(pid));
        let before = proc::memory(pid);
        let count = match peer {
            // Keeps descriptors back for pipes, and takes fewer connections for it.
            Peer::HaproxySplice | Peer::HaproxyNextSplice => self.plan.sizes.idle / 4 * 3,
            _ => self.plan.sizes.idle,
        };
        let mut client =
            self.client(&running, &[options, &["idle", &count.to_string()]].concat())?;
        let outcome: Outcome = client.line().map_err(|error| {
            let log = fs::read_to_string(self.client_log()).unwrap_or_default();
            error.context(format!(
                "the client said: {}",
                log.trim().replace('\n', " | ")
            ))
        })?;
        settle(Some(pid));
        let after = proc::memory(pid);
        client.finish(Duration::from_secs(self.plan.limit))?;
        ensure!(
            outcome.connections == count,
            "{} of {count} idle connections",
            outcome.connections
        );
        let sockets = after.sockets.saturating_sub(before.sockets);
        ensure!(
            sockets >= 2 * count as u64,
            "the proxy holds only {sockets} sockets of {count} connections"
        );
        let figures = [
            (
                Metric::IdleMemory,
                after.user.saturating_sub(before.user) as f64 / count as f64 / 1e3,
            ),
            (
                Metric::IdlePipes,
                after.pipes.saturating_sub(before.pipes) as f64 * 1e3 / count as f64,
            ),
            (Metric::BaseMemory, before.user as f64 / 1e6),
            (Metric::BaseResident, before.resident as f64 / 1e6),
        ];
        // Memory does not depend on what else the machine does.
        self.add(group, peer, round, 0.0, &figures);
        Ok(())
    }

    fn hosts(&mut self, peer: Peer, round: usize) -> Result<()> {
        let all = self.plan.sizes.hosts;
        let mut one: Option<(f64, Memory, f64)> = None;
        for hosts in [1, all] {
            let begin = Instant::now();
            let running = self.start(peer, Role::Terminate, hosts)?;
            self.check(&running, &[tls::host(0), tls::host(hosts - 1)])?;
            let start = begin.elapsed().as_secs_f64();
            let spread = hosts.to_string();
            let (micros, cost) = self.connections(
                &running,
                self.plan.sizes.handshakes,
                &["--tls", "--hosts", &spread],
            )?;
            let pid = running
                .process
                .as_ref()
                .context("nothing to measure")?
                .pid();
            let memory = proc::memory(pid);
            let Some((micros_one, memory_one, foreign_one)) = one else {
                self.add(
                    Group::Hosts,
                    peer,
                    round,
                    cost.foreign,
                    &[(Metric::HandshakeOneHost, micros)],
                );
                one = Some((micros, memory, cost.foreign));
                continue;
            };
            let timed = [
                (Metric::HandshakeAllHosts, micros),
                (Metric::HostsSlowdown, micros / micros_one),
                (Metric::HostsStart, start),
            ];
            let foreign = cost.foreign.max(foreign_one);
            self.add(Group::Hosts, peer, round, foreign, &timed);
            let above = memory.user.saturating_sub(memory_one.user) as f64 / 1e6;
            // Memory does not depend on what else the machine does.
            self.add(
                Group::Hosts,
                peer,
                round,
                0.0,
                &[(Metric::HostsMemory, above)],
            );
        }
        Ok(())
    }
}

fn role(group: Group) -> Role {
    match group {
        Group::Passthrough => Role::Passthrough,
        Group::Terminate | Group::Hosts => Role::Terminate,
    }
}

fn hosts(group: Group, plan: &Plan) -> usize {
    if group == Group::Hosts {
        plan.sizes.hosts
    } else {
        1
    }
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
