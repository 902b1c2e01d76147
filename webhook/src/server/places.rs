//! Owns the places for connections, shared fairly between sources: whoever can reach the port, API
//! servers find a place.
//!
//! A source gets one as long as it holds fewer than are free. So one alone can hold half of them, `n`
//! can hold `n/(n+1)`, and who comes then still gets one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Places that are shared.
#[derive(Debug, Clone)]
pub(super) struct Places {
    limit: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// A source without any is not in it.
    by_source: HashMap<IpAddr, usize>,
}

/// One place; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    source: IpAddr,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: Arc::default(),
        }
    }

    /// A place for `source`, if it may have one.
    pub(super) fn take(&self, source: IpAddr) -> Option<Place> {
        let source = source.to_canonical();
        let mut taken = self.taken.lock();
        let held = taken.by_source.get(&source).copied().unwrap_or_default();
        if held >= self.limit.saturating_sub(taken.total) {
            return None;
        }
        taken.total += 1;
        taken.by_source.insert(source, held + 1);
        drop(taken);
        Some(Place {
            source,
            taken: Arc::clone(&self.taken),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.total = taken.total.saturating_sub(1);
        if let Entry::Occupied(mut held) = taken.by_source.entry(self.source) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(places: &Places, last: u8) -> Vec<Place> {
        let address = IpAddr::from([192, 0, 2, last]);
        std::iter::from_fn(|| places.take(address)).collect()
    }

    #[test]
    fn nobody_takes_everything() {
        let places = Places::new(100);
        let one = all(&places, 1);
        assert_eq!(one.len(), 50);
        assert!(places.take("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert_eq!(all(&places, 2).len(), 25);
        for last in 3..=255 {
            assert!(places.take(IpAddr::from([192, 0, 2, last])).is_some());
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
}
