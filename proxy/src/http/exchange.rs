//! Owns one request at a backend: which connection it gets, and what becomes of it.
//!
//! A request is given to another connection or endpoint while it is certain that no backend has seen it:
//! the connection could not be opened, or had ended before the request was written. If the connection
//! breaks after that and before an answer, a request that may be repeated ([`Repeat`]) is, once: a
//! backend that closes an idle connection crosses the next request on it, and a pod that dies takes
//! what it was given with it. What happens after the head of the answer is the answer.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::body::{Upload, UploadState};
use super::pool::{self, Key, Lease, Sender, Turn};
use super::{H2, Repeat};
use crate::backend::{Backend, Protocol};
use crate::connection::CloseReason;
use crate::deadline::within;
use crate::dial::{self, ATTEMPTS};
use crate::health;
use crate::plane::DataPlane;
use crate::upstream::{self, Alpn, Credentials};

/// Window of one answer's body and of all of a connection's, in HTTP/2: bounds what waits in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of request bodies that wait in memory for a backend, per request in HTTP/2.
const SEND_BUFFER: usize = 64 * 1024;

/// A request that is to be made.
pub(super) struct Exchange<'a> {
    pub(super) plane: &'a DataPlane,
    /// What the backend is shown.
    pub(super) credentials: Credentials,
    pub(super) backend: Arc<Backend>,
    /// Whom it is for, as the backend is to see it.
    pub(super) authority: Option<HeaderValue>,
    pub(super) path: PathAndQuery,
    /// It may become a WebSocket, which HTTP/1.1 alone can.
    pub(super) upgrade: bool,
}

/// What is known of how a request was made, for the log.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The endpoint that was tried last.
    pub(super) endpoint: Option<SocketAddr>,
    /// Endpoints tried before it.
    pub(super) retries: u8,
    /// The connection had carried a request before.
    pub(super) reused: bool,
    /// It was given to a second connection after the first one broke.
    pub(super) repeated: bool,
    /// A connection has the request, and its answer has not begun.
    pub(super) awaited: bool,
    /// From giving the request to a connection to the head of the answer.
    pub(super) took: Option<Duration>,
}

/// Why there is no answer of a backend.
#[derive(Debug)]
pub(super) enum Failure {
    /// The backend has no endpoints.
    NoEndpoints,
    /// No connection could be had.
    Connect(CloseReason),
    /// The connection broke, or what came is no HTTP, and the request may not be repeated.
    Broken,
}

impl Failure {
    /// What the client gets.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Connect(CloseReason::BackendTlsInvalid) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoEndpoints | Self::Connect(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken => StatusCode::BAD_GATEWAY,
        }
    }

    /// The word for metrics and logs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoEndpoints => "NoEndpoints",
            Self::Connect(reason) => reason.reason(),
            Self::Broken => "BackendBroken",
        }
    }
}

type Answered = (Response<Incoming>, Lease);

impl Exchange<'_> {
    /// Makes the request.
    pub(super) async fn send(
        &self,
        mut request: Request<Upload>,
        trace: &mut Trace,
    ) -> Result<Answered, Failure> {
        let end = Instant::now() + self.plane.limits.connect_deadline;
        let mut spare = self.spare(&request);
        let mut backend = Arc::clone(&self.backend);
        let mut tried = Vec::new();
        let mut failure = Failure::NoEndpoints;
        while tried.len() < ATTEMPTS {
            let random = self.plane.random();
            let Some(endpoint) = backend.endpoint(random, &tried) else {
                break;
            };
            let key = self.key(&backend, endpoint);
            trace.endpoint = Some(endpoint);
            trace.retries = u8::try_from(tried.len()).unwrap_or(u8::MAX);
            // What closed one idle connection may have closed all of them: a repeated request gets a
            // new one.
            while let Some(lease) = (!trace.repeated).then(|| pool::take(&key)).flatten() {
                trace.reused = true;
                request = match self.send_on(lease, request, trace).await {
                    Ok(answered) => {
                        self.plane.endpoint_succeeded(&backend, endpoint);
                        self.plane.metrics.backend_reused.inc();
                        return Ok(answered);
                    }
                    // It had ended while it was idle.
                    Err(Some(request)) => *request,
                    Err(None) => self.repeat(&mut spare, trace).ok_or(Failure::Broken)?,
                };
            }
            trace.reused = false;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                failure = Failure::Connect(CloseReason::BackendConnectTimeout);
                break;
            }
            let allowed = dial::share(left, &backend.target, tried.len());
            let Some(opened) = self.open_in_turn(&key, &backend, left, allowed).await else {
                continue;
            };
            if !tried.is_empty() {
                self.plane.metrics.connect_retries.inc();
            }
            tried.push(endpoint);
            let (kind, reason) = match opened {
                Ok(lease) => match self.send_on(lease, request, trace).await {
                    Ok(answered) => {
                        self.plane.endpoint_succeeded(&backend, endpoint);
                        return Ok(answered);
                    }
                    Err(Some(back)) => {
                        request = *back;
                        failure = Failure::Connect(CloseReason::BackendReset);
                        (health::Failure::Connect, CloseReason::BackendReset)
                    }
                    Err(None) => {
                        failure = Failure::Broken;
                        let Some(again) = self.repeat(&mut spare, trace) else {
                            self.no_answer(trace, CloseReason::BackendReset.reason());
                            return Err(failure);
                        };
                        request = again;
                        (health::Failure::Answer, CloseReason::BackendReset)
                    }
                },
                Err(reason) => {
                    failure = Failure::Connect(reason);
                    (health::Failure::Connect, reason)
                }
            };
            // The same for every endpoint, and none of them was asked.
            if reason == CloseReason::BackendTlsInvalid {
                break;
            }
            let reason = reason.reason();
            if kind == health::Failure::Connect {
                self.plane.metrics.connect_failed(reason);
            }
            self.plane.endpoint_failed(&backend, endpoint, kind, reason);
            // The endpoint may have failed because its pod is gone.
            backend = self.plane.latest(&backend);
        }
        Err(failure)
    }

    /// What is needed to make the request again, if it is one that may be made again.
    fn spare(&self, request: &Request<Upload>) -> Option<Request<Arc<UploadState>>> {
        let may = self.plane.limits.http.repeat == Repeat::Idempotent
            && request.method().is_idempotent()
            && request.body().is_end_stream()
            && !self.upgrade;
        may.then(|| {
            let mut spare = Request::new(Arc::clone(request.body().state()));
            spare.method_mut().clone_from(request.method());
            spare.headers_mut().clone_from(request.headers());
            spare
        })
    }

    /// The request once more; none if it may not be repeated, or was.
    fn repeat(
        &self,
        spare: &mut Option<Request<Arc<UploadState>>>,
        trace: &mut Trace,
    ) -> Option<Request<Upload>> {
        let spare = spare.take()?;
        trace.repeated = true;
        self.plane.metrics.requests_repeated.inc();
        Some(spare.map(|state| Upload::none(&state)))
    }

    /// Notes that the endpoint that has the request does not answer it.
    pub(super) fn no_answer(&self, trace: &Trace, reason: &'static str) {
        if let Some(endpoint) = trace.endpoint {
            let failure = health::Failure::Answer;
            self.plane
                .endpoint_failed(&self.backend, endpoint, failure, reason);
        }
    }

    fn key(&self, backend: &Arc<Backend>, endpoint: SocketAddr) -> Key {
        let target = &backend.target;
        let tls = upstream::identity(target, &self.credentials);
        let alpn = match target.protocol {
            Protocol::H2c => Alpn::Http2,
            Protocol::Any if tls.is_some() && !self.upgrade => Alpn::Both,
            Protocol::Any | Protocol::WebSocket => Alpn::Http1,
        };
        Key {
            backend: Arc::clone(backend),
            endpoint,
            alpn,
            tls,
        }
    }

    /// Opens a connection. Requests that come at the same time share one connection of HTTP/2: `None` if
    /// another one opened it, or gave up, within `patience`.
    async fn open_in_turn(
        &self,
        key: &Key,
        backend: &Backend,
        patience: Duration,
        allowed: Duration,
    ) -> Option<Result<Lease, CloseReason>> {
        let _opening = match (key.alpn == Alpn::Http2).then(|| pool::turn(key)) {
            None => None,
            Some(Turn::Open(opening)) => Some(opening),
            Some(Turn::Wait(other)) => {
                let _ = within(patience, other.notified()).await;
                return None;
            }
        };
        Some(self.open(key, backend, allowed).await)
    }

    /// Opens a connection and begins HTTP on it.
    async fn open(
        &self,
        key: &Key,
        backend: &Backend,
        allowed: Duration,
    ) -> Result<Lease, CloseReason> {
        let open = upstream::open(
            self.plane,
            &backend.target,
            &self.credentials,
            key.endpoint,
            key.alpn,
            allowed,
        );
        let stream = open.await?;
        let two = match key.alpn {
            Alpn::Http2 => true,
            Alpn::Both => stream.alpn() == Some(H2),
            Alpn::None | Alpn::Http1 => false,
        };
        let failed = |error: hyper::Error| {
            tracing::debug!(endpoint = %key.endpoint, %error, "HTTP with the backend did not begin");
            CloseReason::BackendReset
        };
        let io = TokioIo::new(stream);
        let sender = if two {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(self.plane.limits.http.head_bytes)
                .max_send_buf_size(SEND_BUFFER);
            let begun = within(allowed, builder.handshake(io)).await;
            let begun = begun.map_err(|_| CloseReason::BackendConnectTimeout)?;
            let (sender, connection) = begun.map_err(failed)?;
            let most = Arc::new(AtomicUsize::new(usize::MAX));
            tokio::spawn(run(watched(connection, Arc::clone(&most)), key.endpoint));
            Sender::Two(sender, most)
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
            tokio::spawn(run(connection.with_upgrades(), key.endpoint));
            Sender::One(sender)
        };
        self.plane.metrics.backend_opened.inc();
        Ok(Lease::new(key.clone(), sender))
    }

    /// Gives the request to a connection; it comes back if the connection has not begun with it.
    async fn send_on(
        &self,
        mut lease: Lease,
        mut request: Request<Upload>,
        trace: &mut Trace,
    ) -> Result<Answered, Option<Box<Request<Upload>>>> {
        self.dress(&mut request, &lease);
        trace.awaited = true;
        let begun = Instant::now();
        let sent = match &mut lease.sender {
            Sender::One(sender) => {
                // A new connection is ready as soon as its task has run.
                match sender.ready().await {
                    Ok(()) => sender.try_send_request(request).await,
                    Err(_) => {
                        trace.awaited = false;
                        return Err(Some(Box::new(request)));
                    }
                }
            }
            Sender::Two(sender, _) => sender.try_send_request(request).await,
        };
        trace.awaited = false;
        match sent {
            Ok(response) => {
                let took = begun.elapsed();
                trace.took = Some(took);
                let metrics = &self.plane.metrics;
                metrics.backend_response_seconds.observe(took.as_secs_f64());
                Ok((response, lease))
            }
            Err(mut error) => {
                let request = error.take_message().map(Box::new);
                let error = error.into_error();
                tracing::debug!(endpoint = ?trace.endpoint, %error, "a request failed");
                Err(request)
            }
        }
    }

    /// Writes whom the request is for in the way of the connection's protocol.
    fn dress(&self, request: &mut Request<Upload>, lease: &Lease) {
        match &lease.sender {
            Sender::One(_) => {
                // A field without a value where no host is known: it is obligatory.
                let host = self.authority.clone();
                let host = host.unwrap_or_else(|| HeaderValue::from_static(""));
                request.headers_mut().insert(HOST, host);
                *request.uri_mut() = Uri::from(self.path.clone());
                *request.version_mut() = Version::HTTP_11;
            }
            Sender::Two(..) => {
                let headers = request.headers_mut();
                for name in [HOST, CONNECTION, UPGRADE] {
                    headers.remove(name);
                }
                let mut parts = hyper::http::uri::Parts::default();
                let tls = lease.is_tls();
                parts.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
                let authority = self.authority.as_ref();
                let authority = authority.and_then(|a| Authority::try_from(a.as_bytes()).ok());
                parts.authority =
                    Some(authority.unwrap_or_else(|| Authority::from_static("unknown")));
                parts.path_and_query = Some(self.path.clone());
                if let Ok(uri) = Uri::from_parts(parts) {
                    *request.uri_mut() = uri;
                }
                *request.version_mut() = Version::HTTP_2;
            }
        }
    }
}

/// Keeps up with how many requests the other side takes at one time.
fn watched<E>(
    mut connection: http2::Connection<TokioIo<upstream::Stream>, Upload, E>,
    most: Arc<AtomicUsize>,
) -> impl Future<Output = hyper::Result<()>>
where
    E: hyper::rt::bounds::Http2ClientConnExec<Upload, TokioIo<upstream::Stream>> + Unpin,
{
    std::future::poll_fn(move |cx| {
        let polled = Pin::new(&mut connection).poll(cx);
        most.store(connection.current_max_send_streams(), Ordering::Relaxed);
        polled
    })
}

/// Drives a connection to its end.
async fn run(connection: impl Future<Output = hyper::Result<()>>, endpoint: SocketAddr) {
    if let Err(error) = connection.await {
        tracing::debug!(%endpoint, %error, "a backend connection failed");
    }
}
