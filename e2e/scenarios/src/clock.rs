//! The only place of this runner that asks what time it is.

use jiff::Timestamp;

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else takes the time from"
)]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
