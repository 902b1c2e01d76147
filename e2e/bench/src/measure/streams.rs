//! Groups of a proxy that passes bytes: passthrough and terminate, and many hosts or routes.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Bench, CONCURRENCY, Cost, Trial, Work, settled_memory, with_options};
use crate::metric::{Figure, Group, Load};
use crate::peers::{Peer, Running};
use crate::proc::Memory;

/// Share of connections that must have resumed for the figure to be one of resumption.
const RESUMED: f64 = 0.95;

impl Bench {
    pub(super) fn passthrough(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        if self.wants(trial.group, Load::Connections) {
            let count = self.plan.sizes.connections;
            let cost = self.connections(&running, trial.group, count, &[])?;
            let made = cost.outcome.connections as f64;
            self.record(trial, Load::Connections, &cost, made)?;
        }
        self.at_full_speed(trial, &running)?;
        self.transfers(trial, &running)?;
        drop(running);
        if trial.peer != Peer::Direct && self.wants(trial.group, Load::Idle) {
            self.idle(trial)?;
        }
        Ok(())
    }

    pub(super) fn terminate(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        let count = self.plan.sizes.handshakes;
        let kinds: [(Load, &[&str]); 3] = [
            (Load::FullHandshake, &[]),
            (Load::ResumedHandshake, &["--resume"]),
            (Load::HybridHandshake, &["--groups", "hybrid"]),
        ];
        for (load, more) in kinds {
            if !self.wants(trial.group, load) {
                continue;
            }
            match self.connections(&running, trial.group, count, more) {
                Ok(cost) => {
                    let made = cost.outcome.connections as f64;
                    let share = cost.outcome.resumed as f64 / made;
                    if load == Load::ResumedHandshake && share < RESUMED {
                        let name = trial.peer.name();
                        self.failures
                            .push(format!("{name}: only {share:.2} of sessions resumed"));
                    } else {
                        self.record(trial, load, &cost, made)?;
                    }
                }
                // Older TLS libraries do not know the hybrid group.
                Err(error) if load == Load::HybridHandshake => {
                    eprintln!("  no hybrid handshake: {}", error.root_cause());
                }
                Err(error) => return Err(error),
            }
        }
        self.at_full_speed(trial, &running)?;
        self.transfers(trial, &running)?;
        drop(running);
        if self.wants(trial.group, Load::Idle) {
            self.idle(trial)?;
        }
        Ok(())
    }

    /// Short connections.
    pub(super) fn connections(
        &self,
        running: &Running,
        group: Group,
        count: usize,
        more: &[&str],
    ) -> Result<Cost> {
        let [count, at_once] = [count, CONCURRENCY].map(|number| number.to_string());
        let own = [more, &["connect", &count, &at_once]].concat();
        let cost = self.cost(running, &with_options(group, &own))?;
        // The tickets of a resuming client come from full handshakes before the clock of the client,
        // but within that of the proxy: too few to matter.
        ensure!(cost.outcome.connections > 0, "no connection was made");
        Ok(cost)
    }

    fn transfers(&mut self, trial: Trial, running: &Running) -> Result<()> {
        let loads = [
            (Load::Down1, "down", 1),
            (Load::Down16, "down", 16),
            (Load::Up1, "up", 1),
            (Load::Up16, "up", 16),
            (Load::Both1, "both", 2),
        ];
        for (load, direction, share) in loads {
            if !self.wants(trial.group, load) {
                continue;
            }
            // Both directions of one connection share the bytes, as connections do.
            let connections = if direction == "both" { 1 } else { share };
            let each = (self.plan.sizes.bulk / share).to_string();
            let own = ["bulk", direction, &connections.to_string(), &each];
            let cost = self.cost(running, &with_options(trial.group, &own))?;
            self.record(trial, load, &cost, cost.outcome.bytes as f64 / 1e9)?;
        }
        Ok(())
    }

    /// Many hosts with certificates, or many routes, beside one.
    pub(super) fn many(&mut self, trial: Trial) -> Result<()> {
        let group = trial.group;
        let (hosts, paths) = (self.hosts(group), self.paths(group));
        let loads = match group {
            Group::Routes => [Load::OneRoute, Load::AllRoutes],
            _ => [Load::OneHost, Load::AllHosts],
        };
        let mut one: Option<(f64, Memory, f64)> = None;
        for (load, (hosts, paths)) in loads.into_iter().zip([(1, 1), (hosts, paths)]) {
            let begin = Instant::now();
            let running = self.start(trial.peer, group, trial.setting, hosts, paths)?;
            self.check(&running, group, hosts, paths)?;
            let start = begin.elapsed().as_secs_f64();
            let spread = hosts.to_string();
            let (cost, units) = if group == Group::Routes {
                let cost = self.cost(&running, &self.spread(hosts, paths))?;
                let units = cost.outcome.answered as f64;
                (cost, units)
            } else {
                let count = self.plan.sizes.handshakes;
                let cost = self.connections(&running, group, count, &["--hosts", &spread])?;
                let units = cost.outcome.connections as f64;
                (cost, units)
            };
            let (_, scale) = group.unit(load).time();
            let cpu = cost.cpu.as_secs_f64() * scale / units;
            let memory = settled_memory(running.pid().context("nothing to measure")?);
            self.add(trial, load, cost.foreign, &[(Figure::Cpu, cpu)]);
            let Some((cpu_one, memory_one, foreign_one)) = one else {
                one = Some((cpu, memory, cost.foreign));
                continue;
            };
            let timed = [(Figure::Slowdown, cpu / cpu_one), (Figure::Start, start)];
            let foreign = cost.foreign.max(foreign_one);
            self.add(trial, load, foreign, &timed);
            let above = memory.user.saturating_sub(memory_one.user) as f64 / 1e6;
            // Memory does not depend on what else the machine does.
            self.add(trial, load, 0.0, &[(Figure::MemoryAbove, above)]);
        }
        Ok(())
    }

    /// Requests over all hosts and paths in turn.
    fn spread(&self, hosts: usize, paths: usize) -> Work {
        let (hosts, paths_text) = (hosts.to_string(), paths.to_string());
        let mut args = vec!["--http", "--hosts", &hosts];
        if paths > 1 {
            args.extend(["--paths", &paths_text]);
        }
        let (connections, seconds) = (
            super::REQUEST_CONNECTIONS.to_string(),
            self.plan.sizes.seconds.to_string(),
        );
        args.extend(["paced", "request", &connections, &seconds]);
        Work::Client(args.into_iter().map(str::to_owned).collect())
    }
}
