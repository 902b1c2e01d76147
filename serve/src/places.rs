//! Owns a bounded number of places (for connections, for bytes) that sources share fairly, so that a flood from one
//! source leaves places for the others.
//!
//! A source gets another place while it then holds no more places than were free. So a single source can hold at
//! most half of them, and `n` sources together `n/(n+1)`. The next source always finds some.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Places that are shared.
#[derive(Debug, Clone)]
pub struct Places {
    limit: usize,
    taken: Arc<Mutex<Taken>>,
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// A source without any is not in it.
    by_source: HashMap<IpAddr, usize>,
}

/// Some places; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    source: IpAddr,
    count: usize,
    places: Places,
}

impl Places {
    /// So many places.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: Arc::default(),
            freed: Arc::default(),
        }
    }

    /// So many places for `source`, if it may have them.
    #[must_use]
    pub fn take(&self, source: IpAddr, count: usize) -> Option<Place> {
        let source = source.to_canonical();
        let mut taken = self.taken.lock();
        let held = taken.by_source.get(&source).copied().unwrap_or_default();
        let held = held.saturating_add(count);
        if held > self.limit.saturating_sub(taken.total) {
            return None;
        }
        taken.total += count;
        taken.by_source.insert(source, held);
        drop(taken);
        Some(Place {
            source,
            count,
            places: self.clone(),
        })
    }

    /// The same as soon as it may have them.
    pub async fn wait(&self, source: IpAddr, count: usize) -> Place {
        loop {
            // Before looking, so that what is freed meanwhile is not missed.
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(place) = self.take(source, count) {
                return place;
            }
            freed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.total = taken.total.saturating_sub(self.count);
        if let Entry::Occupied(mut held) = taken.by_source.entry(self.source) {
            *held.get_mut() = held.get().saturating_sub(self.count);
            if *held.get() == 0 {
                held.remove();
            }
        }
        drop(taken);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(places: &Places, last: u8) -> Vec<Place> {
        let address = IpAddr::from([192, 0, 2, last]);
        std::iter::from_fn(|| places.take(address, 1)).collect()
    }

    #[test]
    fn nobody_takes_everything() {
        let places = Places::new(100);
        let one = all(&places, 1);
        assert_eq!(one.len(), 50);
        assert!(
            places
                .take("::ffff:192.0.2.1".parse().unwrap(), 1)
                .is_none()
        );
        assert_eq!(all(&places, 2).len(), 25);
        for last in 3..=255 {
            assert!(places.take(IpAddr::from([192, 0, 2, last]), 1).is_some());
        }
        drop(one);
        assert!(places.taken.lock().by_source.is_empty());
        assert_eq!(all(&places, 1).len(), 50);
    }

    #[test]
    fn a_single_place_can_be_had() {
        assert_eq!(all(&Places::new(1), 1).len(), 1);
        assert_eq!(all(&Places::new(0), 1).len(), 0);
    }

    #[tokio::test]
    async fn who_waits_gets_what_is_freed() {
        let places = Places::new(32);
        let (one, two) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let held = places.take(one, 16).unwrap();
        assert!(places.take(one, 1).is_none());
        let other = places.wait(two, 8).await;
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.wait(one, 16).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        drop(waiting.await.unwrap());
        drop(other);
        assert_eq!(places.taken.lock().total, 0);
    }
}
