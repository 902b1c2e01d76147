//! Takes the events of the watches: what the operator knows of each object changes, and translation and planner are told.

use std::time::Instant;

use tracing::{debug, warn};
use vestibule_crds::watch::{Event, Touched, Watched};
use vestibule_model::key::{Kind, ObjectKey};

use super::super::statuses::plan::LiveStatus;
use super::super::watch_queue::WatchQueue;
use super::super::{claims, clock};
use super::{Store, has_status, is_source};
use crate::translate::Change;

impl Store {
    /// Takes events of the watches that have just come.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>, now: Instant) {
        self.take_since(events, now, now);
    }

    /// Takes the events of the next turn out of the queue. Returns whether there were any.
    pub fn take_turn(&mut self, queue: &mut WatchQueue, now: Instant) -> bool {
        let (batch, since) = queue.next_batch(now);
        self.metrics.watch_queue(queue.objects());
        if batch.is_empty() {
            return false;
        }
        self.take_since(batch, since, now);
        true
    }

    /// Takes events of the watches, of which the first came at `since`.
    fn take_since(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        since: Instant,
        now: Instant,
    ) {
        let dirty_before = self.dirty_since.take();
        let mut changes = Vec::new();
        for event in events {
            match event {
                Event::Put(watched) => changes.extend(self.put(*watched, now)),
                Event::Touched(touched) => self.touch(*touched),
                Event::Remove(key) => {
                    self.metrics.event(key.kind);
                    self.planner.forget(&key);
                    if is_source(key.kind) {
                        self.reads.overtake(&key);
                        self.control.certificates.secret(&key.name);
                        if !self.kept.remove(&key) {
                            continue;
                        }
                    }
                    self.forget(&key);
                    if key.kind == Kind::HostnameClaim {
                        self.control
                            .claims
                            .observe(&key.name, None, clock::both(now));
                        continue;
                    }
                    changes.push(Change::Remove(key));
                }
                Event::Interrupted(kind) => {
                    self.interrupted.insert(kind, now);
                }
                Event::Resumed(kind) => {
                    self.interrupted.remove(&kind);
                    self.resumed = Some(now);
                    // The server is back, however long it was away. So the others have their time from now on.
                    for since in self.interrupted.values_mut() {
                        *since = now;
                    }
                    // The publisher looks again at the changes that waited for it.
                    self.dirty_since.get_or_insert(now);
                }
                Event::Synced(kind) => {
                    self.synced.insert(kind);
                    self.metrics.synced(kind, true);
                    let first = ObjectKey::new(kind, "", "");
                    let listed = self.listed.range(first..);
                    let listed = listed.take_while(|source| source.kind == kind);
                    let listed: Vec<ObjectKey> = listed.cloned().collect();
                    for source in listed {
                        self.listed.remove(&source);
                        changes.push(Change::Absent(source));
                    }
                }
            }
        }
        self.apply(changes, now);
        let dirty_now = self.dirty_since.map(|_| since);
        self.dirty_since = dirty_before.into_iter().chain(dirty_now).min();
    }

    /// Notes that an object was written, but only its status changed.
    fn touch(&mut self, touched: Touched) {
        let Touched {
            key,
            generation,
            resource_version,
            status,
        } = touched;
        self.metrics.touched(key.kind);
        if has_status(key.kind) {
            let live = LiveStatus::new(resource_version, generation, &status);
            self.planner.observe(&key, live);
        }
    }

    fn put(&mut self, watched: Watched, now: Instant) -> Option<Change> {
        let Watched {
            key,
            object,
            findings,
            resource_version,
            status,
            ..
        } = watched;
        self.metrics.event(key.kind);
        for finding in findings {
            debug!(object = %key, finding = %finding, "an object was read, and has a problem");
        }
        if is_source(key.kind) {
            self.reads.overtake(&key);
            if !self.used.contains(&key) {
                return None;
            }
            self.control.certificates.secret(&key.name);
            self.keep(&key, &object);
        }
        if has_status(key.kind) {
            let generation = object.meta().map_or(0, |meta| meta.generation);
            let live = LiveStatus::new(resource_version.clone(), generation, &status);
            self.planner.observe(&key, live);
        }
        self.learn(&key);
        if key.kind == Kind::HostnameClaim {
            let seen = claims::read(&object).map(|claim| (claim, resource_version.to_string()));
            if !self
                .control
                .claims
                .observe(&key.name, seen, clock::both(now))
            {
                warn!(claim = %key.name, "a HostnameClaim is not as an operator writes it; the leader of its release repairs it");
            }
            return None;
        }
        Some(Change::Put(object))
    }
}
