//! The desk between the loop and the built-in engine: what the engine wants told to translation, and what
//! became of its challenges. Of each thing the latest counts, so that nobody waits and nothing piles up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};

use crate::acme::IssuerFact;

/// Changes for the loop.
#[derive(Debug, Default)]
pub struct Told {
    /// Up to which request of the engine these are.
    pub(super) ticket: u64,
    pub(super) challenges: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
    pub(super) issuance: BTreeMap<ObjectName, Option<Issuance>>,
    pub(super) issuers: BTreeMap<ObjectKey, Option<IssuerFact>>,
    /// Whether it is known how far every certificate is; before that, silence about one says nothing.
    pub(super) known: bool,
}

#[derive(Debug, Default)]
struct State {
    told: Told,
    /// Challenges that the engine wants answered, and since which ticket.
    asked: BTreeMap<ChallengeKey, u64>,
    /// Certificates and issuers that something is known about.
    issuance: BTreeSet<ObjectName>,
    issuers: BTreeSet<ObjectKey>,
    /// Certificates that nothing was said about since the engine began.
    silent: Option<BTreeSet<ObjectName>>,
    /// Secrets that have changed since the engine was told.
    secrets: BTreeSet<ObjectName>,
    /// Up to which ticket what is asked for is published, and what is.
    ticket: u64,
    published: Arc<BTreeSet<String>>,
}

/// The desk; clones are the same one.
#[derive(Debug, Clone)]
pub struct Desk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Moves when there is something for the loop.
    for_loop: watch::Sender<()>,
    /// Moves when there is something for the engine.
    for_engine: watch::Sender<()>,
}

impl Default for Desk {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            for_loop: watch::Sender::new(()),
            for_engine: watch::Sender::new(()),
        }))
    }
}

/// What the loop does at the desk.
impl Desk {
    /// Moves when [`Self::take`] has something.
    #[must_use]
    pub fn for_loop(&self) -> watch::Receiver<()> {
        self.0.for_loop.subscribe()
    }

    /// What is new.
    #[must_use]
    pub fn take(&self) -> Told {
        let mut state = self.0.state.lock();
        let next = Told {
            ticket: state.told.ticket,
            known: state.told.known,
            ..Told::default()
        };
        std::mem::replace(&mut state.told, next)
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

/// What the engine does at the desk.
impl Desk {
    pub(super) fn for_engine(&self) -> watch::Receiver<()> {
        self.0.for_engine.subscribe()
    }

    /// The engine begins, with these certificates to look at.
    pub fn begin(&self, certificates: BTreeSet<ObjectName>) {
        let mut state = self.0.state.lock();
        state.secrets.clear();
        state.told.known = certificates.is_empty();
        state.silent = Some(certificates);
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// The engine ends: nothing is answered any more, and nothing is known.
    pub fn end(&self) {
        let mut state = self.0.state.lock();
        let State {
            told,
            asked,
            issuance,
            issuers,
            ..
        } = &mut *state;
        told.ticket += 1;
        told.known = false;
        let asked = std::mem::take(asked).into_keys().map(|key| (key, None));
        told.challenges.extend(asked);
        let issuance = std::mem::take(issuance).into_iter().map(|key| (key, None));
        told.issuance.extend(issuance);
        let issuers = std::mem::take(issuers).into_iter().map(|key| (key, None));
        told.issuers.extend(issuers);
        state.silent = None;
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Enough was waited for what is not known.
    pub(super) fn known(&self) {
        let mut state = self.0.state.lock();
        if state.silent.take().is_none() || std::mem::replace(&mut state.told.known, true) {
            return;
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Has the proxies answer challenges, or (`None`) no longer.
    pub fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {
        let mut state = self.0.state.lock();
        state.told.ticket += 1;
        let ticket = state.told.ticket;
        for (key, answer) in changes {
            if answer.is_some() {
                state.asked.insert(key.clone(), ticket);
            } else {
                state.asked.remove(&key);
            }
            state.told.challenges.insert(key, answer);
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
                state.told.known = true;
            }
            state.told.issuance.insert(name, issuance);
        }
        drop(state);
        self.0.for_loop.send_replace(());
    }

    /// Says how issuers are.
    pub fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerFact>) {
        let mut state = self.0.state.lock();
        for (key, fact) in changes {
            state.issuers.insert(key.clone());
            state.told.issuers.insert(key, Some(fact));
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
