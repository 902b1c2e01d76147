//! The budget for what the backends of one namespace take in every proxy.
//!
//! The proxies have a backend for each port of a Service that a route leads to, with its endpoints, TLS settings and name.
//! All endpoints come again for each of these ports, and a namespace can write EndpointSlices by hand, so the product is
//! what counts. Backends count in entries, like [routes](crate::route_budget), in the namespace of their Service. Their bytes
//! in the configuration count in a total for all namespaces, which they [share](crate::fair_total). A namespace without a limit
//! leaves less of it to the others.
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
use crate::fair_total::FairTotal;
use crate::finding::Finding;
use crate::namespace_budget::{Beyond, FRAME, LEAST_BYTES, NamespaceBudgets, Uses};
use crate::route_budget::CONTENT_BYTES;

/// How many bytes an endpoint counts for in entries. In the configuration it has up to 23 with an IPv4 address, and 47 with an
/// IPv6 address.
const ENDPOINT_BYTES: usize = 32;

/// How many bytes an endpoint has in the configuration at most: the longest IPv4 address, a port, and their frames.
const IPV4_ENDPOINT_BYTES: usize = 2 + (2 + "255.255.255.255".len()) + 4;

/// The same with the longest IPv6 address.
const IPV6_ENDPOINT_BYTES: usize = 2 + (2 + 39) + 4;

/// How many endpoints a backend has at most, by the family of their addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Endpoints with IPv4 addresses.
    pub ipv4: usize,
    /// Endpoints with IPv6 addresses.
    pub ipv6: usize,
}

/// How much a backend takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackendSize {
    /// Entries, which count in the budget of its namespace.
    pub entries: u64,
    /// Bytes in the configuration, at most. They count in the total.
    pub bytes: u64,
}

impl BackendSize {
    /// The size of a backend that has these endpoints, and so many bytes besides.
    #[must_use]
    pub fn new(besides: usize, endpoints: EndpointCounts) -> Self {
        let EndpointCounts { ipv4, ipv6 } = endpoints;
        let bytes = |of_ipv4: usize, of_ipv6: usize| {
            let of_endpoints = ipv4
                .saturating_mul(of_ipv4)
                .saturating_add(ipv6.saturating_mul(of_ipv6));
            of_endpoints.saturating_add(besides)
        };
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let sent = bytes(IPV4_ENDPOINT_BYTES, IPV6_ENDPOINT_BYTES);
        Self {
            entries: number(bytes(ENDPOINT_BYTES, ENDPOINT_BYTES) / CONTENT_BYTES).max(1),
            // Twice: the backend has tags and lengths of its own.
            bytes: number(sent.saturating_add(2 * FRAME)).max(LEAST_BYTES),
        }
    }
}

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendBudgets {
    budgets: NamespaceBudgets<BackendKey>,
}

impl BackendBudgets {
    /// Budgets of `most` entries for each namespace, and of `total` bytes for all of them together.
    #[must_use]
    pub fn new(most: u64, total: u64) -> Self {
        let budgets = NamespaceBudgets::new(most, Beyond::LeavesItsRoom);
        Self {
            budgets: budgets.sharing(total),
        }
    }

    /// From now on, a backend that comes into use takes no place from one in service. Before, only ages count, so the
    /// result does not depend on the order in which the objects are read.
    pub fn keep_in_service(&mut self) {
        self.budgets.keep_in_service();
    }

    /// Takes the age of the Service of a backend, and the size of the backend. One without entries is not in use. The change
    /// has an effect at the next [`Self::settle`].
    pub fn put(&mut self, backend: &BackendKey, created: i64, size: BackendSize) {
        let uses = Uses {
            own: size.entries,
            of_total: size.bytes,
        };
        self.budgets.put(backend, created, uses);
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.budgets.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed, and those whose share of the total did. Returns the backends of which
    /// [`Self::refusal`] says something else by this.
    pub fn settle(&mut self) -> BTreeSet<BackendKey> {
        self.budgets.settle()
    }

    /// The bytes of a backend that count in the total.
    #[must_use]
    pub fn bytes(&self, backend: &BackendKey) -> u64 {
        self.budgets.uses(backend).map_or(0, |uses| uses.of_total)
    }

    /// Whether a backend is over the budget.
    #[must_use]
    pub fn is_over(&self, backend: &BackendKey) -> bool {
        self.budgets.exceeded(backend).is_some()
    }

    /// The total, and what each namespace asks for of it.
    #[must_use]
    pub fn total(&self) -> Option<&FairTotal> {
        self.budgets.total()
    }

    /// Why the reference in `field` is refused, if the backend that it leads to is over the budget. How many
    /// entries it has is not said: the routes to one that stays over are not judged again when its endpoints change, so
    /// that would be a number of the past.
    #[must_use]
    pub fn refusal(&self, backend: &BackendKey, field: &str) -> Option<Finding> {
        let limit = self.budgets.exceeded(backend)?;
        let namespace = backend.namespace();
        let share = self
            .budgets
            .share_in_words(limit, namespace, "the backends");
        let (more, left_of) = match share {
            Some(share) => (
                "bytes of endpoints, TLS settings and names".to_owned(),
                share,
            ),
            None => (
                format!(
                    "entries, one for each {CONTENT_BYTES} bytes of its endpoints ({ENDPOINT_BYTES} bytes each), TLS settings \
                     and name,"
                ),
                format!(
                    "the {} that all backends of namespace {namespace} may have",
                    self.budgets.most()
                ),
            ),
        };
        Some(Finding::refused(
            Reason::QuotaExceeded,
            field,
            format!(
                "the Service port {backend} takes more {more} in every proxy than the backends before it leave of {left_of}"
            ),
            limit.remedy(
                "route to fewer ports of Services with very many endpoints, remove EndpointSlices that are not needed",
                "tenants.routeEntries",
                "tenants.allBackendsMib",
            ),
        ))
    }
}
