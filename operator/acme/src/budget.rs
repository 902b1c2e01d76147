//! Budgets: limits how many orders are made and how many accounts are registered. Orders have token buckets for everybody
//! together, for each issuer and for each namespace. Registrations have buckets for each host of a CA.
//!
//! New certificates and renewals have separate buckets, so that a tenant with many new hostnames does not delay
//! renewals. A bucket holds an hour's worth and refills evenly, on a clock that does not jump. After a restart the
//! Secrets tell which orders were made within the last hour ([`Budget::remember`]), so a restart does not refill the
//! buckets.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::key::ObjectKey;

/// Largest numbers of orders per hour.
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
const TWICE: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
/// The period in which registrations are counted. Let's Encrypt uses the same.
pub(crate) const REGISTRATION_PERIOD: Duration = Duration::from_hours(3);

/// A number of events within a period.
#[derive(Debug, Clone, Copy)]
struct Rate {
    number: NonZeroU32,
    period: Duration,
}

impl Rate {
    fn hourly(number: NonZeroU32) -> Self {
        Self {
            number,
            period: HOUR,
        }
    }

    /// The cost of one event. In this unit, a bucket refills by `number` each millisecond.
    fn cost(self) -> u64 {
        u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX / 8)
    }

    fn number(self) -> u64 {
        u64::from(self.number.get())
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// What has been taken and has not refilled yet.
    taken: u64,
    at: Duration,
}

impl Bucket {
    const EMPTY: Self = Self {
        taken: 0,
        at: Duration::ZERO,
    };

    /// What is taken at the time `now`.
    fn taken(self, rate: Rate, now: Duration) -> u64 {
        let passed = now.saturating_sub(self.at).min(rate.period * 2).as_millis();
        let refilled = u64::try_from(passed).unwrap_or_default() * rate.number();
        self.taken.saturating_sub(refilled)
    }

    fn allows(self, rate: Rate, now: Duration) -> bool {
        self.taken(rate, now) + rate.cost() <= rate.number() * rate.cost()
    }

    /// How long until the bucket allows one event.
    fn wait(self, rate: Rate, now: Duration) -> Duration {
        let most = rate.number() * rate.cost();
        let over = (self.taken(rate, now) + rate.cost()).saturating_sub(most);
        Duration::from_millis(over.div_ceil(rate.number()))
    }

    fn take(&mut self, rate: Rate, now: Duration) {
        // At most two periods' worth counts as taken, so the bucket is full again after two periods at the latest.
        let most = rate.number() * rate.cost() * 2;
        self.taken = (self.taken(rate, now) + rate.cost()).min(most);
        self.at = now;
    }

    fn give_back(&mut self, rate: Rate, now: Duration) {
        self.taken = self.taken(rate, now).saturating_sub(rate.cost());
        self.at = now;
    }
}

/// The buckets of one lane.
#[derive(Debug)]
pub(crate) struct Budget {
    budgets: Budgets,
    all: Bucket,
    issuers: BTreeMap<ObjectKey, Bucket>,
    namespaces: BTreeMap<Arc<str>, Bucket>,
}

impl Budget {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self {
            budgets,
            all: Bucket::EMPTY,
            issuers: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// Whether the bucket of everybody allows an order.
    pub(crate) fn allows_any(&self, now: Duration) -> bool {
        self.all.allows(Rate::hourly(self.budgets.per_hour), now)
    }

    /// Whether the bucket of this namespace allows an order.
    pub(crate) fn allows_namespace(&self, namespace: &str, now: Duration) -> bool {
        let rate = Rate::hourly(self.budgets.per_namespace);
        self.namespaces
            .get(namespace)
            .is_none_or(|bucket| bucket.allows(rate, now))
    }

    /// Whether the bucket of this issuer allows an order.
    pub(crate) fn allows_issuer(&self, issuer: &ObjectKey, now: Duration) -> bool {
        let rate = Rate::hourly(self.budgets.per_issuer);
        self.issuers
            .get(issuer)
            .is_none_or(|bucket| bucket.allows(rate, now))
    }

    /// How long until all three buckets allow an order.
    pub(crate) fn wait(&self, issuer: &ObjectKey, namespace: &str, now: Duration) -> Duration {
        let of = |bucket: Option<&Bucket>, rate| {
            let rate = Rate::hourly(rate);
            bucket.map_or(Duration::ZERO, |bucket| bucket.wait(rate, now))
        };
        of(Some(&self.all), self.budgets.per_hour)
            .max(of(self.issuers.get(issuer), self.budgets.per_issuer))
            .max(of(
                self.namespaces.get(namespace),
                self.budgets.per_namespace,
            ))
    }

    /// Takes an order from all three buckets.
    pub(crate) fn take(&mut self, issuer: &ObjectKey, namespace: &Arc<str>, now: Duration) {
        let Budgets {
            per_hour,
            per_issuer,
            per_namespace,
        } = self.budgets;
        let [per_hour, per_issuer, per_namespace] =
            [per_hour, per_issuer, per_namespace].map(Rate::hourly);
        // A bucket that is full again need not be kept.
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

    /// Counts an order that another process made `age` ago. The tenant may have written the Secret that says so, so
    /// what the Secrets of a namespace say counts for no more than what the namespace could have ordered, in every
    /// bucket.
    pub(crate) fn remember(
        &mut self,
        issuer: &ObjectKey,
        namespace: &Arc<str>,
        age: Duration,
        now: Duration,
    ) {
        if age < HOUR && self.allows_namespace(namespace, now) {
            self.take(issuer, namespace, now);
        }
    }
}

/// How many orders that the Secrets of a namespace name may be asked for at their CA, which nobody knows to be orders of
/// that namespace. It is twice as many as the namespace may make in an hour, because it may have as many renewals, and
/// a new leader asks for all that are under way.
#[derive(Debug)]
pub(crate) struct RecordedOrderBudget {
    rate: Rate,
    namespaces: BTreeMap<Arc<str>, Bucket>,
}

impl RecordedOrderBudget {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self {
            rate: Rate::hourly(budgets.per_namespace.saturating_mul(TWICE)),
            namespaces: BTreeMap::new(),
        }
    }

    /// How long until an order that a Secret of this namespace names may be asked for.
    pub(crate) fn wait(&self, namespace: &str, now: Duration) -> Duration {
        let bucket = self.namespaces.get(namespace);
        bucket.map_or(Duration::ZERO, |bucket| bucket.wait(self.rate, now))
    }

    /// Counts one that is asked for.
    pub(crate) fn take(&mut self, namespace: &Arc<str>, now: Duration) {
        let rate = self.rate;
        // A bucket that is full again need not be kept.
        self.namespaces
            .retain(|_, bucket| bucket.taken(rate, now) > 0);
        let bucket = self.namespaces.entry(namespace.clone());
        bucket.or_insert(Bucket::EMPTY).take(rate, now);
    }
}

/// How many accounts tenants' issuers may register at each host of a CA. One namespace may register at most a quarter
/// of them, but at least one, so that no namespace uses up what all share.
#[derive(Debug)]
pub(crate) struct Registrations {
    host: Rate,
    namespace: Rate,
    hosts: BTreeMap<Arc<str>, Bucket>,
    namespaces: BTreeMap<(Arc<str>, Arc<str>), Bucket>,
}

impl Registrations {
    pub(crate) fn new(per_host: NonZeroU32) -> Self {
        let rate = |number| Rate {
            number,
            period: REGISTRATION_PERIOD,
        };
        Self {
            host: rate(per_host),
            namespace: rate(NonZeroU32::new(per_host.get() / 4).unwrap_or(NonZeroU32::MIN)),
            hosts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// How many registrations a host allows.
    pub(crate) fn per_host(&self) -> u32 {
        self.host.number.get()
    }

    /// How long until a namespace may register an account at a host.
    pub(crate) fn wait(&self, host: &Arc<str>, namespace: &Arc<str>, now: Duration) -> Duration {
        let of = |bucket: Option<&Bucket>, rate| {
            bucket.map_or(Duration::ZERO, |bucket| bucket.wait(rate, now))
        };
        let key = (host.clone(), namespace.clone());
        of(self.hosts.get(host), self.host).max(of(self.namespaces.get(&key), self.namespace))
    }

    /// What a namespace has taken at a host, for comparing namespaces.
    pub(crate) fn taken(&self, host: &Arc<str>, namespace: &Arc<str>, now: Duration) -> u64 {
        let bucket = self.namespaces.get(&(host.clone(), namespace.clone()));
        bucket.map_or(0, |bucket| bucket.taken(self.namespace, now))
    }

    /// Counts a registration that begins.
    pub(crate) fn take(&mut self, host: &Arc<str>, namespace: &Arc<str>, now: Duration) {
        let (of_host, of_namespace) = (self.host, self.namespace);
        // A bucket that is full again need not be kept.
        self.hosts
            .retain(|_, bucket| bucket.taken(of_host, now) > 0);
        self.namespaces
            .retain(|_, bucket| bucket.taken(of_namespace, now) > 0);
        let bucket = self.hosts.entry(host.clone()).or_insert(Bucket::EMPTY);
        bucket.take(of_host, now);
        let key = (host.clone(), namespace.clone());
        let bucket = self.namespaces.entry(key).or_insert(Bucket::EMPTY);
        bucket.take(of_namespace, now);
    }

    /// Gives a registration back that led to no account.
    pub(crate) fn give_back(&mut self, host: &Arc<str>, namespace: &Arc<str>, now: Duration) {
        if let Some(bucket) = self.hosts.get_mut(host) {
            bucket.give_back(self.host, now);
        }
        let key = (host.clone(), namespace.clone());
        if let Some(bucket) = self.namespaces.get_mut(&key) {
            bucket.give_back(self.namespace, now);
        }
    }

    /// Counts a registration that another process made `age` ago. The tenant may have written the Secret that says so,
    /// so it counts for no more than the tenant could have registered.
    pub(crate) fn remember(
        &mut self,
        host: &Arc<str>,
        namespace: &Arc<str>,
        age: Duration,
        now: Duration,
    ) {
        let key = (host.clone(), namespace.clone());
        let room = |bucket: &Bucket| bucket.allows(self.namespace, now);
        if age < REGISTRATION_PERIOD && self.namespaces.get(&key).is_none_or(room) {
            self.take(host, namespace, now);
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
        /// Over any stretch of time, the budget allows no more orders than an hour's worth and what refills meanwhile.
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
                    let fills = u64::try_from(now.saturating_sub(*first).as_millis()).expect("fits") * u64::from(per_hour) / 3_600_000;
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

    #[test]
    fn budget_counts_remembered_orders_only_up_to_the_limit_of_their_namespace() {
        let budgets = Budgets {
            per_hour: rate(10),
            per_issuer: rate(8),
            per_namespace: rate(2),
        };
        let issuer = ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca");
        let now = Duration::from_secs(5);
        let (a, b): (Arc<str>, Arc<str>) = (Arc::from("a"), Arc::from("b"));
        let mut budget = Budget::new(budgets);
        budget.take(&issuer, &a, now);
        for _ in 0..192 {
            budget.remember(&issuer, &a, Duration::ZERO, now);
        }
        // The namespace has used up its two, and of the eight of the issuer six are left.
        assert!(!budget.allows_namespace("a", now));
        let mut left = 0;
        while budget.allows_any(now) && budget.allows_issuer(&issuer, now) {
            budget.take(&issuer, &b, now);
            left += 1;
        }
        assert_eq!(left, 6);
    }

    #[test]
    fn registrations_are_counted_by_host_and_no_namespace_has_them_all() {
        let mut registrations = Registrations::new(rate(8));
        let (ca, other) = (Arc::from("ca.test"), Arc::from("other.test"));
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let now = Duration::from_secs(5);
        for _ in 0..2 {
            assert_eq!(registrations.wait(&ca, &a, now), Duration::ZERO);
            registrations.take(&ca, &a, now);
        }
        // A namespace gets a quarter, here two, in three hours, so the next one is allowed after half of them.
        let wait = registrations.wait(&ca, &a, now);
        assert_eq!(wait, REGISTRATION_PERIOD / 2);
        assert_eq!(registrations.wait(&ca, &a, now + wait), Duration::ZERO);
        assert_eq!(registrations.wait(&other, &a, now), Duration::ZERO);
        assert_eq!(registrations.wait(&ca, &b, now), Duration::ZERO);
        assert!(registrations.taken(&ca, &a, now) > registrations.taken(&ca, &b, now));
        // A registration that led to no account is not counted.
        registrations.give_back(&ca, &a, now);
        assert_eq!(registrations.wait(&ca, &a, now), Duration::ZERO);
        registrations.take(&ca, &a, now);
        // A tenant's Secrets may claim anything, but they take no more than the tenant's share.
        for _ in 0..20 {
            registrations.remember(&ca, &b, Duration::from_mins(1), now);
        }
        registrations.remember(&ca, &b, REGISTRATION_PERIOD, now);
        for namespace in ["c", "d"].map(Arc::from) {
            for _ in 0..2 {
                assert_eq!(registrations.wait(&ca, &namespace, now), Duration::ZERO);
                registrations.take(&ca, &namespace, now);
            }
        }
        let e = Arc::from("e");
        let wait = registrations.wait(&ca, &e, now);
        assert_eq!(wait, REGISTRATION_PERIOD / 8);
        assert_eq!(registrations.wait(&ca, &e, now + wait), Duration::ZERO);
        // No bucket is kept for ever.
        registrations.take(&ca, &e, now + REGISTRATION_PERIOD * 2);
        assert_eq!(
            (registrations.hosts.len(), registrations.namespaces.len()),
            (1, 1)
        );
    }
}
