//! Owns bodies on their way through: nothing is kept, each frame goes on when the other side takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body_util::Full;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderName;

use super::Underscores;
use super::activity::Activity;
use super::headers;
use super::pool::Lease;

/// The body of a request, on its way to a backend.
pub(super) struct Upload {
    /// `None`: there is none, and the request is sent again.
    body: Option<Incoming>,
    state: Arc<UploadState>,
    screen: Screen,
}

/// Which trailers of a request do not reach a backend, beside those that never do.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) underscores: Underscores,
    /// Fields that filters set or remove.
    pub(super) edited: Vec<HeaderName>,
}

/// What is known of an upload, for the log and for the deadline on progress.
pub(super) struct UploadState {
    activity: Arc<Activity>,
    received: AtomicU64,
    /// It broke, or is not what HTTP is.
    broken: AtomicBool,
    /// The client is waited for.
    owed: AtomicBool,
    /// The answer has begun: from here on it is a conversation, which may pause.
    answered: AtomicBool,
}

impl UploadState {
    pub(super) fn new(activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            activity,
            received: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        })
    }

    /// Bytes so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether it broke on the client's side.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.owe(false);
    }

    fn owe(&self, owes: bool) {
        let is = owes && !self.answered.load(Ordering::Relaxed);
        let was = self.owed.swap(is, Ordering::Relaxed);
        self.activity.owe(was, is);
    }
}

impl Upload {
    pub(super) fn new(body: Incoming, state: &Arc<UploadState>) -> Self {
        Self {
            body: Some(body),
            state: Arc::clone(state),
            screen: Screen::default(),
        }
    }

    /// The body of a request that has none.
    pub(super) fn none(state: &Arc<UploadState>) -> Self {
        Self {
            body: None,
            state: Arc::clone(state),
            screen: Screen::default(),
        }
    }

    /// Says which trailers the backend of this attempt does not get.
    pub(super) fn screen(&mut self, screen: Screen) {
        self.screen = screen;
    }

    pub(super) fn state(&self) -> &Arc<UploadState> {
        &self.state
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        self.state.owe(polled.is_pending());
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(0, Buf::remaining);
                self.state
                    .received
                    .fetch_add(data as u64, Ordering::Relaxed);
                self.state.activity.progressed(data);
            }
            Poll::Ready(Some(Err(_))) => self.state.broken.store(true, Ordering::Relaxed),
            _ => {}
        }
        let screen = &self.screen;
        edit_trailers(polled, |trailers| {
            headers::strip_request_trailers(trailers, screen.underscores, &screen.edited);
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let none = SizeHint::with_exact(0);
        self.body.as_ref().map_or(none, Body::size_hint)
    }
}

type Polled = Poll<Option<Result<Frame<Bytes>, hyper::Error>>>;

/// Changes the trailers, if these are what comes. Without any left, the body ends.
fn edit_trailers(polled: Polled, edit: impl FnOnce(&mut HeaderMap)) -> Polled {
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
        self.state.owe(false);
    }
}

/// The body of an answer: of our own making, or a backend's.
pub(super) enum Download {
    Own(Full<Bytes>),
    Backend {
        body: Incoming,
        /// Given back when the body has come to its end.
        lease: Option<Lease>,
    },
}

impl Download {
    pub(super) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own(Full::new(text.into()))
    }

    pub(super) fn backend(body: Incoming, lease: Lease) -> Self {
        let mut download = Self::Backend {
            body,
            lease: Some(lease),
        };
        // hyper does not poll what has ended.
        if download.is_end_stream() {
            download.give_back();
        }
        download
    }

    fn give_back(&mut self) {
        if let Self::Backend { lease, .. } = self
            && let Some(lease) = lease.take()
        {
            lease.give_back();
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let polled = match &mut *self {
            Self::Own(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Self::Backend { body, .. } => Pin::new(body).poll_frame(cx),
        };
        let ended = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.is_end_stream(),
            _ => false,
        };
        if ended {
            self.give_back();
        }
        edit_trailers(polled, headers::strip_response_trailers)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Backend { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Backend { body, .. } => body.size_hint(),
        }
    }
}
