//! Wall-clock time of the cluster side; everything that decides takes time as an input.

use jiff::Timestamp;

/// Now.
#[must_use]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// Seconds since 1970; 0 for a clock that is before.
#[must_use]
pub(super) fn seconds() -> u64 {
    u64::try_from(now().as_second()).unwrap_or_default()
}
