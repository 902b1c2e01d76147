//! Queues objects that have to be written or read. Tenants take turns, and the objects of one tenant come in the order of
//! their times, so a tenant with thousands of objects does not hold up the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

/// The queue of objects, by tenant. [`Self::next`] goes round the tenants that have an object due and room for it.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    waiting: BTreeSet<(Instant, Arc<str>, T)>,
    /// The objects that are due, by tenant.
    ripe: BTreeMap<Arc<str>, BTreeSet<(Instant, T)>>,
    /// How many objects of each tenant are being written or read, and how many may be.
    under_way: BTreeMap<Arc<str>, usize>,
    at_once: usize,
    /// The tenant that had the last turn.
    last: Option<Arc<str>>,
}

impl<T: Ord + Clone> FairQueue<T> {
    /// Returns an empty queue, of which at most `at_once` objects of a tenant are under way.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            waiting: BTreeSet::new(),
            ripe: BTreeMap::new(),
            under_way: BTreeMap::new(),
            at_once,
            last: None,
        }
    }

    pub(crate) fn insert(&mut self, at: Instant, tenant: &Arc<str>, name: &T) {
        self.waiting.insert((at, tenant.clone(), name.clone()));
    }

    pub(crate) fn remove(&mut self, at: Instant, tenant: &Arc<str>, name: &T) {
        self.waiting.remove(&(at, tenant.clone(), name.clone()));
        if let Some(ripe) = self.ripe.get_mut(tenant) {
            ripe.remove(&(at, name.clone()));
            if ripe.is_empty() {
                self.ripe.remove(tenant);
            }
        }
    }

    /// Removes and returns the next object that is due, of the tenant whose turn it is, and that tenant.
    ///
    /// The turn moves on in the order of the tenants' names. So while a tenant has an object due and room for it, each other
    /// tenant has at most one turn before it. The place of the turn is a name and no index, so tenants that come and go do
    /// not move it.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(Arc<str>, T)> {
        while self.waiting.first().is_some_and(|(at, ..)| *at <= now)
            && let Some((at, tenant, name)) = self.waiting.pop_first()
        {
            self.ripe.entry(tenant).or_default().insert((at, name));
        }
        let after = match &self.last {
            Some(last) => Bound::Excluded(last.clone()),
            None => Bound::Unbounded,
        };
        let behind = self.ripe.range((after, Bound::Unbounded));
        let tenant = behind
            .chain(self.ripe.iter())
            .map(|(tenant, _)| tenant)
            .find(|tenant| self.may_begin(tenant))
            .cloned()?;
        let ripe = self.ripe.get_mut(&tenant)?;
        let (_, name) = ripe.pop_first()?;
        if ripe.is_empty() {
            self.ripe.remove(&tenant);
        }
        self.last = Some(tenant.clone());
        Some((tenant, name))
    }

    /// Returns the time at which [`Self::next`] has something to return.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let ripe = self
            .ripe
            .iter()
            .filter(|(tenant, _)| self.may_begin(tenant))
            .filter_map(|(_, ripe)| ripe.first())
            .map(|(at, _)| *at);
        let waiting = self.waiting.first().map(|(at, ..)| *at);
        ripe.chain(waiting).min()
    }

    pub(crate) fn begun(&mut self, tenant: &Arc<str>) {
        *self.under_way.entry(tenant.clone()).or_default() += 1;
    }

    pub(crate) fn ended(&mut self, tenant: &Arc<str>) {
        if let Some(count) = self.under_way.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(tenant);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.ripe.clear();
    }

    fn may_begin(&self, tenant: &Arc<str>) -> bool {
        self.under_way
            .get(tenant)
            .is_none_or(|count| *count < self.at_once)
    }
}
