//! Which status is written when: a planner with time as an input. Pure.
//!
//! It knows every object's status as the server has it, and asks what it should be when something that
//! it depends on has moved. A status that only waits (for acknowledgements, a port, an address) is held
//! back for a short time, so that an edit is one write; what is programmed is not said to be pending
//! before the proxies had time to say again that they have it, so that a new leader writes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use vestibule_backoff::Backoff;
use vestibule_model::key::ObjectKey;

use super::steady::{Traits, is_progress, steady};

/// How long what is held back.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A status that only waits is written after so long.
    pub patience: Duration,
    /// Something programmed that waits again is said to after so long; and what a status that waits
    /// says (who acked) is renewed no more often.
    pub regress: Duration,
    /// The same after a change of leadership: time for proxies to find the new leader, and to notice
    /// that the old one fell silent.
    pub reconnect: Duration,
    /// Waits after writes failed.
    pub backoff: Backoff,
    /// Longest wait for the watch to show what a write ran into.
    pub watch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            regress: Duration::from_secs(10),
            reconnect: Duration::from_mins(1),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
            watch: Duration::from_secs(30),
        }
    }
}

/// An object's status as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStatus {
    /// `metadata.resourceVersion` of the object.
    pub version: Arc<str>,
    /// `metadata.generation` of the object.
    pub generation: i64,
    /// `status` as JSON: text, since there are many and few are looked at.
    status: Box<str>,
}

impl LiveStatus {
    /// Of an object with this status; null if it has none.
    #[must_use]
    pub fn new(version: Arc<str>, generation: i64, status: &Value) -> Self {
        Self {
            version,
            generation,
            status: status.to_string().into(),
        }
    }

    /// `status`.
    #[must_use]
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.status).unwrap_or_default()
    }
}

/// What the status of an object should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    /// Its status.
    pub status: Value,
    /// Not every proxy has what it says yet; it is held back for a short time, as what waits is.
    pub waits: bool,
}

impl From<Value> for Due {
    fn from(status: Value) -> Self {
        Self {
            status,
            waits: false,
        }
    }
}

/// A write that is to be made, provided that the object still has this version.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The object.
    pub key: ObjectKey,
    /// Its `resourceVersion`.
    pub version: Arc<str>,
    /// Its status from now on.
    pub status: Value,
}

/// Why a write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFailure {
    /// The object is another one by now.
    Conflict,
    /// The object is gone.
    Gone,
    /// Something else; worth another attempt.
    Other,
}

/// What there is to do.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// This.
    Write(Job),
    /// Nothing yet, but not everything was looked at.
    More,
    /// Nothing before something happens.
    Idle,
}

#[derive(Debug)]
struct Entry {
    live: LiveStatus,
    writing: Writing,
    failures: u32,
    /// Until when what waits is held back.
    hold: Option<Instant>,
    /// Until when what is programmed stays so though it waits.
    presume: Option<Instant>,
    /// In the queue.
    queued: bool,
    /// When it is looked at again without anything having happened.
    timer: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Writing {
    No,
    /// A write of the object in this version is under way.
    Yes(Arc<str>),
    /// A write failed because the object is not this version any more; the watch will show it.
    Stale(Arc<str>),
    /// Not before its timer.
    Later,
}

/// The planner of one leadership after another.
#[derive(Debug)]
pub struct Planner {
    timing: Timing,
    entries: BTreeMap<ObjectKey, Entry>,
    /// Keys to look at, by namespace, which take turns: a tenant with a thousand objects does not make
    /// the others wait for all of them.
    queue: BTreeMap<Arc<str>, VecDeque<ObjectKey>>,
    /// The namespace that had its turn last.
    turn: Option<Arc<str>>,
    timers: BTreeSet<(Instant, ObjectKey)>,
    /// Objects that wait for acknowledgements, said or not.
    waiting: BTreeSet<ObjectKey>,
    /// Since when this replica leads.
    since: Option<Instant>,
}

impl Planner {
    /// A planner that knows no object and does not lead.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            entries: BTreeMap::new(),
            queue: BTreeMap::new(),
            turn: None,
            timers: BTreeSet::new(),
            waiting: BTreeSet::new(),
            since: None,
        }
    }

    /// Leads from `now` on: everything is looked at.
    pub fn lead(&mut self, now: Instant) {
        self.since = Some(now);
        for entry in self.entries.values_mut() {
            entry.failures = 0;
            entry.hold = None;
            entry.presume = None;
            if !matches!(entry.writing, Writing::Yes(_)) {
                entry.writing = Writing::No;
            }
        }
        self.touch_all();
    }

    /// Leads no more: nothing is written.
    pub fn follow(&mut self) {
        self.since = None;
        self.timers.clear();
        self.queue.clear();
        self.waiting.clear();
        for entry in self.entries.values_mut() {
            entry.queued = false;
            entry.timer = None;
        }
    }

    /// The watch shows an object.
    pub fn observe(&mut self, key: &ObjectKey, live: LiveStatus) {
        let Some(entry) = self.entries.get_mut(key) else {
            let entry = Entry {
                live,
                writing: Writing::No,
                failures: 0,
                hold: None,
                presume: None,
                queued: false,
                timer: None,
            };
            self.entries.insert(key.clone(), entry);
            return self.touch(key);
        };
        // What was written is known before the watch shows it.
        if entry.live == live || is_older(&live.version, &entry.live.version) {
            return;
        }
        if matches!(&entry.writing, Writing::Stale(version) if *version != live.version) {
            entry.writing = Writing::No;
        }
        entry.live = live;
        self.touch(key);
    }

    /// The watch shows that an object is gone.
    pub fn forget(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.entries.remove(key)
            && let Some(timer) = entry.timer
        {
            self.timers.remove(&(timer, key.clone()));
        }
        self.waiting.remove(key);
    }

    /// Something that the status of `key` depends on has moved.
    pub fn touch(&mut self, key: &ObjectKey) {
        if self.since.is_none() {
            return;
        }
        if let Some(entry) = self.entries.get_mut(key)
            && !entry.queued
        {
            entry.queued = true;
            let queue = self.queue.entry(key.name.namespace.clone()).or_default();
            queue.push_back(key.clone());
        }
    }

    /// What proxies acknowledged has moved.
    pub fn touch_waiting(&mut self) {
        for key in self.waiting.clone() {
            self.touch(&key);
        }
    }

    /// Everything may have moved.
    pub fn touch_all(&mut self) {
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.touch(&key);
        }
    }

    /// The object as the server has it, as far as is known.
    #[must_use]
    pub fn live(&self, key: &ObjectKey) -> Option<&LiveStatus> {
        self.entries.get(key).map(|entry| &entry.live)
    }

    /// Objects that wait for acknowledgements.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When there is something to do even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.since?;
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next write, after a look at no more than `budget` objects. `judge` says what the status of
    /// an object should be, from the one that is there; `None`: what it is.
    pub fn next(
        &mut self,
        now: Instant,
        budget: usize,
        mut judge: impl FnMut(&ObjectKey, &LiveStatus, &Value) -> Option<Due>,
    ) -> Next {
        if self.since.is_none() {
            return Next::Idle;
        }
        self.wake(now);
        for _ in 0..budget {
            let Some(key) = self.pop() else {
                return Next::Idle;
            };
            if let Some(job) = self.look(&key, now, &mut judge) {
                return Next::Write(job);
            }
        }
        if self.queue.is_empty() {
            Next::Idle
        } else {
            Next::More
        }
    }

    /// A write has come to an end; with the object as it is now, if it succeeded.
    pub fn done(
        &mut self,
        key: &ObjectKey,
        outcome: Result<LiveStatus, WriteFailure>,
        now: Instant,
    ) {
        let Timing { backoff, watch, .. } = self.timing;
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let written = std::mem::replace(&mut entry.writing, Writing::No);
        let again = match outcome {
            Ok(live) => {
                entry.failures = 0;
                if !is_older(&live.version, &entry.live.version) {
                    entry.live = live;
                }
                return self.touch(key);
            }
            Err(WriteFailure::Conflict | WriteFailure::Gone) => {
                if written != Writing::Yes(entry.live.version.clone()) {
                    // The watch has shown already what it ran into.
                    return self.touch(key);
                }
                entry.writing = Writing::Stale(entry.live.version.clone());
                now + watch
            }
            Err(WriteFailure::Other) => {
                let wait = backoff.delay(entry.failures);
                entry.failures += 1;
                entry.writing = Writing::Later;
                now + wait
            }
        };
        self.set_timer(key, Some(again));
    }

    /// Queues what is due.
    fn wake(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.first().cloned()
            && at <= now
        {
            self.timers.remove(&(at, key.clone()));
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.timer = None;
                if !matches!(entry.writing, Writing::Yes(_)) {
                    entry.writing = Writing::No;
                }
            }
            self.touch(&key);
        }
    }

    fn pop(&mut self) -> Option<ObjectKey> {
        let after = self.turn.as_ref().and_then(|turn| {
            let next = (std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded);
            self.queue.range::<Arc<str>, _>(next).next()
        });
        let (namespace, _) = after.or_else(|| self.queue.first_key_value())?;
        let namespace = namespace.clone();
        let queue = self.queue.get_mut(&namespace)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.queue.remove(&namespace);
        }
        self.turn = Some(namespace);
        let key = key?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.queued = false;
        }
        Some(key)
    }

    fn look(
        &mut self,
        key: &ObjectKey,
        now: Instant,
        judge: &mut impl FnMut(&ObjectKey, &LiveStatus, &Value) -> Option<Due>,
    ) -> Option<Job> {
        let entry = self.entries.get_mut(key)?;
        if entry.writing != Writing::No {
            // It is looked at when that is over.
            return None;
        }
        let old = entry.live.status();
        let Some(Due { status: due, waits }) = judge(key, &entry.live, &old) else {
            self.rest(key);
            return None;
        };
        let presumed = entry.presume.is_none_or(|until| now < until);
        let mut new = due.clone();
        let mut traits = steady(&old, &mut new, presumed);
        if traits.regresses && presumed {
            let end = self.since.map(|since| since + self.timing.reconnect);
            let until = *entry
                .presume
                .get_or_insert_with(|| (now + self.timing.regress).max(end.unwrap_or(now)));
            self.waiting.insert(key.clone());
            if now < until {
                self.set_timer(key, Some(until));
            } else {
                // No time at all is given.
                new = due;
                traits = steady(&old, &mut new, false);
            }
        }
        traits.waits |= waits;
        self.decide(key, now, &old, new, traits)
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        now: Instant,
        old: &Value,
        new: Value,
        traits: Traits,
    ) -> Option<Job> {
        let timing = self.timing;
        let entry = self.entries.get_mut(key)?;
        if !traits.regresses {
            entry.presume = None;
        }
        // What an engine is at with a certificate is worth no write each time.
        let progress = is_progress(old, &new);
        if traits.waits {
            self.waiting.insert(key.clone());
        } else {
            if !progress {
                entry.hold = None;
            }
            if !traits.regresses {
                self.waiting.remove(key);
            }
        }
        if new == *old {
            entry.hold = None;
            if !traits.regresses {
                self.set_timer(key, None);
            }
            return None;
        }
        if (traits.waits || progress) && !traits.regresses {
            let patience = if traits.waited || progress {
                timing.regress
            } else {
                timing.patience
            };
            let until = *entry.hold.get_or_insert(now + patience);
            if now < until {
                self.set_timer(key, Some(until));
                return None;
            }
        }
        entry.hold = None;
        let version = entry.live.version.clone();
        entry.writing = Writing::Yes(version.clone());
        self.set_timer(key, None);
        Some(Job {
            key: key.clone(),
            version,
            status: new,
        })
    }

    /// Nothing is to be said about an object.
    fn rest(&mut self, key: &ObjectKey) {
        self.waiting.remove(key);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.hold = None;
            entry.presume = None;
        }
        self.set_timer(key, None);
    }

    fn set_timer(&mut self, key: &ObjectKey, at: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(key) {
            if let Some(old) = entry.timer.take() {
                self.timers.remove(&(old, key.clone()));
            }
            entry.timer = at;
            if let Some(at) = at {
                self.timers.insert((at, key.clone()));
            }
        }
    }
}

/// Whether a resource version is older than another; versions that are no numbers are never.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u128>(), than.parse::<u128>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
