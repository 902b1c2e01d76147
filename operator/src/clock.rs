//! The only place of this crate that asks what time it is.

use jiff::Timestamp;

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Seconds since 1970.
#[must_use]
pub(crate) fn seconds() -> i64 {
    now().as_second()
}
