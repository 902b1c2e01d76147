//! Owns the state of the retries of one request.

use std::sync::Arc;

use super::kept::KeptBody;
use crate::backend::Backend;
use crate::retry_budget::{Active, Retrying};

/// The retries of one request.
#[derive(Default)]
pub(super) struct RetryState {
    pub(super) made: u32,
    /// Its body, if it has one that is kept.
    pub(super) body: Option<Arc<KeptBody>>,
    /// Whether the request has passed this proxy several times already. Then retries and mirrors would multiply what may
    /// be a loop.
    pub(super) deep: bool,
    retrying: Option<Retrying>,
    active: Option<Active>,
}

impl RetryState {
    /// Records that the request is under way at `backend`, for a route in `namespace`.
    pub(super) fn at(&mut self, backend: &Backend, namespace: &Arc<str>) {
        let budget = backend.retries(namespace);
        let other = |active: &Active| !active.is_of(&budget);
        if self.active.as_ref().is_none_or(other) {
            self.retrying = None;
            self.active = Some(budget.enter());
        }
    }

    /// Whether the retry budget allows another retry, before the wait for it. A request that only waits, perhaps for a
    /// minute, puts no load on the backend. So it does not count as a retry meanwhile, even if it was one before.
    pub(super) fn is_affordable(&mut self) -> bool {
        self.end();
        self.active.as_ref().is_some_and(Active::allows_retry)
    }

    /// Counts the request as a retry, after the wait. Returns whether the budget allows that: others may have used it
    /// up meanwhile.
    pub(super) fn begin(&mut self) -> bool {
        self.retrying = self.active.as_ref().and_then(Active::retry);
        self.retrying.is_some()
    }

    /// Records that the request has an answer that needs no retry.
    pub(super) fn succeeded(&self) {
        if let Some(active) = &self.active {
            active.earn();
        }
    }

    /// No longer counts the request as a retry.
    pub(super) fn end(&mut self) {
        self.retrying = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot_map::SlotAllocator;

    fn at(backend: &Backend, namespace: &str) -> RetryState {
        let mut state = RetryState::default();
        state.at(backend, &namespace.into());
        state
    }

    fn backend() -> Backend {
        Backend::new("team-a/web:80".into(), SlotAllocator::default().allocate())
    }

    #[test]
    fn a_retry_that_waits_does_not_count() {
        let backend = backend();
        let mut waiting: Vec<_> = (0..20).map(|_| at(&backend, "team-a")).collect();
        for state in &mut waiting {
            assert!(state.is_affordable());
        }
        // Another one is not kept from its retry.
        let mut other = at(&backend, "team-a");
        assert!(other.is_affordable());
        assert!(other.begin());
        drop(other);
        // Those whose wait is over get what there is.
        let begun = waiting
            .iter_mut()
            .filter_map(|state| state.begin().then_some(()));
        assert_eq!(begun.count(), 10);
        let mut other = at(&backend, "team-a");
        assert!(!other.is_affordable());
        // One that waits again makes room.
        assert!(waiting[0].is_affordable());
        assert!(other.is_affordable());
        assert!(other.begin());
        assert!(!waiting[0].begin());
    }

    #[test]
    fn retries_of_another_namespace_do_not_count() {
        let backend = backend();
        let mut others: Vec<_> = (0..10).map(|_| at(&backend, "team-b")).collect();
        assert!(others.iter_mut().all(RetryState::begin));
        assert!(!at(&backend, "team-b").is_affordable());
        assert!(at(&backend, "team-a").is_affordable());
    }
}
