//! Owns the limit on exchanges at one time for an HTTP/2 client that does not take its responses.
//!
//! Each exchange has a connection to a backend, or a window on one, and buffers. A client could ask for a hundred large
//! files and read nothing, and the proxy would hold a hundred of these for responses that nobody takes. So a request
//! begins its exchange only while few others of its connection count. The others wait, and cost little.
//!
//! An exchange counts while bytes of its response wait for the client, and [`AWAITS`] after that. It counts from its
//! beginning, because otherwise all requests that come together would begin before the first response shows whether the
//! client takes anything. But if the backend has sent nothing for as long as [`AWAITS`], the exchange waits for the
//! backend and not for the client, so it does not count. A hundred long polls, or streams on which nothing happens,
//! leave room for other requests.
//!
//! The limit begins with [`FIRST`], and grows by one with each response that the client has taken as a whole. So a
//! client that takes its responses soon has no limit but that of the streams, as a sender has none in the slow start of
//! TCP while everything is acknowledged. It is [`FIRST`] again when a request has waited for [`STILL`] and the client
//! took nothing in that time.
//!
//! Nobody is shut out:
//!
//! - A request that has waited for [`PATIENCE`] begins if the client took [`PROGRESS`] bytes since the request has been the
//!   next one, or has taken all that is there. Then the limit doubles as well. So a client with a hundred large downloads
//!   that all go on has all of them after a few tenths of a second.
//! - If the client takes nothing, a request begins all the same, after [`PATIENCE`], the next one after twice that time, and
//!   so on, until the client takes something. A client may have stopped to read some of its responses, and wait for the
//!   response to another request before it reads on. One that never reads gains about ten exchanges by this, until the
//!   connection ends because nothing moves.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Exchanges that may count at one time for a client that has taken nothing yet.
const FIRST: usize = 32;
/// Most responses that the limit grows by. It only keeps the number small: `--http-streams` bounds the exchanges.
const MOST_PROVEN: usize = 1024;
/// For how long an exchange counts of which nothing waits for the client, in milliseconds. Backends that many clients ask at
/// once take this long to answer.
const AWAITS: u64 = 1000;
/// How long a request waits at least before it begins beyond the limit, in milliseconds.
const PATIENCE: u64 = 100;
/// Bytes that a client has to take while a request waits, so that the request begins beyond the limit.
const PROGRESS: u64 = 1024;
/// How long a client takes nothing, while a request waits, before what it took earlier proves nothing any more. It is longer
/// than a lost packet takes on a slow path. In milliseconds.
const STILL: u64 = 2_000;

/// One exchange, from its beginning until the client's socket has taken all of the response.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// Bytes of the response that wait for the client.
    bytes: AtomicUsize,
    /// Whether the next part of the response has to come from the backend.
    awaits_backend: AtomicBool,
    /// Since when nothing waits for the client, in milliseconds of the connection.
    since: AtomicU64,
    /// Whether the client has taken some of the response.
    is_begun: AtomicBool,
}

impl Outstanding {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Records bytes that wait for the client.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records bytes that no longer wait. Returns whether none are left.
    pub(super) fn remove(&self, bytes: usize, now: impl FnOnce() -> u64) -> bool {
        let left = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if left == 0 {
            self.since.store(now(), Ordering::Relaxed);
        }
        left == 0
    }

    /// Records whether the next part of the response has to come from the backend. Returns whether that is so from now on.
    pub(super) fn await_backend(&self, awaits: bool, now: impl FnOnce() -> u64) -> bool {
        let was = self.awaits_backend.swap(awaits, Ordering::Relaxed);
        let begins = awaits && !was;
        if begins {
            self.since.store(now(), Ordering::Relaxed);
        }
        begins
    }

    /// Records that the exchange begins only now to wait for the backend, because it has waited for the proxy before.
    pub(super) fn restart(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
    }

    /// Whether the response waits for the client.
    fn is_blocked(&self) -> bool {
        self.bytes() > 0 || !self.awaits_backend.load(Ordering::Relaxed)
    }

    /// Until when it counts if nothing changes. It is `None` if it does not count.
    fn counts_until(&self, now: u64) -> Option<u64> {
        if self.is_blocked() {
            return Some(u64::MAX);
        }
        let until = self.since.load(Ordering::Relaxed).saturating_add(AWAITS);
        (now < until).then_some(until)
    }
}

/// The limit on exchanges of one HTTP/2 connection.
#[derive(Debug, Default)]
pub(super) struct ExchangeLimit {
    state: Mutex<LimitState>,
    /// Bytes of responses that the client has taken.
    taken: AtomicU64,
    /// The requests that wait, in the order of their arrival. The one that holds the lock is the next one.
    turn: tokio::sync::Mutex<()>,
    /// Tells the next one that something changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct LimitState {
    open: Vec<Arc<Outstanding>>,
    /// Number of responses that the client has taken as a whole, since it last took nothing while a request waited.
    proven: usize,
    /// Number of requests that began although the client took nothing, since it last took something.
    trials: u32,
    /// Whether a request waits for a change.
    is_awaited: bool,
}

impl LimitState {
    fn limit(&self) -> usize {
        FIRST + self.proven
    }

    /// The client has taken a whole response.
    fn prove(&mut self) {
        self.proven = (self.proven + 1).min(MOST_PROVEN);
        self.trials = 0;
    }

    /// The client goes on with more responses than the limit allows, so the limit doubles.
    fn grow(&mut self) {
        self.proven = (2 * self.proven + FIRST).min(MOST_PROVEN);
        self.trials = 0;
    }

    fn open(&mut self, now: u64) -> Arc<Outstanding> {
        let outstanding = Arc::new(Outstanding {
            bytes: AtomicUsize::new(0),
            awaits_backend: AtomicBool::new(true),
            since: AtomicU64::new(now),
            is_begun: AtomicBool::new(false),
        });
        self.open.push(Arc::clone(&outstanding));
        outstanding
    }
}

/// The request that is the next one to begin.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// Since when it is the next one, in milliseconds of the connection.
    since: u64,
    /// [`ExchangeLimit::taken`] at that time.
    taken: u64,
}

impl ExchangeLimit {
    /// Opens an exchange, whether there is room for it or not.
    pub(super) fn open(&self, now: u64) -> Arc<Outstanding> {
        self.state.lock().open(now)
    }

    /// Opens an exchange if it need not wait.
    pub(super) fn try_open(&self, now: u64) -> Option<Arc<Outstanding>> {
        // Somebody who waits has the lock, or is about to get it, and comes first.
        let _turn = self.turn.try_lock().ok()?;
        let next = self.next(now);
        self.check(now, next).ok()
    }

    /// Opens an exchange when there is room for it. The requests that wait are served in the order of their arrival. One
    /// that is dropped meanwhile leaves nothing behind.
    pub(super) async fn open_in_turn(&self, now: impl Fn() -> u64) -> Arc<Outstanding> {
        let _turn = self.turn.lock().await;
        let next = self.next(now());
        loop {
            // hyper looks for a reset only after it has polled this. So requests that are reset together with those that
            // made the room end here, and not with a connection to a backend that nobody needs.
            pend_once().await;
            // A change between the check and the wait is not lost, because `Notify` keeps it.
            match self.check(now(), next) {
                Ok(outstanding) => return outstanding,
                Err(wait) => {
                    let _ = tokio::time::timeout(wait, self.changed.notified()).await;
                }
            }
        }
    }

    fn next(&self, now: u64) -> Next {
        Next {
            since: now,
            taken: self.taken.load(Ordering::Relaxed),
        }
    }

    /// Opens an exchange if there is room for it.
    ///
    /// # Errors
    /// There is no room. The time is that after which there may be some, even if nothing changes until then.
    fn check(&self, now: u64, next: Next) -> Result<Arc<Outstanding>, Duration> {
        let mut state = self.state.lock();
        state.is_awaited = false;
        if state.open.len() < state.limit() {
            return Ok(state.open(now));
        }
        let (mut counted, mut again) = (0, u64::MAX);
        for until in state.open.iter().filter_map(|of| of.counts_until(now)) {
            counted += 1;
            again = again.min(until);
        }
        if counted < state.limit() {
            return Ok(state.open(now));
        }
        let waited = now.saturating_sub(next.since);
        let trial = PATIENCE << state.trials.min(16);
        if waited < PATIENCE {
            again = again.min(next.since.saturating_add(PATIENCE));
        } else {
            let taken = self
                .taken
                .load(Ordering::Relaxed)
                .saturating_sub(next.taken);
            if taken >= PROGRESS || !state.open.iter().any(|of| of.is_blocked()) {
                state.grow();
                return Ok(state.open(now));
            }
            if taken == 0 && waited >= STILL {
                state.proven = 0;
            }
            if waited >= trial {
                state.trials += 1;
                return Ok(state.open(now));
            }
            again = again.min(next.since.saturating_add(trial));
        }
        state.is_awaited = true;
        Err(Duration::from_millis(again.saturating_sub(now)))
    }

    /// Records that an exchange is over: the client has taken all of the response (`is_taken`), or gets no more of it.
    pub(super) fn close(&self, outstanding: &Arc<Outstanding>, is_taken: bool) {
        let mut state = self.state.lock();
        let at = state
            .open
            .iter()
            .position(|of| Arc::ptr_eq(of, outstanding));
        if let Some(at) = at {
            state.open.swap_remove(at);
        }
        if state.open.is_empty() && state.open.capacity() > FIRST {
            state.open = Vec::new();
        }
        // A response without a body is over before the client has taken any of it, so it proves nothing.
        if is_taken && outstanding.is_begun.load(Ordering::Relaxed) {
            state.prove();
        }
        let is_awaited = state.is_awaited;
        drop(state);
        self.tell(is_awaited);
    }

    /// Records bytes of a response that the client has taken. The next request learns of them by a [change](Self::change), or
    /// when its time is over.
    pub(super) fn count(&self, outstanding: &Outstanding, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        outstanding.is_begun.store(true, Ordering::Relaxed);
    }

    /// Has the next request look again, because the client has taken a piece, or an exchange may soon not count any more.
    pub(super) fn change(&self) {
        let is_awaited = self.state.lock().is_awaited;
        self.tell(is_awaited);
    }

    fn tell(&self, is_awaited: bool) {
        if is_awaited {
            self.changed.notify_one();
        }
    }
}

/// Is pending once, and has the task polled again behind those that are ready already.
#[expect(
    clippy::disallowed_methods,
    reason = "the task is polled once more only, and many that do so one after the other need not look at the I/O driver"
)]
async fn pend_once() {
    let mut has_pended = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_pended, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A connection whose clock stands until the test moves it.
    #[derive(Default)]
    struct Connection {
        limit: ExchangeLimit,
        now: AtomicU64,
    }

    impl Connection {
        fn now(&self) -> u64 {
            self.now.load(Ordering::SeqCst)
        }

        fn advance(&self, millis: u64) {
            self.now.fetch_add(millis, Ordering::SeqCst);
        }

        fn try_open(&self) -> Option<Arc<Outstanding>> {
            self.limit.try_open(self.now())
        }

        /// Opens as many as may begin at once.
        fn fill(&self) -> Vec<Arc<Outstanding>> {
            std::iter::from_fn(|| self.try_open()).take(1000).collect()
        }

        /// The same, and the client takes nothing of their responses.
        fn fill_and_block(&self) -> Vec<Arc<Outstanding>> {
            let opened = self.fill();
            for outstanding in &opened {
                outstanding.add(10_000);
            }
            opened
        }

        /// The client takes some bytes of a response.
        fn take(&self, outstanding: &Outstanding, bytes: usize) {
            self.limit.count(outstanding, bytes);
            outstanding.remove(bytes, || self.now());
            self.limit.change();
        }

        fn next(&self) -> Next {
            self.limit.next(self.now())
        }

        fn check(&self, next: Next) -> Result<Arc<Outstanding>, Duration> {
            self.limit.check(self.now(), next)
        }
    }

    const ONE_PATIENCE: Duration = Duration::from_millis(PATIENCE);

    #[test]
    fn who_takes_nothing_begins_few_exchanges_more_and_ever_later() {
        let connection = Connection::default();
        let opened = connection.fill_and_block();
        assert_eq!(opened.len(), FIRST);
        let mut patience = PATIENCE;
        for _ in 0..10 {
            let next = connection.next();
            assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
            connection.advance(patience - 1);
            let wait = connection.check(next).unwrap_err();
            assert_eq!(wait, Duration::from_millis(1));
            connection.advance(1);
            connection.check(next).unwrap().add(10_000);
            patience *= 2;
        }
        // That is longer than a client may take nothing.
        assert!(connection.now() > 100_000);
        // A response that is there, and of which the client was not asked to take a part, waits for the client.
        opened[1].await_backend(false, || connection.now());
        connection.take(&opened[1], 10_000);
        let next = connection.next();
        connection.advance(PATIENCE);
        assert!(connection.check(next).is_err());
        // When the client takes a whole response, the next request need not wait for long.
        connection.limit.close(&opened[1], true);
        assert!(connection.check(next).is_ok());
    }

    #[test]
    fn the_limit_doubles_for_a_client_that_goes_on() {
        let connection = Connection::default();
        let opened = connection.fill_and_block();
        let mut all = opened.len();
        for outstanding in &opened[..2] {
            let next = connection.next();
            connection.take(outstanding, 2000);
            assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
            connection.advance(PATIENCE);
            connection.check(next).unwrap().add(10_000);
            let more = connection.fill_and_block();
            assert_eq!(more.len(), all - 1);
            all += 1 + more.len();
        }
        assert_eq!(all, 4 * FIRST);
        // When the client takes nothing for a while, all of that is void.
        let next = connection.next();
        connection.advance(STILL);
        connection.check(next).unwrap().add(10_000);
        for outstanding in &opened {
            connection.limit.close(outstanding, false);
        }
        assert_eq!(connection.fill().len(), 0);
    }

    #[test]
    fn a_client_that_has_taken_all_there_is_goes_on() {
        let connection = Connection::default();
        let opened = connection.fill();
        for _ in 0..3 {
            // Each has a small piece from time to time, so all of them count.
            for outstanding in &opened {
                outstanding.add(10);
                connection.take(outstanding, 10);
            }
            connection.advance(AWAITS - 1);
        }
        assert_eq!(connection.fill().len(), 0);
        let next = connection.next();
        for _ in 0..3 {
            connection.advance(AWAITS - 1);
            for outstanding in &opened {
                outstanding.add(10);
                connection.take(outstanding, 10);
            }
        }
        assert!(connection.check(next).is_ok());
        assert_eq!(connection.fill().len(), FIRST - 1);
    }

    #[test]
    fn an_exchange_that_waits_for_its_backend_makes_room_after_a_moment() {
        let connection = Connection::default();
        for _ in 0..5 {
            assert_eq!(connection.fill().len(), FIRST);
            let next = connection.next();
            assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
            connection.advance(AWAITS);
        }
        // One of which a part has come and was taken counts for a moment more.
        let opened = connection.fill();
        assert_eq!(opened.len(), FIRST);
        connection.advance(AWAITS - 1);
        opened[0].add(1);
        connection.take(&opened[0], 1);
        // So does one that waited for its turn in the proxy.
        opened[1].restart(connection.now());
        connection.advance(1);
        assert_eq!(connection.fill().len(), FIRST - 2);
    }

    #[test]
    fn the_limit_grows_with_each_response_that_is_taken() {
        let connection = Connection::default();
        let first = connection.fill_and_block();
        for outstanding in &first {
            connection.take(outstanding, 10_000);
            connection.limit.close(outstanding, true);
        }
        let second = connection.fill();
        assert_eq!(second.len(), 2 * FIRST);
        // Those that are given up are no proof, and neither are those without a body.
        for (number, outstanding) in second.iter().enumerate() {
            connection.limit.close(outstanding, number % 2 == 0);
        }
        assert_eq!(connection.fill().len(), 2 * FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_told_and_who_leaves_holds_up_nobody() {
        let connection = Connection::default();
        let opened = connection.fill_and_block();
        let mut cx = Context::from_waker(Waker::noop());
        let mut left = Box::pin(connection.limit.open_in_turn(|| connection.now()));
        // It yields once before it looks.
        assert!(left.as_mut().poll(&mut cx).is_pending());
        assert!(left.as_mut().poll(&mut cx).is_pending());
        let mut behind = pin!(connection.limit.open_in_turn(|| connection.now()));
        assert!(behind.as_mut().poll(&mut cx).is_pending());
        // Nobody overtakes those that wait.
        connection.limit.close(&opened[0], false);
        assert!(connection.try_open().is_none());
        drop(left);
        assert!(behind.as_mut().poll(&mut cx).is_pending());
        let Poll::Ready(begun) = behind.as_mut().poll(&mut cx) else {
            panic!("it waits although there is room");
        };
        begun.add(1);
        assert!(connection.try_open().is_none());
        // It begins at once when an exchange is over, however long it would wait otherwise.
        connection.limit.state.lock().trials = 16;
        let begun = tokio::time::Instant::now();
        let now = || u64::try_from(begun.elapsed().as_millis()).unwrap();
        let waiting = connection.limit.open_in_turn(now);
        let ends = async {
            tokio::time::sleep(Duration::from_mins(1)).await;
            connection.limit.close(&opened[1], false);
        };
        tokio::join!(waiting, ends);
        assert_eq!(begun.elapsed().as_secs(), 60);
    }
}
