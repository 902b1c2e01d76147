//! How many streams each proxy has: a proxy has one, and for a moment two. Whoever got hold of a token
//! must not take the places of all the others with it, nor have everything encoded for each of a
//! thousand streams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ledger::ProxyId;

/// Most streams of one proxy: those that its network lost and that nobody has noticed yet count too.
const MAX_SEATS: usize = 8;

/// Seats by proxy; a proxy without any is not in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<HashMap<ProxyId, usize>>>);

/// The seat of one stream; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    proxy: ProxyId,
    seats: Seats,
}

impl Seats {
    /// A seat for `proxy`, if it has one left.
    pub(super) fn take(&self, proxy: &str) -> Option<Seat> {
        let mut seats = self.0.lock();
        let taken = seats.entry(proxy.to_owned()).or_default();
        if *taken >= MAX_SEATS {
            return None;
        }
        *taken += 1;
        drop(seats);
        Some(Seat {
            proxy: proxy.to_owned(),
            seats: self.clone(),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Entry::Occupied(mut taken) = self.seats.0.lock().entry(self.proxy.clone()) {
            *taken.get_mut() -= 1;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_its_seats_and_takes_nobody_elses() {
        let seats = Seats::default();
        let mut taken: Vec<_> = (0..MAX_SEATS).map(|_| seats.take("a").unwrap()).collect();
        assert!(seats.take("a").is_none());
        assert!(seats.take("b").is_some());
        taken.pop();
        assert!(seats.take("a").is_some());
        drop(taken);
        assert!(seats.0.lock().is_empty());
    }
}
