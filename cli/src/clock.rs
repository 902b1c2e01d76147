//! The only place of this command that asks what time it is.

use jiff::Timestamp;

/// Now.
#[must_use]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
