//! Owns one request at a backend: which connection it gets, and what becomes of it.
//!
//! A request is given to another connection or endpoint only while it is certain that no backend has
//! seen it: the connection could not be opened, or had ended before the request was written. What
//! happens after that is the answer.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::body::Upload;
use super::pool::{self, Key, Lease, Sender, Turn};
use crate::backend::Protocol;
use crate::connection::CloseReason;
use crate::deadline::within;
use crate::dial::{self, ATTEMPTS};
use crate::plane::DataPlane;
use crate::table::{Backend, Listener, Target};
use crate::upstream::{self, Alpn};

/// Window of one answer's body and of all of a connection's, in HTTP/2: bounds what waits in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of request bodies that wait in memory for a backend, per request in HTTP/2.
const SEND_BUFFER: usize = 64 * 1024;

/// A request that is to be made.
pub(super) struct Exchange<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) listener: &'a Listener,
    pub(super) backend: &'a Arc<Backend>,
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
    /// The connection broke, or what came is no HTTP.
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
        let mut tried = Vec::new();
        let mut failure = Failure::NoEndpoints;
        while tried.len() < ATTEMPTS {
            let random = self.plane.random();
            let Some(endpoint) = self.backend.endpoint(random, &tried) else {
                break;
            };
            // After the endpoint: settings that are too new are right, those that are too old are not.
            let target = self.backend.target();
            let key = self.key(&target, endpoint);
            trace.endpoint = Some(endpoint);
            trace.retries = u8::try_from(tried.len()).unwrap_or(u8::MAX);
            while let Some(lease) = pool::take(&key) {
                trace.reused = true;
                request = match self.send_on(lease, request, trace).await {
                    Ok(answered) => {
                        self.plane.metrics.backend_reused.inc();
                        return Ok(answered);
                    }
                    // It had ended while it was idle.
                    Err(Some(request)) => *request,
                    Err(None) => return Err(Failure::Broken),
                };
            }
            trace.reused = false;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                failure = Failure::Connect(CloseReason::BackendConnectTimeout);
                break;
            }
            // Requests that come at the same time share one connection of HTTP/2.
            let _opening = match (key.alpn == Alpn::Http2).then(|| pool::turn(&key)) {
                None => None,
                Some(Turn::Open(opening)) => Some(opening),
                Some(Turn::Wait(other)) => {
                    let _ = within(left, other.notified()).await;
                    continue;
                }
            };
            if !tried.is_empty() {
                self.plane.metrics.connect_retries.inc();
            }
            let allowed = dial::share(left, &target, tried.len());
            let reason = match self.open(&key, &target, allowed).await {
                Ok(lease) => match self.send_on(lease, request, trace).await {
                    Ok(answered) => return Ok(answered),
                    Err(None) => return Err(Failure::Broken),
                    Err(Some(back)) => {
                        request = *back;
                        CloseReason::BackendReset
                    }
                },
                Err(reason) => reason,
            };
            failure = Failure::Connect(reason);
            if reason == CloseReason::BackendTlsInvalid {
                break;
            }
            self.plane.metrics.connect_failed(reason.reason());
            self.backend.avoid(endpoint);
            tried.push(endpoint);
        }
        Err(failure)
    }

    fn key(&self, target: &Target, endpoint: SocketAddr) -> Key {
        let tls = upstream::identity(target, self.listener);
        let alpn = match target.protocol {
            Protocol::H2c => Alpn::Http2,
            Protocol::Any if tls.is_some() && !self.upgrade => Alpn::Both,
            Protocol::Any | Protocol::WebSocket => Alpn::Http1,
        };
        Key {
            backend: Arc::clone(self.backend),
            endpoint,
            alpn,
            tls,
        }
    }

    /// Opens a connection and begins HTTP on it.
    async fn open(
        &self,
        key: &Key,
        target: &Target,
        allowed: Duration,
    ) -> Result<Lease, CloseReason> {
        let open = upstream::open(
            self.plane,
            target,
            self.listener,
            key.endpoint,
            key.alpn,
            allowed,
        );
        let stream = open.await?;
        let two = match key.alpn {
            Alpn::Http2 => true,
            Alpn::Both => stream.alpn() == Some(super::H2),
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
        let begun = Instant::now();
        let sent = match &mut lease.sender {
            Sender::One(sender) => {
                // A new connection is ready as soon as its task has run.
                match sender.ready().await {
                    Ok(()) => sender.try_send_request(request).await,
                    Err(_) => return Err(Some(Box::new(request))),
                }
            }
            Sender::Two(sender, _) => sender.try_send_request(request).await,
        };
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
