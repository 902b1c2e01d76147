//! The only place of this crate that asks what time it is.

use jiff::Timestamp;

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
