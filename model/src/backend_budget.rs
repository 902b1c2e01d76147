//! The budget for what the backends of one namespace take in every proxy.
//!
//! The proxies have a backend for each port of a Service that a route leads to, with its endpoints, TLS settings and name.
//! All endpoints come again for each of these ports, and a namespace can write EndpointSlices by hand, so the product is
//! what counts. Backends count in entries, like [routes](crate::route_budget), in the namespace of their Service.
//!
//! Backends of older Services come first, and those of Services of the same age by name. A backend that does not fit in
//! what those before it leave is not there for the proxies, and leaves its room to those behind it. From
//! [`BackendBudgets::keep_in_service`] on, those in service come before all others. So a backend that comes into use, or
//! fits again, takes no place from one in service, however old its Service is. One that grows can. One that is gone for a
//! moment waits by the age of its Service when it is back.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend_key::BackendKey;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::namespace_budget::{Beyond, NamespaceBudgets};
use crate::route_budget::CONTENT_BYTES;

/// How many bytes an endpoint counts for. In the configuration it has 20 to 50.
const ENDPOINT_BYTES: usize = 32;

/// How many entries a backend counts for that has so many endpoints, and so many bytes besides.
#[must_use]
pub fn entries_of_backend(bytes: usize, endpoints: usize) -> u64 {
    let bytes = endpoints
        .saturating_mul(ENDPOINT_BYTES)
        .saturating_add(bytes);
    u64::try_from(bytes / CONTENT_BYTES)
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendBudgets {
    budgets: NamespaceBudgets<BackendKey>,
}

impl BackendBudgets {
    /// Budgets of `most` entries for each namespace.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            budgets: NamespaceBudgets::new(most, Beyond::LeavesItsRoom),
        }
    }

    /// From now on, a backend that comes into use takes no place from one in service. Before, only ages count, so the
    /// result does not depend on the order in which the objects are read.
    pub fn keep_in_service(&mut self) {
        self.budgets.keep_in_service();
    }

    /// Takes the age of the Service of a backend, and how many entries the backend has. One without entries is not in use.
    /// The change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, backend: &BackendKey, created: i64, entries: u64) {
        self.budgets.put(backend, created, entries);
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.budgets.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed. Returns the backends that went over their budget by this, or came back under it.
    pub fn settle(&mut self) -> BTreeSet<BackendKey> {
        self.budgets.settle()
    }

    /// Whether a backend is over the budget.
    #[must_use]
    pub fn is_over(&self, backend: &BackendKey) -> bool {
        self.budgets.exceeded(backend).is_some()
    }

    /// Why the reference in `field` is refused, if the backend that it leads to is over the budget. How many
    /// entries it has is not said: the routes to one that stays over are not judged again when its endpoints change, so
    /// that would be a number of the past.
    #[must_use]
    pub fn refusal(&self, backend: &BackendKey, field: &str) -> Option<Finding> {
        self.is_over(backend).then(|| {
            Finding::refused(
                Reason::QuotaExceeded,
                field,
                format!(
                    "the Service port {backend} takes more entries in every proxy, one for each \
                     {CONTENT_BYTES} bytes of its endpoints ({ENDPOINT_BYTES} bytes each), TLS settings and name, than the \
                     backends before it leave of the {} that all backends of namespace {} may have",
                    self.budgets.most(),
                    backend.namespace()
                ),
                "route to fewer ports of Services with very many endpoints, remove EndpointSlices that are not needed, or \
                 ask the platform admin for more (tenants.routeEntries)",
            )
        })
    }
}
