//! Who holds a name: what follows from what its object says, and from what translation says of it.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::claim::{ClaimKey, Claimed, Holder};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ObjectName;

use super::{ClaimState, ClaimStore, Holding, NOTED_AFTER, ObjectState, Time};

impl ClaimStore {
    /// Does what follows from a change of an object.
    pub(super) fn follow(&mut self, name: &ObjectName) {
        if let Some(key) = self.keys.get(name).cloned() {
            self.settle(&key);
            self.look(&key);
            self.doubt(&key);
        }
        self.touch(name);
    }

    /// What is served goes on without an object, since the leader writes it. But the leader may not give a name inside
    /// another namespace's wildcard to whoever this replica takes for its holder: at the beginning, the replica that
    /// saw the wildcard first keeps others out of it, and the one that saw everything at once does not; and a holder
    /// may have been revoked for a moment. So such a name is given up, if the grace passes and there still is no object.
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

    /// Whether a name lies inside another namespace's wildcard; see [`Self::is_closed_to`].
    pub(super) fn is_closed(&self, key: &ClaimKey) -> bool {
        let holding = self.records.get(key).and_then(|of| of.holder.as_ref());
        holding.is_some_and(|holding| self.is_closed_to(key, &holding.holder.namespace))
    }

    /// Whether the nearest wildcard around a name of which there is an object is another namespace's than this one.
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

    /// Brings a name in line with what its object says.
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
        // Of what was assumed at the beginning, another replica writes since when.
        let is_as_said = record.holder == says;
        let is_holder = is(&record.holder);
        let is_candidate = is(&record.candidate);
        let from = says.as_ref().map(|says| &says.holder.namespace);
        let is_released = record.released.as_ref() == from;
        let is_settled = object.is_settled();
        // Translation has nothing to say: the Gateway is not ours.
        let is_unsaid = !self.states.contains_key(key);
        let state = self.states.get(key);
        // A port that is passed on is in use as well.
        let is_used = matches!(state, Some(ClaimState::Used | ClaimState::Passed(_)));
        match says {
            Some(says) if !self.leads => {
                if !is_holder {
                    self.hold(key, says);
                } else if !is_as_said {
                    self.change(key, |record| record.holder = Some(says));
                }
            }
            // What is served goes on: the leader writes it again.
            None if !self.leads && is_used => {}
            None if is_held && is_unsaid => self.let_go(key),
            None if !self.leads => self.drop_holder(key),
            // What this replica knows counts; an object that says otherwise is put right.
            _ if is_held || !is_settled => {}
            Some(says) if is_candidate => self.hold(key, says),
            // What appeared by itself, such as a former leader's create that lands late, counts as well. But the leader
            // has confirmed who holds the wildcard around it since then, and that keeps its holder's names: unless
            // translation would give it this one, by a grant, the object goes.
            Some(says) if !is_released && !self.is_closed_to(key, &says.holder.namespace) => {
                self.hold(key, says);
            }
            Some(_) => {}
            None => self.change(key, |record| record.released = None),
        }
    }

    /// Does what follows from what translation says of a name.
    pub(super) fn look(&mut self, key: &ClaimKey) {
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
            // Translation has not heard of the holder yet.
            Some(ClaimState::Wanted(_)) => {}
            Some(ClaimState::Unused | ClaimState::Revoked) if !self.leads => {
                if !is_there {
                    self.drop_holder(key);
                }
            }
            Some(ClaimState::Unused) => self.let_go(key),
            Some(ClaimState::Revoked) => self.release(key),
            Some(ClaimState::Passed(to)) => self.pass_on(key, to),
            None if !is_there => self.let_go(key),
            Some(ClaimState::Used) if self.is_doubted(key) => {}
            // Without a state its Gateway is not ours any more: the object is left alone.
            Some(ClaimState::Used) | None => self.spare(key),
        }
    }

    /// Whether it is about to be given up; see [`Self::doubt`].
    fn is_doubted(&self, key: &ClaimKey) -> bool {
        let unused = self.records.get(key).and_then(|record| record.unused);
        !self.leads && unused.is_some() && self.unsaid.contains_key(key) && self.is_closed(key)
    }

    /// Somebody is to hold a name that nobody holds.
    fn ask(&mut self, key: &ClaimKey, holder: Holder) {
        let served = self.beginning.as_ref();
        let served = served.is_some_and(|claimed| !claimed.contains(&key.gateway));
        if !self.leads && !served {
            return;
        }
        let since = self.time.map_or(0, |time| time.seconds);
        let asks = Holding { holder, since };
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

    /// Nobody is to hold a name that nobody holds.
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

    /// A port that is in use has another holder, since its own has nothing there any more.
    fn pass_on(&mut self, key: &ClaimKey, to: Arc<str>) {
        self.spare(key);
        let Some(time) = self.time.filter(|_| self.leads) else {
            return;
        };
        self.change(key, |record| match &mut record.holder {
            // Translation may not have heard of it yet.
            Some(holding) if holding.holder.namespace != to => {
                holding.holder.namespace = to;
                holding.since = time.seconds;
            }
            _ => {}
        });
        self.touch_name(key);
    }

    /// Its grace begins, if it has not begun. It may cost another name of the tenant the rest of its own.
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
        // The object of a former leader's time says when the grace began. The clock that wrote it may go otherwise
        // than this one, so a grace is never longer than a whole one. While a port is being passed on, the object
        // still says when the former holder let go.
        let noted = self.objects.get(&record.object);
        let noted = noted.and_then(ObjectState::claim);
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

    /// Its holder uses it: its grace ends, or does not begin.
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

    /// Takes a name from its holder. Nobody holds it until its object says who does.
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
            record.released = holder.filter(|_| leads);
        });
        self.settle(key);
        self.look(key);
        self.touch_name(key);
    }
}
