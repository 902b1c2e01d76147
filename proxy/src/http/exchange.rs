//! Owns one attempt to get a response to a request from a backend: which connection the request gets, and how it ends.
//!
//! A request is tried again as long as it is certain that no backend has seen it: the connection could not be opened,
//! or it had ended before the request was written. If the connection breaks after that, but before the response begins,
//! the request is repeated once if [`Repeat`] allows it. This happens when a backend closes an idle connection while
//! the next request is on its way, and when a pod dies with a request. A head whose body is already known to have
//! broken off, before any part of it arrived, is not the beginning of a response. Once a response has begun, nothing is
//! tried again.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Body as _;
use hyper::client::conn::http2;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;

use super::H2;
use super::backend_http1::{Http1Backend, Http1Error};
use super::body::{Upload, UploadState};
use super::download::{Arriving, BackendBody};
use super::head_size::{self, FIELDS};
use super::headers::{self, detach, has_too_many_options, take_trailers};
use super::metered_frames::MeteredFrames;
use super::patient::Patient;
use super::pool::{self, Http1Sender, Http2Sender, Key, Lease, Sender, Turn};
use super::received::ReceiveError;
use super::retry_state::RetryState;
use super::scratch::SCRATCH;
use super::unsent::LAST_PIECE;
use crate::backend::{Backend, Protocol};
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::deadline::within;
use crate::limits::Repeat;
use crate::plane::DataPlane;
use crate::quota::{QuotaGuard, TenantQuota};
use crate::side::bound_unsent;
use crate::tried::Tried;
use crate::upstream::{Alpn, Credentials};
use crate::{dial, gate, health, upstream};

/// HTTP/2 window for the body of one response, in bytes; [`CONNECTION_WINDOW`] is that of the whole connection. The
/// windows bound what waits in memory. All requests of a connection together cannot use up its window, so a client that
/// reads nothing does not hold up the requests of others.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * pool::STREAMS;
/// Most bytes of a request's body that wait in memory for a backend, in HTTP/2.
const SEND_BUFFER: usize = 64 * 1024;
/// For how long an HTTP/2 connection knows which requests were given up. Frames of these requests may still come, and without
/// this each would be answered by one more reset, which backends count. After this time nobody waits for such an answer.
const RESETS_KNOWN: Duration = Duration::from_hours(1);

/// The part of the time to connect below which a request has less than half of the share of an attempt.
const LATE: u32 = 6;

/// Most bytes of requests that the kernel holds for a backend whose window is closed.
const MOST_UNSENT: u32 = 128 * 1024;

/// What all attempts at one request share.
pub(super) struct Attempts {
    /// Random bits that choose the backend by weight, and the first of its endpoints.
    pub(super) random: u64,
    /// The deadline for connecting, for all attempts together.
    end: Instant,
    /// Endpoints that were tried already.
    tried: Tried,
    /// How the last attempt failed.
    pub(super) failure: Option<ExchangeFailure>,
    /// Whether method and body allow one more attempt after a connection broke.
    repeatable: bool,
    /// Whether that attempt was made.
    repeated: bool,
    /// The retries that the route asks for.
    pub(super) retries: RetryState,
    /// Whether its mirrors have their copies, or get them.
    pub(super) mirrored: bool,
}

impl Attempts {
    pub(super) fn new(plane: &DataPlane, request: &Request<Upload>) -> Self {
        Self {
            repeatable: plane.limits.http.repeat == Repeat::Idempotent
                && request.method().is_idempotent()
                && request.body().is_end_stream(),
            ..Self::once(plane)
        }
    }

    /// For a request that is never sent again.
    pub(super) fn once(plane: &DataPlane) -> Self {
        Self {
            random: plane.random(),
            end: Instant::now() + plane.limits.connect_deadline,
            tried: Tried::default(),
            failure: None,
            repeatable: false,
            repeated: false,
            retries: RetryState::default(),
            mirrored: false,
        }
    }

    /// Forbids a second attempt, because the route does.
    pub(super) fn never_repeat(&mut self) {
        self.repeatable = false;
    }

    /// Prepares a retry. It goes to another endpoint of the backend than `last`, if there is one.
    pub(super) fn start_over(&mut self, plane: &DataPlane, last: Option<SocketAddr>) {
        let lower = u64::from(u32::MAX);
        self.random = (self.random & !lower) | (plane.random() & lower);
        self.end = Instant::now() + plane.limits.connect_deadline;
        self.tried.start_over(last);
        self.failure = None;
    }
}

/// How an attempt without an answer ended.
pub(super) enum Ended {
    /// No further attempt can be made.
    Failed(ExchangeFailure),
    /// Another attempt has to be made, with this body.
    Again(Upload),
}

/// Everything that one attempt needs.
pub(super) struct Exchange<'a> {
    pub(super) plane: &'a DataPlane,
    /// The client certificate for the backend.
    pub(super) credentials: Credentials,
    pub(super) backend: Arc<Backend>,
    /// The host for the backend.
    pub(super) authority: Option<HeaderValue>,
    pub(super) path: PathAndQuery,
    /// Whether it may become a WebSocket, which only works with HTTP/1.1.
    pub(super) upgrade: bool,
    /// Whether it belongs to a GRPCRoute. Then it uses HTTP/2, whatever the port of the Service says.
    pub(super) grpc: bool,
    /// The endpoint of the client's session, which is tried first.
    pub(super) preferred: Option<SocketAddr>,
    /// The tenant for whom it is, if that is known. Work that the backend causes without an answer has its turns.
    pub(super) account: Option<Arc<TenantQuota>>,
}

/// How a request was sent, for the log.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The endpoint that was tried last.
    pub(super) endpoint: Option<SocketAddr>,
    /// How many endpoints were tried before it.
    pub(super) retries: u8,
    /// How many retries there were because the route asks for them.
    pub(super) again: u32,
    /// Whether the connection had carried a request before.
    pub(super) reused: bool,
    /// Whether a connection has the request, and the response has not begun.
    pub(super) awaited: bool,
    /// Time from when a connection got the request to the head of the response.
    pub(super) took: Option<Duration>,
}

/// Why there is no response of a backend.
#[derive(Debug)]
pub(super) enum ExchangeFailure {
    /// The backend has no endpoints.
    NoEndpoints,
    /// No connection could be opened.
    Connect(CloseReason),
    /// The connection broke, or the response is not valid HTTP, and the request may not be repeated.
    Broken,
    /// The backend refused the request without looking at it, which HTTP/2 allows.
    Refused,
    /// The proxy gave up the connection, because the backend sent without end what leads to nothing.
    Flood,
    /// The head of the request is larger than the backend takes, as it announced.
    HeadTooLarge,
}

impl ExchangeFailure {
    /// The HTTP status for the client.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Connect(CloseReason::BackendTlsInvalid) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Connect(CloseReason::BackendLoop) => StatusCode::LOOP_DETECTED,
            Self::NoEndpoints | Self::Connect(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken | Self::Refused | Self::Flood => StatusCode::BAD_GATEWAY,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    /// The word for metrics and logs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoEndpoints => "NoEndpoints",
            Self::Connect(reason) => reason.reason(),
            Self::Broken => "BackendBroken",
            Self::Refused => "BackendRefused",
            Self::Flood => "BackendFlood",
            Self::HeadTooLarge => "HeadTooLarge",
        }
    }
}

/// Why there is no new connection.
struct Unopened {
    reason: CloseReason,
    /// Whether another request tried to open it.
    shared: bool,
}

pub(super) type Answered = (Response<BackendBody>, Lease);

/// A request that a connection did not answer.
enum Unanswered {
    /// The connection did not begin to write the request, so it is returned.
    Unseen(Box<Request<Upload>>),
    /// The backend takes no such head.
    TooLarge,
    /// The backend may have seen it.
    Seen(Arc<UploadState>, ExchangeFailure),
}

impl Exchange<'_> {
    /// A reason for which the request cannot go to any endpoint, if there is one. This is checked without waiting, so
    /// it also takes precedence when no time is left.
    pub(super) fn refusal(&self, attempts: &mut Attempts) -> Option<ExchangeFailure> {
        let target = &self.backend.target;
        if target.endpoints.is_empty() {
            let failure = attempts.failure.take();
            return Some(failure.unwrap_or(ExchangeFailure::NoEndpoints));
        }
        let tls = target.tls.as_ref();
        let refused = tls.and_then(|tls| tls.refusal(&self.credentials));
        refused.map(ExchangeFailure::Connect)
    }

    /// Sends the request to an endpoint that was not tried yet.
    pub(super) async fn attempt(
        &self,
        mut request: Request<Upload>,
        attempts: &mut Attempts,
        trace: &mut Trace,
    ) -> Result<Answered, Ended> {
        let shown = Some(&self.credentials);
        let target = &self.backend.target;
        let (preferred, random) = (self.preferred, attempts.random);
        let tried = &attempts.tried;
        let next = tried.next_or_preferred(preferred, &self.backend, random, shown);
        let Some(endpoint) = next else {
            let failure = attempts.failure.take();
            return Err(Ended::Failed(
                failure.unwrap_or(ExchangeFailure::NoEndpoints),
            ));
        };
        let repeated = attempts.repeated;
        let key = self.key(endpoint, || repeated || head_size::is_large(&request));
        trace.endpoint = Some(endpoint);
        trace.retries = u8::try_from(attempts.tried.len()).unwrap_or(u8::MAX);
        let mut has_paid = false;
        let opened = loop {
            // If one idle connection was closed, the others may be closed as well. So a repeated request gets a new
            // connection.
            while let Some(lease) = (!attempts.repeated).then(|| pool::take(&key)).flatten() {
                trace.reused = true;
                request = match self.send_on(lease, request, trace).await {
                    Ok(answered) => {
                        self.plane.endpoint_succeeded(&self.backend, endpoint);
                        self.plane.metrics.backend_reused.inc();
                        return Ok(answered);
                    }
                    // The connection had ended while it was idle, so the next one is tried.
                    Err(Unanswered::Unseen(request)) => *request,
                    Err(Unanswered::TooLarge) => {
                        return Err(Ended::Failed(ExchangeFailure::HeadTooLarge));
                    }
                    Err(Unanswered::Seen(state, failure)) => {
                        return Err(self.broken(attempts, &state, failure));
                    }
                };
            }
            trace.reused = false;
            // Requests that share a connection wait for it first, and only the one that opens it pays.
            if !has_paid && !key.is_shared() {
                has_paid = true;
                if self.pass_gate(&mut attempts.end).await {
                    continue;
                }
            }
            let left = attempts.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let failure = ExchangeFailure::Connect(CloseReason::BackendConnectTimeout);
                return Err(Ended::Failed(failure));
            }
            let allowed = attempts.tried.share(left, target, shown);
            // `None` means that another request opened a connection that may be shared. The loop looks for it.
            if let Some(opened) = self.open_in_turn(&key, left, allowed).await {
                break opened;
            }
        };
        if attempts.tried.len() > 0 {
            self.plane.metrics.connect_retries.inc();
        }
        attempts.tried.push(endpoint, target, shown);
        let is_shared = matches!(opened, Err(Unopened { shared: true, .. }));
        let (reason, body) = match opened {
            Ok(lease) => match self.send_on(lease, request, trace).await {
                Ok(answered) => {
                    self.plane.endpoint_succeeded(&self.backend, endpoint);
                    return Ok(answered);
                }
                Err(Unanswered::Unseen(request)) => {
                    (CloseReason::BackendReset, request.into_body())
                }
                Err(Unanswered::TooLarge) => {
                    return Err(Ended::Failed(ExchangeFailure::HeadTooLarge));
                }
                Err(Unanswered::Seen(state, failure)) => {
                    // The endpoint is not to blame if the client did not send the whole request.
                    if !state.is_broken() && !state.is_too_large() {
                        self.no_answer(trace, CloseReason::BackendReset.reason());
                    }
                    return Err(self.broken(attempts, &state, failure));
                }
            },
            Err(Unopened { reason, .. }) => (reason, request.into_body()),
        };
        // These fail for every endpoint alike.
        if matches!(
            reason,
            CloseReason::BackendTlsInvalid | CloseReason::OutOfSockets | CloseReason::TenantLimit
        ) {
            return Err(Ended::Failed(ExchangeFailure::Connect(reason)));
        }
        // What another request tried is counted once.
        if !is_shared {
            self.plane.metrics.connect_failed(reason.reason());
            let kind = health::EndpointFailure::Connect;
            self.plane
                .endpoint_failed(&self.backend, endpoint, kind, reason.reason());
        }
        attempts.failure = Some(ExchangeFailure::Connect(reason));
        Err(Ended::Again(body))
    }

    /// Decides what follows when the connection with the request broke.
    fn broken(
        &self,
        attempts: &mut Attempts,
        state: &Arc<UploadState>,
        failure: ExchangeFailure,
    ) -> Ended {
        let repeats = attempts.repeatable && !attempts.repeated && !self.upgrade;
        if !repeats {
            return Ended::Failed(failure);
        }
        attempts.repeated = true;
        attempts.failure = Some(failure);
        self.plane.metrics.requests_repeated.inc();
        Ended::Again(Upload::none(state))
    }

    /// Records that the endpoint with the request does not answer it.
    pub(super) fn no_answer(&self, trace: &Trace, reason: &'static str) {
        if let Some(endpoint) = trace.endpoint {
            let failure = health::EndpointFailure::Answer;
            self.plane
                .endpoint_failed(&self.backend, endpoint, failure, reason);
        }
    }

    /// `alone` says whether an HTTP/2 connection may have no other request at the same time. It is asked only where
    /// HTTP/2 is possible.
    fn key(&self, endpoint: SocketAddr, alone: impl FnOnce() -> bool) -> Key {
        let target = &self.backend.target;
        let tls = upstream::identity(target.tls.as_ref(), &self.credentials);
        let alpn = match target.protocol {
            _ if self.grpc => Alpn::Http2,
            Protocol::H2c => Alpn::Http2,
            Protocol::Any if tls.is_some() && !self.upgrade => Alpn::Both,
            Protocol::Any | Protocol::WebSocket => Alpn::Http1,
        };
        let account = self.account.as_ref().filter(|_| alpn != Alpn::Http1);
        let tenant = account.map(TenantKey::of);
        Key {
            backend: Arc::clone(&self.backend),
            endpoint,
            alpn,
            tls,
            send_proxy: target.send_proxy,
            alone: alpn != Alpn::Http1 && alone(),
            tenant: tenant.unwrap_or_default(),
        }
    }

    /// Opens a connection in the time `allowed`. Requests at the same time share one HTTP/2 connection, so only one of them
    /// opens it, and its failure is that of all. The result is `None` if another request opened it within `patience`, or
    /// none did.
    async fn open_in_turn(
        &self,
        key: &Key,
        patience: Duration,
        allowed: Duration,
    ) -> Option<Result<Lease, Unopened>> {
        let own = |reason| Unopened {
            reason,
            shared: false,
        };
        if !key.is_shared() {
            return Some(self.open(key, allowed).await.map_err(own));
        }
        let mut end = Instant::now() + patience;
        let opening = match pool::turn(key, patience).await {
            Turn::Look => return None,
            Turn::Failed(reason) => {
                return Some(Err(Unopened {
                    reason,
                    shared: true,
                }));
            }
            Turn::Open(opening) => opening,
        };
        self.pass_gate(&mut end).await;
        let allowed = allowed.min(end.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let opened = self.open(key, allowed).await;
        let failure = opened.as_ref().err().copied();
        // A request that had waited long itself had no time left for this. That says nothing to others.
        let was_late = allowed < self.plane.limits.connect_deadline / LATE;
        if was_late && failure == Some(CloseReason::BackendConnectTimeout) {
            drop(opening);
        } else if let Ok(Lease {
            sender: Sender::Two(two),
            ..
        }) = &opened
        {
            // This request goes ahead, and the others wait until it is known how many of them the backend takes.
            // They need time for another endpoint, so they wait no longer than for a connection.
            let left = allowed.saturating_sub(began.elapsed());
            tokio::spawn(opening.end_when_settled(two.settles(), left, was_late));
        } else {
            opening.end(failure);
        }
        Some(opened.map_err(own))
    }

    /// Waits for the tenant's turn to open a connection, and moves the deadline by as long, since the wait is the proxy's and not
    /// the backend's. Returns whether it had to wait.
    async fn pass_gate(&self, deadline: &mut Instant) -> bool {
        let began = Instant::now();
        let line = || self.account.as_ref().map_or(0, gate::line);
        let has_waited = gate::pass_backend_connection(line).await;
        if has_waited {
            *deadline += began.elapsed();
        }
        has_waited
    }

    /// Opens a connection and begins HTTP on it.
    async fn open(&self, key: &Key, allowed: Duration) -> Result<Lease, CloseReason> {
        let place = match &self.account {
            Some(account) => {
                let place = account.take_backend_connection(self.plane.quota_limits());
                Some(place.ok_or(CloseReason::TenantLimit)?)
            }
            None => None,
        };
        let open = dial::open(
            self.plane,
            &self.backend.target,
            &self.credentials,
            key.endpoint,
            key.alpn,
            None,
            allowed,
        );
        let stream = open.await?;
        bound_unsent(stream.socket(), MOST_UNSENT);
        let two = match key.alpn {
            Alpn::Http2 => true,
            Alpn::Both => stream.alpn() == Some(H2),
            Alpn::None | Alpn::Http1 => false,
        };
        let failed = |error: hyper::Error| {
            tracing::debug!(endpoint = %key.endpoint, %error, "HTTP with a backend did not begin");
            CloseReason::BackendReset
        };
        let meter = Arc::clone(stream.meter());
        let sender = if two {
            let (announces, most) = watch::channel(None);
            let frames = MeteredFrames::new(Patient::new(stream), &meter, announces);
            let io = TokioIo::new(frames);
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(self.plane.limits.http.head_bytes)
                .max_send_buf_size(SEND_BUFFER)
                .max_concurrent_reset_streams(pool::MOST_RESETS)
                .reset_stream_duration(RESETS_KNOWN);
            let begun = within(allowed, builder.handshake(io)).await;
            let begun = begun.map_err(|_| CloseReason::BackendConnectTimeout)?;
            let (sender, connection) = begun.map_err(failed)?;
            tokio::spawn(run(connection, key.endpoint, place));
            Sender::Two(Http2Sender::new(sender, most, meter))
        } else {
            Sender::One(Http1Sender {
                connection: Http1Backend::new(stream, place),
                meter,
            })
        };
        self.plane.metrics.backend_opened.inc();
        Ok(Lease::new(key.clone(), sender))
    }

    /// Sends the request on a connection.
    async fn send_on(
        &self,
        mut lease: Lease,
        mut request: Request<Upload>,
        trace: &mut Trace,
    ) -> Result<Answered, Unanswered> {
        if let Sender::One(one) = &lease.sender {
            // Requests that came together are written together. Reading from clients and writing to backends in turns takes the
            // kernel a tenth longer.
            tokio::task::yield_now().await;
            // By now, the runtime has looked at the sockets.
            if trace.reused && !one.is_open() {
                return Err(Unanswered::Unseen(Box::new(request)));
            }
        }
        // Most responses fit into this. If one does not, an HTTP/2 client may be one that reads nothing.
        let piece = if request.version() == Version::HTTP_2 {
            LAST_PIECE
        } else {
            SCRATCH
        };
        self.dress(&mut request, &lease);
        // Some servers do not read such a body, and take it for the next request.
        let unusual = !request.body().is_end_stream() && !has_usual_body(request.method());
        let is_two = matches!(lease.sender, Sender::Two(..));
        if is_two && !lease.meter().takes_head(head_size::of_request(&request)) {
            return Err(Unanswered::TooLarge);
        }
        let state = Arc::clone(request.body().state());
        trace.awaited = true;
        let begun = Instant::now();
        let meter = Arc::clone(lease.meter());
        meter.charge(self.account.as_ref());
        lease.sends(request.body_mut());
        let sent = match &mut lease.sender {
            Sender::One(one) => {
                let sent = one.connection.send(request, piece).await;
                sent.map(|response| response.map(Arriving::One))
                    .map_err(|failed| (failed.unseen, SendError::One(failed.error)))
            }
            Sender::Two(two) => {
                let sent = two.sender.try_send_request(request).await;
                sent.map(|response| response.map(Arriving::Two))
                    .map_err(|mut error| {
                        let request = error.take_message().map(Box::new);
                        (request, SendError::Two(error.into_error()))
                    })
            }
        };
        trace.awaited = false;
        match sent {
            Ok(response) => {
                // A backend of HTTP/1.0 may not know chunks, and take a body for the next request. So may one that answers
                // before it has the whole body.
                let old = response.version() < Version::HTTP_11;
                if unusual || old || !state.is_whole() {
                    lease.spend();
                }
                if response.headers().len() > FIELDS {
                    tracing::debug!(endpoint = ?trace.endpoint, "a response has too many fields");
                    return Err(Unanswered::Seen(state, ExchangeFailure::Broken));
                }
                if has_too_many_options(response.headers()) {
                    tracing::debug!(endpoint = ?trace.endpoint, "the Connection field of a response has too many options");
                    return Err(Unanswered::Seen(state, ExchangeFailure::Broken));
                }
                let took = begun.elapsed();
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    meter.become_tunnel();
                }
                let head_bytes = self.plane.limits.http.head_bytes;
                let begins = BackendBody::begin(response, &meter, head_bytes);
                let response = begins.await.map_err(|error| {
                    tracing::debug!(endpoint = ?trace.endpoint, %error, "a response broke off");
                    let failure = match error {
                        ReceiveError::Flood => ExchangeFailure::Flood,
                        ReceiveError::Http(_)
                        | ReceiveError::Http1(_)
                        | ReceiveError::Reset
                        | ReceiveError::TooManyTrailers => ExchangeFailure::Broken,
                    };
                    Unanswered::Seen(state, failure)
                })?;
                trace.took = Some(took);
                let metrics = &self.plane.metrics;
                metrics.backend_response_seconds.observe(took.as_secs_f64());
                Ok((response, lease))
            }
            Err((request, error)) => {
                // Otherwise the proxy itself has reset the request.
                if !state.is_broken() && !state.is_too_large() {
                    lease.ended();
                }
                tracing::debug!(endpoint = ?trace.endpoint, %error, "a request failed");
                let failure = if is_refused(&error) {
                    ExchangeFailure::Refused
                } else if meter.is_over() {
                    ExchangeFailure::Flood
                } else {
                    ExchangeFailure::Broken
                };
                Err(request.map_or(Unanswered::Seen(state, failure), Unanswered::Unseen))
            }
        }
    }

    /// Writes the target of the request in the form of the connection's protocol.
    fn dress(&self, request: &mut Request<Upload>, lease: &Lease) {
        match &lease.sender {
            Sender::One(_) => {
                // `Host` is obligatory, so the field is empty if no host is known.
                let host = self.authority.clone();
                let host = host.unwrap_or_else(|| HeaderValue::from_static(""));
                request.headers_mut().insert(HOST, host);
                headers::say_trailers(request.headers_mut());
                if !request.headers().contains_key(CONTENT_LENGTH) {
                    frame(request);
                }
                *request.uri_mut() = Uri::from(self.path.clone());
            }
            Sender::Two(..) => {
                let is_detached = request.version() == Version::HTTP_2;
                let headers = request.headers_mut();
                for name in [HOST, CONNECTION, UPGRADE, TRANSFER_ENCODING] {
                    headers.remove(name);
                }
                // h2 keeps fields as long as the connection is open, so that it can send them as an index the next
                // time. They must not keep the buffer of the client's head in memory. Those of an HTTP/2 client do not,
                // because they are copies, as are those of an authorization server.
                if !is_detached {
                    detach(headers);
                }
                if self.grpc {
                    take_trailers(headers);
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

/// Whether requests with this method usually have a body. For the others, it has no meaning (RFC 9110 section 9.3).
fn has_usual_body(method: &Method) -> bool {
    let without = [
        Method::GET,
        Method::HEAD,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ];
    !without.contains(method)
}

/// Says in HTTP/1.1 where the body of a request ends whose head does not say it.
fn frame(request: &mut Request<Upload>) {
    let body = request.body();
    if body.is_end_stream() {
        // Some servers answer 411 without it. HTTP/2 clients leave it out.
        if [Method::POST, Method::PUT, Method::PATCH].contains(request.method()) {
            let none = HeaderValue::from_static("0");
            request.headers_mut().insert(CONTENT_LENGTH, none);
        }
    } else if body.size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
}

/// Why a connection did not answer a request, in the terms of its version of HTTP.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    One(Http1Error),
    #[error(transparent)]
    Two(hyper::Error),
}

/// Whether an HTTP/2 server reports that it did not look at the request (RFC 9113 sections 6.8 and 8.7).
fn is_refused(error: &SendError) -> bool {
    let SendError::Two(error) = error else {
        return false;
    };
    let source = std::error::Error::source(error);
    let Some(error) = source.and_then(|source| source.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let ends = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (ends || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// Runs an HTTP/2 connection to an endpoint to its end. Until then it has a place of its namespace.
async fn run(
    connection: impl Future<Output = hyper::Result<()>>,
    endpoint: SocketAddr,
    _place: Option<QuotaGuard>,
) {
    if let Err(error) = connection.await {
        tracing::debug!(%endpoint, %error, "a backend connection failed");
    }
}
