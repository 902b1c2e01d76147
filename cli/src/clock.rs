//! The clock of this command. No other module reads the time of the system.

use jiff::Timestamp;

/// The present time.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
