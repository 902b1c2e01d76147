//! Owns the order in which the objects of a namespace share a budget, and which of them are over it.
//!
//! Older objects come first, and objects of the same age by name. An object is over the budget as a whole. Unless a budget
//! [keeps what is in service](NamespaceBudgets::keep_in_service), the result depends only on the objects of the namespace,
//! and not on the order in which they arrived. If it does, the objects that were in service come first, by age, and then those
//! that wait, by age. So the result of one [`NamespaceBudgets::settle`] depends only on the objects, and on which of them were
//! in service before. An object that is gone for a moment waits by its age when it is back, as if it had not been there.
//!
//! All namespaces together may have [a total](NamespaceBudgets::sharing) as well. A namespace asks for what its objects use of
//! it, as far as its own budget goes, and has [its share](crate::fair_total) at most. An object can use less of the total than
//! of the budget. It is in service if it fits in both.

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

/// How much an object uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uses {
    /// Of the budget of its namespace. An object that uses nothing of it has no part in the total either.
    pub(crate) own: u64,
    /// Of the total of all namespaces, no more than of the budget.
    pub(crate) of_total: u64,
}

impl From<u64> for Uses {
    /// As much of the one as of the other.
    fn from(uses: u64) -> Self {
        Self {
            own: uses,
            of_total: uses,
        }
    }
}

/// The limit that an object does not fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// The budget of its namespace.
    Own,
    /// The share of the total that its namespace has.
    Share,
    /// The share, of which exempt namespaces leave nothing to anybody.
    NoShare,
}

/// The budgets of all namespaces, each of the same size, for objects with keys of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets<K: Counted> {
    most: u64,
    /// The bound on what all namespaces have together, if there is one.
    total: Option<FairTotal>,
    /// The most that a namespace may use of the total, as of the last [`Self::settle`]; `u64::MAX` if there is enough.
    share: u64,
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
    /// The sum of what all objects use of the budget, also those over it.
    own: u128,
    /// The sum of what they use of the total.
    of_total: u128,
    /// Objects that use the budget, in order, with how much each uses.
    objects: BTreeMap<(Created, I), Uses>,
    ages: BTreeMap<I, Created>,
    /// The objects that are over, with the limit that each does not fit in.
    over: BTreeMap<I, Limit>,
    /// The objects that came or went since the last [`NamespaceBudgets::settle`], each with whether it was in service then.
    moved: BTreeMap<I, bool>,
}

/// When an object was created, in seconds since the epoch.
type Created = i64;

impl<I> Default for Budget<I> {
    fn default() -> Self {
        Self {
            own: 0,
            of_total: 0,
            objects: BTreeMap::new(),
            ages: BTreeMap::new(),
            over: BTreeMap::new(),
            moved: BTreeMap::new(),
        }
    }
}

impl<K: Counted> NamespaceBudgets<K> {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            total: None,
            share: u64::MAX,
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

    /// The bound on what all namespaces have together, if there is one.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total.as_ref().map(FairTotal::total)
    }

    /// Takes the age of an object, and how much it uses. An object that uses nothing has no part in the budget. The change has
    /// an effect at the next [`Self::settle`].
    pub(crate) fn put(&mut self, key: &K, created: Created, uses: impl Into<Uses>) {
        let uses = Some(uses.into()).filter(|uses| uses.own > 0);
        let namespace = key.namespace();
        if uses.is_none() && !self.namespaces.contains_key(namespace) {
            return;
        }
        let id = key.id();
        let of = self.namespaces.entry(namespace.clone()).or_default();
        let former = of.ages.remove(&id).and_then(|created| {
            let uses = of.objects.remove(&(created, id.clone()))?;
            Some((created, uses))
        });
        if let Some((_, uses)) = former {
            of.own -= u128::from(uses.own);
            of.of_total -= u128::from(uses.of_total);
        }
        if former.is_some() != uses.is_some() {
            let was_in_service = former.is_some() && !of.over.contains_key(&id);
            of.moved.entry(id.clone()).or_insert(was_in_service);
        }
        if let Some(uses) = uses {
            of.ages.insert(id.clone(), created);
            of.objects.insert((created, id), uses);
            of.own += u128::from(uses.own);
            of.of_total += u128::from(uses.of_total);
        }
        if former != uses.map(|uses| (created, uses)) {
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

    /// Judges the namespaces that changed, and those whose share did. Returns the objects that went over a limit by this, or
    /// came back under it, and those that do not fit in another limit than before. The cost grows with the objects of those of
    /// the namespaces that are over their limits. For the others it is small.
    pub(crate) fn settle(&mut self) -> BTreeSet<K> {
        let mut judged = std::mem::take(&mut self.changed);
        // Nothing else moves the share, and what it costs to compute grows with the namespaces above it.
        if judged.is_empty() {
            return BTreeSet::new();
        }
        judged.extend(self.settle_total(&judged));
        let mut moved = BTreeSet::new();
        for namespace in judged {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let over = if self.exempt.contains(&namespace) {
                BTreeMap::new()
            } else {
                of.over(self.most, self.share, self.beyond, self.keeps)
            };
            let ids = of.over.keys().chain(over.keys());
            let differ = ids.filter(|id| of.over.get(id) != over.get(id));
            moved.extend(differ.map(|id| K::new(&namespace, id)));
            of.over = over;
            of.moved.clear();
            if of.objects.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        moved
    }

    /// Brings the share up to date after some namespaces changed. Returns the namespaces for which it makes a difference. The
    /// others use no more than they might before and may now.
    fn settle_total(&mut self, changed: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let Some(total) = &mut self.total else {
            return BTreeSet::new();
        };
        for namespace in changed {
            let used = self.namespaces.get(namespace).map_or(0, |of| of.of_total);
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            let demand = if self.exempt.contains(namespace) {
                Demand::Exempt(used)
            } else {
                Demand::Limited(used.min(self.most))
            };
            total.put(namespace, demand);
        }
        let share = total.share().unwrap_or(u64::MAX);
        let former = std::mem::replace(&mut self.share, share);
        if former == share {
            return BTreeSet::new();
        }
        total.above(former.min(share)).cloned().collect()
    }

    /// Which limit an object does not fit in, if it is over one.
    pub(crate) fn exceeded(&self, key: &K) -> Option<Limit> {
        let of = self.namespaces.get(key.namespace())?;
        // Mostly nobody is.
        if of.over.is_empty() {
            return None;
        }
        of.over.get(&key.id()).copied()
    }

    /// How much of the budget an object uses, if it is over a limit.
    pub(crate) fn over(&self, key: &K) -> Option<u64> {
        self.exceeded(key)?;
        let of = self.namespaces.get(key.namespace())?;
        let id = key.id();
        let created = *of.ages.get(&id)?;
        of.objects.get(&(created, id)).map(|uses| uses.own)
    }
}

impl<I: Clone + Ord> Budget<I> {
    fn over(&self, most: u64, share: u64, beyond: Beyond, keeps: bool) -> BTreeMap<I, Limit> {
        if self.own <= u128::from(most) && self.of_total <= u128::from(share) {
            return BTreeMap::new();
        }
        let is_first = |id: &I| !keeps || self.was_in_service(id);
        let first = self.objects.iter().filter(|((_, id), _)| is_first(id));
        let others = self.objects.iter().filter(|((_, id), _)| !is_first(id));
        let (mut own_left, mut share_left) = (most, share);
        let mut over = BTreeMap::new();
        for ((_, id), uses) in first.chain(others) {
            let own_rest = own_left.checked_sub(uses.own);
            let share_rest = share_left.checked_sub(uses.of_total);
            if let (Some(own), Some(of_total)) = (own_rest, share_rest) {
                (own_left, share_left) = (own, of_total);
                continue;
            }
            if beyond == Beyond::LeavesNothing {
                (own_left, share_left) = (0, 0);
            }
            // Of two that it does not fit in, the smaller one limits it.
            let limit = if share_rest.is_some() || own_rest.is_none() && most <= share {
                Limit::Own
            } else if share > 0 {
                Limit::Share
            } else {
                Limit::NoShare
            };
            over.insert(id.clone(), limit);
        }
        over
    }

    /// Whether an object was in service before the changes since the last [`NamespaceBudgets::settle`].
    fn was_in_service(&self, id: &I) -> bool {
        let moved = self.moved.get(id).copied();
        moved.unwrap_or_else(|| !self.over.contains_key(id))
    }
}
