//! Plans the writes of statuses. Time is an input.
//!
//! The planner knows the status of every object on the server. When something that a status depends on changes, it asks
//! what the status should be. Two rules save writes:
//!
//! - When a status begins to wait (for acknowledgements, a port or an address), it is held back for a short time, so that
//!   an edit causes one write instead of two. Progress such as `1/2 acked` is written at intervals. A part that waits as
//!   before holds nothing back, so everything else in the status is written while it waits.
//! - `Programmed` stays `True` until the proxies have had time to acknowledge again. So a new leader, to which no proxy
//!   has acknowledged anything yet, writes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use vestibule_backoff::Backoff;
use vestibule_model::key::ObjectKey;

use super::packed::PackedJson;
use super::steady::{Traits, is_progress, steady};

/// How long statuses are held back.
#[derive(Debug, Clone, Copy)]
pub struct StatusTiming {
    /// How long a status is held back when it begins to wait, or while not every proxy has acknowledged.
    pub patience: Duration,
    /// How long `Programmed` stays `True` while an acknowledgement is outstanding. This is also the shortest time
    /// between two writes that tell nothing but progress (which proxies acknowledged, for example).
    pub regress: Duration,
    /// The same after a change of leadership. Proxies need this time to notice that the old leader is silent, and to
    /// find the new one.
    pub reconnect: Duration,
    /// Waits after writes failed.
    pub backoff: Backoff,
    /// Longest wait for the watch to show the version that a write conflicted with.
    pub watch: Duration,
}

impl Default for StatusTiming {
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

/// An object's status on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStatus {
    /// `metadata.resourceVersion` of the object.
    pub version: Arc<str>,
    /// `metadata.generation` of the object.
    pub generation: i64,
    status: PackedJson,
}

impl LiveStatus {
    /// Returns the status of an object. `status` is null if it has none.
    #[must_use]
    pub fn new(version: Arc<str>, generation: i64, status: &Value) -> Self {
        Self {
            version,
            generation,
            status: PackedJson::new(status),
        }
    }

    /// Returns `status`.
    #[must_use]
    pub fn status(&self) -> Value {
        self.status.value()
    }
}

/// The status that an object should have.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    /// Its status.
    pub status: Value,
    /// Not every proxy has acknowledged what the status says. So it is held back for a short time, like a status that
    /// waits.
    pub waits: bool,
    /// The object is no longer Vestibule's. The status is written once, and only if the present one is Vestibule's:
    /// the API server is asked who wrote it.
    pub confirm: bool,
    /// The entries of ours for which a list in the status has no room.
    pub left_out: LeftOut,
}

/// For how many of our entries a list in a status has no room, and what fills the list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of our entries that are left out.
    pub ours: usize,
    /// Number of the entries of other controllers in the list.
    pub foreign: usize,
    /// Number of all entries in the list. If some are left out, the API allows no more.
    pub all: usize,
}

impl From<Value> for Due {
    fn from(status: Value) -> Self {
        Self {
            status,
            waits: false,
            confirm: false,
            left_out: LeftOut::default(),
        }
    }
}

/// A write to make, provided that the object still has this version.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The object.
    pub key: ObjectKey,
    /// Its `resourceVersion`.
    pub version: Arc<str>,
    /// Its new status.
    pub status: Value,
    /// Whether to write it only if the present status is Vestibule's.
    pub confirm: bool,
}

/// Why a write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFailure {
    /// The object has another version by now.
    Conflict,
    /// The object is gone.
    Gone,
    /// The write had to be confirmed, and the present status is another controller's.
    NotOurs,
    /// The write failed for another reason, and is tried again.
    Other,
}

/// The next step of the planner's caller.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// There is a write to make.
    Write(Job),
    /// No write was found yet, but there are more objects to look at.
    More,
    /// There is nothing to do until something happens.
    Idle,
}

#[derive(Debug)]
struct Entry {
    live: LiveStatus,
    writing: Writing,
    failures: u32,
    /// Deadline until which a status is held back that is not progress alone.
    hold: Option<Instant>,
    /// Deadline until which progress alone is held back.
    progress: Option<Instant>,
    /// Deadline until which `Programmed` stays `True` while an acknowledgement is outstanding.
    presume: Option<Instant>,
    /// Whether the status is left to other controllers: a write that has to be confirmed is under way, was made, or was
    /// refused because the status is not ours. This holds until the object is Vestibule's again, or the write fails.
    left_alone: bool,
    /// Whether the object is in the queue.
    queued: bool,
    /// When the object is looked at again even if nothing happens.
    timer: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Writing {
    No,
    /// A write of the object in this version is under way.
    Yes(Arc<str>),
    /// A write failed because the object no longer has this version. The watch will show the new one.
    Stale(Arc<str>),
    /// The object is not looked at before its timer.
    Later,
}

/// The planner. It stays the same when this replica gains or loses leadership.
#[derive(Debug)]
pub struct Planner {
    timing: StatusTiming,
    entries: BTreeMap<ObjectKey, Box<Entry>>,
    /// Keys to look at, by namespace. The namespaces take turns, so a tenant with a thousand objects does not hold up
    /// the others.
    queue: BTreeMap<Arc<str>, VecDeque<ObjectKey>>,
    /// The namespace that had the last turn.
    turn: Option<Arc<str>>,
    timers: BTreeSet<(Instant, ObjectKey)>,
    /// Objects that wait for acknowledgements, whether or not their status says so.
    waiting: BTreeSet<ObjectKey>,
    /// When this replica began to lead; `None` if it does not lead.
    since: Option<Instant>,
}

impl Planner {
    /// Returns a planner that knows no object and does not lead.
    #[must_use]
    pub fn new(timing: StatusTiming) -> Self {
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

    /// Begins to lead. Every object is looked at.
    pub fn lead(&mut self, now: Instant) {
        self.since = Some(now);
        for entry in self.entries.values_mut() {
            entry.failures = 0;
            entry.hold = None;
            entry.progress = None;
            entry.presume = None;
            // Another replica may have written the status since then.
            entry.left_alone = false;
            if !matches!(entry.writing, Writing::Yes(_)) {
                entry.writing = Writing::No;
            }
        }
        self.touch_all();
    }

    /// Stops leading. Nothing is written from now on.
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

    /// Takes an object from the watch.
    pub fn observe(&mut self, key: &ObjectKey, live: LiveStatus) {
        let Some(entry) = self.entries.get_mut(key) else {
            let entry = Box::new(Entry {
                live,
                writing: Writing::No,
                failures: 0,
                hold: None,
                progress: None,
                presume: None,
                left_alone: false,
                queued: false,
                timer: None,
            });
            self.entries.insert(key.clone(), entry);
            return self.touch(key);
        };
        // The result of a write is known before the watch shows it.
        if entry.live == live || is_older(&live.version, &entry.live.version) {
            return;
        }
        if matches!(&entry.writing, Writing::Stale(version) if *version != live.version) {
            entry.writing = Writing::No;
        }
        entry.live = live;
        self.touch(key);
    }

    /// Forgets an object that the watch shows as gone.
    pub fn forget(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.entries.remove(key)
            && let Some(timer) = entry.timer
        {
            self.timers.remove(&(timer, key.clone()));
        }
        self.waiting.remove(key);
    }

    /// Notes that something changed that the status of `key` depends on.
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

    /// Notes that acknowledgements of proxies changed.
    pub fn touch_waiting(&mut self) {
        for key in self.waiting.clone() {
            self.touch(&key);
        }
    }

    /// Notes that anything may have changed.
    pub fn touch_all(&mut self) {
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.touch(&key);
        }
    }

    /// Returns the last known status of an object on the server.
    #[must_use]
    pub fn live(&self, key: &ObjectKey) -> Option<&LiveStatus> {
        self.entries.get(key).map(|entry| &entry.live)
    }

    /// Returns the number of objects that wait for acknowledgements.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the time at which there is something to do even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.since?;
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next write, after a look at no more than `budget` objects. `judge` returns the status that an object
    /// should have, given its present one; `None` if that should stay.
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

    /// Takes the result of a write: the object as it is now, or the failure.
    pub fn done(
        &mut self,
        key: &ObjectKey,
        outcome: Result<LiveStatus, WriteFailure>,
        now: Instant,
    ) {
        let StatusTiming { backoff, watch, .. } = self.timing;
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
            Err(WriteFailure::NotOurs) => {
                entry.failures = 0;
                return self.touch(key);
            }
            Err(WriteFailure::Conflict | WriteFailure::Gone) => {
                entry.left_alone = false;
                if written != Writing::Yes(entry.live.version.clone()) {
                    // The watch has already shown the version that the write conflicted with.
                    return self.touch(key);
                }
                entry.writing = Writing::Stale(entry.live.version.clone());
                now + watch
            }
            Err(WriteFailure::Other) => {
                entry.left_alone = false;
                let wait = backoff.delay(entry.failures);
                entry.failures += 1;
                entry.writing = Writing::Later;
                now + wait
            }
        };
        self.set_timer(key, Some(again));
    }

    /// Queues the objects whose timers are over.
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
            // The object is looked at when the write is over.
            return None;
        }
        let old = entry.live.status();
        let due = judge(key, &entry.live, &old);
        let due = due.filter(|due| !(due.confirm && entry.left_alone));
        let Some(due) = due else {
            self.rest(key);
            return None;
        };
        entry.left_alone = false;
        let Due {
            status: due,
            waits,
            confirm,
            ..
        } = due;
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
                // The deadline has passed already.
                new = due;
                traits = steady(&old, &mut new, false);
            }
        }
        traits.waits |= waits;
        // A GatewayClass or Gateway that is gone may come back in a moment, and the next controller may write first.
        traits.unsettled |= waits || confirm;
        let mut job = self.decide(key, now, &old, new, traits)?;
        job.confirm = confirm;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.left_alone = confirm;
        }
        Some(job)
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
        if traits.waits {
            self.waiting.insert(key.clone());
        } else if !traits.regresses {
            self.waiting.remove(key);
        }
        if new == *old {
            entry.hold = None;
            entry.progress = None;
            if !traits.regresses {
                self.set_timer(key, None);
            }
            return None;
        }
        // Progress alone is not worth a write each time.
        let progress = is_progress(old, &new);
        if (traits.unsettled || progress) && !traits.regresses {
            let until = if progress {
                *entry.progress.get_or_insert(now + timing.regress)
            } else {
                *entry.hold.get_or_insert(now + timing.patience)
            };
            if now < until {
                self.set_timer(key, Some(until));
                return None;
            }
        }
        entry.hold = None;
        entry.progress = None;
        let version = entry.live.version.clone();
        entry.writing = Writing::Yes(version.clone());
        self.set_timer(key, None);
        Some(Job {
            key: key.clone(),
            version,
            status: new,
            confirm: false,
        })
    }

    /// Notes that the status of an object is as it should be.
    fn rest(&mut self, key: &ObjectKey) {
        self.waiting.remove(key);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.hold = None;
            entry.progress = None;
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

/// Whether a resource version is older than another. If one of them is not a number, this is `false`.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u128>(), than.parse::<u128>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
