//! Owns the mirrors of rules: which backends get copies of which share of requests.

use crate::backend::Backend;
use crate::slot_map::Slot;

/// A backend, and the share of requests of which it gets copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mirror {
    pub(crate) backend: Slot<Backend>,
    pub(crate) numerator: u32,
    /// At least 1.
    pub(crate) denominator: u32,
}

impl Mirror {
    /// Whether the backend gets a copy of this request.
    pub(crate) fn is_due(&self, random: u64) -> bool {
        random % u64::from(self.denominator.max(1)) < u64::from(self.numerator)
    }
}
