//! Owns the bound on how fast an HTTP/1.1 connection to a backend is read: no faster than an HTTP/2 client reads the
//! response.
//!
//! hyper reads the next piece of a response as soon as the last one was taken from it. With a hundred responses for a
//! client that reads nothing, these would be a hundred pieces, in addition to those that already wait for the client in
//! `held`. So a connection is not read at all while its response may not add another piece there.
//!
//! Before the final head of a response, hyper reads on and parses interim heads (1xx) for as long as they come. So these
//! are bounded, and reading more of them waits at the gate for requests, in the line of the tenant.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

use super::transport::write_together;
use super::unsent::{LAST_PIECE, Share};
use crate::gate::BackendTurn;

/// Most bytes of one read until the final head of a response is known. Most responses fit. If one does not, its client
/// may be one that reads nothing.
const EARLY_READ: usize = LAST_PIECE;
/// Most bytes that a backend may send before its final head is complete. The head itself may have half of them.
const MOST_EARLY: usize = 128 * 1024;

/// The word for metrics and logs when the proxy gives up a connection with such a backend.
pub(super) const TOO_MUCH_EARLY: &str = "TooManyInterimHeads";

/// A backend sends interim heads without end.
#[derive(Debug, thiserror::Error)]
#[error("the backend sent {MOST_EARLY} bytes without a final head")]
pub(super) struct TooMuchEarly;

/// How much may be read of one connection.
#[derive(Default)]
pub(super) struct Throttle {
    /// The bytes of the present response that wait for its client, if they are bounded.
    share: Mutex<Option<Arc<Share>>>,
    /// Whether a response is expected whose final head is not known to have come.
    awaits: AtomicBool,
    /// Bytes that were read while it was awaited.
    early: AtomicUsize,
    /// The line in which the connection waits before it reads more of them.
    line: AtomicUsize,
    /// Wakes the reader when it may read more.
    reader: AtomicWaker,
}

impl Throttle {
    /// Records that the connection gets a request of the tenant with this [line](crate::gate::line).
    pub(super) fn await_answer(&self, line: usize) {
        self.line.store(line, Ordering::Relaxed);
        self.early.store(0, Ordering::Relaxed);
        self.awaits.store(true, Ordering::Relaxed);
    }

    /// Records that the final head of the response has come.
    pub(super) fn answered(&self) {
        self.awaits.store(false, Ordering::Relaxed);
    }

    /// From here on, reads no more of the response than `share` has room for.
    pub(super) fn follow(&self, share: &Arc<Share>) {
        *self.share.lock() = Some(Arc::clone(share));
    }

    /// Reads everything from here on, because the response has ended or nobody wants it.
    pub(super) fn release(&self) {
        let share = self.share.lock().take();
        if let Some(share) = share {
            share.leave();
            self.reader.wake();
        }
    }

    /// How many bytes may be read now. It is pending if none may.
    fn poll_room(&self, cx: &Context<'_>) -> Poll<usize> {
        let share = self.share.lock();
        let Some(share) = &*share else {
            return Poll::Ready(if self.awaits() {
                EARLY_READ
            } else {
                usize::MAX
            });
        };
        self.reader.register(cx.waker());
        share.poll_source(cx)
    }

    fn awaits(&self) -> bool {
        self.awaits.load(Ordering::Relaxed)
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        if let Some(share) = &*self.share.lock() {
            share.read(bytes);
        }
        if self.awaits() {
            let early = self.early.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if early > MOST_EARLY {
                return Err(io::Error::other(TooMuchEarly));
            }
        }
        Ok(())
    }
}

/// A connection that is read no faster than its throttle allows.
pub(super) struct Throttled<S> {
    /// The limit of `Take` is set before each read. It is never 0, because that would look like the end of the stream.
    stream: Take<S>,
    throttle: Arc<Throttle>,
    /// Bytes before the final head of the present response that the tenant has waited for.
    paid: usize,
    turn: BackendTurn,
}

impl<S: AsyncRead> Throttled<S> {
    pub(super) fn new(stream: S, throttle: &Arc<Throttle>) -> Self {
        Self {
            stream: stream.take(0),
            throttle: Arc::clone(throttle),
            paid: 0,
            turn: BackendTurn::new(),
        }
    }

    /// Waits for the turn of the tenant if the backend has sent many bytes without a final head.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let early = self.throttle.early.load(Ordering::Relaxed);
        // It is less if this is a new request.
        self.paid = self.paid.min(early);
        if self.throttle.awaits() && early - self.paid >= EARLY_READ {
            let line = self.throttle.line.load(Ordering::Relaxed);
            ready!(self.turn.poll_early_read(cx, line));
            self.paid = early;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Throttled<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_turn(cx));
        let most = ready!(this.throttle.poll_room(cx));
        this.stream.set_limit(most as u64);
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        Poll::Ready(this.throttle.read(buffer.filled().len() - before))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Throttled<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        write_together(Pin::new(self.stream.get_mut()), cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Wake, Waker};

    use bytes::Bytes;

    use super::super::activity::Activity;
    use super::super::unsent::Piece;
    use super::super::unsent_bytes::MOST;
    use super::*;
    use crate::limits::HttpLimits;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The connection of an answer without end.
    struct Source {
        connection: Throttled<tokio::io::Repeat>,
        share: Arc<Share>,
        woken: Arc<Woken>,
    }

    impl Source {
        fn new(activity: &Arc<Activity>) -> Self {
            let (throttle, share) = (Arc::new(Throttle::default()), Share::new(activity));
            throttle.await_answer(0);
            Self {
                connection: Throttled::new(tokio::io::repeat(7), &throttle),
                share,
                woken: Arc::default(),
            }
        }

        /// How much is read at once into a buffer of 64 KiB.
        fn read(&mut self) -> Option<usize> {
            let waker = Waker::from(Arc::clone(&self.woken));
            let mut bytes = vec![0; 64 * 1024];
            let mut buffer = ReadBuf::new(&mut bytes);
            let connection = Pin::new(&mut self.connection);
            match connection.poll_read(&mut Context::from_waker(&waker), &mut buffer) {
                Poll::Ready(read) => {
                    read.unwrap();
                    Some(buffer.filled().len())
                }
                Poll::Pending => None,
            }
        }

        fn is_woken(&self) -> bool {
            self.woken.0.swap(0, Ordering::SeqCst) > 0
        }

        fn piece(&self) -> Piece {
            self.share.piece(Bytes::from(vec![0; EARLY_READ]))
        }
    }

    #[test]
    fn a_connection_is_read_while_its_answer_has_room() {
        let activity = Arc::new(Activity::new(&HttpLimits::default()));
        let mut answer = Source::new(&activity);
        // The first read is small. When the head is known, the next one takes as much as there is.
        assert_eq!(answer.read(), Some(EARLY_READ));
        let throttle = Arc::clone(&answer.connection.throttle);
        throttle.answered();
        assert_eq!(answer.read(), Some(64 * 1024));
        throttle.follow(&answer.share);
        let own = answer.piece();
        // What is read counts until it is taken.
        let read: usize = std::iter::from_fn(|| answer.read()).sum();
        assert!((MOST..MOST + 16 * 1024).contains(&(EARLY_READ + read)));
        answer.share.took();
        assert!(answer.read().is_some());
        answer.share.took();
        // Now others use up what all answers of the client may hold.
        let others = Source::new(&activity);
        let full = others.share.piece(Bytes::from(vec![0; MOST]));
        answer.is_woken();
        assert_eq!(answer.read(), None);
        assert!(!answer.is_woken());
        // An answer of which nothing waits may still read a small piece, even in several reads.
        drop(own);
        assert!(answer.is_woken());
        assert_eq!(answer.read(), Some(LAST_PIECE));
        assert_eq!(answer.read(), Some(LAST_PIECE));
        answer.share.took();
        let own = answer.piece();
        assert_eq!(answer.read(), None);
        // It goes on when others give room back.
        drop(full);
        assert!(answer.is_woken());
        assert!(answer.read().is_some());
        drop(own);
    }

    #[test]
    fn an_answer_that_nobody_wants_any_more_is_read() {
        let activity = Arc::new(Activity::new(&HttpLimits::default()));
        let mut answer = Source::new(&activity);
        let throttle = Arc::clone(&answer.connection.throttle);
        throttle.follow(&answer.share);
        let _own = answer.share.piece(Bytes::from(vec![0; MOST]));
        assert_eq!(answer.read(), None);
        throttle.release();
        assert!(answer.is_woken());
        assert!(answer.read().is_some());
    }

    #[tokio::test]
    async fn interim_heads_have_turns_and_an_end() {
        let driver = tokio::spawn(crate::gate::keep());
        tokio::task::yield_now().await;
        let throttle = Arc::new(Throttle::default());
        let heads = io::Cursor::new("HTTP/1.1 103 \r\n\r\n".repeat(20_000));
        let mut connection = Throttled::new(heads, &throttle);
        throttle.await_answer(0);
        let (mut turns, mut read) = (vec![0], 0);
        let failed = poll_fn(|cx| {
            loop {
                let mut bytes = vec![0; 64 * 1024];
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut connection).poll_read(cx, &mut buffer) {
                    Poll::Ready(Ok(())) => {
                        read += buffer.filled().len();
                        *turns.last_mut().unwrap() += 1;
                    }
                    Poll::Ready(Err(failed)) => return Poll::Ready(failed),
                    Poll::Pending => {
                        turns.push(0);
                        return Poll::Pending;
                    }
                }
            }
        })
        .await;
        assert!(failed.get_ref().unwrap().is::<TooMuchEarly>(), "{failed}");
        assert_eq!(read, MOST_EARLY);
        // The first read is free.
        assert!(turns.iter().all(|reads| *reads <= 5), "{turns:?}");
        // What follows the head of an answer waits for nothing.
        throttle.await_answer(0);
        let mut bytes = vec![0; 64 * 1024];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut connection).poll_read(cx, &mut buffer))
            .await
            .unwrap();
        assert_eq!(buffer.filled().len(), EARLY_READ);
        throttle.answered();
        while buffer.remaining() > 0 {
            let polled =
                poll_fn(|cx| Poll::Ready(Pin::new(&mut connection).poll_read(cx, &mut buffer)));
            assert!(polled.await.is_ready());
        }
        driver.abort();
    }
}
