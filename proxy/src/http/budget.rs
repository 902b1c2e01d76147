//! Owns budgets of useless work that a client may cause: requests that it cancels, and frames that serve no request.
//! Useful requests and time give back what was spent. So only a client that does little else uses up a budget.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// One budget of one connection. It is used by one thread.
#[derive(Debug)]
pub(super) struct Budget {
    most: u32,
    left: AtomicU32,
    /// How much is given back in each second.
    per_second: u32,
    /// The time of the connection, in milliseconds, up to which it has given back. The clock is read only when nothing
    /// is left.
    looked: AtomicU64,
    over: AtomicBool,
}

impl Budget {
    pub(super) fn new(most: u32, per_second: u32) -> Self {
        Self {
            most,
            left: AtomicU32::new(most),
            per_second,
            looked: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Takes one. If none is left, the budget is used up for good. `now` returns the time of the connection in
    /// milliseconds.
    pub(super) fn spend(&self, now: impl FnOnce() -> u64) {
        let mut left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            left = self.returned(now());
        }
        match left.checked_sub(1) {
            Some(left) => self.left.store(left, Ordering::Relaxed),
            None => self.over.store(true, Ordering::Relaxed),
        }
    }

    /// What time has given back since the last call.
    fn returned(&self, now: u64) -> u32 {
        let passed = now.saturating_sub(self.looked.load(Ordering::Relaxed));
        let back = passed.saturating_mul(u64::from(self.per_second)) / 1000;
        if back > 0 {
            self.looked.store(now, Ordering::Relaxed);
        }
        u32::try_from(back).unwrap_or(u32::MAX).min(self.most)
    }

    pub(super) fn earn(&self, amount: u32) {
        let left = self.left.load(Ordering::Relaxed).saturating_add(amount);
        self.left.store(left.min(self.most), Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_over_when_neither_use_nor_time_gives_back() {
        let budget = Budget::new(10, 2);
        for _ in 0..10 {
            budget.spend(|| unreachable!("there is enough"));
        }
        assert!(!budget.is_over());
        // Half a second gives one back, and only once.
        budget.spend(|| 500);
        assert!(!budget.is_over());
        budget.earn(2);
        budget.spend(|| unreachable!("there is enough"));
        budget.spend(|| unreachable!("there is enough"));
        // An hour gives back no more than the whole budget.
        for _ in 0..10 {
            budget.spend(|| 3_600_000);
        }
        assert!(!budget.is_over());
        budget.spend(|| 3_600_000);
        assert!(budget.is_over());
        budget.earn(5);
        assert!(budget.is_over());
    }

    #[test]
    fn budget_of_a_client_that_uses_half_of_what_it_asks_for_is_never_over() {
        let budget = Budget::new(3, 0);
        for _ in 0..1000 {
            budget.spend(|| 0);
            budget.spend(|| 0);
            budget.earn(2);
        }
        assert!(!budget.is_over());
    }
}
