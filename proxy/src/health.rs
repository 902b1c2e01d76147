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
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indexmap::{IndexMap, IndexSet};
use parking_lot::Mutex;
use vestibule_backoff::Backoff;

use crate::weight::scale;

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

/// Endpoints at which a choice looks by themselves. A team decides how many endpoints it has, and how many of them fail.
pub(crate) const LOOKS: usize = 32;

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
    /// How it failed, if it is skipped for that.
    fn paused_by(&self) -> Option<EndpointFailure> {
        (!self.pause.is_zero()).then_some(self.failure)
    }
}

/// The endpoints whose last use failed.
#[derive(Debug, Default)]
struct Troubles {
    /// In the order in which they failed first. A lookup has to be cheap, because a choice needs some of them.
    all: IndexMap<SocketAddr, Trouble>,
    /// Number of those that are paused because they took no connection.
    unconnected: usize,
    /// Number of those that are paused because they did not answer.
    unanswered: usize,
    /// The endpoints that are not paused, from the first choice on that needs them.
    usable: Option<IndexSet<SocketAddr>>,
}

impl Troubles {
    /// Whether an endpoint is not skipped at `now`. If its pause is over, it is offered once, and skipped after that until
    /// the result is known.
    fn offers(&mut self, endpoint: SocketAddr, now: Instant) -> bool {
        match self.all.get_mut(&endpoint) {
            Some(trouble) if trouble.pause.is_zero() => true,
            Some(trouble) if trouble.until <= now => {
                trouble.until = now + trouble.pause;
                trouble.tried = true;
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    /// The endpoints that are not paused. They are collected once, and the set follows each change after that.
    fn usable(&mut self, endpoints: &[SocketAddr]) -> &IndexSet<SocketAddr> {
        let all = &self.all;
        self.usable.get_or_insert_with(|| {
            let is_paused = |of: &SocketAddr| all.get(of).is_some_and(|of| !of.pause.is_zero());
            let usable = endpoints.iter().filter(|of| !is_paused(of));
            usable.copied().collect()
        })
    }

    /// Follows a change of an endpoint: whether it was and is paused, and by what.
    fn count(
        &mut self,
        endpoint: SocketAddr,
        was: Option<EndpointFailure>,
        is: Option<EndpointFailure>,
    ) {
        if let Some(was) = was {
            *self.number(was) -= 1;
        }
        if let Some(is) = is {
            *self.number(is) += 1;
        }
        match &mut self.usable {
            Some(usable) if is.is_some() => {
                usable.swap_remove(&endpoint);
            }
            Some(usable) => {
                usable.insert(endpoint);
            }
            None => {}
        }
    }

    fn number(&mut self, of: EndpointFailure) -> &mut usize {
        match of {
            EndpointFailure::Connect => &mut self.unconnected,
            EndpointFailure::Answer => &mut self.unanswered,
        }
    }

    /// Forgets an endpoint, and returns what was known of it.
    fn remove(&mut self, endpoint: SocketAddr) -> Option<Trouble> {
        let trouble = self.all.swap_remove(&endpoint)?;
        self.count(endpoint, trouble.paused_by(), None);
        Some(trouble)
    }

    /// Ends so many of the pauses that unanswered requests began. The shortest pauses end first, because they have the
    /// least evidence, and of these the youngest.
    fn end_pauses(&mut self, excess: usize) {
        let Some(last) = excess.checked_sub(1) else {
            return;
        };
        let all = self.all.iter().enumerate();
        let paused = all.filter(|(_, (_, of))| of.paused_by() == Some(EndpointFailure::Answer));
        let mut paused: Vec<_> = paused
            .map(|(index, (_, of))| (of.pause, Reverse(of.until), Reverse(index)))
            .collect();
        if last < paused.len() {
            paused.select_nth_unstable(last);
        }
        for (_, _, Reverse(index)) in paused.into_iter().take(excess) {
            if let Some((endpoint, trouble)) = self.all.get_index_mut(index) {
                let (endpoint, was) = (*endpoint, trouble.paused_by());
                trouble.pause = Duration::ZERO;
                trouble.tried = false;
                self.count(endpoint, was, None);
            }
        }
    }
}

/// The observations about the endpoints of a backend.
#[derive(Debug, Default)]
struct Observations {
    /// The endpoints of the newest version, sorted.
    endpoints: Arc<[SocketAddr]>,
    /// Those of them whose last use failed. `None` if there are none. Mostly there are none, and so this is in a box.
    troubles: Option<Box<Troubles>>,
}

impl Observations {
    /// How many endpoints unanswered requests may pause: half of those that take connections.
    fn most_unanswered(&self) -> usize {
        let unconnected = self.troubles.as_ref().map_or(0, |of| of.unconnected);
        self.endpoints.len().saturating_sub(unconnected) / 2
    }

    /// Ends pauses until unanswered requests pause no more endpoints than they may.
    fn keep_half(&mut self) {
        let most = self.most_unanswered();
        if let Some(troubles) = &mut self.troubles {
            troubles.end_pauses(troubles.unanswered.saturating_sub(most));
        }
    }
}

/// The health of the endpoints of one backend.
#[derive(Debug, Default)]
pub(crate) struct EndpointHealth {
    /// Whether some endpoint is in trouble. Mostly none is, and then no lock is taken.
    troubled: AtomicBool,
    observations: Mutex<Observations>,
}

impl EndpointHealth {
    /// Whether some endpoint failed lately.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// One of `endpoints` that is not skipped at `now` and for which `fits` is true, by `random`. If the
    /// pause of an endpoint is over, it is returned to one caller, and the others skip it until the result is known.
    ///
    /// It looks at a bounded number of endpoints. If all of those are skipped, it chooses one of the endpoints that are not
    /// paused, which are known. `fits` may leave out a few endpoints only.
    pub(crate) fn choose(
        &self,
        endpoints: &Arc<[SocketAddr]>,
        random: u64,
        fits: impl Fn(SocketAddr) -> bool,
        now: Instant,
    ) -> Option<SocketAddr> {
        let mut observations = self.observations.lock();
        let Observations {
            endpoints: newest,
            troubles,
        } = &mut *observations;
        let troubles = troubles.as_mut()?;
        if endpoints.len() > LOOKS {
            let mut random = fastrand::Rng::with_seed(random);
            for _ in 0..LOOKS {
                let endpoint = *endpoints.get(random.usize(..endpoints.len()))?;
                if fits(endpoint) && troubles.offers(endpoint, now) {
                    return Some(endpoint);
                }
            }
            if Arc::ptr_eq(endpoints, newest) {
                let usable = troubles.usable(newest);
                let first = if usable.is_empty() {
                    0
                } else {
                    random.usize(..usable.len())
                };
                let from = usable.get_range(first..)?.iter();
                let before = usable.get_range(..first)?.iter();
                return from.chain(before).copied().find(|of| fits(*of));
            }
            // A request that began with an older version, whose endpoints are others.
        }
        let mut turn = in_turn(endpoints, random);
        turn.find(|of| fits(*of) && troubles.offers(*of, now))
    }

    /// Whether an endpoint is not skipped at `now`. If its pause is over, that is said to one caller.
    pub(crate) fn offers(&self, endpoint: SocketAddr, now: Instant) -> bool {
        let mut observations = self.observations.lock();
        let troubles = observations.troubles.as_mut();
        troubles.is_none_or(|of| of.offers(endpoint, now))
    }

    /// Records that `endpoint` failed at `now`. If this begins or renews a pause, the length of the pause is returned.
    pub(crate) fn failed(
        &self,
        endpoint: SocketAddr,
        failure: EndpointFailure,
        now: Instant,
    ) -> Option<Duration> {
        let mut observations = self.observations.lock();
        let most_unanswered = observations.most_unanswered();
        let Observations {
            endpoints,
            troubles,
        } = &mut *observations;
        let known = troubles.as_ref();
        let is_known = known.is_some_and(|of| of.all.contains_key(&endpoint));
        // A request that began with an older version may fail at an endpoint that is gone.
        if !is_known && endpoints.binary_search(&endpoint).is_err() {
            return None;
        }
        self.troubled.store(true, Ordering::Release);
        let troubles = troubles.get_or_insert_default();
        let is_full = troubles.unanswered >= most_unanswered;
        let trouble = troubles.all.entry(endpoint).or_insert(Trouble {
            unanswered: 0,
            failure,
            pause: Duration::ZERO,
            until: now,
            tried: false,
        });
        if failure == EndpointFailure::Answer {
            trouble.unanswered = trouble.unanswered.saturating_add(1);
        }
        let was = trouble.paused_by();
        trouble.pause = match (trouble.pause, failure) {
            // The youngest and shortest pause would end at once.
            (Duration::ZERO, EndpointFailure::Answer)
                if is_full || trouble.unanswered < UNANSWERED =>
            {
                return None;
            }
            (Duration::ZERO, _) => FIRST_PAUSE,
            (pause, _) if std::mem::take(&mut trouble.tried) => failure.pauses().after(pause),
            // A request that was under way when the pause began.
            _ => return None,
        };
        trouble.failure = failure;
        trouble.until = now + trouble.pause;
        troubles.count(endpoint, was, Some(failure));
        observations.keep_half();
        let pause = observations.troubles.as_ref()?.all.get(&endpoint)?.pause;
        (!pause.is_zero()).then_some(pause)
    }

    /// Records that `endpoint` succeeded. Returns whether it was skipped before. If all endpoints were paused, all
    /// pauses end.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) -> bool {
        if !self.is_troubled() {
            return false;
        }
        let mut observations = self.observations.lock();
        let most = observations.endpoints.len();
        let Some(troubles) = &mut observations.troubles else {
            return false;
        };
        let were_all_paused = troubles.unconnected + troubles.unanswered >= most;
        let was = troubles.remove(endpoint);
        if was.is_some() && were_all_paused {
            observations.troubles = None;
        }
        self.settle(&mut observations);
        was.is_some_and(|trouble| !trouble.pause.is_zero())
    }

    /// Takes over the endpoints of a new version, which are sorted, and forgets what is known of others. One that comes back
    /// later counts as new, because the control plane says that it is ready.
    pub(crate) fn retain(&self, endpoints: &Arc<[SocketAddr]>) {
        let mut observations = self.observations.lock();
        observations.endpoints = Arc::clone(endpoints);
        let Some(troubles) = &mut observations.troubles else {
            return;
        };
        let mut all = std::mem::take(&mut **troubles).all;
        all.retain(|endpoint, _| endpoints.binary_search(endpoint).is_ok());
        for (endpoint, trouble) in &all {
            troubles.count(*endpoint, None, trouble.paused_by());
        }
        troubles.all = all;
        observations.keep_half();
        self.settle(&mut observations);
    }

    fn settle(&self, observations: &mut Observations) {
        observations.troubles = observations.troubles.take().filter(|of| !of.all.is_empty());
        if observations.troubles.is_none() {
            self.troubled.store(false, Ordering::Release);
        }
    }
}

/// All `endpoints`, from one on that the lower half of `random` chooses.
pub(crate) fn in_turn(
    endpoints: &[SocketAddr],
    random: u64,
) -> impl Iterator<Item = SocketAddr> + '_ {
    let first = scale(random & u64::from(u32::MAX), endpoints.len() as u64);
    let first = usize::try_from(first).unwrap_or_default();
    let (before, from) = endpoints.split_at_checked(first).unwrap_or_default();
    from.iter().chain(before).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> [SocketAddr; 3] {
        [1, 2, 3].map(|n| ([10, 0, 0, n], 443).into())
    }

    fn health() -> EndpointHealth {
        let health = EndpointHealth::default();
        health.retain(&endpoints().into());
        health
    }

    fn chosen(health: &EndpointHealth, now: Instant) -> Option<SocketAddr> {
        endpoints().into_iter().find(|of| health.offers(*of, now))
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

    fn paused(health: &EndpointHealth, endpoints: &[SocketAddr]) -> Vec<SocketAddr> {
        let now = Instant::now();
        let all = endpoints.iter().copied();
        all.filter(|of| !health.offers(*of, now)).collect()
    }

    #[test]
    fn unanswered_requests_pause_at_most_half_of_the_endpoints() {
        for count in 1..=7_u8 {
            let endpoints: Arc<[SocketAddr]> =
                (0..count).map(|n| ([10, 0, 0, n], 443).into()).collect();
            let health = EndpointHealth::default();
            health.retain(&endpoints);
            let now = Instant::now() + Duration::from_hours(1);
            for _ in 0..10 {
                for endpoint in &*endpoints {
                    health.failed(*endpoint, EndpointFailure::Answer, now);
                }
            }
            let most = usize::from(count) / 2;
            assert_eq!(paused(&health, &endpoints), endpoints[..most]);
            // An endpoint that succeeds makes room for another one.
            if let Some(first) = endpoints.first().filter(|_| most > 0) {
                assert!(health.succeeded(*first));
                let last = endpoints[endpoints.len() - 1];
                let pause = health.failed(last, EndpointFailure::Answer, now);
                assert_eq!(pause, Some(FIRST_PAUSE));
            }
        }
    }

    /// Endpoints that are too many for a look at each.
    fn many() -> Arc<[SocketAddr]> {
        let hosts = (0..).take(4 * LOOKS);
        hosts.map(|n| ([10, 0, 1, n], 443).into()).collect()
    }

    /// All endpoints that are chosen.
    fn picks(health: &EndpointHealth, endpoints: &Arc<[SocketAddr]>) -> Vec<SocketAddr> {
        let now = Instant::now();
        let random = (0..200).map(|seed| fastrand::Rng::with_seed(seed).u64(..));
        let choose = |random| health.choose(endpoints, random, |_| true, now);
        let mut all: Vec<_> = random.filter_map(choose).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn health_of_many_endpoints_follows_each_change() {
        let all = many();
        let health = EndpointHealth::default();
        health.retain(&all);
        let now = Instant::now() + Duration::from_hours(1);
        let fail = |of, failure| health.failed(of, failure, now);
        for endpoint in &all[2..] {
            fail(*endpoint, EndpointFailure::Connect);
        }
        assert_eq!(picks(&health, &all), all[..2]);
        assert!(health.succeeded(all[9]));
        assert_eq!(picks(&health, &all), [all[0], all[1], all[9]]);
        fail(all[1], EndpointFailure::Connect);
        assert_eq!(picks(&health, &all), [all[0], all[9]]);
        // Of those that take connections, half may be paused for not answering, until one less takes connections.
        for _ in 0..UNANSWERED {
            fail(all[0], EndpointFailure::Answer);
        }
        assert_eq!(picks(&health, &all), all[9..10]);
        fail(all[9], EndpointFailure::Connect);
        assert_eq!(picks(&health, &all), all[..1]);
        // A request of an older version has other endpoints, and one of a newer version too.
        let older: Arc<[SocketAddr]> = endpoints().iter().chain(&all[1..]).copied().collect();
        assert_eq!(picks(&health, &older), endpoints());
        health.retain(&older);
        assert_eq!(picks(&health, &older), endpoints());
        for endpoint in endpoints() {
            fail(endpoint, EndpointFailure::Connect);
        }
        assert_eq!(picks(&health, &older), []);
        assert!(health.succeeded(all[5]));
        assert!(!health.is_troubled());
    }

    #[test]
    fn of_the_endpoints_that_take_connections_half_stay_in_use() {
        let four: Arc<[SocketAddr]> = (0..4).map(|n| ([10, 0, 0, n], 443).into()).collect();
        let health = EndpointHealth::default();
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
