//! Bounds the large batches that are under way.
//!
//! Each of them takes memory for a list of all its resources, until the proxy has read it, and a share of the network.
//! When a fleet of hundreds of proxies starts at once, that would be hundreds of lists, and no proxy would be ready before
//! all of them are. So a large batch needs a place of its size before it is made. Places are given in the order in which
//! streams ask.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Batches up to this size, in bytes, need no place. An edit is far below it.
const SMALL: u64 = 256 << 10;
/// The unit of places, in bytes.
const UNIT: u64 = 1 << 10;

/// The places of all streams.
#[derive(Debug)]
pub(super) struct BatchPlaces {
    free: Arc<Semaphore>,
    units: u32,
}

/// Whether a stream has a place for its next batch.
#[derive(Default)]
pub(super) enum BatchPlace {
    /// It has not asked.
    #[default]
    None,
    /// It waits for its turn.
    Waiting(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>),
    /// It may send. The place becomes free when this is dropped.
    Held(Option<OwnedSemaphorePermit>),
}

impl BatchPlaces {
    pub(super) fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes as u64 / UNIT).unwrap_or(u32::MAX);
        let units = units.clamp(1, u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
        }
    }

    /// Asks for a place for a batch of so many bytes. If it takes more than there is, it waits for all of it.
    pub(super) fn ask(&self, bytes: u64) -> BatchPlace {
        if bytes <= SMALL {
            return BatchPlace::Held(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let free = Arc::clone(&self.free);
        let asking = free.acquire_many_owned(units.min(self.units));
        // The semaphore is never closed.
        BatchPlace::Waiting(Box::pin(async move { asking.await.ok() }))
    }
}

impl BatchPlace {
    /// Takes the place out, if the stream has it.
    pub(super) fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        match std::mem::take(self) {
            Self::Held(permit) => permit,
            Self::None | Self::Waiting(_) => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }

    /// Waits for the turn. Never completes if the stream does not wait.
    pub(super) async fn turn(&mut self) {
        let Self::Waiting(turn) = self else {
            return std::future::pending().await;
        };
        let permit = turn.await;
        *self = Self::Held(permit);
    }
}

impl fmt::Debug for BatchPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Waiting(_) => "Waiting",
            Self::Held(_) => "Held",
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn small_batches_need_no_place_and_large_ones_take_turns() {
        let places = BatchPlaces::new(1 << 20);
        assert!(matches!(places.ask(SMALL), BatchPlace::Held(None)));
        // It is longer than all places together, and takes all of them.
        let mut first = places.ask(5 << 20);
        assert!(first.turn().now_or_never().is_some());
        let mut second = places.ask(600 << 10);
        let mut third = places.ask(600 << 10);
        assert!(second.turn().now_or_never().is_none());
        drop(first.take());
        // The third one asked first for its turn to be over, and still comes after the second.
        assert!(third.turn().now_or_never().is_none());
        assert!(second.turn().now_or_never().is_some());
        assert!(third.turn().now_or_never().is_none());
        drop(second);
        assert!(third.turn().now_or_never().is_some());
    }
}
