//! Owns the bytes of answers that wait for one client, and the requests that wait for room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Bytes of answers that wait for one client, beyond one piece for each request.
pub(super) const MOST: usize = 256 * 1024;

/// Bytes of answers that wait for one client to take them.
#[derive(Debug, Default)]
pub(super) struct UnsentBytes {
    pub(super) bytes: AtomicUsize,
    /// What was read from backends beyond that, and is to come here.
    pub(super) ahead: AtomicUsize,
    /// Requests that wait for room, in the order in which they came.
    pub(super) waiting: Mutex<VecDeque<Waiting>>,
}

/// A request that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: usize,
    /// What takes the next piece, and what reads it from the backend.
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

    /// Gives room back. Wakes the request whose last piece it was, or the one that has waited longest.
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
