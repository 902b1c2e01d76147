//! Objects of one Gateway and a few namespaces that get in one another's way.

use proptest::prelude::*;
use vestibule_model::gateway::Listener;
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::Change;

use vestibule_operator_testing::grants::a_hostname_grant;
use vestibule_operator_testing::http::{Rule, as_grpc, http_route};
use vestibule_operator_testing::objects::*;

const SPACES: [&str; 4] = ["a-b", "a", "b", "platform"];
const HOSTS: [&str; 6] = [
    "*.com",
    "*.example.com",
    "example.com",
    "x.example.com",
    "y.example.com",
    "z.x.example.com",
];

pub(crate) fn the_gateway() -> Object {
    let own = vec![passthrough("own", "own.example.com")];
    gateway("one", own, NamespaceScope::All)
}

fn a_space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&SPACES[..])
}

fn a_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["one", "two"][..])
}

fn a_scope() -> impl Strategy<Value = NamespaceScope> {
    prop_oneof![
        3 => Just(NamespaceScope::All),
        2 => Just(NamespaceScope::Same),
        2 => Just(by_label("team", "red")),
    ]
}

fn a_listener() -> impl Strategy<Value = Listener> {
    let protocol = prop_oneof![
        12 => Just(Protocol::Tls),
        4 => Just(Protocol::Https),
        1 => Just(Protocol::Http),
        2 => Just(Protocol::Tcp),
        2 => Just(Protocol::Udp),
    ];
    let port = prop::sample::select(&[443u16, 443, 443, 8443][..]);
    let host = prop_oneof![1 => Just(""), 8 => prop::sample::select(&HOSTS[..])];
    let certificate = (a_space(), a_name());
    (
        port,
        protocol,
        host,
        certificate,
        prop::bool::ANY,
        a_scope(),
    )
        .prop_map(
            |(port, protocol, host, (space, secret), terminate, scope)| {
                let end = Some(Tls::Terminate(space.into(), secret.into()));
                let (host, tls) = match protocol {
                    Protocol::Tls if terminate => (host, end),
                    Protocol::Tls => (host, Some(Tls::Passthrough)),
                    Protocol::Https => (host, end),
                    Protocol::Http => (host, None),
                    _ => ("", None),
                };
                let mut listener = listener("", port, protocol, host, tls);
                listener.allowed_namespaces = scope;
                listener
            },
        )
}

/// With the names `l0`, `l1`, …
fn some_listeners() -> impl Strategy<Value = Vec<Listener>> {
    prop::collection::vec(a_listener(), 1..4).prop_map(|mut listeners| {
        for (index, listener) in listeners.iter_mut().enumerate() {
            listener.name = format!("l{index}").into();
        }
        listeners
    })
}

fn a_set() -> impl Strategy<Value = Object> {
    // Now and then it is about a Gateway that is not there.
    let parent = prop_oneof![12 => Just("one"), 1 => Just("two")];
    (a_space(), a_name(), 0i64..3, parent, some_listeners()).prop_map(
        |(space, name, created, gateway, listeners)| set(space, name, created, gateway, listeners),
    )
}

/// A TLSRoute, or a route of another kind of the same.
fn a_route() -> impl Strategy<Value = Object> {
    let section = || prop::option::weighted(0.3, prop::sample::select(&["l0", "l1", "no"][..]));
    let port = prop::option::weighted(0.3, prop::sample::select(&[443u16, 8443, 1][..]));
    let to = prop_oneof![
        1 => section().prop_map(|section| parent("Gateway", Some("platform"), "one", section)),
        4 => (prop::option::weighted(0.4, a_space()), a_name(), section())
            .prop_map(|(space, name, section)| parent("ListenerSet", space, name, section)),
    ];
    let to = (to, port).prop_map(|(mut parent, port)| {
        parent.port = port.and_then(Port::new);
        parent
    });
    // Routes meet at a few names.
    let host = prop_oneof![
        2 => prop::sample::select(&["x.example.com", "*.example.com"][..]),
        1 => prop::sample::select(&HOSTS[..]),
    ];
    let hosts = prop::collection::btree_set(host, 1..3);
    let weighted = (
        a_space(),
        a_name(),
        prop::sample::select(&[1u16, 2][..]),
        0u32..3,
    );
    // Mostly to a namespace that the route need not ask.
    let backends = prop::collection::vec((weighted, prop::bool::weighted(0.6)), 1..4);
    let parents = prop::collection::vec(to, 1..3);
    let named = (a_space(), a_name(), 0i64..3);
    let kind = prop_oneof![
        5 => Just(Kind::TlsRoute),
        2 => Just(Kind::HttpRoute),
        1 => Just(Kind::GrpcRoute),
        2 => Just(Kind::TcpRoute),
        2 => Just(Kind::UdpRoute),
    ];
    (named, parents, hosts, backends, kind).prop_map(
        |((space, name, created), parents, hosts, backends, kind)| {
            let hosts: Vec<&str> = hosts.into_iter().collect();
            let backends = backends
                .into_iter()
                .map(|((there, service, port, weight), home)| {
                    backend(if home { space } else { there }, service, port, weight)
                })
                .collect();
            if kind.routes_ports() {
                let named = (space, name, created);
                return port_route(kind.transport(), named, parents, backends);
            }
            if kind == Kind::TlsRoute {
                return route(space, name, created, parents, &hosts, backends);
            }
            // Of the others, one name fewer: it may be the last.
            let rules = [Rule::Plain];
            let route = http_route(
                (space, name, created),
                parents,
                &hosts[1..],
                &rules,
                &backends,
            );
            if kind == Kind::GrpcRoute {
                as_grpc(route)
            } else {
                route
            }
        },
    )
}

fn a_grant() -> impl Strategy<Value = Object> {
    let from = prop_oneof![
        3 => Just(("ListenerSet", "Secret")),
        1 => Just(("Gateway", "Secret")),
        3 => Just(("TLSRoute", "Service")),
        1 => Just(("HTTPRoute", "Service")),
        1 => Just(("GRPCRoute", "Service")),
        1 => Just(("TCPRoute", "Service")),
        1 => Just(("UDPRoute", "Service")),
        1 => Just(("TLSRoute", "Secret")),
    ];
    (a_space(), a_name(), a_space(), from)
        .prop_map(|(space, name, theirs, (kind, to))| grant(space, name, (kind, theirs), to))
}

pub(crate) fn an_object() -> impl Strategy<Value = Object> {
    let gateway = (some_listeners(), a_scope())
        .prop_map(|(listeners, scope)| gateway("one", listeners, scope));
    let service = (a_space(), a_name(), prop::bool::ANY)
        .prop_map(|(space, name, both)| service(space, name, if both { &[1, 2] } else { &[1] }));
    let slice = (
        a_space(),
        a_name(),
        0u8..2,
        prop::sample::select(&[1u16, 2][..]),
        prop::collection::btree_set(1u8..4, 0..2),
    )
        .prop_map(|(space, name, suffix, port, last)| {
            let last: Vec<u8> = last.into_iter().collect();
            slice(space, name, suffix, port, &last)
        });
    let labelled = (a_space(), prop::sample::select(&["red", "blue"][..]))
        .prop_map(|(space, team)| namespace(space, &[("team", team)]));
    let secret = (a_space(), a_name(), 0usize..2)
        .prop_map(|(space, name, pair)| secret(space, name, Holds::Pair(pair)));
    prop_oneof![
        1 => gateway,
        8 => a_set(),
        10 => a_route(),
        5 => service,
        6 => slice,
        3 => a_grant(),
        1 => a_hostname_grant(&SPACES),
        3 => labelled,
        4 => secret,
    ]
}

/// What comes in one pass: mostly a single edit.
pub(crate) fn edits() -> impl Strategy<Value = Vec<Change>> {
    let edit = prop_oneof![
        2 => an_object().prop_map(Change::Put),
        1 => an_object().prop_map(|object| Change::Remove(object.key())),
    ];
    prop::collection::vec(edit, 1..3)
}
