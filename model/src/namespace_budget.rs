//! Owns the order in which the objects of a namespace share a budget, and which of them are over it.
//!
//! Older objects come first, and objects of the same age by name. An object is over the budget as a whole. Unless a budget
//! [keeps what is in service](NamespaceBudgets::keep_in_service), the result depends only on the objects of the namespace,
//! and not on the order in which they arrived. If it does, the objects that were in service come first, by age, and then those
//! that wait, by age. So the result of one [`NamespaceBudgets::settle`] depends only on the objects, and on which of them were
//! in service before. An object that is gone for a moment waits by its age when it is back, as if it had not been there.
//!
//! All namespaces together may have [a total](NamespaceBudgets::sharing) as well. A namespace asks for what its objects use,
//! as far as its own budget goes, and its limit is the smaller one of its budget and [its share](crate::fair_total) of the
//! total.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use crate::backend_key::BackendKey;
use crate::fair_total::{Demand, FairTotal};
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::protocol::TransportPort;

/// The key of what a budget counts.
pub(crate) trait Counted: Ord {
    /// Identifies it within its namespace. Those of the same age are in this order, so a name comes first.
    type Id: Debug + Clone + Eq + Ord;

    fn namespace(&self) -> &Arc<str>;
    fn id(&self) -> Self::Id;
    fn new(namespace: &Arc<str>, id: &Self::Id) -> Self;
}

impl Counted for ObjectKey {
    type Id = (Arc<str>, Kind);

    fn namespace(&self) -> &Arc<str> {
        &self.name.namespace
    }

    fn id(&self) -> Self::Id {
        (self.name.name.clone(), self.kind)
    }

    fn new(namespace: &Arc<str>, (name, kind): &Self::Id) -> Self {
        Self {
            kind: *kind,
            name: ObjectName::new(namespace.clone(), name.clone()),
        }
    }
}

impl Counted for BackendKey {
    type Id = (Arc<str>, TransportPort);

    fn namespace(&self) -> &Arc<str> {
        self.namespace()
    }

    fn id(&self) -> Self::Id {
        (self.service.name.clone(), self.port)
    }

    fn new(namespace: &Arc<str>, (service, port): &Self::Id) -> Self {
        Self::new(ObjectName::new(namespace.clone(), service.clone()), *port)
    }
}

/// What an object that does not fit leaves to younger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Nothing. All younger objects that use the budget are over it as well.
    LeavesNothing,
    /// The room that it did not fit in.
    LeavesItsRoom,
}

/// The budgets of all namespaces, each of the same size, for objects with keys of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets<K: Counted> {
    most: u64,
    /// What all namespaces may have together, if that is bounded.
    total: Option<FairTotal>,
    /// The most that a namespace may use, by its budget and the total, as of the last [`Self::settle`].
    limit: u64,
    beyond: Beyond,
    /// Whether the objects in service come first.
    keeps: bool,
    namespaces: BTreeMap<Arc<str>, Budget<K::Id>>,
    /// Namespaces without a limit.
    exempt: BTreeSet<Arc<str>>,
    /// Namespaces with changes that [`Self::settle`] has not looked at.
    changed: BTreeSet<Arc<str>>,
}

/// The objects of one namespace, and what they use of its budget.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Budget<I> {
    /// The use of all objects together, also of those over the budget.
    total: u128,
    /// Objects that use the budget, in order, with how much each uses.
    objects: BTreeMap<(Created, I), u64>,
    ages: BTreeMap<I, Created>,
    /// The objects that are over the budget.
    over: BTreeSet<I>,
    /// The objects that came or went since the last [`NamespaceBudgets::settle`], each with whether it was in service then.
    moved: BTreeMap<I, bool>,
}

/// When an object was created, in seconds since the epoch.
type Created = i64;

impl<I> Default for Budget<I> {
    fn default() -> Self {
        Self {
            total: 0,
            objects: BTreeMap::new(),
            ages: BTreeMap::new(),
            over: BTreeSet::new(),
            moved: BTreeMap::new(),
        }
    }
}

impl<K: Counted> NamespaceBudgets<K> {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            total: None,
            limit: most,
            beyond,
            keeps: false,
            namespaces: BTreeMap::new(),
            exempt: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// The same budgets, except that all namespaces together may use at most this. Exempt namespaces count, and have no limit.
    pub(crate) fn sharing(self, total: u64) -> Self {
        Self {
            total: Some(FairTotal::new(total)),
            ..self
        }
    }

    /// From now on, objects that are in service come before all others. So one that comes, or is over the budget and would fit
    /// again, pushes nothing out, but one that grows can.
    pub(crate) fn keep_in_service(&mut self) {
        self.keeps = true;
    }

    /// The budget of each namespace.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// What all namespaces may have together, if that is what limits those that are over their limits, and not the budget of
    /// each.
    pub(crate) fn short_total(&self) -> Option<u64> {
        let total = self.total.as_ref()?;
        (self.limit < self.most).then(|| total.total())
    }

    /// Takes the age of an object, and how much of the budget it uses. An object that uses nothing has no part in the
    /// budget. The change has an effect at the next [`Self::settle`].
    pub(crate) fn put(&mut self, key: &K, created: Created, uses: u64) {
        let namespace = key.namespace();
        if uses == 0 && !self.namespaces.contains_key(namespace) {
            return;
        }
        let id = key.id();
        let of = self.namespaces.entry(namespace.clone()).or_default();
        let former = of.ages.remove(&id).and_then(|created| {
            let uses = of.objects.remove(&(created, id.clone()))?;
            Some((created, uses))
        });
        if let Some((_, uses)) = former {
            of.total = of.total.saturating_sub(uses.into());
        }
        if former.is_some() != (uses > 0) {
            let was_in_service = former.is_some() && !of.over.contains(&id);
            of.moved.entry(id.clone()).or_insert(was_in_service);
        }
        if uses > 0 {
            of.ages.insert(id.clone(), created);
            of.objects.insert((created, id), uses);
            of.total = of.total.saturating_add(uses.into());
        }
        if former != (uses > 0).then_some((created, uses)) {
            self.changed.insert(namespace.clone());
        }
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub(crate) fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        let differs = if is_exempt {
            self.exempt.insert(namespace.clone())
        } else {
            self.exempt.remove(namespace)
        };
        if differs {
            self.changed.insert(namespace.clone());
        }
    }

    /// Judges the namespaces that changed, and those whose limit did. Returns the objects that went over it by this, or came
    /// back under it, and those that are over for another reason now ([`Self::short_total`]). The cost grows with the
    /// objects of those of the namespaces that are over their limits. For the others it is small.
    pub(crate) fn settle(&mut self) -> BTreeSet<K> {
        let mut judged = std::mem::take(&mut self.changed);
        let was_short = self.short_total().is_some();
        judged.extend(self.settle_total(&judged));
        let has_other_reason = self.short_total().is_some() != was_short;
        let mut moved = BTreeSet::new();
        for namespace in judged {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let over = if self.exempt.contains(&namespace) {
                BTreeSet::new()
            } else {
                of.over(self.limit, self.beyond, self.keeps)
            };
            let differ = of.over.symmetric_difference(&over);
            let stay = of.over.intersection(&over).filter(|_| has_other_reason);
            moved.extend(differ.chain(stay).map(|id| K::new(&namespace, id)));
            of.over = over;
            of.moved.clear();
            if of.objects.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        moved
    }

    /// Brings the limit up to date after some namespaces changed. Returns the namespaces for which it makes a difference. The
    /// others use no more than they might before and may now.
    fn settle_total(&mut self, changed: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let Some(total) = &mut self.total else {
            return BTreeSet::new();
        };
        for namespace in changed {
            let used = self.namespaces.get(namespace).map_or(0, |of| of.total);
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            let demand = if self.exempt.contains(namespace) {
                Demand::Exempt(used)
            } else {
                Demand::Limited(used.min(self.most))
            };
            total.put(namespace, demand);
        }
        let limit = total
            .share()
            .map_or(self.most, |share| share.min(self.most));
        let former = std::mem::replace(&mut self.limit, limit);
        if former == limit {
            return BTreeSet::new();
        }
        total.above(former.min(limit)).cloned().collect()
    }

    /// How much an object uses, if it is over the budget.
    pub(crate) fn over(&self, key: &K) -> Option<u64> {
        let of = self.namespaces.get(key.namespace())?;
        // Mostly nobody is.
        if of.over.is_empty() {
            return None;
        }
        let id = key.id();
        if !of.over.contains(&id) {
            return None;
        }
        let created = *of.ages.get(&id)?;
        of.objects.get(&(created, id)).copied()
    }
}

impl<I: Clone + Ord> Budget<I> {
    fn over(&self, most: u64, beyond: Beyond, keeps: bool) -> BTreeSet<I> {
        if self.total <= u128::from(most) {
            return BTreeSet::new();
        }
        let is_first = |id: &I| !keeps || self.was_in_service(id);
        let first = self.objects.iter().filter(|((_, id), _)| is_first(id));
        let others = self.objects.iter().filter(|((_, id), _)| !is_first(id));
        let mut left = most;
        let over = first.chain(others).filter(|(_, uses)| {
            if let Some(rest) = left.checked_sub(**uses) {
                left = rest;
                return false;
            }
            if beyond == Beyond::LeavesNothing {
                left = 0;
            }
            true
        });
        over.map(|((_, id), _)| id.clone()).collect()
    }

    /// Whether an object was in service before the changes since the last [`NamespaceBudgets::settle`].
    fn was_in_service(&self, id: &I) -> bool {
        let moved = self.moved.get(id).copied();
        moved.unwrap_or_else(|| !self.over.contains(id))
    }
}
