//! Owns a connection to a backend as a stream of bytes, over plain TCP or TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::meter::{Meter, Metered};

/// A connection to a backend.
pub(crate) enum Stream {
    /// Plain TCP.
    Plain(Metered),
    /// TLS, after its handshake.
    Tls(Box<Tls>),
}

/// TLS to a backend, after its handshake.
pub(crate) struct Tls(TlsStream<Metered>);

impl Tls {
    /// The socket below.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref().0.socket()
    }

    /// The meter of the socket.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        self.0.get_ref().0.meter()
    }

    /// Ends the sending direction of TCP, without `close_notify`.
    pub(crate) fn poll_truncate(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut().0).poll_shutdown(cx)
    }
}

impl Stream {
    pub(crate) fn tls(stream: TlsStream<Metered>) -> Self {
        Self::Tls(Box::new(Tls(stream)))
    }

    /// The socket below.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream.socket(),
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// The protocol that ALPN agreed on, if any.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.0.get_ref().1.alpn_protocol(),
        }
    }

    /// The meter of the socket.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        match self {
            Self::Plain(stream) => stream.meter(),
            Self::Tls(stream) => stream.meter(),
        }
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.0).poll_read(cx, buffer))?;
        this.meter().passed(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => {
                let before = buffer.filled().len();
                ready!(Pin::new(&mut *stream).poll_read(cx, buffer))?;
                stream.meter().passed(buffer.filled().len() - before);
                Poll::Ready(Ok(()))
            }
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
