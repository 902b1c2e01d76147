//! Owns the activity of one HTTP connection: requests under way, bytes, and the time since when it is idle.
//!
//! hyper has a deadline for heads of its own. It also runs between requests, so it cannot tell a slow head from a
//! client that keeps an idle connection.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::time::Instant;

use super::Version;
use super::budget::Budget;
use super::heads::Seen;
use super::held_heads::HeldHeads;
use super::unsent_bytes::UnsentBytes;
use crate::close_reason::CloseReason;
use crate::limits::HttpLimits;

/// Counters that a connection shares with its requests. All of them are on one thread.
#[derive(Debug)]
pub(super) struct Activity {
    begun: Instant,
    under_way: AtomicU32,
    requests: AtomicU64,
    ended: AtomicU64,
    /// Number of requests whose responses were written to the last byte.
    answered: AtomicU64,
    /// Whether a part of the next head has arrived, perhaps together with the request before.
    in_head: AtomicBool,
    /// Whether the connection has something to do again after it had given back its buffers.
    resumed: AtomicBool,
    upgraded: AtomicBool,
    /// Whether the connection has reached its maximum age, or ends as if it had.
    old: AtomicBool,
    /// Why the connection ends when nothing is under way any more, if it does.
    ending: OnceLock<CloseReason>,
    /// Whether bytes that the client still sends are read and dropped before the connection closes, so that the client
    /// can read its response.
    lingers: AtomicBool,
    /// Wakes the reader, which waits for a response to know what the next bytes are.
    reader: AtomicWaker,
    received: AtomicU64,
    sent: AtomicU64,
    /// When the last request ended, in milliseconds since `begun`.
    idle_since: AtomicU64,
    /// When the first byte after that arrived, in milliseconds since `begun`, plus 1. It is 0 until then.
    head_since: AtomicU64,
    /// Number of bodies that wait for the client to send more or to read more.
    owed: AtomicU32,
    /// When the present stall began, in milliseconds since `begun`, plus 1. In a stall, something waits for the client,
    /// and the client moves hardly any bytes. It is 0 if nothing waits for the client. `stalled_at` is the number of
    /// bytes that had moved by then.
    stalled_since: AtomicU64,
    stalled_at: AtomicU64,
    /// Bytes of bodies that an HTTP/2 client sent or read.
    progress: AtomicU64,
    /// Bytes of responses that wait until an HTTP/2 client reads them.
    pub(super) held: UnsentBytes,
    /// The heads of an HTTP/2 client that wait for their answers.
    pub(super) held_heads: HeldHeads,
    /// Budget of requests that an HTTP/2 client may cancel.
    cancels: Budget,
    /// Budget of frames from an HTTP/2 client that serve no request.
    idle_frames: Budget,
    /// Budget of requests that an HTTP/2 client begins and that the proxy does not even look at, because their heads
    /// break the rules.
    unserved: Budget,
    /// Budget of requests of an HTTP/2 client that are refused because the heads before them hold too much.
    refusals: Budget,
    /// Fields of heads that an HTTP/2 client has sent.
    fields: AtomicU64,
    /// Wakes the task that waits until one of these budgets is used up, or until the connection is to end.
    ender: AtomicWaker,
}

/// Keeps a connection under way while the rest of a request's body is received after its response.
pub(super) struct Draining(Arc<Activity>);

impl Drop for Draining {
    fn drop(&mut self) {
        self.0.owe(true, false);
        self.0.end_one();
    }
}

/// Keeps a connection under way while a backend still takes the rest of a request's body after its response.
pub(super) struct Keeping(Arc<Activity>);

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.end_one();
    }
}

/// Bytes that a client has to move within the time for a stall to count as making progress.
const PROGRESS: u64 = 1024;
/// How many cancelled requests each second gives back to the budget.
const CANCELS_PER_SECOND: u32 = 5;
/// Budget of HTTP/2 frames that serve no request. It grows by each request, by each second, and by each piece and each
/// KiB of a response's body, because a client may acknowledge each of those with a few frames.
const IDLE_FRAMES: u32 = 1000;
const IDLE_FRAMES_PER_REQUEST: u32 = 8;
const IDLE_FRAMES_PER_PIECE: u32 = 4;
const IDLE_FRAMES_PER_SECOND: u32 = 10;
/// Requests of an HTTP/2 client whose heads may break the rules.
const UNSERVED: u32 = 256;
/// Requests of an HTTP/2 client that are refused because of the heads before them. No rule forbids such a head, so each
/// complete answer gives one back, and so does time. Otherwise a connection that lasts for days would end by them.
const REFUSALS: u32 = 256;
const REFUSALS_PER_SECOND: u32 = 5;

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing. Look again after this time.
    Wait(Duration),
    /// There was no request for too long.
    Idle,
    /// The head of a request does not become complete.
    SlowHead,
    /// A body waits for the client, which neither sends nor reads.
    Stalled,
}

impl Activity {
    pub(super) fn new(limits: &HttpLimits) -> Self {
        Self {
            begun: Instant::now(),
            under_way: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            in_head: AtomicBool::new(false),
            resumed: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            old: AtomicBool::new(false),
            ending: OnceLock::new(),
            lingers: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            owed: AtomicU32::new(0),
            stalled_since: AtomicU64::new(0),
            stalled_at: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            held: UnsentBytes::default(),
            held_heads: HeldHeads::new(limits.streams),
            cancels: Budget::new(limits.cancels, CANCELS_PER_SECOND),
            idle_frames: Budget::new(IDLE_FRAMES, IDLE_FRAMES_PER_SECOND),
            // Those that h2 has read, and that have not begun here yet, are as many as the streams at most.
            unserved: Budget::new(UNSERVED.saturating_add(limits.streams), 0),
            refusals: Budget::new(REFUSALS.saturating_add(limits.streams), REFUSALS_PER_SECOND),
            fields: AtomicU64::new(0),
            ender: AtomicWaker::new(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that the head of a request is complete.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.idle_frames.earn(IDLE_FRAMES_PER_REQUEST);
        self.unserved.earn(1);
        self.head_since.store(0, Ordering::Relaxed);
        self.stalled_since.store(0, Ordering::Relaxed);
    }

    /// Records that a body begins or ceases to wait for the client.
    pub(super) fn owe(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => self.owed.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.owed.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Records that a response has ended.
    pub(super) fn end(&self) {
        self.stalled_since.store(0, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.reader.wake();
        self.end_one();
    }

    fn end_one(&self) {
        if self.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.idle_since.store(self.now(), Ordering::Relaxed);
            self.await_head();
        }
    }

    /// Records whether a part of the next head has arrived, in HTTP/1.
    pub(super) fn in_head(&self, is_in_head: bool) {
        self.in_head.store(is_in_head, Ordering::Relaxed);
        self.await_head();
    }

    /// The time for the rest of a head begins when nothing but this rest is awaited. As long as a response before it is not
    /// written, the head is not read on.
    fn await_head(&self) {
        let waits = self.in_head.load(Ordering::Relaxed)
            && self.under_way.load(Ordering::Relaxed) == 0
            && !self.has_unwritten(Version::One);
        if waits && self.head_since.load(Ordering::Relaxed) == 0 {
            let now = self.now().saturating_add(1);
            self.head_since.store(now, Ordering::Relaxed);
        }
    }

    /// Whether a part of a response that has ended is not written yet. This is known in HTTP/1 only.
    fn has_unwritten(&self, version: Version) -> bool {
        version == Version::One && self.answered() < self.ended()
    }

    /// Records that the connection has something to do again after it had given back its buffers.
    pub(super) fn resume(&self) {
        self.resumed.store(true, Ordering::Relaxed);
    }

    /// Waits for [`Self::resume`]. The task of the connection itself calls that, so nobody has to be woken.
    pub(super) fn poll_resumed(&self) -> Poll<()> {
        if self.resumed.load(Ordering::Relaxed) {
            self.resumed.store(false, Ordering::Relaxed);
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Records that the rest of a request's body is still received after its response, for a backend or to be dropped.
    /// Until that ends, the bytes that arrive are not those of a head, and the client must not stall.
    pub(super) fn drain(self: &Arc<Self>) -> Draining {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.owe(false, true);
        Draining(Arc::clone(self))
    }

    /// Keeps the connection under way, whoever has to go on: the client, or a backend that takes what the client sends.
    pub(super) fn keep(self: &Arc<Self>) -> Keeping {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Keeping(Arc::clone(self))
    }

    /// Records bytes of a body that an HTTP/2 client sent or read.
    pub(super) fn progressed(&self, bytes: usize) {
        self.progress.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records that an HTTP/2 client has read the whole response of a backend.
    pub(super) fn completed(&self) {
        self.cancels.earn(1);
        self.refusals.earn(1);
    }

    /// Records that an HTTP/2 client cancelled a request, or caused its cancellation.
    pub(super) fn cancelled(&self) {
        self.cancels.spend(|| self.now());
        self.tell_ender();
    }

    /// Records that an HTTP/2 client sent a frame that serves no request.
    pub(super) fn idle_frame(&self) {
        self.idle_frames.spend(|| self.now());
        self.tell_ender();
    }

    /// Records heads that an HTTP/2 client has sent, before they are decoded.
    pub(super) fn heads(&self, seen: Seen) {
        self.fields.fetch_add(seen.fields, Ordering::Relaxed);
        for _ in 0..seen.requests {
            self.unserved();
        }
        for _ in 0..seen.idle {
            self.idle_frame();
        }
    }

    /// Records a request that is not served because of its head. Each request counts as one until it
    /// [begins](Self::begin).
    pub(super) fn unserved(&self) {
        self.unserved.spend(|| self.now());
        self.tell_ender();
    }

    /// Records a request of an HTTP/2 client that is refused because the heads before it hold too much.
    pub(super) fn refused(&self) {
        self.refusals.spend(|| self.now());
        self.tell_ender();
    }

    /// Number of fields of heads so far, in HTTP/2.
    pub(super) fn fields(&self) -> u64 {
        self.fields.load(Ordering::Relaxed)
    }

    /// Records that a piece of a response's body goes to the client.
    pub(super) fn piece(&self, bytes: usize) {
        let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        let earned = kib.saturating_add(IDLE_FRAMES_PER_PIECE);
        self.idle_frames.earn(earned);
    }

    fn tell_ender(&self) {
        if self.abuse().is_some() {
            self.ender.wake();
        }
    }

    /// Why the connection of an abusive client has to end, if so.
    pub(super) fn abuse(&self) -> Option<CloseReason> {
        if self.cancels.is_over() {
            Some(CloseReason::TooManyCancels)
        } else if self.idle_frames.is_over() {
            Some(CloseReason::TooManyFrames)
        } else if self.unserved.is_over() || self.refusals.is_over() {
            Some(CloseReason::HttpError)
        } else {
            None
        }
    }

    /// Waits until [`Self::abuse`] has a reason.
    pub(super) fn poll_abuse(&self, cx: &Context<'_>) -> Poll<CloseReason> {
        self.ender.register(cx.waker());
        self.abuse().map_or(Poll::Pending, Poll::Ready)
    }

    /// Records that the connection ends when nothing is under way any more. The first reason counts.
    pub(super) fn end_connection(&self, reason: CloseReason) {
        let _ = self.ending.set(reason);
        self.ender.wake();
    }

    /// Why the connection ends when nothing is under way any more, if it does.
    pub(super) fn ending(&self) -> Option<CloseReason> {
        self.ending.get().copied()
    }

    /// Waits until [`Self::ending`] has a reason.
    pub(super) fn poll_ending(&self, cx: &Context<'_>) -> Poll<CloseReason> {
        self.ender.register(cx.waker());
        self.ending().map_or(Poll::Pending, Poll::Ready)
    }

    /// Registers the reader. It is woken when a response ends, when the connection is upgraded, or by [`Self::wake`].
    pub(super) fn wait(&self, cx: &Context<'_>) {
        self.reader.register(cx.waker());
    }

    /// Wakes the reader.
    pub(super) fn wake(&self) {
        self.reader.wake();
    }

    /// Number of requests whose response has ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Records that everything is written, so the responses that have ended are. Returns whether that is news.
    pub(super) fn flushed(&self) -> bool {
        let ended = self.ended();
        let is_news = self.answered.swap(ended, Ordering::Relaxed) < ended;
        if is_news && self.under_way.load(Ordering::Relaxed) == 0 {
            self.idle_since.store(self.now(), Ordering::Relaxed);
            self.await_head();
        }
        is_news
    }

    /// Number of requests whose responses were written to the last byte.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// For how long an HTTP/1.1 connection is idle: every response is written, and nothing of a further head has arrived.
    /// `None` if it is not.
    pub(super) fn quiet(&self) -> Option<Duration> {
        let is_quiet = self.answered() == self.requests()
            && self.under_way.load(Ordering::Relaxed) == 0
            && self.head_since.load(Ordering::Relaxed) == 0
            && !self.in_head.load(Ordering::Relaxed)
            && !self.is_upgraded()
            && !self.lingers();
        let since = self.idle_since.load(Ordering::Relaxed);
        is_quiet.then(|| Duration::from_millis(self.now().saturating_sub(since)))
    }

    /// Records that a response switches the connection to another protocol.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
        self.reader.wake();
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Records that the connection has reached its maximum age, or ends as if it had.
    pub(super) fn grow_old(&self) {
        self.old.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_old(&self) -> bool {
        self.old.load(Ordering::Relaxed)
    }

    /// Records that the connection ends with the response to a request whose body is not read.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// Number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes received and sent so far.
    pub(super) fn moved(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.received), load(&self.sent))
    }

    pub(super) fn judge(&self, limits: &HttpLimits, version: Version) -> Verdict {
        // A head may begin at any time, so the connection is checked at least this often.
        let soon = limits.head_deadline.min(limits.idle);
        let now = self.now();
        let left = |since: u64, allowed: Duration| {
            let passed = Duration::from_millis(now.saturating_sub(since));
            allowed.checked_sub(passed).filter(|left| !left.is_zero())
        };
        if self.has_unwritten(version) || self.under_way.load(Ordering::Relaxed) > 0 {
            return match left(self.stalled(now, version), limits.stall) {
                Some(left) => Verdict::Wait(left.min(soon)),
                None => Verdict::Stalled,
            };
        }
        // This is for HTTP/1 only: in HTTP/2 there are bytes without requests, such as settings and pings.
        let head = self.head_since.load(Ordering::Relaxed).checked_sub(1);
        if let (Version::One, Some(since)) = (version, head) {
            return match left(since, limits.head_deadline) {
                Some(left) => Verdict::Wait(left),
                None => Verdict::SlowHead,
            };
        }
        match left(self.idle_since.load(Ordering::Relaxed), limits.idle) {
            Some(left) => Verdict::Wait(left.min(soon)),
            None => Verdict::Idle,
        }
    }
}

impl Activity {
    /// When the present stall began. If nothing waits for the client, or it makes progress, that is `now`.
    fn stalled(&self, now: u64, version: Version) -> u64 {
        let moved = match version {
            Version::One => {
                let (received, sent) = self.moved();
                received.saturating_add(sent)
            }
            // Only bytes of bodies count. Pings, settings and window updates keep a connection busy without progress of
            // any request.
            Version::Two => self.progress.load(Ordering::Relaxed),
        };
        // The other tests are there because a response that has completely arrived may still wait for the client.
        let owes = self.owed.load(Ordering::Relaxed) > 0;
        if !owes && self.held.bytes() == 0 && !self.has_unwritten(version) {
            self.stalled_since.store(0, Ordering::Relaxed);
            return now;
        }
        let since = self.stalled_since.load(Ordering::Relaxed).checked_sub(1);
        let before = self.stalled_at.load(Ordering::Relaxed);
        match since {
            Some(since) if moved.saturating_sub(before) < PROGRESS => since,
            _ => {
                let mark = now.saturating_add(1);
                self.stalled_since.store(mark, Ordering::Relaxed);
                self.stalled_at.store(moved, Ordering::Relaxed);
                now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::unsent::Share;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_is_told_from_an_idle_connection() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Activity::new(&limits);
        let judge = |version| activity.judge(&limits, version);
        let seconds = |s| Verdict::Wait(Duration::from_secs(s));
        assert_eq!(judge(Version::One), seconds(10));
        tokio::time::advance(Duration::from_secs(55)).await;
        assert_eq!(judge(Version::One), seconds(5));
        activity.in_head(true);
        assert_eq!(judge(Version::One), seconds(10));
        assert_eq!(judge(Version::Two), seconds(5));
        tokio::time::advance(Duration::from_secs(6)).await;
        activity.in_head(true);
        assert_eq!(judge(Version::One), seconds(4));
        assert_eq!(judge(Version::Two), Verdict::Idle);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(judge(Version::One), Verdict::SlowHead);

        // A request may take any time. The idle time counts from its end.
        activity.in_head(false);
        activity.begin();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(judge(Version::One), seconds(10));
        activity.end();
        activity.flushed();
        assert_eq!(judge(Version::One), seconds(10));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(judge(Version::One), Verdict::Idle);
        assert_eq!(activity.requests(), 1);
    }

    /// The client has sent a part of the next head, and reads the response before it slowly.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_written_is_under_way() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            stall: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Activity::new(&limits);
        let judge = || activity.judge(&limits, Version::One);
        activity.begin();
        activity.in_head(true);
        activity.end();
        for _ in 0..5 {
            assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
            assert_eq!(activity.quiet(), None);
            tokio::time::advance(Duration::from_secs(59)).await;
            activity.sent(PROGRESS);
        }
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(judge(), Verdict::Stalled);
        // The time for the rest of the head begins now.
        assert!(activity.flushed());
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(judge(), Verdict::SlowHead);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_told_from_a_backend_that_takes_its_time() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            stall: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Activity::new(&limits);
        let judge = || activity.judge(&limits, Version::Two);
        activity.begin();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        activity.owe(false, true);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(40)).await;
            activity.progressed(1024);
            assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        }
        // A few bytes are no progress, nor are bytes outside of bodies, such as pings.
        tokio::time::advance(Duration::from_secs(55)).await;
        activity.progressed(10);
        activity.received(1_000_000);
        activity.sent(1_000_000);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(5)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(judge(), Verdict::Stalled);
        activity.owe(true, false);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        // An answer that a backend has sent whole, and the client has not read, counts too.
        let activity = Arc::new(activity);
        let piece = Share::new(&activity).piece(Bytes::from_static(b"unread"));
        let judge = || activity.judge(&limits, Version::Two);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(judge(), Verdict::Stalled);
        drop(piece);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_read_away_may_stall_and_is_no_slow_head() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            stall: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Arc::new(Activity::new(&limits));
        let judge = || activity.judge(&limits, Version::One);
        activity.begin();
        let draining = activity.drain();
        activity.end();
        activity.flushed();
        for _ in 0..5 {
            assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
            tokio::time::advance(Duration::from_secs(59)).await;
            activity.received(PROGRESS);
        }
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(judge(), Verdict::Stalled);
        // After its last byte the connection is idle.
        drop(draining);
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(89)).await;
        assert_eq!(judge(), Verdict::Wait(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(judge(), Verdict::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn any_byte_of_http1_is_of_a_body() {
        let limits = HttpLimits {
            stall: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Activity::new(&limits);
        activity.begin();
        activity.owe(false, true);
        for _ in 0..5 {
            let verdict = activity.judge(&limits, Version::One);
            assert_eq!(verdict, Verdict::Wait(Duration::from_secs(10)));
            tokio::time::advance(Duration::from_secs(59)).await;
            activity.sent(PROGRESS);
        }
    }

    /// Begins a request of an HTTP/2 client, which is refused because of the heads before it.
    fn refuse(activity: &Activity) {
        activity.heads(Seen {
            requests: 1,
            fields: 4,
            idle: 0,
        });
        activity.begin();
        activity.refused();
        activity.end();
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_only_floods_with_refused_heads_is_ended() {
        let limits = HttpLimits::default();
        let activity = Activity::new(&limits);
        for n in 0..REFUSALS + limits.streams {
            assert_eq!(activity.abuse(), None, "after {n}");
            refuse(&activity);
        }
        assert_eq!(activity.abuse(), None);
        refuse(&activity);
        assert_eq!(activity.abuse(), Some(CloseReason::HttpError));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_within_a_long_time_or_among_answers_end_no_connection() {
        let limits = HttpLimits::default();
        let activity = Activity::new(&limits);
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            for _ in 0..REFUSALS_PER_SECOND {
                refuse(&activity);
            }
        }
        assert_eq!(activity.abuse(), None);
        // At one time, and each beside a request that is served.
        let activity = Activity::new(&limits);
        for _ in 0..5000 {
            refuse(&activity);
            activity.begin();
            activity.completed();
            activity.end();
        }
        assert_eq!(activity.abuse(), None);
    }
}
