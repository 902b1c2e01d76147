//! Owns the state that the requests of one connection share.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use vestibule_model::hostname::Hostname;
use vestibule_serve::places::Source;

use super::activity::Activity;
use crate::bind::BindKey;
use crate::close_reason::CloseReason;
use crate::gate;
use crate::listener::Listener;
use crate::plane::{DataPlane, HelloPermit};
use crate::quota::{Account, QuotaGuard};
use crate::table::refuses_all;
use crate::validation::ClientValidation;

/// What a connection carries after HTTP.
pub(super) trait AfterHttp: Send {
    /// Runs to the end of the connection, and returns the reason of the end.
    fn run(self: Box<Self>) -> Pin<Box<dyn Future<Output = CloseReason> + Send>>;
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
    /// The certificate chain that the client showed.
    pub(super) client_chain: Vec<CertificateDer<'static>>,
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
    pub(super) carried: Carried,
}

/// Whose requests a connection has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Carried {
    #[default]
    Nothing,
    OneTenant,
    SeveralTenants,
}

impl Shared {
    /// The client's address as a header value for backends. It is written once.
    pub(super) fn client_value(&self) -> &HeaderValue {
        self.client_value.get_or_init(|| {
            let address = self.client.ip().to_string();
            HeaderValue::try_from(address).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        })
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

    /// The [`gate::line`] of the tenant that the connection counts towards. Until there is one, that of the listener
    /// which the server name selected; in plaintext, that of the client's source. Once the connection has carried requests
    /// of several tenants, it is that of the source again: otherwise a client could fill the line of one tenant with work
    /// for another one.
    pub(super) fn line(&self) -> usize {
        let of_source = || gate::line_of_source(Source::of_client(self.client.ip()));
        let counts = self.counts.lock();
        match (counts.carried, &counts.tenant) {
            (Carried::SeveralTenants, _) => of_source(),
            (_, Some(tenant)) => gate::line(tenant.account()),
            (_, None) => {
                let listener = self.listener.as_ref();
                listener.map_or_else(of_source, |listener| gate::line(&listener.account))
            }
        }
    }

    /// The line of a namespace, for work that it causes although the connection may belong to another one.
    pub(super) fn line_of(&self, namespace: &str) -> usize {
        let account = self.plane.metrics.accounts().find(namespace);
        account.map_or_else(|| self.line(), |account| gate::line(&account))
    }

    /// The account of the tenant that the connection counts towards, or that of its listener.
    pub(super) fn account(&self) -> Option<Arc<Account>> {
        if let Some(quota_guard) = &self.counts.lock().tenant {
            return Some(Arc::clone(quota_guard.account()));
        }
        let listener = self.listener.as_ref();
        listener.map(|listener| Arc::clone(&listener.account))
    }

    /// Counts the connection towards the limit of this tenant, and no longer towards anything else. Returns false if
    /// the tenant has reached its limit.
    pub(super) fn charge(&self, account: &Arc<Account>) -> bool {
        let mut counts = self.counts.lock();
        let is_same = counts.tenant.as_ref().is_some_and(|of| of.is_of(account));
        if is_same && counts.carried != Carried::Nothing {
            return true;
        }
        counts.carried = match counts.carried {
            // The account of the handshake may be that of the Gateway.
            Carried::Nothing => Carried::OneTenant,
            Carried::OneTenant | Carried::SeveralTenants => Carried::SeveralTenants,
        };
        if is_same {
            return true;
        }
        let Some(quota_guard) = account.take(self.plane.quota_limits()) else {
            return false;
        };
        counts.tenant = Some(quota_guard);
        drop(counts.unknown.take());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::Transport;
    use crate::limits::ProxyLimits;

    /// A connection in plaintext from this address.
    fn connection(plane: &Arc<DataPlane>, client: [u8; 4]) -> Shared {
        Shared {
            plane: Arc::clone(plane),
            client: (client, 4000).into(),
            client_value: OnceLock::new(),
            peer: None,
            bind: BindKey {
                address: [0, 0, 0, 0].into(),
                port: 80,
                transport: Transport::Tcp,
            },
            listener: None,
            server_name: None,
            served_for: None,
            client_chain: Vec::new(),
            passed: Mutex::default(),
            tls_version: None,
            age: None,
            end: None,
            activity: Arc::new(Activity::new(&plane.limits.http)),
            tunnel: Mutex::default(),
            counts: Mutex::new(TenantCounts {
                unknown: None,
                tenant: None,
                carried: Carried::default(),
            }),
        }
    }

    #[test]
    fn the_line_is_the_sources_unless_all_requests_were_for_one_tenant() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let [red, blue] = ["red", "blue"].map(|name| plane.metrics.accounts().of(&name.into()));
        let attacker = connection(&plane, [192, 0, 2, 1]);
        let of_source = attacker.line();
        assert_eq!(connection(&plane, [192, 0, 2, 1]).line(), of_source);
        assert_ne!(connection(&plane, [192, 0, 2, 2]).line(), of_source);

        for _ in 0..2 {
            assert!(attacker.charge(&blue));
            assert_eq!(attacker.line(), gate::line(&blue));
        }
        assert!(attacker.charge(&red));
        assert_eq!(attacker.line(), of_source);
        assert!(attacker.charge(&blue));
        assert_eq!(attacker.line(), of_source);
        // What red's rules cost is red's.
        assert_eq!(attacker.line_of("red"), gate::line(&red));
        assert_eq!(attacker.line_of("nobody"), of_source);
    }

    #[test]
    fn the_tenant_of_a_handshake_is_not_yet_that_of_a_request() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let [gateway, blue] =
            ["infra", "blue"].map(|name| plane.metrics.accounts().of(&name.into()));
        let client = connection(&plane, [192, 0, 2, 1]);
        client.counts.lock().tenant = gateway.take(plane.quota_limits());
        assert_eq!(client.line(), gate::line(&gateway));
        assert!(client.charge(&blue));
        assert_eq!(client.line(), gate::line(&blue));
    }
}
