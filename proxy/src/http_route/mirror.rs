//! Who gets copies of requests.

use crate::backend::Backend;
use crate::slot_map::Slot;

/// Who gets a copy of how many requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mirror {
    pub(crate) backend: Slot<Backend>,
    pub(crate) numerator: u32,
    /// At least 1.
    pub(crate) denominator: u32,
}

impl Mirror {
    /// Whether it gets one of this request.
    pub(crate) fn is_due(&self, random: u64) -> bool {
        random % u64::from(self.denominator.max(1)) < u64::from(self.numerator)
    }
}
