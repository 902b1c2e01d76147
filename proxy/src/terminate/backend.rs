//! Owns the interface that a tunnel needs on the backend's side, for plain TCP and for TLS.

use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::upstream::TlsToBackend;

/// A connection to a backend. If it ends where it must not, a read fails with `UnexpectedEof`.
pub trait BackendIo: AsyncRead + AsyncWrite + Unpin {
    /// Whether a read returns an end only if the backend said that nothing is missing, as TLS does.
    const PROVES_ITS_END: bool;

    /// The socket below.
    fn socket(&self) -> &TcpStream;

    /// Reads further bytes after a read that filled its buffer, without waiting.
    fn try_read_more(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Ends the sending direction after everything is flushed, without a claim that the data are complete. Over TLS, that
    /// is the end of TCP without `close_notify`. Plain TCP has no such claim, so this is its usual end: a reset could
    /// also take away what the backend has not read yet, and its answer.
    fn poll_truncate(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl BackendIo for TcpStream {
    const PROVES_ITS_END: bool = false;

    fn socket(&self) -> &TcpStream {
        self
    }

    fn try_read_more(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.try_read_vectored(buffers)
    }

    fn poll_truncate(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_shutdown(cx)
    }
}

impl BackendIo for TlsToBackend {
    const PROVES_ITS_END: bool = true;

    fn socket(&self) -> &TcpStream {
        self.socket()
    }

    /// Returns nothing, because TLS reads one record at a time, which is already in a buffer of its own.
    fn try_read_more(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn poll_truncate(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_truncate(cx)
    }
}
