//! Owns the choice of the address that the client asks next, and how long the client waits before
//! that.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use fastrand::Rng;
use vestibule_backoff::Backoff;

/// Number of redirects to a leader that the client follows at once. After them it backs off.
const MAX_REDIRECTS: u32 = 3;

/// The address to ask next.
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

    /// Moves on to the next address, because the one just tried does not serve.
    pub(super) fn rotate(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Whether to go to `leader` at once. If not, the client tries the next address after a wait.
    pub(super) fn redirect(&mut self, leader: &str) -> bool {
        self.rotate();
        if leader.is_empty() || self.redirects >= MAX_REDIRECTS {
            return false;
        }
        self.redirects += 1;
        self.leader = Some(leader.to_owned());
        true
    }

    /// Resets the backoff and the redirects, because the stream had been up.
    pub(super) fn served(&mut self) {
        self.failures = 0;
        self.redirects = 0;
    }

    /// The wait before the client tries the next address.
    pub(super) fn backoff(&mut self, backoff: Backoff) -> Duration {
        self.redirects = 0;
        let wait = backoff.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

/// Random numbers that spread the proxies of a fleet over time. The proxy's name is the seed: the
/// numbers must differ between proxies but need not be secret, and tests stay repeatable.
pub(super) fn generator(proxy: &str) -> Rng {
    let mut hasher = DefaultHasher::new();
    proxy.hash(&mut hasher);
    Rng::with_seed(hasher.finish())
}
