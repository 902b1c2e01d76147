//! Owns what was learned about the endpoints of a backend by using them (passive health checks). An endpoint that did
//! not accept a connection, or broke off before it answered, is skipped for a while.
//!
//! This is an observation and not configuration. So all versions of a backend share it, and it may change during a
//! request. It only decides which of the configured endpoints is tried first. If there is no other endpoint, one that
//! should be skipped is used as well.
//!
//! An endpoint comes back by itself. When its pause is over, one request tries it, while the others skip it for another
//! pause of the same length. If the request succeeds, the endpoint is treated like any other again. If it fails, the
//! pause doubles.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vestibule_backoff::Backoff;

/// Length of the first pause of an endpoint.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause of an endpoint that does not accept connections. It is short, because a request that tries such an
/// endpoint can still go to another one.
const LONGEST_CONNECT: Duration = Duration::from_secs(4);
/// Longest pause of an endpoint that does not answer. It is long, because a request that tries such an endpoint may be
/// lost.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// How many requests in a row an endpoint must leave without an answer before it is skipped. A single one may be the
/// fault of the request.
const UNANSWERED: u32 = 3;

/// How an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFailure {
    /// It did not accept a connection, or its TLS does not fulfil the policy.
    Connect,
    /// It accepted a request, and then broke off or did not answer in time.
    Answer,
}

impl EndpointFailure {
    fn pauses(self) -> Backoff {
        match self {
            Self::Connect => Backoff::new(FIRST_PAUSE, LONGEST_CONNECT),
            Self::Answer => Backoff::new(FIRST_PAUSE, LONGEST_ANSWER),
        }
    }
}

/// An endpoint whose last use failed.
#[derive(Debug)]
struct Trouble {
    endpoint: SocketAddr,
    /// Number of requests in a row without an answer.
    unanswered: u32,
    /// Length of its present pause. It is zero while the endpoint is not skipped.
    pause: Duration,
    /// When the pause ends.
    until: Instant,
    /// Whether the pause is over, and a request tries the endpoint whose result is not known yet.
    tried: bool,
}

/// The health of the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether there is anything in `troubles`. Mostly there is not, and then no lock is taken.
    troubled: AtomicBool,
    troubles: Mutex<Vec<Trouble>>,
}

impl Health {
    /// Whether some endpoint failed lately.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// The first of `endpoints` that is not skipped at `now`. If the pause of an endpoint is over, it is returned to
    /// one caller, and the others skip it until the result is known.
    pub(crate) fn choose(
        &self,
        mut endpoints: impl Iterator<Item = SocketAddr>,
        now: Instant,
    ) -> Option<SocketAddr> {
        let mut troubles = self.troubles.lock();
        endpoints.find(|endpoint| {
            let trouble = troubles.iter_mut().find(|of| of.endpoint == *endpoint);
            match trouble {
                Some(trouble) if trouble.pause.is_zero() => true,
                Some(trouble) if trouble.until <= now => {
                    trouble.until = now + trouble.pause;
                    trouble.tried = true;
                    true
                }
                Some(_) => false,
                None => true,
            }
        })
    }

    /// Records that `endpoint` failed at `now`. If this begins or renews a pause, the length of the pause is returned.
    pub(crate) fn failed(
        &self,
        endpoint: SocketAddr,
        failure: EndpointFailure,
        now: Instant,
    ) -> Option<Duration> {
        let mut troubles = self.troubles.lock();
        let known = troubles.iter().position(|of| of.endpoint == endpoint);
        let index = known.unwrap_or_else(|| {
            troubles.push(Trouble {
                endpoint,
                unanswered: 0,
                pause: Duration::ZERO,
                until: now,
                tried: false,
            });
            troubles.len() - 1
        });
        self.troubled.store(true, Ordering::Release);
        let trouble = troubles.get_mut(index)?;
        if failure == EndpointFailure::Answer {
            trouble.unanswered = trouble.unanswered.saturating_add(1);
        }
        trouble.pause = match (trouble.pause, failure) {
            (Duration::ZERO, EndpointFailure::Answer) if trouble.unanswered < UNANSWERED => {
                return None;
            }
            (Duration::ZERO, _) => FIRST_PAUSE,
            (pause, _) if std::mem::take(&mut trouble.tried) => failure.pauses().after(pause),
            // A request that was under way when the pause began.
            _ => return None,
        };
        trouble.until = now + trouble.pause;
        Some(trouble.pause)
    }

    /// Records that `endpoint` succeeded. Returns whether it was skipped before.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) -> bool {
        if !self.is_troubled() {
            return false;
        }
        let mut troubles = self.troubles.lock();
        let known = troubles.iter().position(|of| of.endpoint == endpoint);
        let was = known.map(|index| troubles.swap_remove(index));
        self.settle(&mut troubles);
        was.is_some_and(|trouble| !trouble.pause.is_zero())
    }

    /// Removes endpoints that are not among `endpoints`. One that comes back later counts as new, because the control
    /// plane says that it is ready.
    pub(crate) fn retain(&self, endpoints: &[SocketAddr]) {
        if !self.is_troubled() {
            return;
        }
        let mut troubles = self.troubles.lock();
        troubles.retain(|trouble| endpoints.contains(&trouble.endpoint));
        self.settle(&mut troubles);
    }

    fn settle(&self, troubles: &mut Vec<Trouble>) {
        if troubles.is_empty() {
            self.troubled.store(false, Ordering::Release);
            troubles.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> [SocketAddr; 3] {
        [1, 2, 3].map(|n| ([10, 0, 0, n], 443).into())
    }

    fn chosen(health: &Health, now: Instant) -> Option<SocketAddr> {
        health.choose(endpoints().into_iter(), now)
    }

    #[test]
    fn an_endpoint_that_takes_no_connection_is_passed_over_and_tried_by_one_request() {
        let [one, two, _] = endpoints();
        let health = Health::default();
        let start = Instant::now();
        assert_eq!(
            health.failed(one, EndpointFailure::Connect, start),
            Some(FIRST_PAUSE)
        );
        // Others that were under way to it say nothing new.
        assert_eq!(health.failed(one, EndpointFailure::Connect, start), None);
        assert_eq!(chosen(&health, start), Some(two));
        let over = start + FIRST_PAUSE;
        assert_eq!(chosen(&health, over), Some(one));
        assert_eq!(chosen(&health, over), Some(two));
        assert_eq!(
            health.failed(one, EndpointFailure::Connect, over),
            Some(FIRST_PAUSE * 2)
        );
        assert_eq!(chosen(&health, over + FIRST_PAUSE), Some(two));
        assert_eq!(chosen(&health, over + FIRST_PAUSE * 2), Some(one));
        assert!(health.succeeded(one));
        assert!(!health.is_troubled());
        assert_eq!(chosen(&health, over), Some(one));
    }

    #[test]
    fn a_pause_has_a_longest() {
        let [one, ..] = endpoints();
        let longest = [
            (EndpointFailure::Connect, LONGEST_CONNECT),
            (EndpointFailure::Answer, LONGEST_ANSWER),
        ];
        for (failure, longest) in longest {
            let health = Health::default();
            let mut now = Instant::now();
            let mut last = health.failed(one, EndpointFailure::Connect, now).unwrap();
            for _ in 0..20 {
                now += last;
                assert_eq!(chosen(&health, now), Some(one));
                last = health.failed(one, failure, now).unwrap();
            }
            assert_eq!(last, longest);
        }
    }

    #[test]
    fn a_request_whose_fate_nobody_hears_of_does_not_keep_an_endpoint_away() {
        let [one, two, _] = endpoints();
        let health = Health::default();
        let start = Instant::now();
        health.failed(one, EndpointFailure::Connect, start);
        assert_eq!(chosen(&health, start + FIRST_PAUSE), Some(one));
        assert_eq!(chosen(&health, start + FIRST_PAUSE), Some(two));
        assert_eq!(chosen(&health, start + FIRST_PAUSE * 2), Some(one));
    }

    #[test]
    fn requests_without_an_answer_count_in_a_row() {
        let [one, two, _] = endpoints();
        let health = Health::default();
        let now = Instant::now();
        for _ in 0..10 {
            for _ in 1..UNANSWERED {
                assert_eq!(health.failed(one, EndpointFailure::Answer, now), None);
                assert_eq!(chosen(&health, now), Some(one));
            }
            assert!(!health.succeeded(one));
        }
        for _ in 1..UNANSWERED {
            assert_eq!(health.failed(one, EndpointFailure::Answer, now), None);
        }
        assert_eq!(
            health.failed(one, EndpointFailure::Answer, now),
            Some(FIRST_PAUSE)
        );
        assert_eq!(chosen(&health, now), Some(two));
    }

    #[test]
    fn an_endpoint_that_went_is_forgotten() {
        let [one, two, three] = endpoints();
        let health = Health::default();
        let now = Instant::now();
        health.failed(one, EndpointFailure::Connect, now);
        health.failed(two, EndpointFailure::Connect, now);
        assert_eq!(chosen(&health, now), Some(three));
        health.retain(&[two, three]);
        assert_eq!(chosen(&health, now), Some(one));
        health.retain(&[one, three]);
        assert!(!health.is_troubled());
    }
}
