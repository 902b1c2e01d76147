//! Keeps claims in memory only. `vestibule run` uses this, since nothing there has to survive the process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;

use super::Time;
use super::object::WriteOutcome;
use super::store::{ClaimStore, GatewayPresence};
use crate::translate::{Change, ClaimState};

/// A store of claims whose requests are carried out in memory at once.
#[derive(Debug)]
pub struct Memory {
    store: ClaimStore,
    version: u64,
}

impl Memory {
    /// Returns a memory without claims. `grace` is how long a name stays with a holder that let go of it.
    #[must_use]
    pub fn new(grace: Duration, time: Time) -> Self {
        let mut store = ClaimStore::new(grace);
        store.begin(time);
        store.lead(true, time);
        Self { store, version: 0 }
    }

    /// Takes the states of names from translation. `states` is empty if only time has passed.
    pub fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time) {
        self.store.translated(states, time);
        self.store.pass(time);
        // Gathering saves no writes here, so requests are taken before they are due.
        let soon = time.now + Duration::from_mins(1);
        while let Some(request) = self
            .store
            .next_request(soon, |_| GatewayPresence::Ours("".into()))
        {
            self.version += 1;
            let seen = request.stored(self.version);
            let is_gone = seen.is_none();
            self.store
                .done(&request.name, WriteOutcome::Known(seen), time);
            if is_gone {
                // No watch shows the deletion, so it is reported here.
                self.store.observe(&request.name, None, time);
            }
        }
    }

    /// Returns the changes for translation since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.store.take_changes()
    }

    /// Returns the time at which [`Self::translated`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.store.deadline()
    }
}
