//! The budget for what the routes of one namespace take in the tables of every proxy.
//!
//! The proxies have an entry for each match of a route, under each hostname, on each listener that the route is attached
//! to. This product can be large even if the route and the listeners are small, so the number of entries is bounded,
//! and not the number of objects.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if it has more entries than
//! those before it leave. It is then refused as a whole, and leaves its room to younger ones. The result depends only
//! on the routes of the namespace, and not on the order in which they arrived.

use std::collections::BTreeSet;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::{HttpMatch, PathMatch, ValueMatch};
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets};
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
pub struct RouteBudgets(NamespaceBudgets);

impl RouteBudgets {
    /// Budgets of `most` entries for each namespace.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self(NamespaceBudgets::new(most, Beyond::LeavesItsRoom))
    }

    /// Takes the age of a route and the number of its entries. A route without entries has no part in the budget. The
    /// change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, key: &ObjectKey, created: i64, entries: u64) {
        self.0.put(key, created, entries);
    }

    /// Judges the namespaces that changed. Returns the routes that went over their budget by this, or came back under
    /// it. The cost grows with the routes of those of the namespaces that are over their budgets. For the others it is
    /// small.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        self.0.settle()
    }

    /// Why a route is refused, if it is over the budget.
    #[must_use]
    pub fn refusal(&self, route: &ObjectKey) -> Option<Finding> {
        let entries = self.0.over(route)?;
        Some(Finding::refused(
            Reason::QuotaExceeded,
            "spec",
            format!(
                "takes {entries} entries in the tables of every proxy, one for each match and element of its path, under \
                 each hostname on each listener, which is more than older routes leave of the {} that all routes of the \
                 namespace may have",
                self.0.most()
            ),
            "name one listener with sectionName in each of the parentRefs, use fewer hostnames or matches, remove \
             routes that the namespace does not need, or ask the owner of the Gateway for more",
        ))
    }
}
