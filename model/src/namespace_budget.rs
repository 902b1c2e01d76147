//! Owns the order in which the routes of a namespace share a budget, and which of them are over it.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget as a whole. The result
//! depends only on the routes of the namespace, and not on the order in which they arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::{Kind, ObjectKey, ObjectName};

/// What a route that does not fit leaves to younger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Nothing. All younger routes that use the budget are over it as well.
    LeavesNothing,
    /// The room that it did not fit in.
    LeavesItsRoom,
}

/// The budgets of all namespaces, each of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets {
    most: u64,
    beyond: Beyond,
    namespaces: BTreeMap<Arc<str>, Budget>,
    /// Namespaces with changes that [`Self::settle`] has not looked at.
    changed: BTreeSet<Arc<str>>,
}

/// The routes of one namespace, and what they use of its budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Budget {
    /// The use of all routes together, also of those over the budget.
    total: u128,
    /// Routes that use the budget, in order, with how much each uses.
    routes: BTreeMap<(i64, Id), u64>,
    created: BTreeMap<Id, i64>,
    /// The routes that are over the budget.
    over: BTreeSet<Id>,
}

/// Identifies a route within its namespace. The name comes first, because routes are ordered by it.
type Id = (Arc<str>, Kind);

impl NamespaceBudgets {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            beyond,
            namespaces: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// The budget of each namespace.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Takes the age of a route, and how much of the budget it uses. A route that uses nothing has no part in the
    /// budget. The change has an effect at the next [`Self::settle`].
    pub(crate) fn put(&mut self, key: &ObjectKey, created: i64, uses: u64) {
        let name = &key.name;
        if uses == 0 && !self.namespaces.contains_key(&name.namespace) {
            return;
        }
        let id = (name.name.clone(), key.kind);
        let of = self.namespaces.entry(name.namespace.clone()).or_default();
        let former = of.created.remove(&id).and_then(|at| {
            let uses = of.routes.remove(&(at, id.clone()))?;
            Some((at, uses))
        });
        if let Some((_, uses)) = former {
            of.total = of.total.saturating_sub(uses.into());
        }
        if uses > 0 {
            of.created.insert(id.clone(), created);
            of.routes.insert((created, id), uses);
            of.total = of.total.saturating_add(uses.into());
        }
        if former != (uses > 0).then_some((created, uses)) {
            self.changed.insert(name.namespace.clone());
        }
    }

    /// Judges the namespaces that changed. Returns the routes that went over their budget by this, or came back under
    /// it. The cost grows with the routes of those of the namespaces that are over their budgets. For the others it is
    /// small.
    pub(crate) fn settle(&mut self) -> BTreeSet<ObjectKey> {
        let mut moved = BTreeSet::new();
        for namespace in std::mem::take(&mut self.changed) {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let over = of.over(self.most, self.beyond);
            let differ = of.over.symmetric_difference(&over);
            moved.extend(differ.map(|(route, kind)| ObjectKey {
                kind: *kind,
                name: ObjectName::new(namespace.clone(), route.clone()),
            }));
            of.over = over;
            if of.routes.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        moved
    }

    /// How much a route uses, if it is over the budget.
    pub(crate) fn over(&self, route: &ObjectKey) -> Option<u64> {
        let of = self.namespaces.get(&route.name.namespace)?;
        let id = (route.name.name.clone(), route.kind);
        if !of.over.contains(&id) {
            return None;
        }
        let created = *of.created.get(&id)?;
        of.routes.get(&(created, id)).copied()
    }
}

impl Budget {
    fn over(&self, most: u64, beyond: Beyond) -> BTreeSet<Id> {
        if self.total <= u128::from(most) {
            return BTreeSet::new();
        }
        let mut left = most;
        let over = self.routes.iter().filter(|(_, uses)| {
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
