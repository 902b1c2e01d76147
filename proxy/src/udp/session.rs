//! Owns the life of a session: what its endpoint sends, how long it may be silent, and its log line when it ends.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;

use super::SessionEnd;
use super::run::{Run, Sent};
use super::sender::{is_busy, is_refused, is_too_large};
use super::sessions::SessionKey;
use super::socket::{BATCH, ListenSocket, SessionSocket};
use crate::accesslog::TARGET;
use crate::backend::Backend;
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::gate::{self, TransferTurn, line};
use crate::health::EndpointFailure;
use crate::lifetime::{Alarm, in_ticks, ticks};
use crate::listener::Listener;
use crate::plane::DataPlane;
use crate::table::{Generation, Route, Snapshot};
use crate::udp_places::{DropReason, Permit};

/// After this many datagrams of an endpoint, the kernel is asked to hand over runs.
const RUNS_FROM: u64 = 32;

/// Most runs that are read at once.
const RUNS_AT_ONCE: usize = 4;

/// Number of ticks within which the host of an endpoint reports that nobody listens there.
const QUIET: u32 = 1;

/// The result of choosing a backend for a session.
pub(super) struct Chosen {
    pub(super) listener: Arc<Listener>,
    pub(super) route: Arc<Route>,
    pub(super) backend: Arc<Backend>,
    pub(super) endpoint: SocketAddr,
}

/// A session. Dropping the last reference counts its end and writes its log line, so no way of ending can miss that.
pub(super) struct Session {
    plane: Arc<DataPlane>,
    listen_socket: Arc<ListenSocket>,
    key: SessionKey,
    bind: BindKey,
    chosen: Chosen,
    socket: SessionSocket,
    permit: Mutex<Option<Permit>>,
    started: Instant,
    /// The tick of the first datagram.
    begun: u32,
    /// The tick of the last datagram from either side.
    last: AtomicU32,
    /// The tick at which the session ends in any case, if there is one.
    over: Option<u32>,
    from_client: Direction,
    from_backend: Direction,
    expects_runs: AtomicBool,
    end: Mutex<SessionEnd>,
}

/// The counts of what one side sent. One thread writes them, and others may read them.
#[derive(Debug, Default)]
struct Direction {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl Direction {
    fn add(&self, sent: &Sent, dropped: u64) {
        self.datagrams.fetch_add(sent.datagrams, Ordering::Relaxed);
        self.bytes.fetch_add(sent.bytes, Ordering::Relaxed);
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Session {
    pub(super) fn new(
        plane: &Arc<DataPlane>,
        listen_socket: &Arc<ListenSocket>,
        (key, bind): (SessionKey, BindKey),
        chosen: Chosen,
        socket: SessionSocket,
        permit: Permit,
    ) -> Self {
        plane.enter();
        plane.metrics.udp_session_begun();
        chosen.listener.usage.connections.inc();
        chosen.listener.usage.active.inc();
        let bounds = plane.bounds(&chosen.listener);
        let over = plane.age(&bounds).map(|age| plane.end_of(age));
        Self {
            plane: Arc::clone(plane),
            listen_socket: Arc::clone(listen_socket),
            key,
            bind,
            chosen,
            socket,
            permit: Mutex::new(Some(permit)),
            started: Instant::now(),
            begun: ticks(),
            last: AtomicU32::new(ticks()),
            over,
            from_client: Direction::default(),
            from_backend: Direction::default(),
            expects_runs: AtomicBool::new(false),
            end: Mutex::new(SessionEnd::Drained),
        }
    }

    /// Whether `snapshot` lets the session go on: its port still belongs to the same namespace, the route there still
    /// names the backend, and the backend has the endpoint. It is not enough that the backend is there, because other
    /// routes may lead to it, and the right to refer to it may be withdrawn. The route's tenant is compared too, because a
    /// listener of the Gateway itself stays the Gateway's while its port passes from one tenant's route to another's.
    pub(super) fn stands(&self, snapshot: &Snapshot) -> bool {
        let (listener, slot) = (&self.chosen.listener, self.chosen.backend.slot());
        // If the port belongs to nobody, the end of the listener ends its sessions.
        let leads_elsewhere = snapshot.select_by_port(&self.bind).is_ok_and(|present| {
            let names_backend = |route: &Route| {
                let mut backends = route.backends().iter();
                route.tenant == self.chosen.route.tenant
                    && backends.any(|of| of.backend == Some(slot))
            };
            present.listener.tenant != listener.tenant
                || present.listener.gateway != listener.gateway
                || !present.route.as_deref().is_some_and(names_backend)
        });
        let present = snapshot.backend(slot);
        !leads_elsewhere
            && present.is_some_and(|present| {
                present.is_version_of(&self.chosen.backend) && present.has(self.chosen.endpoint)
            })
    }

    /// Forwards what the client sent. Fails if the endpoint refused earlier datagrams.
    pub(super) fn forward(&self, run: &Run<'_>) -> Result<(), SessionEnd> {
        let now = ticks();
        self.last.store(now, Ordering::Relaxed);
        let sent = self.socket.send(&self.listen_socket, run);
        if sent.error.as_ref().is_some_and(is_refused) {
            self.refused();
            return Err(SessionEnd::BackendRefused);
        }
        let dropped = self.dropped(run, &sent, DropReason::BackendBusy);
        self.plane.metrics.udp_upstream.inc_by(sent.datagrams);
        self.from_client.add(&sent, dropped);
        if now > self.begun.saturating_add(QUIET) {
            // Many protocols have no answers. An endpoint that refuses would have done so by now.
            self.lives();
        }
        Ok(())
    }

    /// Sends what the endpoint sent to the client.
    fn answer(&self, run: &Run<'_>) {
        let sent = self
            .listen_socket
            .send(self.key.client, self.key.local, run);
        let dropped = self.dropped(run, &sent, DropReason::ClientBusy);
        self.plane.metrics.udp_downstream.inc_by(sent.datagrams);
        self.from_backend.add(&sent, dropped);
    }

    /// Counts the datagrams of a run that were not sent, and returns their number.
    fn dropped(&self, run: &Run<'_>, sent: &Sent, busy: DropReason) -> u64 {
        let Some(error) = &sent.error else { return 0 };
        let reason = if is_busy(error) {
            busy
        } else if is_too_large(error) {
            DropReason::TooLarge
        } else {
            tracing::debug!(bind = %self.bind, %error, "a datagram was not sent");
            DropReason::SendFailed
        };
        let dropped = run.datagrams().saturating_sub(sent.datagrams);
        self.plane.metrics.udp_dropped(reason.reason(), dropped);
        dropped
    }

    /// Reports the endpoint as failed, because its host says that nobody listens there.
    fn refused(&self) {
        let Chosen {
            backend, endpoint, ..
        } = &self.chosen;
        let reason = SessionEnd::BackendRefused.reason();
        self.plane.metrics.connect_failed(reason);
        self.plane
            .endpoint_failed(backend, *endpoint, EndpointFailure::Connect, reason);
    }

    /// Records why the session ends, and frees its place for another session.
    pub(super) fn end(&self, end: SessionEnd) {
        *self.end.lock() = end;
        drop(self.permit.lock().take());
    }

    /// Forwards what the endpoint sent, as much as is read at once. Its bytes are owed to the gate.
    fn poll_backend(&self, cx: &mut Context<'_>, turn: &mut TransferTurn) -> Poll<SessionEnd> {
        // A piece may be a run of 64 datagrams.
        let most = if self.expects_runs.load(Ordering::Relaxed) {
            RUNS_AT_ONCE
        } else {
            BATCH
        };
        let (mut datagrams, mut bytes) = (0, 0);
        let received = self
            .socket
            .poll_receive(&self.listen_socket, cx, most, |run| {
                datagrams += run.datagrams();
                bytes += run.bytes.len() as u64;
                self.answer(&run);
            });
        turn.owe_datagrams(datagrams, bytes);
        match received {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {
                self.last.store(ticks(), Ordering::Relaxed);
                self.heard();
            }
            Poll::Ready(Err(error)) if is_refused(&error) => {
                self.refused();
                return Poll::Ready(SessionEnd::BackendRefused);
            }
            // The error concerns one datagram. For example, it is too long for some hop.
            Poll::Ready(Err(error)) => {
                tracing::debug!(bind = %self.bind, %error, "a session's socket failed");
            }
        }
        // There may be more datagrams, but other tasks run first.
        gate::yield_now(cx);
        Poll::Pending
    }

    /// Reports that the endpoint takes datagrams, so that new sessions no longer avoid it.
    fn lives(&self) {
        let Chosen {
            backend, endpoint, ..
        } = &self.chosen;
        self.plane.endpoint_succeeded(backend, *endpoint);
    }

    fn heard(&self) {
        self.lives();
        if self.from_backend.datagrams() >= RUNS_FROM
            && !self.expects_runs.swap(true, Ordering::Relaxed)
        {
            self.socket.expect_runs();
        }
    }

    fn write(&self) {
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        let Chosen {
            listener,
            route,
            backend,
            endpoint,
        } = &self.chosen;
        let Some(_turn) = self.plane.logs(Some(&route.account)) else {
            return;
        };
        let client = self.key.client;
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let dropped = &[&self.from_client, &self.from_backend]
            .map(|side| side.dropped.load(Ordering::Relaxed));
        let dropped: u64 = dropped.iter().sum();
        tracing::info!(
            target: TARGET,
            client = %client,
            bind = %self.bind,
            protocol = "udp",
            tenant = &*route.tenant,
            gateway = &*listener.gateway,
            listener = &*listener.key,
            route = &*route.key,
            route_kind = route.kind.route_kind(),
            backend = &*backend.key,
            endpoint = %endpoint,
            datagrams_in = self.from_client.datagrams(),
            datagrams_out = self.from_backend.datagrams(),
            datagrams_dropped = (dropped > 0).then_some(dropped),
            bytes_in = self.from_client.bytes(),
            bytes_out = self.from_backend.bytes(),
            duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            reason = self.end.lock().reason(),
        );
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.end.lock() = SessionEnd::Internal;
        }
        let (bytes_in, bytes_out) = (self.from_client.bytes(), self.from_backend.bytes());
        let metrics = &self.plane.metrics;
        metrics.udp_session_ended(self.end.lock().reason());
        metrics.bytes_upstream.inc_by(bytes_in);
        metrics.bytes_downstream.inc_by(bytes_out);
        let usage = &self.chosen.listener.usage;
        usage.active.dec();
        usage.bytes_in.inc_by(bytes_in);
        usage.bytes_out.inc_by(bytes_out);
        if self.plane.limits.access_log {
            self.write();
        }
        // The place is freed before `leave`, so that whoever waits for the end of sessions finds their places free.
        drop(self.permit.lock().take());
        self.plane.leave();
    }
}

/// Sends what the endpoint sends until the session is over. Only the endpoint, the clock and changes that concern its
/// tenant wake it.
pub(super) struct Carrying {
    session: Arc<Session>,
    alarm: Alarm,
    /// The place in the line of the namespace. One endpoint can fill thousands of sessions at one time.
    turn: TransferTurn,
    /// Number of ticks without a datagram after which the session ends.
    idle: u32,
    /// The last configuration in which the endpoint was looked up.
    looked: Generation,
}

impl Carrying {
    pub(super) fn new(session: Arc<Session>, looked: Generation) -> Self {
        let idle = in_ticks(session.plane.limits.udp.idle);
        Self {
            turn: TransferTurn::new(line(&session.chosen.route.account)),
            session,
            alarm: Alarm::default(),
            idle,
            looked,
        }
    }

    /// Whether the configuration in force lets the session go on. The listener checks this only when the client sends,
    /// so without this check an endpoint could go on sending to a silent client for ever.
    fn stands(&mut self) -> bool {
        let snapshot = self.session.plane.snapshot.load();
        let generation = snapshot.generation();
        if self.looked == generation {
            return true;
        }
        self.looked = generation;
        self.session.stands(&snapshot)
    }
}

impl Future for Carrying {
    type Output = SessionEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        let this = self.get_mut();
        if !this.stands() {
            return Poll::Ready(SessionEnd::EndpointGone);
        }
        ready!(this.turn.poll_pay(cx, || None));
        if let Poll::Ready(end) = this.session.poll_backend(cx, &mut this.turn) {
            return Poll::Ready(end);
        }
        let now = ticks();
        if this.session.over.is_some_and(|over| over <= now) {
            return Poll::Ready(SessionEnd::MaxConnectionAge);
        }
        let last = this.session.last.load(Ordering::Relaxed);
        let idle = last.saturating_add(this.idle);
        if idle <= now {
            return Poll::Ready(SessionEnd::IdleTimeout);
        }
        let next = this.session.over.map_or(idle, |over| over.min(idle));
        let tenant = TenantKey::of(&this.session.chosen.route.account);
        this.alarm.set_for(tenant, cx, next);
        Poll::Pending
    }
}
