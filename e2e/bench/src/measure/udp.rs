//! Measures the group of UDP.

use anyhow::Result;

use super::datagrams::DIRECTIONS;
use super::{Bench, CONCURRENCY, Trial};
use crate::metric::{Figure, Load};

/// Sessions of the loads that have many.
const SESSIONS: usize = 1_000;
/// There are so many times fewer new sessions than new connections. Proxies keep sessions for a minute and longer, and
/// each keeps a port.
const SHARE: usize = 5;

impl Bench {
    pub(super) fn udp(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        let loads = [
            (Load::NewSessions, 64, self.plan.sizes.connections / SHARE),
            (Load::Datagrams64, 64, 1),
            (Load::Datagrams512, 512, 1),
            (Load::Datagrams1200, 1_200, 1),
            (Load::Sessions64, 64, SESSIONS),
            (Load::Sessions512, 512, SESSIONS),
            (Load::Sessions1200, 1_200, SESSIONS),
        ];
        for (load, bytes, sessions) in loads {
            if !self.wants(trial.group, load) {
                continue;
            }
            let window = CONCURRENCY.to_string();
            let more: &[&str] = match load {
                Load::NewSessions => &["--once", "--window", &window],
                _ => &[],
            };
            let cost = self.cost(&running, &self.datagrams(bytes, sessions, more))?;
            let answered = cost.outcome.answered as f64;
            let units = match load {
                Load::NewSessions => answered,
                _ => answered * DIRECTIONS,
            };
            self.record(trial, load, &cost, units)?;
            let lost = [(Figure::Lost, cost.outcome.lost_percent())];
            self.add(trial, load, cost.foreign, &lost);
        }
        self.at_full_speed(trial, &running)
    }
}
