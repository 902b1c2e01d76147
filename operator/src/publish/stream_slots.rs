//! Limits the number of streams per proxy. A proxy needs one stream, and two for a moment. With a stolen token, an
//! attacker must not be able to take the slots of the other proxies, or to have all resources encoded for a thousand
//! streams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ledger::ProxyId;

/// Largest number of streams of one proxy. This includes streams that its network has lost, until the publisher
/// notices.
const MAX_STREAMS: usize = 8;

/// The number of streams by proxy. A proxy without a stream is not in the map.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamSlots(Arc<Mutex<HashMap<ProxyId, usize>>>);

/// The slot of one stream. It becomes free when this is dropped.
#[derive(Debug)]
pub(super) struct StreamSlot {
    proxy: ProxyId,
    slots: StreamSlots,
}

impl StreamSlots {
    /// Returns a slot for `proxy`, if it has one left.
    pub(super) fn take(&self, proxy: &str) -> Option<StreamSlot> {
        let mut slots = self.0.lock();
        let taken = slots.entry(proxy.to_owned()).or_default();
        if *taken >= MAX_STREAMS {
            return None;
        }
        *taken += 1;
        drop(slots);
        Some(StreamSlot {
            proxy: proxy.to_owned(),
            slots: self.clone(),
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        if let Entry::Occupied(mut taken) = self.slots.0.lock().entry(self.proxy.clone()) {
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
        let slots = StreamSlots::default();
        let mut taken: Vec<_> = (0..MAX_STREAMS).map(|_| slots.take("a").unwrap()).collect();
        assert!(slots.take("a").is_none());
        assert!(slots.take("b").is_some());
        taken.pop();
        assert!(slots.take("a").is_some());
        drop(taken);
        assert!(slots.0.lock().is_empty());
    }
}
