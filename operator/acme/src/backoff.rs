//! Decides how long the engine waits after a failure.
//!
//! A server that cannot be reached is tried again with the usual doubling backoff ([`vestibule_backoff`]). A failed
//! order has steps of its own. The number of its failures is stored in its Secret and outlives the leader, and the
//! steps follow the limits of public CAs, which count failures by the hour and by the week.

use std::time::Duration;

use fastrand::Rng;
use vestibule_backoff::{Backoff, between};

use crate::problem::{AcmeFailure, FailureKind};

/// Waits after the first, second and third failure of an order in a row, and after every later one.
const STEPS: [Duration; 4] = [
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_mins(100),
    Duration::from_hours(24),
];
/// Longest wait that a CA may ask for.
const LONGEST: Duration = Duration::from_hours(7 * 24);
/// Waits after something could not be reached.
const REACH: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(10));
/// Waits after an issuer's account could not be used.
const ISSUER: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_hours(1));

/// Pseudo-random numbers from a seed. The seed is an input of planning, so that tests can repeat a history.
#[derive(Debug, Clone)]
pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// A random duration below `bound`.
    pub(crate) fn below(&mut self, bound: Duration) -> Duration {
        between(Duration::ZERO, bound, self.0.u64(..))
    }

    /// `duration`, give or take up to a fifth.
    pub(crate) fn around(&mut self, duration: Duration) -> Duration {
        let fifth = duration / 5;
        let longest = duration.saturating_add(fifth);
        between(duration.saturating_sub(fifth), longest, self.0.u64(..))
    }

    /// `duration`, or up to a tenth more.
    fn after(&mut self, duration: Duration) -> Duration {
        let longest = duration.saturating_add(duration / 10);
        between(duration, longest, self.0.u64(..))
    }
}

/// The wait after the `count`th failure of an order in a row.
pub(crate) fn of_order(count: u32, failure: &AcmeFailure, random: &mut Random) -> Duration {
    let last = STEPS.len() - 1;
    let place = match failure.kind {
        // Somebody has to change something first, and one try a day finds out that they did.
        FailureKind::Rejected => last,
        _ => usize::try_from(count.saturating_sub(1)).map_or(last, |n| n.min(last)),
    };
    let step = STEPS.get(place).copied().unwrap_or(LONGEST);
    let wait = random.around(step);
    match failure.retry_after {
        Some(said) if said.min(LONGEST) > wait => random.after(said.min(LONGEST)),
        _ => wait,
    }
}

/// The wait after the `count`th time in a row that something could not be reached: 2 s, doubled up to 10 min.
pub(crate) fn of_reach(count: u32, said: Option<Duration>, random: &mut Random) -> Duration {
    let wait = random.around(REACH.delay(count.saturating_sub(1)));
    match said {
        Some(said) if said > wait => random.after(said.min(Duration::from_hours(1))),
        _ => wait,
    }
}

/// The wait after the `count`th time in a row that an issuer's account could not be used: 1 min, doubled up to 1 h.
pub(crate) fn of_issuer(count: u32, failure: &AcmeFailure, random: &mut Random) -> Duration {
    if failure.kind == FailureKind::Unreachable {
        return of_reach(count, failure.retry_after, random);
    }
    let wait = ISSUER.delay(count.saturating_sub(1));
    let said = failure.retry_after.unwrap_or_default().min(LONGEST);
    random.around(wait).max(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_each_time_and_as_the_ca_says() {
        let mut random = Random::new(7);
        let mut failure = AcmeFailure::new(FailureKind::Validation, "x");
        for (count, minutes) in [(1, 1), (2, 10), (3, 100), (4, 1440), (400, 1440)] {
            let step = Duration::from_mins(minutes);
            let wait = of_order(count, &failure, &mut random);
            assert!(wait >= step * 4 / 5 && wait <= step * 6 / 5, "{count}");
        }
        failure.retry_after = Some(Duration::from_hours(3));
        let wait = of_order(1, &failure, &mut random);
        assert!(wait >= Duration::from_hours(3) && wait <= Duration::from_hours(4));
        failure.retry_after = Some(Duration::MAX);
        assert!(of_order(1, &failure, &mut random) <= LONGEST * 2);
        let rejected = AcmeFailure::new(FailureKind::Rejected, "x");
        assert!(of_order(1, &rejected, &mut random) > Duration::from_hours(19));
    }

    #[test]
    fn backoff_when_unreachable_starts_short_stays_bounded_and_obeys_retry_after() {
        let mut random = Random::new(7);
        assert!(of_reach(1, None, &mut random) < Duration::from_secs(3));
        assert!(of_reach(u32::MAX, None, &mut random) <= Duration::from_mins(12));
        let said = Some(Duration::from_mins(5));
        assert!(of_reach(1, said, &mut random) >= Duration::from_mins(5));
        let failure = AcmeFailure::new(FailureKind::Account, "x");
        assert!(of_issuer(u32::MAX, &failure, &mut random) <= Duration::from_hours(2));
    }
}
