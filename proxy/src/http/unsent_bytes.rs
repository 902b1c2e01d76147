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
    /// Requests that wait for room, in the order of their arrival.
    pub(super) waiting: Mutex<VecDeque<Waiting>>,
}

/// A request that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: usize,
    /// Wakes what takes the next piece.
    waker: Waker,
}

impl UnsentBytes {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn wait(&self, key: usize, waker: &Waker) {
        let waker = waker.clone();
        let mut waiting = self.waiting.lock();
        match waiting.iter_mut().find(|other| other.key == key) {
            Some(known) => known.waker = waker,
            None => waiting.push_back(Waiting { key, waker }),
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
        if let Some(woken) = woken {
            woken.waker.wake();
        }
    }
}
