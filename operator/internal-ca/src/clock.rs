//! The only place of this crate that asks what time it is.

use jiff::Timestamp;

use crate::rotation::Seconds;

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
#[must_use]
pub(crate) fn seconds() -> Seconds {
    Timestamp::now().as_second()
}
