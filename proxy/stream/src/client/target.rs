//! Owns whom the client asks next, and how long it waits before that.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use super::Config;

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

    pub(super) fn backoff(&mut self, config: &Config) -> Duration {
        self.redirects = 0;
        let factor = 1_u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        config
            .backoff_min
            .saturating_mul(factor)
            .min(config.backoff_max)
    }
}

/// Spreads the proxies of a fleet over time. Seeded by the proxy's name: it needs to differ between
/// proxies, not to be secret, and tests stay repeatable.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(proxy: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        proxy.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Between half and all of `wait`.
    pub(super) fn spread(&mut self, wait: Duration) -> Duration {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        wait.mul_f64(0.5 + share / 2.0)
    }
}
