//! A store of claims beside an API server that is not there: what is written, when it lands, and what its
//! translation has been told.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectName, PortKey};
use vestibule_model::protocol::{Group, Transport};
use vestibule_operator::claims::{
    ClaimAction, ClaimContent, ClaimRequest, ClaimStore, GatewayPresence, SeenClaim, Time,
    WriteOutcome,
};
use vestibule_operator::translate::ClaimState;

/// How long a name that nobody uses stays with its holder.
pub const GRACE: Duration = Duration::from_mins(1);

/// The Gateway of most tests.
pub fn edge() -> ObjectName {
    ObjectName::new("platform", "edge")
}

/// A hostname of `edge`.
pub fn name(hostname: &str) -> ClaimKey {
    name_on(&edge(), hostname)
}

/// A hostname of a Gateway.
pub fn name_on(gateway: &ObjectName, hostname: &str) -> ClaimKey {
    ClaimKey::names(gateway, &HostPattern::parse(hostname).unwrap())
}

/// A TCP port of `edge`.
pub fn port(number: u16) -> ClaimKey {
    ClaimKey::port(&PortKey {
        gateway: edge(),
        port: NonZeroU16::new(number).unwrap(),
        transport: Transport::Tcp,
    })
}

/// The holder of a port that speaks this.
pub fn speaking(namespace: &str, group: Group) -> Holder {
    Holder::of_port(namespace.into(), group)
}

/// What the object of a name says if a namespace holds it.
pub fn content(hostname: &str, holder: &str) -> ClaimContent {
    ClaimContent {
        key: name(hostname),
        gateway_uid: "uid-1".into(),
        holder: holder.into(),
        since: 900,
        unused_since: None,
        is_taken: false,
    }
}

/// An object as a server has it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it says.
    pub content: ClaimContent,
    /// Its resource version.
    pub version: u64,
}

/// A replica with its store, and the server beside it.
pub struct World {
    /// The store under test.
    pub store: ClaimStore,
    /// The present time of the store.
    pub time: Time,
    /// The objects that the server has.
    pub objects: BTreeMap<ObjectName, Stored>,
    /// The newest resource version of the server.
    pub version: u64,
    /// Gateways that there are: those that are ours with their UIDs.
    pub gateways: BTreeMap<ObjectName, Option<&'static str>>,
    /// The holder of each key, as translation knows it.
    pub told: BTreeMap<ClaimKey, Holder>,
    /// What the watch has not shown yet.
    pub unseen: VecDeque<(ObjectName, Option<Stored>)>,
}

impl World {
    /// A replica that has yet to begin.
    pub fn starting() -> Self {
        Self {
            store: ClaimStore::new(GRACE),
            time: Time {
                seconds: 1_000,
                now: Instant::now(),
            },
            objects: BTreeMap::new(),
            version: 0,
            gateways: BTreeMap::from([(edge(), Some("uid-1"))]),
            told: BTreeMap::new(),
            unseen: VecDeque::new(),
        }
    }

    /// One that leads, in a cluster that knows claims.
    pub fn leading() -> Self {
        let mut world = Self::starting();
        world.store.begin(world.time);
        world.news();
        world.store.lead(true, world.time);
        world
    }

    /// The same cluster, with a replica that starts and leads.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let mut world = Self {
            objects: self.objects.clone(),
            version: self.version,
            gateways: self.gateways.clone(),
            time: self.time,
            ..Self::starting()
        };
        for (name, stored) in self.objects.clone() {
            world.show(&name, Some(&stored));
        }
        world.store.begin(world.time);
        world.news();
        world.store.lead(true, world.time);
        world.news();
        world
    }

    /// Takes the changes of holders that the store has for translation, and records them.
    pub fn news(&mut self) -> BTreeMap<ClaimKey, Option<Holder>> {
        let news = self.store.take_updates();
        for (key, holder) in news.clone() {
            match holder {
                Some(holder) => self.told.insert(key, holder),
                None => self.told.remove(&key),
            };
        }
        news
    }

    /// The namespace that holds a name, as translation knows it.
    pub fn holder(&self, key: &ClaimKey) -> Option<&str> {
        self.told.get(key).map(|holder| &*holder.namespace)
    }

    /// Translation says this of names.
    pub fn say<'a>(
        &mut self,
        states: impl IntoIterator<Item = (&'a ClaimKey, Option<ClaimState>)>,
    ) {
        let states = states.into_iter();
        let states = states.map(|(key, s)| (key.clone(), s)).collect();
        self.store.translated(states, self.time);
    }

    /// Translation wants a name or a port for a holder.
    pub fn want(&mut self, key: &ClaimKey, holder: impl Into<Holder>) {
        self.say([(key, Some(ClaimState::Wanted(holder.into())))]);
    }

    /// A namespace gets a name or a port, and makes use of it.
    pub fn give(&mut self, key: &ClaimKey, holder: impl Into<Holder>) {
        let holder = holder.into();
        self.want(key, holder.clone());
        self.rest();
        assert_eq!(self.told.get(key), Some(&holder));
        self.say([(key, Some(ClaimState::Used))]);
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        self.time.now += time;
        self.time.seconds += i64::try_from(time.as_secs()).unwrap();
        self.store.pass(self.time);
        self.news();
    }

    /// The next request, if one is due by now.
    pub fn begin(&mut self) -> Option<ClaimRequest> {
        let gateways = &self.gateways;
        let state = |gateway: &ObjectName| match gateways.get(gateway) {
            Some(Some(uid)) => GatewayPresence::Ours((*uid).into()),
            Some(None) => GatewayPresence::NotOurs,
            None => GatewayPresence::Gone,
        };
        let request = self.store.next_request(self.time.now, state);
        self.news();
        request
    }

    /// The next request, after whatever pause it needs.
    pub fn next_request(&mut self) -> Option<ClaimRequest> {
        self.pass(Duration::from_millis(100));
        self.begin()
    }

    /// A request comes to the server: what that makes of it.
    pub fn land(&mut self, request: &ClaimRequest) -> WriteOutcome {
        let name = &request.name;
        let there = self.objects.get(name);
        let is = |by: &String| there.is_some_and(|stored| stored.version.to_string() == *by);
        let (content, fence) = match &request.action {
            ClaimAction::Read => return WriteOutcome::Known(self.seen(name)),
            ClaimAction::Create(_) if there.is_some() => return WriteOutcome::Moved,
            ClaimAction::Create(content) => (content, false),
            ClaimAction::Replace { version, .. } | ClaimAction::Delete { version, .. }
                if !is(version) =>
            {
                return WriteOutcome::Moved;
            }
            ClaimAction::Delete { .. } => {
                self.objects.remove(name);
                self.unseen.push_back((name.clone(), None));
                return WriteOutcome::Known(None);
            }
            ClaimAction::Replace { content, fence, .. } => (content, *fence),
        };
        let same = there.is_some_and(|stored| stored.content == *content);
        if !same || fence {
            self.version += 1;
            let stored = Stored {
                content: content.clone(),
                version: self.version,
            };
            self.objects.insert(name.clone(), stored.clone());
            self.unseen.push_back((name.clone(), Some(stored)));
        }
        WriteOutcome::Known(self.seen(name))
    }

    /// What the server would show of an object.
    pub fn seen(&self, name: &ObjectName) -> Option<SeenClaim> {
        seen(name, self.objects.get(name))
    }

    /// A request has ended.
    pub fn done(&mut self, request: &ClaimRequest, outcome: WriteOutcome) {
        self.store.done(&request.name, outcome, self.time);
        self.news();
    }

    /// The watch shows an object.
    pub fn show(&mut self, name: &ObjectName, stored: Option<&Stored>) -> bool {
        let right = self.store.observe(name, seen(name, stored), self.time);
        self.news();
        right
    }

    /// The watch shows the oldest change that it has not shown yet.
    pub fn show_next(&mut self) {
        if let Some((name, stored)) = self.unseen.pop_front() {
            self.show(&name, stored.as_ref());
        }
    }

    /// Makes every request, and the watch shows it. Returns how many writes there were.
    pub fn rest(&mut self) -> usize {
        let mut writes = 0;
        loop {
            // The store notices only when it is asked that a Gateway was created anew, so it is asked once more.
            while let Some(request) = self.next_request().or_else(|| self.next_request()) {
                let outcome = self.land(&request);
                self.done(&request, outcome);
                writes += usize::from(request.action != ClaimAction::Read);
                assert!(writes < 10_000, "it does not come to rest: {request:?}");
            }
            if self.unseen.is_empty() {
                return writes;
            }
            while !self.unseen.is_empty() {
                self.show_next();
            }
        }
    }

    /// Takes a list of what is there, and leads if that is all there is to know.
    pub fn take_over(&mut self) -> bool {
        let complete = self.list();
        if complete {
            self.store.lead(true, self.time);
        }
        self.news();
        complete
    }

    fn list(&mut self) -> bool {
        self.store.list();
        let listed = self.objects.keys().cloned();
        let listed = listed.filter_map(|name| Some((name.clone(), self.seen(&name)?)));
        let complete = self.store.catch_up(listed.collect(), self.time);
        self.news();
        complete
    }

    /// Somebody else makes, changes or deletes an object.
    pub fn by_hand(&mut self, name: &ObjectName, content: Option<ClaimContent>) -> bool {
        self.version += 1;
        let version = self.version;
        let stored = content.map(|content| Stored { content, version });
        match stored.clone() {
            Some(stored) => self.objects.insert(name.clone(), stored),
            None => self.objects.remove(name),
        };
        self.show(name, stored.as_ref())
    }

    /// The namespace that holds a name, by its object.
    pub fn stands(&self, key: &ClaimKey) -> Option<&str> {
        Some(&*self.says(key)?.namespace)
    }

    /// The holder of a name or a port, by its object.
    pub fn says(&self, key: &ClaimKey) -> Option<&Holder> {
        let stored = self.objects.get(&key.object_name())?;
        (stored.content.key == *key).then_some(&stored.content.holder)
    }
}

fn seen(name: &ObjectName, stored: Option<&Stored>) -> Option<SeenClaim> {
    let stored = stored?;
    let request = ClaimRequest {
        name: name.clone(),
        action: ClaimAction::Create(stored.content.clone()),
    };
    request.stored(stored.version)
}
