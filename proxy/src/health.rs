//! Owns what was learned about the endpoints of a backend by using them: which of them to pass over for
//! a while, because they did not take a connection or broke off before they answered.
//!
//! This is an observation and no configuration, so all versions of a backend share it, and it may
//! change under a request: it only decides which of the endpoints that the configuration allows is
//! tried first. An endpoint that is passed over is used all the same where there is no other one.
//!
//! An endpoint comes back by itself. When its pause is over, one request tries it; the others go on
//! passing it over for as long as the pause was. If the request succeeds, the endpoint is as any other
//! again; if it fails, the pause doubles.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vestibule_backoff::Backoff;

/// How long an endpoint is passed over first.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long at most if it takes no connections: a request that tries it goes elsewhere.
const LONGEST_CONNECT: Duration = Duration::from_secs(4);
/// How long at most if it does not answer: a request that tries it may be lost.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// Requests in a row that an endpoint has to leave without an answer before it is passed over. A single
/// one may be the fault of the request.
const UNANSWERED: u32 = 3;

/// What went wrong at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFailure {
    /// It did not take a connection, or its TLS is not what the policy asks for.
    Connect,
    /// It took a request, and broke off or did not answer in time.
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
    /// Requests in a row without an answer.
    unanswered: u32,
    /// How long it is passed over at a time; zero while it is not.
    pause: Duration,
    /// When the pause ends.
    until: Instant,
    /// A pause is over, and how the request did that tries the endpoint is not known yet.
    tried: bool,
}

/// What is known of the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether there is anything in `troubles`: mostly not, and then nothing is locked.
    troubled: AtomicBool,
    troubles: Mutex<Vec<Trouble>>,
}

impl Health {
    /// Whether some endpoint failed lately.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// The first of `endpoints` that is not passed over at `now`. One whose pause is over is returned
    /// once, and passed over by others until it is known how it did.
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

    /// Notes that `endpoint` failed at `now`. Returns for how long it is passed over, if that begins or
    /// is renewed.
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

    /// Notes that `endpoint` did what it was asked for. Returns whether it was passed over before.
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

    /// Forgets endpoints that are not among `endpoints`. One that comes back later is taken for new: the
    /// control plane says that it is ready.
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
