//! Owns the interface that a tunnel needs on the backend's side, for plain TCP and for TLS.

use std::io::{self, IoSliceMut};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection to a backend. If it ends where it must not, a read fails with `UnexpectedEof`.
pub trait BackendIo: AsyncRead + AsyncWrite + Unpin {
    /// The socket below.
    fn socket(&self) -> &TcpStream;

    /// Reads further bytes after a read that filled its buffer, without waiting.
    fn try_read_more(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
}

impl BackendIo for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn try_read_more(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.try_read_vectored(buffers)
    }
}

impl BackendIo for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }

    /// Returns nothing, because TLS reads one record at a time, which is already in a buffer of its own.
    fn try_read_more(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}
