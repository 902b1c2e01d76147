//! Limits how often one source address can cause a request to the API server. Each source has an allowance that fills
//! up over time (a token bucket).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Largest number of requests that a source can save up.
const BURST: u32 = 10;
/// Time after which a source gets one more request.
const EARNS: Duration = Duration::from_secs(2);
/// Largest number of sources that have an allowance of their own. All others share one.
const MAX_SOURCES: usize = 4096;

/// The allowance of each source address. A proxy needs one request per connection, so only a source with many invalid
/// tokens runs out.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    sources: HashMap<IpAddr, Bucket>,
    others: Bucket,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// When the allowance is full again. Each request moves this on by [`EARNS`]. So one time suffices, and no timer or
    /// counter has to be updated.
    full_at: Option<Instant>,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.unwrap_or(now).max(now);
        let after = full_at + EARNS;
        if after > now + EARNS * BURST {
            return false;
        }
        self.full_at = Some(after);
        true
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

impl Buckets {
    /// Takes one request from the allowance of `source`. Returns `false` if none is left.
    pub(super) fn take(&mut self, source: IpAddr, now: Instant) -> bool {
        if !self.sources.contains_key(&source) && self.sources.len() >= MAX_SOURCES {
            self.sources.retain(|_, bucket| !bucket.is_full(now));
        }
        if !self.sources.contains_key(&source) && self.sources.len() >= MAX_SOURCES {
            return self.others.take(now);
        }
        self.sources.entry(source).or_default().take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let (mut buckets, start) = (Buckets::default(), Instant::now());
        for _ in 0..BURST {
            assert!(buckets.take(address(1), start));
        }
        assert!(!buckets.take(address(1), start));
        assert!(buckets.take(address(2), start));
        assert!(buckets.take(address(1), start + EARNS));
        assert!(!buckets.take(address(1), start + EARNS));
    }

    #[test]
    fn many_sources_take_bounded_room_and_do_not_push_anybody_out() {
        let (mut buckets, start) = (Buckets::default(), Instant::now());
        while buckets.take(address(0), start) {}
        let others = (1..20_000)
            .filter(|n| buckets.take(address(*n), start))
            .count();
        assert!(buckets.sources.len() <= MAX_SOURCES);
        assert!(others < MAX_SOURCES + 20, "{others} questions");
        assert!(!buckets.take(address(0), start));
        // When all sources have earned back what they spent, there is room again.
        assert!(buckets.take(address(30_000), start + EARNS * BURST));
        assert!(buckets.sources.len() < 10);
    }
}
