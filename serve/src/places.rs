//! Owns a bounded number of places (for connections, for bytes) that sources share fairly, so that a flood from one
//! source leaves places for the others.
//!
//! A source may take a place if it then holds no more places than were free before. So a single source can hold at most
//! half of all places, and `n` sources together can hold `n/(n+1)` of them. The next source always finds some.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The unit by which places are counted: connections of one source are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// The source of a client from anywhere: its IPv4 address, or the /64 of its IPv6 address. A /64 is the least that
    /// a subscriber gets, and they can use any address in it.
    #[must_use]
    pub fn of_client(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
        })
    }

    /// The source of a peer in the cluster, for ports that only the cluster uses: its address. Pods, nodes and API
    /// servers may all have addresses in one /64 there, and a pod cannot choose its own.
    #[must_use]
    pub fn of_peer(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }
}

/// Places that sources share.
#[derive(Debug, Clone)]
pub struct Places<K: Key = Source>(Arc<Shared<K>>);

/// The key by which places are counted: a source, or a source together with a purpose.
pub trait Key: Copy + Eq + Hash {}

impl<K: Copy + Eq + Hash> Key for K {}

#[derive(Debug)]
struct Shared<K> {
    limit: usize,
    taken: Mutex<Taken<K>>,
    freed: Notify,
}

#[derive(Debug)]
struct Taken<K> {
    total: usize,
    /// Places of each source. Sources without any are not in it, so it has at most as many entries as there are places.
    by_source: HashMap<K, usize>,
}

impl<K> Default for Taken<K> {
    fn default() -> Self {
        Self {
            total: 0,
            by_source: HashMap::new(),
        }
    }
}

/// Some places. Its `Drop` frees them.
#[derive(Debug)]
pub struct Place<K: Key = Source> {
    /// The source; `None` if it is not known yet.
    source: Option<K>,
    count: usize,
    places: Places<K>,
}

impl<K: Key> Places<K> {
    /// `limit` places.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            taken: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Takes `count` places for `source`, if it may have them.
    #[must_use]
    pub fn take(&self, source: K, count: usize) -> Option<Place<K>> {
        self.take_of_part(source, count, 1)
    }

    /// The same, but as if there were only `1/parts` of all places.
    #[must_use]
    pub fn take_of_part(&self, source: K, count: usize, parts: usize) -> Option<Place<K>> {
        let mut taken = self.0.taken.lock();
        let free = self.part(parts).saturating_sub(taken.total);
        taken.charge(source, count, free)?;
        taken.total += count;
        drop(taken);
        Some(self.place(Some(source), count))
    }

    /// How many places `source` has, and how many are free.
    #[must_use]
    pub fn held_and_free(&self, source: K) -> (usize, usize) {
        let taken = self.0.taken.lock();
        let held = taken.by_source.get(&source).copied().unwrap_or_default();
        (held, self.0.limit.saturating_sub(taken.total))
    }

    /// Takes a place whose source is not known yet, as long as fewer than `1/parts` of all places are taken. The caller
    /// must be trusted to name the source soon, with [`Place::name`].
    #[must_use]
    pub fn take_unnamed(&self, parts: usize) -> Option<Place<K>> {
        let mut taken = self.0.taken.lock();
        if taken.total >= self.part(parts) {
            return None;
        }
        taken.total += 1;
        drop(taken);
        Some(self.place(None, 1))
    }

    /// The same as [`Self::take`], but it waits until the source may have the places.
    pub async fn wait(&self, source: K, count: usize) -> Place<K> {
        loop {
            // This is registered before the check, so that a place that is freed meanwhile is not missed.
            let mut freed = pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Some(place) = self.take(source, count) {
                return place;
            }
            freed.await;
        }
    }

    fn part(&self, parts: usize) -> usize {
        self.0.limit / parts.max(1)
    }

    fn place(&self, source: Option<K>, count: usize) -> Place<K> {
        Place {
            source,
            count,
            places: self.clone(),
        }
    }
}

impl<K: Key> Taken<K> {
    /// Counts `count` more places for a source, if it then holds no more than `most`.
    fn charge(&mut self, source: K, count: usize, most: usize) -> Option<()> {
        let held = self.by_source.get(&source).copied().unwrap_or_default();
        let held = held.saturating_add(count);
        if held > most {
            return None;
        }
        self.by_source.insert(source, held);
        Some(())
    }
}

impl<K: Key> Place<K> {
    /// Whether its source is known.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.source.is_some()
    }

    /// Counts a place without a source for `source`, as if there were only `1/parts` of all places. Returns whether
    /// that was possible. If `source` may not have it, the place stays without a source. A place that already has a
    /// source keeps it, and the result is true.
    #[must_use]
    pub fn name(&mut self, source: K, parts: usize) -> bool {
        if !self.is_named() {
            let mut taken = self.places.0.taken.lock();
            let others = taken.total.saturating_sub(self.count);
            let free = self.places.part(parts).saturating_sub(others);
            if taken.charge(source, self.count, free).is_none() {
                return false;
            }
            self.source = Some(source);
        }
        true
    }
}

impl<K: Key> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.lock();
        taken.total = taken.total.saturating_sub(self.count);
        let source = self.source.map(|source| taken.by_source.entry(source));
        if let Some(Entry::Occupied(mut held)) = source {
            *held.get_mut() = held.get().saturating_sub(self.count);
            if *held.get() == 0 {
                held.remove();
            }
        }
        drop(taken);
        self.places.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Source {
        Source::of_client(address.parse().unwrap())
    }

    fn host(last: u8) -> Source {
        Source::of_client([192, 0, 2, last].into())
    }

    fn all(places: &Places, source: Source) -> Vec<Place> {
        std::iter::from_fn(|| places.take(source, 1)).collect()
    }

    #[test]
    fn addresses_of_one_subscriber_are_one_source_and_peers_are_each_their_own() {
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.2"), client("192.0.2.1"));
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        let peer = |address: &str| Source::of_peer(address.parse().unwrap());
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("2001:db8:0:1::1"), peer("2001:db8:0:1::2"));
    }

    #[test]
    fn source_never_takes_all_places_but_leaves_some_to_others() {
        let places = Places::new(100);
        let one = all(&places, host(1));
        assert_eq!(one.len(), 50);
        assert!(places.take(client("::ffff:192.0.2.1"), 1).is_none());
        assert_eq!(all(&places, host(2)).len(), 25);
        for last in 3..=255 {
            assert!(places.take(host(last), 1).is_some());
        }
        drop(one);
        assert!(places.0.taken.lock().by_source.is_empty());
        assert_eq!(all(&places, host(1)).len(), 50);
    }

    #[test]
    fn a_single_place_can_be_had() {
        assert_eq!(all(&Places::new(1), host(1)).len(), 1);
        assert_eq!(all(&Places::new(0), host(1)).len(), 0);
    }

    #[test]
    fn a_part_of_the_places_is_shared_alike() {
        let places = Places::new(80);
        let part = std::iter::from_fn(|| places.take_of_part(host(1), 1, 4));
        let part: Vec<Place> = part.collect();
        assert_eq!(part.len(), 10);
        assert_eq!(all(&places, host(1)).len(), 30);
    }

    #[test]
    fn places_that_are_named_later_are_shared_as_the_others_are() {
        let places = Places::new(8);
        // One balancer may have all of them.
        let unnamed = std::iter::from_fn(|| places.take_unnamed(1));
        let mut unnamed: Vec<Place> = unnamed.take(20).collect();
        assert_eq!(unnamed.len(), 8);
        // While nothing is free, nobody gets more than the place that was taken for them.
        assert!(unnamed[0].name(host(1), 1));
        assert!(!unnamed[1].name(host(1), 1));
        unnamed.truncate(4);
        // Of the 4 places that are left, one source may have all, as if it had taken them itself.
        assert!(unnamed.iter_mut().all(|place| place.name(host(1), 1)));
        // With a fifth place, it would hold more than were free.
        let mut fifth = places.take_unnamed(1).unwrap();
        assert!(!fifth.name(host(1), 1));
        // More places are taken than half of all places.
        assert!(places.take_unnamed(2).is_none());
        assert!(!fifth.name(host(4), 2));
        // Another source may have the place, and keeps it.
        assert!(fifth.name(host(2), 1));
        assert!(fifth.name(host(1), 1));
        assert_eq!(places.0.taken.lock().by_source.len(), 2);
        drop((unnamed, fifth));
        assert_eq!(places.0.taken.lock().total, 0);
        assert!(places.0.taken.lock().by_source.is_empty());
    }

    #[tokio::test]
    async fn source_that_waits_gets_the_places_that_are_freed() {
        let places = Places::new(32);
        let (one, two) = (host(1), host(2));
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
        assert_eq!(places.0.taken.lock().total, 0);
    }
}
