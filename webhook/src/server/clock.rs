//! The only place of this crate that asks what time it is.

use jiff::Timestamp;

/// Now.
#[must_use]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
