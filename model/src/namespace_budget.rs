//! Owns the order in which the objects of a namespace share a budget, and which of them are over it.
//!
//! Older objects come first, and objects of the same age by name. An object is over the budget as a whole. Unless a budget
//! [keeps what is in service](NamespaceBudgets::keep_in_service), the result depends only on the objects of the namespace,
//! and not on the order in which they arrived.
//!
//! All namespaces together may have [a total](NamespaceBudgets::sharing) as well. A namespace asks for what its objects use,
//! as far as its own budget goes, and its limit is the smaller one of its budget and [its share](crate::fair_total) of the
//! total.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::fair_total::{Demand, FairTotal};
use crate::key::{Kind, ObjectKey, ObjectName};

/// What an object that does not fit leaves to younger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Nothing. All younger objects that use the budget are over it as well.
    LeavesNothing,
    /// The room that it did not fit in.
    LeavesItsRoom,
}

/// The budgets of all namespaces, each of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets {
    most: u64,
    /// What all namespaces may have together, if that is bounded.
    total: Option<FairTotal>,
    /// The most that a namespace may use, by its budget and the total, as of the last [`Self::settle`].
    limit: u64,
    beyond: Beyond,
    /// Counts the rounds in which objects come, each up to a [`Self::settle`]. It is 0 until those in service come first.
    round: u64,
    namespaces: BTreeMap<Arc<str>, Budget>,
    /// Namespaces without a limit.
    exempt: BTreeSet<Arc<str>>,
    /// Namespaces with changes that [`Self::settle`] has not looked at.
    changed: BTreeSet<Arc<str>>,
}

/// The objects of one namespace, and what they use of its budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Budget {
    /// The use of all objects together, also of those over the budget.
    total: u128,
    /// Objects that use the budget, in order, with how much each uses.
    objects: BTreeMap<(Place, Id), u64>,
    places: BTreeMap<Id, Place>,
    /// The objects that are over the budget.
    over: BTreeSet<Id>,
}

/// The place of an object in the order of its namespace: the round in which it came, and when it was created, in seconds
/// since the epoch.
type Place = (u64, i64);

/// Identifies an object within its namespace. The name comes first, because objects are ordered by it.
type Id = (Arc<str>, Kind);

impl NamespaceBudgets {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            total: None,
            limit: most,
            beyond,
            round: 0,
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

    /// From now on, objects that are within their budget come before all others, and those that come later come behind those
    /// that wait. So what is over the budget and would fit again pushes nothing out, but an object that grows can.
    pub(crate) fn keep_in_service(&mut self) {
        self.round = self.round.max(1);
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
    pub(crate) fn put(&mut self, key: &ObjectKey, created: i64, uses: u64) {
        let name = &key.name;
        if uses == 0 && !self.namespaces.contains_key(&name.namespace) {
            return;
        }
        let id = (name.name.clone(), key.kind);
        let of = self.namespaces.entry(name.namespace.clone()).or_default();
        let former = of.places.remove(&id).and_then(|at| {
            let uses = of.objects.remove(&(at, id.clone()))?;
            Some((at, uses))
        });
        let round = former.map_or(self.round, |((round, _), _)| round);
        let place = (round, created);
        if let Some((_, uses)) = former {
            of.total = of.total.saturating_sub(uses.into());
        }
        if uses > 0 {
            of.places.insert(id.clone(), place);
            of.objects.insert((place, id), uses);
            of.total = of.total.saturating_add(uses.into());
        }
        if former != (uses > 0).then_some((place, uses)) {
            self.changed.insert(name.namespace.clone());
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
    pub(crate) fn settle(&mut self) -> BTreeSet<ObjectKey> {
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
                of.over(self.limit, self.beyond, self.round)
            };
            let differ = of.over.symmetric_difference(&over);
            let stay = of.over.intersection(&over).filter(|_| has_other_reason);
            moved.extend(differ.chain(stay).map(|(name, kind)| ObjectKey {
                kind: *kind,
                name: ObjectName::new(namespace.clone(), name.clone()),
            }));
            of.over = over;
            if of.objects.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        if self.round > 0 {
            self.round = self.round.saturating_add(1);
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

    /// Whether any object of a namespace is over the budget.
    pub(crate) fn is_any_over(&self, namespace: &Arc<str>) -> bool {
        let of = self.namespaces.get(namespace);
        of.is_some_and(|of| !of.over.is_empty())
    }

    /// How much an object uses, if it is over the budget.
    pub(crate) fn over(&self, key: &ObjectKey) -> Option<u64> {
        let of = self.namespaces.get(&key.name.namespace)?;
        let id = (key.name.name.clone(), key.kind);
        if !of.over.contains(&id) {
            return None;
        }
        let place = *of.places.get(&id)?;
        of.objects.get(&(place, id)).copied()
    }
}

impl Budget {
    fn over(&self, most: u64, beyond: Beyond, round: u64) -> BTreeSet<Id> {
        if self.total <= u128::from(most) {
            return BTreeSet::new();
        }
        // What came in this round was not in service before.
        let is_first =
            |((came, _), id): &(Place, Id)| round == 0 || *came < round && !self.over.contains(id);
        let first = self.objects.iter().filter(|(at, _)| is_first(at));
        let others = self.objects.iter().filter(|(at, _)| !is_first(at));
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
}
