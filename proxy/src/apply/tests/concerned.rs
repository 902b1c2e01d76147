//! Whatever the edits are: whoever may lose a tunnel by one is told. A full recheck of all tunnels says who does.

use std::cell::RefCell;
use std::sync::LazyLock;

use futures::FutureExt;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vestibule_test_support::properties::keep_failures_with_cases;

use super::*;
use crate::concerned::{Inbox, TenantKey};
use crate::quota::TenantQuota;
use crate::table::{Attachments, RouteId, RouteKind, SelectedBy, refuses_all};

/// The last one is that of the Gateways.
const TENANTS: [&str; 3] = ["team-0", "team-1", "infra"];
const GATEWAYS: [&str; 2] = ["infra/edge", "infra/other"];
/// They lie within each other, so that listeners and owners take names from each other.
const HOSTS: [&str; 7] = [
    "",
    "*.com",
    "*.a.com",
    "*.b.a.com",
    "x.a.com",
    "x.b.a.com",
    "y.b.a.com",
];
const NAMES: [&str; 7] = [
    "",
    "x.a.com",
    "z.a.com",
    "x.b.a.com",
    "y.b.a.com",
    "z.b.a.com",
    "q.com",
];
const PATHS: [&str; 2] = ["/", "/part/x"];
const BUNDLE: &str = "ConfigMap/infra/clients";

/// The kinds of listeners, and the first port of each. Two kinds can share a port only if they have the same layer.
const KINDS: [(&str, u16); 8] = [
    ("Passthrough", 1),
    ("Terminate", 1),
    ("Validated", 1),
    ("Https", 1),
    ("ValidatedHttps", 1),
    ("Http", 3),
    ("Tcp", 5),
    ("Udp", 5),
];
const ROUTE_KINDS: [RouteKind; 5] = [
    RouteKind::Of(Connections::Tls),
    RouteKind::Http,
    RouteKind::Grpc,
    RouteKind::Of(Connections::Tcp),
    RouteKind::Of(Connections::Udp),
];

static BUNDLES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    ["one.example.com", "two.example.com"].map(|name| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        made.cert.der().to_vec()
    })
});

#[derive(Debug, Clone)]
struct At {
    tenant: usize,
    number: usize,
    host: usize,
    shared: bool,
    part: bool,
}

#[derive(Debug, Clone)]
enum Edit {
    Listener {
        tenant: usize,
        number: usize,
        kind: usize,
        second: bool,
        other: bool,
        host: usize,
    },
    Route {
        kind: usize,
        tenant: usize,
        number: usize,
        created: i64,
        rules: usize,
        at: Vec<At>,
    },
    Owner {
        other: bool,
        host: usize,
        tenant: usize,
    },
    Bundle(usize),
    DropListener {
        tenant: usize,
        number: usize,
    },
    DropRoute {
        kind: usize,
        tenant: usize,
        number: usize,
    },
    DropOwner {
        other: bool,
        host: usize,
    },
    DropBundle,
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn edit() -> impl Strategy<Value = Edit> {
    let (tenants, hosts) = (TENANTS.len(), HOSTS.len());
    let at = (0..tenants, 0..2_usize, 0..hosts, rarely(), rarely()).prop_map(
        |(tenant, number, host, shared, part)| At {
            tenant,
            number,
            host,
            shared,
            part,
        },
    );
    let listener = (
        0..tenants,
        0..2_usize,
        0..KINDS.len(),
        rarely(),
        rarely(),
        0..hosts,
    );
    let route = (
        0..ROUTE_KINDS.len(),
        0..tenants,
        0..2_usize,
        0..2_i64,
        0..3_usize,
        prop::collection::vec(at, 1..5),
    );
    prop_oneof![
        6 => listener.prop_map(|(tenant, number, kind, second, other, host)| Edit::Listener {
            tenant, number, kind, second, other, host
        }),
        8 => route.prop_map(|(kind, tenant, number, created, rules, at)| Edit::Route {
            kind, tenant, number, created, rules, at
        }),
        4 => (rarely(), 0..hosts, 0..tenants)
            .prop_map(|(other, host, tenant)| Edit::Owner { other, host, tenant }),
        1 => (0..2_usize).prop_map(Edit::Bundle),
        2 => (0..tenants, 0..2_usize)
            .prop_map(|(tenant, number)| Edit::DropListener { tenant, number }),
        1 => (0..ROUTE_KINDS.len(), 0..tenants, 0..2_usize)
            .prop_map(|(kind, tenant, number)| Edit::DropRoute { kind, tenant, number }),
        2 => (rarely(), 0..hosts).prop_map(|(other, host)| Edit::DropOwner { other, host }),
        1 => Just(Edit::DropBundle),
    ]
}

/// A first configuration, and the edits after it.
fn histories() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    let first = prop::collection::vec(edit(), 30..60);
    let rest = prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..20);
    (first, rest).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

fn listener_name(tenant: usize, number: usize) -> String {
    match TENANTS[tenant] {
        "infra" => format!("Gateway/infra/edge/own-{number}"),
        team => format!("ListenerSet/{team}/set-{number}/tls"),
    }
}

fn route_name(tenant: usize, number: usize) -> String {
    format!("{}/route-{number}", TENANTS[tenant])
}

fn gateway(other: bool) -> &'static str {
    GATEWAYS[usize::from(other)]
}

fn owner_name(other: bool, host: usize) -> String {
    format!("{}/{}", gateway(other), HOSTS[host])
}

fn listener_of(name: &str, kind: usize, (second, other): (bool, bool), host: &str) -> Resource {
    use proto::listener::Protocol;
    let (kind, port) = KINDS[kind];
    let port = port + u16::from(second) + 10 * u16::from(other);
    let mut made = match kind {
        "Passthrough" => listener_on(name, port, host, None),
        "Terminate" | "Validated" => listener_on(name, port, host, Some(&[])),
        "Https" | "ValidatedHttps" => http_on(name, port, host, Some(&[])),
        "Http" => http_on(name, port, host, None),
        _ => listener_on(name, port, "", None),
    };
    let Some(Wire::Listener(wire)) = &mut made.resource else {
        unreachable!("a listener");
    };
    wire.gateway = gateway(other).into();
    let validation = proto::ClientValidation {
        trust_bundles: vec![BUNDLE.into()],
        mode: proto::ClientValidationMode::AllowValidOnly.into(),
    };
    match (kind, wire.protocol.as_mut().unwrap()) {
        ("Validated", Protocol::Tls(tls)) => {
            let Some(proto::tls_listener::Mode::Terminate(terminate)) = &mut tls.mode else {
                unreachable!("it terminates TLS");
            };
            terminate.client_validation = Some(validation);
        }
        ("ValidatedHttps", Protocol::Http(http)) => {
            http.terminate.as_mut().unwrap().client_validation = Some(validation);
        }
        ("Tcp", protocol) => *protocol = Protocol::Tcp(proto::TcpListener::default()),
        ("Udp", protocol) => {
            *protocol = Protocol::Udp(proto::UdpListener::default());
            wire.bind.as_mut().unwrap().transport = proto::Transport::Udp.into();
        }
        _ => {}
    }
    made
}

fn route_of(kind: usize, name: &str, created: i64, rules: usize, at: &[At]) -> Resource {
    let kind = ROUTE_KINDS[kind];
    let tenant = name.split('/').next().unwrap().to_owned();
    let is_http = matches!(kind, RouteKind::Http | RouteKind::Grpc);
    let attachment = |at: &At| {
        let host = HOSTS[at.host];
        let part = at.part && is_http && !host.is_empty() && !host.starts_with('*');
        proto::Attachment {
            listener: listener_name(at.tenant, at.number),
            hostnames: vec![proto::RouteHostname {
                r#match: host.into(),
                rank: host.into(),
                shared: at.shared && !part,
                paths: if part { vec!["/part".into()] } else { vec![] },
            }],
        }
    };
    let attachments = at.iter().map(attachment).collect();
    let port = proto::TcpRoute {
        tenant: tenant.clone(),
        created,
        listeners: at
            .iter()
            .map(|at| listener_name(at.tenant, at.number))
            .collect(),
        ..Default::default()
    };
    let http = proto::HttpRoute {
        tenant: tenant.clone(),
        created,
        attachments,
        rules: vec![proto::HttpRule::default(); rules],
    };
    let wire = match kind {
        RouteKind::Http => Wire::HttpRoute(http),
        RouteKind::Grpc => Wire::GrpcRoute(http),
        RouteKind::Of(Connections::Tcp) => Wire::TcpRoute(port),
        RouteKind::Of(Connections::Udp) => Wire::UdpRoute(port),
        RouteKind::Of(Connections::Tls) => Wire::TlsRoute(proto::TlsRoute {
            tenant,
            created,
            attachments: http.attachments,
            backends: Vec::new(),
        }),
    };
    Resource::new(name, wire)
}

fn resource_kind(kind: usize) -> ResourceKind {
    match ROUTE_KINDS[kind] {
        RouteKind::Http => ResourceKind::HttpRoute,
        RouteKind::Grpc => ResourceKind::GrpcRoute,
        RouteKind::Of(Connections::Tcp) => ResourceKind::TcpRoute,
        RouteKind::Of(Connections::Udp) => ResourceKind::UdpRoute,
        RouteKind::Of(Connections::Tls) => ResourceKind::TlsRoute,
    }
}

/// The resource that an edit puts, or the key of the one that it takes away.
fn done(edit: &Edit) -> Result<Resource, ResourceKey> {
    match edit {
        Edit::Listener {
            tenant,
            number,
            kind,
            second,
            other,
            host,
        } => {
            let name = listener_name(*tenant, *number);
            Ok(listener_of(&name, *kind, (*second, *other), HOSTS[*host]))
        }
        Edit::Route {
            kind,
            tenant,
            number,
            created,
            rules,
            at,
        } => {
            let name = route_name(*tenant, *number);
            Ok(route_of(*kind, &name, *created, *rules, at))
        }
        Edit::Owner {
            other,
            host,
            tenant,
        } => {
            let mut made = owner(HOSTS[*host], TENANTS[*tenant]);
            made.name = owner_name(*other, *host);
            if let Some(Wire::HostnameOwner(wire)) = &mut made.resource {
                wire.gateway = gateway(*other).into();
            }
            Ok(made)
        }
        Edit::Bundle(which) => {
            let certificates = vec![BUNDLES[*which].clone()];
            let bundle = proto::TrustBundle { certificates };
            Ok(Resource::new(BUNDLE, Wire::TrustBundle(bundle)))
        }
        Edit::DropListener { tenant, number } => {
            let name = listener_name(*tenant, *number);
            Err(key(ResourceKind::Listener, &name))
        }
        Edit::DropRoute {
            kind,
            tenant,
            number,
        } => {
            let name = route_name(*tenant, *number);
            Err(key(resource_kind(*kind), &name))
        }
        Edit::DropOwner { other, host } => {
            let name = owner_name(*other, *host);
            Err(key(ResourceKind::HostnameOwner, &name))
        }
        Edit::DropBundle => Err(key(ResourceKind::TrustBundle, BUNDLE)),
    }
}

/// A tunnel, as far as changes have to know it.
struct Tunnel {
    bind: BindKey,
    name: Option<Hostname>,
    path: Option<&'static str>,
    listener: Arc<Listener>,
    route: RouteId,
    account: Arc<TenantQuota>,
    /// The listener that serves it, if one does.
    serving: Option<Arc<Listener>>,
}

impl Tunnel {
    /// The listener of a snapshot that serves the tunnel. One that admits no client serves none.
    fn serving(&self, snapshot: &Snapshot) -> Option<Arc<Listener>> {
        let selected = SelectedBy {
            bind: &self.bind,
            name: self.name.as_ref(),
            listener: &self.listener,
            route: self.route.clone(),
            path: self.path,
        };
        let serving = snapshot.still_serves(&selected);
        serving.filter(|of| !refuses_all(of)).cloned()
    }

    /// The key that tells it apart from other tunnels.
    fn identity(&self) -> String {
        let of = &*self.listener;
        format!(
            "{:?} {:?} {:?} {:?} {} {} {}",
            self.bind,
            self.name,
            self.path,
            self.route,
            of.gateway,
            of.tenant,
            of.mode.kind()
        )
    }
}

/// Whether routes of a kind serve connections of a listener.
fn fits(kind: RouteKind, mode: &Mode) -> bool {
    match kind {
        RouteKind::Http | RouteKind::Grpc => matches!(mode, Mode::Http | Mode::Https(_)),
        RouteKind::Of(Connections::Tls) => matches!(mode, Mode::Passthrough | Mode::Terminate(_)),
        RouteKind::Of(Connections::Tcp) => matches!(mode, Mode::Tcp),
        RouteKind::Of(Connections::Udp) => matches!(mode, Mode::Udp),
    }
}

/// All tunnels that could have begun so far, and what changes tell a worker.
struct World {
    h: Harness,
    inbox: Inbox,
    known: BTreeSet<String>,
    tunnels: Vec<Tunnel>,
    /// How many tunnels were lost, by kind of the listener.
    lost: BTreeMap<&'static str, usize>,
}

impl World {
    fn new() -> Self {
        let h = Harness::new();
        let inbox = h.state.snapshot.concerned().subscribe();
        Self {
            h,
            inbox,
            known: BTreeSet::new(),
            tunnels: Vec::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Makes a change, and compares who is told with a look at all tunnels.
    fn change(&mut self, edits: &[Edit]) -> Result<(), TestCaseError> {
        let mut last = BTreeMap::new();
        for edit in edits {
            let done = done(edit);
            let key = match &done {
                Ok(resource) => resource.key().unwrap(),
                Err(key) => key.clone(),
            };
            last.insert(key, done);
        }
        let (upserts, removals): (Vec<_>, Vec<_>) = last.into_values().partition(Result::is_ok);
        self.put(
            upserts.into_iter().filter_map(Result::ok).collect(),
            removals.into_iter().filter_map(Result::err).collect(),
        )
    }

    fn put(
        &mut self,
        upserts: Vec<Resource>,
        removals: Vec<ResourceKey>,
    ) -> Result<(), TestCaseError> {
        let change = self.h.change(upserts, removals);
        self.h.state.apply(&change, &mut NoSockets);
        let told = self.inbox.next().now_or_never().flatten();
        let told = told.unwrap_or_default();
        let snapshot = self.h.published.load_full();
        for tunnel in &mut self.tunnels {
            let now = tunnel.serving(&snapshot);
            let is_lost = match (&tunnel.serving, &now) {
                (Some(was), Some(is)) => {
                    let validation = |of: &Listener| of.validation.as_ref().map(Arc::as_ptr);
                    validation(was) != validation(is)
                }
                (was, is) => was.is_some() && is.is_none(),
            };
            if is_lost {
                let kind = tunnel.listener.mode.kind();
                *self.lost.entry(kind).or_default() += 1;
                prop_assert!(
                    told.contains(&TenantKey::of(&tunnel.account)),
                    "{} is not told about {}",
                    tunnel.account.tenant(),
                    tunnel.identity()
                );
            }
            tunnel.serving = now;
        }
        self.begin(&snapshot);
        Ok(())
    }

    /// Begins every tunnel that this snapshot serves and that is not known yet.
    fn begin(&mut self, snapshot: &Snapshot) {
        let state = &self.h.state;
        let of = |kind, held: &BTreeMap<Arc<str>, HeldRoute>| -> Vec<(RouteId, Arc<Attachments>)> {
            let ids = held.iter();
            ids.map(|(name, held)| ((kind, Arc::clone(name)), Arc::clone(&held.attachments)))
                .collect()
        };
        let of_http = |kind, held: &BTreeMap<Arc<str>, HeldHttpRoute>| -> Vec<_> {
            let ids = held.iter();
            ids.map(|(name, held)| ((kind, Arc::clone(name)), Arc::clone(&held.attachments)))
                .collect()
        };
        let routes = [
            of(RouteKind::Of(Connections::Tls), &state.routes),
            of(RouteKind::Of(Connections::Tcp), &state.tcp_routes),
            of(RouteKind::Of(Connections::Udp), &state.udp_routes),
            of_http(RouteKind::Http, &state.http_routes),
            of_http(RouteKind::Grpc, &state.grpc_routes),
        ];
        for (route, attachments) in routes.into_iter().flatten() {
            let is_http = matches!(route.0, RouteKind::Http | RouteKind::Grpc);
            let paths: &[_] = if is_http {
                &[Some(PATHS[0]), Some(PATHS[1])]
            } else {
                &[None]
            };
            for (to, names) in &attachments.to {
                let Some(held) = state.listeners.get(to) else {
                    continue;
                };
                if !fits(route.0, &held.built.mode) {
                    continue;
                }
                for name in NAMES {
                    let name = (!name.is_empty()).then(|| Hostname::parse(name).unwrap());
                    let takes = match &name {
                        Some(name) => {
                            held.built.mode.layer() != Layer::Bytes && names.pattern.matches(name)
                        }
                        // A TLS connection without a name has no route.
                        None => {
                            names.pattern == HostPattern::Any
                                && route.0 != RouteKind::Of(Connections::Tls)
                        }
                    };
                    for path in paths.iter().filter(|_| takes) {
                        let mut tunnel = Tunnel {
                            bind: held.bind,
                            name: name.clone(),
                            path: *path,
                            listener: Arc::clone(&held.built),
                            route: route.clone(),
                            account: Arc::clone(&attachments.account),
                            serving: None,
                        };
                        tunnel.serving = tunnel.serving(snapshot);
                        if tunnel.serving.is_some() && self.known.insert(tunnel.identity()) {
                            self.tunnels.push(tunnel);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tenants_that_may_lose_a_tunnel_are_told() {
    let lost = RefCell::new(BTreeMap::<&str, usize>::new());
    let mut runner = TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..keep_failures_with_cases(400)
    });
    let outcome = runner.run(&histories(), |history| {
        let mut world = World::new();
        for edits in &history {
            world.change(edits)?;
        }
        for (kind, count) in world.lost {
            *lost.borrow_mut().entry(kind).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let lost = lost.into_inner();
    for kind in ["Passthrough", "Terminate", "Https", "Http", "Tcp", "Udp"] {
        let count = lost.get(kind).copied().unwrap_or_default();
        assert!(
            count > 0,
            "no tunnel of a {kind} listener is lost: {lost:?}"
        );
    }
}

/// A first configuration and a change, after which the first tenant has lost a tunnel of this kind.
fn lost_by(first: Vec<Resource>, change: Vec<Resource>, gone: Vec<ResourceKey>, kind: &str) {
    let mut world = World::new();
    world.put(first, Vec::new()).unwrap();
    world.put(change, gone).unwrap();
    assert!(world.lost.contains_key(kind), "{:?}", world.lost);
}

/// An HTTPS connection may have had no request yet, so routes do not say to which tenant it belongs.
#[test]
fn whose_listener_validates_clients_otherwise_is_told_though_it_has_no_route() {
    let name = listener_name(0, 0);
    let listener = |kind: &str| {
        let kind = KINDS.iter().position(|(of, _)| *of == kind);
        vec![listener_of(&name, kind.unwrap(), (false, false), "x.a.com")]
    };
    let bundle = |which: usize| vec![done(&Edit::Bundle(which)).unwrap()];
    let mut h = Harness::new();
    assert_eq!(h.apply([listener("Https"), bundle(0)].concat()), []);
    let account = h.state.accounts.find("team-0").unwrap();
    let its_own = Some(vec![TenantKey::of_https(&account)]);
    let mut inbox = h.state.snapshot.concerned().subscribe();
    for (what, upserts, is_told) in [
        ("on", listener("ValidatedHttps"), true),
        ("still on", listener("ValidatedHttps"), false),
        ("by another authority", bundle(1), true),
        ("off", listener("Https"), true),
        ("still off", listener("Https"), false),
        ("off, whichever authority there is", bundle(0), false),
    ] {
        assert_eq!(h.apply(upserts), [], "{what}");
        let told = inbox.next().now_or_never().flatten();
        assert_eq!(told, its_own.clone().filter(|_| is_told), "{what}");
    }
    h.remove(vec![key(ResourceKind::Listener, &name)]);
    assert_eq!(inbox.next().now_or_never(), None);
    assert_eq!(h.apply(listener("ValidatedHttps")), [], "created anew");
    assert_eq!(inbox.next().now_or_never().flatten(), its_own);
}

#[test]
fn listener_passed_over_for_an_owned_name_hides_none_that_takes_it() {
    let (wide, narrow) = ("ListenerSet/team-0/wide/tls", "ListenerSet/team-1/web/tls");
    let names = (wide, "*.b.a.com", "*.b.a.com");
    let first = vec![
        listener(narrow, "*.b.a.com"),
        listener(wide, "*.com"),
        route("team-0/web", 1, &[names], &[]),
        owner("x.b.a.com", "team-0"),
    ];
    // Names that nobody owns go to the narrow listener before and after.
    let between = listener("Gateway/infra/edge/own", "*.a.com");
    lost_by(first, vec![between], Vec::new(), "Passthrough");
}

#[test]
fn no_single_name_stands_for_all_names_of_a_wildcard() {
    let own = "Gateway/infra/edge/own";
    let first = vec![
        listener(own, ""),
        route("team-0/web", 1, &[(own, "", "")], &[]),
        owner("*.invalid", "team-0"),
    ];
    let owned = vec![owner("", "team-1")];
    lost_by(first, owned, Vec::new(), "Passthrough");
}

#[test]
fn a_route_that_has_no_rules_any_more_still_has_tunnels() {
    let own = "Gateway/infra/edge/own-0";
    let at = [At {
        tenant: 2,
        number: 0,
        host: 4,
        shared: false,
        part: false,
    }];
    let with_rules = |rules| route_of(1, "team-0/route-0", 0, rules, &at);
    let mut world = World::new();
    let first = vec![http_on(own, 80, "", None), with_rules(1)];
    world.put(first, Vec::new()).unwrap();
    world.put(vec![with_rules(0)], Vec::new()).unwrap();
    assert_eq!(world.lost, BTreeMap::new());
    let gone = vec![key(ResourceKind::Listener, own)];
    world.put(Vec::new(), gone).unwrap();
    assert!(world.lost.contains_key("Http"));
}

/// A listener with more than a few routes has their patterns in an order, which each change of a route has to keep up.
#[test]
fn tenant_with_a_name_in_a_newly_owned_wildcard_is_told_whatever_came_before() {
    const NAME: &str = "x.b.a.com";
    let own = "Gateway/infra/edge/own-0";
    let at = |host: &&str| At {
        tenant: 2,
        number: 0,
        host: HOSTS.iter().position(|of| of == host).unwrap(),
        shared: false,
        part: false,
    };
    let made = |kind: usize, name: &str, hosts: &[&str]| {
        let at: Vec<At> = hosts.iter().map(at).collect();
        vec![route_of(kind, name, 0, 1, &at)]
    };
    let (tls, http) = (0, 1);
    let theirs = || made(tls, "team-0/route-0", &[NAME]);
    let many = || made(tls, "team-1/route-0", &["x.a.com", "*.a.com", "*.com"]);
    let same = |kind| made(kind, "team-1/route-1", &[NAME]);
    let gone = |kind, name: &str| vec![key(resource_kind(kind), name)];
    let none = Vec::new;
    for (case, changes) in [
        ("few", vec![(theirs(), none())]),
        ("few, then many", vec![(theirs(), none()), (many(), none())]),
        ("many before", vec![(many(), none()), (theirs(), none())]),
        (
            "many, then few",
            vec![
                ([many(), theirs()].concat(), none()),
                (Vec::new(), gone(tls, "team-1/route-0")),
            ],
        ),
        (
            "another namespace had the name as well",
            vec![
                ([many(), theirs(), same(tls)].concat(), none()),
                (Vec::new(), gone(tls, "team-1/route-1")),
            ],
        ),
        (
            "a route of another kind had the name as well",
            vec![
                ([many(), theirs(), same(http)].concat(), none()),
                (Vec::new(), gone(http, "team-1/route-1")),
            ],
        ),
        (
            "another namespace had the name before",
            vec![
                ([many(), same(tls)].concat(), none()),
                (theirs(), gone(tls, "team-1/route-1")),
            ],
        ),
    ] {
        let mut world = World::new();
        world.put(vec![listener(own, "")], Vec::new()).unwrap();
        for (upserts, removals) in changes {
            world.put(upserts, removals).unwrap();
        }
        let owned = world.put(vec![owner("*.b.a.com", "team-1")], Vec::new());
        assert!(owned.is_ok(), "{case}: {owned:?}");
        assert!(world.lost.contains_key("Passthrough"), "{case}");
    }
}
