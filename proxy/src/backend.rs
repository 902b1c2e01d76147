//! Owns a backend as connections and requests see it: where it is, how it is spoken to, and which of its
//! endpoints is next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::health::{EndpointFailure, Health};
use crate::retry_budget::Budget;
use crate::slot_map::Slot;
use crate::upstream;
use crate::weight::scale;

/// What a backend speaks, to HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, or what ALPN agrees on where there is TLS.
    #[default]
    Any,
    /// HTTP/2 by prior knowledge.
    H2c,
    /// HTTP/1.1 only, so that it can be upgraded.
    WebSocket,
}

/// Where a backend is and how it is spoken to. The parts belong together: no connection is made to the
/// endpoints of one version in the way of another.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Where it is.
    pub endpoints: Box<[SocketAddr]>,
    /// What it speaks.
    pub protocol: Protocol,
    /// How it is spoken to over TLS. None: in plaintext.
    pub(crate) tls: Option<Arc<upstream::Tls>>,
    /// Gateways whose certificate it is shown, of those that choose.
    pub(crate) certificate_of: Box<[Arc<str>]>,
}

/// One version of a Service port. Immutable: an edit makes a new version, which the next snapshot has in
/// the same slot. So whoever chose a version can use it to the end, whatever becomes of the backend.
#[derive(Debug)]
pub struct Backend {
    /// `<namespace>/<service>:<port>`, of a UDP port with `/udp` behind it.
    pub key: Arc<str>,
    /// Where it is.
    pub target: Target,
    slot: Slot<Backend>,
    /// Shared with the other versions.
    health: Arc<Health>,
    /// The same.
    retries: Arc<Budget>,
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
    pub(crate) fn with(&self, target: Target) -> Self {
        self.health.retain(&target.endpoints);
        Self {
            key: Arc::clone(&self.key),
            slot: self.slot,
            target,
            health: Arc::clone(&self.health),
            retries: Arc::clone(&self.retries),
        }
    }

    /// How many of its requests may be made again.
    pub(crate) fn retries(&self) -> &Arc<Budget> {
        &self.retries
    }

    /// Where later versions are found.
    pub(crate) fn slot(&self) -> Slot<Self> {
        self.slot
    }

    /// Whether the two are versions of one backend, which was held or referred to all the time between.
    pub(crate) fn is_version_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    /// Tells backends apart, as long as a version of them is held.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.health) as usize
    }

    /// One of the endpoints that `fits` says, by the lower half of `random`; one that failed lately only if
    /// there is no other.
    pub(crate) fn endpoint(
        &self,
        random: u64,
        fits: impl Fn(SocketAddr) -> bool + Copy,
    ) -> Option<SocketAddr> {
        let endpoints = &self.target.endpoints;
        let index = scale(random & u64::from(u32::MAX), endpoints.len() as u64);
        let (before, from) = endpoints.split_at_checked(usize::try_from(index).ok()?)?;
        let turn = from.iter().chain(before).copied();
        let mut fitting = turn.filter(|endpoint| fits(*endpoint));
        let troubled = self.health.is_troubled();
        let healthy = troubled.then(|| self.health.choose(fitting.clone(), Instant::now()));
        healthy.flatten().or_else(|| fitting.next())
    }

    /// Whether it has this endpoint.
    pub(crate) fn has(&self, endpoint: SocketAddr) -> bool {
        self.target.endpoints.contains(&endpoint)
    }

    /// Whether it has this endpoint, which did not fail lately.
    pub(crate) fn offers(&self, endpoint: SocketAddr) -> bool {
        let one = || std::iter::once(endpoint);
        self.has(endpoint)
            && (!self.health.is_troubled() || self.health.choose(one(), Instant::now()).is_some())
    }

    /// Notes that `endpoint` failed. Returns for how long it is passed over, if that begins or is
    /// renewed.
    pub(crate) fn failed(
        &self,
        endpoint: SocketAddr,
        failure: EndpointFailure,
    ) -> Option<Duration> {
        self.health.failed(endpoint, failure, Instant::now())
    }

    /// Notes that `endpoint` did what it was asked for. Returns whether it was passed over before.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) -> bool {
        self.health.succeeded(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn what_failed_is_passed_over_while_there_are_others() {
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
        assert!(backend.succeeded(endpoints[0]));
        assert_eq!(picks(&backend, &[]), endpoints[..1]);
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
