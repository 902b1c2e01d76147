//! No hijack, for random histories: two replicas, of which one leads, watch one API server that shows each of
//! them its kinds in any order; objects come, change and go, replicas restart and hand over, grants are
//! revoked, the Gateway takes names itself. A name in service changes its owner only if its owner let go of it
//! and the grace is over, or was revoked, or the Gateway took it.

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use prost::Message as _;
use vestibule_model::claim::HostnameClaim;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Listener, Meta, Object, Protocol};
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_operator::claims::{Book, Outcome, Seen, Time};
use vestibule_operator::translate::{Change, Claims, Settings, Standing, Translator};
use vestibule_stream::proto::resource::Resource as Body;
use vestibule_stream::{ResourceKey, ResourceKind, proto};

const TENANTS: [&str; 3] = ["a", "b", "c"];
const HOSTS: [&str; 4] = ["x.example.com", "y.example.com", "*.example.com", ""];
const GRACE: Duration = Duration::from_mins(1);

/// What a name in service is: a port, what speaks there, and the hostname.
type Name = (u16, &'static str, String);

#[derive(Debug, Clone)]
enum Op {
    /// A tenant's set gets these listeners; it is created if it is not there.
    Set(usize, usize, Vec<(usize, usize)>),
    DeleteSet(usize, usize),
    /// A tenant's route on the Gateway's own listener gets these hostnames.
    Route(usize, usize, Vec<usize>),
    DeleteRoute(usize, usize),
    /// Whether a tenant's sets are let in.
    Admit(usize, bool),
    /// The Gateway has a listener of its own for a hostname, or none.
    Own(Option<usize>),
    /// A replica is shown what waits of a kind.
    Show(usize, usize),
    /// The leader makes a write; whether it lives to see what came of it.
    Write(bool),
    Restart(usize),
    Lead(usize),
    Pass(u64),
    /// Somebody deletes a claim object.
    Vandal(usize),
    Rest,
}

const KINDS: [Kind; 4] = [
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::TlsRoute,
    Kind::HostnameClaim,
];

fn an_op() -> impl Strategy<Value = Op> {
    let listeners = prop::collection::vec((0..4_usize, 0..HOSTS.len()), 0..3);
    let hosts = prop::collection::vec(0..2_usize, 1..3);
    prop_oneof![
        8 => (0..3_usize, 0..2_usize, listeners).prop_map(|(t, s, l)| Op::Set(t, s, l)),
        3 => (0..3_usize, 0..2_usize).prop_map(|(t, s)| Op::DeleteSet(t, s)),
        4 => (0..3_usize, 0..2_usize, hosts).prop_map(|(t, r, h)| Op::Route(t, r, h)),
        2 => (0..3_usize, 0..2_usize).prop_map(|(t, r)| Op::DeleteRoute(t, r)),
        1 => (0..3_usize, any::<bool>()).prop_map(|(t, b)| Op::Admit(t, b)),
        1 => prop::option::of(0..HOSTS.len()).prop_map(Op::Own),
        16 => (0..2_usize, 0..KINDS.len()).prop_map(|(r, k)| Op::Show(r, k)),
        10 => any::<bool>().prop_map(Op::Write),
        1 => (0..2_usize).prop_map(Op::Restart),
        2 => (0..2_usize).prop_map(Op::Lead),
        4 => (1..90_u64).prop_map(Op::Pass),
        1 => (0..8_usize).prop_map(Op::Vandal),
        3 => Just(Op::Rest),
    ]
}

/// The API server: objects, and who wrote which version.
#[derive(Default)]
struct Server {
    objects: BTreeMap<ObjectKey, (Object, u64)>,
    version: u64,
}

/// An event of a watch: an object and its version, or that it is gone.
type Shown = (ObjectKey, Option<(Object, u64)>);

struct Replica {
    translator: Translator,
    book: Book,
    waiting: BTreeMap<Kind, VecDeque<Shown>>,
}

struct World {
    server: Server,
    replicas: [Replica; 2],
    leader: usize,
    clock: (i64, Instant),
    admitted: BTreeSet<usize>,
    own: Option<usize>,
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
        ..settings()
    }
}

fn a_listener(n: usize, (speaks, host): (usize, usize)) -> Listener {
    let (name, host) = (format!("l{n}"), HOSTS[host]);
    match speaks {
        0 | 1 => listener(&name, 443, Protocol::Tls, host, Some(Tls::Passthrough)),
        2 => listener(&name, 443, Protocol::Http, host, None),
        _ => listener(&name, 443, Protocol::Tcp, "", None),
    }
}

fn speaks(protocol: &Protocol) -> &'static str {
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

fn the_gateway(admitted: &BTreeSet<usize>, own: Option<usize>) -> Object {
    let mut shared = listener("shared", 8443, Protocol::Tls, "", Some(Tls::Passthrough));
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

    /// What its proxies would serve, and for whom.
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
                    let name = (
                        443,
                        speaks(&listener.protocol),
                        listener.hostname.to_string(),
                    );
                    let old = serves.insert(name, key.name.namespace.to_string());
                    assert!(
                        old.is_none_or(|old| old == *key.name.namespace),
                        "one name, two namespaces"
                    );
                }
            }
        }
        for (key, encoded) in self.translator.resources() {
            if key.kind() != ResourceKind::TlsRoute {
                continue;
            }
            let resource = proto::Resource::decode(encoded.upsert().resource.as_ref());
            let Some(Body::TlsRoute(route)) = resource.expect("a resource").resource else {
                panic!("a TLSRoute")
            };
            for hostname in route.attachments.iter().flat_map(|a| &a.hostnames) {
                let name = (8443, "route", hostname.rank.clone());
                let old = serves.insert(name, route.tenant.clone());
                assert!(
                    old.is_none_or(|old| old == route.tenant),
                    "one name, two namespaces"
                );
            }
        }
        serves
    }
}

impl World {
    fn new() -> Self {
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
        for object in [our_class(), the_gateway(&admitted, None), another] {
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
            own: None,
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

    fn step(&mut self, op: Op) {
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
            Op::Route(tenant, n, hosts) => {
                let key = ObjectKey::new(Kind::TlsRoute, TENANTS[tenant], format!("route-{n}"));
                let hosts: BTreeSet<&str> = hosts.into_iter().map(|host| HOSTS[host]).collect();
                let hosts: Vec<&str> = hosts.into_iter().collect();
                let shared = parent("Gateway", Some("platform"), "one", Some("shared"));
                let created = self.created(&key);
                let object = route(
                    TENANTS[tenant],
                    &key.name.name,
                    created,
                    vec![shared],
                    &hosts,
                    Vec::new(),
                );
                self.put(&key, Some(object));
            }
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
            Op::Own(own) => {
                self.own = own;
                self.put_gateway();
            }
            Op::Show(replica, kind) => self.replicas[replica].show(KINDS[kind], self.clock),
            Op::Write(lives) => self.write(lives),
            Op::Restart(replica) => {
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
            let speaks_otherwise = self
                .server
                .objects
                .values()
                .any(|(object, _)| match object {
                    Object::ListenerSet(set) => {
                        *set.name.namespace == **owner
                            && set.listeners.iter().any(|l| speaks(&l.protocol) != name.1)
                    }
                    _ => false,
                });
            if name.1 == "route" || !speaks_otherwise {
                assert_eq!(
                    serves.get(name),
                    Some(owner),
                    "{name:?} is not served any more"
                );
            }
        }
    }

    fn put_gateway(&mut self) {
        let object = the_gateway(&self.admitted, self.own);
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
            Outcome::Failed
        };
        if lives {
            let replica = &mut self.replicas[self.leader];
            replica.book.done(&write.name, outcome, time(self.clock));
            replica.settle(self.clock);
        } else {
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

    /// Whether the owner of a name declares it, and may have it.
    fn declares(&self, (port, use_, host): &Name, owner: &str) -> (bool, bool) {
        let declared = self
            .server
            .objects
            .values()
            .any(|(object, _)| match object {
                Object::ListenerSet(set) if *port == 443 => {
                    *set.name.namespace == *owner
                        && set.listeners.iter().any(|l| {
                            speaks(&l.protocol) == *use_ && l.hostname.to_string() == *host
                        })
                }
                Object::TlsRoute(route) if *port == 8443 => {
                    *route.name.namespace == *owner
                        && route.hostnames.iter().any(|(_, h)| h.to_string() == *host)
                }
                _ => false,
            });
        let tenant = TENANTS.iter().position(|name| *name == owner).unwrap();
        let own = self.own.map(|host| HOSTS[host]);
        let taken = *port == 443
            && (!self.admitted.contains(&tenant)
                || own.is_some_and(|own| *use_ != "TLS" || own == host));
        (declared, taken)
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
    fn check_end(&mut self) {
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
        let serves = replica.serves();
        assert_eq!(self.replicas[1 - self.leader].serves(), serves);
        assert_eq!(Replica::new(&self.server, self.clock).serves(), serves);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn a_name_in_service_is_not_taken(ops in prop::collection::vec(an_op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.step(op);
        }
        world.check_end();
    }
}
