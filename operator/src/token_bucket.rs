//! Limits how often each of many parties does something. Each party has an allowance that fills up over time (a token
//! bucket). Time is an input.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Largest number of parties that have an allowance of their own. All others share one.
const MAX_PARTIES: usize = 4096;

/// The allowance of each party.
#[derive(Debug)]
pub(crate) struct Buckets<K> {
    rate: Rate,
    parties: HashMap<K, Bucket>,
    others: Bucket,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    earns: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// When the allowance is full again. Each use moves this on by the time in which a use is earned. So one time
    /// suffices, and no timer or counter has to be updated.
    full_at: Option<Instant>,
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at.unwrap_or(now).max(now);
        let after = full_at + rate.earns;
        // The time until the allowance is full stands for the uses that are spent, one for each `earns`. So there is a use
        // left as long as that time, with this use, is no longer than `burst` of them.
        if after > now + rate.earns * rate.burst {
            return false;
        }
        self.full_at = Some(after);
        true
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    /// Gives each party at most `burst` uses at once, and one more after each `earns`.
    pub(crate) fn new(burst: u32, earns: Duration) -> Self {
        Self {
            rate: Rate { burst, earns },
            parties: HashMap::new(),
            others: Bucket::default(),
        }
    }

    /// Takes one use from the allowance of `party`. Returns `false` if none is left.
    pub(crate) fn take(&mut self, party: &K, now: Instant) -> bool {
        let rate = self.rate;
        if let Some(bucket) = self.parties.get_mut(party) {
            return bucket.take(rate, now);
        }
        if self.parties.len() >= MAX_PARTIES {
            self.parties.retain(|_, bucket| !bucket.is_full(now));
        }
        if self.parties.len() >= MAX_PARTIES {
            return self.others.take(rate, now);
        }
        self.parties
            .entry(party.clone())
            .or_default()
            .take(rate, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u32 = 10;
    const EARNS: Duration = Duration::from_secs(2);

    #[test]
    fn a_party_has_its_burst_and_then_its_rate() {
        let (mut buckets, start) = (Buckets::new(BURST, EARNS), Instant::now());
        for _ in 0..BURST {
            assert!(buckets.take(&1, start));
        }
        assert!(!buckets.take(&1, start));
        assert!(buckets.take(&2, start));
        assert!(buckets.take(&1, start + EARNS));
        assert!(!buckets.take(&1, start + EARNS));
    }

    #[test]
    fn many_parties_take_bounded_room_and_do_not_push_anybody_out() {
        let (mut buckets, start) = (Buckets::new(BURST, EARNS), Instant::now());
        while buckets.take(&0, start) {}
        let others = (1..20_000)
            .filter(|party| buckets.take(party, start))
            .count();
        assert!(buckets.parties.len() <= MAX_PARTIES);
        assert!(others < MAX_PARTIES + 20, "{others} uses");
        assert!(!buckets.take(&0, start));
        // When all parties have earned back what they spent, there is room again.
        assert!(buckets.take(&30_000, start + EARNS * BURST));
        assert!(buckets.parties.len() < 10);
    }
}
