//! Owns the state that the requests of one connection share.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use parking_lot::Mutex;
use vestibule_model::hostname::Hostname;

use super::activity::Activity;
use super::transport::Counted;
use crate::bind::BindKey;
use crate::close_reason::CloseReason;
use crate::gate;
use crate::limits::Ambiguity;
use crate::listener::{Layer, Listener};
use crate::plane::{DataPlane, HelloPermit};
use crate::quota::{QuotaGuard, TenantQuota};
use crate::table::{Snapshot, refuses_all};
use crate::validation::{ClientValidation, ProvenChain};

/// What a connection carries after HTTP.
pub(super) trait AfterHttp: Send {
    /// Runs to the end of the connection, and returns the reason of the end. `read` are bytes of the client that were read
    /// already.
    fn run(
        self: Box<Self>,
        client: Counted,
        read: Bytes,
    ) -> Pin<Box<dyn Future<Output = CloseReason> + Send>>;
}

/// The state that the requests of one connection share.
pub(super) struct Shared {
    pub(super) plane: Arc<DataPlane>,
    /// The client's address, as far as the connection tells it.
    pub(super) client: SocketAddr,
    /// Its address as a header value for backends.
    pub(super) client_value: OnceLock<HeaderValue>,
    /// The address of the peer, if the peer is not the client.
    pub(super) peer: Option<SocketAddr>,
    pub(super) bind: BindKey,
    /// The listener that the server name selected. It is `None` in plaintext, where each request selects one.
    pub(super) listener: Option<Arc<Listener>>,
    pub(super) server_name: Option<Hostname>,
    /// The namespace for which the listener served the server name when the connection began. It is `None` in plaintext.
    pub(super) served_for: Option<Arc<str>>,
    /// The certificate chain of the client.
    pub(super) client_chain: ProvenChain,
    /// The client validation that the client has passed last. At first it is that of the handshake.
    pub(super) passed: Mutex<Option<Arc<ClientValidation>>>,
    pub(super) tls_version: Option<&'static str>,
    /// The age at which the connection ends.
    pub(super) age: Option<Duration>,
    /// The tick at which it must have ended.
    pub(super) end: Option<u32>,
    pub(super) activity: Arc<Activity>,
    /// What follows after HTTP, if anything.
    pub(super) tunnel: Mutex<Option<Box<dyn AfterHttp>>>,
    pub(super) counts: Mutex<TenantCounts>,
}

/// The connections among which this one counts. Exactly one of the two is set.
pub(super) struct TenantCounts {
    /// Connections whose tenant is not known yet.
    pub(super) unknown: Option<HelloPermit>,
    /// Connections of the tenant to which the last request, or the handshake, belonged.
    pub(super) tenant: Option<QuotaGuard>,
}

impl Shared {
    /// The client's address as a header value for backends. It is written once.
    pub(super) fn client_value(&self) -> &HeaderValue {
        self.client_value.get_or_init(|| {
            let address = self.client.ip().to_string();
            HeaderValue::try_from(address).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        })
    }

    /// The treatment of ambiguous requests, by a snapshot. The Gateway at whose port the connection arrived says it, whatever
    /// host a request is for.
    pub(super) fn ambiguity(&self, snapshot: &Snapshot) -> Ambiguity {
        let set = snapshot.http_overrides(&self.bind);
        self.plane.limits.http.ambiguity(set)
    }

    /// Whether the client of this connection passes the present client validation of `listener`.
    pub(super) fn is_admitted(&self, listener: &Listener) -> bool {
        if refuses_all(listener) {
            return false;
        }
        let Some(validation) = &listener.validation else {
            return true;
        };
        let mut passed = self.passed.lock();
        if passed
            .as_ref()
            .is_some_and(|passed| Arc::ptr_eq(passed, validation))
        {
            return true;
        }
        let admitted = validation.admits(&self.client_chain);
        if admitted {
            *passed = Some(Arc::clone(validation));
        }
        admitted
    }

    /// Whether the client passes the client validation of the listener that a new connection for the same server name
    /// would get. Without such a listener there is no validation, and each request is answered by itself.
    pub(super) fn is_still_admitted(&self) -> bool {
        let snapshot = self.plane.snapshot.load();
        let now = snapshot.tls_listener(&self.bind, self.server_name.as_ref());
        now.is_none_or(|now| self.is_admitted(now))
    }

    /// The [`gate::line`] of the tenant that the connection counts towards. Until there is one, that of the listener
    /// which the server name selected; in plaintext, that of nobody.
    pub(super) fn line(&self) -> usize {
        let counts = self.counts.lock();
        let listener = || self.listener.as_ref().map(|listener| &listener.account);
        let account = counts
            .tenant
            .as_ref()
            .map(QuotaGuard::account)
            .or_else(listener);
        account.map_or(0, gate::line)
    }

    /// The line of the namespace for which a host is served, or that of nobody. A connection may carry requests for
    /// several namespaces, and those for one must not wait in the line of another one.
    pub(super) fn line_of_host(&self, host: Option<&Hostname>) -> usize {
        let layer = match &self.listener {
            Some(_) => Layer::Tls,
            None => Layer::Plain,
        };
        let snapshot = self.plane.snapshot.load();
        let namespace = snapshot.namespace_of(&self.bind, layer, host);
        let account = namespace.and_then(|of| self.plane.metrics.accounts().find(of));
        account.map_or(0, |account| gate::line(&account))
    }

    /// The quota of the tenant that the connection counts towards, or that of its listener.
    pub(super) fn account(&self) -> Option<Arc<TenantQuota>> {
        if let Some(quota_guard) = &self.counts.lock().tenant {
            return Some(Arc::clone(quota_guard.account()));
        }
        let listener = self.listener.as_ref();
        listener.map(|listener| Arc::clone(&listener.account))
    }

    /// Counts the connection towards the limit of this tenant, and no longer towards anything else. Returns false if
    /// the tenant has reached its limit.
    pub(super) fn charge(&self, account: &Arc<TenantQuota>) -> bool {
        let mut counts = self.counts.lock();
        if counts.tenant.as_ref().is_some_and(|of| of.is_of(account)) {
            return true;
        }
        let Some(quota_guard) = account.take(self.plane.quota_limits()) else {
            return false;
        };
        counts.tenant = Some(quota_guard);
        drop(counts.unknown.take());
        true
    }

    /// Whether the connection counts towards the limit of a tenant.
    pub(super) fn is_charged(&self) -> bool {
        self.counts.lock().tenant.is_some()
    }
}
