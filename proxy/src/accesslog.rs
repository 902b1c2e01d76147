//! Owns the record of one connection. When the connection ends, the record becomes one log line and counts in metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use vestibule_model::hostname::Hostname;

use crate::backend::Backend;
use crate::basis::Basis;
use crate::bind::BindKey;
use crate::bounds::Bounds;
use crate::challenge::Challenge;
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::gate;
use crate::lifetime::Lifetime;
use crate::listener::Listener;
use crate::plane::DataPlane;
use crate::quota::{QuotaGuard, TenantQuota};
use crate::relay::Moved;
use crate::terminate::NegotiatedTls;

/// The target of the log lines, for filters. There is one line for each connection at its end or, where this proxy
/// speaks HTTP, one for each request.
pub(crate) const TARGET: &str = "access";

/// The record of one client connection. Its `Drop` counts the connection and writes its log line. So every end of a
/// connection is recorded, cancellation included.
pub(crate) struct ConnectionRecord {
    /// The listener and route by which it was selected.
    pub(crate) basis: Basis,
    started: Instant,
    /// The client's address: that of the peer, or the one that a trusted peer named.
    client: SocketAddr,
    /// The place among the connections of a tenant, once it has one.
    quota_guard: Option<QuotaGuard>,
    pub(crate) backend: Option<(SocketAddr, Arc<Backend>)>,
    /// How many endpoints did not accept the connection before the present one did.
    pub(crate) connect_retries: u8,
    pub(crate) moved: Moved,
    /// In a box, because most passthrough connections have none of it.
    beside: Option<Box<Beside>>,
    /// Number of HTTP requests on it. Each of them has a log line of its own.
    pub(crate) requests: u32,
    /// Set when the connection ends. If it is not set, the connection was drained, or its task panicked.
    pub(crate) reason: CloseReason,
}

/// Facts that only some connections have.
#[derive(Default)]
struct Beside {
    /// The address of the peer, if the peer is not the client.
    peer: Option<SocketAddr>,
    /// The parameters that the TLS handshake agreed on, if this proxy terminates TLS.
    negotiated: Option<NegotiatedTls>,
    /// The challenge, if the client is a CA that checks a hostname. Then no listener is selected.
    challenge: Option<Arc<Challenge>>,
}

impl ConnectionRecord {
    /// Counts a new connection as accepted and active.
    pub(crate) fn new(plane: Arc<DataPlane>, peer: SocketAddr, bind: BindKey) -> Self {
        plane.metrics.connections_accepted.inc();
        plane.metrics.connections_active.inc();
        plane.enter();
        Self {
            basis: Basis::new(plane, bind),
            started: Instant::now(),
            client: peer,
            quota_guard: None,
            backend: None,
            connect_retries: 0,
            moved: Moved::default(),
            beside: None,
            requests: 0,
            reason: CloseReason::Drained,
        }
    }

    pub(crate) fn plane(&self) -> &Arc<DataPlane> {
        &self.basis.plane
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn bind(&self) -> &BindKey {
        &self.basis.bind
    }

    /// The client's address, as far as the connection tells it. (A request may name another one in a header.)
    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    /// The address of the peer, if the peer is not the client.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.beside.as_ref()?.peer
    }

    /// Takes the client's address from the PROXY header of a trusted peer.
    pub(crate) fn introduce(&mut self, client: SocketAddr) {
        let peer = std::mem::replace(&mut self.client, client);
        self.beside.get_or_insert_default().peer = Some(peer);
    }

    /// Takes the listener that was selected for the connection.
    pub(crate) fn select(&mut self, listener: Arc<Listener>) {
        listener.usage.connections.inc();
        listener.usage.active.inc();
        self.basis.listener = Some(listener);
    }

    /// Counts the connection towards the limit of its tenant.
    pub(crate) fn charge(&mut self, account: &Arc<TenantQuota>) -> Result<(), CloseReason> {
        let quota_guard = account.take(self.basis.plane.quota_limits());
        self.quota_guard = Some(quota_guard.ok_or(CloseReason::TenantLimit)?);
        Ok(())
    }

    /// The line of its tenant at the gates; see [`crate::gate`].
    pub(crate) fn line(&self) -> usize {
        self.account().map_or(0, gate::line)
    }

    /// The quota of its tenant, if that is known.
    pub(crate) fn account(&self) -> Option<&Arc<TenantQuota>> {
        self.quota_guard.as_ref().map(QuotaGuard::account)
    }

    /// Takes out the place that the connection has until its requests show to which tenant it belongs.
    pub(crate) fn take_place(&mut self) -> Option<QuotaGuard> {
        self.quota_guard.take()
    }

    pub(crate) fn listener(&self) -> Option<&Arc<Listener>> {
        self.basis.listener.as_ref()
    }

    /// The limits of its listener.
    pub(crate) fn bounds(&self) -> Bounds {
        let ours = self.basis.plane.limits.bounds;
        let listener = self.basis.listener.as_deref();
        listener.map_or(ours, |listener| self.basis.plane.bounds(listener))
    }

    /// How long it may live as a tunnel.
    pub(crate) fn lifetime(&self) -> Lifetime {
        let tenant = self.account().map(TenantKey::of).unwrap_or_default();
        self.basis.plane.lifetime(&self.bounds(), tenant)
    }

    /// The parameters that its handshake agreed on.
    pub(crate) fn negotiated(&self) -> Option<&NegotiatedTls> {
        self.beside.as_ref()?.negotiated.as_ref()
    }

    pub(crate) fn set_negotiated(&mut self, negotiated: NegotiatedTls) {
        self.beside.get_or_insert_default().negotiated = Some(negotiated);
    }

    /// Takes the challenge for which the client, a CA, asks.
    pub(crate) fn challenge(&mut self, challenge: Arc<Challenge>) {
        self.beside.get_or_insert_default().challenge = Some(challenge);
    }

    fn write(&self) {
        // Connections without a byte are health checks for the most part, so they get no line.
        if self.reason == CloseReason::ClientSilent || self.requests > 0 {
            tracing::debug!(
                target: TARGET,
                client = %self.client,
                requests = self.requests,
                reason = self.reason.reason(),
            );
            return;
        }
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        let listener = self.basis.listener.as_deref();
        let route = self.basis.route.as_deref();
        let beside = self.beside.as_ref();
        let challenge = beside.and_then(|beside| beside.challenge.as_deref());
        let account = route.map(|r| &r.account).or(listener.map(|l| &l.account));
        let account = account.or(challenge.map(|c| &c.account));
        let Some(_turn) = self.basis.plane.logs(account.map(|account| &**account)) else {
            return;
        };
        let tenant = route.map(|r| &r.tenant).or(listener.map(|l| &l.tenant));
        let gateway = listener.map(|l| &l.gateway);
        let negotiated = self.negotiated();
        let alpn = negotiated
            .and_then(|negotiated| negotiated.alpn.as_deref())
            .map(String::from_utf8_lossy);
        tracing::info!(
            target: TARGET,
            client = %self.client,
            peer = self.peer().map(tracing::field::display),
            bind = %self.basis.bind,
            server_name = self.basis.server_name.as_ref().map(Hostname::as_str),
            tenant = tenant.or(challenge.map(|c| &c.tenant)).map(|t| &**t),
            gateway = gateway.or(challenge.map(|c| &c.gateway)).map(|g| &**g),
            challenge = challenge.map(|c| &*c.key),
            listener = listener.map(|l| &*l.key),
            route = route.map(|r| &*r.key),
            route_kind = route.map(|r| r.kind.route_kind()),
            backend = self.backend.as_ref().map(|(_, backend)| &*backend.key),
            endpoint = self.backend.as_ref().map(|(address, _)| tracing::field::display(address)),
            connect_retries = (self.connect_retries > 0).then_some(self.connect_retries),
            bytes_in = self.moved.up,
            bytes_out = self.moved.down,
            duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            tls_version = negotiated.map(|a| a.version),
            resumed = negotiated.map(|a| a.resumed),
            alpn = alpn.as_deref(),
            reason = self.reason.reason(),
        );
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.reason = CloseReason::Internal;
        }
        let metrics = &self.basis.plane.metrics;
        metrics.connections_active.dec();
        metrics.bytes_upstream.inc_by(self.moved.up);
        metrics.bytes_downstream.inc_by(self.moved.down);
        metrics.closed(self.reason.reason());
        if let Some(listener) = &self.basis.listener {
            listener.usage.active.dec();
            listener.usage.bytes_in.inc_by(self.moved.up);
            listener.usage.bytes_out.inc_by(self.moved.down);
        }
        if self.basis.plane.limits.access_log {
            self.write();
        }
        // The place is free before the connection counts as ended. So whoever waits for the end finds it free.
        drop(self.quota_guard.take());
        self.basis.plane.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ProxyLimits;
    use crate::metrics::Metrics;

    #[test]
    fn a_panic_is_not_a_drain() {
        let metrics = Arc::new(Metrics::new());
        let plane = DataPlane::new(Arc::default(), Arc::clone(&metrics), ProxyLimits::default());
        let plane = Arc::new(plane);
        let record = || {
            let bind = BindKey::tcp(std::net::Ipv4Addr::LOCALHOST.into(), 443);
            ConnectionRecord::new(Arc::clone(&plane), ([127, 0, 0, 1], 1).into(), bind)
        };
        drop(record());
        let record = record();
        let task = std::thread::spawn(move || {
            let _record = record;
            panic!("on purpose");
        });
        assert!(task.join().is_err());
        assert_eq!(metrics.closed_count("Drained"), 1);
        assert_eq!(metrics.closed_count("Internal"), 1);
        assert_eq!(plane.active(), 0);
    }
}
