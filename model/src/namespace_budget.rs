//! Owns the order in which the objects of a namespace share a budget, and which of them are over it.
//!
//! Older objects come first, and objects of the same age by name. An object is over the budget as a whole. Unless a budget
//! gives objects other places, the result depends only on the objects of the namespace, and not on the order in which they
//! arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::{Kind, ObjectKey, ObjectName};

/// What an object that does not fit leaves to younger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Nothing. All younger objects that use the budget are over it as well.
    LeavesNothing,
    /// The room that it did not fit in.
    LeavesItsRoom,
}

/// The place of an object in the order of its namespace. By itself an object has the place of its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// When the object was created, or the last of those that are before it, in seconds since the epoch.
    at: i64,
    /// How many objects with the same time have a place before it because they were in service when it came.
    behind: u64,
}

impl Place {
    /// The place before all others.
    pub(crate) const FIRST: Self = Self {
        at: i64::MIN,
        behind: 0,
    };

    /// The place of an object that was created at a time.
    pub(crate) fn of(created: i64) -> Self {
        Self {
            at: created,
            behind: 0,
        }
    }

    fn next(self) -> Self {
        Self {
            behind: self.behind.saturating_add(1),
            ..self
        }
    }
}

/// The budgets of all namespaces, each of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets {
    most: u64,
    beyond: Beyond,
    /// Whether what was within its budget at the last [`Self::settle`] comes before everything else.
    keeps: bool,
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
    /// Objects that use the budget only since the last judgement.
    new: BTreeSet<Id>,
    /// The objects that are over the budget.
    over: BTreeSet<Id>,
}

/// Identifies an object within its namespace. The name comes first, because objects are ordered by it.
type Id = (Arc<str>, Kind);

impl NamespaceBudgets {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            beyond,
            keeps: false,
            namespaces: BTreeMap::new(),
            exempt: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// From now on, objects that are within their budget come before those that are over it and those that are new. So what
    /// is over it and would fit again pushes nothing out, but one that grows can.
    pub(crate) fn keep_in_service(&mut self) {
        self.keeps = true;
    }

    /// The budget of each namespace.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Takes the age of an object, and how much of the budget it uses. An object that uses nothing has no part in the
    /// budget. The change has an effect at the next [`Self::settle`].
    pub(crate) fn put(&mut self, key: &ObjectKey, created: i64, uses: u64) {
        self.put_at(key, Place::of(created), uses);
    }

    /// The same for an object with this place in the order.
    pub(crate) fn put_at(&mut self, key: &ObjectKey, place: Place, uses: u64) {
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
        if let Some((_, uses)) = former {
            of.total = of.total.saturating_sub(uses.into());
        }
        if uses == 0 {
            of.new.remove(&id);
        } else {
            if former.is_none() {
                of.new.insert(id.clone());
            }
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

    /// Judges the namespaces that changed. Returns the objects that went over their budget by this, or came back under
    /// it. The cost grows with the objects of those of the namespaces that are over their budgets. For the others it is
    /// small.
    pub(crate) fn settle(&mut self) -> BTreeSet<ObjectKey> {
        let mut moved = BTreeSet::new();
        for namespace in std::mem::take(&mut self.changed) {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let over = if self.exempt.contains(&namespace) {
                BTreeSet::new()
            } else {
                of.over(self.most, self.beyond, self.keeps)
            };
            of.new.clear();
            let differ = of.over.symmetric_difference(&over);
            moved.extend(differ.map(|(name, kind)| ObjectKey {
                kind: *kind,
                name: ObjectName::new(namespace.clone(), name.clone()),
            }));
            of.over = over;
            if of.objects.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        moved
    }

    /// The place of an object that uses the budget.
    pub(crate) fn place(&self, key: &ObjectKey) -> Option<Place> {
        let of = self.namespaces.get(&key.name.namespace)?;
        of.places.get(&(key.name.name.clone(), key.kind)).copied()
    }

    /// The place behind all objects of a namespace that use the budget; `None` if there are none.
    pub(crate) fn behind(&self, namespace: &Arc<str>) -> Option<Place> {
        let of = self.namespaces.get(namespace)?;
        let ((last, _), _) = of.objects.last_key_value()?;
        Some(last.next())
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
    fn over(&self, most: u64, beyond: Beyond, keeps: bool) -> BTreeSet<Id> {
        if self.total <= u128::from(most) {
            return BTreeSet::new();
        }
        let is_first =
            |(_, id): &(Place, Id)| !keeps || !self.over.contains(id) && !self.new.contains(id);
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
