//! Owns the retry budget of a backend: how many of its requests may be retries at one time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of this many requests under way at a backend, one may be a retry.
const SHARE: usize = 5;
/// This many retries are always allowed, even if there are few requests.
const AT_LEAST: usize = 10;

/// The requests to one backend whose routes have retries, counted over all workers.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    active: AtomicUsize,
    retrying: AtomicUsize,
}

impl Budget {
    /// Counts a request that is under way.
    pub(crate) fn enter(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }

    fn retry(self: &Arc<Self>) -> Option<Retrying> {
        let most = (self.active.load(Ordering::Relaxed) / SHARE).max(AT_LEAST);
        let taken = self
            .retrying
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                (now < most).then_some(now + 1)
            });
        taken.is_ok().then(|| Retrying(Arc::clone(self)))
    }
}

/// A request counts as under way until this is dropped.
pub(crate) struct Active(Arc<Budget>);

impl Active {
    /// Whether it counts towards this budget.
    pub(crate) fn is_of(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.0, budget)
    }

    /// Counts the request as a retry, if the budget allows it.
    pub(crate) fn retry(&self) -> Option<Retrying> {
        self.0.retry()
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request counts as a retry until this is dropped.
pub(crate) struct Retrying(Arc<Budget>);

impl Drop for Retrying {
    fn drop(&mut self) {
        self.0.retrying.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_what_is_under_way_may_be_made_again_and_ten_in_any_case() {
        let budget = Arc::new(Budget::default());
        let mut active = vec![budget.enter()];
        let all = |budget: &Arc<Budget>| -> Vec<Retrying> {
            std::iter::from_fn(|| budget.retry()).collect()
        };
        assert_eq!(all(&budget).len(), 10);
        active.extend((0..99).map(|_| budget.enter()));
        let retrying = all(&budget);
        assert_eq!(retrying.len(), 20);
        assert!(budget.retry().is_none());
        drop(retrying);
        drop(active);
        assert_eq!(budget.active.load(Ordering::Relaxed), 0);
        assert_eq!(budget.retrying.load(Ordering::Relaxed), 0);
    }
}
