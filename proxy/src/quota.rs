//! Owns how many connections each tenant may have: a part of all places is kept for the tenants, in equal shares, and the
//! rest is lent to whoever comes.
//!
//! A tenant that holds less than its share always gets a place, whatever the others do: what is lent never reaches
//! into what is kept. Who holds its whole share gets more as long as there is something to lend. Nothing that was lent
//! is called back; it is not lent again once its connection ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Tenants that have series of their own: those that hold or were refused most. The others share one with an empty
/// label.
const MAX_SERIES: usize = 1000;

/// How many places there are, and how much of them is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    /// All of them.
    pub(crate) all: usize,
    /// Percent of them that is kept for the tenants.
    pub(crate) guaranteed_percent: u8,
}

impl Places {
    /// What each of so many tenants can always have.
    fn share(self, tenants: usize) -> usize {
        let percent = usize::from(self.guaranteed_percent.min(100));
        let kept = self.all / 100 * percent + self.all % 100 * percent / 100;
        kept / tenants.max(1)
    }
}

/// The accounts of all tenants that something in force belongs to, or a connection. Clones share them.
#[derive(Clone, Default)]
pub struct Accounts(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    tenants: HashMap<Arc<str>, Tenant>,
    /// That `lent` was counted with.
    share: usize,
    /// Places that tenants hold beyond their share.
    lent: usize,
}

struct Tenant {
    account: Weak<Account>,
    held: usize,
    refused: u64,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.lock().tenants.len();
        f.debug_tuple("Accounts").field(&known).finish()
    }
}

/// The account of one tenant. It counts as a tenant as long as something has it.
#[derive(Debug)]
pub(crate) struct Account {
    tenant: Arc<str>,
    all: Accounts,
}

/// A connection's place. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Account>);

impl Accounts {
    /// The account of `tenant`.
    pub(crate) fn of(&self, tenant: &Arc<str>) -> Arc<Account> {
        let mut all = self.0.lock();
        let known = all.tenants.get_mut(tenant);
        if let Some(account) = known.as_ref().and_then(|known| known.account.upgrade()) {
            return account;
        }
        let account = Arc::new(Account {
            tenant: Arc::clone(tenant),
            all: self.clone(),
        });
        if let Some(known) = known {
            // Its last account is just being dropped.
            known.account = Arc::downgrade(&account);
        } else {
            let new = Tenant {
                account: Arc::downgrade(&account),
                held: 0,
                refused: 0,
            };
            all.tenants.insert(Arc::clone(tenant), new);
        }
        account
    }
}

impl Account {
    /// The namespace.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Takes a place for a connection, if this tenant may have one more.
    pub(crate) fn take(self: &Arc<Self>, places: Places) -> Option<Place> {
        let taken = self.all.0.lock().take(&self.tenant, places);
        taken.then(|| Place(Arc::clone(self)))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        // It may have been made anew.
        let gone = |tenant: &Tenant| tenant.account.strong_count() == 0;
        if all.tenants.get(&self.tenant).is_some_and(gone) {
            all.tenants.remove(&self.tenant);
        }
    }
}

impl Place {
    /// Whether it is a place of this account.
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(&self.0, account)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.all.0.lock().give_back(&self.0.tenant);
    }
}

impl All {
    fn take(&mut self, tenant: &str, places: Places) -> bool {
        let tenants = self.tenants.len();
        let share = places.share(tenants);
        if share != self.share {
            let over = |tenant: &Tenant| tenant.held.saturating_sub(share);
            self.lent = self.tenants.values().map(over).sum();
            self.share = share;
        }
        let Some(tenant) = self.tenants.get_mut(tenant) else {
            return false;
        };
        let borrows = tenant.held >= share;
        if borrows && self.lent >= places.all.saturating_sub(share * tenants) {
            tenant.refused += 1;
            return false;
        }
        tenant.held += 1;
        self.lent += usize::from(borrows);
        true
    }

    fn give_back(&mut self, tenant: &str) {
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            self.lent -= usize::from(tenant.held > self.share);
            tenant.held = tenant.held.saturating_sub(1);
        }
    }
}

/// What the metrics say of a tenant.
struct Sample {
    tenant: Arc<str>,
    held: usize,
    refused: u64,
}

impl Accounts {
    fn samples(&self) -> (usize, Vec<Sample>) {
        let all = self.0.lock();
        let busy = |(_, tenant): &(&Arc<str>, &Tenant)| tenant.held > 0 || tenant.refused > 0;
        let of = all
            .tenants
            .iter()
            .filter(busy)
            .map(|(name, tenant)| Sample {
                tenant: Arc::clone(name),
                held: tenant.held,
                refused: tenant.refused,
            });
        let (mut samples, share) = (of.collect::<Vec<_>>(), all.share);
        drop(all);
        samples.sort_unstable_by(|a, b| {
            (b.refused, b.held, &a.tenant).cmp(&(a.refused, a.held, &b.tenant))
        });
        let others = samples.split_off(samples.len().min(MAX_SERIES));
        if !others.is_empty() {
            samples.push(Sample {
                tenant: "".into(),
                held: others.iter().map(|sample| sample.held).sum(),
                refused: others.iter().map(|sample| sample.refused).sum(),
            });
        }
        (share, samples)
    }
}

impl Collector for Accounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (share, samples) = self.samples();
        let name = "tenant_guaranteed_connections";
        let help = "Connections that every tenant can have at one time, whatever the others have";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(share).unwrap_or(i64::MAX)).encode(metric)?;
        let name = "tenant_held_connections";
        let help = "Connections that count towards what the tenant may have";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for sample in &samples {
            let labels = [("tenant", &*sample.tenant)];
            let family = metric.encode_family(&labels)?;
            ConstGauge::new(i64::try_from(sample.held).unwrap_or(i64::MAX)).encode(family)?;
        }
        let name = "tenant_refused_connections";
        let help = "Connections and requests refused because the tenant had all the connections that it may have";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for sample in &samples {
            let labels = [("tenant", &*sample.tenant)];
            let family = metric.encode_family(&labels)?;
            ConstCounter::new(sample.refused).encode(family)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(all: usize) -> Places {
        Places {
            all,
            guaranteed_percent: 50,
        }
    }

    fn take_all(account: &Arc<Account>, places: Places) -> Vec<Place> {
        std::iter::from_fn(|| account.take(places)).collect()
    }

    #[test]
    fn what_is_kept_for_others_is_not_lent() {
        let accounts = Accounts::default();
        let [a, b, c] = ["a", "b", "c"].map(|tenant| accounts.of(&tenant.into()));
        let held = take_all(&a, places(60));
        assert_eq!(held.len(), 10 + 30);
        // Nothing is left to lend, and each has its share.
        let others = [take_all(&b, places(60)), take_all(&c, places(60))];
        assert_eq!(others.each_ref().map(Vec::len), [10, 10]);
        // What was lent is lent to somebody else once it is back.
        drop(held);
        assert_eq!(take_all(&b, places(60)).len(), 30);
    }

    #[test]
    fn one_tenant_alone_may_have_everything() {
        let accounts = Accounts::default();
        let a = accounts.of(&"a".into());
        assert_eq!(take_all(&a, places(7)).len(), 7);
        // Without a guarantee it is who comes first.
        let none = Places {
            guaranteed_percent: 0,
            ..places(7)
        };
        let b = accounts.of(&"b".into());
        assert_eq!(take_all(&b, none).len(), 7);
        let all = Places {
            guaranteed_percent: 100,
            ..places(7)
        };
        assert_eq!(take_all(&b, all).len(), 3 + 1);
    }

    #[test]
    fn accounts_that_nobody_has_are_no_tenants() {
        let accounts = Accounts::default();
        let a = accounts.of(&"a".into());
        let again = accounts.of(&"a".into());
        assert!(Arc::ptr_eq(&a, &again));
        let place = accounts.of(&"b".into()).take(places(40)).unwrap();
        assert_eq!(take_all(&a, places(40)).len(), 10 + 20);
        drop(place);
        assert_eq!(take_all(&a, places(40)).len(), 40);
        drop((a, again));
        assert!(accounts.0.lock().tenants.is_empty());
    }

    #[test]
    fn series_are_bounded() {
        let accounts = Accounts::default();
        let all: Vec<_> = (0..MAX_SERIES + 5)
            .map(|n| accounts.of(&format!("team-{n}").into()))
            .collect();
        let first = |account: &Arc<Account>| account.take(places(MAX_SERIES * 10));
        let held: Vec<_> = all.iter().filter_map(first).collect();
        let (share, samples) = accounts.samples();
        assert_eq!((share, held.len()), (4, MAX_SERIES + 5));
        assert_eq!(samples.len(), MAX_SERIES + 1);
        let last = samples.last().unwrap();
        assert_eq!((&*last.tenant, last.held), ("", 5));
    }

    proptest! {
        /// With tenants that come and go, and whatever each of them does.
        #[test]
        fn nobody_below_its_share_is_refused(
            all in 0_usize..60,
            percent in 0_u8..=100,
            steps in prop::collection::vec((0_usize..6, 0_u8..8), 0..300),
        ) {
            let places = Places { all, guaranteed_percent: percent };
            let accounts = Accounts::default();
            let mut known: [Option<Arc<Account>>; 6] = Default::default();
            let mut held: [Vec<Place>; 6] = Default::default();
            // More than there are can be held only for as long as what was lent before a tenant came.
            let mut most = 0;
            for (who, what) in steps {
                match what {
                    0 => known[who] = None,
                    1 | 2 => drop(held[who].pop()),
                    _ => {
                        let account = accounts.of(&who.to_string().into());
                        known[who] = Some(Arc::clone(&account));
                        let place = account.take(places);
                        let tenants = accounts.0.lock().tenants.len();
                        let share = places.share(tenants);
                        if held[who].len() < share {
                            prop_assert!(place.is_some());
                        } else if place.is_some() {
                            let lent: usize = held.iter().map(|of| of.len().saturating_sub(share)).sum();
                            prop_assert!(lent < all - share * tenants);
                        }
                        held[who].extend(place);
                    }
                }
                let total: usize = held.iter().map(Vec::len).sum();
                most = most.max(total);
                prop_assert!(most <= 2 * all);
            }
            held.iter_mut().for_each(Vec::clear);
            let all = accounts.0.lock();
            prop_assert_eq!(all.lent, 0);
            prop_assert!(all.tenants.values().all(|tenant| tenant.held == 0));
        }
    }
}
