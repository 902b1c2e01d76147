//! An API server, two replicas, and what names have come to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, Claimed, HostnameClaim};
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::HostPattern;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::path::PathPrefix;
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::ParentRef;
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_operator::claims::{
    ClaimAction, ClaimRequest, ClaimStore, GatewayPresence, SeenClaim, Time, WriteOutcome,
};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::translate::{Change, ClaimMode, ClaimState, Settings, Translator};
use vestibule_stream::{ResourceKey, ResourceKind};

use crate::history::History;
use crate::ports::{self, PortHistory};
use crate::table::{Shared, Table};
use crate::view::{OWN, View, number};
use crate::{Fate, GRANTS, HOSTS, KINDS, Op, PATH, PORTS, RouteOf, TENANTS, Wanted};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;

pub(crate) const GRACE: Duration = Duration::from_mins(1);

/// Concrete hostnames, inside and outside of the patterns.
pub(crate) const NAMES: [&str; 5] = [
    "x.example.com",
    "y.example.com",
    "a.x.example.com",
    "z.example.com",
    "else.example.org",
];

/// The identity of a listener in service: its port, the protocol that is spoken there, and its hostname.
type ListenerIdentity = (u16, &'static str, String);

/// The API server: objects, and who wrote which version.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<ObjectKey, (Object, u64)>,
    version: u64,
}

/// An event of a watch: an object and its version, or that it is gone.
type Shown = (ObjectKey, Option<(Object, u64)>);

pub(crate) struct Replica {
    control: ControlLoop<ClaimStore>,
    waiting: BTreeMap<Kind, VecDeque<Shown>>,
}

pub(crate) struct World {
    pub(crate) server: Server,
    replicas: [Replica; 2],
    leader: usize,
    pub(crate) clock: (i64, Instant),
    admitted: BTreeSet<usize>,
    /// The tenants whose routes the Gateway's shared listeners take.
    routed: BTreeSet<usize>,
    own: Option<usize>,
    shared: bool,
    /// The holders of names over time.
    history: History,
    /// The holders of the Gateway's port for bytes, where it has one.
    bytes: Option<PortHistory>,
    /// The namespaces whose listeners the leader's proxies had last, unless they are not declared any more, or were
    /// taken.
    serving: BTreeMap<ListenerIdentity, String>,
}

fn time(clock: (i64, Instant)) -> Time {
    Time {
        seconds: clock.0,
        now: clock.1,
    }
}

fn told() -> Settings {
    Settings {
        claims: ClaimMode::Recorded,
        // Wildcards of TLSRoutes as well.
        policy: Policy {
            mode: Mode::Off,
            ..settings().policy
        },
        ..settings()
    }
}

fn a_listener(n: usize, (port, speaks, host, open): Wanted) -> Listener {
    let (name, port, host) = (format!("l{n}"), PORTS[port], HOSTS[host]);
    let mut listener = match speaks {
        0..=2 => listener(&name, port, Protocol::Tls, host, Some(Tls::Passthrough)),
        3 | 4 => listener(&name, port, Protocol::Http, host, None),
        5 => listener(&name, port, Protocol::Tcp, "", None),
        6 => listener(&name, port, Protocol::Udp, "", None),
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

/// What [`speaks`] says of listeners whose ports are none of the others'.
const UDP: &str = "UDP";

fn speaks(protocol: &Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "HTTP",
        Protocol::Tcp => "TCP",
        Protocol::Udp => UDP,
        _ => "TLS",
    }
}

fn scope(admitted: &BTreeSet<usize>) -> NamespaceScope {
    let names = admitted.iter().map(|n| TENANTS[*n].to_owned());
    let names = names.chain([OWN.to_owned()]).collect();
    NamespaceScope::Selector(LabelSelector {
        requirements: vec![Requirement::In("kubernetes.io/metadata.name".into(), names)],
    })
}

fn the_gateway(
    admitted: &BTreeSet<usize>,
    routed: &BTreeSet<usize>,
    own: Option<usize>,
    tls: bool,
    bytes: bool,
) -> Object {
    let shared = if tls {
        listener(
            "shared",
            PORTS[1],
            Protocol::Tls,
            "",
            Some(Tls::Passthrough),
        )
    } else {
        listener("shared", PORTS[1], Protocol::Http, "", None)
    };
    let plain = listener("plain", PORTS[2], Protocol::Http, "", None);
    let mut listeners = vec![shared, plain];
    if bytes {
        listeners.push(listener("bytes", ports::PORT, Protocol::Tcp, "", None));
    }
    for listener in &mut listeners {
        listener.allowed_namespaces = scope(routed);
    }
    listeners.extend(own.map(|host| passthrough("own", HOSTS[host])));
    gateway("one", listeners, scope(admitted))
}

fn claim_of(object: &Object) -> Arc<HostnameClaim> {
    let Object::HostnameClaim(claim) = object else {
        panic!("a claim")
    };
    Arc::clone(claim)
}

fn claim_object((claim, _): &SeenClaim) -> Object {
    Object::HostnameClaim(Arc::clone(claim))
}

impl Replica {
    fn new(server: &Server, clock: (i64, Instant)) -> Self {
        let mut replica = Self {
            control: ControlLoop::new(
                Translator::new(told()),
                ClaimStore::new(GRACE),
                CertificateRegistry::new().0,
            ),
            waiting: BTreeMap::new(),
        };
        for (key, state) in &server.objects {
            replica.take(key, Some(state.clone()), clock);
        }
        replica.control.claims.begin(time(clock));
        replica.settle(clock);
        replica
    }

    fn take(&mut self, key: &ObjectKey, state: Option<(Object, u64)>, clock: (i64, Instant)) {
        if key.kind == Kind::HostnameClaim {
            let seen = state.map(|(object, version)| (claim_of(&object), version.to_string()));
            self.control.claims.observe(&key.name, seen, time(clock));
            self.settle(clock);
            return;
        }
        let change = match state {
            Some((object, _)) => Change::Put(object),
            None => Change::Remove(key.clone()),
        };
        self.control.add([change]);
        self.settle(clock);
    }

    /// Runs the control loop, which has to come to an end.
    fn settle(&mut self, clock: (i64, Instant)) {
        for _ in 0..20 {
            if self.control.step(time(clock)).is_none() {
                return;
            }
        }
        panic!("translation and the store do not come to an end");
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

    /// The sets' listeners that its proxies have, and of whom.
    fn serves(&self) -> BTreeMap<ListenerIdentity, String> {
        let mut serves = BTreeMap::new();
        for (key, object) in self.control.translator.objects() {
            let Object::ListenerSet(set) = &**object else {
                continue;
            };
            for listener in &set.listeners {
                let name = listener.key(&set.parent_key()).to_string();
                let resource = ResourceKey::new(ResourceKind::Listener, name);
                if self.control.translator.resources().contains_key(&resource) {
                    serves.insert(identity_of(listener), key.name.namespace.to_string());
                }
            }
        }
        serves
    }

    pub(crate) fn table(&self) -> Table {
        Table::read(self.control.translator.resources())
    }

    pub(crate) fn is_up_to_date(&self) -> bool {
        self.waiting.values().all(VecDeque::is_empty)
    }

    /// The holder of each name, as its translation knows it.
    pub(crate) fn told(&self) -> BTreeMap<String, String> {
        let gateway = ObjectName::new(OWN, "one");
        let names = self.control.translator.merge().names(&gateway).into_iter();
        let names = names.flat_map(|of| {
            of.known()
                .filter_map(|names| Some((names, of.recorded(names)?)))
        });
        names
            .map(|(names, holder)| (names.to_string(), holder.to_string()))
            .collect()
    }

    fn view(&self) -> View<'_> {
        let objects = self.control.translator.objects();
        View::of(objects.map(|(key, object)| (key, &**object)))
    }

    /// Checks that each published name belongs to one namespace, the one that the store named.
    fn check(&self) {
        let table = self.table();
        table.check(&NAMES);
        let told = self.told();
        for (names, owner) in table.owners() {
            if owner != OWN {
                assert_eq!(told.get(names), Some(owner), "{names:?}");
            }
        }
        self.check_shared(&table, &told);
        if let Some(tenant) = table.bytes_to(ports::LISTENER).filter(|of| *of != OWN) {
            assert_eq!(self.bytes_holder().as_deref(), Some(tenant));
        }
    }

    /// The holder of the Gateway's port for bytes, as its translation knows it.
    pub(crate) fn bytes_holder(&self) -> Option<String> {
        let holder = self.control.translator.merge().holder(&ports::claim())?;
        Some(holder.namespace.to_string())
    }

    /// Checks that a shared name is served by the namespaces with which grants share it, and only the part that they
    /// share. The holder of a name does not count as one of them.
    fn check_shared(&self, table: &Table, told: &BTreeMap<String, String>) {
        let view = self.view();
        let shared = table.shared();
        for of in &shared {
            let (tenant, name) = (&*of.tenant, &*of.hostname);
            let whole = view.shares(tenant, name);
            let paths = view.shared_paths(tenant, name);
            assert!(whole || !paths.is_empty(), "nothing shares {of:?}");
            let paths = if whole { Vec::new() } else { paths };
            assert_eq!(of.paths, paths, "{of:?}");
        }
        for tenant in TENANTS {
            for (hostname, route, is_inside) in view.http_names(tenant) {
                let whole = view.shares(tenant, &hostname);
                let paths = view.shared_paths(tenant, &hostname);
                let has_part = !paths.is_empty() && is_inside;
                let expected = Shared {
                    paths: if whole { Vec::new() } else { paths },
                    tenant: tenant.to_owned(),
                    hostname,
                    route,
                };
                let holds = told.get(&expected.hostname).is_some_and(|of| of == tenant);
                let is_shared = shared.contains(&expected);
                if !holds {
                    assert_eq!(is_shared, whole || has_part, "{expected:?}");
                }
            }
        }
    }
}

/// A grant that shares a name with a tenant, or only a path of it.
fn sharing(name: &str, tenant: &'static str, host: &str, part: bool) -> HostnameGrant {
    let mut grant = hostname_grant(name, &[tenant], &[]);
    let HostPattern::Exact(host) = pattern(host) else {
        panic!("only names can be shared")
    };
    if part {
        let path = PathPrefix::parse(PATH).expect("a path");
        grant.shared_paths.insert(host, BTreeSet::from([path]));
    } else {
        grant.shared.insert(host);
    }
    grant
}

fn identity_of(listener: &Listener) -> ListenerIdentity {
    (
        number(listener),
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
        let key = ClaimKey::names(&ObjectName::new(OWN, "another"), &HostPattern::Any);
        let another = HostnameClaim {
            name: key.object_name(),
            meta: Meta::default(),
            gateway: "another".into(),
            gateway_uid: "uid".into(),
            key: Some(key),
            holder: "a".into(),
            since: 0,
            unused_since: None,
            take_from: None,
            findings: Vec::new(),
        };
        let another = Object::HostnameClaim(Arc::new(another));
        let gateway = the_gateway(&admitted, &admitted, None, true, false);
        for object in [our_class(), gateway, another] {
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
            routed: admitted.clone(),
            admitted,
            own: None,
            shared: true,
            history: History::default(),
            bytes: None,
            serving: BTreeMap::new(),
        };
        world.replicas[0].control.claims.lead(true, time(clock));
        world
    }

    /// The Gateway has a listener for bytes as well, which takes the routes that the shared ones take.
    pub(crate) fn with_bytes() -> Self {
        let mut world = Self::new();
        world.bytes = Some(PortHistory::default());
        world.put_gateway();
        world.rest();
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
            Some((Object::HttpRoute(route), _)) => route.meta.created,
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
            Op::Route(of, hosts, to) => self.put_route(of, hosts, to),
            Op::DeleteSet(tenant, n) => {
                let key = ObjectKey::new(Kind::ListenerSet, TENANTS[tenant], format!("set-{n}"));
                self.put(&key, None);
            }
            Op::DeleteRoute(of) => {
                self.put(&route_key(of), None);
            }
            Op::Admit(tenant, admit) => {
                if admit {
                    self.admitted.insert(tenant);
                } else {
                    self.admitted.remove(&tenant);
                }
                self.put_gateway();
            }
            Op::AdmitRoutes(tenant, admit) => {
                if admit {
                    self.routed.insert(tenant);
                } else {
                    self.routed.remove(&tenant);
                }
                self.put_gateway();
            }
            Op::Grant(tenant, of) => {
                let tenant = TENANTS[tenant];
                let key = ObjectKey::new(Kind::HostnameGrant, OWN, tenant);
                let grant = |of| Arc::new(hostname_grant(tenant, &[tenant], &[GRANTS[of]]));
                self.put(&key, of.map(grant).map(Object::HostnameGrant));
            }
            Op::Share(tenant, of) => self.put_share(TENANTS[tenant], of),
            Op::OwnRoute(host) => {
                let key = ObjectKey::new(Kind::HttpRoute, OWN, "docs");
                let route = host.map(|host| {
                    let of = (OWN, "docs", self.created(&key));
                    http_route(of, vec![on_gateway()], &[HOSTS[host]], &[Rule::Plain], &[])
                });
                self.put(&key, route);
            }
            Op::Shared(tls) => {
                self.shared = tls;
                self.put_gateway();
            }
            Op::Own(own) => {
                self.own = own;
                self.put_gateway();
            }
            Op::Bytes(tenant, age) => {
                let (key, route) = ports::route(tenant, age);
                self.put(&key, route);
            }
            Op::Show(replica, kind) => self.replicas[replica].show(KINDS[kind], self.clock),
            Op::Write(fate) => {
                self.write(fate);
            }
            Op::Restart(replica) => self.restart(replica),
            Op::Lead(replica) => self.lead(replica),
            Op::Pass(seconds) => {
                self.clock.0 += i64::try_from(seconds).unwrap();
                self.clock.1 += Duration::from_secs(seconds);
                self.pass();
            }
            Op::TakeAway(n) => {
                let claim = self.claims().nth(n);
                if let Some((key, mut claim)) = claim {
                    Arc::make_mut(&mut claim).take_from = Some(claim.holder.namespace.clone());
                    self.put(&key, Some(Object::HostnameClaim(claim)));
                }
            }
            Op::Vandal(n) => {
                let claim = self.claims().nth(n);
                if let Some((key, _)) = claim {
                    self.put(&key, None);
                    // Those who know what stood there see it before anybody else is asked.
                    for replica in &mut self.replicas {
                        replica.show_all(self.clock);
                    }
                    self.write_all(|_| {});
                }
            }
            Op::Rest => {
                self.rest();
                self.check_kept();
            }
        }
        self.observe();
    }

    /// Has a grant share a name, or a part of it, with a tenant; or none.
    fn put_share(&mut self, tenant: &'static str, of: Option<(usize, bool)>) {
        let name = format!("share-{tenant}");
        let key = ObjectKey::new(Kind::HostnameGrant, OWN, &*name);
        let grant = of.map(|(host, part)| sharing(&name, tenant, HOSTS[host], part));
        let grant = grant.map(Arc::new);
        self.put(&key, grant.map(Object::HostnameGrant));
    }

    /// The claims to what the Gateway has.
    fn claims(&self) -> impl Iterator<Item = (ObjectKey, Arc<HostnameClaim>)> {
        let objects = self.server.objects.iter();
        objects.filter_map(|(key, (object, _))| match object {
            Object::HostnameClaim(claim) if *claim.gateway == *"one" => {
                Some((key.clone(), claim.clone()))
            }
            _ => None,
        })
    }

    /// Whether an admin takes names from a namespace.
    pub(crate) fn is_taken(&self, names: &str, holder: &str) -> bool {
        self.claims().any(|(_, claim)| {
            let from = claim.taken_from().map(|from| &**from);
            let about = claim.held_key().map(|key| &key.of);
            let is_about = matches!(about, Some(Claimed::Names(of)) if of.to_string() == *names);
            from == Some(holder) && is_about
        })
    }

    /// Checks that a listener in service stays in service if its name was neither let go nor taken, unless its own
    /// namespace wants to speak something else on the port.
    fn check_kept(&self) {
        self.history.check_kept(self);
        if let Some(bytes) = &self.bytes {
            bytes.check_kept(self);
        }
        let serves = self.leading().serves();
        let view = self.leading().view();
        for (identity, tenant) in &self.serving {
            let speaks_otherwise = view.declared(tenant).any(|(_, l)| {
                number(l) == identity.0
                    && (l.protocol == Protocol::Udp) == (identity.1 == UDP)
                    && (speaks(&l.protocol) != identity.1 || !l.allowed_kinds.is_empty())
            });
            if !speaks_otherwise {
                assert_eq!(
                    serves.get(identity),
                    Some(tenant),
                    "{identity:?} is not served any more"
                );
            }
        }
    }

    pub(crate) fn leading(&self) -> &Replica {
        &self.replicas[self.leader]
    }

    /// What there is, as the API server has it and as the leader knows it.
    pub(crate) fn views(&self) -> [View<'_>; 2] {
        let objects = self.server.objects.iter();
        let there = View::of(objects.map(|(key, (object, _))| (key, object)));
        [there, self.leading().view()]
    }

    fn put_route(&mut self, of: RouteOf, hosts: Vec<usize>, to: Vec<Option<(usize, usize)>>) {
        let key = route_key(of);
        let hosts: BTreeSet<&str> = hosts.into_iter().map(|host| HOSTS[host]).collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let to: BTreeSet<_> = to.into_iter().collect();
        let parents = to.into_iter().map(|to| match to {
            None => on_gateway(),
            Some((of, n)) => {
                let name = format!("set-{n}");
                parent("ListenerSet", Some(TENANTS[of]), &name, None)
            }
        });
        let (created, parents) = (self.created(&key), parents.collect());
        let (tenant, name) = (&*key.name.namespace, &*key.name.name);
        let object = if of.2 {
            // One of them stays inside of what may be shared of a name.
            let rule = if of.1 == 1 {
                Rule::Filtered
            } else {
                Rule::Plain
            };
            http_route((tenant, name, created), parents, &hosts, &[rule], &[])
        } else {
            route(tenant, name, created, parents, &hosts, Vec::new())
        };
        self.put(&key, Some(object));
    }

    fn put_gateway(&mut self) {
        let bytes = self.bytes.is_some();
        let object = the_gateway(&self.admitted, &self.routed, self.own, self.shared, bytes);
        self.put(&object.key(), Some(object));
    }

    fn lead(&mut self, replica: usize) {
        // Whoever is elected has seen what there is.
        self.replicas[replica].show_all(self.clock);
        let former = self.leader;
        if former != replica {
            self.forget_unwritten();
            self.leader = replica;
            self.replicas[former]
                .control
                .claims
                .lead(false, time(self.clock));
            self.replicas[former].settle(self.clock);
        }
        self.replicas[replica]
            .control
            .claims
            .lead(true, time(self.clock));
        self.replicas[replica].settle(self.clock);
        let mut history = std::mem::take(&mut self.history);
        history.led(self);
        self.history = history;
    }

    /// The leader goes. What it served without claims at the beginning, and has not written, is known to nobody.
    fn forget_unwritten(&mut self) {
        let mut serving = std::mem::take(&mut self.serving);
        serving.retain(|(port, _, host), tenant| {
            let holds = |of: &Claimed, holder: &str| match of {
                Claimed::Names(names) => holder == tenant && names.to_string() == *host,
                Claimed::Port(..) => false,
            };
            let is_port =
                |of: &Claimed, _: &str| matches!(of, Claimed::Port(at, _) if at.get() == *port);
            let is_own = self.views()[0].own_on(*port).next().is_some();
            self.is_written(holds) && (is_own || self.is_written(is_port))
        });
        self.serving = serving;
    }

    /// Whether an object says so.
    fn is_written(&self, says: impl Fn(&Claimed, &str) -> bool) -> bool {
        let mut objects = self.server.objects.values();
        objects.any(|(object, _)| match object {
            Object::HostnameClaim(claim) if *claim.gateway == *"one" => claim
                .held_key()
                .is_some_and(|key| says(&key.of, &claim.holder.namespace)),
            _ => false,
        })
    }

    /// The leader makes a request, if one is due.
    fn write(&mut self, fate: Fate) -> bool {
        let now = self.clock.1 + Duration::from_secs(40);
        let store = &mut self.replicas[self.leader].control.claims;
        let Some(request) = store.next_request(now, |gateway| match &*gateway.name {
            "one" => GatewayPresence::Ours("uid".into()),
            _ => GatewayPresence::NotOurs,
        }) else {
            return false;
        };
        let key = ObjectKey {
            kind: Kind::HostnameClaim,
            name: request.name.clone(),
        };
        let outcome = match fate {
            Fate::Unanswered(false) => WriteOutcome::Unknown,
            Fate::Unanswered(true) => {
                self.land(&key, &request);
                WriteOutcome::Unknown
            }
            Fate::Known | Fate::Fatal => self.land(&key, &request),
        };
        if fate == Fate::Fatal {
            self.restart(self.leader);
            return true;
        }
        let replica = &mut self.replicas[self.leader];
        replica
            .control
            .claims
            .done(&request.name, outcome, time(self.clock));
        replica.settle(self.clock);
        true
    }

    fn restart(&mut self, replica: usize) {
        if replica != self.leader {
            self.replicas[replica] = Replica::new(&self.server, self.clock);
            return;
        }
        self.lead(1 - replica);
        self.replicas[replica] = Replica::new(&self.server, self.clock);
    }

    fn land(&mut self, key: &ObjectKey, request: &ClaimRequest) -> WriteOutcome {
        let there = self.server.objects.get(key);
        let present = there.map(|(_, version)| version.to_string());
        let by = match &request.action {
            ClaimAction::Read => {
                let seen = there.map(|(object, version)| (claim_of(object), version.to_string()));
                return WriteOutcome::Known(seen);
            }
            ClaimAction::Create(_) => None,
            ClaimAction::Replace { version, .. } | ClaimAction::Delete { version, .. } => {
                Some(version)
            }
        };
        if present.as_ref() != by {
            return WriteOutcome::Moved;
        }
        let version = self.server.version + 1;
        let seen = request.stored(version);
        let written = self.put(key, seen.as_ref().map(claim_object));
        assert_eq!(written, version);
        WriteOutcome::Known(seen)
    }

    fn pass(&mut self) {
        for replica in &mut self.replicas {
            replica.control.claims.pass(time(self.clock));
            replica.settle(self.clock);
        }
    }

    /// Everything that is under way comes to its end.
    fn rest(&mut self) {
        self.write_all(Self::observe);
    }

    fn write_all(&mut self, observe: impl Fn(&mut Self)) {
        for _ in 0..200 {
            for replica in &mut self.replicas {
                replica.show_all(self.clock);
            }
            observe(self);
            self.clock.0 += 1;
            self.clock.1 += Duration::from_secs(1);
            self.pass();
            let writes = self.write(Fate::Known);
            let shown = self.replicas.iter().all(Replica::is_up_to_date);
            if !writes && shown {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn observe(&mut self) {
        for replica in &self.replicas {
            replica.check();
        }
        let mut history = std::mem::take(&mut self.history);
        history.observe(self);
        self.history = history;
        if let Some(mut bytes) = self.bytes.take() {
            bytes.observe(self);
            self.bytes = Some(bytes);
        }
        let mut serving = std::mem::take(&mut self.serving);
        let views = self.views();
        let has = |identity: &ListenerIdentity, tenant: &str| {
            // Where the Gateway has listeners, nobody holds the port. When they go it is the first one's by age.
            let own = views.each_ref().map(|view| view.own_on(identity.0).count());
            (own[0] == own[1] || identity.1 == UDP)
                && views.iter().all(|view| has(view, identity, tenant))
                && !self.is_taken(&identity.2, tenant)
        };
        serving.retain(|identity, tenant| has(identity, tenant));
        for (identity, tenant) in self.leading().serves() {
            if has(&identity, &tenant) {
                serving.insert(identity, tenant);
            }
        }
        self.serving = serving;
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
        for (key, state) in replica.control.translator.claim_states() {
            if *key.gateway.name == *"another" {
                continue;
            }
            assert_eq!(*state, ClaimState::Used, "{key}");
        }
        let counts = replica.control.claims.counts();
        assert_eq!((counts.pending, counts.grace), (0, 0));
        let mut held = BTreeSet::new();
        for (object, _) in self.server.objects.values() {
            if let Object::HostnameClaim(claim) = object
                && *claim.gateway == *"one"
            {
                let key = claim.held_key().expect("one that counts");
                held.insert(key.clone());
                assert_eq!(
                    replica.control.translator.merge().holder(key),
                    Some(claim.holder.clone())
                );
                assert_eq!(claim.unused_since, None);
            }
        }
        // The other release's is left alone.
        assert_eq!(held.len() + 1, counts.held);
        assert_eq!(held.len(), replica.control.translator.claim_states().len());
        // The other replica, and one that starts now, would serve the same.
        let serves = |replica: &Replica| (replica.serves(), replica.table());
        let expected = serves(replica);
        assert_eq!(serves(&self.replicas[1 - self.leader]), expected);
        assert_eq!(serves(&Replica::new(&self.server, self.clock)), expected);
    }
}

fn route_key((tenant, n, http): RouteOf) -> ObjectKey {
    let kind = if http {
        Kind::HttpRoute
    } else {
        Kind::TlsRoute
    };
    ObjectKey::new(kind, TENANTS[tenant], format!("route-{n}"))
}

fn on_gateway() -> ParentRef {
    parent("Gateway", Some(OWN), "one", None)
}

/// Whether a tenant still declares what is in service, and nothing took it.
fn has(view: &View<'_>, identity: &ListenerIdentity, tenant: &str) -> bool {
    let declared = view
        .declared(tenant)
        .any(|(_, l)| identity_of(l) == *identity && l.allowed_kinds.is_empty());
    let (port, group, host) = identity;
    // No listener of the Gateway's own is on UDP.
    let by_gateway = *group != UDP
        && view
            .own_on(*port)
            .any(|own| speaks(&own.protocol) != *group || own.hostname.to_string() == *host);
    declared && !by_gateway && !view.takes(tenant, host)
}
