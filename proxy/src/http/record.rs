//! Owns what is known of one request, and its one log line and its counts when it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Method, Request, StatusCode, Version};
use vestibule_model::hostname::Hostname;

use super::serve::Shared;
use crate::accesslog::TARGET;
use crate::table::Listener;

/// Most characters of a path in the log.
const MAX_PATH: usize = 1024;

/// What is known of one request. Dropping it counts the request and writes its line, so that no way
/// out of a request, the end of its connection included, goes without.
pub(super) struct RequestRecord {
    shared: Arc<Shared>,
    started: Instant,
    method: Method,
    version: Version,
    /// Without the query, which may have secrets.
    path: Box<str>,
    pub(super) authority: Option<Box<str>>,
    pub(super) listener: Option<Arc<Listener>>,
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    sent: u64,
}

impl RequestRecord {
    pub(super) fn new<B>(shared: Arc<Shared>, request: &Request<B>) -> Self {
        shared.activity.begin();
        let path = request.uri().path();
        Self {
            started: Instant::now(),
            method: request.method().clone(),
            version: request.version(),
            path: path.get(..MAX_PATH).unwrap_or(path).into(),
            authority: None,
            listener: None,
            status: StatusCode::INTERNAL_SERVER_ERROR,
            reason: "Internal",
            sent: 0,
            shared,
        }
    }

    fn protocol(&self) -> &'static str {
        match self.version {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_11 => "HTTP/1.1",
            _ => "HTTP/1.0",
        }
    }

    fn write(&self) {
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        let listener = self.listener.as_deref();
        let shared = &*self.shared;
        tracing::info!(
            target: TARGET,
            client = %shared.peer,
            bind = %shared.bind,
            server_name = shared.server_name.as_ref().map(Hostname::as_str),
            tls_version = shared.tls_version,
            protocol = self.protocol(),
            method = self.method.as_str(),
            authority = self.authority.as_deref(),
            path = &*self.path,
            status = self.status.as_u16(),
            tenant = listener.map(|l| &*l.tenant),
            gateway = listener.map(|l| &*l.gateway),
            listener = listener.map(|l| &*l.key),
            body_bytes_out = self.sent,
            duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            reason = self.reason,
        );
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.activity.end();
        let seconds = self.started.elapsed().as_secs_f64();
        let metrics = &shared.plane.metrics;
        metrics.request(self.protocol(), self.status.as_u16(), seconds);
        if let Some(listener) = &self.listener {
            listener.usage.requests.inc();
        }
        if shared.plane.limits.access_log {
            self.write();
        }
    }
}

/// A body that ends its request's record when it ends.
pub(super) struct Logged<B> {
    body: B,
    record: RequestRecord,
}

impl<B> Logged<B> {
    pub(super) fn new(body: B, record: RequestRecord) -> Self {
        Self { body, record }
    }
}

impl<B: Body + Unpin> Body for Logged<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let data = frame.data_ref().map_or(0, Buf::remaining);
            self.record.sent += data as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
