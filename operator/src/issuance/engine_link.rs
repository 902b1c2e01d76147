//! Links the operator's loop with the built-in engine. The engine leaves updates for translation, and the loop leaves
//! the state of challenges. Only the latest value of each is kept, so neither side waits for the other and nothing
//! piles up.
//!
//! A ticket tells the engine when a challenge is published. It is a number that grows with each change of the
//! challenges. The loop returns it once everything up to this change is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use vestibule_acme::IssuerState;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};

/// The changes of the engine since the loop took the last update.
#[derive(Debug, Default)]
pub struct EngineUpdate {
    /// The ticket of the last change of the challenges.
    pub(super) ticket: u64,
    pub(super) challenges: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
    pub(super) issuance: BTreeMap<ObjectName, Option<Issuance>>,
    pub(super) issuers: BTreeMap<ObjectKey, Option<IssuerState>>,
    /// Whether the state of every certificate is known. Before that, a certificate without a state may still have one.
    pub(super) known: bool,
}

#[derive(Debug, Default)]
struct LinkState {
    update: EngineUpdate,
    /// Challenges that the engine wants the proxies to answer, with the ticket of the request.
    asked: BTreeMap<ChallengeKey, u64>,
    /// Certificates that have a state.
    issuance: BTreeSet<ObjectName>,
    issuers: BTreeSet<ObjectKey>,
    /// Certificates that have had no state since the engine began.
    silent: Option<BTreeSet<ObjectName>>,
    /// Secrets that have changed since the engine took them last.
    secrets: BTreeSet<ObjectName>,
    /// The ticket up to which challenges are published.
    ticket: u64,
    published: Arc<BTreeSet<String>>,
}

/// The state that the loop and the engine share. Clones share the same state.
#[derive(Debug, Clone)]
pub struct EngineLink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<LinkState>,
    /// Signals that there is something for the loop.
    for_loop: watch::Sender<()>,
    /// Signals that there is something for the engine.
    for_engine: watch::Sender<()>,
}

impl Default for EngineLink {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            for_loop: watch::Sender::new(()),
            for_engine: watch::Sender::new(()),
        }))
    }
}

/// The methods that the loop calls.
impl EngineLink {
    /// Returns a channel that signals when [`Self::take`] has something.
    #[must_use]
    pub fn for_loop(&self) -> watch::Receiver<()> {
        self.0.for_loop.subscribe()
    }

    /// Removes and returns what is new.
    #[must_use]
    pub fn take(&self) -> EngineUpdate {
        let mut state = self.0.state.lock();
        let next = EngineUpdate {
            ticket: state.update.ticket,
            known: state.update.known,
            ..EngineUpdate::default()
        };
        std::mem::replace(&mut state.update, next)
    }

    /// Notes that the requests up to `ticket` are processed, and that `challenges` are published as a result.
    pub(super) fn published(&self, ticket: u64, challenges: &Arc<BTreeSet<String>>) {
        let mut state = self.0.state.lock();
        if state.ticket == ticket && Arc::ptr_eq(&state.published, challenges) {
            return;
        }
        state.ticket = ticket;
        state.published = Arc::clone(challenges);
        drop(state);
        self.0.for_engine.send_replace(());
    }

    /// Notes that a Secret was created, changed or deleted.
    pub(super) fn secret(&self, name: &ObjectName) {
        if self.0.state.lock().secrets.insert(name.clone()) {
            self.0.for_engine.send_replace(());
        }
    }
}

/// The methods that the engine calls.
impl EngineLink {
    pub(super) fn for_engine(&self) -> watch::Receiver<()> {
        self.0.for_engine.subscribe()
    }

    /// Notes that the engine begins, and that it will report the state of these certificates.
    pub fn begin(&self, certificates: BTreeSet<ObjectName>) {
        let mut state = self.0.state.lock();
        state.secrets.clear();
        state.update.known = certificates.is_empty();
        state.silent = Some(certificates);
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Notes that the engine ends. It withdraws all challenges and all states.
    pub fn end(&self) {
        let mut state = self.0.state.lock();
        let LinkState {
            update,
            asked,
            issuance,
            issuers,
            ..
        } = &mut *state;
        update.ticket += 1;
        update.known = false;
        let asked = std::mem::take(asked).into_keys().map(|key| (key, None));
        update.challenges.extend(asked);
        let issuance = std::mem::take(issuance).into_iter().map(|key| (key, None));
        update.issuance.extend(issuance);
        let issuers = std::mem::take(issuers).into_iter().map(|key| (key, None));
        update.issuers.extend(issuers);
        state.silent = None;
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Ends the wait for certificates without a state. The state of every certificate then counts as known.
    pub(super) fn known(&self) {
        let mut state = self.0.state.lock();
        if state.silent.take().is_none() || std::mem::replace(&mut state.update.known, true) {
            return;
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Asks that the proxies answer challenges; `None` withdraws one.
    pub fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {
        let mut state = self.0.state.lock();
        state.update.ticket += 1;
        let ticket = state.update.ticket;
        for (key, answer) in changes {
            if answer.is_some() {
                state.asked.insert(key.clone(), ticket);
            } else {
                state.asked.remove(&key);
            }
            state.update.challenges.insert(key, answer);
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Reports the state of certificates; `None` removes it.
    pub fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>) {
        let mut state = self.0.state.lock();
        for (name, issuance) in changes {
            if issuance.is_some() {
                state.issuance.insert(name.clone());
            } else {
                state.issuance.remove(&name);
            }
            let all_known = state.silent.as_mut().is_some_and(|silent| {
                silent.remove(&name);
                silent.is_empty()
            });
            if all_known {
                state.silent = None;
                state.update.known = true;
            }
            state.update.issuance.insert(name, issuance);
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Reports the state of issuers.
    pub fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>) {
        let mut state = self.0.state.lock();
        for (key, fact) in changes {
            state.issuers.insert(key.clone());
            state.update.issuers.insert(key, Some(fact));
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Removes and returns the Secrets that have changed since the last call.
    pub(super) fn secrets(&self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.0.state.lock().secrets)
    }

    /// Returns the challenges that the loop has processed, each with its ticket and whether it is published.
    pub(super) fn seen(&self) -> BTreeMap<ChallengeKey, (u64, bool)> {
        let state = self.0.state.lock();
        let seen = state.asked.iter();
        let seen = seen.filter(|(_, ticket)| **ticket <= state.ticket);
        seen.map(|(key, ticket)| {
            let published = state.published.contains(&key.to_string());
            (key.clone(), (*ticket, published))
        })
        .collect()
    }
}
