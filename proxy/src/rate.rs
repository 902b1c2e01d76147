//! Owns rate limits: how often something may happen in a second, for a tenant or a source.
//!
//! A bucket holds as much as one second allows, so a source that was quiet may use all of it at once. A bucket is a
//! single number: the time until which everything that was taken is paid for (the generic cell rate algorithm). So
//! threads share it without a lock.

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

/// A bucket. It is full at first.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// The time until which everything is paid for, in nanoseconds of [`now`].
    paid_until: AtomicU64,
}

impl Bucket {
    /// Takes one of `per_second`, and returns whether there was one. 0 means that there is no limit.
    pub(crate) fn take(&self, per_second: u32, now: u64) -> bool {
        let Some(price) = SECOND.checked_div(per_second.into()) else {
            return true;
        };
        let pay = |until: u64| {
            let next = until.max(now).saturating_add(price);
            (next <= now.saturating_add(BURST)).then_some(next)
        };
        let relaxed = Ordering::Relaxed;
        self.paid_until.fetch_update(relaxed, relaxed, pay).is_ok()
    }
}

/// The buckets of sources, in a table of fixed size. A secret hash decides which bucket a source has, so an attacker
/// cannot predict it. Sources with the same bucket share its rate.
#[derive(Debug)]
pub(crate) struct SourceRates {
    buckets: Box<[Bucket]>,
    hash: RandomState,
}

impl SourceRates {
    pub(crate) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            hash: RandomState::new(),
        }
    }

    /// Takes one of `per_second` for `source`, and returns whether there was one.
    pub(crate) fn take(&self, source: impl Hash, per_second: u32, now: u64) -> bool {
        let hash = self.hash.hash_one(source);
        let place = usize::try_from(hash).unwrap_or(0) % BUCKETS;
        let bucket = self.buckets.get(place);
        bucket.is_none_or(|bucket| bucket.take(per_second, now))
    }
}

#[cfg(test)]
mod tests {
    use vestibule_serve::places::Source;

    use super::*;

    const MILLISECOND: u64 = SECOND / 1000;

    fn taken(bucket: &Bucket, tries: usize, now: u64) -> usize {
        (0..tries).filter(|_| bucket.take(100, now)).count()
    }

    #[test]
    fn a_bucket_holds_a_second_and_fills_again() {
        let bucket = Bucket::default();
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
        let bucket = Bucket::default();
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
