//! Owns the retry budgets of a backend: how many of its requests may be retries at one time. Each namespace whose routes
//! lead to the backend has a budget of its own, so none can use up that of another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Of this many requests under way at a backend, one may be a retry.
const SHARE: usize = 5;
/// This many retries are always allowed, even if there are few requests.
const AT_LEAST: usize = 10;

/// The budgets of one backend. A budget exists while requests count towards it.
#[derive(Debug, Default)]
pub(crate) struct Budgets(Mutex<BTreeMap<Arc<str>, Weak<Budget>>>);

impl Budgets {
    /// The budget for routes of `namespace`.
    pub(crate) fn of(&self, namespace: &Arc<str>) -> Arc<Budget> {
        let mut all = self.0.lock();
        if let Some(budget) = all.get(namespace).and_then(Weak::upgrade) {
            return budget;
        }
        all.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::default();
        all.insert(Arc::clone(namespace), Arc::downgrade(&budget));
        budget
    }
}

/// The requests to one backend by routes of one namespace that have retries, counted over all workers.
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

    /// How many retries may be under way now.
    fn most(&self) -> usize {
        (self.active.load(Ordering::Relaxed) / SHARE).max(AT_LEAST)
    }

    fn retry(self: &Arc<Self>) -> Option<Retrying> {
        let most = self.most();
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

    /// Whether the budget would allow another retry now.
    pub(crate) fn allows_retry(&self) -> bool {
        self.0.retrying.load(Ordering::Relaxed) < self.0.most()
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

    #[test]
    fn each_namespace_has_a_budget_that_lasts_as_long_as_it_is_used() {
        let budgets = Budgets::default();
        let [a, b]: [Arc<str>; 2] = ["team-a".into(), "team-b".into()];
        let active = budgets.of(&a).enter();
        assert!(active.is_of(&budgets.of(&a)));
        let all: Vec<Retrying> = std::iter::from_fn(|| active.retry()).collect();
        assert!(!active.allows_retry());
        assert!(budgets.of(&b).enter().allows_retry());
        // A retry counts even if nothing else holds the budget.
        drop(active);
        assert!(!budgets.of(&a).enter().allows_retry());
        drop(all);
        assert!(budgets.of(&a).enter().allows_retry());
        // Those that nobody uses are forgotten.
        let _active = budgets.of(&b).enter();
        assert_eq!(budgets.0.lock().len(), 1);
    }
}
