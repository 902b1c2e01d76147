//! The retry policy of a rule, and how long to wait before each retry.

use std::collections::BTreeSet;
use std::time::Duration;

/// How long to wait before the first retry, if the route does not say.
const BACKOFF: Duration = Duration::from_millis(25);
/// Longest wait before a retry, unless the first wait of the route is longer.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Longest wait, as a multiple of the first one.
const MOST_FACTOR: u32 = 10;

/// The retry policy of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    /// Status codes of responses, 400 to 599.
    pub(crate) codes: BTreeSet<u16>,
    /// Most retries.
    pub(crate) attempts: u32,
    pub(crate) backoff: Option<Duration>,
}

impl Retry {
    /// How long to wait before the next retry, when `made` retries were made. The wait doubles each time, up to a
    /// bound. `left` is the time that the request may still take. The wait uses at most half of it, so that the retry
    /// has the other half.
    pub(crate) fn wait(&self, made: u32, random: u64, left: Option<Duration>) -> Duration {
        let base = self.backoff.unwrap_or(BACKOFF);
        let most = base.saturating_mul(MOST_FACTOR).min(LONGEST_BACKOFF);
        let doubled = base.saturating_mul(1_u32.checked_shl(made).unwrap_or(u32::MAX));
        let wait = doubled.min(most.max(base));
        // Up to half of the wait is added at random, so that requests that failed together are not sent again together.
        let parts = u32::try_from(random % 512).unwrap_or_default();
        let wait = wait + wait / 1024 * parts;
        left.map_or(wait, |left| wait.min(left / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(backoff: Option<u64>) -> Retry {
        Retry {
            codes: [503].into(),
            attempts: 3,
            backoff: backoff.map(Duration::from_millis),
        }
    }

    #[test]
    fn waits_double_up_to_a_bound_and_leave_time_for_the_retry() {
        let millis = |retry: &Retry, made, random, left: Option<u64>| {
            let left = left.map(Duration::from_millis);
            retry.wait(made, random, left).as_millis()
        };
        let waits = |retry: &Retry| [0, 1, 2, 3, 9, 99].map(|made| millis(retry, made, 0, None));
        assert_eq!(waits(&retry(None)), [25, 50, 100, 200, 250, 250]);
        assert_eq!(
            waits(&retry(Some(4000))),
            [4000, 8000, 10_000, 10_000, 10_000, 10_000]
        );
        // A route's own time is never shortened.
        assert_eq!(waits(&retry(Some(20_000))), [20_000; 6]);
        assert_eq!(waits(&retry(Some(0))), [0; 6]);
        assert!((140..150).contains(&millis(&retry(Some(100)), 0, 511, None)));
        assert_eq!(millis(&retry(Some(1000)), 0, 511, Some(200)), 100);
    }
}
