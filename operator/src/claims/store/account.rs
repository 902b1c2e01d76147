//! Changes records and objects, and keeps the counts, indexes and queues that depend on them up to date.

use std::sync::Arc;
use std::time::Instant;

use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::key::ObjectName;

use super::{ClaimStore, ObjectState, Record, Tenant, WriteProblem};

/// The parts of a record and its object that counts and indexes depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Summary {
    holder: Option<Holder>,
    /// When the holder got it.
    since: Option<i64>,
    /// The namespace of the holder, or else of the candidate.
    occupant: Option<Arc<str>>,
    /// The namespace of the candidate, if there is no holder.
    candidate: Option<Arc<str>>,
    /// Whether the object names a holder.
    held: bool,
    /// Whether the object does not yet name the holder that it should name.
    pending: bool,
}

impl ClaimStore {
    pub(super) fn ensure(&mut self, key: &ClaimKey) {
        if !self.records.contains_key(key) {
            self.change(key, |_| {});
        }
    }

    /// Changes the record of a name, and everything that depends on it.
    pub(super) fn change(&mut self, key: &ClaimKey, change: impl FnOnce(&mut Record)) {
        let before = self.summary(key);
        let record = self.records.entry(key.clone()).or_insert_with(|| {
            Box::new(Record {
                object: key.object_name(),
                holder: None,
                candidate: None,
                released: None,
                unused: None,
            })
        });
        change(record);
        if !self.keys.contains_key(&record.object) {
            self.keys.insert(record.object.clone(), key.clone());
            self.objects.entry(record.object.clone()).or_default();
        }
        let after = self.summary(key);
        self.account(key, &before, &after);
    }

    /// Changes the state of an object, and everything that depends on it.
    pub(super) fn change_object<T>(
        &mut self,
        name: &ObjectName,
        change: impl FnOnce(&mut ObjectState) -> T,
    ) -> T {
        let key = self.keys.get(name).cloned();
        let before = key.as_ref().map(|key| self.summary(key));
        let object = self.objects.entry(name.clone()).or_default();
        let flags = |object: &ObjectState| {
            let there = object.seen().is_some();
            (there, there && object.claim().is_none())
        };
        let taken_from = |object: &ObjectState| object.claim()?.taken_from().cloned();
        let (was, was_taken) = (flags(object), taken_from(object));
        let changed = change(object);
        let (is, is_taken) = (flags(object), taken_from(object));
        if let Some(key) = key.clone().filter(|_| was_taken != is_taken) {
            self.taken.insert(key, is_taken);
        }
        let count = |count: &mut usize, was: bool, is: bool| {
            *count = *count + usize::from(is) - usize::from(was);
        };
        count(&mut self.counts.objects, was.0, is.0);
        count(&mut self.counts.void, was.1, is.1);
        if let (Some(key), Some(before)) = (key, before) {
            let after = self.summary(&key);
            self.account(&key, &before, &after);
        }
        changed
    }

    fn summary(&self, key: &ClaimKey) -> Summary {
        let Some(record) = self.records.get(key) else {
            return Summary::default();
        };
        let object = self.objects.get(&record.object);
        let says = object.and_then(|object| Some(&object.claim()?.holder));
        let holder = record.holder.as_ref().map(|of| &of.holder);
        let candidate = record.candidate.as_ref().map(|of| &of.holder);
        let occupant = holder.or(candidate);
        let candidate = candidate.filter(|_| holder.is_none());
        Summary {
            holder: holder.cloned(),
            since: record.holder.as_ref().map(|of| of.since),
            pending: occupant.is_some() && occupant != says,
            occupant: occupant.map(|of| of.namespace.clone()),
            candidate: candidate.map(|of| of.namespace.clone()),
            held: says.is_some(),
        }
    }

    fn account(&mut self, key: &ClaimKey, before: &Summary, after: &Summary) {
        let count = |count: &mut usize, was: bool, is: bool| {
            *count = *count + usize::from(is) - usize::from(was);
        };
        count(&mut self.counts.held, before.held, after.held);
        count(&mut self.counts.pending, before.pending, after.pending);
        if before.holder != after.holder {
            self.updates.insert(key.clone(), after.holder.clone());
        }
        if before.since != after.since {
            self.since.insert(key.clone(), after.since);
        }
        if after.holder.is_some() && !after.held {
            // This tells later why no object names the holder: somebody deleted the object, or it was never written
            // (`lead`).
            self.unsaid.entry(key.clone()).or_insert(before.held);
        } else {
            self.unsaid.remove(key);
        }
        // Candidates come by events, so there is a time.
        if before.candidate != after.candidate
            && let Some(time) = self.time
        {
            let candidate = after.candidate.as_ref();
            let released = self.unrecorded.change(key, candidate, time.now);
            for wildcard in released {
                self.touch_name(&wildcard);
            }
        }
        if before.occupant == after.occupant {
            return;
        }
        if let Some(time) = self.time {
            if let Some(namespace) = &before.occupant {
                self.graces.forget(key, namespace, time.now);
            }
            if let Some(namespace) = &after.occupant {
                self.graces.hold(key, namespace, time.now);
            }
        }
    }

    /// Returns the tenant that an object is written for, and in whose queue it waits.
    pub(super) fn tenant(&self, name: &ObjectName) -> Arc<str> {
        let record = self.keys.get(name).and_then(|key| self.records.get(key));
        let of = record.and_then(|record| {
            let holding = record.holder.as_ref().or(record.candidate.as_ref());
            holding
                .map(|of| of.holder.namespace.clone())
                .or_else(|| record.released.clone())
        });
        of.or_else(|| {
            let (claim, _) = self.objects.get(name)?.seen()?;
            Some(claim.holder.namespace.clone())
        })
        .unwrap_or_else(|| "".into())
    }

    /// Returns the object that records the holder of a name. The object's name is a hash, so the record keeps it.
    pub(super) fn object_of(&self, key: &ClaimKey) -> Option<&ObjectState> {
        let object = self.objects.get(&self.records.get(key)?.object)?;
        Some(object)
    }

    /// Schedules the object of a name, because it may have to be written.
    pub(super) fn touch_name(&mut self, key: &ClaimKey) {
        if let Some(record) = self.records.get(key) {
            let object = record.object.clone();
            self.touch(&object);
        }
    }

    /// Schedules an object, because it may have to be written.
    pub(super) fn touch(&mut self, name: &ObjectName) {
        let Some(time) = self.time.filter(|_| self.leads) else {
            self.sweep(name);
            return;
        };
        if let Some(object) = self.objects.get(name) {
            let at = time.now + object.pause();
            self.set_due(name, at);
        }
    }

    /// Returns until when the write of an object is held back, because it is the first claim to a wildcard, and names
    /// inside it have to be recorded before or may still be asked for. `None` if it may be written now.
    ///
    /// Nobody has to ask again before that time: as soon as no such name is left, [`Self::account`] schedules the object.
    pub(super) fn hold_back(&mut self, name: &ObjectName, now: Instant) -> Option<Instant> {
        self.unrecorded.hold_back(self.keys.get(name)?, now)
    }

    pub(super) fn set_due(&mut self, name: &ObjectName, at: Instant) {
        if !self.leads {
            return;
        }
        let tenant = self.tenant(name);
        let Some(object) = self.objects.get_mut(name) else {
            return;
        };
        let earlier = object.due.as_ref().is_some_and(|(due, _)| *due <= at);
        if object.is_in_flight() || earlier {
            return;
        }
        if let Some((due, of)) = object.due.replace((at, tenant.clone())) {
            self.queue.remove(due, &of, name);
        }
        self.queue.insert(at, &tenant, name);
    }

    pub(super) fn note_trouble(
        &mut self,
        name: &ObjectName,
        trouble: Option<(Tenant, WriteProblem)>,
    ) {
        if let Some(tenant) = self.in_trouble.remove(name)
            && let Some(troubles) = self.troubles.get_mut(&tenant)
        {
            troubles.remove(name);
            if troubles.is_empty() {
                self.troubles.remove(&tenant);
            }
            self.troubled.insert(tenant);
        }
        if let Some((tenant, trouble)) = trouble {
            let troubles = self.troubles.entry(tenant.clone()).or_default();
            troubles.insert(name.clone(), trouble);
            self.in_trouble.insert(name.clone(), tenant.clone());
            self.troubled.insert(tenant);
        }
    }

    /// Forgets an object that is gone, and the record of its name, unless the record still has a holder, a
    /// candidate or a released holder.
    pub(super) fn sweep(&mut self, name: &ObjectName) {
        let object = self.objects.get(name);
        if !object.is_some_and(|object| object.is_over()) {
            return;
        }
        let Some(key) = self.keys.get(name).cloned() else {
            self.objects.remove(name);
            return;
        };
        let record = self.records.get(&key);
        let idle = record.is_none_or(|record| {
            record.holder.is_none() && record.candidate.is_none() && record.released.is_none()
        });
        if idle {
            self.note_trouble(name, None);
            self.objects.remove(name);
            self.keys.remove(name);
            self.records.remove(&key);
        }
    }
}
