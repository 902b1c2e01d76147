//! Owns the bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming, SizeHint};

use super::body::edit_trailers;
use super::headers;
use super::pool::Lease;
use super::received::{Polled, ReceiveError, Received};
use super::throttle::Throttle;

/// Most bytes that are read of a response that nobody gets.
const READ_AWAY: usize = 64 * 1024;

/// The body of a response of a backend, or of this proxy.
pub(super) enum Download {
    Own(Full<Bytes>),
    Backend {
        body: Received,
        /// The connection to the backend. It is given back when the body has ended.
        lease: Option<Lease>,
    },
}

impl Download {
    pub(super) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own(Full::new(text.into()))
    }

    pub(super) fn backend(body: Incoming, lease: Lease) -> Self {
        let mut download = Self::Backend {
            body: Received::new(body, lease.version()),
            lease: Some(lease),
        };
        // hyper does not poll a body that has already ended, so the connection is given back here.
        if download.is_end_stream() {
            download.give_back();
        }
        download
    }

    /// The bound on how fast its connection is read.
    pub(super) fn throttle(&self) -> Option<&Throttle> {
        match self {
            Self::Backend {
                lease: Some(lease), ..
            } => lease.throttle(),
            _ => None,
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
