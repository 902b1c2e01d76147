//! Random histories: changes of objects and of everything else that translation is told, and what is there in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType};
use vestibule_model::condition::{Address, Reason};
use vestibule_model::gateway::AddressRequest;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::{Issuance, IssuanceState};
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Protocol, Transport};
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::ServiceType;
use vestibule_operator::translate::{
    Assigned, Change, DesiredPort, ServiceProblem, SessionKey, SessionKeys,
};
use vestibule_operator_testing::http::{Rule, as_grpc, http_route};
use vestibule_operator_testing::objects::*;
use zeroize::Zeroizing;

use super::objects::{HOSTS, a_name, a_tenant, an_asking_object};

/// A fact that an engine or the clock tells.
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

pub(super) fn a_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => an_asking_object().prop_map(Change::Put),
        2 => an_asking_object().prop_map(|object| Change::Remove(object.key())),
        4 => a_fact(),
    ]
}

/// A class and two Gateways that let sets in come first, so that most histories are about something.
pub(super) fn a_history() -> impl Strategy<Value = Vec<Change>> {
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

pub(super) fn final_objects(history: &[Change]) -> BTreeMap<ObjectKey, Object> {
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
                    Arc::make_mut(gateway).meta.uid = format!("{}-{uid}", gateway.name.name).into();
                    Arc::make_mut(gateway).infrastructure.parameters =
                        parameters.map(parameters_at);
                    let request = AddressRequest {
                        field: "spec.addresses[0]".into(),
                        ip: Some([192, 0, 2, 1].into()),
                    };
                    Arc::make_mut(gateway)
                        .addresses
                        .extend(asks.then_some(request));
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
                Arc::make_mut(parameters).certificate_namespaces = scope;
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
                problem: problem.then(|| ServiceProblem::Refused("refused".into())),
            }
        });
    prop_oneof![
        3 => prop::collection::btree_map(desired, internal, 1..4).prop_map(Change::Ports),
        2 => (uid(), prop::option::of(assigned))
            .prop_map(|(uid, assigned)| Change::Addresses(uid.into(), assigned)),
    ]
}

pub(super) fn a_cluster_history() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(a_cluster_change(), 1..60).prop_map(|changes| {
        let uids = ["one", "two"].map(|name| {
            let mut gateway = gateway(name, vec![passthrough("l", "")], NamespaceScope::All);
            if let Object::Gateway(gateway) = &mut gateway {
                Arc::make_mut(gateway).meta.uid = format!("{name}-0").into();
            }
            gateway
        });
        let world = [our_class()].into_iter().chain(uids).chain(some_teams());
        world.map(Change::Put).chain(changes).collect()
    })
}

/// The inputs of a history that are no objects, as they are in the end.
pub(super) fn final_inputs(history: &[Change]) -> Vec<Change> {
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
