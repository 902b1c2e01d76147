//! Owns the pace at which an HTTP/2 connection to a backend is read: its frames have the turns of the tenant.
//!
//! h2 reads on for as long as there are bytes. It answers each PING and SETTINGS frame and decodes each head, so small
//! frames without end would keep the worker from everything else. So the connection passes the gate for requests after
//! each read that brought many frames.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::Frames;
use crate::gate::{self, BackendTurn};
use crate::quota::Account;

/// A connection whose reads wait for their turn, according to the frames that they bring.
pub(super) struct Paced<S> {
    stream: S,
    frames: Frames,
    /// Frames that came and were not paid for.
    owed: u32,
    /// The tenant whose request opened the connection.
    account: Option<Arc<Account>>,
    turn: BackendTurn,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, account: Option<Arc<Account>>) -> Self {
        Self {
            stream,
            frames: Frames::of_backend(),
            owed: 0,
            account,
            turn: BackendTurn::new(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let line = this.account.as_ref().map_or(0, gate::line);
        if ready!(this.turn.poll_frames(cx, line, this.owed)) {
            this.owed = 0;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        let owed = &mut this.owed;
        this.frames
            .follow(bytes, || *owed = owed.saturating_add(1), || false);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn frames_of_a_backend_have_turns() {
        const FRAMES: usize = 10_000;
        let driver = tokio::spawn(gate::keep());
        tokio::task::yield_now().await;
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut connection = Paced::new(Cursor::new(ping.repeat(FRAMES)), None);
        let (mut turns, mut read) = (vec![0], 0);
        poll_fn(|cx| {
            while read < ping.len() * FRAMES {
                let mut bytes = [0; 8 * 1024];
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut connection).poll_read(cx, &mut buffer) {
                    Poll::Ready(done) => {
                        done.unwrap();
                        read += buffer.filled().len();
                        *turns.last_mut().unwrap() += buffer.filled().len() / ping.len();
                    }
                    Poll::Pending => {
                        turns.push(0);
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(())
        })
        .await;
        driver.abort();
        // Those of 64 requests, and of the read that is paid for next.
        assert!(turns.iter().all(|frames| *frames <= 2 * 1024), "{turns:?}");
        assert!(turns.len() > FRAMES / 2 / 1024, "{turns:?}");
    }
}
