//! The budget for what the routes of one namespace take in the tables of every proxy.
//!
//! The proxies have an entry for each match of a route, under each hostname, on each listener that the route is attached
//! to. This product can be large even if the route and the listeners are small, so the number of entries is bounded,
//! and not the number of objects. The content of a route, such as the values that its filters set and the names of its
//! backends, is there once. It counts as entries by its size.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if it has more entries than
//! those before it leave. It is then refused as a whole, and leaves its room to younger ones.
//!
//! A new proxy gets all routes in one batch, and a batch has a limit. An entry has few bytes there if names are short, and
//! many if they are as long as DNS and Kubernetes allow. So there is also a total of bytes for all namespaces, which they
//! [share](crate::fair_total).
//!
//! The result depends only on the routes, and not on the order in which they arrived.

use std::collections::BTreeSet;

use crate::condition::Reason;
use crate::fair_total::FairTotal;
use crate::finding::Finding;
use crate::http::{HttpMatch, PathMatch, ValueMatch};
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets, Uses};
use crate::route::Route;
use crate::route_bytes;

/// Bytes of a path or service for which a proxy needs as much memory as for one more entry.
const BYTES: usize = 256;

/// Bytes of the content of a route, or of a backend, that count as one entry. A change of a backend of the route has all of
/// the route sent again.
pub(crate) const CONTENT_BYTES: usize = 128;

/// How many entries the rules of a route count for, however many hostnames and listeners it has. A rule that says little, and
/// leads to a backend with names of the usual length, counts for none.
#[must_use]
pub fn entries_of_rules(route: Route<'_>) -> u64 {
    let bytes = route_bytes::of_rules(route);
    u64::try_from(bytes / CONTENT_BYTES).unwrap_or(u64::MAX)
}

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

/// How much a route takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouteSize {
    /// Entries in the tables of every proxy. They count in the budget of its namespace.
    pub entries: u64,
    /// Bytes in the configuration, at most. They count in the total.
    pub bytes: u64,
}

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteBudgets(NamespaceBudgets<ObjectKey>);

impl RouteBudgets {
    /// Budgets of `most` entries for each namespace, and of `total` bytes for all of them together.
    #[must_use]
    pub fn new(most: u64, total: u64) -> Self {
        let budgets = NamespaceBudgets::new(most, Beyond::LeavesItsRoom);
        Self(budgets.sharing(total))
    }

    /// Takes the age of a route and its size. A route without entries has no part in the budget. The change has an effect at
    /// the next [`Self::settle`].
    pub fn put(&mut self, key: &ObjectKey, created: i64, size: RouteSize) {
        let uses = Uses {
            own: size.entries,
            of_total: size.bytes,
        };
        self.0.put(key, created, uses);
    }

    /// Judges the namespaces that changed, and those whose share of the total did. Returns the routes that went over a limit
    /// by this, or came back under it. The cost grows with the routes of those of the namespaces that are over their limits.
    /// For the others it is small.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        self.0.settle()
    }

    /// The bytes of a route that count in the total.
    #[must_use]
    pub fn bytes(&self, route: &ObjectKey) -> u64 {
        self.0.uses(route).map_or(0, |uses| uses.of_total)
    }

    /// The total, and what each namespace asks for of it.
    #[must_use]
    pub fn total(&self) -> Option<&FairTotal> {
        self.0.total()
    }

    /// Why a route is refused, if it is over a limit.
    #[must_use]
    pub fn refusal(&self, route: &ObjectKey) -> Option<Finding> {
        let limit = self.0.exceeded(route)?;
        let uses = self.0.uses(route)?;
        let namespace = &route.name.namespace;
        let Some(left_of) = self.0.share_in_words(limit, namespace, "the routes") else {
            return Some(too_many(uses.own, self.0.most()));
        };
        Some(Finding::refused(
            Reason::QuotaExceeded,
            "spec",
            format!(
                "has up to {} bytes in the configuration of every proxy, which is more than the routes before it leave of \
                 {left_of}",
                uses.of_total
            ),
            limit.remedy(
                "use shorter names and fewer hostnames and rules, name one listener with sectionName in each of the \
                 parentRefs, remove routes that the namespace does not need",
                "tenants.routeEntries",
                "tenants.allRoutesMib",
            ),
        ))
    }
}

/// The finding for a route that takes more entries than its namespace has left of the `most` that it may have.
#[must_use]
pub fn too_many(entries: u64, most: u64) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        "spec",
        format!(
            "takes {entries} entries in the tables of every proxy, one for each match and element of its path, under \
             each hostname on each listener, and one for each {CONTENT_BYTES} bytes of its rules, which is more than older \
             routes leave of the {most} that all routes of the namespace may have",
        ),
        "name one listener with sectionName in each of the parentRefs, use fewer hostnames or matches, remove \
         routes that the namespace does not need, or ask the platform admin for more (tenants.routeEntries)",
    )
}
