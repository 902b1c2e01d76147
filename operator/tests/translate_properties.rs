//! Properties of translation that hold for all objects: incremental equals from scratch, order does not matter, and
//! tenants do not affect each other.

#[path = "translate_properties/across.rs"]
mod across;
#[path = "translate_properties/fresh_run.rs"]
mod fresh_run;
#[path = "translate_properties/totals.rs"]
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use prost::Message as _;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType};
use vestibule_model::condition::{Address, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{AddressRequest, Listener};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer::{Engine, IssuerAnnotations};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::ServiceType;
use vestibule_model::tls_policy::GatewayTls;
use vestibule_operator::translate::{
    Assigned, CONTROLLER, Change, DesiredPort, SessionKey, SessionKeys, Settings, Translator,
};
use vestibule_operator_testing::grants::{Reading, a_hostname_grant};
use vestibule_operator_testing::http::{Rule, as_grpc, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{
    PerPort, Trusts, config_map, core, gateway_tls, on_8443, policy, validation, with_tls,
};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ContentHash, ResourceKey};
use zeroize::Zeroizing;

use totals::{a_certified_history, some_totals};

const TENANTS: [&str; 3] = ["a-b", "a", "b"];
const HOSTS: [&str; 7] = [
    "",
    "*.com",
    "*.example.com",
    "example.com",
    "x.example.com",
    "y.example.com",
    "z.x.example.com",
];

fn a_tenant() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(&TENANTS[..])
}

fn a_name() -> impl Strategy<Value = &'static str> + Clone {
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
        )
            .prop_map(|(ns, n, ports, says)| speaking(service(ns, n, &ports), says)),
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
    )
        .prop_map(|(ns, n, created, first, second, trusts)| {
            let mut object = policy(ns, n, created, first, trusts);
            let second = second.map(|second| policy(ns, n, created, second, None));
            if let Object::BackendTlsPolicy(policy) = &mut object
                && let Some(Object::BackendTlsPolicy(second)) = second
            {
                policy.targets.extend(second.targets);
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

/// A Service whose ports say this of themselves.
fn speaking(mut service: Object, says: Option<&str>) -> Object {
    if let Object::Service(service) = &mut service {
        for port in &mut service.ports {
            port.app_protocol = says.map(Into::into);
        }
    }
    service
}

/// An object, which may name an issuer.
fn an_asking_object() -> impl Strategy<Value = Object> {
    (an_object(), some_issuers()).prop_map(|(mut object, issuers)| {
        match &mut object {
            Object::Gateway(gateway) => gateway.issuers = issuers,
            Object::ListenerSet(set) => set.issuers = issuers,
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

/// What engines and the clock tell.
fn a_fact() -> impl Strategy<Value = Change> {
    let names = || prop::sample::select(&HOSTS[3..]);
    let challenge = (a_name(), 0..2usize, names(), a_tenant(), prop::bool::ANY).prop_map(
        |(gateway, kind, name, tenant, there)| {
            let kind = ChallengeType::ALL[kind];
            let key = ChallengeKey {
                gateway: ObjectName::new("platform", gateway),
                kind,
                hostname: Hostname::parse(name).expect("a hostname"),
                token: if kind == ChallengeType::Http01 {
                    "token".into()
                } else {
                    "".into()
                },
            };
            let answer = match kind {
                ChallengeType::Http01 => ChallengeProof::Http01 {
                    key_authorization: "token.thumbprint".into(),
                },
                ChallengeType::TlsAlpn01 => ChallengeProof::TlsAlpn01 {
                    certificate: vec![1],
                    private_key: vec![2].into(),
                },
            };
            let tenant = tenant.into();
            let answer = there.then_some(ChallengeAnswer { tenant, answer });
            Change::Challenges(BTreeMap::from([(key, answer)]))
        },
    );
    let issuance = (a_tenant(), a_name(), prop::bool::ANY).prop_map(|(namespace, name, there)| {
        let issuance = there.then(|| Issuance {
            state: IssuanceState::Issued,
            reason: Reason::Issued,
            message: "it is".into(),
        });
        Change::Issuance(BTreeMap::from([(
            ObjectName::new(namespace, name),
            issuance,
        )]))
    });
    let session_keys = prop::collection::vec(0..3_u8, 0..3).prop_map(|keys| {
        let key = |n| SessionKey::new(Zeroizing::new([n; SessionKey::BYTES]));
        Change::SessionKeys(SessionKeys::new(keys.into_iter().map(key)))
    });
    // 2015, 2026 and 2035.
    let times = [1_420_000_000, 1_790_000_000, 2_050_000_000];
    prop_oneof![
        6 => challenge,
        1 => issuance,
        1 => session_keys,
        1 => prop::sample::select(times.to_vec()).prop_map(Change::Time),
    ]
}

fn a_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => an_asking_object().prop_map(Change::Put),
        2 => an_asking_object().prop_map(|object| Change::Remove(object.key())),
        4 => a_fact(),
    ]
}

/// A class and two Gateways that let sets in come first, so that most histories are about something.
fn a_history() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(a_change(), 1..60).prop_map(|changes| {
        let world = [
            our_class(),
            gateway(
                "one",
                vec![passthrough("l", "own.example.com")],
                NamespaceScope::All,
            ),
            gateway("two", vec![passthrough("l", "")], NamespaceScope::All),
        ];
        let objects = world.into_iter().chain(some_teams());
        objects.map(Change::Put).chain(changes).collect()
    })
}

/// Two teams that are served: most of what random objects refer to is not there, and what is there is
/// seldom in force.
fn some_teams() -> impl Iterator<Item = Object> {
    [("a", "x.example.com", 5000), ("b", "y.example.com", 5001)]
        .into_iter()
        .flat_map(|(team, host, port)| {
            let listeners = vec![
                passthrough("l", host),
                listener("m", 80, Protocol::Http, host, None),
                listener("t", port, Protocol::Tcp, "", None),
                listener("u", port, Protocol::Udp, "", None),
            ];
            let at = |section| vec![parent("ListenerSet", None, "one", Some(section))];
            let backends = vec![backend(team, "one", 1, 1), backend("a-b", "one", 2, 1)];
            [
                set(team, "one", 0, "one", listeners),
                service(team, "one", &[1, 2]),
                slice(team, "one", 0, 1, &[1, 2]),
                route(team, "one", 0, at("l"), &[host], backends.clone()),
                port_route(Transport::Tcp, (team, "one", 0), at("t"), backends.clone()),
                port_route(Transport::Udp, (team, "one", 0), at("u"), backends.clone()),
                http_route((team, "one", 0), at("m"), &[], &Rule::ALL, &backends),
                as_grpc(http_route(
                    (team, "one", 0),
                    at("m"),
                    &[],
                    &Rule::ALL,
                    &backends,
                )),
            ]
        })
}

fn final_objects(history: &[Change]) -> BTreeMap<ObjectKey, Object> {
    let mut objects = BTreeMap::new();
    for change in history {
        match change {
            Change::Put(object) => {
                objects.insert(object.key(), object.clone());
            }
            Change::Remove(key) => {
                objects.remove(key);
            }
            _ => {}
        }
    }
    objects
}

type Held = BTreeMap<ResourceKey, ContentHash>;

fn held(translator: &Translator) -> Held {
    translator
        .resources()
        .iter()
        .map(|(key, resource)| (key.clone(), resource.hash()))
        .collect()
}

fn assert_same(a: &Translator, b: &Translator) {
    assert_eq!(held(a), held(b));
    assert_eq!(a.statuses(), b.statuses());
    assert_eq!(a.findings(), b.findings());
    assert_eq!(a.requests(), b.requests());
}

/// A cluster's change: Gateways have UIDs, ask for addresses and refer to parameters, as their classes
/// do; ports are allocated and given up, and Services come to something.
fn a_cluster_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => a_cluster_object().prop_map(Change::Put),
        2 => a_cluster_object().prop_map(|object| Change::Remove(object.key())),
        5 => an_input(),
        2 => a_fact(),
    ]
}

fn a_cluster_object() -> impl Strategy<Value = Object> {
    let of_gateway = (0u8..2, prop::option::of(a_name()), prop::bool::ANY);
    let parameters = (
        a_name(),
        prop::sample::select(ServiceType::ALL),
        prop::bool::ANY,
        prop::sample::select(&[None, Some(NamespaceScope::Same), Some(NamespaceScope::None)][..]),
    );
    let object =
        (an_asking_object(), of_gateway).prop_map(|(mut object, (uid, parameters, asks))| {
            match &mut object {
                Object::Gateway(gateway) => {
                    gateway.meta.uid = format!("{}-{uid}", gateway.name.name).into();
                    gateway.infrastructure.parameters = parameters.map(parameters_at);
                    let request = AddressRequest {
                        field: "spec.addresses[0]".into(),
                        ip: Some([192, 0, 2, 1].into()),
                    };
                    gateway.addresses.extend(asks.then_some(request));
                }
                Object::GatewayClass(class) => class.parameters = parameters.map(parameters_at),
                _ => {}
            }
            object
        });
    // Proxies come and go, and have addresses that others have had.
    let proxies = (0u8..2, prop::collection::vec(1u8..4, 0..3), prop::bool::ANY).prop_map(
        |(suffix, addresses, idle)| {
            let mut object = slice("vestibule-system", "proxies", suffix, 1, &addresses);
            if let Object::EndpointSlice(slice) = &mut object
                && idle
            {
                std::mem::swap(&mut slice.addresses, &mut slice.idle);
            }
            object
        },
    );
    prop_oneof![
        10 => object,
        2 => proxies,
        1 => parameters.prop_map(|(name, kind, good, scope)| {
            let mut object = parameters_of(name, kind, good);
            if let Object::GatewayParameters(parameters) = &mut object {
                parameters.certificate_namespaces = scope;
            }
            object
        }),
    ]
}

fn an_input() -> impl Strategy<Value = Change> {
    let uid = || prop::sample::select(&["one-0", "one-1", "two-0"][..]);
    let desired = (
        uid(),
        prop::sample::select(&[80u16, 443, 8443, 9443][..]),
        prop::bool::ANY,
    )
        .prop_map(|(uid, port, tcp)| DesiredPort {
            gateway: uid.into(),
            port: Port::new(port).expect("a port"),
            transport: if tcp { Transport::Tcp } else { Transport::Udp },
        });
    let internal =
        prop::option::of((10_000u16..10_100).prop_map(|p| Port::new(p).expect("a port")));
    let assigned =
        (prop::collection::vec(1u8..3, 0..2), prop::bool::ANY).prop_map(|(addresses, problem)| {
            let ips = addresses.iter().copied();
            Assigned {
                // Endpoints of the teams' Services among them.
                sockets: ips
                    .clone()
                    .map(|last| {
                        let number = 8000 + u16::from(last);
                        let port = Port::new(number).expect("a port");
                        ([127, 0, 0, last].into(), (port, Transport::Tcp))
                    })
                    .collect(),
                addresses: ips
                    .map(|last| Address::Ip([192, 0, 2, last].into()))
                    .collect(),
                problem: problem.then(|| "refused".into()),
            }
        });
    prop_oneof![
        3 => prop::collection::btree_map(desired, internal, 1..4).prop_map(Change::Ports),
        2 => (uid(), prop::option::of(assigned))
            .prop_map(|(uid, assigned)| Change::Addresses(uid.into(), assigned)),
    ]
}

fn a_cluster_history() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(a_cluster_change(), 1..60).prop_map(|changes| {
        let uids = ["one", "two"].map(|name| {
            let mut gateway = gateway(name, vec![passthrough("l", "")], NamespaceScope::All);
            if let Object::Gateway(gateway) = &mut gateway {
                gateway.meta.uid = format!("{name}-0").into();
            }
            gateway
        });
        let world = [our_class()].into_iter().chain(uids).chain(some_teams());
        world.map(Change::Put).chain(changes).collect()
    })
}

/// The inputs of a history that are no objects, as they are in the end.
fn final_inputs(history: &[Change]) -> Vec<Change> {
    let (mut ports, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    let (mut claims, mut taken) = (BTreeMap::new(), BTreeMap::new());
    let mut since = BTreeMap::new();
    let (mut challenges, mut issuance, mut time) = (BTreeMap::new(), BTreeMap::new(), None);
    let mut session_keys = None;
    for change in history {
        match change {
            Change::Ports(delta) => ports.extend(delta.clone()),
            Change::Addresses(uid, assigned) => {
                addresses.insert(uid.clone(), assigned.clone());
            }
            Change::Challenges(delta) => challenges.extend(delta.clone()),
            Change::Issuance(delta) => issuance.extend(delta.clone()),
            Change::Claims(delta) => claims.extend(delta.clone()),
            Change::Taken(delta) => taken.extend(delta.clone()),
            Change::Since(delta) => since.extend(delta.clone()),
            Change::Time(now) => time = Some(*now),
            Change::SessionKeys(keys) => session_keys = Some(keys.clone()),
            Change::Put(_) | Change::Remove(_) | Change::Absent(_) => {}
        }
    }
    let addresses = addresses
        .into_iter()
        .map(|(uid, a)| Change::Addresses(uid, a));
    let facts = [
        Change::Ports(ports),
        Change::Challenges(challenges),
        Change::Issuance(issuance),
        Change::Claims(claims),
        Change::Taken(taken),
        Change::Since(since),
    ];
    addresses
        .chain(facts)
        .chain(time.map(Change::Time))
        .chain(session_keys.map(Change::SessionKeys))
        .collect()
}

/// The same with a limit on ports that namespaces reach.
fn few_ports(mut settings: Settings) -> Settings {
    settings.policy.ports_per_namespace = 1;
    settings
}

/// Wishes as they add up from what was put out.
fn add_up<K: Ord>(desired_services: &mut BTreeSet<K>, news: BTreeMap<K, bool>) {
    for (key, wanted) in news {
        let was = if wanted {
            !desired_services.insert(key)
        } else {
            !desired_services.remove(&key)
        };
        assert!(!was, "no news");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn in_a_cluster_incremental_equals_from_scratch(
        history in a_cluster_history(),
        batch in 1usize..5,
        totals in some_totals(),
    ) {
        let empty = || Translator::new(few_ports(cluster_settings())).with_totals(totals);
        let mut incremental = empty();
        let (mut ports, mut sources, mut services) = Default::default();
        for changes in history.chunks(batch) {
            let output = incremental.apply(changes.to_vec());
            add_up(&mut ports, output.ports);
            add_up(&mut sources, output.sources);
            for (uid, desired) in output.services {
                match desired {
                    Some(desired) => BTreeMap::insert(&mut services, uid, desired),
                    None => BTreeMap::remove(&mut services, &uid),
                };
            }
        }
        let mut scratch = empty();
        scratch.apply(final_objects(&history).into_values().map(Change::Put));
        scratch.apply(final_inputs(&history));
        assert_same(&incremental, &scratch);
        for world in [&incremental, &scratch] {
            assert_eq!(&ports, world.ports());
            assert_eq!(&services, world.services());
            assert_eq!(sources.iter().collect::<Vec<_>>(), world.sources().collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_from_scratch(
        history in a_certified_history(),
        batch in 1usize..5,
        totals in some_totals(),
    ) {
        let empty = || Translator::new(few_ports(settings())).with_totals(totals);
        let mut incremental = empty();
        let mut outputs: Held = BTreeMap::new();
        for changes in history.chunks(batch) {
            let output = incremental.apply(changes.to_vec());
            for (key, resource) in output.resources {
                match resource {
                    Some(resource) => _ = outputs.insert(key, resource.hash()),
                    // What comes and goes in one pass is not put out.
                    None => assert!(outputs.remove(&key).is_some(), "{key} was not there"),
                }
            }
        }
        let mut scratch = empty();
        scratch.apply(final_objects(&history).into_values().map(Change::Put));
        scratch.apply(final_inputs(&history));
        assert_same(&incremental, &scratch);
        // What was put out step by step adds up to what is held.
        assert_eq!(outputs, held(&scratch));
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        history in a_history().prop_map(|h| final_objects(&h).into_values().collect::<Vec<_>>())
            .prop_flat_map(|objects| (Just(objects.clone()), Just(objects).prop_shuffle())),
        totals in some_totals(),
    ) {
        let (ordered, shuffled) = history;
        let [ordered, shuffled] = [ordered, shuffled].map(|objects| {
            let mut world = Translator::new(settings()).with_totals(totals);
            world.apply(objects.into_iter().map(Change::Put));
            world
        });
        assert_same(&ordered, &shuffled);
    }

    /// Tenant A edits whatever it likes, short of names that B uses and of letting B in or out by
    /// grants: what the proxies hold for B is the same to the byte.
    #[test]
    fn a_tenant_does_not_touch_another(
        history in a_history(),
        edits in prop::collection::vec(a_change(), 1..20),
    ) {
        let of_b = |key: &ResourceKey| {
            key.name == "b" || key.name.starts_with("b/") || key.name.starts_with("ListenerSet/b/")
        };
        // B's world: everything but A's objects ("a" and "a-b" are A's namespaces).
        let of_a = |key: &ObjectKey| {
            key.name.namespace.starts_with('a')
                || (key.kind == Kind::Namespace && key.name.name.starts_with('a'))
        };
        // B refers to nothing of A's, or A's objects would be part of what B asked for; and A to no
        // Service or Secret of B's (by B's grant), whose use would come and go with A's objects.
        let apart = |key: &ObjectKey, object: &Object| {
            !refers_into(object, if of_a(key) { "b" } else { "a" })
        };
        let mut objects = final_objects(&history);
        objects.retain(|key, object| apart(key, object) && on_gateway_one(object));
        let b_names = names_of(&objects, |key| !of_a(key));
        objects.retain(|key, object| !of_a(key) || takes_none_of(object, &b_names));
        let mut world = Translator::new(few_ports(settings()));
        world.apply(objects.into_values().map(Change::Put));
        world.apply(final_inputs(&history));
        let before: Held = held(&world).into_iter().filter(|(k, _)| of_b(k)).collect();
        let b_asks = own_on_443(&world, "b");
        let a_edits: Vec<Change> = edits
            .into_iter()
            .filter(|change| match change {
                // Namespaces' labels are the admin's.
                Change::Put(Object::Namespace(_)) => false,
                Change::Put(object) => {
                    let key = object.key();
                    of_a(&key)
                        && apart(&key, object)
                        && on_gateway_one(object)
                        && takes_none_of(object, &b_names)
                }
                Change::Remove(key) => of_a(key) && key.kind != Kind::Namespace,
                _ => false,
            })
            .collect();
        world.apply(a_edits);
        let after: Held = held(&world).into_iter().filter(|(k, _)| of_b(k)).collect();
        assert_eq!(before, after);
        // Nor does it come between B and a CA, for what B serves on 443 itself.
        assert_eq!(b_asks, own_on_443(&world, "b"));
    }

    /// Whoever is selected for a name on port 443 is the only tenant that anything is asked or answered for
    /// under that name, judged by what the proxies hold.
    #[test]
    fn nothing_is_asked_for_what_others_serve(history in a_history()) {
        let mut world = translated(final_objects(&history).into_values());
        world.apply(final_inputs(&history));
        let listeners = tls_on_443(&world);
        let owners = owners(&world);
        let asked = world.requests().values().flat_map(|request| {
            let gateway = request.gateway.to_string();
            let tenant = request.secret.namespace.to_string();
            let names = request.hostnames.iter();
            names.map(move |name| (gateway.clone(), name.clone(), tenant.clone()))
        });
        let answered = challenges(&world).into_iter().map(|challenge| {
            let name = Hostname::parse(&challenge.hostname).expect("a hostname");
            (challenge.gateway, name, challenge.tenant)
        });
        for (gateway, name, tenant) in asked.chain(answered) {
            let owner = owners
                .iter()
                .filter(|(at, pattern, _)| *at == gateway && pattern.matches(&name))
                .max_by_key(|(_, pattern, _)| pattern.specificity())
                .map(|(.., owner)| &**owner);
            let may_serve = |key: &str| {
                key.starts_with("Gateway/")
                    || owner.is_none_or(|owner| key.split('/').nth(1) == Some(owner))
            };
            let selected = listeners
                .iter()
                .filter(|(_, at, pattern)| *at == gateway && pattern.matches(&name))
                .filter(|(key, ..)| may_serve(key))
                .max_by_key(|(_, _, pattern)| pattern.specificity());
            if let Some((key, _, _)) = selected
                && let Some(key) = key.strip_prefix("ListenerSet/")
            {
                let owner = key.split('/').next().expect("a namespace");
                assert_eq!(owner, tenant, "{name} on {gateway}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::default() })]

    /// Proxies hold no name that a namespace was not granted, and no issuer is asked for one. Nobody has more than they
    /// may, by a plain reading of the grants.
    #[test]
    fn nothing_is_held_or_asked_for_that_is_not_owned(
        history in a_history(),
        grants in prop::collection::vec(a_hostname_grant(&TENANTS), 1..4),
        batch in 1usize..5,
    ) {
        let mut world = Translator::new(settings());
        let grants = grants.into_iter().map(Change::Put);
        let history: Vec<Change> = history.into_iter().chain(grants).collect();
        for changes in history.chunks(batch) {
            world.apply(changes.to_vec());
        }
        let objects = final_objects(&history);
        check_owned(&world, Reading(&objects));
    }
}

fn check_owned(world: &Translator, reading: Reading<'_>) {
    let object = |text: &str| {
        let (namespace, name) = text.split_once('/').expect("a name");
        ObjectName::new(namespace, name)
    };
    let mut ports = BTreeMap::new();
    let mut listeners: BTreeMap<(ObjectName, String), usize> = BTreeMap::new();
    let mut routes = Vec::new();
    for encoded in world.resources().values() {
        let message = proto::Resource::decode(encoded.upsert().resource).expect("a resource");
        let (name, attachments) = match message.resource.expect("a resource") {
            resource::Resource::Listener(listener) => {
                let gateway = object(&listener.gateway);
                let port = u16::try_from(listener.port).ok().and_then(Port::new);
                let names = pattern(&listener.hostname);
                assert!(
                    reading.owns(&gateway, &listener.tenant, port, &names),
                    "{}",
                    message.name
                );
                if message.name.starts_with("ListenerSet/") {
                    let at = (gateway.clone(), listener.tenant);
                    *listeners.entry(at).or_default() += 1;
                }
                ports.insert(message.name, (gateway, port));
                continue;
            }
            resource::Resource::TlsRoute(route) => (message.name, route.attachments),
            resource::Resource::HttpRoute(route) | resource::Resource::GrpcRoute(route) => {
                (message.name, route.attachments)
            }
            resource::Resource::TcpRoute(route) | resource::Resource::UdpRoute(route) => {
                let everything = proto::RouteHostname::default();
                let listeners = route.listeners.into_iter();
                let attachments = listeners.map(|listener| proto::Attachment {
                    listener,
                    hostnames: vec![everything.clone()],
                });
                (message.name, attachments.collect())
            }
            _ => continue,
        };
        routes.push((object(&name).namespace.clone(), attachments));
    }
    check_connections(world, reading);
    for ((gateway, tenant), count) in listeners {
        assert!(count <= reading.limits(&gateway, &tenant).0 || *gateway.namespace == *tenant);
    }
    for (tenant, attachments) in routes {
        for attachment in attachments {
            // A route may name a listener that is not in force.
            let Some((gateway, port)) = ports.get(&attachment.listener) else {
                continue;
            };
            for hostname in attachment.hostnames {
                let names = pattern(&hostname.r#match);
                assert!(
                    reading.owns(gateway, &tenant, *port, &names),
                    "{tenant} {names}"
                );
            }
        }
    }
    let mut certified: BTreeMap<(ObjectName, Arc<str>), BTreeSet<Hostname>> = BTreeMap::new();
    for request in world.requests().values() {
        let (gateway, tenant) = (&request.gateway, &request.secret.namespace);
        for hostname in &request.hostnames {
            let names = HostPattern::Exact(hostname.clone());
            assert!(
                reading.owns(gateway, tenant, None, &names),
                "{tenant} {hostname}"
            );
            if let Some(issuer) = &request.issuer {
                let issuer = (&*issuer.kind, &*issuer.name);
                assert!(
                    reading.allows(gateway, tenant, &names, issuer),
                    "{tenant} {hostname}"
                );
                let at = (gateway.clone(), tenant.clone());
                certified.entry(at).or_default().insert(hostname.clone());
            }
        }
    }
    for ((gateway, tenant), names) in certified {
        assert!(names.len() <= reading.limits(&gateway, &tenant).1);
    }
}

/// The proxies know what grants state about the connections of each namespace, and nothing else.
fn check_connections(world: &Translator, reading: Reading<'_>) {
    let gateways: Vec<ObjectName> = ["one", "two"]
        .map(|name| ObjectName::new("platform", name))
        .into_iter()
        .filter(|gateway| world.merge().gateway(gateway).is_some())
        .collect();
    let mut told = BTreeMap::new();
    for message in messages(world) {
        if let Some(resource::Resource::Tenant(tenant)) = message.resource {
            told.insert(message.name, tenant);
        }
    }
    for namespace in TENANTS.into_iter().chain(["platform"]) {
        let (shares, most) = reading.connections(&gateways, namespace);
        let stated = proto::Tenant {
            connection_shares: shares.filter(|shares| *shares > 1).unwrap_or(0),
            max_connections: most.unwrap_or(0),
        };
        // A namespace of which nothing is there may be one that was named, and needs nothing.
        let tenant = told.remove(namespace);
        if tenant.is_some() || world.merge().labels(namespace).is_some() {
            assert_eq!(tenant.unwrap_or_default(), stated, "{namespace}");
        }
    }
    assert!(told.is_empty(), "{told:?}");
}

/// The resources as the proxies read them.
fn messages(world: &Translator) -> impl Iterator<Item = proto::Resource> {
    let held = world.resources().values();
    held.map(|encoded| proto::Resource::decode(encoded.upsert().resource).expect("a resource"))
}

/// Listeners with TLS on port 443 as the proxies hold them: name, Gateway, hostname.
fn tls_on_443(world: &Translator) -> Vec<(String, String, HostPattern)> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::Listener(listener) if listener.port == 443 => {
                let tls = match listener.protocol.as_ref()? {
                    proto::listener::Protocol::Tls(_) => true,
                    proto::listener::Protocol::Http(http) => http.terminate.is_some(),
                    proto::listener::Protocol::Tcp(_) | proto::listener::Protocol::Udp(_) => false,
                };
                tls.then(|| (message.name, listener.gateway, pattern(&listener.hostname)))
            }
            _ => None,
        })
        .collect()
}

/// The owners of names, as the proxies hold them: Gateway, pattern, namespace.
fn owners(world: &Translator) -> Vec<(String, HostPattern, String)> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::HostnameOwner(of) => {
                Some((of.gateway, pattern(&of.hostname), of.tenant))
            }
            _ => None,
        })
        .collect()
}

fn challenges(world: &Translator) -> Vec<proto::Challenge> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::Challenge(challenge) => Some(challenge),
            _ => None,
        })
        .collect()
}

/// What is asked for in a namespace, of the built-in engine or whoever runs it, for names of its own
/// listeners on port 443.
fn own_on_443(world: &Translator, namespace: &str) -> BTreeSet<(ObjectName, Hostname)> {
    let listeners = tls_on_443(world);
    let own = format!("ListenerSet/{namespace}/");
    let of = |request: &CertificateRequest| {
        let names = request.hostnames.iter().filter(|name| {
            listeners.iter().any(|(key, gateway, pattern)| {
                key.starts_with(&own)
                    && *gateway == request.gateway.to_string()
                    && *pattern == HostPattern::Exact((*name).clone())
            })
        });
        let secret = request.secret.clone();
        names
            .map(move |name| (secret.clone(), name.clone()))
            .collect::<Vec<_>>()
    };
    let requests = world.requests().values();
    requests
        .filter(|request| *request.secret.namespace == *namespace)
        .filter(|request| {
            let issuer = request.issuer.as_ref();
            issuer.is_none_or(|issuer| issuer.engine == Engine::Acme)
        })
        .flat_map(of)
        .collect()
}

/// Whether an object uses Secrets or Services of the namespaces that begin so, or, for A's sake,
/// attaches to listeners there.
fn refers_into(object: &Object, prefix: &str) -> bool {
    let inside = |name: &ObjectName| name.namespace.starts_with(prefix);
    match object {
        Object::TlsRoute(_) | Object::HttpRoute(_) | Object::PortRoute(_) => {
            object.as_route().is_some_and(|route| {
                let parents = route.parents().iter();
                route
                    .backends_and_mirrors()
                    .any(|b| inside(&b.reference.target))
                    || parents
                        .filter_map(|p| p.parent(&route.name().namespace))
                        .any(|p| prefix == "a" && inside(p.name()))
            })
        }
        Object::ListenerSet(set) => set
            .listeners
            .iter()
            .filter_map(|l| l.tls.as_ref())
            .any(|tls| tls.certificates.iter().any(|c| inside(&c.target))),
        // What a Gateway has of A's counts for everybody's listeners on it.
        Object::Gateway(gateway) => {
            let authorities = gateway.tls.validations().flat_map(|v| &v.authorities);
            let mut references = gateway.tls.client_certificate.iter().chain(authorities);
            references.any(|reference| inside(&reference.target))
        }
        _ => false,
    }
}

/// With direct binds all Gateways share the machine's ports, and a tenant that opens one on an older
/// Gateway takes it from the younger: this property is about one Gateway.
fn on_gateway_one(object: &Object) -> bool {
    match object {
        Object::Gateway(gateway) => &*gateway.name.name == "one",
        Object::ListenerSet(set) => set.gateway.as_ref().is_some_and(|g| &*g.name == "one"),
        _ => true,
    }
}

/// (Gateway, port) → hostnames and protocols in use by those objects.
type Names = Vec<(Option<ObjectName>, Listener)>;

fn names_of(objects: &BTreeMap<ObjectKey, Object>, which: impl Fn(&ObjectKey) -> bool) -> Names {
    objects
        .iter()
        .filter(|(key, _)| which(key))
        .filter_map(|(_, object)| match object {
            Object::ListenerSet(set) => Some((set.gateway.clone(), &set.listeners)),
            Object::Gateway(gateway) => Some((Some(gateway.name.clone()), &gateway.listeners)),
            _ => None,
        })
        .flat_map(|(gateway, listeners)| {
            listeners
                .iter()
                .map(move |listener| (gateway.clone(), listener.clone()))
        })
        .collect()
}

/// A set takes a name of B's if it claims the same one, or some inside of it that B's wildcard would serve, or makes a port
/// speak something else (which takes all of them); a route, if it asks for the same name.
fn takes_none_of(object: &Object, names: &Names) -> bool {
    if let Some(route) = object.as_route() {
        let mut asked = route.hostnames().iter();
        return asked.all(|(_, asked)| {
            let mut theirs = names.iter();
            theirs.all(|(_, theirs)| {
                theirs.hostname.intersect(asked).as_ref() != Some(&theirs.hostname)
            })
        });
    }
    let Object::ListenerSet(set) = object else {
        return true;
    };
    let same = |listener: &Listener| {
        names.iter().any(|(_, theirs)| {
            let has_names = !matches!(theirs.protocol, Protocol::Tcp | Protocol::Udp);
            let shared = theirs.hostname.intersect(&listener.hostname);
            theirs.hostname == listener.hostname
                || (has_names && shared.as_ref() == Some(&listener.hostname))
        })
    };
    if set.listeners.iter().any(same) {
        return false;
    }
    set.listeners.iter().all(|listener| {
        names
            .iter()
            .filter(|(_, theirs)| theirs.port == listener.port)
            .all(|(gateway, theirs)| {
                *gateway == set.gateway
                    && listener.protocol == theirs.protocol
                    && matches!(theirs.protocol, Protocol::Tls | Protocol::Http)
                    && theirs.hostname != listener.hostname
            })
    })
}

/// The properties above are worth something only if routes of each kind come into force in some of the
/// histories.
#[test]
fn histories_are_about_routes_of_each_kind() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..100 {
        let history = a_history().new_tree(&mut runner).expect("a history");
        let mut world = translated(final_objects(&history.current()).into_values());
        world.apply(final_inputs(&history.current()));
        let kinds: BTreeSet<&str> = world
            .resources()
            .keys()
            .map(|key| key.kind().label())
            .collect();
        for kind in kinds {
            *counts.entry(kind).or_insert(0) += 1;
        }
    }
    for kind in [
        "listener",
        "tlsroute",
        "httproute",
        "tcproute",
        "backend",
        "challenge",
    ] {
        let count = counts.get(kind).copied().unwrap_or_default();
        assert!(count >= 20, "{kind} in {count} of 100: {counts:?}");
    }
}
