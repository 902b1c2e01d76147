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
//!
//! Clients can choose which requests they send, so they must not be able to choose which endpoints are skipped. The two
//! kinds of failures differ in that:
//!
//! - A request that gets no answer may itself be the reason: anybody can ask for a path that is slow at every endpoint.
//!   So unanswered requests pause at most half of the endpoints that take connections. The other half stays in use,
//!   whatever clients ask for. If more than half of the endpoints really hang, those beyond the limit still get
//!   requests, which is what they would get without health checks.
//! - Whether an endpoint takes a connection does not depend on what the request asks for. A request that meets such an
//!   endpoint is not lost, because it goes to another one. So failures to connect may pause any number of endpoints.
//!
//! The first rule leaves at least one endpoint unless all of them fail to take connections. Then all count as usable,
//! and the first success ends all pauses. The reason was probably a common one, such as the network or a Deployment
//! that was started anew, and it has ended. Otherwise the endpoint that succeeds first would get all requests until the
//! pauses of the others are over.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
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
    /// Number of requests in a row without an answer.
    unanswered: u32,
    /// How it failed last.
    failure: EndpointFailure,
    /// Length of its present pause. It is zero while the endpoint is not skipped.
    pause: Duration,
    /// When the pause ends.
    until: Instant,
    /// Whether the pause is over, and a request tries the endpoint whose result is not known yet.
    tried: bool,
}

impl Trouble {
    fn is_paused(&self, failure: EndpointFailure) -> bool {
        !self.pause.is_zero() && self.failure == failure
    }
}

/// What is known of the endpoints of a backend.
#[derive(Debug, Default)]
struct Observations {
    /// The endpoints of the newest version.
    endpoints: Arc<[SocketAddr]>,
    /// Those of them whose last use failed, in the order in which they failed first. `None` if there are none. Mostly
    /// there are none, and so this is in a box. A lookup has to be cheap, because a choice can need one for each
    /// endpoint, and a team decides how many endpoints it has.
    troubles: Option<Box<IndexMap<SocketAddr, Trouble>>>,
}

impl Observations {
    fn troubles(&self) -> impl Iterator<Item = &Trouble> {
        self.troubles.iter().flat_map(|all| all.values())
    }

    fn paused(&self, failure: EndpointFailure) -> usize {
        let troubles = self.troubles();
        troubles.filter(|of| of.is_paused(failure)).count()
    }

    /// Whether no endpoint is left that is not paused.
    fn are_all_paused(&self) -> bool {
        let paused = self.troubles().filter(|of| !of.pause.is_zero());
        paused.count() >= self.endpoints.len()
    }

    /// Ends pauses until unanswered requests pause no more than half of the endpoints that take connections. The
    /// shortest pauses end first, because they have the least evidence, and of these the youngest.
    fn keep_half(&mut self) {
        let unconnected = self.paused(EndpointFailure::Connect);
        let most = self.endpoints.len().saturating_sub(unconnected) / 2;
        let excess = self.paused(EndpointFailure::Answer).saturating_sub(most);
        for _ in 0..excess {
            let troubles = self.troubles.iter_mut();
            let paused = troubles.flat_map(|all| all.values_mut().rev());
            let paused = paused.filter(|of| of.is_paused(EndpointFailure::Answer));
            if let Some(trouble) = paused.min_by_key(|of| (of.pause, Reverse(of.until))) {
                trouble.pause = Duration::ZERO;
                trouble.tried = false;
            }
        }
    }
}

/// The health of the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether some endpoint is in trouble. Mostly none is, and then no lock is taken.
    troubled: AtomicBool,
    observations: Mutex<Observations>,
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
        let mut observations = self.observations.lock();
        let Some(troubles) = &mut observations.troubles else {
            return endpoints.next();
        };
        endpoints.find(|endpoint| match troubles.get_mut(endpoint) {
            Some(trouble) if trouble.pause.is_zero() => true,
            Some(trouble) if trouble.until <= now => {
                trouble.until = now + trouble.pause;
                trouble.tried = true;
                true
            }
            Some(_) => false,
            None => true,
        })
    }

    /// Records that `endpoint` failed at `now`. If this begins or renews a pause, the length of the pause is returned.
    pub(crate) fn failed(
        &self,
        endpoint: SocketAddr,
        failure: EndpointFailure,
        now: Instant,
    ) -> Option<Duration> {
        let mut observations = self.observations.lock();
        let Observations {
            endpoints,
            troubles,
        } = &mut *observations;
        let is_known = troubles
            .as_ref()
            .is_some_and(|all| all.contains_key(&endpoint));
        // A request that began with an older version may fail at an endpoint that is gone.
        if !is_known && !endpoints.contains(&endpoint) {
            return None;
        }
        self.troubled.store(true, Ordering::Release);
        let trouble = troubles.get_or_insert_default().entry(endpoint);
        let trouble = trouble.or_insert(Trouble {
            unanswered: 0,
            failure,
            pause: Duration::ZERO,
            until: now,
            tried: false,
        });
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
        trouble.failure = failure;
        trouble.until = now + trouble.pause;
        observations.keep_half();
        let pause = observations.troubles.as_ref()?.get(&endpoint)?.pause;
        (!pause.is_zero()).then_some(pause)
    }

    /// Records that `endpoint` succeeded. Returns whether it was skipped before. If all endpoints were paused, all
    /// pauses end.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) -> bool {
        if !self.is_troubled() {
            return false;
        }
        let mut observations = self.observations.lock();
        let were_all_paused = observations.are_all_paused();
        let troubles = observations.troubles.as_mut();
        let was = troubles.and_then(|all| all.swap_remove(&endpoint));
        if was.is_some() && were_all_paused {
            observations.troubles = None;
        }
        self.settle(&mut observations);
        was.is_some_and(|trouble| !trouble.pause.is_zero())
    }

    /// Takes over the endpoints of a new version, and forgets what is known of others. One that comes back later counts
    /// as new, because the control plane says that it is ready.
    pub(crate) fn retain(&self, endpoints: &Arc<[SocketAddr]>) {
        let mut observations = self.observations.lock();
        observations.endpoints = Arc::clone(endpoints);
        let Some(troubles) = &mut observations.troubles else {
            return;
        };
        let present: HashSet<&SocketAddr> = endpoints.iter().collect();
        troubles.retain(|endpoint, _| present.contains(endpoint));
        observations.keep_half();
        self.settle(&mut observations);
    }

    fn settle(&self, observations: &mut Observations) {
        observations.troubles = observations.troubles.take().filter(|all| !all.is_empty());
        if observations.troubles.is_none() {
            self.troubled.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> [SocketAddr; 3] {
        [1, 2, 3].map(|n| ([10, 0, 0, n], 443).into())
    }

    fn health() -> Health {
        let health = Health::default();
        health.retain(&endpoints().into());
        health
    }

    fn chosen(health: &Health, now: Instant) -> Option<SocketAddr> {
        health.choose(endpoints().into_iter(), now)
    }

    #[test]
    fn an_endpoint_that_takes_no_connection_is_passed_over_and_tried_by_one_request() {
        let [one, two, _] = endpoints();
        let health = health();
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
            let health = health();
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
        let health = health();
        let start = Instant::now();
        health.failed(one, EndpointFailure::Connect, start);
        assert_eq!(chosen(&health, start + FIRST_PAUSE), Some(one));
        assert_eq!(chosen(&health, start + FIRST_PAUSE), Some(two));
        assert_eq!(chosen(&health, start + FIRST_PAUSE * 2), Some(one));
    }

    #[test]
    fn requests_without_an_answer_count_in_a_row() {
        let [one, two, _] = endpoints();
        let health = health();
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
        let health = health();
        let now = Instant::now();
        health.failed(one, EndpointFailure::Connect, now);
        health.failed(two, EndpointFailure::Connect, now);
        assert_eq!(chosen(&health, now), Some(three));
        health.retain(&[two, three].into());
        assert_eq!(chosen(&health, now), Some(one));
        health.retain(&[one, three].into());
        assert!(!health.is_troubled());
    }

    fn paused(health: &Health, endpoints: &[SocketAddr]) -> Vec<SocketAddr> {
        let now = Instant::now();
        let choose = |endpoint| health.choose(std::iter::once(endpoint), now);
        let all = endpoints.iter().copied();
        all.filter(|endpoint| choose(*endpoint).is_none()).collect()
    }

    #[test]
    fn unanswered_requests_pause_at_most_half_of_the_endpoints() {
        for count in 1..=7_u8 {
            let endpoints: Arc<[SocketAddr]> =
                (0..count).map(|n| ([10, 0, 0, n], 443).into()).collect();
            let health = Health::default();
            health.retain(&endpoints);
            let now = Instant::now() + Duration::from_hours(1);
            for _ in 0..10 {
                for endpoint in &*endpoints {
                    health.failed(*endpoint, EndpointFailure::Answer, now);
                }
            }
            let most = usize::from(count) / 2;
            assert_eq!(paused(&health, &endpoints), endpoints[..most]);
            // What succeeds makes room for another one.
            if let Some(first) = endpoints.first().filter(|_| most > 0) {
                assert!(health.succeeded(*first));
                let last = endpoints[endpoints.len() - 1];
                let pause = health.failed(last, EndpointFailure::Answer, now);
                assert_eq!(pause, Some(FIRST_PAUSE));
            }
        }
    }

    /// With a search for each endpoint among all failed ones, this would take 40 thousand million comparisons.
    #[test]
    fn many_failed_endpoints_are_passed_over_at_the_cost_of_a_lookup_each() {
        let endpoints: Arc<[SocketAddr]> = (1..=20_000_u32)
            .map(|n| (std::net::Ipv4Addr::from_bits(n), 443).into())
            .collect();
        let health = Health::default();
        health.retain(&endpoints);
        let (last, others) = endpoints.split_last().unwrap();
        let now = Instant::now();
        {
            let mut observations = health.observations.lock();
            let troubles = others.iter().map(|endpoint| {
                let trouble = Trouble {
                    unanswered: 0,
                    failure: EndpointFailure::Connect,
                    pause: LONGEST_CONNECT,
                    until: now + LONGEST_CONNECT,
                    tried: false,
                };
                (*endpoint, trouble)
            });
            observations.troubles = Some(Box::new(troubles.collect()));
        }
        for _ in 0..100 {
            assert_eq!(health.choose(endpoints.iter().copied(), now), Some(*last));
            health.retain(&endpoints);
        }
    }

    #[test]
    fn of_the_endpoints_that_take_connections_half_stay_in_use() {
        let four: Arc<[SocketAddr]> = (0..4).map(|n| ([10, 0, 0, n], 443).into()).collect();
        let health = Health::default();
        health.retain(&four);
        let now = Instant::now() + Duration::from_hours(1);
        for endpoint in &four[..2] {
            for _ in 0..UNANSWERED {
                health.failed(*endpoint, EndpointFailure::Answer, now);
            }
        }
        assert_eq!(paused(&health, &four), four[..2]);
        // An endpoint that does not answer is better than one that takes no connection.
        health.failed(four[2], EndpointFailure::Connect, now);
        assert_eq!(paused(&health, &four), [four[0], four[2]]);
        health.failed(four[3], EndpointFailure::Connect, now);
        assert_eq!(paused(&health, &four), [four[0], four[2], four[3]]);
        // The limit follows the number of endpoints.
        let two: Arc<[SocketAddr]> = [four[0], four[3]].into();
        health.retain(&two);
        assert_eq!(paused(&health, &two), [four[3]]);
    }

    #[test]
    fn the_first_success_ends_all_pauses_if_no_endpoint_is_left() {
        let health = health();
        let [one, two, three] = endpoints();
        let now = Instant::now() + Duration::from_hours(1);
        for endpoint in [one, two] {
            health.failed(endpoint, EndpointFailure::Connect, now);
        }
        // While others are left, one that comes back says nothing of the rest.
        assert!(health.succeeded(one));
        assert_eq!(paused(&health, &endpoints()), [two]);
        for endpoint in [one, three] {
            health.failed(endpoint, EndpointFailure::Connect, now);
        }
        assert_eq!(paused(&health, &endpoints()), endpoints());
        assert!(health.succeeded(one));
        assert_eq!(paused(&health, &endpoints()), []);
        assert!(!health.is_troubled());
    }

    #[test]
    fn a_failure_of_an_endpoint_that_is_gone_counts_nowhere() {
        let health = health();
        let gone = ([10, 0, 0, 9], 443).into();
        let failure = EndpointFailure::Connect;
        assert_eq!(health.failed(gone, failure, Instant::now()), None);
        assert!(!health.is_troubled());
    }
}
