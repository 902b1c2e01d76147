//! Limits the number of connections. Only a few may be unauthenticated, in all and per source. More may have an
//! admitted stream.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ConnectionLimits;

/// Counts connections, and gives out permits.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    connections: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// The number of connections without an admitted stream, by source. A source without any is not in the map.
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    per_source: usize,
}

/// The permit of one connection, with the number of its admitted streams.
#[derive(Debug)]
pub(in crate::publish) struct ConnectionPermit {
    source: IpAddr,
    /// The number of admitted streams.
    streams: AtomicUsize,
    /// The permit that is held until the first stream is admitted.
    unauthenticated: Mutex<Option<UnauthenticatedPermit>>,
    open: Gauge,
    _connection: OwnedSemaphorePermit,
}

/// The permit of a connection without an admitted stream.
#[derive(Debug)]
struct UnauthenticatedPermit {
    source: IpAddr,
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

/// An admitted stream. The connection may stay open as long as it has one.
#[derive(Debug)]
pub(in crate::publish) struct StreamGuard(Arc<ConnectionPermit>);

impl ConnectionLimiter {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            strangers: Arc::new(Semaphore::new(limits.strangers)),
            sources: Arc::default(),
            per_source: limits.strangers_per_source,
        }
    }

    /// Returns a permit for a connection from `source`, or the reason why there is no place for it.
    pub(super) fn enter(
        &self,
        source: IpAddr,
        open: &Gauge,
    ) -> Result<ConnectionPermit, &'static str> {
        let take = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_owned();
        let connection = take(&self.connections).map_err(|_| "TooManyConnections")?;
        let permit = take(&self.strangers).map_err(|_| "TooManyStrangers")?;
        {
            let mut sources = self.sources.lock();
            let strangers = sources.entry(source).or_default();
            if *strangers >= self.per_source {
                return Err("TooManyOfOneSource");
            }
            *strangers += 1;
        }
        open.inc();
        Ok(ConnectionPermit {
            source,
            streams: AtomicUsize::new(0),
            unauthenticated: Mutex::new(Some(UnauthenticatedPermit {
                source,
                sources: Arc::clone(&self.sources),
                _permit: permit,
            })),
            open: open.clone(),
            _connection: connection,
        })
    }
}

impl ConnectionPermit {
    pub(in crate::publish) fn source(&self) -> IpAddr {
        self.source
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.streams.load(Ordering::Acquire) > 0
    }

    /// Records that a stream was admitted.
    pub(in crate::publish) fn admit(self: &Arc<Self>) -> StreamGuard {
        self.streams.fetch_add(1, Ordering::AcqRel);
        drop(self.unauthenticated.lock().take());
        StreamGuard(Arc::clone(self))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for UnauthenticatedPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.sources.lock().entry(self.source) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> ConnectionLimits {
        ConnectionLimits {
            strangers: 4,
            strangers_per_source: 2,
            connections: 6,
            ..ConnectionLimits::default()
        }
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn strangers_are_few_in_all_and_per_source() {
        let (limiter, open) = (ConnectionLimiter::new(&limits()), Gauge::default());
        let enter = |n| limiter.enter(address(n), &open);
        let mut there = vec![enter(1).unwrap(), enter(1).unwrap()];
        assert_eq!(enter(1).unwrap_err(), "TooManyOfOneSource");
        there.extend([enter(2).unwrap(), enter(3).unwrap()]);
        assert_eq!(enter(4).unwrap_err(), "TooManyStrangers");
        assert_eq!(open.get(), 4);
        there.clear();
        assert!(limiter.sources.lock().is_empty());
        assert_eq!(open.get(), 0);
        enter(1).unwrap();
    }

    #[test]
    fn connection_with_an_admitted_stream_takes_no_unauthenticated_place() {
        let (limiter, open) = (ConnectionLimiter::new(&limits()), Gauge::default());
        let mut there = Vec::new();
        for _ in 0..6 {
            let permit = Arc::new(limiter.enter(address(1), &open).unwrap());
            let stream_guard = permit.admit();
            assert!(permit.is_admitted());
            there.push((permit, stream_guard));
        }
        let refused = limiter.enter(address(1), &open).unwrap_err();
        assert_eq!(refused, "TooManyConnections");
        let (permit, stream_guard) = there.pop().unwrap();
        drop(stream_guard);
        assert!(!permit.is_admitted());
    }
}
