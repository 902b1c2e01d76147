//! Owns what a tunnel asks of the backend's side, whether it is plain TCP or TLS.

use std::io::{self, IoSliceMut};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection to a backend. One that is cut where it must not be reads as `UnexpectedEof`.
pub trait BackendIo: AsyncRead + AsyncWrite + Unpin {
    /// The socket below.
    fn socket(&self) -> &TcpStream;

    /// Reads what is there behind a read that was full, without waiting.
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

    /// One record is read at a time: it is in a buffer of its own already.
    fn try_read_more(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}
