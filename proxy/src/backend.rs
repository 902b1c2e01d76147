//! Owns a backend as connections and requests see it: its endpoints, its protocol and TLS settings, and the choice of
//! the next endpoint.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::send_proxy::HeaderVersion;

use crate::health::{EndpointFailure, EndpointHealth, in_turn};
use crate::retry_budget::{RetryBudget, RetryBudgets};
use crate::slot_map::Slot;
use crate::upstream;

/// The protocol by which HTTP requests are sent to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1 or, with TLS, the version that ALPN agrees on.
    #[default]
    Any,
    /// HTTP/2 by prior knowledge.
    H2c,
    /// HTTP/1.1 only, so that a connection can be upgraded.
    WebSocket,
}

/// Endpoints of a backend, and how to speak to them. The parts belong together: a connection to an endpoint of one
/// version never uses the protocol or TLS settings of another version.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Addresses and ports of its endpoints. Those of a [`Backend`] are sorted.
    pub endpoints: Arc<[SocketAddr]>,
    /// The protocol for HTTP requests.
    pub protocol: Protocol,
    /// The PROXY header with which every connection to it begins, before TLS; `None` if it expects none.
    pub(crate) send_proxy: Option<HeaderVersion>,
    /// TLS settings; `None` for plaintext.
    pub(crate) tls: Option<Arc<upstream::Tls>>,
    /// Those Gateways that show their client certificate only to chosen backends, and have chosen this one.
    pub(crate) certificate_of: Box<[Arc<str>]>,
}

impl Target {
    /// Whether it has this endpoint. Its endpoints have to be sorted, as those of a [`Backend`] are.
    pub(crate) fn has(&self, endpoint: SocketAddr) -> bool {
        self.endpoints.binary_search(&endpoint).is_ok()
    }
}

/// One version of a backend, which is a port of a Service. It is immutable: an edit makes a new version, which is in
/// the same slot of the next snapshot. So a connection or request can use the version that it chose to its end, even if
/// the backend changes or goes.
#[derive(Debug)]
pub struct Backend {
    /// `<namespace>/<service>:<port>`, with `/udp` at the end for UDP.
    pub key: Arc<str>,
    /// Its endpoints, and how to speak to them.
    pub target: Target,
    slot: Slot<Backend>,
    /// Shared with the other versions.
    health: Arc<EndpointHealth>,
    /// Shared with the other versions as well.
    retries: Arc<RetryBudgets>,
}

impl Backend {
    /// The first version, without endpoints.
    pub(crate) fn new(key: Arc<str>, slot: Slot<Self>) -> Self {
        Self {
            key,
            slot,
            target: Target::default(),
            health: Arc::default(),
            retries: Arc::default(),
        }
    }

    /// The version that follows this one.
    pub(crate) fn with(&self, mut target: Target) -> Self {
        if !target.endpoints.is_sorted() {
            let mut sorted = target.endpoints.to_vec();
            sorted.sort_unstable();
            target.endpoints = sorted.into();
        }
        self.health.retain(&target.endpoints);
        Self {
            key: Arc::clone(&self.key),
            slot: self.slot,
            target,
            health: Arc::clone(&self.health),
            retries: Arc::clone(&self.retries),
        }
    }

    /// The budget for retries of the requests that routes of `namespace` send to it.
    pub(crate) fn retries(&self, namespace: &Arc<str>) -> Arc<RetryBudget> {
        self.retries.of(namespace)
    }

    /// The namespace of its Service.
    pub(crate) fn namespace(&self) -> &str {
        self.key
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// Whether it is a Service of `namespace`.
    pub(crate) fn is_in(&self, namespace: &str) -> bool {
        self.namespace() == namespace
    }

    /// The slot in which later versions are found.
    pub(crate) fn slot(&self) -> Slot<Self> {
        self.slot
    }

    /// Whether both are versions of the same backend, and the backend was held or referred to all the time in between.
    pub(crate) fn is_version_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    /// A number that identifies the backend, as long as a version of it is held.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.health) as usize
    }

    /// Chooses one of the endpoints for which `fits` is true, by the lower half of `random`. An endpoint that failed
    /// lately is chosen only if there is no other.
    pub(crate) fn endpoint(
        &self,
        random: u64,
        fits: impl Fn(SocketAddr) -> bool + Copy,
    ) -> Option<SocketAddr> {
        let endpoints = &self.target.endpoints;
        let health = self.health.is_troubled().then_some(&*self.health);
        let healthy = health.and_then(|of| of.choose(endpoints, random, fits, Instant::now()));
        healthy.or_else(|| in_turn(endpoints, random).find(|endpoint| fits(*endpoint)))
    }

    /// Whether it has this endpoint.
    pub(crate) fn has(&self, endpoint: SocketAddr) -> bool {
        self.target.has(endpoint)
    }

    /// Whether it has this endpoint, and the endpoint did not fail lately.
    pub(crate) fn offers(&self, endpoint: SocketAddr) -> bool {
        let is_healthy =
            || !self.health.is_troubled() || self.health.offers(endpoint, Instant::now());
        self.has(endpoint) && is_healthy()
    }

    /// Records that `endpoint` failed. If this begins or renews a pause in which the endpoint is skipped, the length of
    /// the pause is returned.
    pub(crate) fn failed(
        &self,
        endpoint: SocketAddr,
        failure: EndpointFailure,
    ) -> Option<Duration> {
        self.health.failed(endpoint, failure, Instant::now())
    }

    /// Records that `endpoint` succeeded. Returns whether it was skipped before.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) -> bool {
        self.health.succeeded(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::LOOKS;
    use crate::slot_map::SlotAllocator;

    fn backend(count: u8) -> (Backend, Vec<SocketAddr>) {
        let first = Backend::new("team-a/web:443".into(), SlotAllocator::default().allocate());
        let endpoints: Vec<SocketAddr> = (0..count).map(|n| ([10, 0, 0, n], 443).into()).collect();
        let backend = first.with(Target {
            endpoints: endpoints.clone().into(),
            ..Target::default()
        });
        (backend, endpoints)
    }

    fn picks(backend: &Backend, tried: &[SocketAddr]) -> Vec<SocketAddr> {
        let random = (0..64_u64).map(|step| step << 26);
        let mut all: Vec<_> = random
            .filter_map(|random| backend.endpoint(random, |endpoint| !tried.contains(&endpoint)))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn each_endpoint_has_its_turn() {
        let (none, _) = backend(0);
        assert_eq!(none.endpoint(7, |_| true), None);
        let (backend, endpoints) = backend(5);
        assert_eq!(picks(&backend, &[]), endpoints);
    }

    #[test]
    fn endpoint_that_failed_is_passed_over_while_there_are_others() {
        let (backend, endpoints) = backend(3);
        backend.failed(endpoints[0], EndpointFailure::Connect);
        backend.failed(endpoints[0], EndpointFailure::Connect);
        assert_eq!(picks(&backend, &[]), endpoints[1..]);
        assert_eq!(picks(&backend, &endpoints[1..2]), endpoints[2..]);
        // Rather one that failed than none.
        assert_eq!(picks(&backend, &endpoints[1..]), endpoints[..1]);
        backend.failed(endpoints[1], EndpointFailure::Connect);
        backend.failed(endpoints[2], EndpointFailure::Connect);
        assert_eq!(picks(&backend, &[]), endpoints);
        // When the first of them comes back, it does not get the requests of all.
        assert!(backend.succeeded(endpoints[0]));
        assert_eq!(picks(&backend, &[]), endpoints);
    }

    /// A backend with so many endpoints, of which those from `healthy` on do not fail.
    fn mostly_failed(count: u32, healthy: usize) -> (Backend, Vec<SocketAddr>) {
        let (none, _) = backend(0);
        let hosts = (1..=count).map(std::net::Ipv4Addr::from_bits);
        let endpoints: Vec<SocketAddr> = hosts.map(|host| (host, 443).into()).collect();
        let backend = none.with(Target {
            endpoints: endpoints.clone().into(),
            ..Target::default()
        });
        // Their pauses do not end while the test runs.
        let now = Instant::now() + Duration::from_hours(1);
        for endpoint in &endpoints[..healthy] {
            let failure = EndpointFailure::Connect;
            assert!(backend.health.failed(*endpoint, failure, now).is_some());
        }
        (backend, endpoints)
    }

    fn random(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|seed| fastrand::Rng::with_seed(seed).u64(..))
    }

    #[test]
    fn a_choice_looks_at_few_of_many_endpoints() {
        let (backend, endpoints) = mostly_failed(5_000, 4_999);
        let healthy = endpoints[4_999];
        let looks = std::cell::Cell::new(0);
        for random in random(1_000) {
            looks.set(0);
            let fits = |_| {
                looks.set(looks.get() + 1);
                true
            };
            assert_eq!(backend.endpoint(random, fits), Some(healthy));
            assert!(looks.get() <= LOOKS + 1, "{} looks", looks.get());
            looks.set(0);
            let fits = |endpoint| {
                looks.set(looks.get() + 1);
                endpoint != healthy
            };
            assert!(backend.endpoint(random, fits).is_some());
            assert!(looks.get() <= LOOKS + 3, "{} looks", looks.get());
        }
    }

    #[test]
    fn the_healthy_ones_of_many_endpoints_share_the_requests() {
        for healthy in [100, 10] {
            let (backend, endpoints) = mostly_failed(1_000, 1_000 - healthy);
            let mut counts = std::collections::HashMap::new();
            for random in random(200 * healthy as u64) {
                let chosen = backend.endpoint(random, |_| true).unwrap();
                *counts.entry(chosen).or_insert(0) += 1;
            }
            for endpoint in &endpoints[1_000 - healthy..] {
                let count = counts.get(endpoint).copied().unwrap_or(0);
                assert!((120..280).contains(&count), "{count} of 200");
            }
        }
    }

    #[test]
    fn slow_requests_leave_more_than_one_endpoint_in_use() {
        let (backend, endpoints) = backend(4);
        for _ in 0..10 {
            for endpoint in &endpoints {
                backend.failed(*endpoint, EndpointFailure::Answer);
            }
        }
        assert_eq!(picks(&backend, &[]), endpoints[2..]);
        // An endpoint that answers again, as most requests do, is no reason to leave the others out.
        backend.succeeded(endpoints[3]);
        assert_eq!(picks(&backend, &[]), endpoints[2..]);
    }

    #[test]
    fn a_backend_is_in_the_namespace_of_its_service() {
        let (backend, _) = backend(1);
        assert!(backend.is_in("team-a"));
        assert!(!backend.is_in("team"));
        assert!(!backend.is_in("team-b"));
    }

    #[test]
    fn a_version_outlives_the_next_one_and_shares_what_was_learned() {
        let (older, endpoints) = backend(2);
        let newer = older.with(Target {
            endpoints: endpoints[1..].into(),
            ..Target::default()
        });
        assert!(newer.is_version_of(&older));
        assert_eq!(picks(&older, &[]), endpoints);
        newer.failed(endpoints[1], EndpointFailure::Connect);
        assert_eq!(picks(&older, &[]), endpoints[..1]);
        let gone = newer.with(Target::default());
        assert_eq!(gone.endpoint(7, |_| true), None);
        assert_eq!(picks(&newer, &[]), endpoints[1..]);
    }
}
