//! How much the regular expressions of all HTTPRoutes and GRPCRoutes of one namespace may take: each proxy holds all of them.
//!
//! The older route comes first, then the first one by name. A route whose expressions, with those of all before it,
//! are more than there is has to go without: it is refused as a whole, since a route that lost a part of its matches
//! could let in what they keep out. What a namespace has depends on its own routes alone, and not on the order in
//! which they came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::HttpRoute;
use crate::key::{Kind, ObjectKey, ObjectName};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes that a namespace has.
    most: usize,
    namespaces: BTreeMap<Arc<str>, Budget>,
}

/// What one namespace uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Budget {
    total: usize,
    /// Its routes with expressions, in order, with the bytes that those take.
    routes: BTreeMap<(i64, Id), usize>,
    created: BTreeMap<Id, i64>,
    /// The routes that are over the budget.
    over: BTreeSet<Id>,
}

/// A route in its namespace: its name comes first.
type Id = (Arc<str>, Kind);

impl Budgets {
    /// Budgets of so many bytes each.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            namespaces: BTreeMap::new(),
        }
    }

    /// Takes a new version of a route, or its removal, and returns the routes that came over the budget by that, or
    /// under it. Costs what the namespace has with expressions, if that is or was over the budget, and next to nothing
    /// otherwise.
    pub fn put(&mut self, key: &ObjectKey, route: Option<&HttpRoute>) -> BTreeSet<ObjectKey> {
        let name = &key.name;
        let id = (name.name.clone(), key.kind);
        let bytes = route.map_or(0, HttpRoute::pattern_bytes);
        let created = route.map_or(0, |route| route.meta.created);
        if bytes == 0 && !self.namespaces.contains_key(&name.namespace) {
            return BTreeSet::new();
        }
        let of = self.namespaces.entry(name.namespace.clone()).or_default();
        if let Some(former) = of.created.remove(&id) {
            let former = of.routes.remove(&(former, id.clone()));
            of.total = of.total.saturating_sub(former.unwrap_or_default());
        }
        if bytes > 0 {
            of.created.insert(id.clone(), created);
            of.routes.insert((created, id), bytes);
            of.total = of.total.saturating_add(bytes);
        }
        let over = if of.total > self.most {
            of.over(self.most)
        } else {
            BTreeSet::new()
        };
        let changed = of.over.symmetric_difference(&over);
        let changed = changed.map(|(route, kind)| ObjectKey {
            kind: *kind,
            name: ObjectName::new(name.namespace.clone(), route.clone()),
        });
        let changed = changed.collect();
        of.over = over;
        if of.routes.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
        changed
    }

    /// Why a route is refused, if it is over the budget.
    #[must_use]
    pub fn refusal(&self, route: &ObjectKey) -> Option<Finding> {
        let of = self.namespaces.get(&route.name.namespace)?;
        let id = (route.name.name.clone(), route.kind);
        of.over.contains(&id).then(|| {
            Finding::refused(
                Reason::QuotaExceeded,
                "spec.rules",
                format!(
                    "has regular expressions beyond the {} MiB that those of all HTTPRoutes and GRPCRoutes of the namespace may \
                     take when they are compiled; older routes come first",
                    self.most >> 20
                ),
                "use exact values or prefixes, remove routes that the namespace does not need, or ask the owner of \
                 the Gateway for more",
            )
        })
    }
}

impl Budget {
    fn over(&self, most: usize) -> BTreeSet<Id> {
        let mut sum = 0_usize;
        let beyond = self.routes.iter().filter(|(_, bytes)| {
            sum = sum.saturating_add(**bytes);
            sum > most
        });
        beyond.map(|((_, id), _)| id.clone()).collect()
    }
}
