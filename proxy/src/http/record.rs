//! Owns the record of one request. When the request ends, the record becomes one log line and counts in metrics.

use std::error::Error;
use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode, Version};
use vestibule_model::hostname::Hostname;

use super::body::UploadState;
use super::download::Download;
use super::exchange::Trace;
use super::forwarded::HopInfo;
use super::guard::MAX_METHOD;
use super::headers;
use super::received::ReceiveError;
use super::request_id;
use super::shared::Shared;
use super::timeouts::{Allowed, AnswerCut, Late, Watch};
use super::unsent::{Piece, Share};
use crate::accesslog::TARGET;
use crate::backend::Backend;
use crate::bounds::Bounds;
use crate::challenge::Challenge;
use crate::grpc::{Call, Status};
use crate::http_route::HttpRoute;
use crate::http_route::table::Found;
use crate::listener::Listener;

/// Most characters of a path in the log.
const MAX_PATH: usize = 1024;
/// Most characters of an authority in the log. A hostname has at most 253.
const MAX_AUTHORITY: usize = 255;
/// The status in the log for a request whose client left before there was a response. It is never sent.
const CLIENT_LEFT: u16 = 499;

/// The reason of requests with a body that is too large.
pub(super) const BODY_TOO_LARGE: &str = "BodyTooLarge";
/// The reason of requests whose heads would hold too much beside those of the same connection.
pub(super) const TOO_MANY_HEADS: &str = "TooManyHeads";

/// The record of one request. Its `Drop` counts the request and writes its log line. So every end of a request is
/// recorded, the end of its connection included.
pub(super) struct RequestRecord {
    pub(super) shared: Arc<Shared>,
    started: Instant,
    method: Method,
    pub(super) version: Version,
    /// The path without the query, which may contain secrets.
    pub(super) path: Box<str>,
    /// The client that trusted hops reported.
    client: Option<IpAddr>,
    request_id: Option<HeaderValue>,
    pub(super) authority: Option<Arc<str>>,
    pub(super) listener: Option<Arc<Listener>>,
    /// The challenge, if the client is a CA that checks a hostname. Then no listener is selected.
    pub(super) challenge: Option<Arc<Challenge>>,
    pub(super) found: Option<Found>,
    pub(super) backend: Option<Arc<Backend>>,
    pub(super) trace: Trace,
    /// Number of copies for mirrors.
    pub(super) mirrors: u32,
    /// The outcome of the question to an authorization server, if the rule has one.
    pub(super) authorization: Option<&'static str>,
    /// The outcome for the client's session, if the rule has sessions.
    pub(super) session: Option<&'static str>,
    pub(super) upload: Arc<UploadState>,
    /// The limits of its listener.
    pub(super) bounds: Bounds,
    /// The time that its rule and its listener allow.
    pub(super) allowed: Allowed,
    pub(super) status: StatusCode,
    /// The gRPC call, if it is one.
    pub(super) call: Option<Call>,
    /// The gRPC status that its client got.
    pub(super) grpc_status: Option<Status>,
    pub(super) reason: &'static str,
    /// Bytes from the client within a WebSocket.
    pub(super) tunnelled_in: u64,
    /// Bytes of the response's body, or to the client within a WebSocket.
    pub(super) sent: u64,
    /// Whether the response has ended, or was cut for another reason than that its client left.
    over: bool,
    /// Whether the time is over that the client itself chose. It could have cancelled the request as well.
    pub(super) given_up_by_client: bool,
}

impl RequestRecord {
    /// A record in a box. It becomes part of the response, and each layer of the server moves the response on.
    pub(super) fn new<B>(shared: Arc<Shared>, request: &Request<B>) -> Box<Self> {
        shared.activity.begin();
        Box::new(Self {
            started: Instant::now(),
            method: request.method().clone(),
            version: request.version(),
            path: logged_path(request.uri().path()),
            client: None,
            request_id: None,
            authority: None,
            listener: None,
            challenge: None,
            found: None,
            backend: None,
            trace: Trace::default(),
            mirrors: 0,
            authorization: None,
            session: None,
            upload: UploadState::new(Arc::clone(&shared.activity)),
            bounds: shared.plane.limits.bounds,
            allowed: Allowed::default(),
            status: StatusCode::from_u16(CLIENT_LEFT).unwrap_or(StatusCode::BAD_REQUEST),
            reason: "ClientLeft",
            call: Call::of(request.method(), request.headers()),
            grpc_status: None,
            tunnelled_in: 0,
            sent: 0,
            over: false,
            given_up_by_client: false,
            shared,
        })
    }

    /// Records what a trusted hop reported about the request. Returns the request ID, which is the same for all
    /// attempts.
    pub(super) fn introduce(&mut self, hop_info: Option<&HopInfo>) -> HeaderValue {
        self.client = hop_info.map(|hop_info| hop_info.client);
        let kept = hop_info.and_then(|hop_info| hop_info.request_id.clone());
        let request_id = || kept.unwrap_or_else(request_id::fresh);
        self.request_id.get_or_insert_with(request_id).clone()
    }

    /// Records and counts the outcome of a question to an authorization server.
    pub(super) fn authorized(&mut self, outcome: &'static str) {
        self.shared.plane.metrics.authorized(outcome);
        self.authorization = Some(outcome);
    }

    /// Releases what it shares with other requests. This is for a record that is kept as long as a tunnel is open.
    pub(super) fn detach(&mut self) {
        self.request_id = self.request_id.as_ref().and_then(headers::copied);
    }

    /// Records the gRPC status of a call, from the head of its response or from the trailers.
    pub(super) fn note_grpc_status(&mut self, fields: &HeaderMap) {
        if self.call.is_some() {
            self.grpc_status = Status::read(fields).or(self.grpc_status);
        }
    }

    /// The status to send in trailers to a call whose response was cut. Only HTTP/2 clients get one.
    fn ending(&self, status: Status) -> Option<Status> {
        let call = self.call.as_ref()?;
        (self.version == Version::HTTP_2 && !call.web).then_some(status)
    }

    /// Time since the request's head was complete.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
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
        let route = self.found.as_ref().map(|found| &*found.route);
        let rule = self.found.as_ref().and_then(Found::rule);
        let trace = &self.trace;
        let challenge = self.challenge.as_deref();
        let account = route.map(|r| &r.account).or(listener.map(|l| &l.account));
        let account = account.or(challenge.map(|c| &c.account));
        let Some(_turn) = shared.plane.logs(account.map(|account| &**account)) else {
            return;
        };
        let tenant = route.map(|r| &r.tenant).or(listener.map(|l| &l.tenant));
        let gateway = listener.map(|l| &l.gateway);
        let client: &dyn Display = match &self.client {
            Some(client) => client,
            None => &shared.client,
        };
        // If there are hops in front, this is the nearest one.
        let hop = self.client.map(|_| shared.client);
        let request_id = self.request_id.as_ref().and_then(|id| id.to_str().ok());
        tracing::info!(
            target: TARGET,
            client = %client,
            peer = shared.peer.or(hop).map(tracing::field::display),
            request_id,
            bind = %shared.bind,
            server_name = shared.server_name.as_ref().map(Hostname::as_str),
            tls_version = shared.tls_version,
            protocol = self.protocol(),
            method = beginning(self.method.as_str(), MAX_METHOD),
            authority = self.authority.as_deref().map(|text| beginning(text, MAX_AUTHORITY)),
            path = &*self.path,
            status = self.status.as_u16(),
            grpc_status = self.grpc_status.map(Status::number),
            tenant = tenant.or(challenge.map(|c| &c.tenant)).map(|t| &**t),
            gateway = gateway.or(challenge.map(|c| &c.gateway)).map(|g| &**g),
            challenge = challenge.map(|c| &*c.key),
            listener = listener.map(|l| &*l.key),
            route = route.map(|r| &*r.key),
            route_kind = route.map(HttpRoute::kind),
            rule = rule.map(|rule| &*rule.name).filter(|name| !name.is_empty()),
            rule_index = self.found.as_ref().map(Found::rule_index),
            backend = self.backend.as_deref().map(|backend| &*backend.key),
            endpoint = trace.endpoint.map(tracing::field::display),
            connect_retries = (trace.retries > 0).then_some(trace.retries),
            retries = (trace.again > 0).then_some(trace.again),
            mirrors = (self.mirrors > 0).then_some(self.mirrors),
            authorization = self.authorization,
            session = self.session,
            reused = trace.took.map(|_| trace.reused),
            backend_ms = trace.took.map(milliseconds),
            body_bytes_in = self.upload.received() + self.tunnelled_in,
            body_bytes_out = self.sent,
            duration_ms = milliseconds(self.started.elapsed()),
            reason = self.reason,
        );
    }
}

/// The beginning of a text for the log. Methods and authorities are ASCII, so the cut is never within a character.
fn beginning(text: &str, length: usize) -> &str {
    text.get(..length).unwrap_or(text)
}

/// The beginning of a path for the log. The path of a request that is refused may have any characters, and a terminal or
/// a reader of lines could take some of them for commands. So everything but printable ASCII is percent-encoded.
fn logged_path(path: &str) -> Box<str> {
    encoded(path.as_bytes(), MAX_PATH, |byte| byte.is_ascii_graphic())
}

/// The beginning of an authority that is refused, for the log. It may have any bytes, too. Those that a reader of lines
/// could take for the beginning of another field are percent-encoded as well.
pub(super) fn logged_authority(authority: &[u8]) -> Arc<str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\');
    encoded(authority, MAX_AUTHORITY, is_plain).into()
}

/// The beginning of a text, with at most `most` characters. All bytes but the plain ones are percent-encoded.
fn encoded(text: &[u8], most: usize, is_plain: impl Fn(u8) -> bool) -> Box<str> {
    if text.len() <= most
        && text.iter().copied().all(&is_plain)
        && let Ok(plain) = str::from_utf8(text)
    {
        return plain.into();
    }
    let mut logged = String::with_capacity(text.len().min(most));
    for byte in text.iter().copied() {
        let is_plain = is_plain(byte);
        if logged.len() + if is_plain { 1 } else { 3 } > most {
            break;
        }
        if is_plain {
            logged.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(logged, "%{byte:02X}");
        }
    }
    logged.into()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status = StatusCode::INTERNAL_SERVER_ERROR;
            self.reason = "Internal";
            self.over = true;
        }
        let shared = &*self.shared;
        if self.version == Version::HTTP_2 && (!self.over || self.given_up_by_client) {
            shared.activity.cancelled();
        } else if self.trace.took.is_some() {
            shared.activity.completed();
        }
        self.upload.outlast_answer();
        shared.activity.end();
        let seconds = self.started.elapsed().as_secs_f64();
        let limits = [Late::Idle, Late::Request, Late::Backend].map(Late::reason);
        let bounds = [BODY_TOO_LARGE, TOO_MANY_HEADS];
        if bounds.contains(&self.reason) || limits.contains(&self.reason) {
            shared.plane.metrics.over_limit(self.reason);
        }
        let metrics = &shared.plane.metrics;
        let status = self.status.as_u16();
        metrics.request(self.protocol(), status, seconds);
        if self.call.is_some() {
            metrics.grpc_call(self.grpc_status.map_or("none", Status::name));
        }
        if let Some(listener) = &self.listener {
            let usage = &listener.usage;
            usage.requests.inc();
            let class = usize::from(status / 100).checked_sub(1);
            if let Some(class) = class.and_then(|class| usage.answers.get(class)) {
                class.inc();
            }
        }
        if shared.plane.limits.access_log {
            self.write();
        }
    }
}

/// The body of a response. When it ends, the record of its request ends, and it tracks whether it waits for the client
/// to read.
pub(super) struct Logged<B> {
    body: B,
    /// `None` if the request continues after its response, as with a WebSocket.
    record: Option<Box<RequestRecord>>,
    /// Whether the last frame was taken, and the next one was not asked for yet.
    owed: bool,
    /// The bytes of this response that wait for an HTTP/2 client.
    share: Option<Arc<Share>>,
    /// The timeouts of a backend's response.
    watch: Option<Watch>,
    /// Whether nothing more is passed on, even if the body has more.
    ended: bool,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<B: Body> Logged<B> {
    pub(super) fn new(body: B, mut record: Option<Box<RequestRecord>>) -> Self {
        let mut share = None;
        if let Some(record) = &mut record {
            record.over = body.is_end_stream();
            let shares = record.version == Version::HTTP_2 && !record.over;
            share = shares.then(|| Share::new(&record.shared.activity));
        }
        Self {
            body,
            record,
            owed: false,
            share,
            watch: None,
            ended: false,
        }
    }

    /// Lets the response end when it takes longer than it may.
    pub(super) fn timed(mut self) -> Self {
        let record = self.record.as_ref();
        self.watch = record.and_then(|of| of.allowed.rest(of.elapsed()));
        self
    }

    /// Ready when the response takes too long. Until then, the task is woken when that may be the case.
    fn poll_late(&mut self, cx: &Context<'_>) -> Poll<Late> {
        match (&mut self.watch, &self.record) {
            (Some(watch), Some(record)) => watch.poll(cx, &record.upload.progress),
            _ => Poll::Pending,
        }
    }

    /// Cuts the response off.
    fn cut(&mut self, late: Late) -> Result<HeaderMap, BoxError> {
        if let Some(record) = &mut self.record {
            record.reason = late.reason();
            // The client is not the reason of this end.
            record.over = true;
            record.given_up_by_client = record.allowed.is_of_client(late);
        }
        self.end_call(Status::DEADLINE_EXCEEDED, "the call took too long")
            .ok_or_else(|| AnswerCut.into())
    }

    /// The trailers of a gRPC call whose response broke off.
    fn end_broken_call(&mut self) -> Option<HeaderMap> {
        let record = self.record.as_ref()?;
        if record.upload.is_too_large() {
            let text = "the body is larger than is allowed here";
            return self.end_call(Status::RESOURCE_EXHAUSTED, text);
        }
        self.end_call(Status::UNAVAILABLE, "the backend broke off")
    }

    /// The trailers of a gRPC call that ends before its response does.
    fn end_call(&mut self, status: Status, message: &'static str) -> Option<HeaderMap> {
        let record = self.record.as_mut()?;
        let status = record.ending(status)?;
        let mut trailers = HeaderMap::new();
        status.say(message, &mut trailers);
        record.grpc_status = Some(status);
        record.upload.end();
        self.ended = true;
        Some(trailers)
    }
}

impl Logged<Download> {
    /// Lets the backend's connection be read no faster than an HTTP/2 client reads the response.
    pub(super) fn throttle(&mut self) {
        if let Some(share) = &self.share {
            self.body.follow(share);
        }
    }
}

impl<B> Logged<B> {
    fn owe(&mut self, owes: bool) {
        if let Some(record) = &self.record {
            record.shared.activity.owe(self.owed, owes);
            self.owed = owes;
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Logged<B> {
    type Data = Piece;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let has_room = match &self.share {
            Some(share) => share.poll_room(cx).is_ready(),
            None => true,
        };
        self.owe(!has_room);
        let has_ended = self.watch.as_ref().is_some_and(Watch::has_ended);
        let polled = if has_room && !has_ended {
            Pin::new(&mut self.body).poll_frame(cx)
        } else {
            Poll::Pending
        };
        let Poll::Ready(frame) = polled else {
            let late = ready!(self.poll_late(cx));
            return Poll::Ready(Some(self.cut(late).map(Frame::trailers)));
        };
        let frame = frame.map(|frame| frame.map_err(Into::into));
        let ends = self.body.is_end_stream();
        if let Some(record) = &mut self.record {
            match &frame {
                Some(Ok(frame)) => {
                    let data = frame.data_ref().map_or(0, Buf::remaining);
                    record.sent += data as u64;
                    record.upload.progress.moved();
                    record.shared.activity.piece(data);
                    record.over |= ends || frame.is_trailers();
                    if let Some(trailers) = frame.trailers_ref() {
                        record.note_grpc_status(trailers);
                    }
                }
                Some(Err(error)) => {
                    record.reason = if record.upload.is_too_large() {
                        BODY_TOO_LARGE
                    } else {
                        let broken = error.downcast_ref::<ReceiveError>();
                        broken.map_or("BackendBroken", ReceiveError::reason)
                    };
                    record.over = true;
                }
                None => record.over = true,
            }
        }
        if matches!(frame, Some(Err(_)))
            && let Some(trailers) = self.end_broken_call()
        {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if matches!(frame, Some(Ok(_))) {
            self.owe(true);
        }
        let share = self.share.as_ref();
        let piece = |bytes| match share {
            Some(share) => share.piece(bytes),
            None => Piece::free(bytes),
        };
        let frame = frame.map(|frame| frame.map(|frame| frame.map_data(piece)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Logged<B> {
    fn drop(&mut self) {
        self.owe(false);
        if let Some(share) = &self.share {
            share.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_the_log_is_short_and_printable() {
        let long = "a".repeat(MAX_PATH);
        let almost = "a".repeat(MAX_PATH - 2);
        for (path, logged) in [
            ("/", "/"),
            ("/a%20b~!", "/a%20b~!"),
            (
                "/\u{9b}31m\u{85}\u{2028}\u{202e}",
                "/%C2%9B31m%C2%85%E2%80%A8%E2%80%AE",
            ),
            ("/a\"\n\u{7f}", "/a\"%0A%7F"),
            (&*format!("{long}b"), &*long),
            (&*format!("{almost}\u{e4}b"), &*almost),
        ] {
            assert_eq!(&*logged_path(path), logged);
        }
    }

    #[test]
    fn an_authority_that_is_refused_is_one_value_in_the_log() {
        let long = "a".repeat(MAX_AUTHORITY);
        for (authority, logged) in [
            (&b"a.example.com:99999"[..], "a.example.com:99999"),
            (b"x route=b/c status=200", "x%20route%3Db/c%20status%3D200"),
            (b"a\"\\\t", "a%22%5C%09"),
            (b"\xe4\x1b", "%E4%1B"),
            (format!("{long}b").as_bytes(), &*long),
        ] {
            assert_eq!(&*logged_authority(authority), logged);
        }
    }
}
