//! Owns the state of the retries of one request.

use std::sync::Arc;

use super::kept::Kept;
use crate::backend::Backend;
use crate::retry_budget::{Active, Retrying};

/// The retries of one request.
#[derive(Default)]
pub(super) struct RetryState {
    pub(super) made: u32,
    /// Its body, if it has one that is kept.
    pub(super) body: Option<Arc<Kept>>,
    retrying: Option<Retrying>,
    active: Option<Active>,
}

impl RetryState {
    /// Records that the request is under way at `backend`.
    pub(super) fn at(&mut self, backend: &Backend) {
        let budget = backend.retries();
        let other = |active: &Active| !active.is_of(budget);
        if self.active.as_ref().is_none_or(other) {
            self.retrying = None;
            self.active = Some(budget.enter());
        }
    }

    /// Whether the retry budget of the backend allows another retry.
    pub(super) fn is_affordable(&mut self) -> bool {
        if self.retrying.is_none()
            && let Some(active) = &self.active
        {
            self.retrying = active.retry();
        }
        self.retrying.is_some()
    }
}
