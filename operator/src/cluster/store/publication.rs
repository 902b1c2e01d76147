//! Publishes the changes that translation made, as soon as they may settle.

use std::time::Instant;

use super::Store;
use crate::publish::Changes;
use crate::publish::settle::{GRACE, Pending, Present, UNANSWERED};
use crate::translate::source_of;

/// Largest number of resources of one publication that are remembered, to see when proxies acknowledge it.
const SAMPLE: usize = 16;

impl Store {
    /// Publishes the changes, except those that would make requests fail or that need a source that is being read. Each
    /// of these waits alone and for a short time ([`Settle`](crate::publish::settle::Settle)), so no namespace can hold
    /// up what belongs to others.
    ///
    /// Statuses are judged after that. The publisher knows which changes wait, so they do not count as in force.
    pub fn publish(&mut self, now: Instant) {
        let settled = self.settle.deadline().is_some_and(|at| at <= now);
        if self.dirty_since.is_none() && !settled {
            self.control.certificates.published();
            return;
        }
        self.settle.add(std::mem::take(&mut self.unpublished));
        let changes = if self.is_synced {
            let (publisher, translator) = (&self.publisher, &self.control.translator);
            let reads = &self.reads;
            self.settle.due(
                now,
                &Present {
                    published: &|key| publisher.resource(key),
                    waits: &|key, old| translator.listener_waits(key, old),
                    reads: &|key| translator.is_being_read(key),
                    unanswered: &|key| {
                        source_of(key).is_some_and(|source| reads.is_unanswered(&source))
                    },
                    uneven_until: self.uneven_until(),
                },
            )
        } else {
            // No proxy is served before everything is known, so nothing has to settle.
            self.settle.all()
        };
        self.give(changes, now);
    }

    /// The time until which the store may know older objects of one kind than of another. Events of watches that went on a
    /// moment ago may still be on their way. A watch that stays interrupted counts for a while only, since it may be one
    /// that the operator has no right to.
    fn uneven_until(&self) -> Option<Instant> {
        let interrupted = self.interrupted.values().map(|since| *since + UNANSWERED);
        interrupted.chain(self.resumed.map(|at| at + GRACE)).max()
    }

    /// Publishes everything, because it is complete from now on.
    pub(in crate::cluster) fn publish_all(&mut self, now: Instant) {
        self.settle.add(std::mem::take(&mut self.unpublished));
        let changes = self.settle.all();
        self.give(changes, now);
    }

    fn give(&mut self, due: Pending, now: Instant) {
        if !due.is_empty() {
            self.published = due.keys().take(SAMPLE).cloned().collect();
            // Changes that waited may be acknowledged already, or may have been taken back.
            self.planner.touch_waiting();
        }
        let mut changes = Changes::new();
        for (key, resource) in due {
            match resource {
                Some(encoded) => changes.upsert_encoded(encoded),
                None => changes.remove(key),
            }
        }
        let since = self.dirty_since.take().unwrap_or(now);
        if !changes.is_empty() {
            self.publisher.update(changes);
            self.metrics.published(since.elapsed());
        }
        self.publisher.withhold(self.settle.withheld());
        self.control.certificates.published();
    }

    /// Returns the number of proxies that have not acknowledged the last publication.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.publisher.programmed(&self.published).waiting_for.len()
    }

    /// Whether there are changes to publish, or sources to read that may lead to some.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty_since.is_some() || !self.reads.is_empty()
    }

    /// Returns the time at which [`Self::publish`] has something to do even if nothing happens.
    #[must_use]
    pub fn publish_at(&self) -> Option<Instant> {
        self.settle.deadline()
    }
}
