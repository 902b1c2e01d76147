//! Queues the objects that have to be written. Tenants take turns, and the objects of one tenant come in the order of
//! their times, so a tenant with thousands of objects does not hold up the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use vestibule_model::key::ObjectName;

use super::AT_ONCE;

/// The queue of objects, by tenant. [`Self::next`] goes round the tenants that have an object due and room for it.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    waiting: BTreeSet<(Instant, Arc<str>, ObjectName)>,
    /// The objects that are due, by tenant.
    ripe: BTreeMap<Arc<str>, BTreeSet<(Instant, ObjectName)>>,
    /// How many objects of each tenant are being written.
    under_way: BTreeMap<Arc<str>, usize>,
    /// The tenant that had the last turn.
    last: Option<Arc<str>>,
}

impl FairQueue {
    pub(super) fn insert(&mut self, at: Instant, tenant: &Arc<str>, name: &ObjectName) {
        self.waiting.insert((at, tenant.clone(), name.clone()));
    }

    pub(super) fn remove(&mut self, at: Instant, tenant: &Arc<str>, name: &ObjectName) {
        self.waiting.remove(&(at, tenant.clone(), name.clone()));
        if let Some(ripe) = self.ripe.get_mut(tenant) {
            ripe.remove(&(at, name.clone()));
            if ripe.is_empty() {
                self.ripe.remove(tenant);
            }
        }
    }

    /// Removes and returns the next object that is due, of the tenant whose turn it is.
    pub(super) fn next(&mut self, now: Instant) -> Option<ObjectName> {
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
        self.last = Some(tenant);
        Some(name)
    }

    /// Returns the time at which [`Self::next`] has something to return.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let ripe = self
            .ripe
            .iter()
            .filter(|(tenant, _)| self.may_begin(tenant))
            .filter_map(|(_, ripe)| ripe.first())
            .map(|(at, _)| *at);
        let waiting = self.waiting.first().map(|(at, ..)| *at);
        ripe.chain(waiting).min()
    }

    pub(super) fn begun(&mut self, tenant: &Arc<str>) {
        *self.under_way.entry(tenant.clone()).or_default() += 1;
    }

    pub(super) fn ended(&mut self, tenant: &Arc<str>) {
        if let Some(count) = self.under_way.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(tenant);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.ripe.clear();
    }

    fn may_begin(&self, tenant: &Arc<str>) -> bool {
        self.under_way
            .get(tenant)
            .is_none_or(|count| *count < AT_ONCE)
    }
}
