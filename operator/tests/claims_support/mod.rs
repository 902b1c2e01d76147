//! A book of claims beside an API server that is not there: what is written, when it lands, and what its
//! translation has been told.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimEntry, ClaimKey, ClaimUse, HostnameClaim};
use vestibule_model::conflict::Transport;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;
use vestibule_model::merge::PortKey;
use vestibule_operator::claims::{Book, Content, Outcome, Seen, Time, Write};
use vestibule_operator::translate::Standing;

pub(crate) const GRACE: Duration = Duration::from_mins(1);

pub(crate) fn edge() -> ObjectName {
    ObjectName::new("platform", "edge")
}

/// A TLS listener's name on port 443 of `edge`.
pub(crate) fn name(hostname: &str) -> ClaimKey {
    name_on(&edge(), hostname)
}

pub(crate) fn name_on(gateway: &ObjectName, hostname: &str) -> ClaimKey {
    let port = PortKey {
        gateway: gateway.clone(),
        port: NonZeroU16::new(443).unwrap(),
        transport: Transport::Tcp,
    };
    ClaimKey::new(&port, ClaimUse::Tls, &HostPattern::parse(hostname).unwrap())
}

pub(crate) fn entry(hostname: &str) -> ClaimEntry {
    let key = name(hostname);
    ClaimEntry {
        port: key.port,
        transport: key.transport,
        use_: key.use_,
        names: key.names,
        since: 900,
    }
}

/// An object as a server has it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) content: Content,
    pub(crate) version: u64,
}

pub(crate) struct World {
    pub(crate) book: Book,
    pub(crate) time: Time,
    pub(crate) objects: BTreeMap<ObjectName, Stored>,
    pub(crate) version: u64,
    /// Gateways that are ours.
    pub(crate) uids: BTreeMap<ObjectName, &'static str>,
    /// Who holds what, as translation knows it.
    pub(crate) told: BTreeMap<ClaimKey, Arc<str>>,
    /// What the watch has not shown yet.
    pub(crate) unseen: VecDeque<(ObjectName, Option<Stored>)>,
}

impl World {
    /// A replica that has yet to begin.
    pub(crate) fn new() -> Self {
        Self {
            book: Book::new(GRACE),
            time: Time {
                seconds: 1_000,
                now: Instant::now(),
            },
            objects: BTreeMap::new(),
            version: 0,
            uids: BTreeMap::from([(edge(), "uid-1")]),
            told: BTreeMap::new(),
            unseen: VecDeque::new(),
        }
    }

    /// One that leads, in a cluster that knows claims.
    pub(crate) fn leading() -> Self {
        let mut world = Self::new();
        world.book.begin(world.time);
        world.news();
        world.book.lead(true, world.time);
        world
    }

    /// The same cluster, with a replica that starts and leads.
    pub(crate) fn restarted(&self) -> Self {
        let mut world = Self {
            objects: self.objects.clone(),
            version: self.version,
            uids: self.uids.clone(),
            time: self.time,
            ..Self::new()
        };
        for (name, stored) in self.objects.clone() {
            world.show(&name, Some(&stored));
        }
        world.book.begin(world.time);
        world.news();
        world.book.lead(true, world.time);
        world.news();
        world
    }

    pub(crate) fn news(&mut self) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        let news = self.book.take_news();
        for (key, holder) in news.clone() {
            match holder {
                Some(holder) => self.told.insert(key, holder),
                None => self.told.remove(&key),
            };
        }
        news
    }

    pub(crate) fn holder(&self, key: &ClaimKey) -> Option<&str> {
        self.told.get(key).map(AsRef::as_ref)
    }

    /// Translation says this of names.
    pub(crate) fn say<'a>(
        &mut self,
        standings: impl IntoIterator<Item = (&'a ClaimKey, Option<Standing>)>,
    ) {
        let standings = standings.into_iter();
        let standings = standings.map(|(key, s)| (key.clone(), s)).collect();
        self.book.translated(standings, self.time);
    }

    pub(crate) fn wish(&mut self, key: &ClaimKey, namespace: &str) {
        self.say([(key, Some(Standing::Wished(namespace.into())))]);
    }

    /// A namespace gets a name, and makes use of it.
    pub(crate) fn give(&mut self, key: &ClaimKey, namespace: &str) {
        self.wish(key, namespace);
        self.rest();
        assert_eq!(self.holder(key), Some(namespace));
        self.say([(key, Some(Standing::Kept))]);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.time.now += time;
        self.time.seconds += i64::try_from(time.as_secs()).unwrap();
        self.book.pass(self.time);
        self.news();
        if self.book.list_is_due(self.time.now) {
            assert!(self.list());
        }
    }

    /// The next write, if one is due by now.
    pub(crate) fn begin_write(&mut self) -> Option<Write> {
        let uids = &self.uids;
        let uid = |gateway: &ObjectName| uids.get(gateway).map(|uid| Arc::from(*uid));
        let write = self.book.next_write(self.time.now, uid);
        self.news();
        write
    }

    /// The next write, after whatever pause it needs.
    pub(crate) fn next_write(&mut self) -> Option<Write> {
        self.pass(Duration::from_millis(100));
        self.begin_write()
    }

    /// A write comes to the server: what that makes of it.
    pub(crate) fn land(&mut self, write: &Write) -> Outcome {
        let there = self.objects.get(&write.name);
        let version = there.map(|stored| stored.version.to_string());
        if version != write.version {
            return Outcome::Moved;
        }
        let Some(content) = write.content.clone() else {
            self.objects.remove(&write.name);
            self.unseen.push_back((write.name.clone(), None));
            return Outcome::Written(None);
        };
        let same = there.is_some_and(|stored| stored.content == content);
        if !same || write.fence {
            self.version += 1;
            let version = self.version;
            let stored = Stored { content, version };
            self.objects.insert(write.name.clone(), stored.clone());
            self.unseen.push_back((write.name.clone(), Some(stored)));
        }
        Outcome::Written(self.seen(&write.name))
    }

    pub(crate) fn seen(&self, name: &ObjectName) -> Option<Seen> {
        seen(name, self.objects.get(name))
    }

    pub(crate) fn done(&mut self, write: &Write, outcome: Outcome) {
        self.book.done(&write.name, outcome, self.time);
        self.news();
    }

    /// The watch shows an object.
    pub(crate) fn show(&mut self, name: &ObjectName, stored: Option<&Stored>) -> bool {
        let right = self.book.observe(name, seen(name, stored), self.time);
        self.news();
        right
    }

    pub(crate) fn show_next(&mut self) {
        if let Some((name, stored)) = self.unseen.pop_front() {
            self.show(&name, stored.as_ref());
        }
    }

    /// Makes every write, and the watch shows it.
    pub(crate) fn rest(&mut self) -> usize {
        let mut writes = 0;
        // That a Gateway is another one is noticed by asking, and gathers like anything else.
        while let Some(write) = self.next_write().or_else(|| self.next_write()) {
            let outcome = self.land(&write);
            self.done(&write, outcome);
            writes += 1;
            assert!(writes < 10_000, "it does not come to rest: {write:?}");
        }
        while !self.unseen.is_empty() {
            self.show_next();
        }
        writes
    }

    /// Takes a list of what is there, and leads if that is all there is to know.
    pub(crate) fn take_over(&mut self) -> bool {
        let complete = self.list();
        if complete {
            self.book.lead(true, self.time);
        }
        self.news();
        complete
    }

    fn list(&mut self) -> bool {
        self.book.list(self.time.now);
        let listed = self.objects.keys().cloned();
        let listed = listed.filter_map(|name| Some((name.clone(), self.seen(&name)?)));
        let complete = self.book.catch_up(listed.collect(), self.time);
        self.news();
        complete
    }

    /// Somebody else makes, changes or deletes an object.
    pub(crate) fn by_hand(&mut self, name: &ObjectName, content: Option<Content>) -> bool {
        self.version += 1;
        let version = self.version;
        let stored = content.map(|content| Stored { content, version });
        match stored.clone() {
            Some(stored) => self.objects.insert(name.clone(), stored),
            None => self.objects.remove(name),
        };
        self.show(name, stored.as_ref())
    }

    /// Who holds a name, by the objects.
    pub(crate) fn stands(&self, key: &ClaimKey) -> Vec<&str> {
        let objects = self
            .objects
            .iter()
            .filter(|(name, stored)| read(name, stored).keys().any(|(other, _)| other == *key));
        objects.map(|(_, o)| &*o.content.namespace).collect()
    }
}

fn read(name: &ObjectName, stored: &Stored) -> HostnameClaim {
    let (claim, _) = seen(name, Some(stored)).unwrap();
    (*claim).clone()
}

fn seen(name: &ObjectName, stored: Option<&Stored>) -> Option<Seen> {
    let stored = stored?;
    let write = Write {
        name: name.clone(),
        version: None,
        content: Some(stored.content.clone()),
        fence: false,
    };
    write.stored(stored.version)
}
