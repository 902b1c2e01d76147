//! Owns the end of connections when the time to drain is over. Each connection is told on its own thread, and then ends
//! itself.
//!
//! As with deadlines, a waiting connection only has its waker in a list of its thread. With a cancellation token, each
//! of them would need an entry in one list that all threads share.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::slots::{Slots, Ticket};

thread_local! {
    static CUT: Cell<bool> = const { Cell::new(false) };
    static WAITING: RefCell<Slots<Waker>> = const { RefCell::new(Slots::new()) };
}

/// The error of a future whose connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut;

/// Cuts the connections of this thread, those that begin later included.
pub(crate) fn cut() {
    CUT.set(true);
    rouse();
}

/// Wakes all connections of this thread, because something that they look at has changed.
pub(crate) fn rouse() {
    let wakers: Vec<Waker> =
        WAITING.with_borrow_mut(|waiting| waiting.slots_mut().filter_map(Option::take).collect());
    // This is outside of the borrow, because a waker may run code that borrows the list.
    for waker in wakers {
        waker.wake();
    }
}

/// Wakes all connections of this thread at each change, and never returns. Run it once per worker thread.
pub(crate) async fn rouse_at_each(mut change: watch::Receiver<()>) {
    while change.changed().await.is_ok() {
        rouse();
    }
}

/// Runs `future` until it is ready, or until the connections of its thread are cut.
pub(crate) fn unless_cut<F: Future + Unpin>(future: F) -> UnlessCut<F> {
    UnlessCut {
        future,
        waiter: CutWaiter(None),
    }
}

/// The future of [`unless_cut`]. It is not an async function, because that would have room for the inner future twice.
pub(crate) struct UnlessCut<F> {
    future: F,
    waiter: CutWaiter,
}

impl<F: Future + Unpin> Future for UnlessCut<F> {
    type Output = Result<F::Output, Cut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if CUT.get() {
            return Poll::Ready(Err(Cut));
        }
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(cx) {
            return Poll::Ready(Ok(output));
        }
        self.waiter.wait(cx);
        Poll::Pending
    }
}

/// An entry in the list of wakers that [`cut`] wakes on this thread. Its `Drop` removes the entry.
struct CutWaiter(Option<Ticket>);

impl CutWaiter {
    fn wait(&mut self, cx: &Context<'_>) {
        WAITING.with_borrow_mut(|waiting| match self.0 {
            None => self.0 = Ticket::of(waiting.insert(cx.waker().clone())),
            Some(ticket) => match waiting.get_mut(ticket.place()) {
                Some(waker) => waker.clone_from(cx.waker()),
                None => waiting.set(ticket.place(), Some(cx.waker().clone())),
            },
        });
    }
}

impl Drop for CutWaiter {
    fn drop(&mut self) {
        let Some(ticket) = self.0 else { return };
        // When a thread ends, the list may be dropped before the futures.
        let _ = WAITING.try_with(|waiting| {
            if let Ok(mut waiting) = waiting.try_borrow_mut() {
                waiting.remove(ticket.place());
            }
        });
    }
}

/// Ends our direction, and waits until the peer ends its own. If a socket is closed with unread bytes, the kernel sends
/// a reset, which overtakes bytes that the peer has not read yet. There is no time limit here: the wait ends with the
/// peer.
pub(crate) async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let mut unread = [0; 2048];
        while matches!(stream.read(&mut unread).await, Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn future_that_waits_is_told_of_a_cut_and_one_that_is_done_leaves_no_waiter() {
        let waiting = || WAITING.with_borrow(Slots::len);
        assert_eq!(unless_cut(std::future::ready(7)).await, Ok(7));
        assert_eq!(waiting(), 0, "what need not wait leaves nothing");
        let tasks = [0; 3].map(|_| tokio::spawn(unless_cut(std::future::pending::<()>())));
        while waiting() < 3 {
            tokio::task::yield_now().await;
        }
        let [dropped, rest @ ..] = tasks;
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        assert_eq!(waiting(), 2);
        cut();
        for task in rest {
            assert_eq!(task.await.unwrap(), Err(Cut));
        }
        assert_eq!(waiting(), 0);
        assert_eq!(unless_cut(std::future::ready(7)).await, Err(Cut));
        CUT.set(false);
    }
}
