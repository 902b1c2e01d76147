//! Internal ports: which port of the proxies stands for which port of which Gateway. Pure.
//!
//! A port is given out by counting up and around, so one that was freed comes back last: a load
//! balancer may still send to it for a while. What is given out is persisted before it is published.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::translate::DesiredPort;

/// Ports that are given out: above the privileged ones, below the ephemeral ones.
pub const RANGE: RangeInclusive<u16> = 10_000..=32_767;
/// Ports in that range that the proxies use themselves (administration, health).
const RESERVED: RangeInclusive<u16> = 15_000..=15_099;

/// Most ports that are given out: more would not fit into a ConfigMap.
const MOST: usize = 16_000;
/// Most ports of one Gateway, however many its ListenerSets ask for: a Service with many more would be
/// refused, and every tenant of the Gateway with it.
const MOST_OF_A_GATEWAY: usize = 1_000;

/// What is given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The port to try first next time.
    next: u16,
    ports: BTreeMap<DesiredPort, u16>,
}

impl Default for Allocation {
    fn default() -> Self {
        Self {
            next: *RANGE.start(),
            ports: BTreeMap::new(),
        }
    }
}

/// The form in which an allocation is persisted.
#[derive(Debug, Serialize, Deserialize)]
struct Persisted {
    next: u16,
    #[serde(default)]
    ports: BTreeMap<String, u16>,
}

impl Allocation {
    /// Reads the persisted form. Ports that are out of range or given twice are left out (two Gateways on
    /// one port would meet), and so is what they are not given to.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let persisted: Persisted = serde_json::from_str(text)?;
        let mut taken = BTreeSet::new();
        let ports = persisted
            .ports
            .into_iter()
            .filter_map(|(id, port)| Some((id.parse().ok()?, port)))
            .filter(|(_, port)| is_usable(*port) && taken.insert(*port))
            .collect();
        let next = if RANGE.contains(&persisted.next) {
            persisted.next
        } else {
            *RANGE.start()
        };
        Ok(Self { next, ports })
    }

    /// The persisted form.
    #[must_use]
    pub fn to_json(&self) -> String {
        let ports = self.ports.iter().map(|(id, port)| (id.to_string(), *port));
        let persisted = Persisted {
            next: self.next,
            ports: ports.collect(),
        };
        // Strings and numbers: it cannot fail.
        serde_json::to_string(&persisted).unwrap_or_default()
    }

    /// The port that stands for `id`.
    #[must_use]
    pub fn get(&self, id: &DesiredPort) -> Option<u16> {
        self.ports.get(id).copied()
    }

    /// Everything given out.
    pub fn iter(&self) -> impl Iterator<Item = (&DesiredPort, u16)> {
        self.ports.iter().map(|(id, port)| (id, *port))
    }

    /// How many are given out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether none is given out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// This allocation with a port for each of `wanted` and for nothing else. Those that there is no
    /// port left for are without one; whoever has one keeps it.
    #[must_use]
    pub fn settle(&self, wanted: &BTreeSet<DesiredPort>) -> Self {
        let mut settled = self.clone();
        settled.ports.retain(|id, _| wanted.contains(id));
        // What is freed now stays taken for this time: it is not to be given out in the same breath.
        let mut taken: BTreeSet<u16> = self.ports.values().copied().collect();
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for id in settled.ports.keys() {
            *counts.entry(id.gateway.clone()).or_default() += 1;
        }
        for id in wanted {
            if settled.ports.contains_key(id) {
                continue;
            }
            if settled.ports.len() >= MOST {
                break;
            }
            let count = counts.entry(id.gateway.clone()).or_default();
            if *count >= MOST_OF_A_GATEWAY {
                continue;
            }
            let Some(port) = free(settled.next, &taken) else {
                break;
            };
            *count += 1;
            taken.insert(port);
            settled.ports.insert(id.clone(), port);
            settled.next = after(port);
        }
        settled
    }

    /// Takes up a port that is known to be in use for `id`, if neither has another.
    #[must_use]
    pub fn with(mut self, id: DesiredPort, port: u16) -> Self {
        let free = is_usable(port) && !self.ports.values().any(|taken| *taken == port);
        if free && !self.ports.contains_key(&id) {
            self.ports.insert(id, port);
            self.next = self.next.max(after(port));
        }
        self
    }
}

fn is_usable(port: u16) -> bool {
    RANGE.contains(&port) && !RESERVED.contains(&port)
}

fn after(port: u16) -> u16 {
    if port >= *RANGE.end() {
        *RANGE.start()
    } else {
        port + 1
    }
}

/// The first port from `next` on, and around, that is not taken.
fn free(next: u16, taken: &BTreeSet<u16>) -> Option<u16> {
    let first = next..=*RANGE.end();
    let second = *RANGE.start()..next;
    first
        .chain(second)
        .find(|port| is_usable(*port) && !taken.contains(port))
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
