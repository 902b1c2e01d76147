//! An API server, two replicas, and what names have come to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::HostnameClaim;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Listener, Meta, Object, Protocol};
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_operator::claims::{Book, Outcome, Seen, Time};
use vestibule_operator::translate::{Change, Claims, Settings, Standing, Translator};
use vestibule_stream::{ResourceKey, ResourceKind};

use crate::common::grants::hostname_grant;
use crate::common::*;
use crate::service::Services;
use crate::table::Table;
use crate::{HOSTS, KINDS, Op, PORTS, TENANTS, Wanted};

pub(crate) const GRACE: Duration = Duration::from_mins(1);

/// What a name in service is: a port, what speaks there, and the hostname.
type Name = (u16, &'static str, String);

/// The API server: objects, and who wrote which version.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<ObjectKey, (Object, u64)>,
    version: u64,
}

/// An event of a watch: an object and its version, or that it is gone.
type Shown = (ObjectKey, Option<(Object, u64)>);

pub(crate) struct Replica {
    translator: Translator,
    book: Book,
    waiting: BTreeMap<Kind, VecDeque<Shown>>,
}

pub(crate) struct World {
    pub(crate) server: Server,
    replicas: [Replica; 2],
    leader: usize,
    pub(crate) clock: (i64, Instant),
    pub(crate) admitted: BTreeSet<usize>,
    pub(crate) granted: BTreeSet<usize>,
    pub(crate) own: Option<usize>,
    pub(crate) shared: bool,
    /// Who gets which connections.
    services: Services,
    /// Who serves what, as the proxies saw it last.
    owners: BTreeMap<Name, String>,
    /// Since when an owner has not declared its name, and what takes a name from its owner at once.
    let_go: BTreeMap<Name, i64>,
    taken: BTreeSet<Name>,
}

fn time(clock: (i64, Instant)) -> Time {
    Time {
        seconds: clock.0,
        now: clock.1,
    }
}

fn told() -> Settings {
    Settings {
        claims: Claims::Told,
        // Wildcards of TLSRoutes as well.
        policy: Policy {
            mode: Mode::Off,
            ..Policy::default()
        },
        ..settings()
    }
}

fn a_listener(n: usize, (port, speaks, host, open): Wanted) -> Listener {
    let (name, port, host) = (format!("l{n}"), PORTS[port], HOSTS[host]);
    let mut listener = match speaks {
        0..=3 => listener(&name, port, Protocol::Tls, host, Some(Tls::Passthrough)),
        4 => listener(&name, port, Protocol::Http, host, None),
        5 => listener(&name, port, Protocol::Tcp, "", None),
        _ => {
            // It takes no kind of route, and so the proxies never get it.
            let tls = Some(Tls::Passthrough);
            let mut listener = listener(&name, port, Protocol::Tls, host, tls);
            listener.allowed_kinds = vec![("example.com".into(), "Other".into())];
            listener
        }
    };
    if open {
        listener.allowed_namespaces = NamespaceScope::All;
    }
    listener
}

pub(crate) fn speaks(protocol: &Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "HTTP",
        Protocol::Tcp => "TCP",
        _ => "TLS",
    }
}

fn scope(admitted: &BTreeSet<usize>) -> NamespaceScope {
    let names = admitted.iter().map(|n| TENANTS[*n].to_owned()).collect();
    NamespaceScope::Selector(LabelSelector {
        requirements: vec![Requirement::In("kubernetes.io/metadata.name".into(), names)],
    })
}

fn the_gateway(admitted: &BTreeSet<usize>, own: Option<usize>, tls: bool) -> Object {
    let mut shared = if tls {
        listener("shared", 8443, Protocol::Tls, "", Some(Tls::Passthrough))
    } else {
        listener("shared", 8443, Protocol::Http, "", None)
    };
    shared.allowed_namespaces = NamespaceScope::All;
    let mut listeners = vec![shared];
    listeners.extend(own.map(|host| passthrough("own", HOSTS[host])));
    gateway("one", listeners, scope(admitted))
}

fn claim_object((claim, _): &Seen) -> Object {
    Object::HostnameClaim((**claim).clone())
}

impl Replica {
    fn new(server: &Server, clock: (i64, Instant)) -> Self {
        let mut replica = Self {
            translator: Translator::new(told()),
            book: Book::new(GRACE),
            waiting: BTreeMap::new(),
        };
        for (key, state) in &server.objects {
            replica.take(key, Some(state.clone()), clock);
        }
        replica.book.begin(time(clock));
        replica.settle(clock);
        replica
    }

    fn take(&mut self, key: &ObjectKey, state: Option<(Object, u64)>, clock: (i64, Instant)) {
        if key.kind == Kind::HostnameClaim {
            let seen = state.map(|(object, version)| {
                let Object::HostnameClaim(claim) = object else {
                    panic!("a claim")
                };
                (Arc::new(claim), version.to_string())
            });
            self.book.observe(&key.name, seen, time(clock));
            self.settle(clock);
            return;
        }
        let change = match state {
            Some((object, _)) => Change::Put(object),
            None => Change::Remove(key.clone()),
        };
        let output = self.translator.apply([change]);
        self.book.translated(output.claims, time(clock));
        self.settle(clock);
    }

    /// Translation and the book tell each other until neither has news.
    fn settle(&mut self, clock: (i64, Instant)) {
        for _ in 0..20 {
            let news = self.book.take_news();
            if news.is_empty() {
                return;
            }
            let output = self.translator.claims(news);
            self.book.translated(output.claims, time(clock));
        }
        panic!("translation and the book do not come to an end");
    }

    fn show(&mut self, kind: Kind, clock: (i64, Instant)) {
        while let Some((key, state)) = self.waiting.entry(kind).or_default().pop_front() {
            self.take(&key, state, clock);
        }
    }

    fn show_all(&mut self, clock: (i64, Instant)) {
        for kind in KINDS {
            self.show(kind, clock);
        }
    }

    /// The listeners that its proxies have, and of whom.
    fn serves(&self) -> BTreeMap<Name, String> {
        let mut serves = BTreeMap::new();
        for (key, object) in self.translator.objects() {
            let Object::ListenerSet(set) = &**object else {
                continue;
            };
            for listener in &set.listeners {
                let name = listener.key(&set.parent_key()).to_string();
                let resource = ResourceKey::new(ResourceKind::Listener, name);
                if self.translator.resources().contains_key(&resource) {
                    let old = serves.insert(name_of(listener), key.name.namespace.to_string());
                    assert!(
                        old.is_none_or(|old| old == *key.name.namespace),
                        "one name, two namespaces"
                    );
                }
            }
        }
        serves
    }

    pub(crate) fn table(&self) -> Table {
        Table::read(self.translator.resources())
    }

    pub(crate) fn is_up_to_date(&self) -> bool {
        self.waiting.values().all(VecDeque::is_empty)
    }
}

fn name_of(listener: &Listener) -> Name {
    (
        listener.port.map_or(0, std::num::NonZero::get),
        speaks(&listener.protocol),
        listener.hostname.to_string(),
    )
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = (1_000, Instant::now());
        let mut server = Server::default();
        let admitted: BTreeSet<usize> = (0..TENANTS.len()).collect();
        // Claims are nothing new in this cluster: another release's Gateway has one.
        let another = HostnameClaim {
            name: ObjectName::new("platform", "another.a.0"),
            meta: Meta::default(),
            gateway: "another".into(),
            gateway_uid: "uid".into(),
            namespace: "a".into(),
            entries: Vec::new(),
            findings: Vec::new(),
        };
        let another = Object::HostnameClaim(another);
        for object in [our_class(), the_gateway(&admitted, None, true), another] {
            server.version += 1;
            server
                .objects
                .insert(object.key(), (object, server.version));
        }
        let replicas = std::array::from_fn(|_| Replica::new(&server, clock));
        let mut world = Self {
            server,
            replicas,
            leader: 0,
            clock,
            admitted,
            granted: BTreeSet::new(),
            own: None,
            shared: true,
            services: Services::default(),
            owners: BTreeMap::new(),
            let_go: BTreeMap::new(),
            taken: BTreeSet::new(),
        };
        world.replicas[0].book.lead(true, time(clock));
        world
    }

    fn put(&mut self, key: &ObjectKey, object: Option<Object>) -> u64 {
        self.server.version += 1;
        let version = self.server.version;
        let state = object.map(|object| (object, version));
        match state.clone() {
            Some(state) => self.server.objects.insert(key.clone(), state),
            None => self.server.objects.remove(key),
        };
        for replica in &mut self.replicas {
            let waiting = replica.waiting.entry(key.kind).or_default();
            waiting.push_back((key.clone(), state.clone()));
        }
        version
    }

    fn created(&self, key: &ObjectKey) -> i64 {
        match self.server.objects.get(key) {
            Some((Object::ListenerSet(set), _)) => set.meta.created,
            Some((Object::TlsRoute(route), _)) => route.meta.created,
            _ => self.clock.0,
        }
    }

    pub(crate) fn step(&mut self, op: Op) {
        // Whatever happens takes its time.
        self.clock.0 += 1;
        self.clock.1 += Duration::from_secs(1);
        match op {
            Op::Set(tenant, n, listeners) => {
                let name = ObjectName::new(TENANTS[tenant], format!("set-{n}"));
                let key = ObjectKey {
                    kind: Kind::ListenerSet,
                    name: name.clone(),
                };
                let listeners = listeners.into_iter().enumerate();
                let listeners = listeners.map(|(n, l)| a_listener(n, l)).collect();
                let created = self.created(&key);
                let object = set(&name.namespace, &name.name, created, "one", listeners);
                self.put(&key, Some(object));
            }
            Op::Route(tenant, n, hosts, to) => self.put_route(tenant, n, hosts, to),
            Op::DeleteSet(tenant, n) => {
                let key = ObjectKey::new(Kind::ListenerSet, TENANTS[tenant], format!("set-{n}"));
                self.put(&key, None);
            }
            Op::DeleteRoute(tenant, n) => {
                let key = ObjectKey::new(Kind::TlsRoute, TENANTS[tenant], format!("route-{n}"));
                self.put(&key, None);
            }
            Op::Admit(tenant, admit) => {
                if admit {
                    self.admitted.insert(tenant);
                } else {
                    self.admitted.remove(&tenant);
                }
                self.put_gateway();
            }
            Op::Grant(tenant, there) => {
                let key = ObjectKey::new(Kind::HostnameGrant, "platform", TENANTS[tenant]);
                let grant = hostname_grant(TENANTS[tenant], &[TENANTS[tenant]], &["*"]);
                if there {
                    self.granted.insert(tenant);
                } else {
                    self.granted.remove(&tenant);
                }
                self.put(&key, there.then(|| Object::HostnameGrant(grant)));
            }
            Op::Shared(tls) => {
                self.shared = tls;
                self.put_gateway();
            }
            Op::Own(own) => {
                self.own = own;
                self.put_gateway();
            }
            Op::Show(replica, kind) => self.replicas[replica].show(KINDS[kind], self.clock),
            Op::Write(lives) => self.write(lives),
            Op::Restart(replica) => {
                if replica == self.leader {
                    self.forget_unwritten();
                }
                self.replicas[replica] = Replica::new(&self.server, self.clock);
                if replica == self.leader {
                    self.lead(1 - replica);
                }
            }
            Op::Lead(replica) => self.lead(replica),
            Op::Pass(seconds) => {
                self.clock.0 += i64::try_from(seconds).unwrap();
                self.clock.1 += Duration::from_secs(seconds);
                let replica = &mut self.replicas[self.leader];
                replica.book.pass(time(self.clock));
                replica.settle(self.clock);
            }
            Op::Vandal(n) => {
                let claims = self.server.objects.keys();
                let mut claims = claims.filter(|key| {
                    key.kind == Kind::HostnameClaim && key.name.name.starts_with("one.")
                });
                if let Some(key) = claims.nth(n).cloned() {
                    self.put(&key, None);
                    // Those who know what stood there see it before anybody else is asked.
                    for replica in &mut self.replicas {
                        replica.show_all(self.clock);
                    }
                    self.rest();
                }
            }
            Op::Rest => {
                self.rest();
                self.observe();
                self.check_kept();
            }
        }
        self.observe();
    }

    /// What was in service, and was neither let go nor taken by the Gateway, still is, unless its own
    /// namespace wants to speak something else on the port.
    fn check_kept(&self) {
        let serves = self.replicas[self.leader].serves();
        for (name, owner) in &self.owners {
            if self.let_go.contains_key(name) || self.taken.contains(name) {
                continue;
            }
            let speaks_otherwise = self.sets_of(owner).any(|(_, l)| {
                name_of(l).0 == name.0 && (name_of(l).1 != name.1 || !l.allowed_kinds.is_empty())
            });
            if !speaks_otherwise {
                assert_eq!(
                    serves.get(name),
                    Some(owner),
                    "{name:?} is not served any more"
                );
            }
        }
        self.services.check_kept(self);
    }

    /// Every listener that a tenant declares, with the name of its set.
    pub(crate) fn sets_of(&self, tenant: &str) -> impl Iterator<Item = (&str, &Listener)> {
        let objects = self.server.objects.values();
        let sets = objects.filter_map(move |(object, _)| match object {
            Object::ListenerSet(set) if *set.name.namespace == *tenant => Some(set),
            _ => None,
        });
        sets.flat_map(|set| set.listeners.iter().map(|of| (&*set.name.name, of)))
    }

    /// Whether a namespace may have names, as far as grants go.
    pub(crate) fn may_have(&self, tenant: &str) -> bool {
        let is = |n: &usize| TENANTS[*n] == tenant;
        self.granted.is_empty() || self.granted.iter().any(is)
    }

    /// Whether its sets are let in.
    pub(crate) fn is_admitted(&self, tenant: &str) -> bool {
        self.admitted.iter().any(|n| TENANTS[*n] == tenant)
    }

    pub(crate) fn leading(&self) -> &Replica {
        &self.replicas[self.leader]
    }

    fn put_route(
        &mut self,
        tenant: usize,
        n: usize,
        hosts: Vec<usize>,
        to: Vec<Option<(usize, usize)>>,
    ) {
        let key = ObjectKey::new(Kind::TlsRoute, TENANTS[tenant], format!("route-{n}"));
        let hosts: BTreeSet<&str> = hosts.into_iter().map(|host| HOSTS[host]).collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let to: BTreeSet<_> = to.into_iter().collect();
        let parents = to.into_iter().map(|to| match to {
            None => parent("Gateway", Some("platform"), "one", None),
            Some((of, n)) => {
                let name = format!("set-{n}");
                parent("ListenerSet", Some(TENANTS[of]), &name, None)
            }
        });
        let (created, name) = (self.created(&key), &key.name.name);
        let object = route(
            TENANTS[tenant],
            name,
            created,
            parents.collect(),
            &hosts,
            Vec::new(),
        );
        self.put(&key, Some(object));
    }

    fn put_gateway(&mut self) {
        let object = the_gateway(&self.admitted, self.own, self.shared);
        self.put(&object.key(), Some(object));
    }

    fn lead(&mut self, replica: usize) {
        // Whoever is elected has seen what there is.
        self.replicas[replica].show_all(self.clock);
        let former = std::mem::replace(&mut self.leader, replica);
        if former != replica {
            self.replicas[former].book.lead(false, time(self.clock));
            self.replicas[former].settle(self.clock);
        }
        self.replicas[replica].book.lead(true, time(self.clock));
        self.replicas[replica].settle(self.clock);
    }

    /// The leader goes. What it served without claims at the beginning, and has not written, is known to nobody.
    fn forget_unwritten(&mut self) {
        let mut services = std::mem::take(&mut self.services);
        services.forget_unwritten(self);
        self.services = services;
        let names = self.owners.iter();
        let unwritten =
            names.filter(|((port, use_, host), owner)| !self.is_written(*port, use_, host, owner));
        let unwritten: Vec<Name> = unwritten.map(|(name, _)| name.clone()).collect();
        self.taken.extend(unwritten);
    }

    /// Whether an object says that a tenant holds a name.
    pub(crate) fn is_written(&self, port: u16, use_: &str, host: &str, tenant: &str) -> bool {
        let mut objects = self.server.objects.values();
        objects.any(|(object, _)| match object {
            Object::HostnameClaim(claim) if *claim.namespace == *tenant => {
                claim.entries.iter().any(|entry| {
                    entry.port.get() == port
                        && entry.use_.as_str(entry.transport) == use_
                        && entry.names.to_string() == host
                })
            }
            _ => false,
        })
    }

    fn write(&mut self, lives: bool) {
        let now = self.clock.1 + Duration::from_secs(40);
        let book = &mut self.replicas[self.leader].book;
        let Some(write) = book.next_write(now, |gateway| {
            (*gateway.name == *"one").then(|| "uid".into())
        }) else {
            return;
        };
        let key = ObjectKey {
            kind: Kind::HostnameClaim,
            name: write.name.clone(),
        };
        let present = self.server.objects.get(&key).map(|(_, v)| v.to_string());
        let outcome = if present == write.version {
            let version = self.server.version + 1;
            let seen = write.stored(version);
            let written = self.put(&key, seen.as_ref().map(claim_object));
            assert_eq!(written, version);
            Outcome::Written(seen)
        } else {
            Outcome::Moved
        };
        if lives {
            let replica = &mut self.replicas[self.leader];
            replica.book.done(&write.name, outcome, time(self.clock));
            replica.settle(self.clock);
        } else {
            self.forget_unwritten();
            let leader = self.leader;
            self.replicas[leader] = Replica::new(&self.server, self.clock);
            self.lead(1 - leader);
        }
    }

    /// Everything that is under way comes to its end.
    fn rest(&mut self) {
        for _ in 0..200 {
            for replica in &mut self.replicas {
                replica.show_all(self.clock);
            }
            let before = self.server.version;
            self.clock.0 += 1;
            self.clock.1 += Duration::from_secs(1);
            self.replicas[self.leader].book.pass(time(self.clock));
            self.replicas[self.leader].settle(self.clock);
            self.write(true);
            let waits = self
                .replicas
                .iter()
                .any(|r| r.waiting.values().any(|w| !w.is_empty()));
            if self.server.version == before && !waits {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Whether the owner of a name declares it, and whether that was taken from it.
    fn declares(&self, name: &Name, owner: &str) -> (bool, bool) {
        let mut declared = self.sets_of(owner);
        let declared = declared.any(|(_, l)| name_of(l) == *name && l.allowed_kinds.is_empty());
        let (port, use_, host) = name;
        let own = self.own.map(|host| HOSTS[host]);
        let by_gateway = match port {
            443 => own.is_some_and(|own| *use_ != "TLS" || own == host),
            _ => (*use_ == "TLS") != self.shared || host.is_empty(),
        };
        (
            declared,
            by_gateway || !self.is_admitted(owner) || !self.may_have(owner),
        )
    }

    fn observe(&mut self) {
        for (name, owner) in self.owners.clone() {
            let (declared, taken) = self.declares(&name, &owner);
            if !declared {
                self.let_go.entry(name.clone()).or_insert(self.clock.0);
            }
            if taken {
                self.taken.insert(name);
            }
        }
        let mut services = std::mem::take(&mut self.services);
        services.observe(self);
        self.services = services;
        let serves = self.replicas[self.leader].serves();
        for (name, tenant) in serves {
            if let Some(owner) = self.owners.get(&name)
                && *owner != tenant
            {
                let grace = i64::try_from(GRACE.as_secs()).unwrap();
                let over = self.let_go.get(&name).map(|at| self.clock.0 - at >= grace);
                assert!(
                    self.taken.contains(&name) || over == Some(true),
                    "{name:?} of {owner} is served for {tenant}; let go for: {over:?}"
                );
            }
            let idle = self
                .replicas
                .iter()
                .all(|r| r.waiting.values().all(VecDeque::is_empty));
            if self.owners.get(&name) != Some(&tenant) || idle {
                let (declared, taken) = self.declares(&name, &tenant);
                // A replica that lags may serve what is gone already.
                if declared {
                    self.let_go.remove(&name);
                } else if self.owners.get(&name) != Some(&tenant) {
                    self.let_go.insert(name.clone(), self.clock.0);
                }
                if taken {
                    self.taken.insert(name.clone());
                } else {
                    self.taken.remove(&name);
                }
            }
            self.owners.insert(name, tenant);
        }
    }

    /// At the end everything that is claimed is made use of, and nothing else is.
    pub(crate) fn check_end(&mut self) {
        self.rest();
        for _ in 0..3 {
            self.step(Op::Pass(90));
            self.rest();
            self.observe();
        }
        let replica = &self.replicas[self.leader];
        for (key, standing) in replica.translator.standings() {
            assert_eq!(*standing, Standing::Kept, "{key}");
        }
        let counts = replica.book.counts();
        assert_eq!((counts.pending, counts.grace), (0, 0));
        let mut held = BTreeSet::new();
        for (object, _) in self.server.objects.values() {
            if let Object::HostnameClaim(claim) = object
                && *claim.gateway == *"one"
            {
                assert!(!claim.entries.is_empty());
                for (key, _) in claim.keys() {
                    assert!(held.insert(key.clone()), "{key} twice");
                    assert_eq!(
                        replica.translator.merge().holder(&key),
                        Some(&claim.namespace)
                    );
                }
            }
        }
        assert_eq!(held.len(), counts.held);
        assert_eq!(held.len(), replica.translator.standings().len());
        // The other replica, and one that starts now, would serve the same.
        let serves = |replica: &Replica| (replica.serves(), replica.table());
        let expected = serves(replica);
        assert_eq!(serves(&self.replicas[1 - self.leader]), expected);
        assert_eq!(serves(&Replica::new(&self.server, self.clock)), expected);
    }
}
