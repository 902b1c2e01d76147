//! What keeps failing, and when it is tried again.

use std::time::{Duration, Instant};

use vestibule_backoff::Backoff;

/// Waits after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Failures of the same thing in a row, and when to try again.
#[derive(Debug)]
pub(super) struct RepeatedFailure {
    /// What went wrong last.
    pub(super) problem: String,
    failures: u32,
    /// When it is tried again.
    pub(super) until: Instant,
}

impl RepeatedFailure {
    /// After one more failure.
    pub(super) fn after(before: Option<&Self>, problem: String) -> Self {
        let failures = before.map_or(0, |trouble| trouble.failures);
        Self {
            problem,
            failures: failures + 1,
            until: Instant::now() + BACKOFF.delay(failures),
        }
    }
}
