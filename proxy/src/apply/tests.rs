//! Tests of the state: rejects, atomicity, conflicts, and equality with a naive reference.

mod challenges;
mod listeners;
mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use vestibule_model::hostname::{Hostname, route_precedence};
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Resource, proto};

use super::*;
use crate::listener::Layer;
use crate::table::{Pick, Unmatched};

const BIND: BindKey = BindKey::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_443);

fn bind_on(port: u16) -> proto::Bind {
    proto::Bind {
        address: "127.0.0.1".into(),
        port: port.into(),
        transport: proto::Transport::Tcp.into(),
    }
}

fn listener_on(name: &str, port: u16, hostname: &str, certificates: Option<&[&str]>) -> Resource {
    use proto::tls_listener::Mode;
    let mode = match certificates {
        None => Mode::Passthrough(proto::TlsPassthrough {}),
        Some(names) => Mode::Terminate(proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    Resource::new(
        name,
        Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(bind_on(port)),
            hostname: hostname.into(),
            tenant: name.split('/').nth(1).unwrap().into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(mode),
            })),
            ..Default::default()
        }),
    )
}

/// As [`listener_on`], for HTTP, or HTTPS with certificates.
fn http_on(name: &str, port: u16, hostname: &str, certificates: Option<&[&str]>) -> Resource {
    let mut resource = listener_on(name, port, hostname, None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        let terminate = certificates.map(|names| proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        });
        let http = proto::HttpListener { terminate };
        listener.protocol = Some(proto::listener::Protocol::Http(http));
    }
    resource
}

fn listener(name: &str, hostname: &str) -> Resource {
    listener_on(name, BIND.port, hostname, None)
}

fn route(
    name: &str,
    created: i64,
    at: &[(&str, &str, &str)],
    backends: &[(&str, u32)],
) -> Resource {
    Resource::new(
        name,
        Wire::TlsRoute(proto::TlsRoute {
            tenant: name.split('/').next().unwrap().into(),
            created,
            attachments: at
                .iter()
                .map(|(listener, of_match, of_rank)| proto::Attachment {
                    listener: (*listener).into(),
                    hostnames: vec![proto::RouteHostname {
                        r#match: (*of_match).into(),
                        rank: (*of_rank).into(),
                        shared: false,
                        paths: Vec::new(),
                    }],
                })
                .collect(),
            backends: backends
                .iter()
                .map(|(backend, weight)| proto::WeightedBackend {
                    backend: (*backend).into(),
                    weight: *weight,
                })
                .collect(),
        }),
    )
}

fn backend(name: &str, addresses: &[&str]) -> Resource {
    Resource::new(
        name,
        Wire::Backend(proto::Backend {
            endpoints: addresses
                .iter()
                .map(|address| {
                    let address: SocketAddr = address.parse().unwrap();
                    proto::Endpoint {
                        address: address.ip().to_string(),
                        port: address.port().into(),
                    }
                })
                .collect(),
            ..Default::default()
        }),
    )
}

fn owner(hostname: &str, tenant: &str) -> Resource {
    let owner = proto::HostnameOwner {
        gateway: "infra/edge".into(),
        hostname: hostname.into(),
        tenant: tenant.into(),
    };
    let name = format!("infra/edge/{hostname}");
    Resource::new(name, Wire::HostnameOwner(owner))
}

fn certificate(name: &str, hostname: &str) -> Resource {
    let made = rcgen::generate_simple_self_signed([hostname.to_owned()]).unwrap();
    Resource::new(
        name,
        Wire::Certificate(proto::Certificate {
            chain: vec![made.cert.der().to_vec().into()],
            private_key: made.signing_key.serialize_der(),
        }),
    )
}

struct Harness {
    state: State,
    published: Arc<ArcSwap<Snapshot>>,
    counter: u64,
}

impl Harness {
    fn new() -> Self {
        let published = Arc::new(ArcSwap::default());
        Self {
            state: State::new(Arc::clone(&published)).unwrap(),
            published,
            counter: 0,
        }
    }

    fn change(&mut self, upserts: Vec<Resource>, removals: Vec<ResourceKey>) -> Change {
        self.counter += 1;
        Change {
            generation: vestibule_stream::Generation::new(1, self.counter),
            full: false,
            upserts: upserts.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals,
        }
    }

    fn apply(&mut self, upserts: Vec<Resource>) -> Vec<(String, String)> {
        let change = self.change(upserts, Vec::new());
        reasons(self.state.apply(&change, &mut NoSockets))
    }

    fn remove(&mut self, removals: Vec<ResourceKey>) {
        let change = self.change(Vec::new(), removals);
        assert_eq!(self.state.apply(&change, &mut NoSockets), []);
    }

    fn select(&self, name: &str) -> Result<(String, Option<String>), Unmatched> {
        self.select_on(&BIND, name)
    }

    fn select_on(&self, bind: &BindKey, name: &str) -> Result<(String, Option<String>), Unmatched> {
        let name = (!name.is_empty()).then(|| Hostname::parse(name).unwrap());
        let snapshot = self.published.load();
        if snapshot.layer(bind) == Layer::Plain {
            let listener = snapshot.select_http(bind, Layer::Plain, name.as_ref());
            let listener = listener.map(|selected| selected.listener);
            let listener = listener.ok_or(Unmatched::NoListener)?;
            return Ok((listener.key.to_string(), None));
        }
        let selection = snapshot.select(bind, name.as_ref())?;
        Ok((
            selection.listener.key.to_string(),
            selection.route.map(|route| route.key.to_string()),
        ))
    }
}

fn reasons(rejects: Vec<Reject>) -> Vec<(String, String)> {
    rejects
        .into_iter()
        .map(|r| (r.key.unwrap().name, r.reason))
        .collect()
}

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, name)
}

const A: &str = "ListenerSet/team-a/web/tls";
const B: &str = "ListenerSet/team-b/web/tls";
const ANY: &str = "Gateway/infra/edge/any";

#[allow(clippy::unnecessary_wraps, reason = "what `select` is compared with")]
fn found(listener: &str, route: Option<&str>) -> Result<(String, Option<String>), Unmatched> {
    Ok((listener.to_owned(), route.map(ToOwned::to_owned)))
}

#[test]
fn most_specific_listener_then_its_own_routes_only() {
    let mut h = Harness::new();
    let rejects = h.apply(vec![
        listener(ANY, ""),
        listener(A, "*.example.com"),
        listener(B, "deep.a.example.com"),
        route("infra/all", 1, &[(ANY, "", "")], &[]),
        route(
            "team-a/wild",
            5,
            &[
                (A, "*.example.com", "*.com"),
                (A, "x.example.com", "x.example.com"),
            ],
            &[],
        ),
        route("team-a/old", 1, &[(A, "*.example.com", "*.com")], &[]),
    ]);
    assert_eq!(rejects, []);
    assert_eq!(h.select("other.org"), found(ANY, Some("infra/all")));
    // One or more labels, never the apex.
    assert_eq!(h.select("example.com"), found(ANY, Some("infra/all")));
    assert_eq!(h.select("a.b.example.com"), found(A, Some("team-a/old")));
    // The hostname as written outranks age.
    assert_eq!(h.select("X.Example.com."), found(A, Some("team-a/wild")));
    // Matched, and no route: nobody else's route is used.
    assert_eq!(h.select("deep.a.example.com"), found(B, None));
    // No server name: the listener matches, no route does.
    assert_eq!(h.select(""), found(ANY, None));
    h.remove(vec![key(ResourceKind::Listener, ANY)]);
    assert_eq!(h.select(""), Err(Unmatched::NoServerName));
    assert_eq!(h.select("other.org"), Err(Unmatched::NoListener));
    let elsewhere = BindKey { port: 1, ..BIND };
    assert_eq!(h.select_on(&elsewhere, "a.org"), Err(Unmatched::NoBind));
}

#[test]
fn rejected_resources_keep_their_last_good_version() {
    let mut h = Harness::new();
    assert_eq!(
        h.apply(vec![
            listener(A, "a.example.com"),
            route(
                "team-a/web",
                1,
                &[(A, "a.example.com", "a.example.com")],
                &[("team-a/web:443", 1)]
            ),
            backend("team-a/web:443", &["127.0.0.1:1"]),
        ]),
        []
    );
    let rejects = h.apply(vec![
        listener(A, "a..b"),
        listener(B, "b.example.com"),
        route("team-a/web", 1, &[(A, "*.*", "")], &[]),
        backend("team-a/web:443", &["0.0.0.0:1"]),
    ]);
    assert_eq!(
        rejects,
        [
            (A.to_owned(), "InvalidHostname".to_owned()),
            ("team-a/web".to_owned(), "InvalidHostname".to_owned()),
            ("team-a/web:443".to_owned(), "InvalidEndpoint".to_owned()),
        ]
    );
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    assert_eq!(h.select("b.example.com"), found(B, None));
    let name = Hostname::parse("a.example.com").unwrap();
    let snapshot = h.published.load();
    let selection = snapshot.select(&BIND, Some(&name)).unwrap();
    assert!(matches!(
        selection.route.unwrap().pick(&snapshot, 0),
        Pick::Endpoint(..)
    ));
}

#[test]
fn unknown_resources_are_rejected() {
    let mut h = Harness::new();
    let mut unknown = listener(A, "a.example.com");
    unknown.resource = None;
    let change = Change {
        generation: vestibule_stream::Generation::new(1, 1),
        full: true,
        upserts: vec![(key(ResourceKind::Listener, A), unknown)],
        removals: vec![],
    };
    let rejects = h.state.apply(&change, &mut NoSockets);
    assert_eq!(
        reasons(rejects),
        [(A.to_owned(), "UnknownResource".to_owned())]
    );
}

#[test]
fn order_within_and_between_batches_does_not_matter() {
    let route_a = || {
        route(
            "team-a/web",
            1,
            &[(A, "a.example.com", "a.example.com")],
            &[("team-a/web:443", 1), ("", 0)],
        )
    };
    let mut h = Harness::new();
    // Route and backend reference first, then backend, then listener.
    assert_eq!(h.apply(vec![route_a()]), []);
    assert_eq!(
        h.apply(vec![backend("team-a/web:443", &["127.0.0.1:7"])]),
        []
    );
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoBind));
    assert_eq!(h.apply(vec![listener(A, "a.example.com")]), []);
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    // The listener moves and takes its routes along.
    assert_eq!(h.apply(vec![listener_on(A, 9, "*.example.com", None)]), []);
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoBind));
    let moved = BindKey { port: 9, ..BIND };
    assert_eq!(
        h.select_on(&moved, "a.example.com"),
        found(A, Some("team-a/web"))
    );
    assert_eq!(h.select_on(&moved, "b.example.com"), found(A, None));
    // Gone and back.
    h.remove(vec![key(ResourceKind::Listener, A)]);
    assert_eq!(h.published.load().binds().count(), 0);
    assert_eq!(h.apply(vec![listener(A, "a.example.com")]), []);
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    // A removed backend stays referenced, without endpoints; removed routes let it go.
    h.remove(vec![key(ResourceKind::Backend, "team-a/web:443")]);
    assert_eq!(h.state.dump().backends.len(), 1);
    h.remove(vec![key(ResourceKind::TlsRoute, "team-a/web")]);
    assert_eq!(h.state.dump().backends.len(), 0);
    assert_eq!(h.state.tables.len(), 0);
}

#[test]
fn a_snapshot_stays_true_while_somebody_holds_it() {
    let mut h = Harness::new();
    let to = |backend| {
        let names = (A, "a.example.com", "a.example.com");
        route("team-a/web", 1, &[names], &[(backend, 1)])
    };
    h.apply(vec![
        listener(A, "a.example.com"),
        to("team-a/web:1"),
        backend("team-a/web:1", &["127.0.0.1:1"]),
    ]);
    let port = |snapshot: &Snapshot| {
        let name = Hostname::parse("a.example.com").unwrap();
        let route = snapshot.select(&BIND, Some(&name)).unwrap().route.unwrap();
        match route.pick(snapshot, 0) {
            Pick::Endpoint(address, _) => address.port(),
            other => panic!("{other:?}"),
        }
    };
    let first = h.published.load_full();
    // One change, as the operator makes it: the route leads elsewhere, and its old backend goes.
    h.counter += 1;
    let change = Change {
        generation: vestibule_stream::Generation::new(1, h.counter),
        full: false,
        upserts: [
            to("team-a/web:2"),
            backend("team-a/web:2", &["127.0.0.1:2"]),
        ]
        .map(|resource| (resource.key().unwrap(), resource))
        .into(),
        removals: vec![key(ResourceKind::Backend, "team-a/web:1")],
    };
    assert_eq!(h.state.apply(&change, &mut NoSockets), []);
    let second = h.published.load_full();
    // A third one takes the first one's slot, and the second one moves.
    h.apply(vec![
        backend("team-a/web:2", &["127.0.0.1:3"]),
        backend("team-a/web:4", &["127.0.0.1:4"]),
    ]);
    assert_eq!((port(&first), port(&second)), (1, 2));
    assert_eq!(port(&h.published.load()), 3);
    assert_eq!(h.state.dump().backends.len(), 2);
}

#[test]
fn picks_follow_weights_and_invalid_references_keep_their_share() {
    let mut h = Harness::new();
    h.apply(vec![
        backend("a/one:1", &["127.0.0.1:1", "127.0.0.1:2"]),
        backend("a/none:1", &[]),
        route(
            "a/mixed",
            1,
            &[],
            &[("a/one:1", 2), ("", 1), ("a/none:1", 1), ("a/zero:1", 0)],
        ),
        route("a/zero", 1, &[], &[("a/one:1", 0)]),
        route("a/empty", 1, &[], &[]),
    ]);
    let pick = |name: &str, random| {
        let route = &h.state.routes.get(name).unwrap().route;
        route.pick(h.state.snapshot(), random)
    };
    let mut counts = [0_u32; 4];
    for step in 0..4096_u64 {
        // Evenly spread over both halves.
        let random = (step << 52) | ((step & 1) << 31);
        match pick("a/mixed", random) {
            Pick::Endpoint(address, _) => counts[usize::from(address.port()) - 1] += 1,
            Pick::InvalidBackend => counts[2] += 1,
            Pick::NoEndpoints => counts[3] += 1,
            Pick::NoWeight => panic!("there is weight"),
        }
    }
    assert_eq!(counts, [1024, 1024, 1024, 1024]);
    assert!(matches!(pick("a/mixed", u64::MAX), Pick::NoEndpoints));
    assert!(matches!(pick("a/zero", 7), Pick::NoWeight));
    assert!(matches!(pick("a/empty", 7), Pick::NoWeight));
}

/// The work of one route edit, with `routes` routes on one listener and as many listeners.
fn work_of_one_edit(routes: usize) -> Work {
    let mut h = Harness::new();
    let name = |n: usize| format!("team-a/r{n}");
    let host = |n: usize| format!("h{n}.example.com");
    let mut upserts = vec![listener(A, "*.example.com")];
    for n in 0..routes {
        let listener_name = format!("ListenerSet/team-b/s{n}/tls");
        upserts.push(listener(&listener_name, &format!("h{n}.example.org")));
        upserts.push(route(
            &name(n),
            1,
            &[(A, &host(n), &host(n))],
            &[("team-a/web:443", 1)],
        ));
    }
    assert_eq!(h.apply(upserts), []);
    let before = h.state.work();
    let edited = route(
        &name(3),
        2,
        &[(A, &host(3), &host(3))],
        &[("team-a/other:443", 1)],
    );
    assert_eq!(h.apply(vec![edited]), []);
    let after = h.state.work();
    Work {
        places: after.places - before.places,
        route_entries: after.route_entries - before.route_entries,
        tls_configs: after.tls_configs - before.tls_configs,
        endpoint_lists: after.endpoint_lists - before.endpoint_lists,
    }
}

#[test]
fn one_edit_is_the_same_work_at_ten_and_at_twenty_thousand_routes() {
    let few = work_of_one_edit(10);
    assert_eq!(few, work_of_one_edit(20_000));
    assert_eq!((few.places, few.route_entries), (1, 2));
}

#[test]
fn limits_of_a_gateway_are_shown_and_outlive_a_new_certificate() {
    let mut h = Harness::new();
    let mut limited = listener_on(A, BIND.port, "a.example.com", Some(&["team-a/tls"]));
    if let Some(Wire::Listener(listener)) = &mut limited.resource {
        listener.limits = Some(proto::ListenerLimits {
            tunnel_idle: Some(0),
            request_body: Some(1000),
            ..Default::default()
        });
    }
    assert_eq!(h.apply(vec![limited]), []);
    let shown = |h: &Harness| {
        let dump = serde_json::to_value(h.state.dump()).unwrap();
        dump["listeners"][0].clone()
    };
    let expected = serde_json::json!({"tunnel_idle_ms": 0, "request_body_bytes": 1000});
    assert_eq!(shown(&h)["limits"], expected);
    // The listener is made anew.
    assert_eq!(
        h.apply(vec![certificate("team-a/tls", "a.example.com")]),
        []
    );
    assert_eq!(shown(&h)["serving"], true);
    assert_eq!(shown(&h)["limits"], expected);
    let unlimited = listener_on(A, BIND.port, "a.example.com", Some(&["team-a/tls"]));
    assert_eq!(h.apply(vec![unlimited]), []);
    assert_eq!(shown(&h).get("limits"), None);
}

#[test]
fn the_dump_has_no_key_and_says_what_is_in_force() {
    let mut h = Harness::new();
    let certificate = certificate("team-a/web", "a.example.com");
    let Some(Wire::Certificate(wire)) = certificate.resource.clone() else {
        panic!("is a certificate")
    };
    h.apply(vec![
        listener_on(A, BIND.port, "a.example.com", Some(&["team-a/web"])),
        certificate,
        route(
            "team-a/web",
            1,
            &[(A, "a.example.com", "*.example.com")],
            &[("team-a/web:443", 1)],
        ),
        backend("team-a/web:443", &["[::1]:443"]),
    ]);
    let dump = serde_json::to_value(h.state.dump()).unwrap();
    assert_eq!(dump["generation"]["counter"], 1);
    assert_eq!(dump["listeners"][0]["serving"], true);
    assert_eq!(dump["routes"][0]["attachments"][0]["rank"], "*.example.com");
    assert_eq!(dump["backends"][0]["endpoints"][0], "[::1]:443");
    assert_eq!(dump["certificates"][0]["names"][0], "a.example.com");
    let text = format!("{dump} {:?}", h.state);
    let key_hex = tls::hex(&wire.private_key[40..56]);
    assert!(!text.contains(&key_hex));
    assert!(!text.contains("private"));
}

// ---- Properties ----

const HOSTS: [&str; 8] = [
    "",
    "*.com",
    "*.a.com",
    "*.b.a.com",
    "a.com",
    "x.a.com",
    "b.a.com",
    "x.b.a.com",
];
const NAMES: [&str; 9] = [
    "",
    "com",
    "a.com",
    "x.a.com",
    "b.a.com",
    "x.b.a.com",
    "y.x.b.a.com",
    "org",
    "q.com",
];

#[derive(Debug, Clone)]
enum Edit {
    Listener {
        tenant: usize,
        number: usize,
        port: u16,
        host: usize,
        plain: bool,
    },
    Route {
        tenant: usize,
        number: usize,
        created: i64,
        at: Vec<(usize, usize, usize, usize, bool)>,
    },
    Owner {
        tenant: usize,
        host: usize,
    },
    DropListener {
        tenant: usize,
        number: usize,
    },
    DropRoute {
        tenant: usize,
        number: usize,
    },
    DropOwner {
        host: usize,
    },
}

/// The last one is the Gateway's.
const TENANTS: [&str; 3] = ["team-0", "team-1", "infra"];

fn listener_name(tenant: usize, number: usize) -> String {
    match TENANTS[tenant] {
        "infra" => format!("Gateway/infra/edge/own-{number}"),
        team => format!("ListenerSet/{team}/set-{number}/tls"),
    }
}

fn route_name(tenant: usize, number: usize) -> String {
    format!("{}/route-{number}", TENANTS[tenant])
}

fn edit() -> impl Strategy<Value = Edit> {
    let (tenants, hosts) = (TENANTS.len(), HOSTS.len());
    let attachment = (
        0..tenants,
        0..4_usize,
        0..hosts,
        0..hosts,
        prop::bool::weighted(0.1),
    );
    prop_oneof![
        3 => (0..tenants, 0..4_usize, 1..3_u16, 0..hosts, prop::bool::weighted(0.3)).prop_map(
            |(tenant, number, port, host, plain)| Edit::Listener { tenant, number, port, host, plain }
        ),
        5 => (0..tenants, 0..5_usize, 0..3_i64, prop::collection::vec(attachment, 0..4))
            .prop_map(|(tenant, number, created, at)| Edit::Route { tenant, number, created, at }),
        2 => (0..tenants, 0..hosts).prop_map(|(tenant, host)| Edit::Owner { tenant, host }),
        1 => (0..tenants, 0..4_usize).prop_map(|(tenant, number)| Edit::DropListener { tenant, number }),
        1 => (0..tenants, 0..5_usize).prop_map(|(tenant, number)| Edit::DropRoute { tenant, number }),
        1 => (0..hosts).prop_map(|host| Edit::DropOwner { host }),
    ]
}

fn upsert_of(edit: &Edit) -> Option<Resource> {
    match edit {
        Edit::Listener {
            tenant,
            number,
            port,
            host,
            plain,
        } => {
            let make = if *plain { http_on } else { listener_on };
            let name = listener_name(*tenant, *number);
            Some(make(&name, *port, HOSTS[*host], None))
        }
        Edit::Route {
            tenant,
            number,
            created,
            at,
        } => {
            let names: Vec<String> = at.iter().map(|a| listener_name(a.0, a.1)).collect();
            let names: Vec<_> = at
                .iter()
                .zip(&names)
                .map(|(a, name)| (name.as_str(), HOSTS[a.2], HOSTS[a.3]))
                .collect();
            let mut made = route(&route_name(*tenant, *number), *created, &names, &[]);
            if let Some(Wire::TlsRoute(route)) = &mut made.resource {
                let made = route.attachments.iter_mut().zip(at);
                made.for_each(|(made, a)| made.hostnames[0].shared = a.4);
            }
            Some(made)
        }
        Edit::Owner { tenant, host } => Some(owner(HOSTS[*host], TENANTS[*tenant])),
        _ => None,
    }
}

fn removal_of(edit: &Edit) -> Option<ResourceKey> {
    match edit {
        Edit::DropListener { tenant, number } => Some(key(
            ResourceKind::Listener,
            &listener_name(*tenant, *number),
        )),
        Edit::DropRoute { tenant, number } => {
            Some(key(ResourceKind::TlsRoute, &route_name(*tenant, *number)))
        }
        Edit::DropOwner { host } => Some(owner(HOSTS[*host], "").key().unwrap()),
        _ => None,
    }
}

/// Edits as batches would carry them: each key once, rejects forgotten. Returns what is held.
fn run(h: &mut Harness, batches: &[Vec<Edit>]) -> BTreeMap<ResourceKey, Resource> {
    let mut held = BTreeMap::new();
    for batch in batches {
        let mut last = BTreeMap::new();
        for edit in batch {
            let resource = upsert_of(edit);
            let key = match &resource {
                Some(resource) => resource.key().unwrap(),
                None => removal_of(edit).unwrap(),
            };
            last.insert(key, resource);
        }
        let mut change = h.change(Vec::new(), Vec::new());
        for (key, resource) in last {
            match resource {
                Some(resource) => change.upserts.push((key, resource)),
                None if held.contains_key(&key) => change.removals.push(key),
                None => {}
            }
        }
        let rejected: BTreeSet<ResourceKey> = h
            .state
            .apply(&change, &mut NoSockets)
            .into_iter()
            .map(|reject| reject.key.unwrap())
            .collect();
        for key in change.removals {
            held.remove(&key);
        }
        for (key, resource) in change.upserts {
            if !rejected.contains(&key) {
                held.insert(key, resource);
            }
        }
    }
    held
}

/// Whose a name is: the namespace with the most specific pattern that matches.
fn owner_of(
    held: &BTreeMap<ResourceKey, Resource>,
    matches: impl Fn(&HostPattern) -> bool,
) -> Option<&str> {
    held.values()
        .filter_map(|resource| match &resource.resource {
            Some(Wire::HostnameOwner(wire)) => {
                Some((HostPattern::parse(&wire.hostname).unwrap(), &*wire.tenant))
            }
            _ => None,
        })
        .filter(|(pattern, _)| matches(pattern))
        .max_by_key(|(pattern, _)| pattern.specificity())
        .map(|(_, tenant)| tenant)
}

/// What the specification says and whose names are, written down without any index.
fn reference(
    held: &BTreeMap<ResourceKey, Resource>,
    port: u16,
    name: &str,
) -> Option<(String, Option<String>)> {
    let name = (!name.is_empty()).then(|| Hostname::parse(name).unwrap());
    let matches = |pattern: &HostPattern| match &name {
        Some(name) => pattern.matches(name),
        None => *pattern == HostPattern::Any,
    };
    let on_port: Vec<_> = held
        .values()
        .filter_map(|resource| match &resource.resource {
            Some(Wire::Listener(wire)) if wire.bind.as_ref().unwrap().port == u32::from(port) => {
                let pattern = HostPattern::parse(&wire.hostname).unwrap();
                let plain = matches!(wire.protocol, Some(proto::listener::Protocol::Http(_)));
                Some((&resource.name, pattern, plain))
            }
            _ => None,
        })
        .collect();
    assert!(on_port.windows(2).all(|two| two[0].2 == two[1].2), "mixed");
    let owner = owner_of(held, matches);
    let is_own = |listener: &str| listener.starts_with("Gateway/");
    let may_serve = |tenant: &str| owner.is_none_or(|owner| owner == tenant);
    let (listener, _, plain) = on_port
        .into_iter()
        .filter(|(_, pattern, _)| matches(pattern))
        .filter(|(name, ..)| is_own(name) || may_serve(name.split('/').nth(1).unwrap()))
        .max_by_key(|(_, pattern, _)| pattern.specificity())?;
    if plain {
        return Some((listener.clone(), None));
    }
    let mut candidates = Vec::new();
    for resource in held.values() {
        let Some(Wire::TlsRoute(wire)) = &resource.resource else {
            continue;
        };
        for attachment in wire.attachments.iter().filter(|a| a.listener == *listener) {
            for hostname in &attachment.hostnames {
                let may_serve =
                    hostname.shared || wire.tenant == "infra" || may_serve(&wire.tenant);
                if is_own(listener) && !may_serve {
                    continue;
                }
                if name.is_some() && matches(&HostPattern::parse(&hostname.r#match).unwrap()) {
                    let rank = HostPattern::parse(&hostname.rank).unwrap();
                    candidates.push((rank, wire.created, resource.name.clone()));
                }
            }
        }
    }
    let route = candidates
        .iter()
        .min_by(|a, b| route_precedence((&a.0, a.1, &a.2), (&b.0, b.1, &b.2)))
        .map(|(_, _, name)| name.clone());
    Some((listener.clone(), route))
}

fn everything(h: &Harness) -> Vec<Option<(String, Option<String>)>> {
    let mut all = Vec::new();
    for port in 1..3 {
        for name in NAMES {
            all.push(h.select_on(&BindKey { port, ..BIND }, name).ok());
        }
    }
    all
}

fn batches() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    prop::collection::vec(prop::collection::vec(edit(), 1..6), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn incremental_equals_from_scratch_and_the_reference(batches in batches()) {
        let mut incremental = Harness::new();
        let held = run(&mut incremental, &batches);
        let mut scratch = Harness::new();
        prop_assert_eq!(scratch.apply(held.values().cloned().collect()), []);
        prop_assert_eq!(everything(&incremental), everything(&scratch));
        let mut expected = Vec::new();
        for port in 1..3 {
            for name in NAMES {
                expected.push(reference(&held, port, name));
            }
        }
        prop_assert_eq!(everything(&incremental), expected);
        prop_assert_eq!(
            serde_json::to_value(incremental.state.dump().listeners).unwrap(),
            serde_json::to_value(scratch.state.dump().listeners).unwrap()
        );

        // Everything removed leaves nothing behind.
        incremental.remove(held.keys().cloned().collect());
        prop_assert_eq!(incremental.state.counts(), Counts::default());
        prop_assert!(incremental.state.certificate_users.is_empty());
        prop_assert!(incremental.state.client_trust.is_empty());
        prop_assert!(incremental.state.backend_trust.is_empty());
        prop_assert!(incremental.state.trusts.is_empty());
        prop_assert!(incremental.state.shown.is_empty());
        prop_assert_eq!(incremental.state.expiries.len(), 0);
        prop_assert_eq!(incremental.state.tables.len(), 0);
        prop_assert_eq!(incremental.published.load().binds().count(), 0);
    }

    /// Whatever tenant 0 edits, names that tenant 1 owns are served as they were: the most specific listener, by
    /// the same route.
    #[test]
    fn edits_of_one_tenant_leave_the_other_alone(
        before in batches(),
        edits in prop::collection::vec(edit(), 1..8),
    ) {
        let mut h = Harness::new();
        // What tenant 0 has on listeners of tenant 1 was let in there, and so was what is shared.
        let theirs = |edit: Edit| match edit {
            Edit::Route { tenant: 0, number, created, at } => {
                let at = at.into_iter().filter(|a| a.0 != 1).map(|a| (a.0, a.1, a.2, a.3, false));
                Edit::Route { tenant: 0, number, created, at: at.collect() }
            }
            other => other,
        };
        let before: Vec<Vec<Edit>> =
            before.into_iter().map(|batch| batch.into_iter().map(theirs).collect()).collect();
        let held = run(&mut h, &before);
        let owned = |name: &str| {
            let parsed = Hostname::parse(name).ok();
            let matches = |pattern: &HostPattern| match &parsed {
                Some(name) => pattern.matches(name),
                None => *pattern == HostPattern::Any,
            };
            owner_of(&held, matches) == Some(TENANTS[1])
        };
        let was = everything(&h);
        let edits: Vec<Edit> = edits
            .into_iter()
            .filter_map(|edit| match edit {
                Edit::Listener { number, port, host, plain, .. } => {
                    Some(Edit::Listener { tenant: 0, number, port, host, plain })
                }
                Edit::DropListener { number, .. } => Some(Edit::DropListener { tenant: 0, number }),
                Edit::DropRoute { number, .. } => Some(Edit::DropRoute { tenant: 0, number }),
                Edit::Route { number, created, at, .. } => {
                    Some(theirs(Edit::Route { tenant: 0, number, created, at }))
                }
                Edit::Owner { .. } | Edit::DropOwner { .. } => None,
            })
            .collect();
        run(&mut h, &[edits]);
        let is = everything(&h);
        let names = (1..3).flat_map(|port| NAMES.map(|name| (port, name)));
        for (((port, name), was), is) in names.zip(was).zip(is).filter(|((at, _), _)| owned(at.1)) {
            // A port that nobody is on is the first one's who comes, and may speak plaintext then.
            let kept = is == was || (was.is_none() && is.is_none());
            prop_assert!(kept, "{port} {name}: {was:?}, now {is:?}");
        }
    }
}
