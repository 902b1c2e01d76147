//! Owns what happens on one HTTP connection over time: requests under way, bytes, and since when it
//! is idle. hyper's own deadline for heads also runs between requests, so it cannot tell a slow head
//! from a client that keeps its connection.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{HttpLimits, Version};

/// Counters that the connection and its requests share. They live on one thread.
#[derive(Debug)]
pub(super) struct Activity {
    begun: Instant,
    under_way: AtomicU32,
    requests: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    /// Milliseconds from `begun` to when nothing was under way any more.
    idle_since: AtomicU64,
    /// Milliseconds from `begun` to the first byte after that, plus 1; 0 before it.
    head_since: AtomicU64,
}

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing before this has passed.
    Wait(Duration),
    /// No request for too long.
    Idle,
    /// A head that does not come to its end.
    SlowHead,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            under_way: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        let between = self.under_way.load(Ordering::Relaxed) == 0;
        if bytes > 0 && between && self.head_since.load(Ordering::Relaxed) == 0 {
            let now = self.now().saturating_add(1);
            self.head_since.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A head is complete.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    /// An answer is out.
    pub(super) fn end(&self) {
        if self.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.idle_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes received and sent so far.
    pub(super) fn moved(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.received), load(&self.sent))
    }

    pub(super) fn judge(&self, limits: &HttpLimits, version: Version) -> Verdict {
        // A head may begin at any time, so the connection is looked at this often.
        let soon = limits.head_deadline.min(limits.idle);
        if self.under_way.load(Ordering::Relaxed) > 0 {
            return Verdict::Wait(soon);
        }
        let now = self.now();
        let left = |since: u64, allowed: Duration| {
            let passed = Duration::from_millis(now.saturating_sub(since));
            allowed.checked_sub(passed).filter(|left| !left.is_zero())
        };
        // In HTTP/2 there are bytes without requests: settings, pings.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_is_told_from_an_idle_connection() {
        let limits = HttpLimits {
            head_deadline: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            ..HttpLimits::default()
        };
        let activity = Activity::new();
        let judge = |version| activity.judge(&limits, version);
        let seconds = |s| Verdict::Wait(Duration::from_secs(s));
        assert_eq!(judge(Version::One), seconds(10));
        tokio::time::advance(Duration::from_secs(55)).await;
        assert_eq!(judge(Version::One), seconds(5));
        activity.received(1);
        assert_eq!(judge(Version::One), seconds(10));
        assert_eq!(judge(Version::Two), seconds(5));
        tokio::time::advance(Duration::from_secs(6)).await;
        activity.received(1);
        assert_eq!(judge(Version::One), seconds(4));
        assert_eq!(judge(Version::Two), Verdict::Idle);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(judge(Version::One), Verdict::SlowHead);

        // A request takes as long as it takes, and the time after it counts from its end.
        activity.begin();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(judge(Version::One), seconds(10));
        activity.end();
        assert_eq!(judge(Version::One), seconds(10));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(judge(Version::One), Verdict::Idle);
        assert_eq!(activity.requests(), 1);
        assert_eq!(activity.moved(), (2, 0));
    }
}
