//! Owns the pace at which an HTTP/2 connection to a backend is read, and the end of one whose frames serve no request.
//!
//! h2 reads on for as long as there are bytes. It answers each PING and SETTINGS frame and decodes each head, so small
//! frames without end would keep the worker from everything else. So the connection passes the gate for requests after
//! each read that brought many frames.
//!
//! A backend also has a budget of frames that are no part of a response's body. What the proxy sends gives back more
//! than a backend needs to answer it: a head, trailers, and window updates. When the budget is used up, the proxy gives
//! up the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::budget::Budget;
use super::frames::{Frames, Use};
use super::pool::TwoState;
use crate::gate::{self, BackendTurn};
use crate::quota::Account;

/// The budget of frames of one connection. A backend that has read a whole connection window at once may send thousands
/// of window updates for it.
const FRAMES: u32 = 10_000;
const FRAMES_PER_REQUEST: u32 = 16;
/// For each DATA frame that the proxy sends. In addition, each KiB in it gives back one.
const FRAMES_PER_PIECE: u32 = 4;
/// For each DATA frame that the backend sends.
const FRAMES_PER_RECEIVED_PIECE: u32 = 1;
const FRAMES_PER_SECOND: u32 = 10;

/// The word for metrics and logs when the proxy gives up a connection with such a backend.
pub(super) const TOO_MANY_FRAMES: &str = "TooManyFrames";

/// A backend sends frames that serve no request, without end.
#[derive(Debug, thiserror::Error)]
#[error("the backend sent too many frames that serve no request")]
struct TooManyFrames;

/// A connection whose reads wait for their turn, according to the frames that they bring.
pub(super) struct Paced<S> {
    stream: S,
    received: Frames,
    sent: Frames,
    /// Frames that came and were not paid for.
    owed: u32,
    budget: Budget,
    begun: Instant,
    state: Arc<TwoState>,
    /// The tenant whose request opened the connection.
    account: Option<Arc<Account>>,
    turn: BackendTurn,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, account: Option<Arc<Account>>, state: &Arc<TwoState>) -> Self {
        Self {
            stream,
            received: Frames::of_server(),
            sent: Frames::new(),
            owed: 0,
            budget: Budget::new(FRAMES, FRAMES_PER_SECOND),
            begun: Instant::now(),
            state: Arc::clone(state),
            account,
            turn: BackendTurn::new(),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (owed, budget, begun) = (&mut self.owed, &self.budget, self.begun);
        let now = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.received.follow_all(bytes, |frame| {
            *owed = owed.saturating_add(1);
            match frame {
                Use::Data(_) => budget.earn(FRAMES_PER_RECEIVED_PIECE),
                // Interim heads (1xx) may come without end, so heads count.
                Use::Head | Use::None => budget.spend(now),
            }
        });
        if budget.is_over() {
            self.state.floods.store(true, Ordering::Relaxed);
            return Err(io::Error::other(TooManyFrames));
        }
        Ok(())
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let budget = &self.budget;
        self.sent.follow_all(bytes, |frame| match frame {
            Use::Head => budget.earn(FRAMES_PER_REQUEST),
            Use::Data(length) => budget.earn(FRAMES_PER_PIECE.saturating_add(length / 1024)),
            Use::None => {}
        });
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
        Poll::Ready(this.read(buffer.filled().get(before..).unwrap_or_default()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
        let mut connection = Paced::new(Cursor::new(ping.repeat(FRAMES)), None, &Arc::default());
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

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        [&head[..], payload].concat()
    }

    fn connection() -> (Paced<()>, Arc<TwoState>) {
        let state = Arc::default();
        (Paced::new((), None, &state), state)
    }

    #[test]
    fn frames_of_a_backend_that_serve_no_request_have_an_end() {
        for (kind, flags, payload) in [
            (0, 0, &[][..]),       // empty DATA
            (1, 4, &[0x88]),       // a head
            (2, 0, &[0; 5]),       // PRIORITY
            (3, 0, &[0; 4]),       // RST_STREAM
            (4, 0, &[]),           // SETTINGS
            (6, 0, &[0; 8]),       // PING
            (8, 0, &[0, 0, 0, 1]), // WINDOW_UPDATE
            (0xbe, 0, &[]),        // unknown
        ] {
            let (mut connection, state) = connection();
            let frame = frame(kind, flags, payload);
            let read = (1..2 * FRAMES).find(|_| connection.read(&frame).is_err());
            // A slow machine may take a second or two.
            let read = read.unwrap();
            assert!((FRAMES + 1..FRAMES + 100).contains(&read), "{kind}: {read}");
            assert!(state.floods.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn who_answers_what_it_is_asked_goes_on() {
        let (mut connection, state) = connection();
        connection.wrote(super::super::PREFACE);
        for _ in 0..FRAMES {
            // A request with a body, for which the backend sends window updates.
            connection.wrote(&frame(1, 4, b"block"));
            connection.wrote(&frame(0, 1, &[7; 8 * 1024]));
            let update = frame(8, 0, &[0, 0, 16, 0]);
            connection.read(&update.repeat(4)).unwrap();
            // An interim head, the final one, the body, and trailers.
            connection.read(&frame(1, 4, b"early")).unwrap();
            connection.read(&frame(1, 4, b"final")).unwrap();
            connection.read(&frame(0, 0, b"body")).unwrap();
            connection.read(&frame(1, 5, b"last")).unwrap();
        }
        assert!(!state.floods.load(Ordering::Relaxed));
    }
}
