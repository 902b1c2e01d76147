//! How long a proxy that is about to end goes on accepting.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How many times the arrivals are counted within the time that has to pass without any.
const LOOKS: u32 = 20;

/// Waits until `arrivals` has not changed for `quiet`, but at most `quiet` and `longest` together. Returns whether
/// it became quiet. A time of zero does not wait at all.
pub(crate) async fn until_quiet(
    arrivals: impl Fn() -> u64,
    quiet: Duration,
    longest: Duration,
) -> bool {
    let end = Instant::now() + quiet + longest;
    let (mut seen, mut since) = (arrivals(), Instant::now());
    loop {
        let now = Instant::now();
        if now - since >= quiet {
            return true;
        }
        if now >= end {
            return false;
        }
        sleep((quiet / LOOKS).min(end - now)).await;
        let count = arrivals();
        if count != seen {
            (seen, since) = (count, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const QUIET: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(150);

    /// How long it waits if connections come until `last`, and whether it became quiet.
    async fn waits(last: Duration) -> (Duration, bool) {
        let begun = Instant::now();
        let count = Cell::new(0);
        let arrivals = || {
            if begun.elapsed() <= last {
                count.set(count.get() + 1);
            }
            count.get()
        };
        let is_quiet = until_quiet(arrivals, QUIET, LONGEST).await;
        (begun.elapsed(), is_quiet)
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_quiet_ends_when_nobody_came_for_a_while_or_at_the_longest_time() {
        let secs = Duration::from_secs;
        let about = |(waited, is_quiet): (Duration, bool), expected: Duration| {
            assert!(
                waited >= expected && waited < expected + secs(1),
                "{waited:?}"
            );
            is_quiet
        };
        assert!(about(waits(secs(0)).await, secs(10)));
        assert!(about(waits(secs(42)).await, secs(52)));
        assert!(!about(waits(secs(1000)).await, secs(160)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_of_zero_does_not_wait() {
        let begun = Instant::now();
        assert!(until_quiet(|| 1, Duration::ZERO, LONGEST).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
