//! The book itself: what it is told, and what it is asked. What follows is in [`super::judge`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, ClaimUse, Holders};
use vestibule_model::key::ObjectName;
use vestibule_model::merge::PortKey;
use vestibule_model::reversed::Patterns;

use super::Time;
use super::grace::Graces;
use super::pages::{Pages, Sight};
use super::slab::{Outcome, Seen, Trouble, Write};
use crate::translate::Standing;

/// A name that is held, or is about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) namespace: Arc<str>,
    /// Since when, in seconds since the epoch.
    pub(super) since: i64,
    /// The object it stands in, or is to stand in.
    pub(super) page: ObjectName,
    /// Whether translation knows it.
    pub(super) told: bool,
    /// It is to be taken out of its object. Once that is being written translation knows it no longer.
    pub(super) leaving: bool,
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
    /// Objects that say what no operator writes.
    pub spoilt: usize,
}

/// How many names listeners of each namespace hold on a port, by what they speak there.
pub(super) type Spoken = BTreeMap<(ClaimUse, Arc<str>), usize>;

/// See the module above.
#[derive(Debug)]
pub struct Book {
    pub(super) time: Option<Time>,
    /// Translation has the whole picture.
    pub(super) begun: bool,
    pub(super) leads: bool,
    /// At the beginning: the Gateways of which there is an object. The others have been served without
    /// claims so far.
    pub(super) beginning: Option<BTreeSet<ObjectName>>,
    /// Names of TLS listeners that were held from the beginning and stand in no object yet.
    pub(super) assumed: BTreeMap<PortKey, Patterns<()>>,
    pub(super) holders: Holders,
    pub(super) pages: Pages,
    pub(super) held: BTreeMap<ClaimKey, Held>,
    /// What translation said last.
    pub(super) standings: BTreeMap<ClaimKey, Standing>,
    /// When names are free that their holders let go of.
    pub(super) graces: Graces,
    pub(super) spoken: BTreeMap<PortKey, Spoken>,
    /// Wishes that wait for what another namespace speaks on their port.
    pub(super) barred: BTreeSet<ClaimKey>,
    /// Names that are being taken out of an object.
    pub(super) leaving: BTreeMap<ObjectName, BTreeSet<ClaimKey>>,
    /// Gateways may be others than they were.
    gateways_moved: bool,
    /// When a list was begun, while one is being made, and the objects of which there was news since.
    listing: Option<(Instant, BTreeSet<ObjectName>)>,
    /// What translation is to be told.
    pub(super) news: BTreeMap<ClaimKey, Option<Arc<str>>>,
}

impl Book {
    /// An empty book.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            time: None,
            begun: false,
            leads: false,
            beginning: None,
            assumed: BTreeMap::new(),
            holders: Holders::default(),
            pages: Pages::default(),
            held: BTreeMap::new(),
            standings: BTreeMap::new(),
            graces: Graces::new(grace),
            spoken: BTreeMap::new(),
            barred: BTreeSet::new(),
            leaving: BTreeMap::new(),
            gateways_moved: false,
            listing: None,
            news: BTreeMap::new(),
        }
    }

    /// Translation has seen every object: what it says counts from now on.
    ///
    /// A Gateway of which there is no object at all has been served without claims so far. What is wished for
    /// on it, until there is no more news of it, counts as held at once, and is written by the leader: nothing
    /// stops being served for that.
    pub fn begin(&mut self, time: Time) {
        self.time = Some(time);
        if !std::mem::replace(&mut self.begun, true) {
            self.beginning = Some(self.pages.claimed());
            self.look_at_all();
        }
    }

    /// Takes an object as the watch shows it; `None`: it is gone. Says whether it is as an operator writes
    /// it; if not, the leader puts it right.
    pub fn observe(&mut self, name: &ObjectName, seen: Option<Seen>, time: Time) -> bool {
        self.happens(time);
        if let Some((_, news)) = &mut self.listing {
            news.insert(name.clone());
        }
        let claim = seen.as_ref().map(|(claim, _)| Arc::clone(claim));
        let sound = claim.as_ref().is_none_or(|c| c.findings.is_empty());
        let was_open = self.pages.is_open(name);
        let claim = match self.pages.observe(name, seen) {
            Sight::Old => return true,
            Sight::Sound => claim,
            Sight::Spoilt => None,
        };
        let counts = claim.is_some();
        for key in self.holders.put(name, claim).into_keys() {
            self.settle(&key);
            self.check_assumed(&key);
        }
        if was_open {
            self.close(name);
        }
        self.touch(name);
        sound && counts
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

    /// A Gateway is new, was changed or is gone: its UID may be another one, and it may be ours or not.
    pub fn gateways_moved(&mut self) {
        self.gateways_moved = true;
    }

    /// A list of all objects is being made from now on, for [`Self::catch_up`].
    pub fn list(&mut self, now: Instant) {
        self.listing = Some((now, BTreeSet::new()));
    }

    /// Whether a list is to be made: of an object that somebody may have made, and that can be made no longer,
    /// nothing else may ever tell whether it is there.
    #[must_use]
    pub fn list_is_due(&self, now: Instant) -> bool {
        self.list_at().is_some_and(|at| at <= now)
    }

    fn list_at(&self) -> Option<Instant> {
        let wanted = self.leads && self.listing.is_none();
        self.pages.doubt_until().filter(|_| wanted)
    }

    /// Takes a list of all objects that was made after [`Self::list`] was called, and is no older than that:
    /// what this replica has to know before it leads, for from then on its memory counts. Says whether that
    /// is all; if not, what happened meanwhile may be older than the list or newer, and another one is to be
    /// made.
    pub fn catch_up(&mut self, mut objects: BTreeMap<ObjectName, Seen>, time: Time) -> bool {
        let Some((begun, news)) = self.listing.take() else {
            return false;
        };
        let there: BTreeSet<ObjectName> = self.pages.there().cloned().collect();
        let doubtful = |name: &ObjectName| {
            let listed = objects.contains_key(name);
            news.contains(name) && listed != there.contains(name)
        };
        let doubtful: BTreeSet<ObjectName> = news.iter().filter(|n| doubtful(n)).cloned().collect();
        // First what is gone: a name that somebody else has now is not in two places.
        for name in there.difference(&doubtful) {
            if !objects.contains_key(name) {
                self.observe(name, None, time);
            }
        }
        objects.retain(|name, _| !doubtful.contains(name));
        for (name, seen) in objects {
            self.observe(&name, Some(seen), time);
        }
        if !doubtful.is_empty() {
            return false;
        }
        while let Some(page) = self.pages.end_doubt(begun) {
            self.close(&page);
            self.touch(&page);
        }
        true
    }

    /// This replica leads from now on, or no longer does; before it does it is to [`Self::catch_up`]. A name that
    /// its holder let go of is kept for a whole grace from here on: how much of it is over is known to the
    /// former leader alone.
    pub fn lead(&mut self, leads: bool, time: Time) {
        self.happens(time);
        if self.leads == leads {
            return;
        }
        self.leads = leads;
        self.graces.restart(time.now);
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
        for name in self.pages.names() {
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
        let times = [
            self.graces.deadline(),
            self.pages.deadline(),
            self.list_at(),
        ];
        times.into_iter().flatten().min()
    }

    /// What translation is to be told since this was asked last.
    pub fn take_news(&mut self) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        if self.news.is_empty() {
            // All that was served at the beginning is known.
            self.beginning = None;
        }
        std::mem::take(&mut self.news)
    }

    /// The next write that is due, if this replica leads; `uid` is that of a Gateway that is ours. There may
    /// be news after that, which has to come before what is written.
    pub fn next_write(
        &mut self,
        now: Instant,
        uid: impl Fn(&ObjectName) -> Option<Arc<str>>,
    ) -> Option<Write> {
        if !self.leads {
            return None;
        }
        self.beginning = None;
        if std::mem::take(&mut self.gateways_moved) {
            self.pages.look_at_gateways(now, &uid);
        }
        let held = &self.held;
        let since = |key: &ClaimKey| held.get(key).map_or(0, |held| held.since);
        let write = self.pages.next_write(now, uid, since)?;
        // From here on it cannot be kept any more: nobody is to serve it before that is known.
        for key in self.leaving.get(&write.name).into_iter().flatten() {
            if let Some(held) = self.held.get_mut(key)
                && std::mem::take(&mut held.told)
            {
                self.news.insert(key.clone(), None);
            }
        }
        Some(write)
    }

    /// Takes what came of a write.
    pub fn done(&mut self, name: &ObjectName, outcome: Outcome, time: Time) {
        self.happens(time);
        let latest = self.pages.done(name, &outcome, time.now);
        if let Outcome::Written(seen) = outcome
            && latest
        {
            self.observe(name, seen, time);
        }
        self.close(name);
        self.touch(name);
    }

    /// What keeps names of a namespace on a Gateway from being written.
    #[must_use]
    pub fn trouble(&self, gateway: &ObjectName, namespace: &Arc<str>) -> Option<Trouble> {
        self.pages.trouble(&(gateway.clone(), namespace.clone()))
    }

    /// The Gateways and namespaces for which [`Self::trouble`] is another one than when this was asked last.
    pub fn take_troubled(&mut self) -> BTreeSet<(ObjectName, Arc<str>)> {
        self.pages.take_troubled()
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let held = self.holders.len();
        Counts {
            held,
            grace: self.graces.len(),
            pending: self.held.len().saturating_sub(held),
            objects: self.pages.present(),
            spoilt: self.pages.spoilt(),
        }
    }

    /// Something happens that is not the beginning any more.
    fn happens(&mut self, time: Time) {
        self.time = Some(time);
        self.beginning = None;
    }
}
