//! The engine's clocks.

use std::sync::Arc;
use std::time::Duration;

/// Now, on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    /// Seconds since 1970. This clock may jump.
    pub(super) wall: i64,
    /// Time since an arbitrary start in this process. This clock never jumps.
    pub(super) steady: Duration,
}

/// Seconds since 1970.
#[must_use]
pub fn wall() -> i64 {
    crate::clock::seconds()
}

/// Formats a time for people.
pub(super) fn time(seconds: i64) -> Arc<str> {
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| "an unknown time".into(), |time| time.to_string())
        .into()
}
