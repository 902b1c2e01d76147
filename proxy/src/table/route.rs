//! Owns a route as connections see it: its weighted backends, and the choice of an endpoint among them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Snapshot;
use crate::backend::Backend;
use crate::quota::TenantQuota;
use crate::slot_map::Slot;
use crate::weight::by_weight;

/// The kinds of routes that are selected for connections and not for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Connections {
    Tls,
    Tcp,
    Udp,
}

impl Connections {
    /// The kind of the routes, as the API names it.
    pub(crate) fn route_kind(self) -> &'static str {
        match self {
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }
}

/// The destination of a connection.
#[derive(Debug, Clone)]
pub enum Pick {
    /// Connect to this endpoint of this backend.
    Endpoint(SocketAddr, Arc<Backend>),
    /// The weights chose an invalid backend reference. Close the connection.
    InvalidBackend,
    /// The backend that was chosen has no endpoints. Close the connection.
    NoEndpoints,
    /// There is no backend, or all weights are 0. Close the connection.
    NoWeight,
}

/// One weighted reference of a route.
#[derive(Debug, Clone)]
pub struct WeightedBackend {
    /// Share among the route's backends, up to 1,000,000.
    pub weight: u32,
    /// `None` for an invalid reference, which keeps its share.
    pub(crate) backend: Option<Slot<Backend>>,
}

impl WeightedBackend {
    /// Whether the reference is valid. Connections in the share of an invalid one are closed.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.backend.is_some()
    }
}

/// A route as connections see it.
#[derive(Debug)]
pub struct Route {
    pub(crate) kind: Connections,
    /// `<namespace>/<name>`. A route of another kind may have the same.
    pub key: Arc<str>,
    /// Namespace of the route.
    pub tenant: Arc<str>,
    /// Creation, in seconds since the Unix epoch. Of equal hostnames, that of the older route has precedence.
    pub created: i64,
    /// The quota to which its connections are charged.
    pub(crate) account: Arc<TenantQuota>,
    backends: Box<[WeightedBackend]>,
    total: u64,
}

impl Route {
    /// A route with its backends, in the order of the spec.
    #[must_use]
    pub(crate) fn new(
        (kind, key): (Connections, Arc<str>),
        account: Arc<TenantQuota>,
        created: i64,
        backends: Vec<WeightedBackend>,
    ) -> Self {
        let total = backends.iter().map(|b| u64::from(b.weight)).sum();
        Self {
            kind,
            key,
            tenant: Arc::clone(account.tenant()),
            created,
            account,
            backends: backends.into(),
            total,
        }
    }

    /// The weighted references.
    #[must_use]
    pub fn backends(&self) -> &[WeightedBackend] {
        &self.backends
    }

    /// Chooses a backend by weight, with the upper half of `random`, and one of its endpoints, with the lower half. The
    /// route must belong to `snapshot`.
    #[must_use]
    pub fn pick(&self, snapshot: &Snapshot, random: u64) -> Pick {
        self.pick_with(snapshot, random, |of| of.endpoint(random, |_| true))
    }

    /// The same, but `endpoint` chooses the endpoint.
    pub(crate) fn pick_with(
        &self,
        snapshot: &Snapshot,
        random: u64,
        endpoint: impl FnOnce(&Backend) -> Option<SocketAddr>,
    ) -> Pick {
        let Some(picked) = by_weight(&self.backends, |of| of.weight, self.total, random) else {
            return Pick::NoWeight;
        };
        let Some(slot) = picked.backend else {
            return Pick::InvalidBackend;
        };
        let backend = snapshot.backend(slot);
        let picked = backend.and_then(|backend| {
            let address = endpoint(backend)?;
            Some(Pick::Endpoint(address, Arc::clone(backend)))
        });
        picked.unwrap_or(Pick::NoEndpoints)
    }
}
