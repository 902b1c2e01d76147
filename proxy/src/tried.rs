//! Owns the list of endpoints that were tried for one connection or request, and the choice of the next one.
//!
//! Every attempt is decided by the configuration in force when it begins (ADR 20), so the attempts at one request may
//! be those of several configurations. An endpoint that failed in one *way*, such as in plaintext, can serve in
//! another one, such as over TLS. So three rules hold:
//!
//! - An endpoint is not tried twice in the same way.
//! - An endpoint that failed in another way comes after all that were not tried at all.
//! - A configuration has [`ATTEMPTS`] attempts of its own. What failed in another way was not its own attempt.
//!   Otherwise the attempts of one configuration would use up those of the next, and a request could fail by none of
//!   the configurations that it met.

use std::net::SocketAddr;
use std::time::Duration;

use vestibule_model::send_proxy::HeaderVersion;

use crate::backend::{Backend, Protocol, Target};
use crate::upstream::{self, Credentials, TlsIdentity};

/// Most endpoints that are tried for one connection or request with the settings of one configuration.
pub(crate) const ATTEMPTS: usize = 3;

/// Most attempts at one connection or request, however many configurations there were meanwhile.
const ATTEMPTS_IN_ALL: usize = 3 * ATTEMPTS;

/// The protocol, PROXY header and TLS settings of a connection to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ConnectionSettings {
    protocol: Protocol,
    send_proxy: Option<HeaderVersion>,
    tls: Option<TlsIdentity>,
}

impl ConnectionSettings {
    /// `credentials` is `None` if the client's TLS is passed through.
    fn new(target: &Target, credentials: Option<&Credentials>) -> Self {
        Self {
            protocol: target.protocol,
            send_proxy: target.send_proxy,
            tls: credentials.and_then(|shown| upstream::identity(target.tls.as_ref(), shown)),
        }
    }
}

/// The endpoints that were tried, and failed, for one connection or request.
#[derive(Default)]
pub(crate) struct Tried {
    endpoints: Vec<(SocketAddr, ConnectionSettings)>,
    /// An endpoint that is tried again only if there is no other.
    last: Option<SocketAddr>,
}

impl Tried {
    /// Records that `endpoint` was tried with the settings of `target`.
    pub(crate) fn push(
        &mut self,
        endpoint: SocketAddr,
        target: &Target,
        credentials: Option<&Credentials>,
    ) {
        self.endpoints
            .push((endpoint, ConnectionSettings::new(target, credentials)));
    }

    /// Forgets all endpoints, because the request is sent once more. `last` is the endpoint that had it.
    pub(crate) fn start_over(&mut self, last: Option<SocketAddr>) {
        self.endpoints.clear();
        self.last = last;
    }

    /// How many attempts there were.
    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// The same as [`Self::next`], but the first attempt goes to `preferred`, if the backend has it and it did not fail
    /// lately. If all endpoints failed lately, it goes to `preferred` as well.
    pub(crate) fn next_or_preferred(
        &self,
        preferred: Option<SocketAddr>,
        backend: &Backend,
        random: u64,
        credentials: Option<&Credentials>,
    ) -> Option<SocketAddr> {
        let preferred = preferred.filter(|preferred| {
            self.endpoints.is_empty() && self.last != Some(*preferred) && backend.has(*preferred)
        });
        let offered = preferred.filter(|preferred| backend.offers(*preferred));
        offered.or_else(|| {
            let next = self.next(backend, random, credentials)?;
            let preferred = preferred.filter(|_| !backend.offers(next));
            Some(preferred.unwrap_or(next))
        })
    }

    /// The endpoint of `backend` to try next, by the lower half of `random`. It is `None` if there is no other, or if
    /// there were enough attempts.
    pub(crate) fn next(
        &self,
        backend: &Backend,
        random: u64,
        credentials: Option<&Credentials>,
    ) -> Option<SocketAddr> {
        if self.endpoints.is_empty() {
            let other = |endpoint| Some(endpoint) != self.last;
            let others = self.last.and_then(|_| backend.endpoint(random, other));
            return others.or_else(|| backend.endpoint(random, |_| true));
        }
        let settings = ConnectionSettings::new(&backend.target, credentials);
        if self.len() >= ATTEMPTS_IN_ALL || self.own(&backend.target, settings) >= ATTEMPTS {
            return None;
        }
        backend
            .endpoint(random, |endpoint| {
                !self.endpoints.iter().any(|(of, _)| *of == endpoint)
            })
            .or_else(|| {
                backend.endpoint(random, |endpoint| {
                    !self.endpoints.contains(&(endpoint, settings))
                })
            })
    }

    /// How much of the time that is `left` the next endpoint of `target` may take. An endpoint that has vanished must
    /// leave time for the next ones.
    pub(crate) fn share(
        &self,
        left: Duration,
        target: &Target,
        credentials: Option<&Credentials>,
    ) -> Duration {
        let all = target.endpoints.len().min(ATTEMPTS);
        let own = self.own(target, ConnectionSettings::new(target, credentials));
        let parts = all.saturating_sub(own).max(1);
        left / u32::try_from(parts).unwrap_or(u32::MAX)
    }

    /// How many endpoints of `target` were tried with these settings.
    fn own(&self, target: &Target, settings: ConnectionSettings) -> usize {
        let is_own = |(endpoint, of): &&(SocketAddr, ConnectionSettings)| {
            *of == settings && target.has(*endpoint)
        };
        self.endpoints.iter().filter(is_own).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot_map::SlotAllocator;

    fn endpoint(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 80).into()
    }

    fn backend(protocol: Protocol, endpoints: &[u8]) -> Backend {
        let slot = SlotAllocator::default().allocate();
        Backend::new("team-a/web:80".into(), slot).with(Target {
            endpoints: endpoints.iter().copied().map(endpoint).collect(),
            protocol,
            ..Target::default()
        })
    }

    /// Tries what is next until nothing is.
    fn exhaust(tried: &mut Tried, backend: &Backend) -> Vec<SocketAddr> {
        let mut all = Vec::new();
        while let Some(next) = tried.next(backend, 0, None) {
            tried.push(next, &backend.target, None);
            all.push(next);
        }
        all
    }

    #[test]
    fn each_endpoint_is_tried_once_and_three_in_all() {
        let mut tried = Tried::default();
        let two = backend(Protocol::Any, &[1, 2]);
        assert_eq!(exhaust(&mut tried, &two), [endpoint(1), endpoint(2)]);
        // Another version with the same endpoints has nothing to add, and one with a third endpoint has that one.
        let more = backend(Protocol::Any, &[1, 2, 3, 4]);
        assert_eq!(exhaust(&mut tried, &more), [endpoint(3)]);
    }

    #[test]
    fn an_endpoint_is_tried_in_another_way_after_all_others() {
        let mut tried = Tried::default();
        tried.push(endpoint(1), &backend(Protocol::Any, &[1]).target, None);
        let other = backend(Protocol::H2c, &[1, 2, 3]);
        let all = [endpoint(2), endpoint(3), endpoint(1)];
        assert_eq!(exhaust(&mut tried, &other), all);
    }

    #[test]
    fn a_request_that_is_made_once_more_goes_elsewhere_if_it_can() {
        let mut tried = Tried::default();
        let two = backend(Protocol::Any, &[1, 2]);
        for random in [0, u64::from(u32::MAX)] {
            tried.start_over(Some(endpoint(2)));
            assert_eq!(tried.next(&two, random, None), Some(endpoint(1)));
            tried.push(endpoint(1), &two.target, None);
            // As if it had not been tried before.
            assert_eq!(tried.next(&two, random, None), Some(endpoint(2)));
        }
        let one = backend(Protocol::Any, &[1]);
        tried.start_over(Some(endpoint(1)));
        assert_eq!(exhaust(&mut tried, &one), [endpoint(1)]);
    }

    #[test]
    fn the_first_attempt_alone_is_where_the_session_is() {
        let mut tried = Tried::default();
        let three = backend(Protocol::Any, &[1, 2, 3]);
        let next = |tried: &Tried, preferred| {
            tried.next_or_preferred(Some(endpoint(preferred)), &three, 0, None)
        };
        for n in 1..4 {
            assert_eq!(next(&tried, n), Some(endpoint(n)));
        }
        // One that is gone, and one that failed lately.
        assert_eq!(next(&tried, 9), Some(endpoint(1)));
        three.failed(endpoint(3), crate::health::EndpointFailure::Connect);
        assert_eq!(next(&tried, 3), Some(endpoint(1)));
        tried.push(endpoint(2), &three.target, None);
        assert_eq!(next(&tried, 2), Some(endpoint(1)));
        tried.start_over(Some(endpoint(2)));
        assert_eq!(next(&tried, 2), Some(endpoint(1)));
        assert_eq!(next(&tried, 1), Some(endpoint(1)));
        // If all failed lately, it is rather that one than another.
        let tried = Tried::default();
        for host in [1, 2] {
            three.failed(endpoint(host), crate::health::EndpointFailure::Connect);
        }
        for host in [1, 2, 3] {
            assert_eq!(next(&tried, host), Some(endpoint(host)));
        }
    }

    #[test]
    fn attempts_of_other_configurations_leave_the_present_one_its_own() {
        let mut tried = Tried::default();
        let first = backend(Protocol::Any, &[1, 2, 3, 4]);
        assert_eq!(exhaust(&mut tried, &first).len(), ATTEMPTS);
        let second = backend(Protocol::H2c, &[1, 2, 3, 4]);
        assert_eq!(exhaust(&mut tried, &second).len(), ATTEMPTS);
        let third = backend(Protocol::WebSocket, &[1, 2, 3, 4]);
        assert_eq!(exhaust(&mut tried, &third).len(), ATTEMPTS);
        // However fast configurations follow one another, the attempts have an end.
        let fresh = backend(Protocol::Any, &[9]);
        assert_eq!(exhaust(&mut tried, &fresh), []);
    }

    #[test]
    fn each_attempt_leaves_time_for_those_to_come() {
        let (mut tried, second) = (Tried::default(), Duration::from_secs(1));
        let all = backend(Protocol::Any, &[1, 2, 3, 4]);
        let parts: Vec<Duration> = (1..=4)
            .map(|n| {
                let share = tried.share(second, &all.target, None);
                tried.push(endpoint(n), &all.target, None);
                share
            })
            .collect();
        assert_eq!(parts, [second / 3, second / 2, second, second]);
    }
}
