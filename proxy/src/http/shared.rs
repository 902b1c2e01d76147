//! Owns what the requests of one connection share.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use vestibule_model::hostname::Hostname;

use super::activity::Activity;
use crate::bind::BindKey;
use crate::close_reason::CloseReason;
use crate::listener::{Listener, Mode, NotServing};
use crate::plane::{DataPlane, HelloPermit};
use crate::quota::{Account, QuotaGuard};
use crate::validation::ClientValidation;

/// What goes on with a connection once HTTP is over.
pub(super) trait AfterHttp: Send {
    /// Runs to the end of the connection, and says why that came.
    fn run(self: Box<Self>) -> Pin<Box<dyn Future<Output = CloseReason> + Send>>;
}

/// What the requests of one connection share.
pub(super) struct Shared {
    pub(super) plane: Arc<DataPlane>,
    /// Who the client is, as far as the connection says.
    pub(super) client: SocketAddr,
    /// Its address as backends are told.
    pub(super) client_value: OnceLock<HeaderValue>,
    /// Who opened the connection, where that is not the client.
    pub(super) peer: Option<SocketAddr>,
    pub(super) bind: BindKey,
    /// The listener that the server name selected; none in plaintext, where each request selects.
    pub(super) listener: Option<Arc<Listener>>,
    pub(super) server_name: Option<Hostname>,
    /// What the client showed.
    pub(super) client_chain: Vec<CertificateDer<'static>>,
    /// The client validation that the client passed last: at first that of its handshake.
    pub(super) passed: Mutex<Option<Arc<ClientValidation>>>,
    pub(super) tls_version: Option<&'static str>,
    /// The age at which the connection is to end.
    pub(super) age: Option<Duration>,
    /// The tick at which it has to be gone.
    pub(super) end: Option<u32>,
    pub(super) activity: Arc<Activity>,
    /// What is to be done once HTTP is over.
    pub(super) tunnel: Mutex<Option<Box<dyn AfterHttp>>>,
    pub(super) counts: Mutex<TenantCounts>,
}

/// Among which connections one counts: always one of the two.
pub(super) struct TenantCounts {
    /// Those of which it is not known which tenant they are for.
    pub(super) unknown: Option<HelloPermit>,
    /// Those of the tenant that the last request was for, or the handshake.
    pub(super) tenant: Option<QuotaGuard>,
}

impl Shared {
    /// The client's address as backends are told, which is written once.
    pub(super) fn client_value(&self) -> &HeaderValue {
        self.client_value.get_or_init(|| {
            let address = self.client.ip().to_string();
            HeaderValue::try_from(address).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        })
    }

    /// Whether the client of this connection is let in by `listener` as it validates clients now.
    pub(super) fn is_admitted(&self, listener: &Listener) -> bool {
        if matches!(listener.mode, Mode::Https(Err(NotServing::NoTrustBundle))) {
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

    /// Has the connection count towards what this tenant may have, and no longer towards anything else. `false`: the
    /// tenant has all that it may have.
    pub(super) fn charge(&self, account: &Arc<Account>) -> bool {
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
}
