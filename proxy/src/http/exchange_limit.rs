//! Owns the limit on exchanges at one time for an HTTP/2 client that does not take its responses.
//!
//! Each exchange has a connection to a backend, or a window on one, and buffers. A client could ask for a hundred large
//! files and read nothing, and the proxy would hold a hundred of these for responses that nobody takes. So a request
//! begins its exchange only while few others of its connection count. The others wait, and cost little.
//!
//! An exchange counts while bytes of its response wait for the client, and [`PATIENCE`] after that. It counts from its
//! beginning, because otherwise all requests that come together would begin before the first response shows whether the
//! client takes anything. But if the backend has sent nothing for as long as [`PATIENCE`], the exchange waits for the
//! backend and not for the client, so it does not count. A hundred long polls, or streams on which nothing happens,
//! leave room for other requests.
//!
//! The limit begins with [`FIRST`], and grows by one with each response that the client has taken as a whole. So a
//! client that takes its responses soon has no limit but that of the streams, as a sender has none in the slow start of
//! TCP while everything is acknowledged. It is [`FIRST`] again when a request has waited for [`PATIENCE`] and the client
//! took nothing in that time.
//!
//! Nobody who reads is shut out: a request that has waited for [`PATIENCE`] begins if the client took [`PROGRESS`] bytes
//! since the request has been the next one, however many exchanges count. A client with many large downloads that all
//! go on thus waits once, for a tenth of a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Exchanges that may count at one time for a client that has taken nothing yet.
const FIRST: usize = 16;
/// Most responses that the limit grows by. It only keeps the number small: `--http-streams` bounds the exchanges.
const MOST_PROVEN: usize = 1024;
/// For how long an exchange counts of which nothing waits for the client, and how long a request waits at least before it
/// begins beyond the limit. In milliseconds.
const PATIENCE: u64 = 100;
/// Bytes that a client has to take while a request waits, so that the request begins beyond the limit.
const PROGRESS: u64 = 1024;

/// One exchange, from its beginning until the client's socket has taken all of the response.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// Bytes of the response that wait for the client.
    bytes: AtomicUsize,
    /// Whether the next part of the response has to come from the backend.
    awaits_backend: AtomicBool,
    /// Since when nothing waits for the client, in milliseconds of the connection.
    since: AtomicU64,
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

    /// Until when it counts if nothing changes. It is `None` if it does not count.
    fn counts_until(&self, now: u64) -> Option<u64> {
        if self.bytes() > 0 || !self.awaits_backend.load(Ordering::Relaxed) {
            return Some(u64::MAX);
        }
        let until = self.since.load(Ordering::Relaxed).saturating_add(PATIENCE);
        (now < until).then_some(until)
    }
}

/// The limit on exchanges of one HTTP/2 connection.
#[derive(Debug, Default)]
pub(super) struct ExchangeLimit {
    state: Mutex<LimitState>,
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
    /// Bytes of responses that the client has taken.
    taken: u64,
    /// Whether a request waits for a change.
    is_awaited: bool,
}

impl LimitState {
    fn limit(&self) -> usize {
        FIRST + self.proven
    }

    fn prove(&mut self) {
        self.proven = (self.proven + 1).min(MOST_PROVEN);
    }

    fn open(&mut self, now: u64) -> Arc<Outstanding> {
        let outstanding = Arc::new(Outstanding {
            bytes: AtomicUsize::new(0),
            awaits_backend: AtomicBool::new(true),
            since: AtomicU64::new(now),
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
    /// [`LimitState::taken`] at that time.
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
            tokio::task::yield_now().await;
            // A change between the check and the wait is not lost, because `Notify` keeps it.
            match self.check(now(), next) {
                Ok(outstanding) => return outstanding,
                Err(None) => self.changed.notified().await,
                Err(Some(wait)) => {
                    let _ = tokio::time::timeout(wait, self.changed.notified()).await;
                }
            }
        }
    }

    fn next(&self, now: u64) -> Next {
        Next {
            since: now,
            taken: self.state.lock().taken,
        }
    }

    /// Opens an exchange if there is room for it.
    ///
    /// # Errors
    /// There is no room. The time is that after which there may be some, even if nothing changes until then.
    fn check(&self, now: u64, next: Next) -> Result<Arc<Outstanding>, Option<Duration>> {
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
        let patient = next.since.saturating_add(PATIENCE);
        if now < patient {
            again = again.min(patient);
        } else {
            let taken = state.taken.saturating_sub(next.taken);
            if taken >= PROGRESS {
                state.prove();
                return Ok(state.open(now));
            }
            if taken == 0 {
                state.proven = 0;
            }
        }
        state.is_awaited = true;
        let is_timed = again < u64::MAX;
        Err(is_timed.then(|| Duration::from_millis(again.saturating_sub(now))))
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
        if is_taken {
            state.prove();
        }
        let is_awaited = state.is_awaited;
        drop(state);
        self.tell(is_awaited);
    }

    /// Records bytes of a response that the client has taken.
    pub(super) fn taken(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.taken = state.taken.saturating_add(bytes as u64);
        let is_awaited = state.is_awaited;
        drop(state);
        self.tell(is_awaited);
    }

    /// Has the next request look again, because an exchange may soon not count any more.
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

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
            outstanding.remove(bytes, || self.now());
            self.limit.taken(bytes);
        }

        fn next(&self) -> Next {
            self.limit.next(self.now())
        }

        fn check(&self, next: Next) -> Result<Arc<Outstanding>, Option<Duration>> {
            self.limit.check(self.now(), next)
        }
    }

    const ONE_PATIENCE: Option<Duration> = Some(Duration::from_millis(PATIENCE));

    #[test]
    fn who_takes_nothing_has_few_exchanges_for_any_time() {
        let connection = Connection::default();
        let opened = connection.fill_and_block();
        assert_eq!(opened.len(), FIRST);
        let next = connection.next();
        assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
        for _ in 0..100 {
            connection.advance(10_000);
            // Only a change can make a difference, so there is no timer.
            assert_eq!(connection.check(next).unwrap_err(), None);
        }
        // A few bytes are no progress.
        connection.take(&opened[0], 100);
        assert!(connection.check(next).is_err());
        // A response that is there, and that is not asked for a part, waits for the client.
        connection.take(&opened[1], 10_000 - 200);
        opened[1].await_backend(false, || connection.now());
        connection.take(&opened[1], 200);
        connection.advance(10_000);
        let other = connection.next();
        assert!(connection.check(other).is_err());
    }

    #[test]
    fn who_takes_something_goes_on_whatever_waits() {
        let connection = Connection::default();
        let opened = connection.fill_and_block();
        for outstanding in &opened[..10] {
            let next = connection.next();
            connection.take(outstanding, 2000);
            assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
            connection.advance(PATIENCE);
            connection.check(next).unwrap().add(10_000);
            // The limit has grown by this one, and the next request waits for its own time.
            assert_eq!(connection.fill().len(), 0);
        }
        // When the client takes nothing for a while, all of that is void.
        let next = connection.next();
        connection.advance(PATIENCE);
        assert!(connection.check(next).is_err());
        for outstanding in &opened {
            connection.limit.close(outstanding, false);
        }
        assert_eq!(connection.fill().len(), FIRST - 10);
    }

    #[test]
    fn an_exchange_that_waits_for_its_backend_makes_room_after_a_moment() {
        let connection = Connection::default();
        for _ in 0..5 {
            assert_eq!(connection.fill().len(), FIRST);
            let next = connection.next();
            assert_eq!(connection.check(next).unwrap_err(), ONE_PATIENCE);
            connection.advance(PATIENCE);
        }
        // One of which a part has come and was taken counts for a moment more.
        let opened = connection.fill();
        assert_eq!(opened.len(), FIRST);
        connection.advance(PATIENCE - 1);
        opened[0].add(1);
        connection.take(&opened[0], 1);
        connection.advance(1);
        assert_eq!(connection.fill().len(), FIRST - 1);
    }

    #[test]
    fn the_limit_grows_with_each_response_that_is_taken() {
        let connection = Connection::default();
        let first = connection.fill();
        for outstanding in &first {
            connection.limit.close(outstanding, true);
        }
        let second = connection.fill();
        assert_eq!(second.len(), 2 * FIRST);
        // Those that are given up are no proof.
        for outstanding in &second {
            connection.limit.close(outstanding, false);
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
        // It waits until the client takes something.
        let begun = tokio::time::Instant::now();
        let now = || u64::try_from(begun.elapsed().as_millis()).unwrap();
        let waiting = connection.limit.open_in_turn(now);
        let takes = async {
            tokio::time::sleep(Duration::from_hours(1)).await;
            connection.take(&opened[1], 5000);
        };
        tokio::join!(waiting, takes);
        assert_eq!(begun.elapsed().as_secs(), 3600);
    }
}
