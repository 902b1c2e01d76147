//! The retry policy of a rule, and how long to wait before each retry.

use std::collections::BTreeSet;
use std::time::Duration;

use vestibule_backoff::{Backoff, between};

/// How long to wait before the first retry where the route does not say.
const FIRST_BACKOFF: Duration = Duration::from_millis(25);
/// Longest wait before jitter, unless the first wait of the route is longer.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Longest wait before jitter, as a multiple of the first one.
const MOST_FACTOR: u32 = 10;

/// The retry policy of a rule.
#[derive(Clone, Debug)]
pub(crate) struct RetryPolicy {
    /// Statuses of answers, 400 to 599.
    pub(crate) codes: BTreeSet<u16>,
    /// Most retries.
    pub(crate) attempts: u32,
    pub(crate) backoff: Option<Duration>,
}

impl RetryPolicy {
    /// How long to wait before a retry after `made` earlier ones. `left` is the time that the request has left, and
    /// `random` is 64 random bits. The wait is never shorter than the first one. Beyond that, it takes at most half of
    /// the time that is left, and leaves the rest to the retry. It is `None` if the first wait alone would leave nothing.
    pub(crate) fn wait(&self, made: u32, random: u64, left: Option<Duration>) -> Option<Duration> {
        let first = self.backoff.unwrap_or(FIRST_BACKOFF);
        let longest = first.saturating_mul(MOST_FACTOR).min(LONGEST_BACKOFF);
        let wait = Backoff::new(first, longest.max(first)).delay(made);
        // Jitter adds up to half of the wait, so that requests that failed together are not retried together.
        let wait = between(wait, wait.saturating_add(wait / 2), random);
        match left {
            None => Some(wait),
            Some(left) => (left > first).then(|| wait.min(first.max(left / 2))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(backoff: Option<u64>) -> RetryPolicy {
        RetryPolicy {
            codes: [503].into(),
            attempts: 3,
            backoff: backoff.map(Duration::from_millis),
        }
    }

    #[test]
    fn waits_double_up_to_a_bound_and_leave_time_for_the_retry() {
        let millis = |retry: &RetryPolicy, made, random, left: Option<u64>| {
            let left = left.map(Duration::from_millis);
            retry.wait(made, random, left).map(|wait| wait.as_millis())
        };
        let waits = |retry: &RetryPolicy| {
            [0, 1, 2, 3, 9, 99].map(|made| millis(retry, made, 0, None).unwrap())
        };
        assert_eq!(waits(&retry(None)), [25, 50, 100, 200, 250, 250]);
        assert_eq!(
            waits(&retry(Some(4000))),
            [4000, 8000, 10_000, 10_000, 10_000, 10_000]
        );
        // A route's own time is never shortened.
        assert_eq!(waits(&retry(Some(20_000))), [20_000; 6]);
        assert_eq!(waits(&retry(Some(0))), [0; 6]);
        let with_jitter = millis(&retry(Some(100)), 0, u64::MAX, None).unwrap();
        assert!((140..150).contains(&with_jitter), "{with_jitter}");
    }

    #[test]
    fn a_deadline_shortens_a_wait_down_to_the_first_one() {
        let retry = retry(Some(100));
        for (made, left, wait) in [
            // Half of what is left.
            (3, 1000, Some(500)),
            (3, 240, Some(120)),
            // The first wait is never shortened.
            (3, 200, Some(100)),
            (3, 101, Some(100)),
            (0, 150, Some(100)),
            (0, 1000, Some(100)),
            // It leaves no time for a retry.
            (0, 100, None),
            (3, 100, None),
            (0, 0, None),
        ] {
            let left = Some(Duration::from_millis(left));
            let expected = wait.map(Duration::from_millis);
            assert_eq!(retry.wait(made, 0, left), expected, "{made} {left:?}");
        }
        let at_once = self::retry(Some(0));
        assert_eq!(at_once.wait(0, 0, Some(Duration::ZERO)), None);
    }
}
