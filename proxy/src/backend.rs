//! Owns the endpoints of a backend: which there are, and which to pass over for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::table::scale;
use crate::upstream;

/// How long an endpoint that did not take a connection is passed over, as long as there are others.
/// Without it, each connection to a node that vanished would wait for its share of the deadline until
/// the cluster notices.
const AVOIDED: Duration = Duration::from_secs(5);

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

/// Where a backend is and how it is spoken to, as of one moment. It is swapped as a whole, so that no
/// connection is made to the endpoints of one moment in the way of another.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Where it is.
    pub endpoints: Vec<SocketAddr>,
    /// What it speaks.
    pub protocol: Protocol,
    /// How it is spoken to over TLS. None: in plaintext.
    pub(crate) tls: Option<Arc<upstream::Tls>>,
}

/// One Service port. What it is made of is swapped in place, so that routes need not be made anew when
/// a pod comes or goes.
#[derive(Debug)]
pub struct Backend {
    /// `<namespace>/<service>:<port>`.
    pub key: Arc<str>,
    target: ArcSwap<Target>,
    /// Whether there is anything in `avoided`: mostly not.
    avoids: AtomicBool,
    avoided: Mutex<Vec<(SocketAddr, Instant)>>,
}

impl Backend {
    /// A backend without endpoints.
    #[must_use]
    pub fn new(key: Arc<str>) -> Self {
        Self {
            key,
            target: ArcSwap::default(),
            avoids: AtomicBool::new(false),
            avoided: Mutex::default(),
        }
    }

    /// What there is at this moment.
    #[must_use]
    pub fn target(&self) -> Arc<Target> {
        self.target.load_full()
    }

    pub(crate) fn set_target(&self, target: Target) {
        self.target.store(Arc::new(target));
    }

    /// Has connections to the present endpoints be made so from here on.
    pub(crate) fn set_tls(&self, tls: Option<Arc<upstream::Tls>>) {
        let target = Target::clone(&self.target());
        self.set_target(Target { tls, ..target });
    }

    /// Takes the endpoints away.
    pub(crate) fn clear(&self) {
        let target = self.target();
        self.set_target(Target {
            endpoints: Vec::new(),
            ..Target::clone(&target)
        });
    }

    /// One of the endpoints that are not in `tried`, by the lower half of `random`; one that did not
    /// take a connection lately only if there is no other.
    pub(crate) fn endpoint(&self, random: u64, tried: &[SocketAddr]) -> Option<SocketAddr> {
        let target = self.target.load();
        let endpoints = &target.endpoints;
        let index = scale(random & u64::from(u32::MAX), endpoints.len() as u64);
        let index = usize::try_from(index).ok()?;
        let avoids = self.avoids.load(Ordering::Acquire);
        if tried.is_empty() && !avoids {
            return endpoints.get(index).copied();
        }
        let mut turn = endpoints.iter().cycle().skip(index).take(endpoints.len());
        let untried = |endpoint: &&SocketAddr| !tried.contains(endpoint);
        if avoids {
            let avoided = self.avoided();
            let other = turn
                .clone()
                .filter(untried)
                .find(|endpoint| !avoided.contains(endpoint));
            if let Some(endpoint) = other {
                return Some(*endpoint);
            }
        }
        turn.find(untried).copied()
    }

    /// Says that `endpoint` did not take a connection.
    pub(crate) fn avoid(&self, endpoint: SocketAddr) {
        let mut avoided = self.avoided.lock();
        avoided.retain(|(other, _)| *other != endpoint);
        // Those that are no longer endpoints are forgotten with their time, and until then few.
        avoided.push((endpoint, Instant::now() + AVOIDED));
        self.avoids.store(true, Ordering::Release);
    }

    fn avoided(&self) -> Vec<SocketAddr> {
        let mut avoided = self.avoided.lock();
        let now = Instant::now();
        avoided.retain(|(_, until)| *until > now);
        if avoided.is_empty() {
            self.avoids.store(false, Ordering::Release);
            avoided.shrink_to_fit();
        }
        avoided.iter().map(|(endpoint, _)| *endpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(count: u8) -> (Backend, Vec<SocketAddr>) {
        let backend = Backend::new("team-a/web:443".into());
        let endpoints: Vec<SocketAddr> = (0..count).map(|n| ([10, 0, 0, n], 443).into()).collect();
        backend.set_target(Target {
            endpoints: endpoints.clone(),
            ..Target::default()
        });
        (backend, endpoints)
    }

    fn picks(backend: &Backend, tried: &[SocketAddr]) -> Vec<SocketAddr> {
        let random = (0..64_u64).map(|step| step << 26);
        let mut all: Vec<_> = random
            .filter_map(|random| backend.endpoint(random, tried))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn each_endpoint_is_tried_once() {
        let (none, _) = backend(0);
        assert_eq!(none.endpoint(7, &[]), None);
        let (backend, endpoints) = backend(5);
        assert_eq!(picks(&backend, &[]), endpoints);
        for seed in 0..64_u64 {
            let mut tried = Vec::new();
            while let Some(next) = backend.endpoint(seed << 26, &tried) {
                tried.push(next);
            }
            tried.sort_unstable();
            assert_eq!(tried, endpoints);
        }
    }

    #[test]
    fn what_failed_is_passed_over_while_there_are_others() {
        let (backend, endpoints) = backend(3);
        backend.avoid(endpoints[0]);
        backend.avoid(endpoints[0]);
        assert_eq!(picks(&backend, &[]), endpoints[1..]);
        assert_eq!(picks(&backend, &endpoints[1..2]), endpoints[2..]);
        // Rather one that failed than none.
        assert_eq!(picks(&backend, &endpoints[1..]), endpoints[..1]);
        backend.avoid(endpoints[1]);
        backend.avoid(endpoints[2]);
        assert_eq!(picks(&backend, &[]), endpoints);
        // After its time it is as any other.
        let past = Instant::now().checked_sub(AVOIDED).unwrap();
        for (_, until) in backend.avoided.lock().iter_mut() {
            *until = past;
        }
        assert_eq!(picks(&backend, &[]), endpoints);
        assert!(!backend.avoids.load(Ordering::Acquire));
    }
}
