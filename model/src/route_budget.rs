//! The budget for what the routes of one namespace take in the tables of every proxy.
//!
//! The proxies have an entry for each match of a route, under each hostname, on each listener that the route is attached
//! to. This product can be large even if the route and the listeners are small, so the number of entries is bounded,
//! and not the number of objects. The content of a route, such as the values that its filters set and the names of its
//! backends, is there once. It counts as entries by its size.
//!
//! Older routes come first, and routes of the same age by name. A route is over the budget if it has more entries than
//! those before it leave. It is then refused as a whole, and leaves its room to younger ones. The result depends only
//! on the routes of the namespace, and not on the order in which they arrived.

use std::collections::BTreeSet;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::http::{
    Cors, CorsNames, HeaderModifier, HttpBackend, HttpFilter, HttpMatch, HttpRule, PathMatch,
    PathModifier, ValueMatch,
};
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets};
use crate::reference::BackendRef;
use crate::route::Route;

/// Bytes of a path or service for which a proxy needs as much memory as for one more entry.
const BYTES: usize = 256;

/// Bytes of the content of a route, or of a backend, that count as one entry. A change of a backend of the route has all of
/// the route sent again.
pub(crate) const CONTENT_BYTES: usize = 128;

/// How many entries the content of a route counts for, however many hostnames and listeners it has.
#[must_use]
pub fn entries_of_content(route: Route<'_>) -> u64 {
    let bytes: usize = match route {
        Route::Http(route) => route.rules.iter().map(bytes_of_rule).sum(),
        Route::Tls(route) => route.backends.iter().map(bytes_of_backend).sum(),
        Route::Port(route) => route.backends.iter().map(bytes_of_backend).sum(),
    };
    u64::try_from(bytes / CONTENT_BYTES).unwrap_or(u64::MAX)
}

fn bytes_of_rule(rule: &HttpRule) -> usize {
    let matches = rule.matches.iter().map(bytes_of_match);
    let filters = rule.filters.iter().map(bytes_of_filter);
    let backends = rule
        .backends
        .iter()
        .map(|HttpBackend { backend, filters }| {
            let filters = filters.iter().map(bytes_of_filter);
            filters.sum::<usize>() + bytes_of_backend(backend)
        });
    matches.chain(filters).chain(backends).sum()
}

/// The configuration has a name for each backend of a route.
fn bytes_of_backend(backend: &BackendRef) -> usize {
    let target = &backend.reference.target;
    target.namespace.len() + target.name.len()
}

fn bytes_of_match(one: &HttpMatch) -> usize {
    let HttpMatch {
        // Entries count its bytes.
        path: _,
        headers,
        query,
        method,
    } = one;
    let values = headers.iter().chain(query);
    let values = values.map(|(name, value)| match value {
        ValueMatch::Exact(value) => name.len() + value.len(),
        // The budget of regular expressions counts them.
        ValueMatch::Regex(_) => name.len(),
    });
    values.sum::<usize>() + method.as_deref().map_or(0, str::len)
}

fn bytes_of_filter(filter: &HttpFilter) -> usize {
    let path = |path: &Option<PathModifier>| match path {
        Some(PathModifier::Full(text) | PathModifier::Prefix(text)) => text.len(),
        None => 0,
    };
    match filter {
        HttpFilter::RequestHeaders(modifier) | HttpFilter::ResponseHeaders(modifier) => {
            let HeaderModifier { set, add, remove } = modifier;
            let values = set.iter().chain(add);
            let values = values.map(|(name, value)| name.len() + value.len());
            values.chain(remove.iter().map(|name| name.len())).sum()
        }
        HttpFilter::Redirect(redirect) => path(&redirect.path),
        HttpFilter::Rewrite(rewrite) => path(&rewrite.path),
        HttpFilter::Cors(cors) => {
            let Cors {
                origins,
                credentials: _,
                methods,
                headers,
                exposed,
                max_age: _,
            } = cors;
            let names = [methods, headers, exposed].into_iter();
            let names = names.flat_map(|names| match names {
                CorsNames::All => &[],
                CorsNames::Listed(names) => names.as_slice(),
            });
            let origins = origins.iter().map(|origin| origin.to_string().len());
            names.map(|name| name.len()).chain(origins).sum()
        }
        HttpFilter::Mirror(mirror) => bytes_of_backend(&mirror.backend),
        // It refers to one object.
        HttpFilter::Extension(_) => 0,
    }
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

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteBudgets(NamespaceBudgets<ObjectKey>);

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
        Some(too_many(entries, self.0.most()))
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
             each hostname on each listener, and one for each {CONTENT_BYTES} bytes of its filters and matches, \
             which is more than older routes leave of the {most} that all routes of the \
             namespace may have",
        ),
        "name one listener with sectionName in each of the parentRefs, use fewer hostnames or matches, remove \
         routes that the namespace does not need, or ask the owner of the Gateway for more",
    )
}
