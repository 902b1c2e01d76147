//! The clock of this crate. No other module reads the time of the system.

use jiff::Timestamp;

/// The present time.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
