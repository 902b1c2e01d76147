//! Owns the view of an HTTP/2 connection to a backend for its [meter](Meter) and for the pool: which bytes belong to
//! bodies, how large a head may be, and how many requests the backend takes at one time.
//!
//! Windows bound the bodies that a backend sends, so they take no turns. But a body may go on after its request is gone,
//! or consist of padding. So it is no progress before a client gets it. What the proxy sends of a body is progress at
//! once, because the backend has to answer it with window updates.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::frames::{Frames, HEAD as FRAME_HEADER, Use};
use super::head_size::Announced;
use crate::upstream::Meter;

/// A connection whose frames are counted.
pub(super) struct MeteredFrames<S> {
    stream: S,
    received: Frames,
    announced: Announced,
    sent: Frames,
    meter: Arc<Meter>,
    /// Tells the pool how many requests the backend takes at one time. It is dropped with the connection.
    most: watch::Sender<Option<u32>>,
    /// The number that was told last.
    told: Option<u32>,
}

impl<S> MeteredFrames<S> {
    /// The number of requests at one time goes to `most` as soon as the backend has said it.
    pub(super) fn new(stream: S, meter: &Arc<Meter>, most: watch::Sender<Option<u32>>) -> Self {
        Self {
            stream,
            received: Frames::of_server(),
            announced: Announced::new(),
            sent: Frames::new(),
            meter: Arc::clone(meter),
            most,
            told: None,
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        let meter = &self.meter;
        if let Some(most) = self.announced.follow(bytes) {
            meter.announced(most);
        }
        let streams = self.announced.streams();
        if streams != self.told {
            self.told = streams;
            self.most.send_replace(streams);
        }
        self.received.follow_all(bytes, |frame| {
            if let Use::Data(length) = frame {
                meter.carried(usize::try_from(length).unwrap_or(usize::MAX));
            }
        });
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let meter = &self.meter;
        self.sent.follow_all(bytes, |frame| {
            if let Use::Data(length) = frame {
                // A window update of the stream and one of the connection are no longer than three headers of frames.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                meter.progressed(length.saturating_add(FRAME_HEADER));
            }
        });
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredFrames<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        this.read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredFrames<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes))?;
        this.wrote(bytes.get(..written).unwrap_or(bytes));
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, pieces))?;
        let mut left = written;
        for piece in pieces {
            let part = piece.get(..left).unwrap_or(piece);
            this.wrote(part);
            left -= part.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
