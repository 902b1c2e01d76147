//! Owns the bytes below HTTP: plaintext or TLS, with what was read before handed out first.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;

/// A socket of which some bytes were read already.
pub(super) struct Replayed {
    head: Vec<u8>,
    given: usize,
    stream: TcpStream,
}

impl Replayed {
    pub(super) fn new(head: Vec<u8>, stream: TcpStream) -> Self {
        Self {
            head,
            given: 0,
            stream,
        }
    }
}

impl AsyncRead for Replayed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = this.head.get(this.given..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let now = left.get(..buffer.remaining()).unwrap_or(left);
        buffer.put_slice(now);
        this.given += now.len();
        if this.given == this.head.len() {
            this.head = Vec::new();
            this.given = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// What HTTP is spoken over.
pub(super) enum Transport {
    Plain(Replayed),
    Tls(Box<TlsStream<Replayed>>),
}

impl Transport {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut (dyn Stream + '_)> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream.as_mut()),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// A transport whose bytes are counted.
pub(super) struct Counted {
    transport: Transport,
    activity: Arc<Activity>,
}

impl Counted {
    pub(super) fn new(transport: Transport, activity: Arc<Activity>) -> Self {
        Self {
            transport,
            activity,
        }
    }

    fn inner(self: Pin<&mut Self>) -> Pin<&mut (dyn Stream + '_)> {
        Pin::new(&mut self.get_mut().transport).inner()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.as_mut().inner().poll_read(cx, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        self.activity.received(read as u64);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.as_mut().inner().poll_write(cx, bytes))?;
        self.activity.sent(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.as_mut().inner().poll_write_vectored(cx, bytes))?;
        self.activity.sent(written as u64);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }
}
