//! Owns writing to a backend that has closed its connection, so that an answer which it sent before is still read.
//!
//! A backend may answer before it has read the whole request, and close (413, for example). TCP then resets the
//! connection, and whoever writes would end with the error of its next write, without a look at the answer that has arrived.
//! So a write succeeds as long as reading goes on. Reading ends by itself: with the end of the stream, or the reset.
//!
//! The kernel reports a reset once. If a write has taken the report, the next reads return what had arrived, and then an
//! end. That end is made the reset again, because an answer without a length would otherwise look complete.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to a backend whose failed writes are not reported before everything has been read.
pub(super) struct Patient<S> {
    stream: S,
    /// Why a write failed, if one did. Later writes are dropped until everything has been read.
    deaf: Option<io::ErrorKind>,
    /// Whether everything that comes has been read.
    has_ended: bool,
    /// How many bytes the stream has taken.
    taken: u64,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            deaf: None,
            has_ended: false,
            taken: 0,
        }
    }

    /// How many bytes the stream has taken. Those that were dropped do not count.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Passes on the result of a write, or `instead` of its error.
    fn heard<T>(&mut self, written: io::Result<T>, instead: T) -> io::Result<T> {
        let closed = [
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
        ];
        match written {
            Err(error) if !self.has_ended && closed.contains(&error.kind()) => {
                self.deaf = Some(error.kind());
                Ok(instead)
            }
            written => written,
        }
    }

    fn count(&mut self, written: &io::Result<usize>) {
        let count = written.as_ref().map_or(0, |count| *count);
        self.taken = self.taken.saturating_add(count as u64);
    }

    /// Whether bytes are dropped instead of written.
    fn drops(&self) -> bool {
        self.deaf.is_some() && !self.has_ended
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        let is_end = read.is_ok() && room > 0 && buffer.filled().len() == before;
        self.has_ended |= read.is_err() || is_end;
        match self.deaf {
            // After an orderly end, the first write that fails reports a broken pipe. So with a broken pipe, this
            // end is genuine.
            Some(kind) if is_end && kind != io::ErrorKind::BrokenPipe => {
                Poll::Ready(Err(kind.into()))
            }
            _ => Poll::Ready(read),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.drops() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.count(&written);
        Poll::Ready(self.heard(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        if self.drops() {
            return Poll::Ready(Ok(length));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, pieces));
        self.count(&written);
        Poll::Ready(self.heard(written, length))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.drops() {
            return Poll::Ready(Ok(()));
        }
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        Poll::Ready(self.heard(flushed, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A connection that the other side closed after its answer, and the kind of error that writes to it fail with.
    struct Closed(&'static [u8], io::ErrorKind);

    impl AsyncRead for Closed {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(self.1.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(self.1.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn writes_fail_when_everything_was_read() {
        let mut stream = Patient::new(Closed(b"answer", io::ErrorKind::BrokenPipe));
        stream.flush().await.unwrap();
        stream.write_all(b"request").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
        assert!(stream.write_all(b"more").await.is_err());
        assert!(stream.flush().await.is_err());
    }

    #[tokio::test]
    async fn a_reset_that_a_write_has_met_is_no_end_of_the_answer() {
        let mut stream = Patient::new(Closed(b"half", io::ErrorKind::ConnectionReset));
        stream.write_all(b"request").await.unwrap();
        let mut answer = Vec::new();
        let error = stream.read_to_end(&mut answer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(answer, b"half");
        assert!(stream.write_all(b"more").await.is_err());
    }
}
