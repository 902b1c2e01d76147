//! Remembers an operation that keeps failing, and decides when to try it again and how often the log says so.

use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vestibule_backoff::Backoff;

use crate::token_bucket::Buckets;

/// Waits after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Most lines of a party at once about operations that fail.
const LINES: u32 = 20;
/// Time after which one more line of the party may be logged.
const LINE_EARNS: Duration = Duration::from_secs(1);

/// Limits the lines about operations that fail, by party. Clones share the limits.
#[derive(Debug, Clone)]
pub(super) struct FailureLines<K>(Arc<Mutex<Buckets<K>>>);

impl<K: Eq + Hash + Clone> FailureLines<K> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Buckets::new(LINES, LINE_EARNS))))
    }

    /// Returns whether one more line about an operation of `party` may be logged, and counts it.
    pub(super) fn admit(&self, party: &K) -> bool {
        self.0.lock().take(party, Instant::now())
    }
}

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
