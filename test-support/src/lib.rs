//! What the tests of several crates share: waiting until something is so.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait of [`eventually`]. Nothing waits so long unless it has failed: it is no statement of how soon anything
/// has to happen.
pub const BOUND: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(25);

/// What a look gives: `bool` for a condition, `Option` for something that is to be found.
pub trait Look {
    /// What there is once it is so.
    type Found;

    /// It; `None` as long as it is not so.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Looks until it is so.
///
/// # Panics
/// If it is not so within [`BOUND`].
pub async fn eventually<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    within(BOUND, what, look).await
}

/// Looks until it is so, for at most so long.
///
/// # Panics
/// If it is not so within `bound`.
pub async fn within<L: Look>(
    bound: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> L,
) -> L::Found {
    let end = Instant::now() + bound;
    loop {
        // A look at something that never answers has an end as well.
        let look = timeout_at(end, look()).await;
        let Ok(look) = look else {
            panic!("not within {bound:?}: {what}");
        };
        if let Some(found) = look.found() {
            return found;
        }
        assert!(Instant::now() < end, "not within {bound:?}: {what}");
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_is_repeated_until_it_finds_something() {
        let mut looks = 0;
        let found = eventually("the third look", async || {
            looks += 1;
            (looks == 3).then_some("here")
        });
        assert_eq!(found.await, "here");
        eventually("a condition", async || true).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 1s: never so")]
    async fn what_never_is_so_fails_at_the_bound() {
        within(Duration::from_secs(1), "never so", async || false).await;
    }
}
