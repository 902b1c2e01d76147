//! The engine's clocks. This is the only place of this crate that asks what time it is.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// Now, on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Seconds since 1970. This clock may jump.
    pub(crate) wall: i64,
    /// Time since an arbitrary start in this process. This clock never jumps.
    pub(crate) steady: Duration,
}

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub fn wall() -> i64 {
    Timestamp::now().as_second()
}

/// Formats a time for people.
pub(crate) fn time(seconds: i64) -> Arc<str> {
    Timestamp::from_second(seconds)
        .map_or_else(|_| "an unknown time".into(), |time| time.to_string())
        .into()
}
