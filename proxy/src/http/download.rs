//! Owns the bodies of responses.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Response, Version};

use super::backend_http1::{Http1Answer, Upgraded};
use super::body::{Upload, edit_trailers};
use super::headers;
use super::pool::Lease;
use super::received::{Polled, ReceiveError, Received, bounded, most_trailers};
use super::unsent::Share;
use crate::gate::yield_now;
use crate::upstream::{self, Meter};

/// Most bytes that are read of a response that nobody gets.
const READ_AWAY: usize = 64 * 1024;

/// The body of a response of a backend.
pub(super) struct BackendBody {
    body: Source,
    /// The meter of its connection.
    meter: Arc<Meter>,
    /// What the next poll returns, if that is known already.
    next: Option<Taken>,
}

type Taken = Option<Result<Frame<Bytes>, ReceiveError>>;

/// A body as it arrives.
pub(super) enum Arriving {
    One(Http1Answer<upstream::Stream, Upload>),
    Two(Incoming),
}

/// The source of a body. Its trailers are bounded.
enum Source {
    One {
        body: Http1Answer<upstream::Stream, Upload>,
        most_trailers: usize,
    },
    Two(Received),
}

impl Source {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Polled {
        match self {
            Self::One {
                body,
                most_trailers,
            } => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| bounded(frame?, *most_trailers)))
            }
            Self::Two(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::One { body, .. } => body.is_end_stream(),
            Self::Two(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::One { body, .. } => body.size_hint(),
            Self::Two(body) => body.size_hint(),
        }
    }
}

impl BackendBody {
    /// Takes the part of the body that has arrived together with the head. A head of `head_bytes` is too large.
    ///
    /// # Errors
    /// The body has broken off before any part of it arrived. The client has seen nothing of the response yet, so it
    /// can get another one.
    pub(super) async fn begin(
        response: Response<Arriving>,
        meter: &Arc<Meter>,
        head_bytes: u32,
    ) -> Result<Response<Self>, ReceiveError> {
        let (head, body) = response.into_parts();
        let body = match body {
            Arriving::One(body) => Source::One {
                body,
                most_trailers: most_trailers(head_bytes),
            },
            Arriving::Two(body) => Source::Two(Received::new(body, Version::HTTP_2, head_bytes)),
        };
        let mut body = Self {
            body,
            meter: Arc::clone(meter),
            next: None,
        };
        if !body.body.is_end_stream() {
            let polled = poll_fn(|cx| Poll::Ready(body.poll_next(cx))).await;
            body.next = match polled {
                Poll::Ready(Some(Err(error))) => return Err(error),
                Poll::Ready(taken) => Some(taken),
                Poll::Pending => None,
            };
        }
        Ok(Response::from_parts(head, body))
    }

    /// Takes the connection of a response that switches protocols. It is `None` if HTTP goes on.
    pub(super) fn into_upgraded(self) -> Option<Upgraded> {
        match self.body {
            Source::One { body, .. } => body.into_upgraded(),
            Source::Two(_) => None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Polled {
        let polled = ready!(self.body.poll_frame(cx));
        Poll::Ready(match polled {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                // In HTTP/2, the frames themselves show what they carry.
                if matches!(self.body, Source::One { .. }) {
                    self.meter.carried(bytes);
                }
                self.meter.progressed(bytes);
                Some(Ok(frame))
            }
            Some(Err(_)) if self.meter.is_over() => Some(Err(ReceiveError::Flood)),
            other => other,
        })
    }
}

impl Body for BackendBody {
    type Data = Bytes;
    type Error = ReceiveError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        if let Some(next) = self.next.take() {
            return Poll::Ready(next);
        }
        match ready!(self.poll_next(cx)) {
            // hyper closes the client's connection at an error, and drops what it has not written. It writes what it
            // has when the body is pending.
            Some(Err(error)) => {
                self.next = Some(Some(Err(error)));
                yield_now(cx);
                Poll::Pending
            }
            taken => Poll::Ready(taken),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.size_hint();
        let data = match &self.next {
            Some(Some(Ok(frame))) => frame.data_ref().map_or(0, Buf::remaining),
            _ => 0,
        };
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(data as u64));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(data as u64));
        }
        whole
    }
}

/// The body of a response of a backend, or of this proxy.
pub(super) enum Download {
    Own(Full<Bytes>),
    Backend {
        body: Box<BackendBody>,
        /// The connection to the backend. It is given back when the body has ended.
        lease: Option<Lease>,
    },
}

impl Download {
    pub(super) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own(Full::new(text.into()))
    }

    pub(super) fn backend(body: BackendBody, lease: Lease) -> Self {
        let mut download = Self::Backend {
            body: Box::new(body),
            lease: Some(lease),
        };
        // hyper does not poll a body that has already ended, so the connection is given back here.
        if download.is_end_stream() {
            download.give_back();
        }
        download
    }

    /// From here on, takes no more of its connection at one time than `share` has room for. In HTTP/2, windows bound it.
    pub(super) fn follow(&mut self, share: &Arc<Share>) {
        if let Self::Backend { body, .. } = self
            && let Source::One { body, .. } = &mut body.body
        {
            body.follow(share);
        }
    }

    /// Reads and drops the rest of the body, if that is not much, so that its connection can be used again.
    pub(super) async fn read_away(mut self) {
        let mut left = READ_AWAY;
        while let Some(Ok(frame)) = self.frame().await {
            left = match left.checked_sub(frame.data_ref().map_or(0, Buf::remaining)) {
                Some(left) => left,
                None => return,
            };
        }
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
    type Error = ReceiveError;

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
