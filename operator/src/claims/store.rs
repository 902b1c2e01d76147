//! The store of claims. For each name it knows the holder, the next holder, and the namespace that it is being taken
//! from.

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
use super::unrecorded::Unrecorded;
use super::{AT_ONCE, NOTED_AFTER, Time};
use crate::translate::{Change, ClaimState};

/// The holder of a name or a port, or the candidate for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holding {
    holder: Holder,
    /// When the holder got it, in seconds since the epoch.
    since: i64,
}

/// The state of a name, without its object.
#[derive(Debug)]
struct Record {
    /// The object that records the holder.
    object: ObjectName,
    /// The holder. Translation is told of it.
    holder: Option<Holding>,
    /// The next holder. It becomes the holder when the object says so.
    candidate: Option<Holding>,
    /// The namespace that the name is being taken from. The object may still name it as the holder.
    released: Option<Arc<str>>,
    /// When the holder stopped using the name. `None` while it is in use.
    unused: Option<Time>,
}

/// Whether a Gateway belongs to this controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayPresence {
    /// This controller serves it, and it has this UID.
    Ours(Arc<str>),
    /// It does not exist. Its claims are deleted when they are free.
    Gone,
    /// Another controller serves it, or it is being deleted. Its claims are left alone.
    NotOurs,
}

/// The reason why an object could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteProblem {
    /// The API server refused it.
    Refused,
    /// Several requests in a row had no answer that tells the outcome.
    Unanswered,
}

/// Numbers for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names for which an object records a holder.
    pub held: usize,
    /// Names that their holders have let go of and that are not free yet.
    pub grace: usize,
    /// Names whose holder is not written yet.
    pub pending: usize,
    /// Objects.
    pub objects: usize,
    /// Objects that do not count: somebody made or changed them by hand, or they cannot be read.
    pub void: usize,
}

/// A Gateway and the namespace of a tenant.
type Tenant = (ObjectName, Arc<str>);

/// The claims of all Gateways. See [`super`] for the rules.
#[derive(Debug)]
pub struct ClaimStore {
    time: Option<Time>,
    /// Whether translation has seen every object.
    begun: bool,
    leads: bool,
    /// During the start: the Gateways that have a claim object. The others have been served without claims so far.
    beginning: Option<BTreeSet<ObjectName>>,
    /// The names that count as held although no object says so, and whether an object said so before.
    unsaid: BTreeMap<ClaimKey, bool>,
    records: BTreeMap<ClaimKey, Box<Record>>,
    /// The name or port that each object is about.
    keys: BTreeMap<ObjectName, ClaimKey>,
    objects: BTreeMap<ObjectName, Box<ObjectState>>,
    /// The last states of names from translation.
    states: BTreeMap<ClaimKey, ClaimState>,
    graces: Graces,
    queue: FairQueue<ObjectName>,
    /// The hostnames with a candidate, for which wildcards around them are held back.
    unrecorded: Unrecorded,
    /// The state of each Gateway when a request about one of its claims was last considered.
    gateways: BTreeMap<ObjectName, GatewayPresence>,
    gateways_changed: bool,
    /// While objects are being listed: the objects for which the watch had events since the list began.
    listing: Option<BTreeSet<ObjectName>>,
    /// The changes of holders that translation has not been told yet.
    updates: BTreeMap<ClaimKey, Option<Holder>>,
    taken: BTreeMap<ClaimKey, Option<Arc<str>>>,
    since: BTreeMap<ClaimKey, Option<i64>>,
    /// The problems of writing objects, by the tenant that the objects are written for.
    troubles: BTreeMap<Tenant, BTreeMap<ObjectName, WriteProblem>>,
    in_trouble: BTreeMap<ObjectName, Tenant>,
    /// Tenants whose problem may have changed.
    troubled: BTreeSet<Tenant>,
    counts: Counts,
}

impl ClaimStore {
    /// Returns an empty store. `grace` is how long a name stays with a holder that let go of it.
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
            queue: FairQueue::new(AT_ONCE),
            unrecorded: Unrecorded::default(),
            gateways: BTreeMap::new(),
            gateways_changed: false,
            listing: None,
            updates: BTreeMap::new(),
            taken: BTreeMap::new(),
            since: BTreeMap::new(),
            troubles: BTreeMap::new(),
            in_trouble: BTreeMap::new(),
            troubled: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// Notes that translation has seen every object. Its states count from now on.
    ///
    /// A Gateway without any claim object has been served without claims so far. Nothing may stop being served because
    /// claims are introduced. So the names that are asked for on it during the start count as held at once, and the
    /// leader writes them afterwards.
    pub fn begin(&mut self, time: Time) {
        self.time = Some(time);
        if !std::mem::replace(&mut self.begun, true) {
            let there = self.objects.values().filter_map(|object| object.seen());
            self.beginning = Some(there.map(|(claim, _)| claim.gateway()).collect());
            self.look_at_all();
        }
    }

    /// Takes the state of an object from the watch; `None` if it is gone. Returns `false` if the object is not as an
    /// operator writes it; then the leader corrects it.
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

    /// Takes the states of names from translation; `None` removes the state of a name.
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

    /// Notes that a Gateway is new, was changed or is gone.
    pub fn gateways_changed(&mut self) {
        self.gateways_changed = true;
    }

    /// Notes that the caller now begins to list all objects, for [`Self::catch_up`].
    pub fn list(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// Takes a list of all objects that is no older than the call of [`Self::list`]. A replica needs this before it
    /// leads, because a leader trusts its own memory more than the objects.
    ///
    /// Returns `false` if the list is not enough. This is so if the watch showed a creation or a deletion in the
    /// meantime that the list does not show: such an event may be older or newer than the list. Then another list is
    /// needed.
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

    /// Begins or ends the leadership of this replica. Before it begins, [`Self::catch_up`] has to have returned `true`.
    pub fn lead(&mut self, leads: bool, time: Time) {
        self.happens(time);
        if self.leads == leads {
            return;
        }
        self.leads = leads;
        // Every grace begins again. The time that a former leader has recorded in the object still counts (`let_go`).
        self.graces.restart(time.now);
        self.queue.clear();
        for object in self.objects.values_mut() {
            object.due = None;
        }
        // The next leader decides about everything that was not written. So no candidate is left.
        self.unrecorded = Unrecorded::default();
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
                // Nobody has ever written this name, and the wildcard around it is recorded. So the wildcard counts.
                (true, false) => self.drop_holder(&key),
                // Somebody has deleted the object, so it is written again.
                (true, true) => {}
            }
        }
        let names: Vec<ObjectName> = self.objects.keys().cloned().collect();
        for name in names {
            self.touch(&name);
        }
    }

    /// Frees the names whose grace is over.
    pub fn pass(&mut self, time: Time) {
        self.happens(time);
        while let Some(key) = self.graces.end_next(time.now) {
            self.release(&key);
        }
    }

    /// Returns the time at which [`Self::pass`] or [`Self::next_request`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let times = [self.graces.deadline(), self.queue.deadline()];
        times.into_iter().flatten().min()
    }

    /// Returns the changes of holders since the last call.
    pub fn take_updates(&mut self) -> BTreeMap<ClaimKey, Option<Holder>> {
        if self.updates.is_empty() {
            // Translation asks for nothing more, so every name that was served before the start is known.
            self.beginning = None;
        }
        std::mem::take(&mut self.updates)
    }

    /// Returns, for the names where this changed since the last call, the namespace that an administrator takes the
    /// name from; `None` if the name is no longer taken from anybody.
    pub fn take_taken(&mut self) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        std::mem::take(&mut self.taken)
    }

    /// Returns when the holder of each name got it, where this changed since the last call; `None` if nobody holds the
    /// name.
    pub fn take_since(&mut self) -> BTreeMap<ClaimKey, Option<i64>> {
        std::mem::take(&mut self.since)
    }

    /// Returns the changes for translation since the last call, from [`Self::take_updates`], [`Self::take_taken`] and
    /// [`Self::take_since`].
    pub fn take_changes(&mut self) -> Vec<Change> {
        let (updates, taken) = (self.take_updates(), self.take_taken());
        let updates = (!updates.is_empty()).then_some(Change::Claims(updates));
        let taken = (!taken.is_empty()).then_some(Change::Taken(taken));
        let since = self.take_since();
        let since = (!since.is_empty()).then_some(Change::Since(since));
        updates.into_iter().chain(taken).chain(since).collect()
    }

    /// Returns the next request that is due. `None` if there is none, or if this replica does not lead.
    pub fn next_request(
        &mut self,
        now: Instant,
        gateway: impl Fn(&ObjectName) -> GatewayPresence,
    ) -> Option<ClaimRequest> {
        if !self.leads {
            return None;
        }
        self.beginning = None;
        if std::mem::take(&mut self.gateways_changed) {
            self.look_at_gateways(&gateway);
        }
        while let Some((_, name)) = self.queue.next(now) {
            let Some(action) = self.next_action(&name, now, &gateway) else {
                self.wait_to_note(&name, now);
                self.sweep(&name);
                continue;
            };
            // Reading an object changes nothing, and may show that the name is recorded already.
            if action != ClaimAction::Read
                && let Some(until) = self.hold_back(&name, now)
            {
                self.set_due(&name, until);
                continue;
            }
            let tenant = self.tenant(&name);
            if let Some(object) = self.objects.get_mut(&name) {
                object.begin(&action, &tenant);
            }
            self.queue.begun(&tenant);
            return Some(ClaimRequest { name, action });
        }
        None
    }

    /// Schedules a name whose object does not yet have to record that it is unused.
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
        gateway: &impl Fn(&ObjectName) -> GatewayPresence,
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
        if key.is_none() && !matches!(state, GatewayPresence::Ours(_)) {
            // The object does not count, and may belong to another controller, so it is left alone.
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
            // A Gateway that is gone may be created again, and then has to find its claims. They stay until their grace
            // is over.
            (GatewayPresence::NotOurs, _) | (GatewayPresence::Gone, Some(_)) => None,
            (GatewayPresence::Gone | GatewayPresence::Ours(_), None) => object.next(None),
            (GatewayPresence::Ours(uid), Some((key, holding, unused, is_taken))) => {
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
            // One request without an answer is not reported, because the next one mostly settles it.
            let trouble = trouble.filter(|of| *of == WriteProblem::Refused || failures > 1);
            let gateway = self.keys.get(name).map(|key| key.gateway.clone());
            self.note_trouble(
                name,
                gateway.and_then(|gateway| Some(((gateway, namespace), trouble?))),
            );
        }
        self.follow(name);
    }

    /// Returns why names of a namespace on a Gateway could not be written, if that is so.
    #[must_use]
    pub fn trouble(&self, gateway: &ObjectName, namespace: &Arc<str>) -> Option<WriteProblem> {
        let tenant = (gateway.clone(), namespace.clone());
        self.troubles.get(&tenant)?.values().next().copied()
    }

    /// Returns the Gateways and namespaces for which [`Self::trouble`] may have changed since the last call.
    pub fn take_troubled(&mut self) -> BTreeSet<(ObjectName, Arc<str>)> {
        std::mem::take(&mut self.troubled)
    }

    /// Returns the numbers for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            grace: self.graces.len(),
            ..self.counts
        }
    }

    /// Notes the time of an event. The first event ends the start.
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

    /// Schedules the claims of each Gateway whose state has changed.
    fn look_at_gateways(&mut self, gateway: &impl Fn(&ObjectName) -> GatewayPresence) {
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
