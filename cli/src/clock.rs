//! The clock of this command. No other module reads the time.

use jiff::Timestamp;

/// Now.
#[must_use]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
