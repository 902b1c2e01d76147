//! Owns the time limits of tunnels: the longest time without a byte in either direction, and the longest time in total.
//!
//! These limits are hours, so they need no precise clock. A timer that is reset with every byte would cost more than
//! the byte. Instead, each thread counts ticks of a second. When the task of a tunnel is woken, it records the present
//! tick. It asks for one alarm at a later tick. When the alarm comes, the tunnel has been idle for too long, or it asks
//! for another alarm. Only the two sockets of a tunnel and its alarm wake the task, so bytes do not have to be counted.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::close_reason::CloseReason;
use crate::side::Side;
use crate::slots::{Slots, Ticket};

/// Length of a tick.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two looks at the sockets of a tunnel in which bytes wait.
const LOOK: u32 = 5;
/// A tick that never comes. It is 136 years away.
const NEVER: u32 = u32::MAX;

thread_local! {
    static TICKS: Cell<u32> = const { Cell::new(0) };
    static WAITING: RefCell<Slots<(u32, Waker)>> = const { RefCell::new(Slots::new()) };
}

/// Number of ticks of this thread so far.
pub(crate) fn ticks() -> u32 {
    TICKS.get()
}

/// Number of ticks after which `time` has certainly passed. At most two ticks more have passed then.
pub(crate) fn in_ticks(time: Duration) -> u32 {
    let whole = time
        .as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0));
    // One is added, because the present tick has already begun.
    u32::try_from(whole.saturating_add(1)).unwrap_or(NEVER)
}

/// Counts ticks, and never returns. Run it once per worker thread.
pub(crate) async fn tick() {
    loop {
        tokio::time::sleep(TICK).await;
        advance();
    }
}

/// Counts a tick, and wakes the tasks that wait for it.
pub(crate) fn advance() {
    let now = ticks().saturating_add(1);
    TICKS.set(now);
    let mut due = Vec::new();
    WAITING.with_borrow_mut(|waiting| {
        for slot in waiting.slots_mut() {
            if slot.as_ref().is_some_and(|(at, _)| *at <= now) {
                due.extend(slot.take().map(|(_, waker)| waker));
            }
        }
        waiting.shrink();
    });
    // This is outside of the borrow, because a waker may run code that borrows the list.
    for waker in due {
        waker.wake();
    }
}

/// Wakes a task at a tick. Its `Drop` gives back its place in the list of the thread.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Ticket>);

impl Alarm {
    /// Sets the tick at which the task is woken. It replaces the one that was set before.
    pub(crate) fn set(&mut self, cx: &Context<'_>, at: u32) {
        WAITING.with_borrow_mut(|waiting| match self.0 {
            None => self.0 = Ticket::of(waiting.insert((at, cx.waker().clone()))),
            Some(ticket) => match waiting.get_mut(ticket.place()) {
                Some((when, waker)) => {
                    *when = at;
                    waker.clone_from(cx.waker());
                }
                None => waiting.set(ticket.place(), Some((at, cx.waker().clone()))),
            },
        });
    }
}

impl Drop for Alarm {
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

/// The time limits of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// Most ticks without a byte; `None` if there is no limit.
    pub(crate) idle: Option<u32>,
    /// The tick at which it ends in any case, if there is one.
    pub(crate) end: Option<u32>,
}

/// A tunnel, as far as its time limits have to know it.
pub(crate) trait Watched {
    /// Whether bytes wait because their receiver takes none. Then nothing reads from their sender, and so no read shows
    /// that the sender is gone.
    fn is_stalled(&self) -> bool;

    /// The side whose connection is lost, as the kernel reports it.
    fn lost(&self) -> Option<Side>;
}

/// Why a tunnel ended that did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelOver {
    /// There was no byte from either side for too long.
    Idle,
    /// The tunnel reached its maximum age.
    Age,
    /// This side was gone while bytes waited for the other one.
    Lost(Side),
}

/// Runs a tunnel until it ends, or until one of its limits is reached. Nothing but the two sides of the tunnel may wake
/// its task. Call it only on a thread that runs [`tick`].
pub(crate) fn unless_over<F: Future + Watched + Unpin>(
    lifetime: Lifetime,
    future: F,
) -> UnlessOver<F> {
    UnlessOver {
        future,
        idle: lifetime.idle.unwrap_or(NEVER),
        end: lifetime.end.unwrap_or(NEVER),
        moved: 0,
        due: 0,
        alarm: Alarm::default(),
    }
}

/// The future of [`unless_over`]. It is not an async function, because that would have room for the inner future twice.
pub(crate) struct UnlessOver<F> {
    future: F,
    idle: u32,
    end: u32,
    /// The last tick at which one of its sides woke the task.
    moved: u32,
    /// The tick at which the alarm wakes it.
    due: u32,
    alarm: Alarm,
}

impl<F: Future + Watched + Unpin> Future for UnlessOver<F> {
    type Output = Result<F::Output, TunnelOver>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(output) = Pin::new(&mut this.future).poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let now = ticks();
        let look = if this.future.is_stalled() {
            now.saturating_add(LOOK)
        } else {
            NEVER
        };
        if this.due == 0 {
            this.moved = now;
        } else if now < this.due {
            this.moved = now;
            if this.due <= look {
                return Poll::Pending;
            }
        } else if look < NEVER
            && let Some(side) = this.future.lost()
        {
            return Poll::Ready(Err(TunnelOver::Lost(side)));
        }
        if now >= this.end {
            return Poll::Ready(Err(TunnelOver::Age));
        }
        let over = this.moved.saturating_add(this.idle);
        if now >= over {
            return Poll::Ready(Err(TunnelOver::Idle));
        }
        this.due = over.min(this.end).min(look);
        if this.due < NEVER {
            this.alarm.set(cx, this.due);
        }
        Poll::Pending
    }
}

impl From<TunnelOver> for CloseReason {
    fn from(over: TunnelOver) -> Self {
        match over {
            TunnelOver::Idle => Self::TunnelIdleTimeout,
            TunnelOver::Age => Self::MaxConnectionAge,
            TunnelOver::Lost(Side::Client) => Self::ClientReset,
            TunnelOver::Lost(Side::Backend) => Self::BackendReset,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The sides of a tunnel that never ends by itself.
    #[derive(Default)]
    struct Sides {
        stalled: bool,
        lost: Option<Side>,
    }

    impl Watched for Sides {
        fn is_stalled(&self) -> bool {
            self.stalled
        }

        fn lost(&self) -> Option<Side> {
            self.lost
        }
    }

    impl Future for Sides {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }
    }

    /// A tunnel, and how often its task was woken.
    struct Tunnel {
        future: UnlessOver<Sides>,
        woken: Arc<Woken>,
    }

    impl Tunnel {
        fn new(idle: Option<u32>, end: Option<u32>) -> Self {
            let lifetime = Lifetime { idle, end };
            Self {
                future: unless_over(lifetime, Sides::default()),
                woken: Arc::default(),
            }
        }

        fn poll(&mut self) -> Poll<Result<(), TunnelOver>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> u32 {
            self.woken.0.load(Ordering::SeqCst)
        }

        /// A tick; the task is polled if that woke it.
        fn tick(&mut self) -> Poll<Result<(), TunnelOver>> {
            let before = self.woken();
            advance();
            if self.woken() == before {
                return Poll::Pending;
            }
            self.poll()
        }
    }

    fn waiting() -> usize {
        WAITING.with_borrow(Slots::len)
    }

    #[test]
    fn an_idle_tunnel_ends_and_was_woken_once() {
        let mut tunnel = Tunnel::new(Some(in_ticks(Duration::from_secs(5))), None);
        assert!(tunnel.poll().is_pending());
        for _ in 0..5 {
            assert!(tunnel.tick().is_pending());
        }
        assert_eq!(tunnel.tick(), Poll::Ready(Err(TunnelOver::Idle)));
        assert_eq!(tunnel.woken(), 1);
        drop(tunnel);
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn one_that_carries_bytes_lives_on_and_is_seldom_woken_for_it() {
        let mut tunnel = Tunnel::new(Some(10), None);
        assert!(tunnel.poll().is_pending());
        for _ in 0..100 {
            for _ in 0..9 {
                assert!(tunnel.tick().is_pending());
            }
            // What its sockets do.
            for _ in 0..1000 {
                assert!(tunnel.poll().is_pending());
            }
        }
        assert!(tunnel.woken() <= 100, "{}", tunnel.woken());
        for _ in 0..9 {
            assert!(tunnel.tick().is_pending());
        }
        assert_eq!(tunnel.tick(), Poll::Ready(Err(TunnelOver::Idle)));
    }

    #[test]
    fn a_lost_side_is_seen_while_bytes_wait_for_the_other_one() {
        for side in [Side::Client, Side::Backend] {
            let mut tunnel = Tunnel::new(Some(1000), None);
            assert!(tunnel.poll().is_pending());
            tunnel.future.future.stalled = true;
            assert!(tunnel.poll().is_pending());
            for _ in 0..3 * LOOK {
                assert!(tunnel.tick().is_pending());
            }
            let woken = tunnel.woken();
            assert!((2..=3).contains(&woken), "{woken}");
            tunnel.future.future.lost = Some(side);
            let ended = std::iter::repeat_with(|| tunnel.tick()).take(LOOK as usize);
            let ended: Vec<_> = ended.filter(Poll::is_ready).collect();
            assert_eq!(ended, [Poll::Ready(Err(TunnelOver::Lost(side)))]);
        }
    }

    #[test]
    fn one_whose_bytes_flow_again_is_not_looked_at() {
        let mut tunnel = Tunnel::new(None, None);
        tunnel.future.future.stalled = true;
        assert!(tunnel.poll().is_pending());
        tunnel.future.future.stalled = false;
        tunnel.future.future.lost = Some(Side::Client);
        for _ in 0..10 * LOOK {
            assert!(tunnel.tick().is_pending());
        }
        assert_eq!(tunnel.woken(), 1);
    }

    #[tokio::test]
    async fn a_byte_from_either_side_counts() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio::net::{TcpListener, TcpStream};

        use crate::relay::{End, Moved, Relay};

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pair = async || {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            (near.unwrap(), far.unwrap().0)
        };
        let ((mut client, mut near_client), (mut near_backend, mut backend)) =
            (pair().await, pair().await);
        let relaying = tokio::spawn(async move {
            let mut moved = Moved::default();
            let relay = Relay::new(
                &mut near_client,
                &mut near_backend,
                &mut moved,
                0,
                Box::default(),
            );
            let lifetime = Lifetime {
                idle: Some(4),
                end: None,
            };
            let ended: Result<End, TunnelOver> = unless_over(lifetime, relay).await;
            ended
        });
        let mut byte = [0; 1];
        for round in 0..40 {
            let (from, to) = if round % 2 == 0 {
                (&mut client, &mut backend)
            } else {
                (&mut backend, &mut client)
            };
            from.write_all(b"x").await.unwrap();
            to.read_exact(&mut byte).await.unwrap();
            for _ in 0..3 {
                advance();
                tokio::task::yield_now().await;
            }
            assert!(!relaying.is_finished());
        }
        while !relaying.is_finished() {
            advance();
            tokio::task::yield_now().await;
        }
        assert_eq!(relaying.await.unwrap(), Err(TunnelOver::Idle));
    }

    #[test]
    fn age_ends_what_is_busy() {
        let mut tunnel = Tunnel::new(Some(4), Some(ticks() + 7));
        for _ in 0..7 {
            assert!(tunnel.poll().is_pending());
            let polled = tunnel.tick();
            assert!(polled.is_pending() || ticks() == tunnel.future.end);
        }
        assert_eq!(tunnel.poll(), Poll::Ready(Err(TunnelOver::Age)));
    }

    #[test]
    fn without_limits_nothing_is_kept() {
        let mut tunnel = Tunnel::new(None, None);
        assert!(tunnel.poll().is_pending());
        assert_eq!(waiting(), 0);
        for _ in 0..1000 {
            assert!(tunnel.tick().is_pending());
        }
        assert!(tunnel.poll().is_pending());
    }

    #[test]
    fn time_is_rounded_up() {
        for (millis, ticks) in [(1, 2), (999, 2), (1000, 2), (1001, 3), (u64::MAX, NEVER)] {
            assert_eq!(in_ticks(Duration::from_millis(millis)), ticks, "{millis}");
        }
    }
}
