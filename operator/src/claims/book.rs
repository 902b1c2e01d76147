//! The book itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, ClaimUse, Holders};
use vestibule_model::key::ObjectName;
use vestibule_model::merge::PortKey;

use super::Time;
use super::pages::Pages;
use super::slab::{Outcome, Seen, Write};
use crate::translate::Standing;

/// A name that is held, or is about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    namespace: Arc<str>,
    /// Since when, in seconds since the epoch.
    since: i64,
    /// The object it stands in, or is to stand in.
    page: ObjectName,
    /// Whether translation knows it.
    told: bool,
    /// It is being taken out of its object.
    leaving: bool,
}

/// Numbers for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names that stand in an object.
    pub held: usize,
    /// Names whose holders let go of them, and that are not free yet.
    pub grace: usize,
    /// Names that wait to be written.
    pub pending: usize,
    /// Objects.
    pub objects: usize,
}

/// How many names listeners of each namespace hold on a port, by what they speak there.
type Spoken = BTreeMap<(ClaimUse, Arc<str>), usize>;

/// See the module above.
#[derive(Debug)]
pub struct Book {
    grace: Duration,
    time: Option<Time>,
    /// Translation has the whole picture.
    begun: bool,
    leads: bool,
    /// This is the beginning, and no object has been seen: whatever serves now knows no claims.
    first: bool,
    holders: Holders,
    pages: Pages,
    held: BTreeMap<ClaimKey, Held>,
    /// What translation said last.
    standings: BTreeMap<ClaimKey, Standing>,
    /// When names are free that their holders let go of.
    expiries: BTreeMap<ClaimKey, Instant>,
    queue: BTreeSet<(Instant, ClaimKey)>,
    spoken: BTreeMap<PortKey, Spoken>,
    /// Wishes that wait for what another namespace speaks on their port.
    barred: BTreeSet<ClaimKey>,
    /// Names that are being taken out of an object.
    leaving: BTreeMap<ObjectName, BTreeSet<ClaimKey>>,
    /// What translation is to be told.
    news: BTreeMap<ClaimKey, Option<Arc<str>>>,
}

impl Book {
    /// An empty book.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            time: None,
            begun: false,
            leads: false,
            first: true,
            holders: Holders::default(),
            pages: Pages::default(),
            held: BTreeMap::new(),
            standings: BTreeMap::new(),
            expiries: BTreeMap::new(),
            queue: BTreeSet::new(),
            spoken: BTreeMap::new(),
            barred: BTreeSet::new(),
            leaving: BTreeMap::new(),
            news: BTreeMap::new(),
        }
    }

    /// Translation has seen every object: what it says counts from now on.
    ///
    /// If there is no claim at all, this cluster has been served without claims so far. What is wished for
    /// then counts as held at once, and is written by the leader: nothing stops being served for that.
    pub fn begin(&mut self, time: Time) {
        self.time = Some(time);
        if !std::mem::replace(&mut self.begun, true) {
            self.look_at_all();
            // Whatever is wished for later was not served before.
            self.first = false;
        }
    }

    /// Takes an object as the watch shows it; `None`: it is gone.
    pub fn observe(&mut self, name: &ObjectName, seen: Option<Seen>, time: Time) {
        self.time = Some(time);
        self.first &= seen.is_none();
        let claim = seen.as_ref().map(|(claim, _)| Arc::clone(claim));
        if self.pages.observe(name, seen) {
            for key in self.holders.put(name, claim).into_keys() {
                self.settle(&key);
            }
            self.touch(name);
        }
    }

    /// Takes what translation says.
    pub fn translated(&mut self, standings: BTreeMap<ClaimKey, Option<Standing>>, time: Time) {
        self.time = Some(time);
        for (key, standing) in standings {
            match standing {
                Some(standing) => self.standings.insert(key.clone(), standing),
                None => self.standings.remove(&key),
            };
            self.look(&key);
        }
    }

    /// This replica leads from now on, or no longer does. A name that its holder let go of is kept for a
    /// whole grace from here on: how much of it is over is known to the former leader alone.
    pub fn lead(&mut self, leads: bool, time: Time) {
        self.time = Some(time);
        if self.leads == leads {
            return;
        }
        self.leads = leads;
        self.expiries.clear();
        self.queue.clear();
        self.pages.rest();
        self.leaving.clear();
        let mut returned = Vec::new();
        for (key, held) in &mut self.held {
            if std::mem::take(&mut held.leaving) {
                returned.push((key.clone(), held.namespace.clone(), held.page.clone()));
            }
        }
        for (key, namespace, page) in returned {
            self.pages.enter(&key, &namespace, Some(&page));
        }
        // What was not written is decided by the next leader.
        let held: Vec<ClaimKey> = self.held.keys().cloned().collect();
        for key in held {
            self.settle(&key);
        }
        self.look_at_all();
        self.first &= !leads;
        for name in self.pages.names() {
            self.touch(&name);
        }
    }

    /// Lets time pass: frees names whose grace is over.
    pub fn pass(&mut self, time: Time) {
        self.time = Some(time);
        while let Some((at, key)) = self.queue.first().cloned()
            && at <= time.now
        {
            self.spare(&key);
            self.release(&key);
        }
    }

    /// When there is something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let grace = self.queue.first().map(|(at, _)| *at);
        [grace, self.pages.deadline()].into_iter().flatten().min()
    }

    /// What translation is to be told since this was asked last.
    pub fn take_news(&mut self) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        std::mem::take(&mut self.news)
    }

    /// The next write that is due, if this replica leads; `uid` is that of a Gateway.
    pub fn next_write(
        &mut self,
        now: Instant,
        uid: impl Fn(&ObjectName) -> Option<Arc<str>>,
    ) -> Option<Write> {
        if !self.leads {
            return None;
        }
        let held = &self.held;
        let since = |key: &ClaimKey| held.get(key).map_or(0, |held| held.since);
        self.pages.next_write(now, uid, since)
    }

    /// Takes what came of a write.
    pub fn done(&mut self, name: &ObjectName, outcome: Outcome, time: Time) {
        self.time = Some(time);
        let failed = matches!(outcome, Outcome::Failed);
        let latest = self.pages.done(name, failed);
        if let Outcome::Written(seen) = outcome
            && latest
        {
            self.observe(name, seen, time);
        }
        // What never came to stand there is out of it now, or is no longer wished for.
        for key in self.leaving.get(name).cloned().unwrap_or_default() {
            self.settle(&key);
        }
        for key in self.pages.keys(name) {
            if self.held.get(&key).is_some_and(|held| !held.told) {
                self.look(&key);
            }
        }
        self.touch(name);
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let held = self.holders.len();
        Counts {
            held,
            grace: self.queue.len(),
            pending: self.held.len().saturating_sub(held),
            objects: self.pages.present(),
        }
    }

    fn look_at_all(&mut self) {
        let keys: Vec<ClaimKey> = self.standings.keys().cloned().collect();
        for key in keys {
            self.look(&key);
        }
    }

    /// Brings a name in line with what objects say about it.
    fn settle(&mut self, key: &ClaimKey) {
        let seen = self
            .holders
            .holder(key)
            .map(|(namespace, since)| (namespace.clone(), since));
        let Some(held) = self.held.get_mut(key) else {
            if let Some((namespace, since)) = seen {
                self.adopt(key, namespace, since);
            }
            return;
        };
        let stands = seen
            .as_ref()
            .is_some_and(|(namespace, _)| *namespace == held.namespace);
        if self.leads {
            // What this replica knows counts; objects that say otherwise are put right. Where translation has
            // nothing to say the Gateway is gone, or is not ours.
            let gone = held.told && seen.is_none() && !self.standings.contains_key(key);
            if held.leaving && !stands || gone {
                self.drop_held(key);
                if let Some((namespace, since)) = seen {
                    self.adopt(key, namespace, since);
                }
            } else if stands && !held.told {
                held.told = true;
                self.news.insert(key.clone(), Some(held.namespace.clone()));
            }
            return;
        }
        match seen {
            Some((namespace, since)) if namespace != held.namespace || !held.told => {
                self.drop_held(key);
                self.adopt(key, namespace, since);
            }
            Some(_) => {}
            // What is served goes on: the leader writes it again.
            None if held.told && self.standings.get(key) == Some(&Standing::Kept) => {}
            None => self.drop_held(key),
        }
    }

    /// A name that stands in an object is known from there.
    fn adopt(&mut self, key: &ClaimKey, namespace: Arc<str>, since: i64) {
        let page = self.holders.place(key).cloned();
        self.enter(key, namespace, since, true, page.as_ref());
        self.look(key);
    }

    fn enter(
        &mut self,
        key: &ClaimKey,
        namespace: Arc<str>,
        since: i64,
        told: bool,
        page: Option<&ObjectName>,
    ) {
        let page = self.pages.enter(key, &namespace, page);
        if told {
            self.news.insert(key.clone(), Some(namespace.clone()));
        }
        if key.use_ != ClaimUse::TlsRoute {
            let spoken = self.spoken.entry(key.port_key()).or_default();
            *spoken.entry((key.use_, namespace.clone())).or_default() += 1;
        }
        self.barred.remove(key);
        self.touch(&page);
        let held = Held {
            namespace,
            since,
            page,
            told,
            leaving: false,
        };
        self.held.insert(key.clone(), held);
    }

    fn drop_held(&mut self, key: &ClaimKey) {
        let Some(held) = self.held.remove(key) else {
            return;
        };
        if let Some(leaving) = self.leaving.get_mut(&held.page) {
            leaving.remove(key);
            if leaving.is_empty() {
                self.leaving.remove(&held.page);
            }
        }
        self.pages.leave(key, &held.page);
        self.touch(&held.page);
        self.spare(key);
        if held.told {
            self.news.insert(key.clone(), None);
        }
        if key.use_ == ClaimUse::TlsRoute {
            return;
        }
        let port = key.port_key();
        if let Some(spoken) = self.spoken.get_mut(&port) {
            let at = (key.use_, held.namespace);
            if let Some(count) = spoken.get_mut(&at) {
                *count -= 1;
                if *count == 0 {
                    spoken.remove(&at);
                }
            }
            if spoken.is_empty() {
                self.spoken.remove(&port);
            }
        }
        let barred = self.barred.range(ClaimKey::first_of(&port)..);
        let barred: Vec<ClaimKey> = barred
            .take_while(|other| other.port_key() == port)
            .cloned()
            .collect();
        for other in barred {
            self.look(&other);
        }
    }

    /// Does what follows from how it stands with a name.
    fn look(&mut self, key: &ClaimKey) {
        if !self.begun {
            return;
        }
        let standing = self.standings.get(key).cloned();
        let Some(held) = self.held.get(key) else {
            match standing {
                Some(Standing::Wished(namespace)) => self.wish(key, namespace),
                _ => {
                    self.barred.remove(key);
                }
            }
            return;
        };
        if held.leaving {
            return;
        }
        match standing {
            Some(Standing::Wished(namespace)) if namespace == held.namespace => {}
            Some(Standing::Wished(_)) | None => {
                // Unless translation has not heard of it yet: nobody wishes for it any more. What is being
                // written comes to be held first.
                if !held.told && !self.pages.is_in_flight(&held.page) {
                    self.drop_held(key);
                    self.look(key);
                }
            }
            Some(Standing::Kept) => self.spare(key),
            Some(Standing::Left | Standing::Revoked) if !self.leads => {
                if self.holders.holder(key).is_none() {
                    self.drop_held(key);
                }
            }
            Some(Standing::Left) => {
                if let Some(time) = self.time
                    && !self.expiries.contains_key(key)
                {
                    let at = time.now + self.grace;
                    self.expiries.insert(key.clone(), at);
                    self.queue.insert((at, key.clone()));
                }
            }
            Some(Standing::Revoked) => {
                self.spare(key);
                self.release(key);
            }
        }
    }

    /// Its grace ends, or does not begin.
    fn spare(&mut self, key: &ClaimKey) {
        if let Some(at) = self.expiries.remove(key) {
            self.queue.remove(&(at, key.clone()));
        }
    }

    fn wish(&mut self, key: &ClaimKey, namespace: Arc<str>) {
        if !self.leads && !self.first {
            return;
        }
        if self.is_barred(key, &namespace) {
            self.barred.insert(key.clone());
            return;
        }
        let since = self.time.map_or(0, |time| time.seconds);
        self.enter(key, namespace, since, self.first, None);
    }

    /// Whether another namespace holds, or is about to hold, something on the port that speaks otherwise: of
    /// two wishes that met, the one that was taken first.
    fn is_barred(&self, key: &ClaimKey, namespace: &str) -> bool {
        key.use_ != ClaimUse::TlsRoute
            && self.spoken.get(&key.port_key()).is_some_and(|spoken| {
                spoken
                    .keys()
                    .any(|(use_, holder)| *use_ != key.use_ && **holder != *namespace)
            })
    }

    /// Takes a name out of its object; it is free when it no longer stands there.
    fn release(&mut self, key: &ClaimKey) {
        let Some(held) = self.held.get_mut(key) else {
            return;
        };
        let page = held.page.clone();
        if self.holders.holder(key).is_none() && !self.pages.is_in_flight(&page) {
            // It never came to stand there.
            self.drop_held(key);
            self.look(key);
        } else if self.leads {
            held.leaving = true;
            let leaving = self.leaving.entry(page.clone()).or_default();
            leaving.insert(key.clone());
            self.pages.leave(key, &page);
            self.touch(&page);
        }
    }

    fn touch(&mut self, page: &ObjectName) {
        if let Some(time) = self.time.filter(|_| self.leads) {
            self.pages.touch(page, time.now);
        } else {
            self.pages.sweep(page);
        }
    }
}
