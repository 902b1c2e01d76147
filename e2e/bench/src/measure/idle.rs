//! Memory of connections that do nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Bench, Trial, role, settled_memory, with_options};
use crate::client::LoadOutcome;
use crate::metric::{Figure, Load};
use crate::peers::{Peer, Role};

impl Bench {
    /// Connections that do nothing, in a process of its own, so that nothing is reused from the loads before.
    pub(super) fn idle(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        let pid = running.pid().context("nothing to measure")?;
        let before = settled_memory(pid);
        let count = match trial.peer {
            // Keeps descriptors back for pipes, and takes fewer connections for it.
            Peer::HaproxySplice | Peer::HaproxyNextSplice => self.plan.sizes.idle / 4 * 3,
            _ => self.plan.sizes.idle,
        };
        let work = with_options(trial.group, &["idle", &count.to_string()]);
        let mut client = self.client(&running, &work)?;
        let outcome: LoadOutcome = client.line().map_err(|error| self.client_said(error))?;
        let after = settled_memory(pid);
        client.finish(Duration::from_secs(self.plan.limit))?;
        ensure!(
            outcome.connections == count,
            "{} of {count} idle connections",
            outcome.connections
        );
        let sockets = after.sockets.saturating_sub(before.sockets);
        let each = match role(trial.group) {
            Role::Passthrough | Role::Terminate | Role::Tcp => 2,
            // The backends' connections are in a pool.
            _ => 1,
        };
        ensure!(
            sockets >= each * count as u64,
            "the proxy holds only {sockets} sockets of {count} connections"
        );
        let grown = after.user.saturating_sub(before.user) as f64;
        let pipes = after.pipes.saturating_sub(before.pipes) as f64;
        let figures = [
            (Figure::Memory, grown / count as f64 / 1e3),
            (Figure::Pipes, pipes * 1e3 / count as f64),
            (Figure::BaseMemory, before.user as f64 / 1e6),
            (Figure::BaseResident, before.resident as f64 / 1e6),
        ];
        // Memory does not depend on what else the machine does.
        self.add(trial, Load::Idle, 0.0, &figures);
        Ok(())
    }
}
