//! Owns a fair share of scarce places: nobody holds so many that others find none.
//!
//! A source gets a place as long as it holds fewer than there are free ones. So one source alone can
//! hold half of the places, `n` that do all they can hold `n/(n+1)`, and who comes then still gets
//! one. Sources are counted in a table of fixed size at places that an attacker cannot foresee; those
//! that share one share their count.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts that sources fall on.
const COUNTS: usize = 4096;

/// Places that are shared.
#[derive(Debug)]
pub(crate) struct Shares {
    limit: usize,
    total: AtomicUsize,
    counts: Box<[AtomicUsize]>,
    hash: RandomState,
}

/// Which count a source falls on; to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source(usize);

impl Shares {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            total: AtomicUsize::new(0),
            counts: (0..COUNTS).map(|_| AtomicUsize::new(0)).collect(),
            hash: RandomState::new(),
        }
    }

    /// Takes a place for `address`, if it may have one. No more than one of `parts` of the places may be in use.
    pub(crate) fn take(&self, address: IpAddr, parts: usize) -> Option<Source> {
        let source = self.source(address);
        let count = self.counts.get(source.0)?;
        let total = self.total.fetch_add(1, Ordering::AcqRel);
        let held = count.fetch_add(1, Ordering::AcqRel);
        let free = (self.limit / parts.max(1)).saturating_sub(total);
        if held < free {
            return Some(source);
        }
        self.give_back(source);
        None
    }

    pub(crate) fn give_back(&self, source: Source) {
        self.give_back_unnamed();
        if let Some(count) = self.counts.get(source.0) {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Takes a place of which it is not known yet who has it, as long as any is free of one of `parts`. Whoever takes such
    /// places has to be trusted to name soon who they are for.
    pub(crate) fn take_unnamed(&self, parts: usize) -> bool {
        let limit = self.limit / parts.max(1);
        let taken = self.total.fetch_add(1, Ordering::AcqRel) < limit;
        if !taken {
            self.give_back_unnamed();
        }
        taken
    }

    /// Has a place that was taken unnamed count for `address`, if that may have it. If not, it stays unnamed.
    pub(crate) fn name(&self, address: IpAddr, parts: usize) -> Option<Source> {
        let source = self.source(address);
        let count = self.counts.get(source.0)?;
        let held = count.fetch_add(1, Ordering::AcqRel);
        let others = self.total.load(Ordering::Acquire).saturating_sub(1);
        if held < (self.limit / parts.max(1)).saturating_sub(others) {
            return Some(source);
        }
        count.fetch_sub(1, Ordering::AcqRel);
        None
    }

    pub(crate) fn give_back_unnamed(&self) {
        self.total.fetch_sub(1, Ordering::AcqRel);
    }

    fn source(&self, address: IpAddr) -> Source {
        let hash = self.hash.hash_one(network(address));
        Source(usize::try_from(hash).unwrap_or(0) % COUNTS)
    }
}

/// What counts as one source: an IPv4 address, or the IPv6 network of a subscriber.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shares: &Shares, address: &str) -> Vec<Source> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| shares.take(address, 1)).collect()
    }

    #[test]
    fn nobody_takes_everything() {
        let shares = Shares::new(1000);
        let one = all(&shares, "192.0.2.1");
        assert_eq!(one.len(), 500);
        // Addresses of one subscriber are one source, however they are written.
        assert_eq!(all(&shares, "::ffff:192.0.2.1"), []);
        let two = all(&shares, "2001:db8:0:1::1");
        assert_eq!(all(&shares, "2001:db8:0:1:ffff::2"), []);
        assert_eq!(two.len(), 250);
        for n in 0..100 {
            // One may fall on the count of another, but not all.
            let address = IpAddr::from([198, 51, 100, n]);
            if let Some(source) = shares.take(address, 1) {
                shares.give_back(source);
                continue;
            }
            assert!(n > 0, "a newcomer finds a place");
        }
        for source in one.into_iter().chain(two) {
            shares.give_back(source);
        }
        assert_eq!(shares.total.load(Ordering::Acquire), 0);
        assert_eq!(all(&shares, "192.0.2.1").len(), 500);
    }

    #[test]
    fn a_part_of_the_places_is_shared_alike() {
        let shares = Shares::new(80);
        let address = "192.0.2.1".parse().unwrap();
        let part: Vec<Source> = std::iter::from_fn(|| shares.take(address, 4)).collect();
        assert_eq!(part.len(), 10);
        assert_eq!(all(&shares, "192.0.2.1").len(), 30);
    }

    #[test]
    fn places_that_are_named_later_are_shared_as_the_others_are() {
        let shares = Shares::new(8);
        let unnamed = std::iter::from_fn(|| shares.take_unnamed(1).then_some(()));
        // One balancer may have them all.
        assert_eq!(unnamed.take(20).count(), 8);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        // While nothing is free, nobody gets more than the place that was taken for them.
        let first = shares.name(address("192.0.2.1"), 1).unwrap();
        assert_eq!(shares.name(address("192.0.2.1"), 1), None);
        for _ in 0..4 {
            shares.give_back_unnamed();
        }
        // 4 are held, which may all be one source's, as if it had taken them itself.
        let more = std::iter::from_fn(|| shares.name(address("192.0.2.1"), 1));
        let named: Vec<_> = more.take(3).chain([first]).collect();
        assert_eq!(named.len(), 4);
        // A fifth would be more than are left to others.
        assert!(shares.take_unnamed(1));
        assert_eq!(shares.name(address("192.0.2.1"), 1), None);
        // Of a part of the places more are in use than there are.
        assert!(!shares.take_unnamed(2));
        assert_eq!(shares.name(address("192.0.2.4"), 2), None);
        // It is a newcomer's, of whom one may fall on the count of another, but not all.
        let newcomers = ["192.0.2.2", "192.0.2.3"];
        let named_too = newcomers
            .iter()
            .find_map(|text| shares.name(address(text), 1));
        for source in named.into_iter().chain(named_too) {
            shares.give_back(source);
        }
        assert_eq!(shares.total.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_single_place_can_be_had() {
        let shares = Shares::new(1);
        assert_eq!(all(&shares, "192.0.2.1").len(), 1);
        assert_eq!(all(&Shares::new(0), "192.0.2.1"), []);
    }
}
