//! Owns the handles of connections to backends, and what a connection has to have in common with a new one to be used in
//! its place.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::client::conn::http2;
use tokio::sync::watch;
use vestibule_model::send_proxy::HeaderVersion;

use super::super::backend_http1::Http1Backend;
use super::super::body::Upload;
use crate::backend::Backend;
use crate::concerned::TenantKey;
use crate::upstream::{Alpn, Meter, Stream, TlsIdentity};

/// Most requests at one time on an HTTP/2 connection. For more requests, another connection is opened.
pub(in crate::http) const STREAMS: u32 = 100;
/// Requests on an HTTP/2 connection that the proxy may give up before the connection gets no further ones. Each is a reset
/// for the backend, and common servers end a connection with a few hundred of them, with all requests on it. Together with
/// those that are under way by then, there are fewer than 150.
const MAX_GIVEN_UP: usize = 50;
/// Most requests on an HTTP/2 connection that the proxy gives up. Those that are under way when it has given up many may all
/// follow.
pub(in crate::http) const MOST_RESETS: usize = MAX_GIVEN_UP + STREAMS as usize;

/// The purpose of a connection. Connections with equal keys can replace each other.
#[derive(Clone, Debug)]
pub(in crate::http) struct Key {
    /// The backend, in any version.
    pub(in crate::http) backend: Arc<Backend>,
    pub(in crate::http) endpoint: SocketAddr,
    /// The protocols that were offered when it was opened.
    pub(in crate::http) alpn: Alpn,
    pub(in crate::http) tls: Option<TlsIdentity>,
    /// The PROXY header with which it began.
    pub(in crate::http) send_proxy: Option<HeaderVersion>,
    /// Whether it has one request at a time in HTTP/2 too. The backend might end the connection because of a request,
    /// and that ends all requests on it.
    pub(in crate::http) alone: bool,
    /// The tenant whose requests share it in HTTP/2, where one request can disturb the others. Tenants may have routes to
    /// one Service.
    pub(in crate::http) tenant: TenantKey,
}

/// What a connection has to have in common with a new one.
type Purpose = (
    Alpn,
    Option<TlsIdentity>,
    Option<HeaderVersion>,
    bool,
    TenantKey,
);

impl Key {
    /// Whether requests at the same time share one connection.
    pub(in crate::http) fn is_shared(&self) -> bool {
        self.alpn == Alpn::Http2 && !self.alone
    }

    fn parts(&self) -> (usize, SocketAddr, Purpose) {
        let identity = self.backend.identity();
        let purpose = (
            self.alpn,
            self.tls,
            self.send_proxy,
            self.alone,
            self.tenant,
        );
        (identity, self.endpoint, purpose)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// The handle by which requests are sent on a connection.
pub(in crate::http) enum Sender {
    One(Http1Sender),
    Two(Http2Sender),
}

/// The handle of an HTTP/2 connection.
#[derive(Clone)]
pub(in crate::http) struct Http2Sender {
    pub(in crate::http) sender: http2::SendRequest<Upload>,
    /// How many requests the backend takes at one time; `None` until it has said so.
    most: watch::Receiver<Option<u32>>,
    pub(in crate::http) meter: Arc<Meter>,
    /// How many of its requests the proxy gave up.
    pub(super) given_up: Arc<AtomicUsize>,
}

impl Http2Sender {
    pub(in crate::http) fn new(
        sender: http2::SendRequest<Upload>,
        most: watch::Receiver<Option<u32>>,
        meter: Arc<Meter>,
    ) -> Self {
        Self {
            sender,
            most,
            meter,
            given_up: Arc::default(),
        }
    }

    /// How many requests it may have at one time. As long as the backend has not said how many it takes, that is one, as a
    /// rule the one which opened the connection: those beyond the bound would wait behind the others, or be refused.
    pub(super) fn most(&self) -> usize {
        let most = self.most.borrow().unwrap_or(1);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether it gets no further requests. Those under way go on.
    pub(super) fn is_closed(&self) -> bool {
        let is_worn = self.given_up.load(Ordering::Relaxed) >= MAX_GIVEN_UP;
        is_worn || self.sender.is_closed() || self.meter.is_over()
    }

    /// Waits until the backend has said how many requests it takes. The result is false if the connection ends before.
    pub(in crate::http) fn settles(&self) -> impl Future<Output = bool> + use<> {
        let mut most = self.most.clone();
        async move {
            let known = most.wait_for(Option::is_some).await;
            known.is_ok()
        }
    }
}

/// An HTTP/1.1 connection.
pub(in crate::http) struct Http1Sender {
    pub(in crate::http) connection: Http1Backend<Stream, Upload>,
    pub(in crate::http) meter: Arc<Meter>,
}

impl Http1Sender {
    /// Whether it can have a request. What has come on it is seen even if its namespace has to wait for its turn to read.
    pub(in crate::http) fn is_open(&self) -> bool {
        self.meter.without_turns(|| self.connection.is_open())
    }
}

impl Sender {
    pub(super) fn meter(&self) -> &Arc<Meter> {
        match self {
            Self::One(one) => &one.meter,
            Self::Two(two) => &two.meter,
        }
    }
}
