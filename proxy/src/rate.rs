//! Owns rate limits: how often something may happen in a second, for a tenant or a source.
//!
//! The limit is a token bucket. It holds as much as one second allows, so a source that was quiet may use all of it at
//! once. A bucket is a single number: the time until which everything that was taken is paid for (the generic cell rate
//! algorithm). So threads share it without a lock.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Size of a bucket: how far its time may be ahead of the clock, in nanoseconds.
const BURST: u64 = SECOND;
/// A second in nanoseconds of [`now`].
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Number of buckets for sources.
const BUCKETS: usize = 16_384;

/// The time in nanoseconds, by a monotonic clock.
pub(crate) fn now() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let elapsed = ORIGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// A bucket whose size and prices its owner knows. It is full at first.
///
/// The operator has the same algorithm in `token_bucket`. There one task owns a bucket, and time is an input of another
/// type, so it needs no atomic number.
#[derive(Debug, Default)]
pub(crate) struct TokenBucket {
    /// The time until which everything is paid for, in nanoseconds of [`now`].
    paid_until: AtomicU64,
}

impl TokenBucket {
    /// Takes something at this price, and returns whether there was enough. `size` says how far the time of the bucket may
    /// be ahead of the clock. All three numbers are in nanoseconds.
    pub(crate) fn pay(&self, price: u64, size: u64, now: u64) -> bool {
        let relaxed = Ordering::Relaxed;
        let pay = |until| Self::paid(until, price, size, now);
        self.paid_until.fetch_update(relaxed, relaxed, pay).is_ok()
    }

    /// Whether there is enough for something at this price.
    pub(crate) fn could_pay(&self, price: u64, size: u64, now: u64) -> bool {
        let until = self.paid_until.load(Ordering::Relaxed);
        Self::paid(until, price, size, now).is_some()
    }

    fn paid(until: u64, price: u64, size: u64, now: u64) -> Option<u64> {
        let next = until.max(now).saturating_add(price);
        (next <= now.saturating_add(size)).then_some(next)
    }

    /// Gives back so many nanoseconds.
    pub(crate) fn earn(&self, credit: u64, now: u64) {
        let relaxed = Ordering::Relaxed;
        // A full bucket, as it nearly always is, costs one load. The credit may reach back before `now`, but nobody can save
        // it up: whoever pays then does so from `now` on.
        let _ = self.paid_until.fetch_update(relaxed, relaxed, |until| {
            (until > now).then(|| until.saturating_sub(credit))
        });
    }

    pub(crate) fn is_full(&self, now: u64) -> bool {
        self.paid_until.load(Ordering::Relaxed) <= now
    }
}

/// A limit for how often something may happen in a second.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(TokenBucket);

impl RateLimit {
    /// Takes one of `per_second`, and returns whether there was one. 0 means that there is no limit.
    pub(crate) fn take(&self, per_second: u32, now: u64) -> bool {
        let price = SECOND.checked_div(per_second.into());
        price.is_none_or(|price| self.0.pay(price, BURST, now))
    }
}

/// The rate limits of sources, in a table of fixed size. A secret hash decides which one a source has, so an attacker
/// cannot predict it. Sources with the same one share its rate.
#[derive(Debug)]
pub(crate) struct SourceRates {
    limits: Box<[RateLimit]>,
    hash: RandomState,
}

impl SourceRates {
    pub(crate) fn new() -> Self {
        Self {
            limits: (0..BUCKETS).map(|_| RateLimit::default()).collect(),
            hash: RandomState::new(),
        }
    }

    /// Takes one of `per_second` for `source`, and returns whether there was one.
    pub(crate) fn take(&self, source: impl Hash, per_second: u32, now: u64) -> bool {
        let hash = self.hash.hash_one(source);
        let place = usize::try_from(hash).unwrap_or(0) % BUCKETS;
        let limit = self.limits.get(place);
        limit.is_none_or(|limit| limit.take(per_second, now))
    }
}

#[cfg(test)]
mod tests {
    use vestibule_serve::places::Source;

    use super::*;

    const MILLISECOND: u64 = SECOND / 1000;

    fn taken(bucket: &RateLimit, tries: usize, now: u64) -> usize {
        (0..tries).filter(|_| bucket.take(100, now)).count()
    }

    #[test]
    fn a_bucket_holds_a_second_and_fills_again() {
        let bucket = RateLimit::default();
        let start = 5 * SECOND;
        assert_eq!(taken(&bucket, 1000, start), 100);
        assert_eq!(taken(&bucket, 1000, start + 9 * MILLISECOND), 0);
        assert_eq!(taken(&bucket, 1000, start + 10 * MILLISECOND), 1);
        // Over any time it is the rate, and never more than a second's worth.
        let later = (1..=10).map(|n| taken(&bucket, 1000, start + n * SECOND / 2));
        assert_eq!(later.sum::<usize>(), 499);
        assert_eq!(taken(&bucket, 1000, start + 60 * SECOND), 100);
        // Threads read the clock before they take: one may be late.
        assert!(!bucket.take(100, start));
    }

    #[test]
    fn zero_is_no_bound() {
        let bucket = RateLimit::default();
        assert!((0..10_000).all(|_| bucket.take(0, 0)));
        assert!((0..10_000).all(|_| bucket.take(u32::MAX, 0)));
    }

    #[test]
    fn a_source_uses_up_its_own_rate_and_nobody_elses() {
        let rates = SourceRates::new();
        let source = |address: &str| Source::of_client(address.parse().unwrap());
        let take = |address: &str| rates.take(source(address), 100, 0);
        let all = |address: &str| (0..1000).filter(|_| take(address)).count();
        assert_eq!(all("2001:db8:0:1::1"), 100);
        // Addresses of one subscriber are one source.
        assert_eq!(all("2001:db8:0:1:ffff::2"), 0);
        // One of a hundred may fall on the bucket that is empty, but hardly two.
        let free = (0..100).filter(|n| take(&format!("192.0.2.{n}"))).count();
        assert!(free >= 98, "{free}");
    }
}
