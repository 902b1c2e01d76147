//! Owns connections: accepting, TLS, HTTP/1.1, how long a connection may be idle, and how it ends.
//!
//! The server speaks only HTTP/1.1. API servers use it for webhooks, so that their requests spread over the replicas.
//!
//! If an API server sends a request on a connection that is just being closed here, it does not try again, and the
//! request of a user fails. So the server leaves it to the API server to close idle connections, which it does after 90
//! s. And if a connection has to end, its last response says so.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use vestibule_serve::places::{Places, Source};

use crate::server::metrics::Metrics;

/// The phase of the server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Requests are served.
    Serving,
    /// Requests are still served, and every response is the last one of its connection.
    Leaving,
    /// New connections and requests are not accepted. Those that have begun are finished.
    Closing,
}

/// Limits on connections.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Most connections at one time, shared fairly between sources. Further ones are closed.
    pub connections: usize,
    /// Time from accept to the end of the TLS handshake.
    pub handshake: Duration,
    /// Time from the handshake to the head of the first request.
    pub first_request: Duration,
    /// Time without a request. It is longer than the 90 s after which API servers close a connection themselves.
    pub idle: Duration,
    /// Time from the head of a request to the end of its response.
    pub request: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 2048,
            handshake: Duration::from_secs(5),
            first_request: Duration::from_secs(10),
            idle: Duration::from_mins(3),
            request: Duration::from_secs(20),
        }
    }
}

/// The state that connections share.
pub(super) struct Acceptor {
    pub(super) tls: TlsAcceptor,
    pub(super) router: Router,
    pub(super) limits: ConnectionLimits,
    pub(super) metrics: Arc<Metrics>,
    pub(super) phase: watch::Receiver<Phase>,
}

impl Acceptor {
    /// Serves until [`Phase::Closing`], and then until every connection has ended.
    pub(super) async fn serve(self, listener: TcpListener) {
        let this = Arc::new(self);
        let mut phase = this.phase.clone();
        let places = Places::new(this.limits.connections);
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                // Connections in the queue are accepted before the socket closes, because they are open for their
                // clients.
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase == Phase::Closing) => break,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(place) = places.take(Source::of_peer(peer.ip()), 1) else {
                        this.metrics.failed("TooManyConnections");
                        continue;
                    };
                    let this = Arc::clone(&this);
                    connections.spawn(async move {
                        this.metrics.connections_accepted.inc();
                        this.metrics.connections.inc();
                        this.connection(stream, peer).await;
                        this.metrics.connections.dec();
                        drop(place);
                    });
                }
                Err(error) => {
                    this.metrics.failed("Accept");
                    if !is_peers_fault(&error) {
                        tracing::warn!(%error, "the webhook cannot accept a connection");
                        // There are most likely no more file descriptors, so some must be freed first.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr) {
        // A response is one write. Without this, a small one would wait for an acknowledgement of the peer.
        let _ = stream.set_nodelay(true);
        let stream = match timeout(self.limits.handshake, self.tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.metrics.failed("Handshake");
                tracing::debug!(%peer, %error, "a TLS handshake with a client of the webhook failed");
                return;
            }
            Err(_) => {
                self.metrics.failed("SlowHandshake");
                return;
            }
        };
        let activity = Activity::new(&self.limits);
        let service = service_fn(|request| self.answer(request, peer.ip(), &activity));
        let connection = hyper::server::conn::http1::Builder::new()
            // The deadline below is used instead, because it can tell an idle client from a slow one.
            .header_read_timeout(None)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut phase = self.phase.clone();
        let mut closing = false;
        loop {
            let deadline = activity.deadline();
            tokio::select! {
                biased;
                // This comes first, so that bytes that have arrived are read before the connection may be closed.
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "a connection to the webhook failed");
                    }
                    return;
                }
                _ = phase.wait_for(|phase| *phase == Phase::Closing), if !closing => {
                    closing = true;
                    // A connection without a request is new, and its request is on the way. The response to that will
                    // be its last one.
                    if activity.has_begun() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                // The deadline is earlier now, so the loop waits for the new one.
                () = activity.nearer.notified() => {}
                () = sleep_until(deadline) => {
                    if activity.deadline() <= Instant::now() {
                        self.metrics.failed(activity.overdue());
                        return;
                    }
                }
            }
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        source: IpAddr,
        activity: &Activity,
    ) -> Result<Response<Body>, std::convert::Infallible> {
        let _busy = activity.begin();
        request.extensions_mut().insert(source);
        let mut response = self.router.clone().oneshot(request.map(Body::new)).await?;
        if *self.phase.borrow() != Phase::Serving {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

fn is_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// The next deadline of a connection.
struct Activity {
    idle: Duration,
    request: Duration,
    begun: AtomicBool,
    busy: AtomicBool,
    deadline: Mutex<Instant>,
    nearer: Notify,
}

impl Activity {
    fn new(limits: &ConnectionLimits) -> Self {
        Self {
            idle: limits.idle,
            request: limits.request,
            begun: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            deadline: Mutex::new(Instant::now() + limits.first_request),
            nearer: Notify::new(),
        }
    }

    fn deadline(&self) -> Instant {
        *self.deadline.lock()
    }

    fn begin(&self) -> Busy<'_> {
        self.begun.store(true, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        *self.deadline.lock() = Instant::now() + self.request;
        self.nearer.notify_one();
        Busy(self)
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// The purpose of the deadline that has passed.
    fn overdue(&self) -> &'static str {
        if self.busy.load(Ordering::Relaxed) {
            "SlowRequest"
        } else if self.has_begun() {
            "Idle"
        } else {
            "NoRequest"
        }
    }
}

/// A request counts as under way until this is dropped.
struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
        *self.0.deadline.lock() = Instant::now() + self.0.idle;
    }
}
