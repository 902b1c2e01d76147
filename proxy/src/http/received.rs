//! Owns bodies as they arrive by hyper, and tells the end of a body from a reset.
//!
//! hyper takes a stream of HTTP/2 that is reset with `NO_ERROR` for a body that has ended (RFC 9113 section 8.1). That
//! would make half of a body look complete to the other side, so a body only ends here where its sender says so.
//!
//! h2 drops the field with which trailers reach the bound for a head, and all fields after it, without a message. So
//! trailers of half that size break the body off: of those that are smaller, h2 dropped nothing, unless one field alone
//! has the other half.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::backend_http1::Http1Error;
use super::head_size::FIELDS;
use super::{head_size, headers};

/// A body that arrives from a client or from a backend.
pub(super) struct Received {
    body: Incoming,
    /// Whether it comes by HTTP/2, where its last frame has the flag `END_STREAM`.
    two: bool,
    /// The size from which trailers are too large.
    most_trailers: usize,
}

/// Why a body does not arrive completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Http1(#[from] Http1Error),
    #[error("the stream was reset before the end of the body")]
    Reset,
    #[error("there are too many trailers, or they are too large")]
    TooManyTrailers,
    #[error("the backend sent too much that leads to nothing")]
    Flood,
}

impl ReceiveError {
    /// The word for logs, if this ends a response of a backend.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Http(_) | Self::Http1(_) | Self::Reset | Self::TooManyTrailers => "BackendBroken",
            Self::Flood => "BackendFlood",
        }
    }
}

/// The size from which trailers are too large, where a head of `head_bytes` is.
pub(super) fn most_trailers(head_bytes: u32) -> usize {
    usize::try_from(head_bytes / 2).unwrap_or(usize::MAX)
}

/// A frame whose trailers are not too many, nor as large as `most_trailers`.
pub(super) fn bounded(
    frame: Frame<Bytes>,
    most_trailers: usize,
) -> Result<Frame<Bytes>, ReceiveError> {
    let is_too_much = frame.trailers_ref().is_some_and(|all| {
        all.len() > FIELDS
            || head_size::of_fields(all) >= most_trailers
            || headers::has_too_many_options(all)
    });
    if is_too_much {
        return Err(ReceiveError::TooManyTrailers);
    }
    Ok(frame)
}

pub(super) type Polled = Poll<Option<Result<Frame<Bytes>, ReceiveError>>>;

impl Received {
    /// A body that came with this version of HTTP. A head of `head_bytes` is too large.
    pub(super) fn new(body: Incoming, version: Version, head_bytes: u32) -> Self {
        Self {
            body,
            two: version == Version::HTTP_2,
            most_trailers: most_trailers(head_bytes),
        }
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
        let frame = frame.map(|frame| frame.map_err(ReceiveError::Http));
        Poll::Ready(frame.map(|frame| bounded(frame?, self.most_trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
