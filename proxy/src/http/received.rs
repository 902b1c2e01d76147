//! Owns bodies as they arrive, and tells the end of a body from a reset.
//!
//! hyper takes a stream of HTTP/2 that is reset with `NO_ERROR` for a body that has ended (RFC 9113 section 8.1). That
//! would make half of a body look complete to the other side, so a body only ends here where its sender says so.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Version};

/// Most fields of trailers, and of the head of a response. In HTTP/1.1, hyper has the same bound.
pub(super) const FIELDS: usize = 100;

/// A body that arrives from a client or from a backend.
pub(super) struct Received {
    body: Incoming,
    /// Whether it comes by HTTP/2, where its last frame has the flag `END_STREAM`.
    two: bool,
}

/// Why a body does not arrive completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("the stream was reset before the end of the body")]
    Reset,
    #[error("there are too many trailers")]
    TooManyTrailers,
    #[error("the backend sent too much that leads to nothing")]
    Flood,
}

impl ReceiveError {
    /// The word for logs, if this ends a response of a backend.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Http(_) | Self::Reset | Self::TooManyTrailers => "BackendBroken",
            Self::Flood => "BackendFlood",
        }
    }
}

pub(super) type Polled = Poll<Option<Result<Frame<Bytes>, ReceiveError>>>;

impl Received {
    /// A body that came with this version of HTTP.
    pub(super) fn new(body: Incoming, version: Version) -> Self {
        let two = version == Version::HTTP_2;
        Self { body, two }
    }

    /// Whether it came with HTTP/1, where the next request can only be read after it.
    pub(super) fn is_http1(&self) -> bool {
        !self.two
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = ReceiveError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // In HTTP/1.1, hyper reports a body that is cut off.
        if frame.is_none() && self.two && !self.body.is_end_stream() {
            return Poll::Ready(Some(Err(ReceiveError::Reset)));
        }
        // It also bounds trailers.
        let trailers = match &frame {
            Some(Ok(frame)) => frame.trailers_ref().map_or(0, HeaderMap::len),
            _ => 0,
        };
        if trailers > FIELDS {
            return Poll::Ready(Some(Err(ReceiveError::TooManyTrailers)));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(ReceiveError::Http)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
