//! Owns whom the client asks next, and how long it waits before that.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use fastrand::Rng;
use vestibule_backoff::Backoff;

/// Redirects to a leader that are followed at once; after that the client backs off.
const MAX_REDIRECTS: u32 = 3;

/// Whom to ask next.
#[derive(Debug, Default)]
pub(super) struct Target {
    next: usize,
    leader: Option<String>,
    redirects: u32,
    failures: u32,
}

impl Target {
    pub(super) fn address(&mut self, addresses: &[String]) -> String {
        if let Some(leader) = self.leader.take() {
            return leader;
        }
        let index = self.next % addresses.len().max(1);
        addresses.get(index).cloned().unwrap_or_default()
    }

    /// The address just tried is of no use.
    pub(super) fn rotate(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Says whether to go to `leader` at once; otherwise the next address is tried after a while.
    pub(super) fn redirect(&mut self, leader: &str) -> bool {
        self.rotate();
        if leader.is_empty() || self.redirects >= MAX_REDIRECTS {
            return false;
        }
        self.redirects += 1;
        self.leader = Some(leader.to_owned());
        true
    }

    /// The stream had been up: begin again with a short wait.
    pub(super) fn served(&mut self) {
        self.failures = 0;
        self.rotate();
    }

    /// The wait before the next address is tried.
    pub(super) fn backoff(&mut self, backoff: Backoff) -> Duration {
        self.redirects = 0;
        let wait = backoff.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

/// Random numbers that spread the proxies of a fleet over time. Seeded by the proxy's name: they need to differ between
/// proxies, not to be secret, and tests stay repeatable.
pub(super) fn generator(proxy: &str) -> Rng {
    let mut hasher = DefaultHasher::new();
    proxy.hash(&mut hasher);
    Rng::with_seed(hasher.finish())
}
