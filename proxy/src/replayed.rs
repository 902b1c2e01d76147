//! Owns a client's connection from which some bytes were already read. These are read again first.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::client_socket::ClientSocket;

/// A socket, preceded by bytes that were already read from it.
pub(crate) struct Replayed {
    head: Vec<u8>,
    given: usize,
    stream: ClientSocket,
}

impl Replayed {
    pub(crate) fn new(head: Vec<u8>, stream: TcpStream) -> Self {
        Self {
            head,
            given: 0,
            stream: ClientSocket::new(stream),
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.stream()
    }

    /// Waits for the [loss](ClientSocket::poll_lost) of a client that has ended its sending direction.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.stream.poll_lost(cx)
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
