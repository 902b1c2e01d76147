//! The time to wait before the next attempt: it doubles up to a limit, with jitter.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// Delays that double from `first` to `most`. Each is shortened at random by up to a half, so that replicas that lost
/// the same server do not all come back at once.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    random: RandomState,
    drawn: u64,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
            random: RandomState::new(),
            drawn: 0,
        }
    }

    pub(super) fn delay(&mut self) -> Duration {
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.most);
        self.drawn += 1;
        let share = u32::try_from(self.random.hash_one(self.drawn) % 512).unwrap_or(0);
        full.saturating_sub(full * share / 1024)
    }

    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_within_its_bounds_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for full in [100, 200, 400, 800, 1000, 1000] {
            let delay = backoff.delay();
            assert!(delay <= Duration::from_millis(full), "{delay:?} of {full}");
            assert!(
                delay > Duration::from_millis(full / 2 - 1),
                "{delay:?} of {full}"
            );
        }
        backoff.reset();
        assert!(backoff.delay() <= Duration::from_millis(100));
    }
}
