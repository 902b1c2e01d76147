//! Who holds a name, who is to hold it, and from whom it is being taken.

mod account;
mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::key::ObjectName;

use super::fair_queue::FairQueue;
use super::grace::Graces;
use super::object::{
    ClaimAction, ClaimContent, ClaimRequest, ObjectState, SeenClaim, WriteOutcome,
};
use super::{NOTED_AFTER, Time};
use crate::translate::{Change, ClaimState};

/// Who holds a name or a port, or is to hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holding {
    holder: Holder,
    /// Since when, in seconds since the epoch.
    since: i64,
}

/// What is known of a name besides its object.
#[derive(Debug)]
struct Record {
    /// The object that is to say so.
    object: ObjectName,
    /// Who holds it. Translation knows.
    holder: Option<Holding>,
    /// Who is to hold it once the object says so.
    candidate: Option<Holding>,
    /// From whom it is being taken. The object may still say that they hold it.
    released: Option<Arc<str>>,
    /// Since when the holder has not used it.
    unused: Option<Time>,
}

/// What a Gateway is to this release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayState {
    /// It is ours, and has this UID.
    Ours(Arc<str>),
    /// There is no such Gateway. What is claimed of it goes when it is free.
    Gone,
    /// It is another controller's, or being deleted: its claims are left alone.
    NotOurs,
}

/// What keeps an object from being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteProblem {
    /// The API server does not take it.
    Refused,
    /// Several times in a row there was no answer, or none that says.
    Unanswered,
}

/// Numbers for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names that an object says somebody holds.
    pub held: usize,
    /// Names whose holders let go of them, and that are not free yet.
    pub grace: usize,
    /// Names that wait to be written.
    pub pending: usize,
    /// Objects.
    pub objects: usize,
    /// Objects that count for nothing: changed or made by hand, or not readable.
    pub void: usize,
}

/// A Gateway and the namespace of a tenant.
type Tenant = (ObjectName, Arc<str>);

/// See the module above.
#[derive(Debug)]
pub struct ClaimStore {
    time: Option<Time>,
    /// Translation has seen everything there is.
    begun: bool,
    leads: bool,
    /// At the beginning: the Gateways of which there is an object. The others have been served without claims so far.
    beginning: Option<BTreeSet<ObjectName>>,
    /// What counts as held though there is no object that says so, and whether there has been one.
    unsaid: BTreeMap<ClaimKey, bool>,
    records: BTreeMap<ClaimKey, Record>,
    /// The names that objects are about, by the objects' names.
    keys: BTreeMap<ObjectName, ClaimKey>,
    objects: BTreeMap<ObjectName, ObjectState>,
    /// What translation said last.
    states: BTreeMap<ClaimKey, ClaimState>,
    graces: Graces,
    queue: FairQueue,
    /// What the Gateways were when something of theirs was to be written last.
    gateways: BTreeMap<ObjectName, GatewayState>,
    gateways_changed: bool,
    /// When a list was begun, while one is being made, and the objects of which the watch showed something since.
    listing: Option<BTreeSet<ObjectName>>,
    /// What translation is to be told: who holds what, and from whom an admin takes it.
    updates: BTreeMap<ClaimKey, Option<Holder>>,
    taken: BTreeMap<ClaimKey, Option<Arc<str>>>,
    /// What keeps objects from being written, and for whom they are written.
    troubles: BTreeMap<Tenant, BTreeMap<ObjectName, WriteProblem>>,
    in_trouble: BTreeMap<ObjectName, Tenant>,
    /// Tenants whose trouble may be another one than it was.
    troubled: BTreeSet<Tenant>,
    counts: Counts,
}

impl ClaimStore {
    /// An empty store.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            time: None,
            begun: false,
            leads: false,
            beginning: None,
            unsaid: BTreeMap::new(),
            records: BTreeMap::new(),
            keys: BTreeMap::new(),
            objects: BTreeMap::new(),
            states: BTreeMap::new(),
            graces: Graces::new(grace),
            queue: FairQueue::default(),
            gateways: BTreeMap::new(),
            gateways_changed: false,
            listing: None,
            updates: BTreeMap::new(),
            taken: BTreeMap::new(),
            troubles: BTreeMap::new(),
            in_trouble: BTreeMap::new(),
            troubled: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// Translation has seen every object: what it says counts from now on.
    ///
    /// A Gateway of which there is no object at all has been served without claims so far. What is asked for on it,
    /// until there is no more news of it, counts as held at once, and the leader writes it: nothing stops being served
    /// for that.
    pub fn begin(&mut self, time: Time) {
        self.time = Some(time);
        if !std::mem::replace(&mut self.begun, true) {
            let there = self.objects.values().filter_map(ObjectState::seen);
            self.beginning = Some(there.map(|(claim, _)| claim.gateway()).collect());
            self.look_at_all();
        }
    }

    /// Takes an object as the watch shows it; `None`: it is gone. Says whether it is as an operator writes it; if
    /// not, the leader puts it right.
    pub fn observe(&mut self, name: &ObjectName, seen: Option<SeenClaim>, time: Time) -> bool {
        self.happens(time);
        if let Some(news) = &mut self.listing {
            news.insert(name.clone());
        }
        let key = seen.as_ref().and_then(|(claim, _)| claim.held_key());
        let sound = seen
            .as_ref()
            .is_none_or(|(claim, _)| claim.held_key().is_some() && claim.findings.is_empty());
        if let Some(key) = key.cloned() {
            self.ensure(&key);
        } else if seen.is_none() && !self.objects.contains_key(name) {
            return true;
        }
        let news = self.change_object(name, |object| object.observe(seen));
        if news {
            self.follow(name);
        }
        sound || !news
    }

    /// Takes what translation says.
    pub fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time) {
        self.time = Some(time);
        for (key, state) in states {
            match state {
                Some(state) => self.states.insert(key.clone(), state),
                None => self.states.remove(&key),
            };
            self.look(&key);
        }
    }

    /// A Gateway is new, was changed or is gone.
    pub fn gateways_changed(&mut self) {
        self.gateways_changed = true;
    }

    /// A list of all objects is being made from now on, for [`Self::catch_up`].
    pub fn list(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// Takes a list of all objects that was made after [`Self::list`] was called, and is no older than that: what this
    /// replica has to know before it leads, for from then on its memory counts. Says whether that is all; if not, what
    /// happened meanwhile may be older than the list or newer, and another one is to be made.
    pub fn catch_up(&mut self, mut objects: BTreeMap<ObjectName, SeenClaim>, time: Time) -> bool {
        let Some(news) = self.listing.take() else {
            return false;
        };
        let there = self.objects.iter();
        let there = there.filter(|(_, object)| object.seen().is_some());
        let there: BTreeSet<ObjectName> = there.map(|(name, _)| name.clone()).collect();
        let doubtful = |name: &ObjectName| {
            let listed = objects.contains_key(name);
            news.contains(name) && listed != there.contains(name)
        };
        let doubtful: BTreeSet<ObjectName> = news.iter().filter(|n| doubtful(n)).cloned().collect();
        for name in there.difference(&doubtful) {
            if !objects.contains_key(name) {
                self.observe(name, None, time);
            }
        }
        objects.retain(|name, _| !doubtful.contains(name));
        for (name, seen) in objects {
            self.observe(&name, Some(seen), time);
        }
        doubtful.is_empty()
    }

    /// This replica leads from now on, or no longer does; before it does it is to [`Self::catch_up`].
    pub fn lead(&mut self, leads: bool, time: Time) {
        self.happens(time);
        if self.leads == leads {
            return;
        }
        self.leads = leads;
        self.graces.restart(time.now);
        self.queue.clear();
        for object in self.objects.values_mut() {
            object.due = None;
        }
        // What was not written is decided by the next leader.
        let keys: Vec<ClaimKey> = self.records.keys().cloned().collect();
        for key in &keys {
            self.change(key, |record| {
                record.candidate = None;
                record.released = None;
                record.unused = None;
            });
            self.settle(key);
        }
        self.look_at_all();
        let closed = self.unsaid.iter().filter(|(key, _)| self.is_closed(key));
        let closed: Vec<(ClaimKey, bool)> = closed.map(|(key, was)| (key.clone(), *was)).collect();
        for (key, was_said) in closed {
            match (leads, was_said) {
                (false, _) => self.let_go(&key),
                (true, false) => self.drop_holder(&key),
                // What others have deleted is written again.
                (true, true) => {}
            }
        }
        let names: Vec<ObjectName> = self.objects.keys().cloned().collect();
        for name in names {
            self.touch(&name);
        }
    }

    /// Lets time pass: frees names whose grace is over.
    pub fn pass(&mut self, time: Time) {
        self.happens(time);
        while let Some(key) = self.graces.end_next(time.now) {
            self.release(&key);
        }
    }

    /// When there is something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let times = [self.graces.deadline(), self.queue.deadline()];
        times.into_iter().flatten().min()
    }

    /// What translation is to be told since this was asked last.
    pub fn take_updates(&mut self) -> BTreeMap<ClaimKey, Option<Holder>> {
        if self.updates.is_empty() {
            // All that was served at the beginning is known.
            self.beginning = None;
        }
        std::mem::take(&mut self.updates)
    }

    /// From whom an admin takes names, and (`None`) that they are taken from nobody any more, since this was asked last.
    pub fn take_taken(&mut self) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        std::mem::take(&mut self.taken)
    }

    /// Returns what translation has not been told since the last call: [`Self::take_updates`] and [`Self::take_taken`].
    pub fn take_changes(&mut self) -> Vec<Change> {
        let (updates, taken) = (self.take_updates(), self.take_taken());
        let updates = (!updates.is_empty()).then_some(Change::Claims(updates));
        let taken = (!taken.is_empty()).then_some(Change::Taken(taken));
        updates.into_iter().chain(taken).collect()
    }

    /// The next request that is due, if this replica leads.
    pub fn next_request(
        &mut self,
        now: Instant,
        gateway: impl Fn(&ObjectName) -> GatewayState,
    ) -> Option<ClaimRequest> {
        if !self.leads {
            return None;
        }
        self.beginning = None;
        if std::mem::take(&mut self.gateways_changed) {
            self.look_at_gateways(&gateway);
        }
        while let Some(name) = self.queue.next(now) {
            let Some(action) = self.next_action(&name, now, &gateway) else {
                self.wait_to_note(&name, now);
                self.sweep(&name);
                continue;
            };
            let tenant = self.tenant(&name);
            if let Some(object) = self.objects.get_mut(&name) {
                object.begin(&action, &tenant);
            }
            self.queue.begun(&tenant);
            return Some(ClaimRequest { name, action });
        }
        None
    }

    /// An unused name that was looked at early is looked at again when its object is to say so.
    fn wait_to_note(&mut self, name: &ObjectName, now: Instant) {
        let record = self.keys.get(name).and_then(|key| self.records.get(key));
        let unused = record.and_then(|record| record.unused);
        if let Some(at) = unused.map(|unused| unused.now + NOTED_AFTER)
            && at > now
        {
            self.set_due(name, at);
        }
    }

    fn next_action(
        &mut self,
        name: &ObjectName,
        now: Instant,
        gateway: &impl Fn(&ObjectName) -> GatewayState,
    ) -> Option<ClaimAction> {
        let object = self.objects.get_mut(name)?;
        object.due = None;
        let key = self.keys.get(name);
        let of = match key {
            Some(key) => key.gateway.clone(),
            None => object.seen().map(|(claim, _)| claim.gateway())?,
        };
        let state = gateway(&of);
        self.gateways.insert(of, state.clone());
        if key.is_none() && !matches!(state, GatewayState::Ours(_)) {
            // It says nothing that counts, and it is not known whose it is.
            return None;
        }
        let record = key.and_then(|key| Some((key, self.records.get(key)?)));
        let wanted = record.and_then(|(key, record)| {
            let holding = record.holder.as_ref().or(record.candidate.as_ref())?;
            let is_noted = |unused: &Time| unused.now + NOTED_AFTER <= now;
            let taken_from = object.claim().and_then(|claim| claim.taken_from());
            let is_taken = taken_from == Some(&holding.holder.namespace);
            Some((key, holding, record.unused.filter(is_noted), is_taken))
        });
        match (state, wanted) {
            (GatewayState::NotOurs, _) | (GatewayState::Gone, Some(_)) => None,
            (GatewayState::Gone | GatewayState::Ours(_), None) => object.next(None),
            (GatewayState::Ours(uid), Some((key, holding, unused, is_taken))) => {
                object.next(Some(ClaimContent {
                    key: key.clone(),
                    gateway_uid: uid,
                    holder: holding.holder.clone(),
                    since: holding.since,
                    unused_since: unused.map(|time| time.seconds),
                    is_taken,
                }))
            }
        }
    }

    /// Takes the outcome of a request.
    pub fn done(&mut self, name: &ObjectName, outcome: WriteOutcome, time: Time) {
        self.happens(time);
        if let WriteOutcome::Known(Some((claim, _))) = &outcome
            && let Some(key) = claim.held_key().cloned()
        {
            self.ensure(&key);
        }
        let trouble = match &outcome {
            WriteOutcome::Known(_) | WriteOutcome::Moved => None,
            WriteOutcome::Refused => Some(WriteProblem::Refused),
            WriteOutcome::Unknown => Some(WriteProblem::Unanswered),
        };
        let (turn, failures) = self.change_object(name, |object| {
            object.end(outcome);
            (object.turn.take(), object.failures())
        });
        if let Some(namespace) = turn {
            self.queue.ended(&namespace);
            let trouble = trouble.filter(|of| *of == WriteProblem::Refused || failures > 1);
            let gateway = self.keys.get(name).map(|key| key.gateway.clone());
            self.note_trouble(
                name,
                gateway.and_then(|gateway| Some(((gateway, namespace), trouble?))),
            );
        }
        self.follow(name);
    }

    /// What keeps names of a namespace on a Gateway from being written.
    #[must_use]
    pub fn trouble(&self, gateway: &ObjectName, namespace: &Arc<str>) -> Option<WriteProblem> {
        let tenant = (gateway.clone(), namespace.clone());
        self.troubles.get(&tenant)?.values().next().copied()
    }

    /// The Gateways and namespaces for which [`Self::trouble`] may be another one than when this was asked last.
    pub fn take_troubled(&mut self) -> BTreeSet<(ObjectName, Arc<str>)> {
        std::mem::take(&mut self.troubled)
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            grace: self.graces.len(),
            ..self.counts
        }
    }

    /// Something happens that is not the beginning any more.
    fn happens(&mut self, time: Time) {
        self.time = Some(time);
        self.beginning = None;
    }

    fn look_at_all(&mut self) {
        let keys: Vec<ClaimKey> = self.states.keys().cloned().collect();
        for key in keys {
            self.look(&key);
        }
    }

    /// Gateways may be others than before: what belongs to one that is something else now is looked at.
    fn look_at_gateways(&mut self, gateway: &impl Fn(&ObjectName) -> GatewayState) {
        let changed = self
            .gateways
            .iter()
            .filter(|(of, was)| gateway(of) != **was);
        let changed: BTreeSet<ObjectName> = changed.map(|(of, _)| of.clone()).collect();
        for of in &changed {
            self.gateways.remove(of);
            let first = ClaimKey::first_of_gateway(of);
            let records = self.records.range(first..);
            let records = records.take_while(|(key, _)| key.gateway == *of);
            let names: Vec<ObjectName> = records.map(|(_, record)| record.object.clone()).collect();
            for name in names {
                self.touch(&name);
            }
        }
    }
}
