//! Remembers an operation that keeps failing, and decides when to try it again.

use std::time::{Duration, Instant};

use vestibule_backoff::Backoff;

/// Waits after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Failures of the same operation in a row.
#[derive(Debug)]
pub(super) struct RepeatedFailure {
    /// The last problem.
    pub(super) problem: String,
    failures: u32,
    /// When the operation is tried again.
    pub(super) until: Instant,
}

impl RepeatedFailure {
    /// Returns the state after one more failure.
    pub(super) fn after(before: Option<&Self>, problem: String) -> Self {
        let failures = before.map_or(0, |trouble| trouble.failures);
        Self {
            problem,
            failures: failures + 1,
            until: Instant::now() + BACKOFF.delay(failures),
        }
    }
}
