//! Random objects.

use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::protocol::{Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::selector::NamespaceScope;
use vestibule_model::send_proxy::{AnnotationFault, HeaderVersion, SendProxy};
use vestibule_model::tls_policy::GatewayTls;
use vestibule_operator::translate::CONTROLLER;
use vestibule_operator_testing::grants::a_hostname_grant;
use vestibule_operator_testing::http::{Rule, as_grpc, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{
    PerPort, Trusts, config_map, core, gateway_tls, on_8443, policy, validation, with_tls,
};

pub(super) const TENANTS: [&str; 3] = ["a-b", "a", "b"];
pub(super) const HOSTS: [&str; 7] = [
    "",
    "*.com",
    "*.example.com",
    "example.com",
    "x.example.com",
    "y.example.com",
    "z.x.example.com",
];

pub(super) fn a_tenant() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(&TENANTS[..])
}

pub(super) fn a_name() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(&["one", "two"][..])
}

fn a_host() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&HOSTS[..])
}

fn a_protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        8 => Just(Protocol::Tls),
        2 => Just(Protocol::Https),
        5 => Just(Protocol::Http),
        1 => Just(Protocol::Tcp),
        1 => Just(Protocol::Udp),
    ]
}

fn a_transport() -> impl Strategy<Value = Transport> + Clone {
    prop::sample::select(&Transport::ALL[..])
}

fn a_listener() -> impl Strategy<Value = Listener> {
    let tls = prop_oneof![
        Just(Some(Tls::Passthrough)),
        (a_tenant(), a_name()).prop_map(|(ns, name)| Some(Tls::Terminate(ns.into(), name.into()))),
    ];
    let port = prop::sample::select(&[443u16, 443, 8443, 9443][..]);
    let scope = prop_oneof![
        2 => Just(NamespaceScope::Same),
        2 => Just(NamespaceScope::All),
        2 => Just(by_label("team", "red")),
    ];
    let name = prop::sample::select(&["l", "m", "n"][..]);
    (name, port, a_protocol(), a_host(), tls, scope).prop_map(
        |(name, port, protocol, host, tls, scope)| {
            let with_tls = matches!(protocol, Protocol::Tls | Protocol::Https);
            // Where TLS does not stand in its way, mostly.
            let port = if protocol == Protocol::Http && port == 443 {
                80
            } else {
                port
            };
            let host = if with_tls || protocol == Protocol::Http {
                host
            } else {
                ""
            };
            let mut listener = listener(name, port, protocol, host, tls.filter(|_| with_tls));
            listener.allowed_namespaces = scope;
            listener
        },
    )
}

fn some_listeners() -> impl Strategy<Value = Vec<Listener>> {
    prop::collection::vec(a_listener(), 1..4).prop_map(|mut listeners| {
        let mut seen = Vec::new();
        listeners.retain(|l| {
            let new = !seen.contains(&l.name);
            seen.push(l.name.clone());
            new
        });
        listeners
    })
}

fn an_object() -> impl Strategy<Value = Object> {
    let allowed = prop_oneof![
        1 => Just(NamespaceScope::None),
        4 => Just(NamespaceScope::All),
        2 => Just(by_label("team", "red")),
    ];
    let parents = prop::collection::vec(
        prop_oneof![
            2 => (a_name(), prop::option::of(Just("l")))
                .prop_map(|(gateway, section)| parent("Gateway", Some("platform"), gateway, section)),
            4 => (prop::option::of(a_tenant()), a_name(), prop::option::of(Just("m")))
                .prop_map(|(ns, name, section)| parent("ListenerSet", ns, name, section)),
        ],
        1..3,
    );
    let hosts = prop::collection::vec(prop::sample::select(&HOSTS[1..]), 1..3);
    let backends = prop::collection::vec(
        (
            a_tenant(),
            a_name(),
            prop::sample::select(&[1u16, 2][..]),
            0u32..3,
        )
            .prop_map(|(ns, name, port, weight)| backend(ns, name, port, weight)),
        1..3,
    );
    let kinds = &[
        "ListenerSet",
        "TLSRoute",
        "HTTPRoute",
        "TCPRoute",
        "UDPRoute",
    ];
    let from_kind = prop::sample::select(&kinds[..]);
    let holds = prop::sample::select(
        &[
            Holds::Pair(0),
            Holds::Pair(1),
            Holds::Mismatch,
            Holds::NoKey,
            Holds::NotPem,
            Holds::BrokenChain,
            Holds::WrongType,
        ][..],
    );
    prop_oneof![
        1 => prop::sample::select(&[CONTROLLER, "other/controller"][..]).prop_map(class),
        2 => (a_name(), some_listeners(), allowed, some_tls())
            .prop_map(|(n, l, a, tls)| with_tls(gateway(n, l, a), tls)),
        2 => (an_owner(), a_name(), some_trust()).prop_map(|(ns, n, t)| config_map(ns, n, t)),
        3 => a_policy(),
        1 => a_hostname_grant(&TENANTS),
        6 => (a_tenant(), a_name(), 0i64..3, a_name(), some_listeners())
            .prop_map(|(ns, n, created, gw, l)| set(ns, n, created, gw, l)),
        6 => an_http_route(parents.clone(), backends.clone()),
        3 => (a_transport(), a_tenant(), a_name(), 0i64..3, parents.clone(), backends.clone())
            .prop_map(|(by, ns, n, created, p, b)| port_route(by, (ns, n, created), p, b)),
        6 => (a_tenant(), a_name(), 0i64..3, parents, hosts, backends)
            .prop_map(|(ns, n, created, p, h, b)| route(ns, n, created, p, &h, b)),
        4 => (a_tenant(), prop::bool::ANY)
            .prop_map(|(ns, red)| namespace(ns, if red { &[("team", "red")] } else { &[] })),
        2 => (
            a_tenant(),
            a_name(),
            prop::sample::subsequence(vec![1u16, 2], 1..=2),
            prop::sample::select(&[None, None, Some("kubernetes.io/h2c"), Some("https"), Some("redis")][..]),
            prop::sample::select(&HEADERS[..]),
        )
            .prop_map(|(ns, n, ports, says, expects)| speaking(service(ns, n, &ports), says, expects)),
        2 => (a_tenant(), a_name(), 0u8..2, 1u16..3, prop::collection::vec(1u8..4, 0..3))
            .prop_map(|(ns, n, suffix, port, a)| slice(ns, n, suffix, port, &a)),
        2 => (a_tenant(), a_name(), holds).prop_map(|(ns, n, h)| secret(ns, n, h)),
        1 => (a_tenant(), a_name(), prop::bool::ANY)
            .prop_map(|(ns, n, future)| secret_of_age(ns, n, future)),
        2 => (a_tenant(), a_name(), a_tenant(), prop::bool::ANY, from_kind).prop_map(
            |(ns, n, from, to_secret, from_kind)| {
                grant(ns, n, (from_kind, from), if to_secret { "Secret" } else { "Service" })
            }
        ),
        1 => (a_tenant(), a_name(), prop::bool::ANY).prop_map(|(ns, n, to_secret)| {
            let to = if to_secret { "Secret" } else { "ConfigMap" };
            grant(ns, n, ("Gateway", "platform"), to)
        }),
    ]
}

fn an_owner() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["platform", "a", "b"][..])
}

fn some_trust() -> impl Strategy<Value = Trusts> {
    prop::sample::select(
        &[
            Trusts::Pair(0),
            Trusts::Pair(1),
            Trusts::Both,
            Trusts::NotPem,
            Trusts::Nothing,
            Trusts::NoEntry,
        ][..],
    )
}

/// `spec.tls`: mostly nothing.
fn some_tls() -> impl Strategy<Value = GatewayTls> {
    let reference = |kinds: &'static [&'static str]| {
        (prop::sample::select(kinds), an_owner(), a_name())
            .prop_map(|(kind, ns, name)| core(kind, ns, name, "spec.tls"))
    };
    let asked = || {
        let kinds = &["ConfigMap", "ConfigMap", "Secret", "Service"];
        (
            prop::collection::vec(reference(kinds), 0..3),
            prop::bool::ANY,
        )
            .prop_map(|(authorities, insecure)| validation(authorities, insecure))
    };
    let some = (
        prop::option::of(asked()),
        prop_oneof![
            Just(PerPort::default()),
            prop::option::of(asked()).prop_map(on_8443),
        ],
        prop::option::of(reference(&["Secret", "Secret", "ConfigMap"])),
    )
        .prop_map(|(default, per_port, certificate)| gateway_tls(default, per_port, certificate));
    prop_oneof![
        1 => Just(GatewayTls::default()),
        1 => some,
    ]
}

fn a_policy() -> impl Strategy<Value = Object> {
    let target = || {
        let section = prop::sample::select(&["p1", "p2", "p3"][..]);
        (a_name(), prop::option::of(section))
    };
    // Three, so that the statuses of two of them may name the third.
    let name = prop::sample::select(&["one", "two", "three"][..]);
    let readable = (
        a_tenant(),
        name,
        0i64..3,
        target(),
        prop::option::of(target()),
        prop::option::of(a_name()),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(ns, n, created, first, second, trusts, refused)| {
            let mut object = policy(ns, n, created, first, trusts);
            let second = second.map(|second| policy(ns, n, created, second, None));
            if let Object::BackendTlsPolicy(policy) = &mut object
                && let Some(Object::BackendTlsPolicy(second)) = second
            {
                policy.targets.extend(second.targets);
            }
            if refused && let Object::BackendTlsPolicy(policy) = &mut object {
                let field = "spec.validation.hostname";
                let finding = Finding::refused(Reason::InvalidHostname, field, "is none", "");
                policy.hostname = None;
                policy.findings.push(finding);
            }
            object
        });
    let unreadable = (a_tenant(), a_name()).prop_map(|(ns, n)| {
        let finding = Finding::refused(Reason::Unreadable, "spec", "does not decode", "");
        let key = ObjectKey::new(Kind::BackendTlsPolicy, ns, n);
        Object::Unreadable(key, Meta::default(), finding)
    });
    prop_oneof![
        9 => readable,
        1 => unreadable,
    ]
}

/// An HTTPRoute, or a GRPCRoute of the same.
fn an_http_route(
    parents: impl Strategy<Value = Vec<ParentRef>>,
    backends: impl Strategy<Value = Vec<BackendRef>>,
) -> impl Strategy<Value = Object> {
    let hosts = prop::collection::vec(prop::sample::select(&HOSTS[1..]), 0..3);
    let rules = prop::collection::vec(prop::sample::select(&Rule::ALL[..]), 1..4);
    (
        a_tenant(),
        a_name(),
        0i64..3,
        parents,
        hosts,
        rules,
        backends,
        prop::bool::weighted(0.4),
    )
        .prop_map(|(ns, n, created, p, h, r, b, grpc)| {
            let route = http_route((ns, n, created), p, &h, &r, &b);
            if grpc { as_grpc(route) } else { route }
        })
}

/// What TCP ports may expect before everything else.
const HEADERS: [SendProxy; 4] = [
    SendProxy::Off,
    SendProxy::Off,
    SendProxy::Header(HeaderVersion::V2),
    SendProxy::Unreadable(AnnotationFault::Form),
];

/// A Service whose ports say this of themselves, and whose TCP ports expect such a header.
fn speaking(mut service: Object, says: Option<&str>, expects: SendProxy) -> Object {
    if let Object::Service(service) = &mut service {
        for port in &mut service.ports {
            port.app_protocol = says.map(Into::into);
            if port.transport == Some(Transport::Tcp) {
                port.send_proxy = expects;
            }
        }
    }
    service
}

/// An object, which may name an issuer.
pub(super) fn an_asking_object() -> impl Strategy<Value = Object> {
    (an_object(), some_issuers()).prop_map(|(mut object, issuers)| {
        match &mut object {
            Object::Gateway(gateway) => Arc::make_mut(gateway).issuers = issuers,
            Object::ListenerSet(set) => Arc::make_mut(set).issuers = issuers,
            _ => {}
        }
        object
    })
}

fn some_issuers() -> impl Strategy<Value = IssuerAnnotations> {
    let name = || prop::option::weighted(0.3, Just(Arc::<str>::from("ca")));
    (name(), name(), name()).prop_map(|(cert_manager, acme, cluster)| IssuerAnnotations {
        cert_manager_issuer: cert_manager,
        acme_issuer: acme,
        acme_cluster_issuer: cluster,
        ..IssuerAnnotations::default()
    })
}
