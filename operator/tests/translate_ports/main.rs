//! TCPRoutes and UDPRoutes: what the proxies get, which route of several has a listener, what each says of itself, and
//! that the two transports do not affect each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::claim::ClaimKey;
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Group, Port, Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_model::send_proxy::{AnnotationFault, HeaderVersion, SendProxy};
use vestibule_operator::translate::{
    Assigned, Change, ClaimMode, ClaimState, DesiredPort, DesiredService, GatewayService, Settings,
    Status, Translator,
};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

mod own;

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
        Arc::make_mut(gateway).meta.uid = "uid".into();
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
        // The owners of names do not matter to them.
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

/// The cost of one more route on a listener does not grow with the number of routes that it has.
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
                    Arc::make_mut(&mut set).name =
                        ObjectName::new(set.name.namespace.clone(), "dns");
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
    // The end of a route of one transport does not affect the other.
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
            Arc::make_mut(gateway).meta.uid = "uid".into();
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

/// The PROXY header of a backend, as the proxies get it.
fn header(translator: &Translator, name: &str) -> Option<proto::SendProxyProtocol> {
    let key = ResourceKey::new(ResourceKind::Backend, name);
    match translator.resources().get(&key)?.decode()? {
        resource::Resource::Backend(backend) => Some(backend.send_proxy_protocol()),
        other => panic!("{other:?}"),
    }
}

/// A Service `red/db` whose TCP ports expect this.
fn expecting(expected: SendProxy) -> Change {
    let mut object = service("red", "db", &[1]);
    let Object::Service(service) = &mut object else {
        panic!("no Service");
    };
    for port in &mut service.ports {
        if port.transport == Some(Transport::Tcp) {
            port.send_proxy = expected;
        }
    }
    Change::Put(object)
}

#[test]
fn backends_get_the_header_that_their_service_expects() {
    use proto::SendProxyProtocol::{Unspecified, V1, V2};
    let mut world = objects(Transport::Tcp);
    // Another Service, whose route is to stay as it is.
    world.push(service("red", "other", &[1]));
    let others = vec![backend("red", "other", 1, 1)];
    for (name, section, to) in [("db", "one", backends()), ("other", "two", others)] {
        let route = ("red", name, 5);
        world.push(port_route(Transport::Tcp, route, at(Some(section)), to));
    }
    let mut translator = translated(world);
    let leads_to = |translator: &Translator, name| {
        let route = held(translator, Transport::Tcp, name).expect("it is published");
        route.backends[0].backend.clone()
    };
    let route = of(Transport::Tcp, "db");
    let none = Vec::<&str>::new();
    assert_eq!(header(&translator, "red/db:1"), Some(Unspecified));
    for (expected, sent) in [
        (SendProxy::Header(HeaderVersion::V2), V2),
        (SendProxy::Header(HeaderVersion::V1), V1),
    ] {
        translator.apply([expecting(expected)]);
        assert_eq!(header(&translator, "red/db:1"), Some(sent));
        assert_eq!(leads_to(&translator, "db"), "red/db:1");
        assert_eq!(reasons(&translator, &route), none);
    }
    // The proxies would not know what to send, so they do not connect.
    translator.apply([expecting(SendProxy::Unreadable(AnnotationFault::Twice))]);
    assert_eq!(header(&translator, "red/db:1"), None);
    assert_eq!(leads_to(&translator, "db"), "");
    assert_eq!(reasons(&translator, &route), ["InvalidAnnotation"]);
    let Some(Status::Route(status)) = translator.statuses().get(&route) else {
        panic!("no status");
    };
    let mut conditions = status.parents[0].conditions.iter();
    let resolved = conditions.find(|of| of.kind == ConditionType::ResolvedRefs);
    let resolved = resolved.expect("a condition");
    assert_eq!(resolved.truth, Truth::False);
    assert_eq!(resolved.reason, Reason::InvalidAnnotation);
    for part in [
        "vestibule.dev/send-proxy-protocol",
        "two entries name the same port",
        "say v1 or v2",
    ] {
        assert!(resolved.message.contains(part), "{}", resolved.message);
    }
    assert_eq!(header(&translator, "red/other:1"), Some(Unspecified));
    assert_eq!(leads_to(&translator, "other"), "red/other:1");
    assert_eq!(reasons(&translator, &of(Transport::Tcp, "other")), none);

    translator.apply([expecting(SendProxy::Off)]);
    assert_eq!(header(&translator, "red/db:1"), Some(Unspecified));
    assert_eq!(leads_to(&translator, "db"), "red/db:1");
    assert_eq!(reasons(&translator, &route), none);
}

/// The PROXY protocol is about connections: the annotation of a Service is no matter of its UDP ports.
#[test]
fn headers_are_no_matter_of_datagrams() {
    for expected in [
        SendProxy::Header(HeaderVersion::V2),
        SendProxy::Unreadable(AnnotationFault::NoSuchPort),
    ] {
        let by = Transport::Udp;
        let route = port_route(by, ("red", "all", 5), at(None), backends());
        let mut translator = translated(objects(by).into_iter().chain([route]));
        translator.apply([expecting(expected)]);
        let sent = Some(proto::SendProxyProtocol::Unspecified);
        assert_eq!(header(&translator, "red/db:1/udp"), sent);
        assert_eq!(reasons(&translator, &of(by, "all")), Vec::<&str>::new());
    }
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
        Arc::make_mut(gateway).meta.uid = "uid".into();
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
    // An older set does not affect listeners in service, and its listener on a port in use is served.
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
