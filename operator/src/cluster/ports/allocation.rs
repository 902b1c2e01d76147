//! Allocates internal ports: each port of each Gateway gets a port of the proxies.
//!
//! Ports are given out in ascending order, and from the beginning again after the last one. So a port that was freed is
//! given out again as late as possible, because a load balancer may still send to it for a while. An allocation is
//! persisted before it is published.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::translate::DesiredPort;

/// The ports that are given out. They are above the privileged and below the ephemeral ports.
pub const RANGE: RangeInclusive<u16> = 10_000..=32_767;
/// Ports in that range that the proxies use themselves, for administration and health.
const RESERVED: RangeInclusive<u16> = 15_000..=15_099;

/// Largest number of ports that are given out. More would not fit into a ConfigMap.
const MOST: usize = 16_000;
/// Largest number of ports of one Gateway, even if its ListenerSets ask for more. The API server would refuse a Service
/// with many more, and that would concern every tenant of the Gateway.
const MOST_OF_A_GATEWAY: usize = 1_000;

/// The ports that are given out.
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
    /// Reads the persisted form. Ports that are out of range or given out twice are left out, since two Gateways must
    /// not share a port. Entries that cannot be read are left out as well.
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

    /// Returns the persisted form.
    #[must_use]
    pub fn to_json(&self) -> String {
        let ports = self.ports.iter().map(|(id, port)| (id.to_string(), *port));
        let persisted = Persisted {
            next: self.next,
            ports: ports.collect(),
        };
        // This cannot fail, since it contains only strings and numbers.
        serde_json::to_string(&persisted).unwrap_or_default()
    }

    /// Returns the internal port for `id`.
    #[must_use]
    pub fn get(&self, id: &DesiredPort) -> Option<u16> {
        self.ports.get(id).copied()
    }

    /// Returns all ports that are given out.
    pub fn iter(&self) -> impl Iterator<Item = (&DesiredPort, u16)> {
        self.ports.iter().map(|(id, port)| (id, *port))
    }

    /// Returns the number of ports that are given out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether no port is given out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Returns an allocation with a port for each of `wanted` and for nothing else. Those that have a port keep it. If
    /// no port is left, the others get none.
    #[must_use]
    pub fn settle(&self, wanted: &BTreeSet<DesiredPort>) -> Self {
        let mut settled = self.clone();
        settled.ports.retain(|id, _| wanted.contains(id));
        // Ports that become free now stay taken during this call, so that they are not given out again at once.
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

    /// Adds a port that is known to be in use for `id`, unless `id` has another port or the port has another user.
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

/// Returns the first port from `next` on that is not taken. The search continues at the beginning of the range.
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
