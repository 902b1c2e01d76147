//! Who holds a name, who is to hold it, and from whom it is being taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, Claimed, Holder};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ObjectName;

use super::fair_queue::FairQueue;
use super::grace::Graces;
use super::object::{Action, Content, ObjectState, Outcome, Request, Seen};
use super::{NOTED_AFTER, Time};
use crate::translate::ClaimState;

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
pub enum Trouble {
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
    troubles: BTreeMap<Tenant, BTreeMap<ObjectName, Trouble>>,
    in_trouble: BTreeMap<ObjectName, Tenant>,
    /// Tenants whose trouble may be another one than it was.
    troubled: BTreeSet<Tenant>,
    counts: Counts,
}

/// What of a record and its object others depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Summary {
    holder: Option<Holder>,
    /// The namespace of the holder, or of who is to be.
    occupant: Option<Arc<str>>,
    /// An object says that somebody holds it.
    held: bool,
    /// No object says what is to be.
    pending: bool,
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
    pub fn observe(&mut self, name: &ObjectName, seen: Option<Seen>, time: Time) -> bool {
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
    pub fn catch_up(&mut self, mut objects: BTreeMap<ObjectName, Seen>, time: Time) -> bool {
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

    /// The next request that is due, if this replica leads.
    pub fn next_request(
        &mut self,
        now: Instant,
        gateway: impl Fn(&ObjectName) -> GatewayState,
    ) -> Option<Request> {
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
            return Some(Request { name, action });
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
    ) -> Option<Action> {
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
                object.next(Some(Content {
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

    /// Takes what came of a request.
    pub fn done(&mut self, name: &ObjectName, outcome: Outcome, time: Time) {
        self.happens(time);
        if let Outcome::Known(Some((claim, _))) = &outcome
            && let Some(key) = claim.held_key().cloned()
        {
            self.ensure(&key);
        }
        let trouble = match &outcome {
            Outcome::Known(_) | Outcome::Moved => None,
            Outcome::Refused => Some(Trouble::Refused),
            Outcome::Unknown => Some(Trouble::Unanswered),
        };
        let (turn, failures) = self.change_object(name, |object| {
            object.end(outcome);
            (object.turn.take(), object.failures())
        });
        if let Some(namespace) = turn {
            self.queue.ended(&namespace);
            let trouble = trouble.filter(|of| *of == Trouble::Refused || failures > 1);
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
    pub fn trouble(&self, gateway: &ObjectName, namespace: &Arc<str>) -> Option<Trouble> {
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

    /// Does what follows from a change of an object.
    fn follow(&mut self, name: &ObjectName) {
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
    fn is_closed(&self, key: &ClaimKey) -> bool {
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
    fn settle(&mut self, key: &ClaimKey) {
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
    fn look(&mut self, key: &ClaimKey) {
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

    fn drop_holder(&mut self, key: &ClaimKey) {
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
    fn let_go(&mut self, key: &ClaimKey) {
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
    fn release(&mut self, key: &ClaimKey) {
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

    fn ensure(&mut self, key: &ClaimKey) {
        if !self.records.contains_key(key) {
            self.change(key, |_| {});
        }
    }

    /// Changes what is known of a name, and whatever depends on it.
    fn change(&mut self, key: &ClaimKey, change: impl FnOnce(&mut Record)) {
        let before = self.summary(key);
        let record = self.records.entry(key.clone()).or_insert_with(|| Record {
            object: key.object_name(),
            holder: None,
            candidate: None,
            released: None,
            unused: None,
        });
        change(record);
        if !self.keys.contains_key(&record.object) {
            self.keys.insert(record.object.clone(), key.clone());
            self.objects.entry(record.object.clone()).or_default();
        }
        let after = self.summary(key);
        self.account(key, &before, &after);
    }

    /// Changes an object, and whatever depends on it.
    fn change_object<T>(
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
        Summary {
            holder: holder.cloned(),
            pending: occupant.is_some() && occupant != says,
            occupant: occupant.map(|of| of.namespace.clone()),
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
        if after.holder.is_some() && !after.held {
            self.unsaid.entry(key.clone()).or_insert(before.held);
        } else {
            self.unsaid.remove(key);
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

    /// For whom an object is written: its tenant's turn it has to be.
    fn tenant(&self, name: &ObjectName) -> Arc<str> {
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

    /// The object that says who holds a name. Its own name is a hash, and worked out once.
    fn object_of(&self, key: &ClaimKey) -> Option<&ObjectState> {
        self.objects.get(&self.records.get(key)?.object)
    }

    /// Something about a name may have to be written.
    fn touch_name(&mut self, key: &ClaimKey) {
        if let Some(record) = self.records.get(key) {
            let object = record.object.clone();
            self.touch(&object);
        }
    }

    /// Something about an object may have to be written.
    fn touch(&mut self, name: &ObjectName) {
        let Some(time) = self.time.filter(|_| self.leads) else {
            self.sweep(name);
            return;
        };
        if let Some(object) = self.objects.get(name) {
            let at = time.now + object.pause();
            self.set_due(name, at);
        }
    }

    fn set_due(&mut self, name: &ObjectName, at: Instant) {
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

    fn note_trouble(&mut self, name: &ObjectName, trouble: Option<(Tenant, Trouble)>) {
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

    /// Forgets an object that is gone, and what is known of its name if that is nothing.
    fn sweep(&mut self, name: &ObjectName) {
        if !self.objects.get(name).is_some_and(ObjectState::is_over) {
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
