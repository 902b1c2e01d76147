//! Owns the bound on how fast an HTTP/1.1 connection to a backend is read: no faster than an HTTP/2 client reads the
//! response.
//!
//! hyper reads the next piece of a response as soon as the last one was taken from it. With a hundred responses for a
//! client that reads nothing, these would be a hundred pieces, in addition to those that already wait for the client in
//! `held`. So a connection is not read at all while its response may not add another piece there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

use super::transport::write_together;
use super::unsent::{LAST_PIECE, Share};

/// Most bytes of one read until the final head of a response is known. Most responses fit. If one does not, its client
/// may be one that reads nothing.
const EARLY_READ: usize = LAST_PIECE;

/// How much may be read of one connection.
#[derive(Default)]
pub(super) struct Throttle {
    /// The bytes of the present response that wait for its client, if they are bounded.
    share: Mutex<Option<Arc<Share>>>,
    /// Whether a response is expected whose final head is not known to have come.
    awaits: AtomicBool,
    /// Wakes the reader when it may read more.
    reader: AtomicWaker,
}

impl Throttle {
    /// Records that the connection gets a request.
    pub(super) fn await_answer(&self) {
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

    fn read(&self, bytes: usize) {
        if let Some(share) = &*self.share.lock() {
            share.read(bytes);
        }
    }
}

/// A connection that is read no faster than its throttle allows.
pub(super) struct Throttled<S> {
    /// The limit of `Take` is set before each read. It is never 0, because that would look like the end of the stream.
    stream: Take<S>,
    throttle: Arc<Throttle>,
}

impl<S: AsyncRead> Throttled<S> {
    pub(super) fn new(stream: S, throttle: &Arc<Throttle>) -> Self {
        Self {
            stream: stream.take(0),
            throttle: Arc::clone(throttle),
        }
    }

    pub(super) fn get_ref(&self) -> &S {
        self.stream.get_ref()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Throttled<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let most = ready!(this.throttle.poll_room(cx));
        this.stream.set_limit(most as u64);
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        this.throttle.read(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
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
    use std::sync::atomic::AtomicUsize;
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
            throttle.await_answer();
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
}
