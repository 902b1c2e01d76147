//! TCPRoutes: what the proxies get, which route of several has a listener, and what each says of itself.

mod common;

use std::collections::BTreeMap;

use common::*;
use vestibule_model::condition::{ConditionType, Truth};
use vestibule_model::conflict::Transport;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::{Object, ParentRef, Port, Protocol};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, DesiredPort, Status, Translator};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

fn at(section: Option<&str>) -> Vec<ParentRef> {
    vec![parent("ListenerSet", None, "db", section)]
}

fn objects() -> Vec<Object> {
    let listeners = vec![
        listener("one", 5432, Protocol::Tcp, "", None),
        listener("two", 6379, Protocol::Tcp, "", None),
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

fn backends() -> Vec<vestibule_model::object::BackendRef> {
    vec![backend("red", "db", 1, 1)]
}

fn of(name: &str) -> ObjectKey {
    key(Kind::TcpRoute, "red", name)
}

/// A route as the proxies hold it.
fn held(translator: &Translator, name: &str) -> Option<proto::TcpRoute> {
    let key = ResourceKey::new(ResourceKind::TcpRoute, format!("red/{name}"));
    match translator.resources().get(&key)?.decode()? {
        resource::Resource::TcpRoute(route) => Some(route),
        other => panic!("{other:?}"),
    }
}

/// What Accepted of a route's only parent says, which has to be true.
fn accepted(translator: &Translator, name: &str) -> String {
    let Some(Status::Route(status)) = translator.statuses().get(&of(name)) else {
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
    let all = tcp_route(("red", "all", 5), at(None), backends());
    let translator = translated(objects().into_iter().chain([all]));
    let route = held(&translator, "all").expect("it is published");
    let listener = |name| format!("ListenerSet/red/db/{name}");
    assert_eq!(route.listeners, [listener("one"), listener("two")]);
    assert_eq!((&*route.tenant, route.created), ("red", 5));
    assert_eq!(route.backends[0].backend, "red/db:1");
    assert_eq!(accepted(&translator, "all"), "The route is accepted");
    // Whose names are is no matter of theirs.
    let owners = translator.resources().keys();
    let owners = owners.filter(|key| key.kind() == ResourceKind::HostnameOwner);
    let owners: Vec<&str> = owners.map(|key| key.name.as_str()).collect();
    assert_eq!(owners, ["platform/one/own.example.com"]);
}

#[test]
fn the_oldest_route_has_a_listener_and_all_say_so() {
    const HAS: &str = "this route has all connections to listener \"one\" of ListenerSet red/db";
    const HAS_NOT: &str =
        "an older TCPRoute has all connections to listener \"one\" of ListenerSet red/db";
    let route = |name, created| tcp_route(("red", name, created), at(Some("one")), backends());
    let mut translator = translated(objects());
    translator.apply([Change::Put(route("b", 10))]);
    assert_eq!(accepted(&translator, "b"), "The route is accepted");
    // Younger, older, and of the same age with an earlier name.
    translator.apply([Change::Put(route("c", 11))]);
    assert!(accepted(&translator, "b").contains(HAS));
    assert!(accepted(&translator, "c").contains(HAS_NOT));
    translator.apply([Change::Put(route("d", 9))]);
    assert!(accepted(&translator, "d").contains(HAS));
    assert!(accepted(&translator, "b").contains(HAS_NOT));
    translator.apply([Change::Put(route("a", 9))]);
    assert!(accepted(&translator, "a").contains(HAS));
    for name in ["b", "c", "d"] {
        assert!(accepted(&translator, name).contains(HAS_NOT), "{name}");
        // The proxies choose by themselves, so that nothing else is published where one goes.
        assert!(held(&translator, name).is_some());
    }
    assert_eq!(attached(&translator), [4, 0]);
    translator.apply(["a", "d"].map(|name| Change::Remove(of(name))));
    assert!(accepted(&translator, "b").contains(HAS));
    translator.apply([Change::Remove(of("c"))]);
    assert_eq!(accepted(&translator, "b"), "The route is accepted");
    assert_eq!(reasons(&translator, &of("b")), Vec::<&str>::new());
}

/// What one more route on a listener costs does not grow with those that are there.
#[test]
fn a_route_among_many_costs_no_more_statuses() {
    let costs = |others: i64| {
        let route = |n: i64| tcp_route(("red", &format!("r{n}"), n), at(Some("one")), backends());
        let mut translator = translated(objects().into_iter().chain((0..others).map(route)));
        translator.apply([Change::Put(route(others))]).work.statuses
    };
    assert_eq!(costs(3), costs(200));
}

#[test]
fn a_port_of_tcp_is_a_port_of_the_service_and_nobody_elses() {
    let mut translator = Translator::new(cluster_settings());
    let mut world = objects();
    if let Object::Gateway(gateway) = &mut world[1] {
        gateway.meta.uid = "uid".into();
    }
    let web = vec![
        listener("web", 5432, Protocol::Http, "a.example.com", None),
        listener("db", 5432, Protocol::Tcp, "", None),
    ];
    world.push(set("blue", "late", 2, "one", web));
    translator.apply(world.into_iter().map(Change::Put));
    let desired = |port| DesiredPort {
        gateway: "uid".into(),
        port: Port::new(port).expect("a port"),
        transport: Transport::Tcp,
    };
    let desired_services: Vec<&DesiredPort> = translator.ports().iter().collect();
    assert_eq!(
        desired_services,
        [&desired(443), &desired(5432), &desired(6379)]
    );
    let told = BTreeMap::from([(desired(5432), Port::new(10_001))]);
    translator.apply([Change::Ports(told)]);
    let key = ResourceKey::new(ResourceKind::Listener, "ListenerSet/red/db/one");
    let listener = translator.resources()[&key].decode();
    let Some(resource::Resource::Listener(listener)) = listener else {
        panic!("no listener");
    };
    assert_eq!(listener.bind.expect("a bind").port, 10_001);
    assert_eq!((listener.port, &*listener.hostname), (5432, ""));
    let tcp = proto::listener::Protocol::Tcp(proto::TcpListener {});
    assert_eq!(listener.protocol, Some(tcp));
    let late = common::key(Kind::ListenerSet, "blue", "late");
    assert_eq!(reasons(&translator, &late), ["ProtocolConflict"; 2]);
}
