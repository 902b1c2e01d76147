//! The budget for what the routes of one namespace take in the tables of every proxy.
//!
//! The proxies have an entry for each match of a route, under each hostname, on each listener that the route is attached
//! to. This product can be large even if the route and the listeners are small, so the number of entries is bounded,
//! and not the number of objects.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if it has more entries than
//! those before it leave. It is then refused as a whole, and leaves its room to younger ones. The result depends only
//! on the routes of the namespace, and not on the order in which they arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::{HttpMatch, PathMatch, ValueMatch};
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::route::Route;

/// Bytes of a path or service for which a proxy needs as much memory as for one more entry.
const BYTES: usize = 256;

/// How many entries a route has under one hostname on one listener. A long path counts as several, and so do the
/// elements of a prefix, because each of them is a level of its own.
#[must_use]
pub fn entries_per_name(route: Route<'_>) -> u64 {
    let Route::Http(route) = route else { return 1 };
    let matches = route.rules.iter().flat_map(|rule| &rule.matches);
    let sum = matches.map(entries_of).fold(0, u64::saturating_add);
    sum.max(1)
}

fn entries_of(one: &HttpMatch) -> u64 {
    let (levels, bytes) = match &one.path {
        PathMatch::Exact(path) => (1, path.len()),
        PathMatch::Prefix(path) => (path.matches('/').count().max(1), path.len()),
        PathMatch::Regex(_) => (1, 0),
        PathMatch::Method(method) => match &method.service {
            Some(ValueMatch::Exact(service)) => (1, service.len()),
            _ => (1, 0),
        },
    };
    u64::try_from(levels.saturating_add(bytes / BYTES)).unwrap_or(u64::MAX)
}

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteBudgets {
    /// The budget of each namespace in entries.
    most: u64,
    namespaces: BTreeMap<Arc<str>, Budget>,
    /// Namespaces with changes that [`Self::settle`] has not looked at.
    changed: BTreeSet<Arc<str>>,
}

/// The routes of one namespace, and what they use of its budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Budget {
    /// All entries together, also those of routes over the budget.
    total: u128,
    /// Routes with entries, in order, with the number of these.
    routes: BTreeMap<(i64, Id), u64>,
    created: BTreeMap<Id, i64>,
    /// The routes that are over the budget.
    over: BTreeSet<Id>,
}

/// Identifies a route within its namespace. The name comes first, because routes are ordered by it.
type Id = (Arc<str>, Kind);

impl RouteBudgets {
    /// Budgets of `most` entries for each namespace.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            most,
            namespaces: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Takes the age of a route and the number of its entries. A route without entries has no part in the budget. The
    /// change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, key: &ObjectKey, created: i64, entries: u64) {
        let name = &key.name;
        let id = (name.name.clone(), key.kind);
        if entries == 0 && !self.namespaces.contains_key(&name.namespace) {
            return;
        }
        let of = self.namespaces.entry(name.namespace.clone()).or_default();
        let former = of.created.remove(&id).and_then(|at| {
            let entries = of.routes.remove(&(at, id.clone()))?;
            Some((at, entries))
        });
        if let Some((_, entries)) = former {
            of.total = of.total.saturating_sub(entries.into());
        }
        if entries > 0 {
            of.created.insert(id.clone(), created);
            of.routes.insert((created, id), entries);
            of.total = of.total.saturating_add(entries.into());
        }
        if former != (entries > 0).then_some((created, entries)) {
            self.changed.insert(name.namespace.clone());
        }
    }

    /// Judges the namespaces that changed. Returns the routes that went over their budget by this, or came back under
    /// it. The cost grows with the routes of those of the namespaces that are over their budgets. For the others it is
    /// small.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        let mut moved = BTreeSet::new();
        for namespace in std::mem::take(&mut self.changed) {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let over = of.over(self.most);
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

    /// Why a route is refused, if it is over the budget.
    #[must_use]
    pub fn refusal(&self, route: &ObjectKey) -> Option<Finding> {
        let of = self.namespaces.get(&route.name.namespace)?;
        let id = (route.name.name.clone(), route.kind);
        if !of.over.contains(&id) {
            return None;
        }
        let created = *of.created.get(&id)?;
        let entries = of.routes.get(&(created, id))?;
        Some(Finding::refused(
            Reason::QuotaExceeded,
            "spec",
            format!(
                "takes {entries} entries in the tables of every proxy, one for each match and element of its path, under \
                 each hostname on each listener, which is more than older routes leave of the {} that all routes of the \
                 namespace may have",
                self.most
            ),
            "name one listener with sectionName in each of the parentRefs, use fewer hostnames or matches, remove \
             routes that the namespace does not need, or ask the owner of the Gateway for more",
        ))
    }
}

impl Budget {
    fn over(&self, most: u64) -> BTreeSet<Id> {
        if self.total <= u128::from(most) {
            return BTreeSet::new();
        }
        let mut left = most;
        let beyond = self
            .routes
            .iter()
            .filter(|(_, entries)| match left.checked_sub(**entries) {
                Some(rest) => {
                    left = rest;
                    false
                }
                None => true,
            });
        beyond.map(|((_, id), _)| id.clone()).collect()
    }
}
