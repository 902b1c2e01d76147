//! Owns the deadlines of connections that are being opened. They are coarse, and cost almost nothing if they are met.
//!
//! A timer of the runtime would cost a system call and a wake-up for every connection, and nearly all timers are
//! dropped unused. Here a waiting future only puts its waker into a list of its thread. One ticker per worker wakes
//! those whose time is over. So a deadline can be late by up to [`TICK`], which does not matter for deadlines of
//! several seconds.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::slots::Slots;

/// How often the ticker looks for futures whose time is over.
const TICK: Duration = Duration::from_millis(50);

thread_local! {
    static WAITING: RefCell<Slots<(Instant, Waker)>> = const { RefCell::new(Slots::new()) };
}

/// The error of a future whose deadline passed before it was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// Runs `future` for at most the time `allowed`. Call it only on a thread that runs [`tick`].
pub(crate) async fn within<F: Future>(allowed: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut deadline = None;
    // It is dropped with the future, in whichever way the future ends.
    let mut waiter = DeadlineWaiter(None);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        // The clock is read only if the future has to wait.
        let now = Instant::now();
        let deadline = *deadline.get_or_insert(now + allowed);
        if now >= deadline {
            return Poll::Ready(Err(Elapsed));
        }
        waiter.wait(cx, deadline);
        Poll::Pending
    })
    .await
}

/// An entry in the list of wakers that [`tick`] wakes on this thread. Its `Drop` removes the entry.
struct DeadlineWaiter(Option<usize>);

impl DeadlineWaiter {
    fn wait(&mut self, cx: &Context<'_>, deadline: Instant) {
        WAITING.with_borrow_mut(|waiting| match self.0 {
            None => self.0 = Some(waiting.insert((deadline, cx.waker().clone()))),
            Some(slot) => match waiting.get_mut(slot) {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                None => waiting.set(slot, Some((deadline, cx.waker().clone()))),
            },
        });
    }
}

impl Drop for DeadlineWaiter {
    fn drop(&mut self) {
        let Some(slot) = self.0 else { return };
        // When a thread ends, the list may be dropped before the futures.
        let _ = WAITING.try_with(|waiting| {
            if let Ok(mut waiting) = waiting.try_borrow_mut() {
                waiting.remove(slot);
            }
        });
    }
}

/// Wakes futures whose time is over, and never returns. Run it once per worker thread.
pub(crate) async fn tick() {
    let mut over = Vec::new();
    loop {
        tokio::time::sleep(TICK).await;
        let now = Instant::now();
        WAITING.with_borrow_mut(|waiting| {
            for slot in waiting.slots_mut() {
                if slot.as_ref().is_some_and(|(deadline, _)| *deadline <= now) {
                    over.extend(slot.take().map(|(_, waker)| waker));
                }
            }
            waiting.shrink();
        });
        // This is outside of the borrow, because a waker may run code that borrows the list.
        for waker in over.drain(..) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> usize {
        WAITING.with_borrow(Slots::len)
    }

    #[tokio::test]
    async fn only_what_is_over_time_is_ended() {
        let ticker = tokio::spawn(tick());
        assert_eq!(within(Duration::ZERO, std::future::ready(7)).await, Ok(7));
        assert_eq!(waiting(), 0, "what need not wait leaves nothing");
        let never = within(Duration::from_millis(1), std::future::pending::<()>());
        assert_eq!(never.await, Err(Elapsed));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let answered = tokio::spawn(within(Duration::from_hours(1), receiver));
        while waiting() == 0 {
            tokio::task::yield_now().await;
        }
        sender.send(8).unwrap();
        assert_eq!(answered.await.unwrap(), Ok(Ok(8)));
        assert_eq!(waiting(), 0);
        let dropped = tokio::spawn(within(
            Duration::from_hours(1),
            std::future::pending::<()>(),
        ));
        while waiting() == 0 {
            tokio::task::yield_now().await;
        }
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        assert_eq!(waiting(), 0);
        ticker.abort();
    }
}
