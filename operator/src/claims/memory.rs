//! Claims that are kept in memory alone: for `vestibule run`, where nothing survives the process anyway.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;

use super::Time;
use super::object::WriteOutcome;
use super::store::{ClaimStore, GatewayState};
use crate::translate::{Change, ClaimState};

/// A store whose requests are made at once.
#[derive(Debug)]
pub struct Memory {
    store: ClaimStore,
    version: u64,
}

impl Memory {
    /// Empty memory.
    #[must_use]
    pub fn new(grace: Duration, time: Time) -> Self {
        let mut store = ClaimStore::new(grace);
        store.begin(time);
        store.lead(true, time);
        Self { store, version: 0 }
    }

    /// Takes what translation says (nothing, if only time has passed).
    pub fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time) {
        self.store.translated(states, time);
        self.store.pass(time);
        // Nothing is gained by gathering.
        let soon = time.now + Duration::from_mins(1);
        while let Some(request) = self
            .store
            .next_request(soon, |_| GatewayState::Ours("".into()))
        {
            self.version += 1;
            let seen = request.stored(self.version);
            let is_gone = seen.is_none();
            self.store
                .done(&request.name, WriteOutcome::Known(seen), time);
            if is_gone {
                // There is no watch to show it.
                self.store.observe(&request.name, None, time);
            }
        }
    }

    /// Returns what translation has not been told since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.store.take_changes()
    }

    /// When it is to be asked again.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.store.deadline()
    }
}
