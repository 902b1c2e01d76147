//! Owns the retry budgets of a backend: how many of its requests may be retries at one time, and how many retries there
//! may be in a second. Each namespace whose routes lead to the backend has a budget of its own, so none can use up that
//! of another.
//!
//! The rate holds where the number does not: where a backend fails at once, few retries are under way at any time, and
//! yet there can be thousands in a second. Answers that need no retry earn retries. So a backend that fails for everybody
//! gets a few retries in a second, however many requests there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::rate::{SECOND, TokenBucket, now};

/// Of this many requests under way at a backend, one may be a retry.
const SHARE: usize = 5;
/// This many retries are always allowed, even if there are few requests.
const AT_LEAST: usize = 10;

/// This many retries in a second are always allowed.
const PER_SECOND: u64 = 10;
/// The price of a retry, in nanoseconds of a clock that goes on by itself.
const PRICE: u64 = SECOND / PER_SECOND;
/// The credit for an answer that needs no retry.
const EARNED: u64 = PRICE / SHARE as u64;
/// Most that can be saved: the retries of ten seconds.
const SAVED: u64 = 10 * SECOND;

/// The budgets of one backend. A budget exists while requests count towards it, and until it is full again.
#[derive(Debug, Default)]
pub(crate) struct RetryBudgets(Mutex<BTreeMap<Arc<str>, Arc<RetryBudget>>>);

impl RetryBudgets {
    /// The budget for routes of `namespace`.
    pub(crate) fn of(&self, namespace: &Arc<str>) -> Arc<RetryBudget> {
        let mut all = self.0.lock();
        if let Some(budget) = all.get(namespace) {
            return Arc::clone(budget);
        }
        let now = now();
        // A budget that was spent is kept until it is full again, although no request counts towards it. Otherwise a
        // namespace whose requests have all ended would begin with a full budget again.
        all.retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.is_full(now));
        let budget = Arc::default();
        all.insert(Arc::clone(namespace), Arc::clone(&budget));
        budget
    }
}

/// The requests to one backend by routes of one namespace that have retries, counted over all workers.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    active: AtomicUsize,
    retrying: AtomicUsize,
    /// What retries are paid from: [`PRICE`] each, and at most [`SAVED`].
    saved: TokenBucket,
}

impl RetryBudget {
    /// Counts a request that is under way.
    pub(crate) fn enter(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }

    /// How many retries may be under way now.
    fn most(&self) -> usize {
        (self.active.load(Ordering::Relaxed) / SHARE).max(AT_LEAST)
    }

    fn is_full(&self, now: u64) -> bool {
        self.saved.is_full(now)
    }

    /// Whether a retry could be paid for.
    fn is_rich(&self, now: u64) -> bool {
        self.saved.could_pay(PRICE, SAVED, now)
    }

    fn retry(self: &Arc<Self>, now: u64) -> Option<Retrying> {
        let relaxed = Ordering::Relaxed;
        // The place comes before the price: a place that turns out to be of no use is given back, and a price is not. Each of
        // the two updates is atomic, so threads that retry at the same time cannot go beyond either bound together.
        let most = self.most();
        let taken = self.retrying.fetch_update(relaxed, relaxed, |retrying| {
            (retrying < most).then_some(retrying + 1)
        });
        // From here on, its `Drop` gives the place back.
        let retrying = taken.is_ok().then(|| Retrying(Arc::clone(self)))?;
        self.saved.pay(PRICE, SAVED, now).then_some(retrying)
    }

    fn earn(&self, now: u64) {
        self.saved.earn(EARNED, now);
    }
}

/// A request counts as under way until this is dropped.
pub(crate) struct Active(Arc<RetryBudget>);

impl Active {
    /// Whether it counts towards this budget.
    pub(crate) fn is_of(&self, budget: &Arc<RetryBudget>) -> bool {
        Arc::ptr_eq(&self.0, budget)
    }

    /// Whether the budget would allow another retry now.
    pub(crate) fn allows_retry(&self) -> bool {
        self.0.retrying.load(Ordering::Relaxed) < self.0.most() && self.0.is_rich(now())
    }

    /// Records that the request has an answer that needs no retry.
    pub(crate) fn earn(&self) {
        self.0.earn(now());
    }

    /// Counts the request as a retry, if the budget allows it.
    pub(crate) fn retry(&self) -> Option<Retrying> {
        self.0.retry(now())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request counts as a retry until this is dropped.
pub(crate) struct Retrying(Arc<RetryBudget>);

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
        let budget = Arc::new(RetryBudget::default());
        let mut active = vec![budget.enter()];
        let all = |budget: &Arc<RetryBudget>| -> Vec<Retrying> {
            std::iter::from_fn(|| budget.retry(0)).collect()
        };
        assert_eq!(all(&budget).len(), 10);
        active.extend((0..99).map(|_| budget.enter()));
        let retrying = all(&budget);
        assert_eq!(retrying.len(), 20);
        assert!(budget.retry(0).is_none());
        drop(retrying);
        drop(active);
        assert_eq!(budget.active.load(Ordering::Relaxed), 0);
        assert_eq!(budget.retrying.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn retries_have_a_rate_and_answers_that_need_none_earn_more() {
        let budget = Arc::new(RetryBudget::default());
        // Each is over before the next one begins.
        let spend = |now| std::iter::from_fn(|| budget.retry(now).map(drop)).count();
        assert_eq!(spend(0), 100);
        assert_eq!(spend(SECOND), 10);
        assert!(!budget.is_rich(SECOND) && !budget.is_full(SECOND));
        for _ in 0..50 {
            budget.earn(SECOND);
        }
        assert!(budget.is_rich(SECOND));
        assert_eq!(spend(SECOND), 10);
        assert_eq!(spend(100 * SECOND), 100);
        // Nothing is saved beyond that.
        for _ in 0..10_000 {
            budget.earn(200 * SECOND);
        }
        assert!(budget.is_full(200 * SECOND));
        assert_eq!(spend(200 * SECOND), 100);
    }

    #[test]
    fn each_namespace_has_a_budget_that_lasts_as_long_as_it_is_used() {
        let budgets = RetryBudgets::default();
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
        // One that nobody uses is forgotten when it is full.
        let c: Arc<str> = "team-c".into();
        let _active = budgets.of(&c).enter();
        let known: Vec<_> = budgets.0.lock().keys().cloned().collect();
        assert_eq!(known, [a, c]);
    }
}
