//! The link between the loop and the built-in engine. The engine leaves updates for translation; the loop leaves
//! what became of challenges. Of each thing the latest counts, so that nobody waits and nothing piles up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};

use crate::acme::IssuerState;

/// What the engine has changed since the loop looked last.
#[derive(Debug, Default)]
pub struct EngineUpdate {
    /// Up to which request of the engine these are.
    pub(super) ticket: u64,
    pub(super) challenges: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
    pub(super) issuance: BTreeMap<ObjectName, Option<Issuance>>,
    pub(super) issuers: BTreeMap<ObjectKey, Option<IssuerState>>,
    /// Whether it is known how far every certificate is; before that, silence about one says nothing.
    pub(super) known: bool,
}

#[derive(Debug, Default)]
struct LinkState {
    update: EngineUpdate,
    /// Challenges that the engine wants answered, and since which ticket.
    asked: BTreeMap<ChallengeKey, u64>,
    /// Certificates and issuers that something is known about.
    issuance: BTreeSet<ObjectName>,
    issuers: BTreeSet<ObjectKey>,
    /// Certificates that nothing was said about since the engine began.
    silent: Option<BTreeSet<ObjectName>>,
    /// Secrets that have changed since the engine asked last.
    secrets: BTreeSet<ObjectName>,
    /// Up to which ticket what is asked for is published, and what is.
    ticket: u64,
    published: Arc<BTreeSet<String>>,
}

/// State that the loop and the engine share; clones are the same one.
#[derive(Debug, Clone)]
pub struct EngineLink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<LinkState>,
    /// Moves when there is something for the loop.
    for_loop: watch::Sender<()>,
    /// Moves when there is something for the engine.
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

/// The methods of the loop.
impl EngineLink {
    /// Moves when [`Self::take`] has something.
    #[must_use]
    pub fn for_loop(&self) -> watch::Receiver<()> {
        self.0.for_loop.subscribe()
    }

    /// What is new.
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

    /// What was asked for up to `ticket` is published, as far as it may be: these challenges.
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

    /// A Secret came, changed or went.
    pub(super) fn secret(&self, name: &ObjectName) {
        if self.0.state.lock().secrets.insert(name.clone()) {
            self.0.for_engine.send_replace(());
        }
    }
}

/// The methods of the engine.
impl EngineLink {
    pub(super) fn for_engine(&self) -> watch::Receiver<()> {
        self.0.for_engine.subscribe()
    }

    /// The engine begins, with these certificates to look at.
    pub fn begin(&self, certificates: BTreeSet<ObjectName>) {
        let mut state = self.0.state.lock();
        state.secrets.clear();
        state.update.known = certificates.is_empty();
        state.silent = Some(certificates);
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// The engine ends: nothing is answered any more, and nothing is known.
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

    /// Enough was waited for what is not known.
    pub(super) fn known(&self) {
        let mut state = self.0.state.lock();
        if state.silent.take().is_none() || std::mem::replace(&mut state.update.known, true) {
            return;
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Has the proxies answer challenges, or (`None`) no longer.
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

    /// Says how far certificates are.
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

    /// Says how issuers are.
    pub fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>) {
        let mut state = self.0.state.lock();
        for (key, fact) in changes {
            state.issuers.insert(key.clone());
            state.update.issuers.insert(key, Some(fact));
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Secrets that have changed since this was asked last.
    pub(super) fn secrets(&self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.0.state.lock().secrets)
    }

    /// Challenges that the loop has seen, by ticket and whether each is published.
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
