//! Owns the life of one HTTP connection: hyper with the bounds of this proxy, the deadlines, and the end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use futures::FutureExt;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::activity::{Activity, Verdict};
use super::guard::Refusal;
use super::handle::handle;
use super::http1_connection::Http1Connection;
use super::shared::{Shared, TenantCounts};
use super::timeouts::AnswerCut;
use super::transport::Counted;
use super::{Begun, Version};
use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::cut::unless_cut;
use crate::gate::{InTurn, Moves};
use crate::lifetime::Admission;
use crate::limits::HttpLimits;
use crate::listener::Layer;
use crate::overload::OverloadLevel;
use crate::relay::Moved;

/// How long an HTTP/1.1 connection is idle before it gives back its buffers; more after a request that took longer than this.
/// To take them again costs less than a thousandth of a connection's time, even if a request comes each second.
const QUIET: Duration = Duration::from_secs(1);
/// How long the orderly end of a connection may take.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// HTTP/2 window for the body of one request, in bytes. [`CONNECTION_WINDOW`] is that of the whole connection. They
/// bound what waits in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Most bytes of one response that wait in memory for an HTTP/2 client.
const SEND_BUFFER: usize = 64 * 1024;
/// How many requests may be reset because of errors of the client, before the connection ends.
const MAX_LOCAL_RESETS: usize = 256;

/// hyper's default for the number of fields in a head.
const HYPER_FIELDS: usize = 100;
/// Bytes moved that decoding one field of a head in HTTP/2 counts as, at the gate for transfers.
const BYTES_OF_A_FIELD: u64 = 64;

/// Serves a connection to its end.
pub(crate) async fn serve(begun: Begun) {
    let Begun {
        transport,
        version,
        mut record,
        client_chain,
        permit,
    } = begun;
    let plane = Arc::clone(record.plane());
    let activity = Arc::new(Activity::new(&plane.limits.http));
    let age = age(&record);
    // A connection of TLS has a place of the namespace for which its listener was selected.
    let quota_guard = record.take_place();
    let served_for = quota_guard
        .as_ref()
        .map(|quota_guard| Arc::clone(quota_guard.account().tenant()));
    let shared = Arc::new(Shared {
        age,
        end: age.map(|age| plane.end_of(age)),
        plane,
        client: record.client(),
        client_value: OnceLock::new(),
        peer: record.peer(),
        bind: *record.bind(),
        listener: record.listener().cloned(),
        server_name: record.basis.server_name.clone(),
        served_for,
        client_chain,
        passed: Mutex::new(record.listener().and_then(|of| of.validation.clone())),
        tls_version: record.negotiated().map(|negotiated| negotiated.version),
        activity: Arc::clone(&activity),
        tunnel: Mutex::default(),
        counts: Mutex::new(TenantCounts {
            unknown: permit,
            tenant: quota_guard,
        }),
    });
    let _untie = TunnelCleanup(&shared);
    let limits = &shared.plane.limits.http;
    let io = Counted::new(
        transport,
        Arc::clone(&activity),
        version == Version::One,
        limits.decoded_fields(),
        limits.streams,
    );
    let service = {
        let shared = Arc::clone(&shared);
        service_fn(move |request| handle(Arc::clone(&shared), request).map(Ok::<_, Infallible>))
    };
    let head_bytes = usize::try_from(limits.head_bytes).unwrap_or(usize::MAX);
    let ended = match version {
        Version::One => {
            let mut builder = http1::Builder::new();
            // With an explicit number, hyper allocates an array for each head. For its default, it has one already.
            if limits.fields != HYPER_FIELDS {
                builder.max_headers(limits.fields);
            }
            builder
                // 8192 is the smallest value that hyper accepts. Heads are bounded by the next setting.
                .max_buf_size(head_bytes.max(8192))
                .max_header_size(head_bytes)
                .half_close(false);
            let mut connection = Http1Connection::new(builder, io, service);
            let served = async {
                let ended = drive(Pin::new(&mut connection), &shared, version).await;
                let tunnel = shared.tunnel.lock().take();
                match (tunnel, connection.into_upgraded()) {
                    (Some(tunnel), Some((client, read))) => tunnel.run(client, read).await,
                    _ => ended,
                }
            };
            unless_cut(in_turn(Box::pin(served), &shared)).await
        }
        Version::Two => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .max_concurrent_streams(limits.streams)
                .max_pending_accept_reset_streams(limits.resets)
                .max_local_error_reset_streams(MAX_LOCAL_RESETS)
                .max_header_list_size(limits.head_bytes)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(SEND_BUFFER);
            let connection = builder.serve_connection(TokioIo::new(io), service);
            let served = async { drive(pin!(connection), &shared, version).await };
            unless_cut(in_turn(Box::pin(served), &shared)).await
        }
    };
    record.reason = ended.unwrap_or(CloseReason::Drained);
    let (up, down) = activity.moved();
    record.moved = Moved { up, down };
    record.requests = u32::try_from(activity.requests()).unwrap_or(u32::MAX);
}

/// Lets a connection pass the gate for transfers, so that other tenants get their turn when it moves many bytes.
fn in_turn<F: Future + Unpin>(future: F, shared: &Arc<Shared>) -> InTurn<Served<F>> {
    let shared = Arc::clone(shared);
    InTurn::new(Served { future, shared }, 0)
}

struct Served<F> {
    future: F,
    shared: Arc<Shared>,
}

impl<F: Future + Unpin> Future for Served<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        Pin::new(&mut self.future).poll(cx)
    }
}

impl<F> Moves for Served<F> {
    fn moved(&self) -> u64 {
        let (received, sent) = self.shared.activity.moved();
        let fields = self.shared.activity.fields();
        let decoding = fields.saturating_mul(BYTES_OF_A_FIELD);
        received.saturating_add(sent).saturating_add(decoding)
    }

    fn line(&self) -> Option<usize> {
        Some(self.shared.line())
    }
}

/// The age at which a connection ends. In plaintext, each request selects a listener of its own. But all listeners of
/// one bind belong to one Gateway, so they have the same limits.
fn age(record: &ConnectionRecord) -> Option<Duration> {
    let plane = record.plane();
    let bounds = if record.listener().is_some() {
        record.bounds()
    } else {
        let snapshot = plane.snapshot.load();
        let any = snapshot.listeners(record.bind(), Layer::Plain).next();
        any.map_or(plane.limits.bounds, |listener| plane.bounds(listener))
    };
    plane.age(&bounds)
}

/// Drops a tunnel that was never run. The tunnel refers to the value that holds it, so this cycle has to be broken
/// here.
struct TunnelCleanup<'a>(&'a Shared);

impl Drop for TunnelCleanup<'_> {
    fn drop(&mut self) {
        drop(self.0.tunnel.lock().take());
    }
}

/// A connection that can be asked to end.
trait Connection: Future<Output = hyper::Result<()>> {
    /// Takes no further requests, and tells the client so, by `connection: close` or GOAWAY.
    fn end(self: Pin<&mut Self>);

    /// Gives back the buffers of an HTTP/1.1 connection that is [quiet](Activity::quiet).
    fn release_buffers(self: Pin<&mut Self>) {}
}

impl<S, B> Connection for Http1Connection<S>
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible> + Unpin,
    S::Future: Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn end(self: Pin<&mut Self>) {
        self.get_mut().end();
    }

    fn release_buffers(self: Pin<&mut Self>) {
        self.get_mut().release_buffers();
    }
}

impl<I, B, S, E> Connection for http2::Connection<I, S, E>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn end(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn drive(
    mut connection: Pin<&mut impl Connection>,
    shared: &Shared,
    version: Version,
) -> CloseReason {
    let limits: &HttpLimits = &shared.plane.limits.http;
    let mut age = Age::new(shared.age, shared.plane.limits.age_grace);
    let mut admission = Admission::new();
    let overload = shared.plane.overload();
    let mut step = overload.step();
    let first = {
        let limits = limits.at(step);
        limits.head_deadline.min(limits.idle)
    };
    let first = age.left().map_or(first, |age| first.min(age));
    let first = match version {
        Version::One => first.min(QUIET),
        Version::Two => first,
    };
    let mut timer = pin!(tokio::time::sleep(first));
    let mut told = false;
    let mut reason = None;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                return match ended {
                    Ok(()) => reason.unwrap_or_else(|| ended_in_order(shared)),
                    Err(error) => shared.activity.abuse().unwrap_or_else(|| failed(&error)),
                };
            }
            // The transport makes h2 tell the client, if the client still reads.
            abuse = poll_fn(|cx| shared.activity.poll_abuse(cx)),
                if version == Version::Two && reason.is_none() =>
            {
                reason = Some(abuse);
                told = true;
                timer.as_mut().reset(Instant::now() + LAST_WORDS);
            }
            () = poll_fn(|cx| poll_ending(shared, version, &mut admission, cx)), if !told => {
                told = true;
                connection.as_mut().end();
                // It has as long as one that is old. If the proxy ends, the time to drain is its limit.
                if shared.activity.ending().is_some() {
                    age.reach(shared.plane.limits.age_grace);
                    timer.as_mut().reset(Instant::now());
                }
            }
            () = poll_fn(|_| shared.activity.poll_resumed()), if reason.is_none() => {
                timer.as_mut().reset(Instant::now() + QUIET);
            }
            // The loop judges the connection again, by the shorter time that idle connections have now.
            changed = poll_fn(|_| overload.poll_step(step)), if reason.is_none() => {
                step = changed;
                timer.as_mut().reset(Instant::now());
            }
            () = &mut timer => match (reason, shared.activity.judge(&limits.at(step), version)) {
                (None, Verdict::Wait(wait)) => {
                    if age.is_reached() {
                        shared.activity.grow_old();
                        // In HTTP/1.1 the next response tells the client, because a request may already be on its way.
                        if version == Version::Two && !told {
                            told = true;
                            connection.as_mut().end();
                        }
                    }
                    let mut wait = age.left().map_or(wait, |age| wait.min(age));
                    if version == Version::One {
                        match shared.activity.quiet() {
                            // There is no further request for which it would be kept.
                            Some(_) if told => {}
                            Some(quiet) if quiet >= QUIET => connection.as_mut().release_buffers(),
                            Some(quiet) => wait = wait.min(QUIET.saturating_sub(quiet)),
                            // Something takes longer than a second, and the end of it wakes nobody.
                            None => {}
                        }
                    }
                    if age.is_over() {
                        let old = CloseReason::MaxConnectionAge;
                        reason = shared.activity.ending().or(Some(old));
                        told = true;
                        connection.as_mut().end();
                        wait = LAST_WORDS;
                    }
                    timer.as_mut().reset(Instant::now() + wait);
                }
                (None, Verdict::Idle) => {
                    reason = Some(match step {
                        OverloadLevel::Normal => CloseReason::IdleTimeout,
                        _ => CloseReason::Overload,
                    });
                    told = true;
                    connection.as_mut().end();
                    timer.as_mut().reset(Instant::now() + LAST_WORDS);
                }
                (None, Verdict::SlowHead) => return CloseReason::RequestTimeout,
                (None, Verdict::Stalled) => return CloseReason::ClientStalled,
                (Some(reason), _) => return reason,
            },
        }
    }
}

/// Waits until a connection is to take no further requests. [`Activity::ending`] has the reason, unless this proxy ends.
fn poll_ending(
    shared: &Shared,
    version: Version,
    admission: &mut Admission,
    cx: &Context<'_>,
) -> Poll<()> {
    // In HTTP/2, the client is told before the connection ends. In HTTP/1.1 only a response can tell it. So an idle
    // connection is kept for a while when the proxy begins to close, and a response that ends the connection says so.
    let is_ending = match version {
        Version::One => shared.plane.is_closing_idle(),
        Version::Two => shared.plane.is_closing() || shared.activity.poll_ending(cx).is_ready(),
    };
    if is_ending {
        return Poll::Ready(());
    }
    // No client is validated in plaintext.
    let Some(listener) = &shared.listener else {
        return Poll::Pending;
    };
    let tenant = TenantKey::of_https(&listener.account);
    ready!(admission.poll_lost(tenant, cx, || shared.is_still_admitted()));
    shared.activity.end_connection(CloseReason::NoLongerServed);
    Poll::Ready(())
}

/// Why a connection ended that did not break off.
fn ended_in_order(shared: &Shared) -> CloseReason {
    let activity = &shared.activity;
    let old = activity.is_old().then_some(CloseReason::MaxConnectionAge);
    let reason = activity.ending().or(old);
    reason.unwrap_or(CloseReason::ClientClosed)
}

/// The deadlines that follow from the age of a connection.
struct Age {
    /// When the client is told. `over` is when the connection must have ended.
    told: Option<Instant>,
    over: Option<Instant>,
}

impl Age {
    fn new(age: Option<Duration>, grace: Duration) -> Self {
        let told = age.and_then(|age| Instant::now().checked_add(age));
        let over = told.and_then(|told| told.checked_add(grace));
        Self { told, over }
    }

    /// Lets the connection be old from now on.
    fn reach(&mut self, grace: Duration) {
        let now = Instant::now();
        let over = now.checked_add(grace);
        self.told = Some(now);
        self.over = self.over.into_iter().chain(over).min();
    }

    fn has_passed(at: Option<Instant>) -> bool {
        at.is_some_and(|at| Instant::now() >= at)
    }

    fn is_reached(&self) -> bool {
        Self::has_passed(self.told)
    }

    fn is_over(&self) -> bool {
        Self::has_passed(self.over)
    }

    /// Time until the next of the two.
    fn left(&self) -> Option<Duration> {
        let next = if self.is_reached() {
            self.over
        } else {
            self.told
        };
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }
}

fn failed(error: &hyper::Error) -> CloseReason {
    tracing::debug!(%error, "an HTTP connection failed");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.is::<AnswerCut>() {
            return CloseReason::AnswerTimeout;
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            let refused = matches!(io.get_ref(), Some(inner) if inner.is::<Refusal>());
            return if refused {
                CloseReason::HttpError
            } else {
                CloseReason::ClientReset
            };
        }
        cause = inner.source();
    }
    if error.is_incomplete_message() {
        CloseReason::ClientReset
    } else {
        CloseReason::HttpError
    }
}
