//! TCPRoutes and UDPRoutes: what the proxies get, which route of several has a listener, what each says of itself, and
//! that the two transports are in nobody's way.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::claim::ClaimKey;
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Group, Port, Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_operator::translate::{
    Assigned, Change, ClaimMode, ClaimState, DesiredPort, DesiredService, GatewayService, Settings,
    Status, Translator,
};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

fn protocol(by: Transport) -> Protocol {
    Protocol::from_text(by.as_str())
}

fn at(section: Option<&str>) -> Vec<ParentRef> {
    vec![parent("ListenerSet", Some("red"), "db", section)]
}

fn port(number: u16) -> Port {
    Port::new(number).expect("a port")
}

fn objects(by: Transport) -> Vec<Object> {
    let listeners = vec![
        listener("one", 5432, protocol(by), "", None),
        listener("two", 6379, protocol(by), "", None),
    ];
    vec![
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::All,
        ),
        set("red", "db", 1, "one", listeners),
        service("red", "db", &[1]),
        slice("red", "db", 0, 1, &[2]),
    ]
}

/// The same of a Gateway in a cluster, whose ports are allocated.
fn in_a_cluster(sets: impl IntoIterator<Item = Object>) -> Translator {
    let mut world = objects(Transport::Tcp);
    if let Object::Gateway(gateway) = &mut world[1] {
        gateway.meta.uid = "uid".into();
    }
    world.extend(sets);
    let mut translator = Translator::new(cluster_settings());
    translator.apply(world.into_iter().map(Change::Put));
    translator
}

fn backends() -> Vec<BackendRef> {
    vec![backend("red", "db", 1, 1)]
}

fn of(by: Transport, name: &str) -> ObjectKey {
    key(Kind::of_port_route(by), "red", name)
}

/// A route of this namespace as the proxies hold it.
fn held_of(
    translator: &Translator,
    by: Transport,
    namespace: &str,
    name: &str,
) -> Option<proto::TcpRoute> {
    let kind = match by {
        Transport::Tcp => ResourceKind::TcpRoute,
        Transport::Udp => ResourceKind::UdpRoute,
    };
    let key = ResourceKey::new(kind, format!("{namespace}/{name}"));
    match (by, translator.resources().get(&key)?.decode()?) {
        (Transport::Tcp, resource::Resource::TcpRoute(route))
        | (Transport::Udp, resource::Resource::UdpRoute(route)) => Some(route),
        (_, other) => panic!("{other:?}"),
    }
}

fn held(translator: &Translator, by: Transport, name: &str) -> Option<proto::TcpRoute> {
    held_of(translator, by, "red", name)
}

/// Where the proxies send what goes to a backend.
fn endpoints(translator: &Translator, backend: &str) -> Option<Vec<String>> {
    let key = ResourceKey::new(ResourceKind::Backend, backend);
    match translator.resources().get(&key)?.decode()? {
        resource::Resource::Backend(backend) => {
            let endpoints = backend.endpoints.iter();
            let text = |one: &proto::Endpoint| format!("{}:{}", one.address, one.port);
            Some(endpoints.map(text).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// What Accepted of a route's only parent says, which has to be true.
fn accepted(translator: &Translator, by: Transport, name: &str) -> String {
    let Some(Status::Route(status)) = translator.statuses().get(&of(by, name)) else {
        panic!("no status");
    };
    let mut conditions = status.parents.iter().flat_map(|parent| &parent.conditions);
    let accepted = conditions.find(|of| of.kind == ConditionType::Accepted);
    let accepted = accepted.expect("a condition");
    assert_eq!(accepted.truth, Truth::True);
    accepted.message.clone()
}

fn attached(translator: &Translator) -> Vec<usize> {
    let set = key(Kind::ListenerSet, "red", "db");
    let Some(Status::Listeners(status)) = translator.statuses().get(&set) else {
        panic!("no status");
    };
    status.listeners.iter().map(|l| l.attached_routes).collect()
}

#[test]
fn a_route_is_on_every_listener_that_its_reference_reaches() {
    for by in Transport::ALL {
        let all = port_route(by, ("red", "all", 5), at(None), backends());
        let translator = translated(objects(by).into_iter().chain([all]));
        let route = held(&translator, by, "all").expect("it is published");
        let listener = |name| format!("ListenerSet/red/db/{name}");
        assert_eq!(route.listeners, [listener("one"), listener("two")]);
        assert_eq!((&*route.tenant, route.created), ("red", 5));
        assert_eq!(accepted(&translator, by, "all"), "The route is accepted");
        // Whose names are is no matter of theirs.
        let owners = translator.resources().keys();
        let owners = owners.filter(|key| key.kind() == ResourceKind::HostnameOwner);
        let owners: Vec<&str> = owners.map(|key| key.name.as_str()).collect();
        assert_eq!(owners, ["platform/one/own.example.com"]);
    }
}

#[test]
fn the_oldest_route_has_a_listener_and_all_say_so() {
    for (by, kind, what) in [
        (Transport::Tcp, "TCPRoute", "connections"),
        (Transport::Udp, "UDPRoute", "datagrams"),
    ] {
        let all = format!("all {what} to listener \"one\" of ListenerSet red/db");
        let (has, has_not) = (
            format!("this route has {all}"),
            format!("an older {kind} has {all}"),
        );
        let route =
            |name, created| port_route(by, ("red", name, created), at(Some("one")), backends());
        let accepted = |translator: &Translator, name| accepted(translator, by, name);
        let mut translator = translated(objects(by));
        translator.apply([Change::Put(route("b", 10))]);
        assert_eq!(accepted(&translator, "b"), "The route is accepted");
        // Younger, older, and of the same age with an earlier name.
        translator.apply([Change::Put(route("c", 11))]);
        assert!(accepted(&translator, "b").contains(&has));
        assert!(accepted(&translator, "c").contains(&has_not));
        translator.apply([Change::Put(route("d", 9))]);
        assert!(accepted(&translator, "d").contains(&has));
        assert!(accepted(&translator, "b").contains(&has_not));
        translator.apply([Change::Put(route("a", 9))]);
        assert!(accepted(&translator, "a").contains(&has));
        for name in ["b", "c", "d"] {
            assert!(accepted(&translator, name).contains(&has_not), "{name}");
            // The proxies choose by themselves, so that nothing else is published where one goes.
            assert!(held(&translator, by, name).is_some());
        }
        assert_eq!(attached(&translator), [4, 0]);
        translator.apply(["a", "d"].map(|name| Change::Remove(of(by, name))));
        assert!(accepted(&translator, "b").contains(&has));
        translator.apply([Change::Remove(of(by, "c"))]);
        assert_eq!(accepted(&translator, "b"), "The route is accepted");
        assert_eq!(reasons(&translator, &of(by, "b")), Vec::<&str>::new());
    }
}

/// What one more route on a listener costs does not grow with those that are there.
#[test]
fn a_route_among_many_costs_no_more_statuses() {
    for by in Transport::ALL {
        let costs = |others: i64| {
            let name = |n: i64| format!("r{n}");
            let route = |n: i64| {
                let named = ("red", &*name(n), n);
                port_route(by, named, at(Some("one")), backends())
            };
            let mut translator = translated(objects(by).into_iter().chain((0..others).map(route)));
            translator.apply([Change::Put(route(others))]).work.statuses
        };
        assert_eq!(costs(3), costs(200));
    }
}

/// A route of one transport has nothing on a listener of the other, though their ports have one number.
#[test]
fn a_route_takes_no_listener_of_the_other_transport() {
    for (by, other) in [
        (Transport::Tcp, Transport::Udp),
        (Transport::Udp, Transport::Tcp),
    ] {
        let route = port_route(by, ("red", "all", 5), at(None), backends());
        let translator = translated(objects(other).into_iter().chain([route]));
        assert_eq!(held(&translator, by, "all"), None);
        let reasons = reasons(&translator, &of(by, "all"));
        assert_eq!(reasons, ["NotAllowedByListeners"]);
        assert_eq!(attached(&translator), [0, 0]);
    }
}

/// One number of a Service is two ports, and each kind of route has the endpoints of its own.
#[test]
fn each_transport_has_the_port_of_a_service_that_speaks_it() {
    let route = |by| port_route(by, ("red", "all", 5), at(None), backends());
    let world = Transport::ALL.into_iter().flat_map(|by| {
        let mut objects = objects(by);
        if by == Transport::Udp {
            // Beside the other one.
            objects[2] = match objects.swap_remove(2) {
                Object::ListenerSet(mut set) => {
                    set.name = ObjectName::new(set.name.namespace.clone(), "dns");
                    Object::ListenerSet(set)
                }
                other => other,
            };
        }
        objects
    });
    let mut udp = route(Transport::Udp);
    if let Object::PortRoute(route) = &mut udp {
        route.parents = vec![parent("ListenerSet", Some("red"), "dns", None)];
    }
    let mut translator = translated(world.chain([route(Transport::Tcp), udp]));
    for (by, backend, endpoint) in [
        (Transport::Tcp, "red/db:1", "127.0.0.2:8001"),
        (Transport::Udp, "red/db:1/udp", "127.0.0.2:9001"),
    ] {
        let route = held(&translator, by, "all").expect("it is published");
        assert_eq!(route.backends[0].backend, backend);
        assert_eq!(endpoints(&translator, backend).expect("it is"), [endpoint]);
    }
    // What goes of one transport takes nothing from the other.
    translator.apply([Change::Remove(of(Transport::Udp, "all"))]);
    assert_eq!(endpoints(&translator, "red/db:1/udp"), None);
    assert!(endpoints(&translator, "red/db:1").is_some());
    // A Service without the transport.
    let mut only_tcp = service("red", "db", &[1]);
    if let Object::Service(service) = &mut only_tcp {
        let tcp =
            |port: &vestibule_model::object::ServicePort| port.transport != Some(Transport::Udp);
        service.ports.retain(tcp);
    }
    let mut udp = route(Transport::Udp);
    if let Object::PortRoute(route) = &mut udp {
        route.parents = vec![parent("ListenerSet", Some("red"), "dns", None)];
    }
    translator.apply([Change::Put(only_tcp), Change::Put(udp)]);
    let of_udp = reasons(&translator, &of(Transport::Udp, "all"));
    assert_eq!(of_udp, ["UnsupportedProtocol"]);
    let route = held(&translator, Transport::Udp, "all").expect("it is published");
    assert_eq!(route.backends[0].backend, "");
}

#[test]
fn a_port_is_a_port_of_the_service_and_nobody_elses() {
    for by in Transport::ALL {
        let mut world = objects(by);
        if let Object::Gateway(gateway) = &mut world[1] {
            gateway.meta.uid = "uid".into();
        }
        // The first two are two ports if the transport is not theirs.
        let late = vec![
            listener("web", 5432, Protocol::Http, "a.example.com", None),
            listener("db", 5432, protocol(by), "", None),
        ];
        world.push(set("blue", "late", 2, "one", late));
        let mut translator = Translator::new(cluster_settings());
        translator.apply(world.into_iter().map(Change::Put));
        let desired = |number, transport| DesiredPort {
            gateway: "uid".into(),
            port: port(number),
            transport,
        };
        let mut expected = BTreeSet::from([
            desired(443, Transport::Tcp),
            desired(5432, by),
            desired(6379, by),
        ]);
        let late = key(Kind::ListenerSet, "blue", "late");
        match by {
            Transport::Tcp => {
                assert_eq!(reasons(&translator, &late), ["ProtocolConflict"; 2]);
            }
            Transport::Udp => {
                assert_eq!(reasons(&translator, &late), ["ProtocolConflict"]);
                expected.insert(desired(5432, Transport::Tcp));
            }
        }
        assert_eq!(*translator.ports(), expected);
        let told = BTreeMap::from([(desired(5432, by), Some(port(10_001)))]);
        translator.apply([Change::Ports(told)]);
        let key = ResourceKey::new(ResourceKind::Listener, "ListenerSet/red/db/one");
        let listener = translator.resources()[&key].decode();
        let Some(resource::Resource::Listener(listener)) = listener else {
            panic!("no listener");
        };
        let bind = listener.bind.expect("a bind");
        assert_eq!(bind.port, 10_001);
        assert_eq!((listener.port, &*listener.hostname), (5432, ""));
        let (transport, protocol) = match by {
            Transport::Tcp => (
                proto::Transport::Tcp,
                proto::listener::Protocol::Tcp(proto::TcpListener {}),
            ),
            Transport::Udp => (
                proto::Transport::Udp,
                proto::listener::Protocol::Udp(proto::UdpListener {}),
            ),
        };
        assert_eq!(bind.transport, i32::from(transport));
        assert_eq!(listener.protocol, Some(protocol));
    }
}

fn made(translator: &Translator) -> &GatewayService {
    match translator.services().values().next() {
        Some(DesiredService::Make(service)) => service,
        other => panic!("{other:?}"),
    }
}

/// TCP and UDP of one number are two ports of the Gateway's Service, whosever they are, and one comes and goes without
/// the other.
#[test]
fn a_udp_port_takes_no_tcp_port_of_the_service() {
    let udp = vec![listener("dns", 5432, Protocol::Udp, "", None)];
    let mut translator = in_a_cluster([]);
    let tcp = DesiredPort {
        gateway: "uid".into(),
        port: port(5432),
        transport: Transport::Tcp,
    };
    let other = DesiredPort {
        transport: Transport::Udp,
        ..tcp.clone()
    };
    translator.apply([Change::Ports(BTreeMap::from([
        (tcp, Some(port(10_001))),
        (other, Some(port(10_002))),
    ]))]);
    let before = made(&translator).ports.clone();
    assert_eq!(before[&(port(5432), Transport::Tcp)], port(10_001));
    assert_eq!(before.get(&(port(5432), Transport::Udp)), None);
    translator.apply([Change::Put(set("blue", "dns", 0, "one", udp))]);
    let service = made(&translator);
    assert_eq!(service.ports[&(port(5432), Transport::Tcp)], port(10_001));
    assert_eq!(service.ports[&(port(5432), Transport::Udp)], port(10_002));
    let manifest = service.front();
    let ports = manifest["spec"]["ports"].as_array().expect("ports");
    let of_number = ports.iter().filter(|entry| entry["port"] == 5432);
    let said: Vec<String> = of_number
        .map(|entry| {
            format!(
                "{} {} {}",
                entry["name"], entry["protocol"], entry["targetPort"]
            )
        })
        .collect();
    let expected = ["\"tcp-5432\" \"TCP\" 10001", "\"udp-5432\" \"UDP\" 10002"];
    assert_eq!(said, expected);
    let red = key(Kind::ListenerSet, "red", "db");
    assert_eq!(reasons(&translator, &red), Vec::<&str>::new());
    translator.apply([Change::Remove(key(Kind::ListenerSet, "blue", "dns"))]);
    assert_eq!(made(&translator).ports, before);
}

/// A raw port is its first namespace's, and each of the two transports by itself.
#[test]
fn a_namespace_takes_no_udp_port_of_another() {
    let udp = |port| vec![listener("dns", port, Protocol::Udp, "", None)];
    let mut world = objects(Transport::Udp);
    let tcp = vec![listener("db", 5432, Protocol::Tcp, "", None)];
    world.push(set("blue", "tcp", 2, "one", tcp));
    world.push(set("blue", "udp", 2, "one", udp(5432)));
    let at = |name| vec![parent("ListenerSet", Some("blue"), name, None)];
    let mut theirs = |by, name| {
        let route = port_route(by, ("blue", name, 0), at(name), backends());
        world.push(route);
    };
    theirs(Transport::Tcp, "tcp");
    theirs(Transport::Udp, "udp");
    let mut translator = translated(world);
    let listener = |name: &str| ResourceKey::new(ResourceKind::Listener, name);
    let is_served =
        |translator: &Translator, name: &str| translator.resources().contains_key(&listener(name));
    assert!(is_served(&translator, "ListenerSet/red/db/one"));
    assert!(is_served(&translator, "ListenerSet/blue/tcp/db"));
    assert!(!is_served(&translator, "ListenerSet/blue/udp/dns"));
    let refused = key(Kind::ListenerSet, "blue", "udp");
    assert_eq!(reasons(&translator, &refused), ["ProtocolConflict"]);
    // An older object of theirs changes nothing while the port is held.
    translator.apply([Change::Put(set("blue", "udp", 0, "one", udp(5432)))]);
    let of_red = reasons(&translator, &key(Kind::ListenerSet, "red", "db"));
    let of_blue = reasons(&translator, &refused);
    // `check` assumes no claims: there the older object wins, and never are both served.
    assert_ne!(of_red.is_empty(), of_blue.is_empty());
    assert_ne!(
        is_served(&translator, "ListenerSet/red/db/one"),
        is_served(&translator, "ListenerSet/blue/udp/dns")
    );
    translator.apply([Change::Put(set("blue", "udp", 3, "one", udp(5433)))]);
    assert!(is_served(&translator, "ListenerSet/blue/udp/dns"));
}

/// Routes of other namespaces are on a listener only where its `allowedRoutes` let them in.
#[test]
fn a_namespace_serves_nothing_on_a_udp_listener_of_another() {
    let route = port_route(Transport::Udp, ("blue", "theirs", 0), at(None), backends());
    let mut world = objects(Transport::Udp);
    world.push(route);
    let mut translator = translated(world);
    let theirs = key(Kind::UdpRoute, "blue", "theirs");
    let held = |translator: &Translator| held_of(translator, Transport::Udp, "blue", "theirs");
    assert_eq!(held(&translator), None);
    assert!(reasons(&translator, &theirs).contains(&"NotAllowedByListeners"));
    assert_eq!(attached(&translator), [0, 0]);
    let open = |name, port| Listener {
        allowed_namespaces: NamespaceScope::All,
        ..listener(name, port, Protocol::Udp, "", None)
    };
    let listeners = vec![
        open("one", 5432),
        listener("two", 6379, Protocol::Udp, "", None),
    ];
    translator.apply([Change::Put(set("red", "db", 1, "one", listeners))]);
    let route = held(&translator).expect("it is published");
    assert_eq!(route.listeners, ["ListenerSet/red/db/one"]);
    // And still nothing of the other namespace's Service comes with it.
    assert_eq!(route.backends[0].backend, "");
}

/// A Service of another namespace takes a grant there for this kind of route.
#[test]
fn a_udp_route_leads_to_no_service_of_another_namespace_without_a_grant() {
    let mut world = objects(Transport::Udp);
    world.extend([
        service("blue", "dns", &[1]),
        slice("blue", "dns", 0, 1, &[3]),
        port_route(
            Transport::Udp,
            ("red", "all", 5),
            at(None),
            vec![backend("blue", "dns", 1, 1)],
        ),
    ]);
    let mut translator = translated(world);
    let leads_to = |translator: &Translator| {
        let route = held(translator, Transport::Udp, "all").expect("it is published");
        let backend = route.backends[0].backend.clone();
        (backend, endpoints(translator, "blue/dns:1/udp"))
    };
    let route = of(Transport::Udp, "all");
    assert_eq!(leads_to(&translator), (String::new(), None));
    assert_eq!(reasons(&translator, &route), ["RefNotPermitted"]);
    let granted = |kind| Change::Put(grant("blue", "g", (kind, "red"), "Service"));
    translator.apply([granted("TCPRoute")]);
    assert_eq!(leads_to(&translator), (String::new(), None));
    translator.apply([granted("UDPRoute")]);
    let there = (
        "blue/dns:1/udp".to_owned(),
        Some(vec!["127.0.0.3:9001".to_owned()]),
    );
    assert_eq!(leads_to(&translator), there);
    assert_eq!(reasons(&translator, &route), Vec::<&str>::new());
    translator.apply([granted("TCPRoute")]);
    assert_eq!(leads_to(&translator), (String::new(), None));
}

/// Datagrams that went to a Gateway would come back for ever.
#[test]
fn a_udp_port_of_a_gateway_is_nobodys_endpoint() {
    let mut translator = in_a_cluster([
        set(
            "red",
            "dns",
            1,
            "one",
            vec![listener("dns", 53, Protocol::Udp, "", None)],
        ),
        port_route(
            Transport::Udp,
            ("red", "dns", 5),
            vec![parent("ListenerSet", None, "dns", None)],
            backends(),
        ),
    ]);
    let reached_by = |by| {
        let address = std::net::IpAddr::from([127, 0, 0, 2]);
        let assigned = Assigned {
            sockets: BTreeSet::from([(address, (port(9001), by))]),
            ..Assigned::default()
        };
        [Change::Addresses("uid".into(), Some(assigned))]
    };
    let route = of(Transport::Udp, "dns");
    translator.apply(reached_by(Transport::Tcp));
    let there = endpoints(&translator, "red/db:1/udp").expect("it is published");
    assert_eq!(there, ["127.0.0.2:9001"]);
    translator.apply(reached_by(Transport::Udp));
    assert_eq!(reasons(&translator, &route), ["EndpointNotAllowed"]);
    let there = endpoints(&translator, "red/db:1/udp").unwrap_or_default();
    assert_eq!(there, Vec::<String>::new());
}

/// BackendTLSPolicies are about connections: one for a Service is no matter of its UDP ports.
#[test]
fn a_backend_policy_is_no_matter_of_datagrams() {
    use vestibule_operator_testing::tls::{Trusts, config_map, policy};
    let route = |by| port_route(by, ("red", "all", 5), at(None), backends());
    let of_policy = key(Kind::BackendTlsPolicy, "red", "p");
    for by in Transport::ALL {
        let translator = translated(objects(by).into_iter().chain([
            route(by),
            config_map("red", "one", Trusts::Pair(0)),
            policy("red", "p", 0, ("db", None), Some("one")),
        ]));
        let name = match by {
            Transport::Tcp => "red/db:1",
            Transport::Udp => "red/db:1/udp",
        };
        let key = ResourceKey::new(ResourceKind::Backend, name);
        let backend = translator.resources()[&key].decode();
        let Some(resource::Resource::Backend(backend)) = backend else {
            panic!("no backend");
        };
        let over_tcp = by == Transport::Tcp;
        assert_eq!(backend.tls.is_some(), over_tcp);
        assert_eq!(translator.statuses().contains_key(&of_policy), over_tcp);
    }
}

/// A Gateway with an own listener of this transport that takes the routes of red, blue and green, whose claims are
/// recorded when the test says so.
fn with_own_listener(by: Transport) -> Translator {
    let mut translator = Translator::new(Settings {
        claims: ClaimMode::Recorded,
        ..settings()
    });
    translator.apply([our_class(), own_listener(by, NamespaceScope::All)].map(Change::Put));
    translator
}

fn own_listener(by: Transport, routes: NamespaceScope) -> Object {
    let mut own = listener("own", 5432, protocol(by), "", None);
    own.allowed_namespaces = routes;
    gateway("one", vec![own], NamespaceScope::Same)
}

fn on_own(by: Transport, namespace: &str, created: i64) -> Change {
    let parents = vec![parent("Gateway", Some("platform"), "one", None)];
    let backends = vec![backend(namespace, "db", 1, 1)];
    let of = (namespace, "db", created);
    Change::Put(port_route(by, of, parents, backends))
}

fn claim_of(by: Transport) -> ClaimKey {
    ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: port(5432),
        transport: by,
    })
}

/// Writes down who is to hold the port, as the leader does.
fn record(translator: &mut Translator, by: Transport) -> String {
    let key = claim_of(by);
    let Some(ClaimState::Wanted(holder)) = translator.claim_states().get(&key) else {
        panic!("nobody asks: {:?}", translator.claim_states().get(&key));
    };
    let holder = holder.clone();
    assert_eq!(holder.speaks, Some(Group::Raw));
    let recorded = BTreeMap::from([(key, Some(holder.clone()))]);
    translator.apply([Change::Claims(recorded)]);
    holder.namespace.to_string()
}

fn let_go(translator: &mut Translator, by: Transport) {
    let nobody = BTreeMap::from([(claim_of(by), None)]);
    translator.apply([Change::Claims(nobody)]);
}

/// The namespaces whose routes the proxies have.
fn served(translator: &Translator, by: Transport) -> Vec<&'static str> {
    let of = ["platform", "red", "blue", "green"].into_iter();
    of.filter(|of| held_of(translator, by, of, "db").is_some())
        .collect()
}

/// Truth, reason and message of Accepted of a namespace's route on the Gateway's own listener.
fn on_own_accepted(
    translator: &Translator,
    by: Transport,
    namespace: &str,
) -> (Truth, Reason, String) {
    let key = key(Kind::of_port_route(by), namespace, "db");
    let Some(Status::Route(status)) = translator.statuses().get(&key) else {
        panic!("no status");
    };
    let mut conditions = status.parents.iter().flat_map(|parent| &parent.conditions);
    let accepted = conditions.find(|of| of.kind == ConditionType::Accepted);
    let accepted = accepted.expect("a condition");
    (accepted.truth, accepted.reason, accepted.message.clone())
}

/// An older route that is edited, or restored, does not take the port of the team that serves it.
#[test]
fn a_port_of_the_gateway_stays_with_the_namespace_that_serves_it() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        assert_eq!(served(&translator, by), [""; 0], "it is not recorded yet");
        assert_eq!(on_own_accepted(&translator, by, "red").0, Truth::True);
        assert_eq!(record(&mut translator, by), "red");
        assert_eq!(served(&translator, by), ["red"]);

        translator.apply([on_own(by, "blue", 1)]);
        translator.apply([on_own(by, "green", 9)]);
        translator.apply([on_own(by, "blue", 2)]);
        assert_eq!(served(&translator, by), ["red"]);
        for loser in ["blue", "green"] {
            let (truth, reason, message) = on_own_accepted(&translator, by, loser);
            assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
            let said = format!(
                "{} port 5432 of Gateway platform/one belongs to another namespace",
                by.as_str()
            );
            assert!(message.contains(&said), "{message}");
        }
        let (truth, reason, message) = on_own_accepted(&translator, by, "red");
        assert_eq!((truth, reason), (Truth::True, Reason::Accepted));
        assert_eq!(message, "The route is accepted");

        // Red is away for a moment, as with delete and apply: nobody else is served, and red comes back.
        let red = key(Kind::of_port_route(by), "red", "db");
        translator.apply([Change::Remove(red.clone())]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
        assert_eq!(served(&translator, by), [""; 0]);
        translator.apply([on_own(by, "red", 20)]);
        assert_eq!(served(&translator, by), ["red"]);

        // It is away for longer than the grace: the oldest of the others has it, and red is a newcomer.
        translator.apply([Change::Remove(red)]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "blue");
        translator.apply([on_own(by, "red", 0)]);
        assert_eq!(served(&translator, by), ["blue"]);
    }
}

/// Whoever waits for a mistake in an edit of the only route gets nothing by it.
#[test]
fn a_mistake_in_an_edit_gives_no_port_to_who_waits_for_it() {
    for by in Transport::ALL {
        let mistaken_of = |namespace, created| {
            let Change::Put(Object::PortRoute(mut route)) = on_own(by, namespace, created) else {
                panic!("another change");
            };
            let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
            route.findings.push(mistake);
            Change::Put(Object::PortRoute(route))
        };
        let mistaken = |created| mistaken_of("red", created);
        let mut translator = with_own_listener(by);
        // What is mistaken from the beginning asks for nothing.
        translator.apply([mistaken(5)]);
        assert_eq!(translator.claim_states().get(&claim_of(by)), None);

        translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
        assert_eq!(record(&mut translator, by), "blue");
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "blue", "db"))]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_own(by, "blue", 1), mistaken(5)]);
        assert_eq!(served(&translator, by), [""; 0]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Used));
        let (truth, reason, _) = on_own_accepted(&translator, by, "blue");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        translator.apply([on_own(by, "red", 5)]);
        assert_eq!(served(&translator, by), ["red"]);

        // The Gateway's own namespace keeps its port as well.
        translator.apply([on_own(by, "platform", 9)]);
        assert_eq!(served(&translator, by), ["platform"]);
        translator.apply([mistaken_of("platform", 9)]);
        assert_eq!(served(&translator, by), [""; 0]);
        translator.apply([Change::Remove(key(
            Kind::of_port_route(by),
            "platform",
            "db",
        ))]);
        assert_eq!(served(&translator, by), ["red"]);

        // With the route the port goes, mistaken or not.
        translator.apply([mistaken(5)]);
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "red", "db"))]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
    }
}

/// The same for a listener of a ListenerSet, and for the Gateway's own listener, where the mistake is its admin's.
#[test]
fn a_mistaken_listener_gives_no_port_to_who_waits_for_it() {
    let mistaken = |mut listener: Listener| {
        let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
        listener.findings.push(mistake);
        listener
    };
    for by in Transport::ALL {
        let on_set = |namespace, created, listener| {
            Change::Put(set(namespace, "db", created, "one", vec![listener]))
        };
        let raw = || listener("db", 5432, protocol(by), "", None);
        let unknown = || listener("db", 5432, Protocol::from_text("TPC"), "", None);
        let state = |translator: &Translator| translator.claim_states().get(&claim_of(by)).cloned();
        let mut translator = Translator::new(Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        });
        let named = vec![passthrough("own", "own.example.com")];
        let open = gateway("one", named, NamespaceScope::All);
        translator.apply([our_class(), open].map(Change::Put));
        // What is mistaken from the beginning asks for nothing.
        translator.apply([on_set("red", 5, mistaken(raw()))]);
        assert_eq!(state(&translator), None);

        translator.apply([on_set("red", 5, raw())]);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_set("blue", 1, raw())]);
        for mistake in [mistaken(raw()), mistaken(unknown())] {
            translator.apply([on_set("red", 5, mistake)]);
            assert_eq!(state(&translator), Some(ClaimState::Used));
        }
        // A mistake on another port, or of somebody else, keeps nothing.
        let elsewhere = mistaken(listener("db", 6379, protocol(by), "", None));
        translator.apply([on_set("red", 5, elsewhere)]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([on_set("green", 1, mistaken(raw()))]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([on_set("red", 5, mistaken(raw()))]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        translator.apply([Change::Remove(key(Kind::ListenerSet, "red", "db"))]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));

        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
        record(&mut translator, by);
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "blue", "db"))]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_own(by, "blue", 1)]);
        let mut own = mistaken(listener("own", 5432, protocol(by), "", None));
        own.allowed_namespaces = NamespaceScope::All;
        let slip = gateway("one", vec![own], NamespaceScope::Same);
        translator.apply([Change::Put(slip)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        let (truth, reason, _) = on_own_accepted(&translator, by, "blue");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        translator.apply([Change::Put(own_listener(by, NamespaceScope::All))]);
        assert_eq!(served(&translator, by), ["red"]);
    }
}

#[test]
fn a_route_of_the_gateways_namespace_has_its_port_at_once() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 1)]);
        record(&mut translator, by);
        translator.apply([on_own(by, "platform", 9)]);
        assert_eq!(served(&translator, by), ["platform"]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Revoked));
        let (truth, reason, message) = on_own_accepted(&translator, by, "red");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        assert!(message.contains("is reserved for Gateway platform/one itself"));
        let_go(&mut translator, by);
        assert_eq!(translator.claim_states().get(&claim_of(by)), None);
        // It goes, and the first tenant has the port again.
        translator.apply([Change::Remove(key(
            Kind::of_port_route(by),
            "platform",
            "db",
        ))]);
        assert_eq!(record(&mut translator, by), "red");
        assert_eq!(served(&translator, by), ["red"]);
    }
}

/// Whoever may not have the port any more, by its grant or as the Gateway does not admit it, keeps nobody waiting.
#[test]
fn a_port_is_taken_from_whoever_may_not_have_it() {
    for by in Transport::ALL {
        let scope = |namespace: &str| {
            NamespaceScope::Selector(LabelSelector {
                requirements: vec![Requirement::In(
                    "kubernetes.io/metadata.name".into(),
                    vec![namespace.to_owned()],
                )],
            })
        };
        let granted_to = |namespace| {
            let mut grant = hostname_grant("db", &[namespace], &["*"]);
            grant.ports.insert(port(5432));
            grant.protocols.insert(protocol(by));
            Change::Put(Object::HostnameGrant(grant))
        };
        for by_grant in [true, false] {
            let only_for = |namespace| {
                if by_grant {
                    granted_to(namespace)
                } else {
                    Change::Put(own_listener(by, scope(namespace)))
                }
            };
            let mut translator = with_own_listener(by);
            translator.apply([only_for("red")]);
            translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
            assert_eq!(record(&mut translator, by), "red");
            assert_eq!(served(&translator, by), ["red"]);
            translator.apply([only_for("blue")]);
            assert_eq!(served(&translator, by), [""; 0]);
            let states = translator.claim_states();
            assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Revoked));
            let_go(&mut translator, by);
            assert_eq!(record(&mut translator, by), "blue");
            assert_eq!(served(&translator, by), ["blue"]);
        }
    }
}

/// A slip in an edit of the Gateway, mended a moment later, hands no port to an older route of somebody else.
#[test]
fn a_port_whose_listener_is_away_for_a_moment_stays_with_its_holder() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        translator.apply([on_own(by, "blue", 1)]);
        let mut slip = listener("own", 5433, protocol(by), "", None);
        slip.allowed_namespaces = NamespaceScope::All;
        let slip = gateway("one", vec![slip], NamespaceScope::Same);
        translator.apply([Change::Put(slip)]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
        translator.apply([Change::Put(own_listener(by, NamespaceScope::All))]);
        assert_eq!(served(&translator, by), ["red"]);
    }
}

/// Nobody waits for a grace of somebody who cannot come back: whose grant is withdrawn after the route, or whose routes
/// the Gateway's listener takes no more, though its ListenerSets are let in.
#[test]
fn a_port_that_its_holder_cannot_have_again_is_free_at_once() {
    for by in Transport::ALL {
        let granted_to = |name: &str, namespaces: &[&'static str]| {
            let mut grant = hostname_grant(name, namespaces, &["*"]);
            grant.ports.insert(port(5432));
            grant.protocols.insert(protocol(by));
            Change::Put(Object::HostnameGrant(grant))
        };
        let state = |translator: &Translator| translator.claim_states().get(&claim_of(by)).cloned();
        let gone = |namespace: &str| Change::Remove(key(Kind::of_port_route(by), namespace, "db"));
        let mut translator = with_own_listener(by);
        translator.apply([granted_to("red", &["red"]), granted_to("blue", &["blue"])]);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        translator.apply([gone("red")]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([Change::Remove(key(Kind::HostnameGrant, "platform", "red"))]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));

        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        let mut own = listener("own", 5432, protocol(by), "", None);
        own.allowed_namespaces = NamespaceScope::Same;
        let narrowed = gateway("one", vec![own], NamespaceScope::All);
        translator.apply([Change::Put(narrowed)]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
    }
}

/// TCP and UDP of one number are two ports, with a holder each.
/// A protocol that nobody can read may be a mistake for one that the namespace may have. It does not keep a port for
/// bytes that the namespace may no longer have.
#[test]
fn a_port_is_taken_from_whoever_may_not_have_it_though_a_mistake_hides_the_protocol() {
    let at = ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: port(443),
        transport: Transport::Tcp,
    });
    let granted = |name: &str, protocols: &[Protocol]| {
        let mut grant = hostname_grant(name, &["red"], &["*"]);
        grant.ports.insert(port(443));
        grant.protocols.extend(protocols.iter().cloned());
        Change::Put(Object::HostnameGrant(grant))
    };
    let withdrawn = |name: &str| Change::Remove(key(Kind::HostnameGrant, "platform", name));
    let on_set = |protocol: Protocol| {
        let mut listener = listener("db", 443, protocol.clone(), "", None);
        if protocol != Protocol::Tcp {
            let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
            listener.findings.push(mistake);
        }
        Change::Put(set("red", "db", 5, "one", vec![listener]))
    };
    let state = |translator: &Translator| translator.claim_states().get(&at).cloned();
    for mistake in [Protocol::from_text("TPC"), Protocol::Tls] {
        let mut translator = Translator::new(Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        });
        let open = gateway("one", Vec::new(), NamespaceScope::All);
        translator.apply([our_class(), open].map(Change::Put));
        translator.apply([granted("names", &[]), granted("bytes", &[Protocol::Tcp])]);
        translator.apply([on_set(Protocol::Tcp)]);
        let Some(ClaimState::Wanted(holder)) = state(&translator) else {
            panic!("nobody asks: {:?}", state(&translator));
        };
        let recorded = BTreeMap::from([(at.clone(), Some(holder))]);
        translator.apply([Change::Claims(recorded)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        translator.apply([on_set(mistake)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        // What is left gives it names on the port.
        translator.apply([withdrawn("bytes")]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
        translator.apply([granted("bytes", &[Protocol::Tcp])]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        // Without any grant, everybody may have names, and nobody the bytes of all of them.
        translator.apply([withdrawn("bytes"), withdrawn("names")]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
        translator.apply([on_set(Protocol::Tcp)]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
    }
}

#[test]
fn a_port_of_the_other_transport_is_another_port() {
    let mut translator = with_own_listener(Transport::Tcp);
    let mut listeners = Vec::new();
    for by in Transport::ALL {
        let mut own = listener(by.as_str(), 5432, protocol(by), "", None);
        own.allowed_namespaces = NamespaceScope::All;
        listeners.push(own);
    }
    let both = gateway("one", listeners, NamespaceScope::Same);
    translator.apply([Change::Put(both)]);
    translator.apply([on_own(Transport::Tcp, "red", 1)]);
    translator.apply([on_own(Transport::Udp, "blue", 1)]);
    assert_eq!(record(&mut translator, Transport::Tcp), "red");
    assert_eq!(record(&mut translator, Transport::Udp), "blue");
    assert_eq!(served(&translator, Transport::Tcp), ["red"]);
    assert_eq!(served(&translator, Transport::Udp), ["blue"]);
}

/// The proxies, the Service and the record get no port beyond the limit of a namespace, and its other listeners go on.
#[test]
fn a_namespace_uses_no_more_ports_than_it_may() {
    let mut settings = cluster_settings();
    settings.claims = ClaimMode::Recorded;
    settings.policy.ports_per_namespace = 2;
    let mut translator = Translator::new(settings);
    let on = |of: &str, created: i64, ports: &[u16]| {
        let listeners = ports.iter().map(|port| {
            let name = format!("l{port}");
            listener(
                &name,
                *port,
                Protocol::Http,
                &format!("{of}{port}.example.com"),
                None,
            )
        });
        Change::Put(set("red", of, created, "one", listeners.collect()))
    };
    let mut edge = gateway(
        "one",
        vec![listener("own", 80, Protocol::Http, "own.example.com", None)],
        NamespaceScope::All,
    );
    if let Object::Gateway(gateway) = &mut edge {
        gateway.meta.uid = "uid".into();
    }
    translator.apply([Change::Put(our_class()), Change::Put(edge)]);
    let record = |translator: &mut Translator| {
        for _ in 0..10 {
            let states = translator.claim_states().iter();
            let wanted = states.filter_map(|(key, state)| match state {
                ClaimState::Wanted(holder) => Some((key.clone(), Some(holder.clone()))),
                _ => None,
            });
            let wanted: BTreeMap<_, _> = wanted.collect();
            if wanted.is_empty() {
                return;
            }
            translator.apply([Change::Claims(wanted)]);
        }
        panic!("wishes do not come to an end");
    };
    let ports = |translator: &Translator| {
        let desired = translator.ports().iter();
        let numbers = desired.map(|desired| desired.port.get());
        numbers.collect::<Vec<u16>>()
    };
    let accepted = |translator: &Translator, name: &str| {
        let set = key(Kind::ListenerSet, "red", name);
        let Some(Status::Listeners(status)) = translator.statuses().get(&set) else {
            panic!("no status");
        };
        let conditions = status.listeners.iter().map(|listener| {
            let mut conditions = listener.conditions.iter();
            let accepted = conditions.find(|of| of.kind == ConditionType::Accepted);
            accepted.expect("a condition").reason
        });
        conditions.collect::<Vec<Reason>>()
    };
    translator.apply([on("young", 5, &[80, 8001, 8002])]);
    record(&mut translator);
    assert_eq!(ports(&translator), [80, 8001, 8002]);
    // An older set takes nothing from what is in service, and its listener on a port in use is served.
    translator.apply([on("old", 1, &[8003, 8001])]);
    record(&mut translator);
    assert_eq!(ports(&translator), [80, 8001, 8002]);
    assert_eq!(accepted(&translator, "young"), [Reason::Accepted; 3]);
    let of_old = [Reason::QuotaExceeded, Reason::Accepted];
    assert_eq!(accepted(&translator, "old"), of_old);
    let mut claimed = translator.claim_states().keys();
    assert!(!claimed.any(|key| key.to_string().contains("8003")));
    // Another namespace has ports of its own.
    let blue = vec![listener("l", 8003, Protocol::Tcp, "", None)];
    translator.apply([Change::Put(set("blue", "set", 9, "one", blue))]);
    record(&mut translator);
    assert_eq!(ports(&translator), [80, 8001, 8002, 8003]);
}
