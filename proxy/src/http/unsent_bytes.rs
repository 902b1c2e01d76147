//! Owns the count of response bytes that wait for one client, and the list of requests that wait for room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Most bytes of responses that wait for one client, in addition to one piece for each request.
pub(super) const MOST: usize = 256 * 1024;

/// Bytes of responses that wait until one client reads them.
#[derive(Debug, Default)]
pub(super) struct UnsentBytes {
    pub(super) bytes: AtomicUsize,
    /// Bytes that were already read from backends and are not counted in `bytes` yet.
    pub(super) ahead: AtomicUsize,
    /// Requests that wait for room, in the order of their arrival.
    pub(super) waiting: Mutex<VecDeque<Waiting>>,
}

/// A request that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: usize,
    /// Wakes what takes the next piece. `source` wakes what reads it from the backend.
    pub(super) body: Option<Waker>,
    pub(super) source: Option<Waker>,
}

impl UnsentBytes {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn wait(
        &self,
        key: usize,
        side: fn(&mut Waiting) -> &mut Option<Waker>,
        waker: &Waker,
    ) {
        let mut waiting = self.waiting.lock();
        let known = waiting.iter().position(|other| other.key == key);
        let at = known.unwrap_or_else(|| {
            waiting.push_back(Waiting {
                key,
                body: None,
                source: None,
            });
            waiting.len() - 1
        });
        if let Some(waiting) = waiting.get_mut(at) {
            *side(waiting) = Some(waker.clone());
        }
    }

    /// Gives room back. It wakes the request whose last waiting piece this was. If that one does not wait, it wakes the
    /// request that has waited longest, provided that there is room.
    pub(super) fn release(&self, bytes: usize, emptied: Option<usize>) {
        let left = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let mut waiting = self.waiting.lock();
        let own = emptied.and_then(|key| waiting.iter().position(|other| other.key == key));
        let next = own.or_else(|| (left < MOST).then_some(0));
        let woken = next.and_then(|at| waiting.remove(at));
        drop(waiting);
        let woken = woken.into_iter();
        for waker in woken.flat_map(|of| [of.body, of.source]).flatten() {
            waker.wake();
        }
    }
}
