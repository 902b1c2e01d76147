//! How many orders may be made: token buckets for everybody, each issuer and each namespace.
//!
//! New certificates and renewals have buckets of their own, so that a tenant with many new hostnames
//! delays nobody's renewal. A bucket holds an hour's worth and fills evenly, on a clock that does not
//! jump. After a restart the Secrets tell which orders were made within the last hour
//! ([`Budget::remember`]), so that restarting gives no fresh hour.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::key::ObjectKey;

/// Orders per hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// For everybody together.
    pub per_hour: NonZeroU32,
    /// For each issuer.
    pub per_issuer: NonZeroU32,
    /// For each namespace that asks.
    pub per_namespace: NonZeroU32,
}

const HOUR: Duration = Duration::from_hours(1);
/// What an order costs, in the unit in which a bucket fills by its hourly rate each millisecond.
const COST: u64 = 3_600_000;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// What has been taken and not yet refilled.
    taken: u64,
    at: Duration,
}

impl Bucket {
    const EMPTY: Self = Self {
        taken: 0,
        at: Duration::ZERO,
    };

    /// What is taken at this time.
    fn taken(self, rate: NonZeroU32, now: Duration) -> u64 {
        let passed = now.saturating_sub(self.at).min(HOUR).as_millis();
        let refilled = u64::try_from(passed).unwrap_or(COST) * u64::from(rate.get());
        self.taken.saturating_sub(refilled)
    }

    fn allows(self, rate: NonZeroU32, now: Duration) -> bool {
        self.taken(rate, now) + COST <= u64::from(rate.get()) * COST
    }

    /// How long until it allows one.
    fn wait(self, rate: NonZeroU32, now: Duration) -> Duration {
        let over = (self.taken(rate, now) + COST).saturating_sub(u64::from(rate.get()) * COST);
        Duration::from_millis(over.div_ceil(u64::from(rate.get())))
    }

    fn take(&mut self, rate: NonZeroU32, now: Duration) {
        // Never owes more than an hour: it is full again after two at the latest.
        let most = u64::from(rate.get()) * COST * 2;
        self.taken = (self.taken(rate, now) + COST).min(most);
        self.at = now;
    }
}

/// The buckets of one lane.
#[derive(Debug)]
pub(super) struct Budget {
    budgets: Budgets,
    all: Bucket,
    issuers: BTreeMap<ObjectKey, Bucket>,
    namespaces: BTreeMap<Arc<str>, Bucket>,
}

impl Budget {
    pub(super) fn new(budgets: Budgets) -> Self {
        Self {
            budgets,
            all: Bucket::EMPTY,
            issuers: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// Whether the bucket of everybody allows an order.
    pub(super) fn allows_any(&self, now: Duration) -> bool {
        self.all.allows(self.budgets.per_hour, now)
    }

    /// Whether the namespace's does.
    pub(super) fn allows_namespace(&self, namespace: &str, now: Duration) -> bool {
        self.namespaces
            .get(namespace)
            .is_none_or(|bucket| bucket.allows(self.budgets.per_namespace, now))
    }

    /// Whether the issuer's does.
    pub(super) fn allows_issuer(&self, issuer: &ObjectKey, now: Duration) -> bool {
        self.issuers
            .get(issuer)
            .is_none_or(|bucket| bucket.allows(self.budgets.per_issuer, now))
    }

    /// How long until all three allow an order.
    pub(super) fn wait(&self, issuer: &ObjectKey, namespace: &str, now: Duration) -> Duration {
        let of = |bucket: Option<&Bucket>, rate| {
            bucket.map_or(Duration::ZERO, |bucket| bucket.wait(rate, now))
        };
        of(Some(&self.all), self.budgets.per_hour)
            .max(of(self.issuers.get(issuer), self.budgets.per_issuer))
            .max(of(
                self.namespaces.get(namespace),
                self.budgets.per_namespace,
            ))
    }

    /// Takes an order from all three.
    pub(super) fn take(&mut self, issuer: &ObjectKey, namespace: &Arc<str>, now: Duration) {
        let Budgets {
            per_hour,
            per_issuer,
            per_namespace,
        } = self.budgets;
        // What is full again need not be remembered.
        self.issuers
            .retain(|_, bucket| bucket.taken(per_issuer, now) > 0);
        self.namespaces
            .retain(|_, bucket| bucket.taken(per_namespace, now) > 0);
        self.all.take(per_hour, now);
        let issuer = self.issuers.entry(issuer.clone()).or_insert(Bucket::EMPTY);
        issuer.take(per_issuer, now);
        let namespace = self
            .namespaces
            .entry(namespace.clone())
            .or_insert(Bucket::EMPTY);
        namespace.take(per_namespace, now);
    }

    /// Takes an order that another process made so long ago.
    pub(super) fn remember(
        &mut self,
        issuer: &ObjectKey,
        namespace: &Arc<str>,
        age: Duration,
        now: Duration,
    ) {
        if age < HOUR {
            self.take(issuer, namespace, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vestibule_model::key::Kind;

    use super::*;

    fn rate(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).expect("a rate")
    }

    proptest! {
        /// Over any stretch of time no more orders are made than an hour's worth and what fills meanwhile.
        #[test]
        fn a_bucket_gives_its_rate_and_no_more(
            per_hour in 1_u32..20,
            steps in prop::collection::vec(0_u64..600_000, 1..40),
        ) {
            let budgets = Budgets { per_hour: rate(per_hour), per_issuer: rate(1_000_000), per_namespace: rate(1_000_000) };
            let mut budget = Budget::new(budgets);
            let (issuer, namespace) = (ObjectKey::new(Kind::Secret, "a", "b"), Arc::from("a"));
            let mut now = Duration::ZERO;
            let mut made: Vec<Duration> = Vec::new();
            for step in steps {
                now += Duration::from_millis(step);
                while budget.allows_any(now) {
                    prop_assert_eq!(budget.wait(&issuer, &namespace, now), Duration::ZERO);
                    budget.take(&issuer, &namespace, now);
                    made.push(now);
                }
                let wait = budget.wait(&issuer, &namespace, now);
                prop_assert!(wait > Duration::ZERO && wait <= HOUR);
                prop_assert!(budget.allows_any(now + wait));
                for first in &made {
                    let within = made.iter().filter(|at| *at >= first).count() as u64;
                    let fills = u64::try_from(now.saturating_sub(*first).as_millis()).expect("fits") * u64::from(per_hour) / COST;
                    prop_assert!(within <= u64::from(per_hour) + fills + 1);
                }
            }
        }
    }

    #[test]
    fn namespaces_and_issuers_have_their_own() {
        let budgets = Budgets {
            per_hour: rate(10),
            per_issuer: rate(3),
            per_namespace: rate(2),
        };
        let mut budget = Budget::new(budgets);
        let issuer = |name: &str| ObjectKey::new(Kind::Secret, "", name);
        let now = Duration::from_secs(5);
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        budget.take(&issuer("x"), &a, now);
        budget.take(&issuer("x"), &a, now);
        assert!(!budget.allows_namespace("a", now));
        assert!(budget.allows_namespace("b", now));
        budget.take(&issuer("x"), &b, now);
        assert!(!budget.allows_issuer(&issuer("x"), now));
        assert!(budget.allows_issuer(&issuer("y"), now));
        budget.remember(&issuer("y"), &b, HOUR, now);
        assert!(
            budget.allows_namespace("b", now),
            "an hour ago is forgotten"
        );
        budget.remember(&issuer("y"), &b, HOUR / 2, now);
        assert!(!budget.allows_namespace("b", now));
        assert!(budget.allows_namespace("b", now + HOUR));
    }
}
