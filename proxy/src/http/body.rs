//! Owns the bodies of requests on their way to a backend. Each frame is passed on when the other side takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderName;
use parking_lot::Mutex;

use super::activity::{Activity, Draining, Keeping};
use super::headers;
use super::kept::{KeptBody, Read, Reader};
use super::received::{Polled, ReceiveError, Received};
use super::timeouts::RequestProgress;
use crate::limits::Underscores;
use crate::upstream::OnMeter;

/// The body of a request, on its way to a backend.
pub(super) struct Upload {
    body: Source,
    state: Arc<UploadState>,
    filter_trailers: TrailerFilter,
    /// Most bytes that the body may have; `None` if there is no limit.
    most: Option<u64>,
    /// The place of the request on the HTTP/2 connection that it is sent on. The backend counts the request for as long as
    /// its body is sent, whatever became of the answer.
    place: Option<Arc<OnMeter>>,
}

/// The source of a request's body.
enum Source {
    /// There is no body. The request is sent again.
    None,
    Client(Received),
    /// The body is read from the client and kept, or read from what was kept.
    Kept(Reader),
}

/// Why a backend does not get the whole body.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error("the client's body broke")]
    Broken(#[source] ReceiveError),
    #[error("the client's body is larger than is allowed")]
    TooLarge,
    #[error("the request is over")]
    Over,
    #[error("the request is being made again")]
    Replaced,
}

/// Which trailers of a request are not passed on to the backend, in addition to those that never are.
#[derive(Clone, Debug, Default)]
pub(super) struct TrailerFilter {
    pub(super) underscores: Underscores,
    /// Header fields that filters set or remove.
    pub(super) edited: Vec<HeaderName>,
}

/// The state of an upload, for the log and for the deadlines on progress.
pub(super) struct UploadState {
    activity: Arc<Activity>,
    /// Progress of the request and of its response.
    pub(super) progress: RequestProgress,
    received: AtomicU64,
    /// Whether all of it was read.
    whole: AtomicBool,
    /// The rest of a body of HTTP/1 that nobody reads, until the request is decided.
    unread: Mutex<Option<Received>>,
    /// Whether that is decided: the response of a backend goes to the client, so it is too late to announce anything.
    decided: AtomicBool,
    too_large: AtomicBool,
    /// Whether it broke off, or is not valid HTTP.
    broken: AtomicBool,
    /// Whether the last look at it found nothing from the client.
    waits: AtomicBool,
    /// Whether it waits for the client, and the client may not pause.
    owed: AtomicBool,
    /// Whether the response has begun. From then on the two sides may talk with each other, so the upload may pause.
    answered: AtomicBool,
    /// Whether the response has ended, and the rest of the body is still sent. Then there is nothing to pause for.
    outlasts: AtomicBool,
    /// Whether this proxy has ended the response. Then nobody reads the rest of the request.
    over: AtomicBool,
    /// Wakes the task that sends the body.
    sending: AtomicWaker,
    /// Whether an attempt has the body and may still read it from the client.
    in_use: AtomicBool,
    /// Keeps the client's connection under way until nobody reads the body any more.
    keeping: Mutex<Option<Keeping>>,
}

impl UploadState {
    pub(super) fn new(activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            activity,
            progress: RequestProgress::new(),
            received: AtomicU64::new(0),
            whole: AtomicBool::new(false),
            unread: Mutex::default(),
            decided: AtomicBool::new(false),
            too_large: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            outlasts: AtomicBool::new(false),
            over: AtomicBool::new(false),
            sending: AtomicWaker::new(),
            in_use: AtomicBool::new(false),
            keeping: Mutex::default(),
        })
    }

    /// Number of bytes so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether all of it was read.
    pub(super) fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    /// Takes the rest of a body of HTTP/1 that nobody reads. It is `None` if the body is still in use, or is kept for
    /// retries.
    pub(super) fn take_unread(&self) -> Option<Received> {
        self.unread.lock().take()
    }

    /// Records that the client gets the response of a backend. If the body is not read to its end, hyper closes the
    /// connection after the response, and the rest of the body must not make the kernel reset it.
    pub(super) fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
        if self.take_unread().is_some() {
            self.activity.linger();
        }
    }

    /// Keeps the connection under way while the rest of the body is read away.
    pub(super) fn drain(&self) -> Draining {
        self.activity.drain()
    }

    /// Keeps the connection under way after the answer, as long as a backend still takes the rest of the body. Otherwise
    /// the connection would count as idle, and end in the middle of the body.
    pub(super) fn outlast_answer(&self) {
        if self.is_in_use() {
            *self.keeping.lock() = Some(self.activity.keep());
            self.outlasts.store(true, Ordering::Relaxed);
            self.account();
        }
    }

    /// Whether an attempt still reads it from the client.
    fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) && !self.is_whole()
    }

    /// Records that nobody reads it from the client any more.
    fn release(&self) {
        self.owe(false);
        self.in_use.store(false, Ordering::Relaxed);
        let keeping = self.keeping.lock().take();
        drop(keeping);
    }

    /// Whether it broke off on the side of the client.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether it has more bytes than it may.
    pub(super) fn is_too_large(&self) -> bool {
        self.too_large.load(Ordering::Relaxed)
    }

    /// Whether it waits for the client.
    pub(super) fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        self.progress.moved();
        self.answered.store(true, Ordering::Relaxed);
        self.account();
    }

    /// Ends the backend's side at once, even if the client has not sent everything yet.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.sending.wake();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Records that no attempt is under way that could wait for the client. An attempt that was replaced is woken, and
    /// gives up what it still sends.
    pub(super) fn pause(&self) {
        self.owe(false);
        self.sending.wake();
    }

    fn owe(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
        self.account();
    }

    fn account(&self) {
        let may_pause =
            self.answered.load(Ordering::Relaxed) && !self.outlasts.load(Ordering::Relaxed);
        let is = self.waits.load(Ordering::Relaxed) && !may_pause;
        let was = self.owed.swap(is, Ordering::Relaxed);
        self.activity.owe(was, is);
    }
}

impl Upload {
    pub(super) fn new(body: Received, state: &Arc<UploadState>) -> Self {
        state.whole.store(body.is_end_stream(), Ordering::Relaxed);
        state.in_use.store(true, Ordering::Relaxed);
        Self::of(Source::Client(body), state)
    }

    /// The body of a request that is kept.
    pub(super) fn kept(reader: Reader, state: &Arc<UploadState>) -> Self {
        if reader.reads_client() {
            state.in_use.store(true, Ordering::Relaxed);
        }
        Self::of(Source::Kept(reader), state)
    }

    fn of(body: Source, state: &Arc<UploadState>) -> Self {
        Self {
            body,
            state: Arc::clone(state),
            filter_trailers: TrailerFilter::default(),
            most: None,
            place: None,
        }
    }

    /// The body of a request that has none.
    pub(super) fn none(state: &Arc<UploadState>) -> Self {
        state.whole.store(true, Ordering::Relaxed);
        Self::of(Source::None, state)
    }

    /// Keeps the body from here on, if there is one. The memory counts towards `namespace`, which is that of the route.
    pub(super) fn keep(&mut self, namespace: &Arc<str>) -> Option<Arc<KeptBody>> {
        let source = std::mem::replace(&mut self.body, Source::None);
        self.body = match source {
            Source::Client(body) if !body.is_end_stream() => {
                // A new body is never given up, so there is always a first reading of it.
                KeptBody::new(body, namespace)
                    .again()
                    .map_or(Source::None, Source::Kept)
            }
            other => other,
        };
        match &self.body {
            Source::Kept(reader) => Some(Arc::clone(reader.kept())),
            Source::None | Source::Client(_) => None,
        }
    }

    /// Sets which trailers are not passed on to the backend of this attempt.
    pub(super) fn filter_trailers(&mut self, filter_trailers: TrailerFilter) {
        self.filter_trailers = filter_trailers;
    }

    /// Sets how many bytes it may have.
    pub(super) fn bound(&mut self, most: Option<u64>) {
        self.most = most;
    }

    /// Whether it has a `Content-Length`, and this is more than it may have.
    pub(super) fn is_said_too_large(&self) -> bool {
        self.most
            .is_some_and(|most| self.size_hint().lower() > most)
    }

    pub(super) fn state(&self) -> &Arc<UploadState> {
        &self.state
    }

    /// Sets the place of the request on the connection that it is sent on.
    pub(super) fn take_place(&mut self, place: Option<Arc<OnMeter>>) {
        self.place = place;
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = &mut *self;
        if matches!(this.body, Source::None) {
            return Poll::Ready(None);
        }
        let state = &*this.state;
        if let Source::Kept(reader) = &this.body
            && reader.is_replaced()
        {
            // The attempt that has replaced this one is to be woken.
            return Poll::Ready(Some(Err(UploadError::Replaced)));
        }
        state.sending.register(cx.waker());
        if state.is_over() {
            return Poll::Ready(Some(Err(UploadError::Over)));
        }
        let polled = match &mut this.body {
            Source::None => return Poll::Ready(None),
            Source::Client(body) => Pin::new(body).poll_frame(cx),
            Source::Kept(reader) => match reader.read(cx) {
                Read::Client(polled) => polled,
                Read::Kept(frame) => {
                    if frame.is_none() || reader.is_end_stream() {
                        state.whole.store(true, Ordering::Relaxed);
                    }
                    let polled = Poll::Ready(frame.map(Ok));
                    return screened(polled, &this.filter_trailers).map_err(UploadError::Broken);
                }
                Read::Replaced => return Poll::Ready(Some(Err(UploadError::Replaced))),
            },
        };
        state.owe(polled.is_pending());
        let has_ended = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers() || this.is_end_stream(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if has_ended {
            state.whole.store(true, Ordering::Relaxed);
        }
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(0, Buf::remaining);
                let before = state.received.fetch_add(data as u64, Ordering::Relaxed);
                state.activity.progressed(data);
                state.progress.moved();
                let received = before.saturating_add(data as u64);
                if this.most.is_some_and(|most| received > most) {
                    state.too_large.store(true, Ordering::Relaxed);
                    return Poll::Ready(Some(Err(UploadError::TooLarge)));
                }
            }
            Poll::Ready(Some(Err(_))) => state.broken.store(true, Ordering::Relaxed),
            _ => {}
        }
        screened(polled, &this.filter_trailers).map_err(UploadError::Broken)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Source::None => true,
            Source::Client(body) => body.is_end_stream(),
            Source::Kept(reader) => reader.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Source::None => SizeHint::with_exact(0),
            Source::Client(body) => body.size_hint(),
            Source::Kept(reader) => reader.size_hint(),
        }
    }
}

fn screened(polled: Polled, filter_trailers: &TrailerFilter) -> Polled {
    edit_trailers(polled, |trailers| {
        headers::strip_request_trailers(
            trailers,
            filter_trailers.underscores,
            &filter_trailers.edited,
        );
    })
}

/// Changes the trailers, if the frame has trailers. If none are left, the body ends.
pub(super) fn edit_trailers(polled: Polled, edit: impl FnOnce(&mut HeaderMap)) -> Polled {
    let Poll::Ready(Some(Ok(frame))) = polled else {
        return polled;
    };
    match frame.into_trailers() {
        Ok(mut trailers) => {
            edit(&mut trailers);
            let left = (!trailers.is_empty()).then(|| Frame::trailers(trailers));
            Poll::Ready(left.map(Ok))
        }
        Err(frame) => Poll::Ready(Some(Ok(frame))),
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Meanwhile another attempt may wait for the client.
        let waits = match &self.body {
            Source::None => false,
            Source::Client(_) => true,
            Source::Kept(reader) => reader.reads_client(),
        };
        if waits {
            self.state.release();
        }
        let state = &*self.state;
        let (is_whole, is_decided) = (state.is_whole(), state.decided.load(Ordering::Relaxed));
        match std::mem::replace(&mut self.body, Source::None) {
            Source::Client(body) if body.is_http1() && !is_whole => {
                *state.unread.lock() = Some(body);
                if is_decided {
                    state.decide();
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Version;
    use super::super::activity::Verdict;
    use super::*;
    use crate::limits::HttpLimits;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_outlasts_its_answer_is_not_idle_and_may_not_stall() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            stall: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let wait = Verdict::Wait(Duration::from_secs(10));
        for version in [Version::One, Version::Two] {
            let activity = Arc::new(Activity::new(&limits));
            let state = UploadState::new(Arc::clone(&activity));
            let judge = || activity.judge(&limits, version);
            activity.begin();
            state.in_use.store(true, Ordering::Relaxed);
            state.owe(true);
            state.answered();
            state.outlast_answer();
            activity.end();
            activity.flushed();
            for _ in 0..5 {
                assert_eq!(judge(), wait);
                assert_eq!(activity.quiet(), None);
                tokio::time::advance(Duration::from_secs(59)).await;
                activity.received(1024);
                activity.progressed(1024);
            }
            assert_eq!(judge(), wait);
            tokio::time::advance(Duration::from_mins(1)).await;
            assert_eq!(judge(), Verdict::Stalled);
            // After its last byte the connection is idle.
            state.release();
            assert_eq!(judge(), wait);
            assert_eq!(activity.quiet(), Some(Duration::ZERO));
            tokio::time::advance(Duration::from_secs(30)).await;
            assert_eq!(judge(), Verdict::Idle);
        }
        // A client waits for a backend that takes no more of the body, and owes nothing.
        let activity = Arc::new(Activity::new(&limits));
        let state = UploadState::new(Arc::clone(&activity));
        activity.begin();
        state.in_use.store(true, Ordering::Relaxed);
        state.answered();
        state.outlast_answer();
        activity.end();
        activity.flushed();
        for _ in 0..5 {
            assert_eq!(activity.judge(&limits, Version::Two), wait);
            tokio::time::advance(Duration::from_mins(1)).await;
        }
        // Nothing is held for a body that nobody reads, or that is whole.
        let activity = Arc::new(Activity::new(&limits));
        let state = UploadState::new(Arc::clone(&activity));
        state.outlast_answer();
        assert_eq!(activity.quiet(), Some(Duration::ZERO));
        state.in_use.store(true, Ordering::Relaxed);
        state.whole.store(true, Ordering::Relaxed);
        state.outlast_answer();
        assert_eq!(activity.quiet(), Some(Duration::ZERO));
    }
}
