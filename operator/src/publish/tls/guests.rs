//! Who is connected: strangers, of whom there are few, and those with an admitted stream.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Limits;

/// Everybody who is connected.
#[derive(Debug)]
pub(super) struct Guests {
    connections: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Strangers by source; a source without any is not in it.
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    per_source: usize,
}

/// One connection.
#[derive(Debug)]
pub(in crate::publish) struct Guest {
    source: IpAddr,
    /// Admitted streams.
    streams: AtomicUsize,
    /// Held until the first one.
    stranger: Mutex<Option<Stranger>>,
    open: Gauge,
    _connection: OwnedSemaphorePermit,
}

/// A stranger's place.
#[derive(Debug)]
struct Stranger {
    source: IpAddr,
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

/// An admitted stream; the connection may stay as long as there is one.
#[derive(Debug)]
pub(in crate::publish) struct Stay(Arc<Guest>);

impl Guests {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            strangers: Arc::new(Semaphore::new(limits.strangers)),
            sources: Arc::default(),
            per_source: limits.strangers_per_source,
        }
    }

    /// A connection from `source`, or why there is no place for it.
    pub(super) fn enter(&self, source: IpAddr, open: &Gauge) -> Result<Guest, &'static str> {
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
        Ok(Guest {
            source,
            streams: AtomicUsize::new(0),
            stranger: Mutex::new(Some(Stranger {
                source,
                sources: Arc::clone(&self.sources),
                _permit: permit,
            })),
            open: open.clone(),
            _connection: connection,
        })
    }
}

impl Guest {
    pub(in crate::publish) fn source(&self) -> IpAddr {
        self.source
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.streams.load(Ordering::Acquire) > 0
    }

    /// A stream was admitted.
    pub(in crate::publish) fn admit(self: &Arc<Self>) -> Stay {
        self.streams.fetch_add(1, Ordering::AcqRel);
        drop(self.stranger.lock().take());
        Stay(Arc::clone(self))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Stranger {
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

    fn limits() -> Limits {
        Limits {
            strangers: 4,
            strangers_per_source: 2,
            connections: 6,
            ..Limits::default()
        }
    }

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn strangers_are_few_in_all_and_per_source() {
        let (guests, open) = (Guests::new(&limits()), Gauge::default());
        let enter = |n| guests.enter(address(n), &open);
        let mut there = vec![enter(1).unwrap(), enter(1).unwrap()];
        assert_eq!(enter(1).unwrap_err(), "TooManyOfOneSource");
        there.extend([enter(2).unwrap(), enter(3).unwrap()]);
        assert_eq!(enter(4).unwrap_err(), "TooManyStrangers");
        assert_eq!(open.get(), 4);
        there.clear();
        assert!(guests.sources.lock().is_empty());
        assert_eq!(open.get(), 0);
        enter(1).unwrap();
    }

    #[test]
    fn who_is_admitted_takes_no_strangers_place() {
        let (guests, open) = (Guests::new(&limits()), Gauge::default());
        let mut there = Vec::new();
        for _ in 0..6 {
            let guest = Arc::new(guests.enter(address(1), &open).unwrap());
            let stay = guest.admit();
            assert!(guest.is_admitted());
            there.push((guest, stay));
        }
        let refused = guests.enter(address(1), &open).unwrap_err();
        assert_eq!(refused, "TooManyConnections");
        let (guest, stay) = there.pop().unwrap();
        drop(stay);
        assert!(!guest.is_admitted());
    }
}
