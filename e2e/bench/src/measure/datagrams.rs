//! Measures the group of UDP.

use anyhow::Result;

use super::{Bench, CONCURRENCY, Place, Work};
use crate::metric::{Figure, Load};

/// How often a datagram that comes back passes the proxy.
pub(super) const DIRECTIONS: f64 = 2.0;
/// Sessions of the loads that have many.
const SESSIONS: usize = 1_000;
/// There are so many times fewer new sessions than new connections. Proxies keep sessions for a minute and longer, and
/// each keeps a port.
const SHARE: usize = 5;
/// Sessions of messages, and of those at a rate.
const MESSAGE_SESSIONS: usize = 64;
/// Length of these, in bytes.
const MESSAGE: usize = 64;

impl Bench {
    pub(super) fn udp(&mut self, place: Place) -> Result<()> {
        let running = self.start_one(place)?;
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
            if !self.wants(place.group, load) {
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
            self.record(place, load, &cost, units)?;
            let lost = [(Figure::Lost, cost.outcome.lost_percent())];
            self.add(place, load, cost.foreign, &lost);
        }
        self.at_full_speed(place, &running)
    }

    /// Datagrams of 64 bytes on sixty-four sessions.
    pub(super) fn datagram_messages(&self, more: &[&str]) -> Work {
        self.datagrams(MESSAGE, MESSAGE_SESSIONS, more)
    }

    fn datagrams(&self, bytes: usize, sessions: usize, more: &[&str]) -> Work {
        let [bytes, sessions] = [bytes, sessions].map(|number| number.to_string());
        let seconds = self.plan.sizes.seconds.to_string();
        let own = ["datagrams", &bytes, &sessions, &seconds];
        let words = own.iter().chain(more);
        Work::Client(words.map(|word| (*word).to_owned()).collect())
    }
}
