//! How long to wait before something that failed is tried again: delays that double up to a bound, and jitter.
//!
//! Everything here is pure. Nothing sleeps, looks at a clock or draws a random number. The caller passes 64 random bits
//! for jitter (`fastrand::u64(..)`, or a generator with a seed if a test has to repeat a history).
//!
//! Three schedules do not double, so they are in the modules that need them. A failed ACME order waits 1, 10 and 100
//! minutes and then a day (`vestibule_acme::backoff`): its count is stored in the Secret, and the steps follow the
//! hourly and weekly limits of public CAs. A candidate for the Lease tries again at the Lease's own period
//! (`operator::cluster::lease`). And code that waits for one event, such as a port of another process, tries again at
//! fixed intervals.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

use std::time::Duration;

/// A schedule of delays: the first delay doubles with each further failure, up to the longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Delays from `first` up to `longest`. If `longest` is shorter than `first`, every delay is `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after `before` earlier ones. It is `first` if there were none, and never more than `longest`.
    #[must_use]
    pub fn delay(self, before: u32) -> Duration {
        // 2^31 times a microsecond is more than half an hour, so no schedule needs a larger factor.
        let factor = 1_u32 << before.min(31);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// The delay that follows `delay`, for callers that remember the last delay instead of a count. After zero, it is
    /// `first`.
    #[must_use]
    pub fn after(self, delay: Duration) -> Duration {
        let doubled = delay.saturating_mul(2);
        doubled.max(self.first).min(self.longest)
    }

    /// The delays one after the other.
    #[must_use]
    pub const fn delays(self) -> Delays {
        Delays {
            backoff: self,
            before: 0,
        }
    }
}

/// The delays of a [`Backoff`] one after the other, without an end.
#[derive(Debug, Clone)]
pub struct Delays {
    backoff: Backoff,
    before: u32,
}

impl Delays {
    /// The next delay.
    pub fn advance(&mut self) -> Duration {
        let delay = self.backoff.delay(self.before);
        self.before = self.before.saturating_add(1);
        delay
    }

    /// Begins again with the first delay, after a success.
    pub fn reset(&mut self) {
        self.before = 0;
    }
}

/// A duration in `from..to`, chosen by 64 random bits. It is `from` if that is not below `to`.
///
/// If each waits for a different time, replicas or clients that failed together do not come back together.
#[must_use]
pub fn between(from: Duration, to: Duration, random: u64) -> Duration {
    let span = to.saturating_sub(from).as_nanos();
    // Spans above 584 years are cut to that, because the product has to fit into 128 bits.
    let span = u64::try_from(span).unwrap_or(u64::MAX);
    // The random bits are a fraction of 2^64. So the part is evenly spread over the span, and always below it.
    let part = (u128::from(span) * u128::from(random)) >> 64;
    from.saturating_add(Duration::from_nanos(
        u64::try_from(part).unwrap_or(u64::MAX),
    ))
}

/// A duration between half of `delay` and all of it, chosen by 64 random bits. So the jitter never exceeds the bound of
/// a [`Backoff`].
#[must_use]
pub fn shortened(delay: Duration, random: u64) -> Duration {
    between(delay / 2, delay, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_from_the_first_to_the_longest() {
        let backoff = Backoff::new(SECOND, 10 * SECOND);
        let expected = [1, 2, 4, 8, 10, 10].map(Duration::from_secs);
        assert_eq!(
            [0, 1, 2, 3, 4, u32::MAX].map(|n| backoff.delay(n)),
            expected
        );
        let mut delays = backoff.delays();
        assert_eq!([(); 6].map(|()| delays.advance()), expected);
        delays.reset();
        assert_eq!(delays.advance(), SECOND);
        let mut last = Duration::ZERO;
        let followed = [(); 6].map(|()| {
            last = backoff.after(last);
            last
        });
        assert_eq!(followed, expected);
    }

    #[test]
    fn the_longest_delay_is_a_bound_of_every_schedule() {
        let (most, least) = (Duration::MAX, Duration::ZERO);
        for first in [least, Duration::from_nanos(1), SECOND, most] {
            for longest in [least, SECOND, most] {
                let backoff = Backoff::new(first, longest);
                let mut delays = backoff.delays();
                for before in 0..100 {
                    assert!(backoff.delay(before) <= longest, "{backoff:?}");
                    assert!(delays.advance() <= longest, "{backoff:?}");
                }
                assert!(backoff.after(most) <= longest, "{backoff:?}");
            }
        }
    }

    #[test]
    fn random_bits_spread_evenly_over_the_span_and_never_beyond() {
        let (from, to) = (SECOND, 5 * SECOND);
        assert_eq!(between(from, to, 0), from);
        assert_eq!(between(from, to, 1 << 63), 3 * SECOND);
        let last = between(from, to, u64::MAX);
        assert_eq!(last + Duration::from_nanos(1), to);
        assert_eq!(between(to, from, u64::MAX), to);
        assert_eq!(between(from, from, u64::MAX), from);
        assert!(between(Duration::ZERO, Duration::MAX, u64::MAX) > Duration::from_hours(1_000_000));
        assert_eq!(
            between(Duration::MAX, Duration::MAX, u64::MAX),
            Duration::MAX
        );
    }

    #[test]
    fn a_shortened_delay_is_at_least_half_of_it() {
        for random in [0, 1, 1 << 63, u64::MAX] {
            let delay = shortened(SECOND, random);
            assert!(delay >= SECOND / 2 && delay < SECOND, "{delay:?}");
        }
        assert_eq!(shortened(Duration::ZERO, u64::MAX), Duration::ZERO);
    }
}
