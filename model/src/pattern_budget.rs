//! The memory budget for the regular expressions of all HTTPRoutes and GRPCRoutes of one namespace. Every proxy holds
//! all of them in memory.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if its expressions, together
//! with those of all routes before it, take more than the budget. It is then refused as a whole: a route with only some
//! of its matches could let requests through that the others would keep out. The result depends only on the routes of
//! the namespace, and not on the order in which they arrived.

use std::collections::BTreeSet;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::HttpRoute;
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets(NamespaceBudgets<ObjectKey>);

impl Budgets {
    /// Budgets of `most` bytes for each namespace.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        Self(NamespaceBudgets::new(most, Beyond::LeavesNothing))
    }

    /// Takes a new version of a route, or its removal. Returns the routes that went over the budget by this, or came
    /// back under it. If the namespace is over its budget, the cost grows with its routes that have regular
    /// expressions. Otherwise the cost is small.
    pub fn put(&mut self, key: &ObjectKey, route: Option<&HttpRoute>) -> BTreeSet<ObjectKey> {
        let bytes = route.map_or(0, HttpRoute::pattern_bytes);
        let created = route.map_or(0, |route| route.meta.created);
        self.0
            .put(key, created, u64::try_from(bytes).unwrap_or(u64::MAX));
        self.0.settle()
    }

    /// Why a route is refused, if it is over the budget.
    #[must_use]
    pub fn refusal(&self, route: &ObjectKey) -> Option<Finding> {
        self.0.exceeded(route)?;
        Some(Finding::refused(
            Reason::QuotaExceeded,
            "spec.rules",
            format!(
                "has regular expressions beyond the {} MiB that those of all HTTPRoutes and GRPCRoutes of the namespace may \
                 take when they are compiled; older routes come first",
                self.0.most() >> 20
            ),
            "use exact values or prefixes, remove routes that the namespace does not need, or ask the owner of \
             the Gateway for more",
        ))
    }
}
