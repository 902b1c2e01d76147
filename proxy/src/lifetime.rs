//! Owns what ends a tunnel from outside: the longest time without a byte in either direction, the longest time in total,
//! and a configuration that no longer serves it. The last of these also ends HTTPS connections.
//!
//! These limits are hours, so they need no precise clock. A timer that is reset with every byte would cost more than
//! the byte. Instead, each thread counts ticks of a second. When the task of a tunnel is woken, it records the present
//! tick. It asks for one alarm at a later tick. When the alarm comes, the tunnel has been idle for too long, or it asks
//! for another alarm. Only the two sockets of a tunnel and its alarm wake the task, so bytes do not have to be counted.
//!
//! When a change of the configuration concerns a tenant, the alarms of its tunnels ring before their time. A tunnel
//! whose alarm rang asks the configuration in force whether it is still served. If not, it asks once more a little later,
//! because an edit of several objects may arrive in pieces. Only then it ends. If a tunnel loses its route, gets it back and
//! loses it again, these are two losses. No alarm rings when the route comes back. So each change that rings meanwhile begins
//! the grace again, up to a bound.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::close_reason::CloseReason;
use crate::concerned::{Inbox, TenantKey};
use crate::side::Side;
use crate::slots::{Slots, Ticket};

/// Length of a tick.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two looks at the sockets of a tunnel in which bytes wait.
const LOOK: u32 = 5;
/// A tick that never comes. It is 136 years away.
const NEVER: u32 = u32::MAX;
/// Ticks between the moment at which a tunnel is first seen not to be served and its end. At least one whole tick passes.
const GRACE: u32 = 2;
/// Ticks after which a tunnel that is not served ends, even if changes concern its tenant again and again. Otherwise a
/// tenant could keep it by edits.
const LONGEST_GRACE: u32 = 5 * GRACE;
/// Most alarms that are looked at for a change before other tasks of the thread have their turn.
const LOOKED_AT: usize = 4096;
/// Most tunnels that are woken by a change before other tasks have their turn. Each may verify a certificate.
const WOKEN: usize = 32;

thread_local! {
    static TICKS: Cell<u32> = const { Cell::new(0) };
    static WAITING: RefCell<Slots<Waiter>> = const { RefCell::new(Slots::new()) };
}

/// A task that waits for a tick. It is as small as without the tenant, whose number fills a gap.
struct Waiter {
    at: u32,
    tenant: TenantKey,
    waker: Waker,
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
            if slot.as_ref().is_some_and(|waiter| waiter.at <= now) {
                due.extend(slot.take().map(|waiter| waiter.waker));
            }
        }
        waiting.shrink();
    });
    // This is outside of the borrow, because a waker may run code that borrows the list.
    for waker in due {
        waker.wake();
    }
}

/// Rings the alarms of all tunnels and HTTPS connections of the tenants that changes concern, at most once per tick. It
/// never returns. Run it once per worker thread. `rung` gets how many were rung.
pub(crate) async fn ring_at_changes(mut inbox: Inbox, mut rung: impl FnMut(u64)) {
    while let Some(tenants) = inbox.next().await {
        ring(&tenants, &mut rung).await;
        tokio::time::sleep(TICK).await;
    }
}

/// Rings the alarms of all tunnels and HTTPS connections of `tenants`, which are sorted. Other tasks of the thread have
/// their turn in between. What begins meanwhile asks by itself whether it is served.
async fn ring(tenants: &[TenantKey], mut rung: impl FnMut(u64)) {
    let mut from = 0;
    loop {
        let mut wakers = Vec::new();
        let next = WAITING.with_borrow_mut(|waiting| {
            for (place, slot) in waiting.slots_mut().enumerate().skip(from) {
                if place - from >= LOOKED_AT || wakers.len() >= WOKEN {
                    return Some(place);
                }
                let concerned = |waiter: &Waiter| tenants.binary_search(&waiter.tenant).is_ok();
                if slot.as_ref().is_some_and(concerned) {
                    wakers.extend(slot.take().map(|waiter| waiter.waker));
                }
            }
            None
        });
        rung(wakers.len() as u64);
        for waker in wakers {
            waker.wake();
        }
        let Some(next) = next else { return };
        from = next;
        tokio::task::yield_now().await;
    }
}

/// Wakes a task at a tick. Its `Drop` gives back its place in the list of the thread.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Ticket>);

impl Alarm {
    /// Sets the tick at which the task is woken. It replaces the one that was set before.
    pub(crate) fn set(&mut self, cx: &Context<'_>, at: u32) {
        self.set_for(TenantKey::default(), cx, at);
    }

    /// The same for a task that is also woken by changes that concern a tenant.
    pub(crate) fn set_for(&mut self, tenant: TenantKey, cx: &Context<'_>, at: u32) {
        let new = || Waiter {
            at,
            tenant,
            waker: cx.waker().clone(),
        };
        WAITING.with_borrow_mut(|waiting| match self.0 {
            None => self.0 = Ticket::of(waiting.insert(new())),
            Some(ticket) => match waiting.get_mut(ticket.place()) {
                Some(waiter) => {
                    waiter.at = at;
                    waiter.tenant = tenant;
                    waiter.waker.clone_from(cx.waker());
                }
                None => waiting.set(ticket.place(), Some(new())),
            },
        });
    }

    /// Whether it was set, and has not woken the task since.
    fn is_set(&self) -> bool {
        self.0.is_some_and(|ticket| {
            WAITING.with_borrow_mut(|waiting| waiting.get_mut(ticket.place()).is_some())
        })
    }

    /// Whether it has woken the task since it was set last.
    fn has_rung(&self) -> bool {
        self.0.is_some() && !self.is_set()
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
    /// The tenant whose changes may end it.
    pub(crate) tenant: TenantKey,
}

/// A tunnel, as far as its time limits have to know it.
pub(crate) trait Watched {
    /// Whether bytes wait because their receiver takes none. Then nothing reads from their sender, and so no read shows
    /// that the sender is gone.
    fn is_stalled(&self) -> bool;

    /// The side whose connection is lost, as the kernel reports it.
    fn lost(&self) -> Option<Side>;

    /// How many bytes it has moved so far.
    fn bytes(&self) -> u64;
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
    /// The configuration no longer serves it.
    NotServed,
}

/// Runs a tunnel until it ends, until one of its limits is reached, or until the configuration no longer serves it, as
/// `is_served` says. Nothing but the two sides of the tunnel may wake its task. Call it only on a thread that runs
/// [`tick`] and [`ring_at_changes`].
pub(crate) fn unless_over<F, S>(lifetime: Lifetime, is_served: S, future: F) -> UnlessOver<F, S>
where
    F: Future + Watched + Unpin,
    S: Fn() -> bool + Unpin,
{
    UnlessOver {
        future,
        is_served,
        idle: lifetime.idle.unwrap_or(NEVER),
        end: lifetime.end.unwrap_or(NEVER),
        tenant: lifetime.tenant,
        moved: 0,
        due: 0,
        unserved: NEVER,
        forfeit: NEVER,
        alarm: Alarm::default(),
    }
}

/// The future of [`unless_over`]. It is not an async function, because that would have room for the inner future twice.
pub(crate) struct UnlessOver<F, S> {
    future: F,
    is_served: S,
    idle: u32,
    end: u32,
    tenant: TenantKey,
    /// The last tick at which one of its sides woke the task.
    moved: u32,
    /// The tick at which the alarm wakes it.
    due: u32,
    /// The tick at which it ends, if it is still not served then.
    unserved: u32,
    /// The last value that `unserved` can have.
    forfeit: u32,
    alarm: Alarm,
}

impl<F, S: Fn() -> bool> UnlessOver<F, S> {
    /// Asks the configuration in force whether it serves the tunnel. Returns whether the tunnel ends.
    fn is_given_up(&mut self, now: u32) -> bool {
        if (self.is_served)() {
            self.unserved = NEVER;
            return false;
        }
        if self.unserved == NEVER {
            self.forfeit = now.saturating_add(LONGEST_GRACE);
        } else if self.unserved <= now {
            return true;
        }
        self.unserved = now.saturating_add(GRACE).min(self.forfeit);
        self.unserved <= now
    }
}

impl<F, S> Future for UnlessOver<F, S>
where
    F: Future + Watched + Unpin,
    S: Fn() -> bool + Unpin,
{
    type Output = Result<F::Output, TunnelOver>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let begins = this.due == 0;
        let rung = this.alarm.has_rung();
        let before = rung.then(|| this.future.bytes());
        if let Poll::Ready(output) = Pin::new(&mut this.future).poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let now = ticks();
        // A tunnel asks at its beginning too, because the configuration may have changed since it was selected.
        if (begins || rung) && this.is_given_up(now) {
            return Poll::Ready(Err(TunnelOver::NotServed));
        }
        let look = if this.future.is_stalled() {
            now.saturating_add(LOOK)
        } else {
            NEVER
        };
        // An alarm alone is no sign of life, whether it rang in time or for a change.
        let is_moving = match before {
            Some(before) => before != this.future.bytes(),
            None => begins || now < this.due,
        };
        if is_moving {
            this.moved = now;
        }
        if now < this.due {
            if !rung && this.due <= look {
                return Poll::Pending;
            }
        } else if !begins
            && look < NEVER
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
        // The alarm is set even for a tick that never comes, because a change may ring it.
        this.due = over.min(this.end).min(look).min(this.unserved);
        this.alarm.set_for(this.tenant, cx, this.due);
        Poll::Pending
    }
}

/// Watches whether the configuration still admits an HTTPS connection. It is small, because each of them has one.
#[derive(Debug)]
pub(crate) struct Admission {
    alarm: Alarm,
    /// The tick at which the connection is lost, if it is still not admitted then.
    unserved: u32,
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            alarm: Alarm::default(),
            unserved: NEVER,
        }
    }

    /// Waits until the connection is not admitted any more, as `is_admitted` says. It asks at the beginning, because the
    /// configuration may have changed since the handshake, and then at the changes that concern `tenant`. Like a tunnel
    /// it asks once more after the grace. A further change does not begin the grace anew: the client can connect again,
    /// so an end too early does no harm. Call it only on a thread that runs [`tick`] and [`ring_at_changes`].
    pub(crate) fn poll_lost(
        &mut self,
        tenant: TenantKey,
        cx: &Context<'_>,
        is_admitted: impl FnOnce() -> bool,
    ) -> Poll<()> {
        if self.alarm.is_set() {
            return Poll::Pending;
        }
        let now = ticks();
        if is_admitted() {
            self.unserved = NEVER;
        } else if self.unserved <= now {
            return Poll::Ready(());
        } else if self.unserved == NEVER {
            self.unserved = now.saturating_add(GRACE);
        }
        self.alarm.set_for(tenant, cx, self.unserved);
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
            TunnelOver::NotServed => Self::NoLongerServed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::quota::{TenantQuota, TenantQuotas};

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
        bytes: u64,
        /// Bytes that the next poll moves.
        arriving: u64,
    }

    impl Watched for Sides {
        fn is_stalled(&self) -> bool {
            self.stalled
        }

        fn lost(&self) -> Option<Side> {
            self.lost
        }

        fn bytes(&self) -> u64 {
            self.bytes
        }
    }

    impl Future for Sides {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            self.bytes += std::mem::take(&mut self.arriving);
            Poll::Pending
        }
    }

    type IsServed = Box<dyn Fn() -> bool>;

    /// A tunnel, and how often its task was woken.
    struct Tunnel {
        future: UnlessOver<Sides, IsServed>,
        woken: Arc<Woken>,
        served: Rc<Cell<bool>>,
        asked: Rc<Cell<u32>>,
    }

    impl Tunnel {
        fn new(idle: Option<u32>, end: Option<u32>) -> Self {
            Self::of(TenantKey::default(), idle, end)
        }

        fn of(tenant: TenantKey, idle: Option<u32>, end: Option<u32>) -> Self {
            let lifetime = Lifetime { idle, end, tenant };
            let (served, asked) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
            let is_served: IsServed = {
                let (served, asked) = (Rc::clone(&served), Rc::clone(&asked));
                Box::new(move || {
                    asked.set(asked.get() + 1);
                    served.get()
                })
            };
            Self {
                future: unless_over(lifetime, is_served, Sides::default()),
                woken: Arc::default(),
                served,
                asked,
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
            // Its sockets have events.
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
                tenant: TenantKey::default(),
            };
            let ended: Result<End, TunnelOver> = unless_over(lifetime, || true, relay).await;
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
    fn without_limits_only_a_change_wakes_it() {
        let mut tunnel = Tunnel::new(None, None);
        assert!(tunnel.poll().is_pending());
        assert_eq!(waiting(), 1);
        for _ in 0..1000 {
            assert!(tunnel.tick().is_pending());
        }
        assert!(tunnel.poll().is_pending());
        assert_eq!(tunnel.woken(), 0);
        ring_now(&[TenantKey::default()]);
        assert_eq!(tunnel.woken(), 1);
    }

    fn tenants() -> [(Arc<TenantQuota>, TenantKey); 2] {
        let accounts = TenantQuotas::default();
        ["team-a", "team-b"].map(|name| {
            let account = accounts.of(&name.into());
            let key = TenantKey::of(&account);
            (account, key)
        })
    }

    /// Rings all at once, and returns how many turns of others there were in between.
    fn ring_now(tenants: &[TenantKey]) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let mut most = Vec::new();
        runtime
            .unwrap()
            .block_on(ring(tenants, |count| most.push(count)));
        assert!(most.iter().all(|count| *count <= WOKEN as u64), "{most:?}");
        most.len() - 1
    }

    #[test]
    fn a_tunnel_that_is_no_longer_served_ends_after_the_grace_and_others_are_not_woken() {
        let [(_a, a), (_b, b)] = tenants();
        let [mut tunnel, mut neighbour] = [a, b].map(|tenant| Tunnel::of(tenant, Some(1000), None));
        assert!(tunnel.poll().is_pending() && neighbour.poll().is_pending());
        tunnel.served.set(false);
        neighbour.served.set(false);
        ring_now(&[a]);
        assert_eq!((tunnel.woken(), neighbour.woken()), (1, 0));
        assert!(tunnel.poll().is_pending());
        // Bytes do not prolong the grace, and ask nothing.
        let asked = tunnel.asked.get();
        for _ in 0..100 {
            assert!(tunnel.poll().is_pending());
        }
        assert_eq!(tunnel.asked.get(), asked);
        assert!(tunnel.tick().is_pending());
        assert_eq!(tunnel.tick(), Poll::Ready(Err(TunnelOver::NotServed)));
        assert_eq!((neighbour.woken(), neighbour.asked.get()), (0, 1));
    }

    #[test]
    fn a_tunnel_that_is_served_again_within_the_grace_goes_on() {
        let [(_a, a), _] = tenants();
        let mut tunnel = Tunnel::of(a, Some(1000), None);
        assert!(tunnel.poll().is_pending());
        for _ in 0..100 {
            tunnel.served.set(false);
            ring_now(&[a]);
            assert!(tunnel.poll().is_pending());
            assert!(tunnel.tick().is_pending());
            tunnel.served.set(true);
            for _ in 0..GRACE {
                assert!(tunnel.tick().is_pending());
            }
        }
    }

    #[test]
    fn a_tunnel_that_is_lost_again_has_the_whole_grace_again() {
        let [(_a, a), _] = tenants();
        let mut tunnel = Tunnel::of(a, Some(1000), None);
        assert!(tunnel.poll().is_pending());
        tunnel.served.set(false);
        ring_now(&[a]);
        assert!(tunnel.poll().is_pending());
        assert!(tunnel.tick().is_pending());
        // It was served again meanwhile, which wakes nothing, and is lost again.
        ring_now(&[a]);
        assert!(tunnel.poll().is_pending());
        assert!(tunnel.tick().is_pending());
        assert_eq!(tunnel.tick(), Poll::Ready(Err(TunnelOver::NotServed)));
    }

    #[test]
    fn changes_do_not_keep_a_tunnel_that_is_not_served() {
        let [(_a, a), _] = tenants();
        let mut tunnel = Tunnel::of(a, Some(1000), None);
        assert!(tunnel.poll().is_pending());
        tunnel.served.set(false);
        let lost = ticks();
        let mut ended = Poll::Pending;
        while ended.is_pending() {
            ring_now(&[a]);
            ended = tunnel.poll();
            if ended.is_pending() {
                ended = tunnel.tick();
            }
        }
        assert_eq!(ended, Poll::Ready(Err(TunnelOver::NotServed)));
        assert_eq!(ticks() - lost, LONGEST_GRACE);
    }

    #[test]
    fn a_tunnel_that_begins_after_its_configuration_is_gone_ends() {
        let mut tunnel = Tunnel::new(None, None);
        tunnel.served.set(false);
        assert!(tunnel.poll().is_pending());
        assert!(tunnel.tick().is_pending());
        assert_eq!(tunnel.tick(), Poll::Ready(Err(TunnelOver::NotServed)));
    }

    /// An HTTPS connection, and what its client may be asked.
    struct Standing {
        admission: Admission,
        tenant: TenantKey,
        woken: Arc<Woken>,
        admits: bool,
        asked: u32,
    }

    impl Standing {
        fn of(tenant: TenantKey) -> Self {
            Self {
                admission: Admission::new(),
                tenant,
                woken: Arc::default(),
                admits: true,
                asked: 0,
            }
        }

        fn poll(&mut self) -> Poll<()> {
            let waker = Waker::from(Arc::clone(&self.woken));
            let (admits, asked) = (self.admits, &mut self.asked);
            let cx = Context::from_waker(&waker);
            self.admission.poll_lost(self.tenant, &cx, || {
                *asked += 1;
                admits
            })
        }

        fn woken(&self) -> u32 {
            self.woken.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_connection_that_is_not_admitted_any_more_is_lost_after_the_grace() {
        let [(_a, a), (_b, b)] = tenants();
        let [mut standing, mut neighbour] = [a, b].map(Standing::of);
        assert!(standing.poll().is_pending() && neighbour.poll().is_pending());
        standing.admits = false;
        neighbour.admits = false;
        // Events of its socket do not ask again.
        for _ in 0..100 {
            assert!(standing.poll().is_pending());
        }
        assert_eq!(standing.asked, 1);
        ring_now(&[a]);
        assert_eq!((standing.woken(), neighbour.woken()), (1, 0));
        assert!(standing.poll().is_pending());
        advance();
        // Another change does not put off the end.
        ring_now(&[a]);
        assert!(standing.poll().is_pending());
        advance();
        assert_eq!(standing.woken(), 3);
        assert!(standing.poll().is_ready());
        assert_eq!((neighbour.woken(), neighbour.asked), (0, 1));
        drop((standing, neighbour));
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn a_connection_that_is_admitted_again_within_the_grace_goes_on() {
        let [(_a, a), _] = tenants();
        let mut standing = Standing::of(a);
        assert!(standing.poll().is_pending());
        for _ in 0..10 {
            standing.admits = false;
            ring_now(&[a]);
            assert!(standing.poll().is_pending());
            standing.admits = true;
            for _ in 0..GRACE {
                advance();
                assert!(standing.poll().is_pending());
            }
        }
        // Nothing wakes it while nothing changes.
        let woken = standing.woken();
        for _ in 0..1000 {
            advance();
        }
        assert_eq!(standing.woken(), woken);
    }

    #[test]
    fn a_connection_that_begins_after_it_is_not_admitted_any_more_is_lost() {
        let mut standing = Standing::of(TenantKey::default());
        standing.admits = false;
        for _ in 0..GRACE {
            assert!(standing.poll().is_pending());
            advance();
        }
        assert!(standing.poll().is_ready());
    }

    #[test]
    fn changes_are_no_sign_of_life_but_bytes_at_the_same_time_are() {
        let [(_a, a), _] = tenants();
        for moves in [false, true] {
            let mut tunnel = Tunnel::of(a, Some(10), None);
            assert!(tunnel.poll().is_pending());
            let mut ended = Poll::Pending;
            for _ in 0..30 {
                ring_now(&[a]);
                tunnel.future.future.arriving = u64::from(moves);
                ended = tunnel.poll();
                if ended.is_ready() {
                    break;
                }
                ended = tunnel.tick();
                if ended.is_ready() {
                    break;
                }
            }
            let expected = if moves {
                Poll::Pending
            } else {
                Poll::Ready(Err(TunnelOver::Idle))
            };
            assert_eq!(ended, expected);
        }
    }

    #[test]
    fn many_tunnels_are_woken_in_pieces() {
        let [(_a, a), (_b, b)] = tenants();
        let mut all: Vec<_> = (0..1000)
            .map(|number| Tunnel::of(if number % 2 == 0 { a } else { b }, None, None))
            .collect();
        assert!(all.iter_mut().all(|tunnel| tunnel.poll().is_pending()));
        let turns = ring_now(&[a]);
        assert!(turns >= 500 / WOKEN, "{turns}");
        let woken: Vec<_> = all.iter().map(Tunnel::woken).collect();
        assert!(woken.iter().step_by(2).all(|woken| *woken == 1));
        assert!(woken.iter().skip(1).step_by(2).all(|woken| *woken == 0));
        // Each is woken once, however often a change concerns it before it runs.
        ring_now(&[a]);
        assert!(all.iter().all(|tunnel| tunnel.woken() <= 1));
    }

    #[test]
    fn time_is_rounded_up() {
        for (millis, ticks) in [(1, 2), (999, 2), (1000, 2), (1001, 3), (u64::MAX, NEVER)] {
            assert_eq!(in_ticks(Duration::from_millis(millis)), ticks, "{millis}");
        }
    }
}
