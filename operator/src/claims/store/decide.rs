//! Decides who holds a name, from the content of its object and from its state in translation.
//!
//! [`ClaimStore::settle`] brings the record of a name in line with its object, and [`ClaimStore::look`] with the state
//! from translation. Which of the two counts depends on the role. A replica that does not lead follows the objects. The
//! leader trusts its own record, since it knows of writes that the watch does not show yet, and corrects an object that
//! differs.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::claim::{ClaimKey, Claimed, Holder};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ObjectName;

use super::{ClaimState, ClaimStore, Holding, NOTED_AFTER, ObjectState, Time};

impl ClaimStore {
    /// Takes a change of an object into account.
    pub(super) fn follow(&mut self, name: &ObjectName) {
        if let Some(key) = self.keys.get(name).cloned() {
            self.settle(&key);
            self.look(&key);
            self.doubt(&key);
        }
        self.touch(name);
    }

    /// Begins the grace of names that this replica serves without an object although they lie inside another
    /// namespace's wildcard. Only a replica that does not lead does this.
    ///
    /// A name normally stays served without an object, because the leader is going to write the object. But for a name
    /// inside another namespace's wildcard, the leader may have decided otherwise. At the start, a replica that saw the
    /// wildcard first keeps other namespaces out of it, and a replica that saw everything at once keeps out only requests
    /// that are younger than the one for the wildcard. A holder may also have been revoked for a moment. So such a name is
    /// given up if there still is no object after the grace.
    fn doubt(&mut self, key: &ClaimKey) {
        if self.leads || self.unsaid.is_empty() {
            return;
        }
        let first = ClaimKey::first_of_gateway(&key.gateway);
        let unsaid = self.unsaid.range(first..).map(|(other, _)| other);
        let unsaid = unsaid.take_while(|other| other.gateway == key.gateway);
        let covered = unsaid.filter(|other| match (&key.of, &other.of) {
            (Claimed::Names(names), Claimed::Names(other)) => names.covers(other),
            _ => false,
        });
        let closed = covered.filter(|other| self.is_closed(other));
        for closed in closed.cloned().collect::<Vec<_>>() {
            self.let_go(&closed);
        }
    }

    /// Whether a name lies inside a wildcard of another namespace than its holder's; see [`Self::is_closed_to`].
    pub(super) fn is_closed(&self, key: &ClaimKey) -> bool {
        let holding = self.records.get(key).and_then(|of| of.holder.as_ref());
        holding.is_some_and(|holding| self.is_closed_to(key, &holding.holder.namespace))
    }

    /// Whether another namespace than `namespace` holds the nearest wildcard around a name. Only wildcards with an
    /// object count.
    fn is_closed_to(&self, key: &ClaimKey, namespace: &str) -> bool {
        let Claimed::Names(HostPattern::Exact(name) | HostPattern::Wildcard(name)) = &key.of else {
            return false;
        };
        let mut around = name.parents().filter_map(|suffix| {
            let names = HostPattern::Wildcard(Hostname::parse(suffix).ok()?);
            self.object_of(&ClaimKey::names(&key.gateway, &names))?
                .claim()
        });
        let nearest = around.next();
        nearest.is_some_and(|claim| *claim.holder.namespace != *namespace)
    }

    /// Brings the record of a name in line with its object.
    pub(super) fn settle(&mut self, key: &ClaimKey) {
        let Some(record) = self.records.get(key) else {
            return;
        };
        let Some(object) = self.objects.get(&record.object) else {
            return;
        };
        let says = object.claim().map(|claim| Holding {
            holder: claim.holder.clone(),
            since: claim.since,
        });
        let is = |of: &Option<Holding>| {
            let holder = |of: &Holding| of.holder.clone();
            of.as_ref().map(holder) == says.as_ref().map(holder)
        };
        let is_held = record.holder.is_some();
        // This compares the time as well: for a name that counted as held at the start, the replica that writes the
        // object sets the time.
        let is_as_said = record.holder == says;
        let is_holder = is(&record.holder);
        let is_candidate = is(&record.candidate);
        let from = says.as_ref().map(|says| &says.holder.namespace);
        let is_released = record.released.as_ref() == from;
        let is_settled = object.is_settled();
        // Without a state from translation, the Gateway is not ours.
        let is_unsaid = !self.states.contains_key(key);
        let state = self.states.get(key);
        // A port that passes to another namespace is in use as well.
        let is_used = matches!(state, Some(ClaimState::Used | ClaimState::Passed(_)));
        match says {
            Some(says) if !self.leads => {
                if !is_holder {
                    self.hold(key, says);
                } else if !is_as_said {
                    self.change(key, |record| record.holder = Some(says));
                }
            }
            // The name stays served, because the leader writes the object again.
            None if !self.leads && is_used => {}
            // The Gateway may be created again, and then finds its claims. So the name has its grace.
            None if is_held && is_unsaid => self.let_go(key),
            None if !self.leads => self.drop_holder(key),
            // This replica leads, so its own record counts. An object that differs is corrected later.
            _ if is_held || !is_settled => {}
            Some(says) if is_candidate => self.hold(key, says),
            // An object that this replica did not ask for counts as well, such as a create of a former leader that
            // succeeded late. But if another namespace holds the wildcard around the name, the leader has confirmed
            // that since then, and the wildcard protects the names inside it. Then the object is deleted, unless
            // translation would give the namespace this name, because of a grant.
            Some(says) if !is_released && !self.is_closed_to(key, &says.holder.namespace) => {
                self.hold(key, says);
            }
            // The object names a holder from whom the leader has taken the name, or a name that another namespace's
            // wildcard closes. It does not count, and is written again or deleted.
            Some(_) => {}
            None => self.change(key, |record| record.released = None),
        }
    }

    /// Brings the record of a name in line with its state from translation.
    pub(super) fn look(&mut self, key: &ClaimKey) {
        // Until translation has seen every object, a name that seems to be unused may be in use.
        if !self.begun {
            return;
        }
        let state = self.states.get(key).cloned();
        let record = self.records.get(key);
        if record.is_none_or(|record| record.holder.is_none()) {
            match state {
                Some(ClaimState::Wanted(holder)) => self.ask(key, holder),
                _ => self.withdraw(key),
            }
            return;
        }
        let object = record.and_then(|record| self.objects.get(&record.object));
        let is_there = object.is_some_and(|object| object.claim().is_some());
        match state {
            // Translation has not been told of the holder yet.
            Some(ClaimState::Wanted(_)) => {}
            // Only the leader ends a claim. The others wait for the object, so that all replicas agree.
            Some(ClaimState::Unused | ClaimState::Revoked) if !self.leads => {
                if !is_there {
                    self.drop_holder(key);
                }
            }
            Some(ClaimState::Unused) => self.let_go(key),
            Some(ClaimState::Revoked) => self.release(key),
            Some(ClaimState::Passed(to)) => self.hand_over(key, to),
            None if !is_there => self.let_go(key),
            Some(ClaimState::Used) if self.is_doubted(key) => {}
            // Without a state, the Gateway is no longer ours, and the object is left alone.
            Some(ClaimState::Used) | None => self.spare(key),
        }
    }

    /// Whether the name is about to be given up; see [`Self::doubt`].
    fn is_doubted(&self, key: &ClaimKey) -> bool {
        let unused = self.records.get(key).and_then(|record| record.unused);
        !self.leads && unused.is_some() && self.unsaid.contains_key(key) && self.is_closed(key)
    }

    /// Makes `holder` the candidate for a name that nobody holds, or its holder during the start.
    fn ask(&mut self, key: &ClaimKey, holder: Holder) {
        let served = self.beginning.as_ref();
        let served = served.is_some_and(|claimed| !claimed.contains(&key.gateway));
        if !self.leads && !served {
            return;
        }
        let since = self.time.map_or(0, |time| time.seconds);
        let asks = Holding { holder, since };
        // Claims are new on this Gateway, and nothing may stop being served because of that. So the name counts as held
        // before it is written.
        if served {
            self.hold(key, asks);
            return;
        }
        self.change(key, |record| {
            let same = |of: &Holding| of.holder == asks.holder;
            if !record.candidate.as_ref().is_some_and(same) {
                record.candidate = Some(asks);
            }
        });
        self.settle(key);
        self.touch_name(key);
    }

    /// Removes the candidate for a name that nobody holds.
    fn withdraw(&mut self, key: &ClaimKey) {
        if let Some(record) = self.records.get(key) {
            let name = record.object.clone();
            self.change(key, |record| record.candidate = None);
            self.touch(&name);
        }
    }

    fn hold(&mut self, key: &ClaimKey, holding: Holding) {
        self.change(key, |record| {
            record.holder = Some(holding);
            record.candidate = None;
            record.released = None;
            record.unused = None;
        });
        self.look(key);
        self.touch_name(key);
    }

    pub(super) fn drop_holder(&mut self, key: &ClaimKey) {
        self.change(key, |record| {
            record.holder = None;
            record.unused = None;
        });
        self.look(key);
        self.touch_name(key);
    }

    /// Passes a port that is in use to another namespace there, in one write: its holder has no listener there any more.
    fn hand_over(&mut self, key: &ClaimKey, to: Arc<str>) {
        self.spare(key);
        let Some(time) = self.time.filter(|_| self.leads) else {
            return;
        };
        self.change(key, |record| {
            let Some(holding) = &mut record.holder else {
                return;
            };
            // If it is that namespace already, translation has not been told yet.
            if holding.holder.namespace != to {
                holding.holder.namespace = to;
                holding.since = time.seconds;
            }
        });
        self.touch_name(key);
    }

    /// Begins the grace of a name, unless it has begun. If the tenant then has too many names in grace, another one of
    /// them becomes free at once.
    pub(super) fn let_go(&mut self, key: &ClaimKey) {
        let Some(time) = self.time else {
            return;
        };
        let Some(record) = self.records.get(key) else {
            return;
        };
        let Some(holder) = record.holder.clone().filter(|_| record.unused.is_none()) else {
            return;
        };
        // If a former leader has recorded when the grace began, the rest of that grace applies. Clocks may differ, so a
        // time in the future counts as now, and no grace is longer than a full one. The recorded time counts only for
        // the same holder: while a port passes to another namespace, the object still has the time of the former
        // holder.
        let noted = self.objects.get(&record.object);
        let noted = noted.and_then(|object| object.claim());
        let noted = noted.filter(|claim| claim.holder == holder.holder);
        let noted = noted.and_then(|claim| claim.unused_since);
        let age = noted.map_or(0, |at| time.seconds.saturating_sub(at).max(0));
        let age = Duration::from_secs(age.unsigned_abs());
        let unused = Time {
            seconds: noted.unwrap_or(time.seconds).min(time.seconds),
            now: time.now.checked_sub(age).unwrap_or(time.now),
        };
        let name = record.object.clone();
        self.change(key, |record| record.unused = Some(unused));
        self.set_due(&name, time.now + NOTED_AFTER);
        let surplus = self
            .graces
            .begin(key, &holder.holder.namespace, unused.now, time.now);
        if let Some(first) = surplus {
            self.release(&first);
        }
    }

    /// Ends the grace of a name, because its holder uses it.
    fn spare(&mut self, key: &ClaimKey) {
        let Some(time) = self.time else {
            return;
        };
        self.graces.end(key, time.now);
        if self.records.get(key).is_some_and(|of| of.unused.is_some()) {
            self.change(key, |record| record.unused = None);
        }
        let noted = self.object_of(key).and_then(ObjectState::claim);
        if noted.is_some_and(|claim| claim.unused_since.is_some()) {
            self.touch_name(key);
        }
    }

    /// Takes a name from its holder. Nobody holds it until its object names the next holder.
    pub(super) fn release(&mut self, key: &ClaimKey) {
        if let Some(time) = self.time {
            self.graces.end(key, time.now);
        }
        let object = self.object_of(key);
        let is_there = object.is_some_and(|object| object.claim().is_some());
        if !self.leads && is_there {
            return;
        }
        let leads = self.leads;
        self.change(key, |record| {
            record.unused = None;
            let holder = record.holder.take().map(|of| of.holder.namespace);
            // Until the object names somebody else, it still names the former holder. The leader remembers that this no
            // longer counts.
            record.released = holder.filter(|_| leads);
        });
        self.settle(key);
        self.look(key);
        self.touch_name(key);
    }
}
