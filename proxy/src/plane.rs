//! Owns the state that all connections of a proxy share: the configuration in force, counters and limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use vestibule_serve::log_queue::Turn;
use vestibule_serve::places::{self, Place, Source};

use crate::backend::Backend;
use crate::bounds::{Bounds, spread};
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::health::EndpointFailure;
use crate::itself::OwnSockets;
use crate::lifetime::{Lifetime, in_ticks, ticks};
use crate::limits::ProxyLimits;
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::overload::{Overload, OverloadLevel};
use crate::quota::{QuotaLimits, TenantQuota};
use crate::rate::{self, SourceRates};
use crate::table::Snapshot;
use crate::udp_places::{Displaced, DropReason, Permit, SessionSource};
use crate::weight::scale;

/// How often a failed accept is logged. While file descriptors are short, accepting fails many times a second.
const WARN_EVERY: Duration = Duration::from_secs(1);
/// While this proxy is overloaded, only one of this many parts of the places for hellos and UDP sessions is available.
const SCARCE_HELLOS: usize = 8;

/// The state that all workers share.
#[derive(Debug)]
pub struct DataPlane {
    /// The configuration in force. A connection loads it once.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The limits of this process.
    pub limits: ProxyLimits,
    /// Sockets to which no connection to a backend may lead.
    pub(crate) own_sockets: OwnSockets,
    /// Sockets from which no UDP session may come, and to which none may lead.
    pub(crate) own_datagram_sockets: OwnSockets,
    active: AtomicUsize,
    hellos: places::Places,
    rates: SourceRates,
    udp_sessions: places::Places<SessionSource>,
    /// Rates of UDP sources. They are separate from those of connections, because anybody can forge the source of a
    /// datagram.
    udp_rates: SourceRates,
    overload: Overload,
    /// Whether this proxy is about to end.
    leaving: AtomicBool,
    /// Cancelled when this proxy stops accepting.
    closing: CancellationToken,
    /// The same as a flag, for connections. They ask each time that they are polled, and the token would cost them two
    /// locks that all workers share.
    is_closing: AtomicBool,
    /// Whether this proxy also closes connections without a request.
    is_closing_idle: AtomicBool,
    /// Notified when something changes for which connections ask each time that they are polled.
    changes: watch::Sender<()>,
    /// Notified when the last connection ends.
    idle: Notify,
    accept_errors: Seldom,
}

/// Bounds how often something that may happen all the time is logged.
#[derive(Debug, Default)]
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }
}

impl DataPlane {
    /// The shared state of a data plane that has no workers yet.
    #[must_use]
    pub fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        metrics: Arc<Metrics>,
        limits: ProxyLimits,
    ) -> Self {
        Self {
            snapshot,
            metrics,
            own_sockets: OwnSockets::default(),
            own_datagram_sockets: OwnSockets::default(),
            active: AtomicUsize::new(0),
            hellos: places::Places::new(limits.max_hellos),
            rates: SourceRates::new(),
            udp_sessions: places::Places::new(limits.udp.max_sessions),
            udp_rates: SourceRates::new(),
            overload: Overload::default(),
            limits,
            leaving: AtomicBool::new(false),
            closing: CancellationToken::new(),
            is_closing: AtomicBool::new(false),
            is_closing_idle: AtomicBool::new(false),
            changes: watch::Sender::default(),
            idle: Notify::new(),
            accept_errors: Seldom::default(),
        }
    }

    /// Connections open now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Serves as before, but tells clients, where the protocol allows that, to send their next request elsewhere.
    pub fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Stops accepting.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.closing.cancel();
        self.rouse();
    }

    /// Cancelled when this proxy stops accepting.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Whether this proxy has stopped accepting. Then connections tell their clients to go elsewhere, if they can.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Ends HTTP/1.1 connections that have no request under way. A client may have sent one at this very moment, which
    /// then gets no response. So call this only when clients had time to learn of [`Self::begin_leaving`].
    pub fn close_idle(&self) {
        self.is_closing_idle.store(true, Ordering::Release);
        self.rouse();
    }

    /// Whether [`Self::close_idle`] was called.
    pub(crate) fn is_closing_idle(&self) -> bool {
        self.is_closing_idle.load(Ordering::Acquire)
    }

    /// Lets all connections be polled again.
    pub(crate) fn rouse(&self) {
        self.changes.send_replace(());
    }

    /// A receiver that [`Self::rouse`] notifies.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns when no connection is open.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.active() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Whether it is time to log again that accepting fails.
    pub(crate) fn may_warn(&self, now: Instant) -> bool {
        self.accept_errors.is_due(now)
    }

    pub(crate) fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self) {
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Records that an endpoint of a backend failed. `reason` is one of a fixed set of words.
    pub(crate) fn endpoint_failed(
        &self,
        backend: &Backend,
        endpoint: SocketAddr,
        failure: EndpointFailure,
        reason: &'static str,
    ) {
        if let Some(pause) = backend.failed(endpoint, failure) {
            self.metrics.passed_over(reason);
            let Some(_turn) = self.logs_about(backend) else {
                return;
            };
            let (backend, seconds) = (&*backend.key, pause.as_secs());
            tracing::info!(backend, %endpoint, reason, seconds, "an endpoint is passed over");
        }
    }

    /// Records that an endpoint of a backend succeeded.
    pub(crate) fn endpoint_succeeded(&self, backend: &Backend, endpoint: SocketAddr) {
        if backend.succeeded(endpoint) {
            self.metrics.endpoints_taken_back.inc();
            let Some(_turn) = self.logs_about(backend) else {
                return;
            };
            tracing::info!(backend = &*backend.key, %endpoint, "an endpoint is used again");
        }
    }

    /// Random bits for the choice of a backend. They are fast to make, and can be predicted.
    #[expect(clippy::unused_self, reason = "tests may come to want a seed here")]
    pub(crate) fn random(&self) -> u64 {
        fastrand::u64(..)
    }

    /// The limits of a listener: those of its Gateway and, where it sets none, those of the release.
    pub(crate) fn bounds(&self, listener: &Listener) -> Bounds {
        match listener.overrides() {
            Some(overrides) => self.limits.bounds.with(overrides),
            None => self.limits.bounds,
        }
    }

    /// The age at which a connection ends, if these limits have one.
    pub(crate) fn age(&self, bounds: &Bounds) -> Option<Duration> {
        bounds.connection_age.map(|age| spread(age, self.random()))
    }

    /// The time limits of a tunnel that begins now.
    pub(crate) fn lifetime(&self, bounds: &Bounds, tenant: TenantKey) -> Lifetime {
        Lifetime {
            idle: bounds.tunnel_idle.map(in_ticks),
            end: self.age(bounds).map(|age| self.end_of(age)),
            tenant,
        }
    }

    /// The tick at which a connection that begins now must have ended, if `age` is its maximum age.
    pub(crate) fn end_of(&self, age: Duration) -> u32 {
        let all = age.saturating_add(self.limits.age_grace);
        ticks().saturating_add(in_ticks(all))
    }

    /// The number of connections that tenants share, and how they share them.
    pub(crate) fn quota_limits(&self) -> QuotaLimits {
        QuotaLimits {
            all: self.limits.max_connections,
            guaranteed_percent: self.limits.guaranteed_percent,
            scarce: self.overload.step() >= OverloadLevel::Shares,
        }
    }

    /// The overload level.
    pub(crate) fn overload(&self) -> &Overload {
        &self.overload
    }

    /// The turn to log a line about a connection or request of this tenant, if it is logged at all. `None` is for one
    /// that belongs to no tenant.
    pub(crate) fn logs(&self, account: Option<&TenantQuota>) -> Option<Turn> {
        let percent = self.limits.access_log_percent;
        let sampled = percent >= 100 || scale(self.random() >> 32, 100) < percent.into();
        sampled.then(|| self.line_of(account)).flatten()
    }

    /// The turn to log a line about a backend, in the name of its namespace.
    fn logs_about(&self, backend: &Backend) -> Option<Turn> {
        if !tracing::enabled!(tracing::Level::INFO) {
            return None;
        }
        // A namespace without routes and listeners has no quota.
        let account = self.metrics.accounts().find(backend.namespace());
        self.line_of(account.as_deref())
    }

    fn line_of(&self, account: Option<&TenantQuota>) -> Option<Turn> {
        let counts = account.map_or(self.metrics.accounts().nobody(), TenantQuota::counts);
        counts.line(self.limits.access_log_lines_per_second, rate::now())
    }

    /// A place among the connections whose tenant is not known yet, or that have not finished their handshake.
    pub(crate) fn permit(self: &Arc<Self>, peer: IpAddr) -> Result<HelloPermit, CloseReason> {
        let source = Source::of_client(peer);
        self.may_come(source)?;
        let taken = self.hellos.take_of_part(source, 1, self.hello_parts());
        Ok(self.hello_permit(taken.ok_or(CloseReason::Limit)?))
    }

    /// The same for a connection of a load balancer whose client is not known yet.
    pub(crate) fn unnamed_permit(self: &Arc<Self>) -> Result<HelloPermit, CloseReason> {
        let taken = self.hellos.take_unnamed(self.hello_parts());
        Ok(self.hello_permit(taken.ok_or(CloseReason::Limit)?))
    }

    fn hello_permit(self: &Arc<Self>, place: Place) -> HelloPermit {
        HelloPermit {
            plane: Arc::clone(self),
            place,
        }
    }

    /// Checks whether a source may open one more connection in this second.
    fn may_come(&self, source: Source) -> Result<(), CloseReason> {
        let per_second = self.limits.source_connections_per_second;
        let may = self.rates.take(source, per_second, rate::now());
        may.then_some(()).ok_or(CloseReason::SourceRate)
    }

    /// Checks whether a source may begin one more UDP session in this second.
    pub(crate) fn may_begin_session(&self, source: SessionSource) -> Result<(), DropReason> {
        let per_second = self.limits.udp.source_sessions_per_second;
        let may = self.udp_rates.take(source, per_second, rate::now());
        may.then_some(()).ok_or(DropReason::SourceRate)
    }

    /// A place among the UDP sessions of all, and of a tenant.
    pub(crate) fn session_permit(
        &self,
        source: SessionSource,
        account: &Arc<TenantQuota>,
    ) -> Result<Permit, DropReason> {
        let place = self
            .udp_sessions
            .take_of_part(source, 1, self.hello_parts());
        let place = place.ok_or(DropReason::Limit)?;
        let limits = QuotaLimits {
            all: self.limits.udp.max_sessions,
            ..self.quota_limits()
        };
        let guard = account.take_session(limits);
        let guard = guard.ok_or(DropReason::TenantLimit)?;
        Ok(Permit::new(place, guard))
    }

    /// Which UDP sessions may be ended in favour of a new session of a source that was refused. Only those count whose
    /// place the new session can then get.
    pub(crate) fn displacement(&self, source: SessionSource) -> Option<Displaced> {
        if self.hello_parts() > 1 {
            // Under overload there should be fewer sessions, so none is replaced by another one.
            return None;
        }
        let (held, free) = self.udp_sessions.held_and_free(source);
        if held == 0 {
            Some(Displaced::Anybodys)
        } else {
            // If the source gives back a place of its own, it can get that place again.
            (held <= free + 1).then_some(Displaced::Own)
        }
    }

    /// Into how many parts the places for hellos and UDP sessions are divided, of which one may be in use.
    fn hello_parts(&self) -> usize {
        let scarce = self.overload.step() >= OverloadLevel::Shares;
        if scarce { SCARCE_HELLOS } else { 1 }
    }
}

/// Held by a connection until its hello and handshake are done, and it is known which tenant it is for.
pub(crate) struct HelloPermit {
    plane: Arc<DataPlane>,
    place: Place,
}

impl HelloPermit {
    /// Counts the place for the source `address` from here on, if no source is known yet.
    ///
    /// # Errors
    /// If the source has as many connections as it may have.
    pub(crate) fn name(&mut self, address: IpAddr) -> Result<(), CloseReason> {
        if self.place.is_named() {
            return Ok(());
        }
        let source = Source::of_client(address);
        self.plane.may_come(source)?;
        let named = self.place.name(source, self.plane.hello_parts());
        named.then_some(()).ok_or(CloseReason::Limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_that_goes_on_is_logged_once_a_second() {
        let seldom = Seldom::default();
        let start = Instant::now();
        let every = Duration::from_millis(10);
        let logged = (0..1000).filter(|step| seldom.is_due(start + every * *step));
        assert_eq!(logged.count(), 10);
    }

    #[test]
    fn the_rate_of_a_source_is_the_clients_and_not_the_balancers() {
        let limits = ProxyLimits {
            source_connections_per_second: 5,
            ..ProxyLimits::default()
        };
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let named = |address: [u8; 4]| {
            let mut permit = plane.unnamed_permit().unwrap();
            permit.name(address.into())
        };
        // They would have to take minutes for all to be let in.
        let refused = (0..1000).filter_map(|_| named([192, 0, 2, 1]).err());
        let refused: Vec<_> = refused.collect();
        assert!(!refused.is_empty());
        assert!(refused.iter().all(|why| *why == CloseReason::SourceRate));
        // Others of the same balancer come in. One may fall on the bucket of another, but not all.
        let others = [[192, 0, 2, 2], [192, 0, 2, 3]];
        assert!(others.into_iter().any(|other| named(other).is_ok()));
    }
}
