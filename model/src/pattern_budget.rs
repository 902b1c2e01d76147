//! The memory budget for the regular expressions of all HTTPRoutes and GRPCRoutes of one namespace. Every proxy holds
//! all of them in memory.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if its expressions, together
//! with those of all routes before it, take more than the budget. It is then refused as a whole: a route with only some
//! of its matches could let requests through that the others would keep out. The result depends only on the routes of
//! the namespace, and not on the order in which they arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::HttpRoute;
use crate::key::{Kind, ObjectKey, ObjectName};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// The budget of each namespace in bytes.
    most: usize,
    namespaces: BTreeMap<Arc<str>, Budget>,
}

/// The routes of one namespace, and what they use of its budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Budget {
    total: usize,
    /// Routes with regular expressions, in order, with the bytes that these take.
    routes: BTreeMap<(i64, Id), usize>,
    created: BTreeMap<Id, i64>,
    /// The routes that are over the budget.
    over: BTreeSet<Id>,
}

/// Identifies a route within its namespace. The name comes first, because routes are ordered by it.
type Id = (Arc<str>, Kind);

impl Budgets {
    /// Budgets of `most` bytes for each namespace.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            namespaces: BTreeMap::new(),
        }
    }

    /// Takes a new version of a route, or its removal. Returns the routes that went over the budget by this, or came
    /// back under it. If the namespace is over its budget, the cost grows with its routes that have regular
    /// expressions. Otherwise the cost is small.
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
