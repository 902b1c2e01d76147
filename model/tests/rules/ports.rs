//! The limit on ports: what counts, which ports a namespace keeps, and that nothing in service is lost to a new port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Claimed, Holder};
use vestibule_model::condition::Reason;
use vestibule_model::gateway::{Gateway, Listener, ListenerSet};
use vestibule_model::hostname_grant::GrantLimits;
use vestibule_model::key::{ListenerKey, ObjectName, ParentKey, PortKey};
use vestibule_model::merge::{Affected, Merge};
use vestibule_model::names::NameClaimState;
use vestibule_model::port::{PortClaimState, PortClaims};
use vestibule_model::protocol::{Group, Transport};

use crate::ownership::grant;
use crate::support::{CONTROLLER, class, gateway, listener, name, pattern, port, set};

const LIMIT: u32 = 2;
const GATEWAY: &str = "infra/gw";
/// Ports, and what listeners speak there.
const PORTS: [(u16, &str); 6] = [
    (443, "TLS"),
    (80, "HTTP"),
    (8443, "TLS"),
    (8080, "HTTP"),
    (5432, "TCP"),
    (53, "UDP"),
];
const SETS: [&str; 5] = ["a/s", "a/t", "b/s", "b/t", "infra/s"];

fn at(index: usize) -> PortKey {
    let (number, protocol) = PORTS[index];
    let transport = if protocol == "UDP" {
        Transport::Udp
    } else {
        Transport::Tcp
    };
    PortKey {
        gateway: name(GATEWAY),
        port: port(number),
        transport,
    }
}

/// A listener of a namespace. Each has a hostname of its own on each port, so a new port comes with a new name.
fn of(namespace: &str, index: usize, on: usize) -> Listener {
    let (number, protocol) = PORTS[on];
    let hostname = match protocol {
        "TCP" | "UDP" => String::new(),
        _ => format!("{namespace}-{number}.example"),
    };
    listener(index, &format!("l{number}"), number, protocol, &hostname)
}

fn set_on(at: &str, created: i64, ports: &[usize]) -> ListenerSet {
    let namespace = name(at).namespace.clone();
    let listeners = ports.iter().enumerate();
    let listeners = listeners.map(|(index, on)| of(&namespace, index, *on));
    set(at, GATEWAY, created, listeners.collect())
}

fn gateway_with(own: &[usize]) -> Gateway {
    let listeners = own.iter().enumerate();
    let listeners = listeners.map(|(index, on)| {
        let (number, protocol) = PORTS[*on];
        listener(
            index,
            &format!("l{number}"),
            number,
            protocol,
            "own.example",
        )
    });
    gateway(GATEWAY, listeners.collect())
}

/// A world in which claims are recorded.
struct World {
    merge: Merge,
    sets: BTreeMap<ObjectName, Arc<ListenerSet>>,
    own: Vec<usize>,
}

impl World {
    fn new() -> Self {
        Self {
            merge: start(&[]),
            sets: BTreeMap::new(),
            own: Vec::new(),
        }
    }

    fn put(&mut self, set: ListenerSet) -> Affected {
        let (at, set) = (set.name.clone(), Arc::new(set));
        self.sets.insert(at.clone(), set.clone());
        self.merge.put_set(&at, Some(set))
    }

    fn remove(&mut self, at: &ObjectName) -> Affected {
        self.sets.remove(at);
        self.merge.put_set(at, None)
    }

    fn put_own(&mut self, own: &[usize]) -> Affected {
        self.own = own.to_vec();
        let made = gateway_with(own);
        self.merge
            .put_gateway(&made.name.clone(), Some(made.into()))
    }

    /// Everything that somebody holds or asks for.
    fn keys(&self) -> Vec<ClaimKey> {
        let gateway = name(GATEWAY);
        let names = self.merge.names(&gateway).into_iter();
        let names = names.flat_map(|of| of.known().cloned().collect::<Vec<_>>());
        let names = names.map(|names| ClaimKey::names(&gateway, &names));
        let ports = (0..PORTS.len()).map(|index| ClaimKey::port(&at(index)));
        names.chain(ports).collect()
    }

    /// Returns the next holder in the record of a key, if it differs. `ends` says whether graces end.
    #[expect(clippy::option_option, reason = "a difference, and nobody as holder")]
    fn due(&self, key: &ClaimKey, ends: bool) -> Option<Option<Holder>> {
        match (&key.of, key.port_key()) {
            (Claimed::Names(names), _) => {
                let of = self.merge.names(&key.gateway)?;
                match of.claim_state(names) {
                    None => Some(Some(of.next_holder(names)?)),
                    Some(NameClaimState::Used) => None,
                    Some(NameClaimState::Idle) => ends.then_some(None),
                    Some(NameClaimState::Revoked) => Some(None),
                }
            }
            (Claimed::Port(..), at) => {
                let port = self.merge.port(&at?)?;
                let before = port.holder();
                match port.claim_state() {
                    None => Some(Some(port.next_holder()?)),
                    Some(PortClaimState::Used) => None,
                    Some(PortClaimState::Passed(to)) => {
                        Some(Some(Holder::of_port(to, before?.speaks?)))
                    }
                    Some(PortClaimState::Idle) => ends.then_some(None),
                    Some(PortClaimState::Revoked) => Some(None),
                }
            }
        }
    }

    /// Records everything that is due, until nothing is.
    fn record(&mut self, ends: bool) {
        for _ in 0..100 {
            let keys = self.keys();
            let due = keys
                .into_iter()
                .find_map(|key| Some((key.clone(), self.due(&key, ends)?)));
            let Some(due) = due else { return };
            self.merge.put_claims(BTreeMap::from([due]));
        }
        panic!("the record does not come to rest");
    }

    fn listeners(&self) -> Vec<(ListenerKey, PortKey)> {
        let all = self.sets.values().flat_map(|set| {
            let parent = set.parent_key();
            let one = move |listener: &Listener| {
                let on = |(number, _): &(u16, &str)| listener.port == Some(port(*number));
                (
                    listener.key(&parent),
                    at(PORTS.iter().position(on).unwrap()),
                )
            };
            set.listeners.iter().map(one).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// Namespaces with a name that waits for them.
    fn waiting(&self) -> BTreeSet<Arc<str>> {
        let names = self.merge.names(&name(GATEWAY)).into_iter();
        let held = names.flat_map(|of| of.known().map(move |names| (of, names)));
        let idle = held.filter(|(of, names)| of.claim_state(names) == Some(NameClaimState::Idle));
        idle.filter_map(|(of, names)| of.recorded(names).cloned())
            .collect()
    }

    /// The listeners over the limit.
    fn refused(&self) -> BTreeSet<ListenerKey> {
        let refused = self.listeners().into_iter().filter(|(key, _)| {
            let finding = self.merge.not_owned(key);
            finding.is_some_and(|finding| finding.reason == Reason::QuotaExceeded)
        });
        refused.map(|(key, _)| key).collect()
    }

    /// The ports on which each namespace is served by listeners of its sets.
    fn served(&self) -> BTreeSet<(Arc<str>, PortKey)> {
        let served = self.listeners().into_iter().filter(|(key, _)| {
            self.merge.claim(key).is_some()
                && self.merge.conflict(key).is_none()
                && self.merge.is_claimed(key)
        });
        served
            .map(|(key, at)| (key.parent.name().namespace.clone(), at))
            .collect()
    }

    fn held_by(&self, namespace: &str) -> BTreeSet<PortKey> {
        let all = (0..PORTS.len()).map(at).filter(|at| {
            let holder = self.merge.port(at).and_then(PortClaims::holder);
            holder.is_some_and(|holder| *holder.namespace == *namespace)
        });
        all.collect()
    }

    fn is_own(&self, at_: &PortKey) -> bool {
        self.own.iter().any(|own| at(*own) == *at_)
    }

    /// The listeners over the limit, read in the plainest way.
    fn reading(&self) -> BTreeSet<ListenerKey> {
        let mut refused = BTreeSet::new();
        for namespace in ["a", "b"] {
            let held = self.held_by(namespace);
            let mine: Vec<(ListenerKey, PortKey)> = self.listeners();
            let mine: Vec<_> = mine
                .into_iter()
                .filter(|(key, at)| &*key.parent.name().namespace == namespace && !self.is_own(at))
                .collect();
            let mut used: Vec<PortKey> =
                held.iter().filter(|at| !self.is_own(at)).cloned().collect();
            let mut others: Vec<_> = mine
                .iter()
                .filter(|(_, at)| !held.contains(at))
                .map(|(key, at)| {
                    let ParentKey::ListenerSet(of) = &key.parent else {
                        panic!("a set")
                    };
                    let set = &self.sets[of];
                    let index = set
                        .listeners
                        .iter()
                        .position(|l| l.name == key.listener)
                        .unwrap();
                    let hostname = &set.listeners[index].hostname;
                    let holder = self.merge.port(at).and_then(PortClaims::holder);
                    let names = self.merge.names(&at.gateway);
                    let recorded = names.and_then(|of| of.recorded(hostname));
                    let joins = holder.is_some_and(|holder| holder.speaks != Some(Group::Raw))
                        && recorded.is_some_and(|of| &**of == namespace);
                    (!joins, set.meta.created, of.to_string(), index, at.clone())
                })
                .collect();
            others.sort();
            for (.., at) in others {
                if !used.contains(&at) && used.len() < LIMIT as usize {
                    used.push(at);
                }
            }
            let over = mine.into_iter().filter(|(_, at)| !used.contains(at));
            refused.extend(over.map(|(key, _)| key));
        }
        refused
    }
}

fn start(own: &[usize]) -> Merge {
    let mut merge = Merge::new(CONTROLLER).with_ports_per_namespace(LIMIT);
    let ours: Arc<str> = "vestibule".into();
    merge.put_class(&ours, Some(class(&ours)));
    let made = gateway_with(own);
    merge.put_gateway(&made.name.clone(), Some(made.into()));
    merge
}

#[derive(Debug, Clone)]
enum Op {
    Set(usize, i64, Vec<usize>),
    Remove(usize),
    Own(Vec<usize>),
    /// What is due is recorded, and graces end or not.
    Record(bool),
}

fn ops() -> impl Strategy<Value = Op> {
    let ports = || prop::collection::btree_set(0..PORTS.len(), 0..5);
    prop_oneof![
        6 => (0..SETS.len(), 0..3_i64, ports())
            .prop_map(|(set, created, ports)| Op::Set(set, created, ports.into_iter().rev().collect())),
        1 => (0..SETS.len()).prop_map(Op::Remove),
        1 => prop::collection::btree_set(0..2_usize, 0..3)
            .prop_map(|own| Op::Own(own.into_iter().collect())),
        4 => any::<bool>().prop_map(Op::Record),
    ]
}

proptest! {
    // Each step is followed by a start from scratch, so these are enough.
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever is asked for, in whatever order, the listeners over the limit are those that the rule says; a namespace is
    /// served on no more ports than it may be or holds; and what is in service and still declared stays in service.
    #[test]
    fn after_any_history_a_namespace_uses_the_ports_that_the_rule_says(
        history in prop::collection::vec(ops(), 1..40),
    ) {
        let mut world = World::new();
        for op in history {
            let (before, served) = (world.refused(), world.served());
            let waiting = world.waiting();
            let affected = match op.clone() {
                Op::Set(index, created, ports) => {
                    let there = world.sets.get(&name(SETS[index])).map(|set| set.meta.created);
                    Some(world.put(set_on(SETS[index], there.unwrap_or(created), &ports)))
                }
                Op::Remove(index) => Some(world.remove(&name(SETS[index]))),
                Op::Own(own) => Some(world.put_own(&own)),
                Op::Record(ends) => {
                    world.record(ends);
                    None
                }
            };
            let after = world.refused();
            prop_assert_eq!(&after, &world.reading(), "{:?}", op);
            if let Some(affected) = affected {
                for changed in before.symmetric_difference(&after) {
                    prop_assert!(affected.listeners.contains(changed), "{op:?}: {changed}");
                }
            }
            // A listener that comes back within its grace counts like one in use, and may have the place of a younger one of
            // its namespace. It also comes back when another namespace gets the port that it joins.
            let comes_back = |of: &(Arc<str>, PortKey)| match &op {
                Op::Set(index, ..) => name(SETS[*index]).namespace == of.0 && waiting.contains(&of.0),
                Op::Record(_) => waiting.contains(&of.0),
                _ => false,
            };
            let now = world.served();
            let declared: BTreeSet<(Arc<str>, PortKey)> = world
                .listeners()
                .into_iter()
                .map(|(key, at)| (key.parent.name().namespace.clone(), at))
                .collect();
            for of in served.iter().filter(|of| declared.contains(of)) {
                let kept = now.contains(of) || matches!(op, Op::Own(_)) || comes_back(of);
                prop_assert!(kept, "{op:?}: {of:?} is not served any more");
            }
            for namespace in ["a", "b"] {
                let count = |all: &mut dyn Iterator<Item = &PortKey>| {
                    all.filter(|at| !world.is_own(at)).count()
                };
                let mine = now.iter().filter(|(of, _)| **of == *namespace);
                let held = world.held_by(namespace);
                let most = count(&mut held.iter()).max(LIMIT as usize);
                prop_assert!(count(&mut mine.map(|(_, at)| at)) <= most);
            }
            // The same from scratch, the record first.
            let mut scratch = World {
                merge: start(&world.own),
                sets: BTreeMap::new(),
                own: world.own.clone(),
            };
            let records = world.keys().into_iter().map(|key| {
                let holder = world.merge.holder(&key);
                (key, holder)
            });
            scratch.merge.put_claims(records.collect());
            for set in world.sets.values().rev() {
                scratch.put((**set).clone());
            }
            prop_assert_eq!(scratch.refused(), after);
            prop_assert_eq!(scratch.served(), now);
        }
    }
}

fn limited(world: &World) -> Vec<String> {
    let refused = world.refused();
    refused.iter().map(ToString::to_string).collect()
}

#[test]
fn many_listeners_on_one_port_and_the_gateways_own_ports_cost_little_or_nothing() {
    let mut world = World::new();
    world.put_own(&[0]);
    let mut many = set_on("a/s", 1, &[0, 2, 3]);
    many.listeners
        .push(listener(3, "more", 8443, "TLS", "more.example"));
    world.put(many);
    assert_eq!(limited(&world), [""; 0]);
    // The Gateway gives its port up, which then costs one of the two.
    world.put_own(&[]);
    assert_eq!(limited(&world), ["ListenerSet/a/s/l8080"]);
    // The Gateway's own namespace has no limit.
    world.remove(&name("a/s"));
    world.put(set_on("infra/s", 1, &[0, 1, 2, 3]));
    assert_eq!(limited(&world), [""; 0]);
}

#[test]
fn a_port_in_service_is_lost_to_no_new_one_of_an_older_set() {
    let mut world = World::new();
    // Of the younger set, one port is held, and one is shared with its holder.
    world.put(set_on("b/s", 0, &[2]));
    world.record(false);
    world.put(set_on("a/t", 5, &[2, 3]));
    world.record(false);
    let served = world.served();
    assert_eq!(served.len(), 3);
    world.put(set_on("a/s", 1, &[1, 4]));
    world.record(false);
    assert_eq!(world.served(), served);
    assert_eq!(
        limited(&world),
        ["ListenerSet/a/s/l5432", "ListenerSet/a/s/l80"]
    );
    // The port that it shared is its own when the holder leaves, and counts as before.
    world.remove(&name("b/s"));
    world.record(false);
    assert_eq!(world.held_by("a").len(), 2);
    assert_eq!(limited(&world).len(), 2);
    // A port that it gives up makes room when the grace is over.
    world.put(set_on("a/t", 5, &[2]));
    world.record(false);
    assert_eq!(limited(&world).len(), 2);
    world.record(true);
    assert_eq!(limited(&world), ["ListenerSet/a/s/l5432"]);
}

/// If a port counted only for its holder, two namespaces could have any number by turns.
#[test]
fn a_port_counts_for_everybody_who_shares_it() {
    let mut world = World::new();
    world.put(set_on("a/s", 1, &[0, 2]));
    world.put(set_on("b/s", 2, &[0, 2]));
    world.record(true);
    world.put(set_on("a/s", 1, &[1, 3]));
    world.record(true);
    assert_eq!(world.held_by("b").len(), 2);
    world.put(set_on("b/s", 2, &[0, 2, 1, 3]));
    world.record(true);
    assert_eq!(
        limited(&world),
        ["ListenerSet/b/s/l80", "ListenerSet/b/s/l8080"]
    );
    assert_eq!(world.held_by("a").len(), 2);
}

#[test]
fn a_grant_says_otherwise_and_a_lower_limit_takes_nothing_that_is_held() {
    let mut world = World::new();
    let put = |world: &mut World, ports: Option<u32>| {
        let mut given = grant("infra/a", &["a"], &["*"]);
        given.limits = GrantLimits {
            ports,
            ..GrantLimits::default()
        };
        world
            .merge
            .put_grant(&given.name.clone(), Some(given.into()));
        world.record(true);
    };
    put(&mut world, Some(3));
    world.put(set_on("a/s", 1, &[0, 1, 2, 3]));
    world.record(true);
    assert_eq!(limited(&world), ["ListenerSet/a/s/l8080"]);
    put(&mut world, None);
    assert_eq!((limited(&world).len(), world.held_by("a").len()), (1, 3));
    put(&mut world, Some(0));
    assert_eq!((limited(&world).len(), world.held_by("a").len()), (1, 3));
    put(&mut world, Some(4));
    assert_eq!((limited(&world).len(), world.held_by("a").len()), (0, 4));
}

#[test]
fn admission_refuses_new_ports_and_lets_what_is_there_be_edited() {
    let mut world = World::new();
    world.put(set_on("a/s", 1, &[0, 1]));
    world.record(false);
    let fields = |world: &World, old: Option<&ListenerSet>, new: &ListenerSet| {
        let findings = world.merge.ports_of_change(old, new);
        assert!(
            findings
                .iter()
                .all(|finding| finding.reason == Reason::QuotaExceeded)
        );
        findings
            .into_iter()
            .map(|finding| finding.field)
            .collect::<Vec<_>>()
    };
    // A port that the namespace uses already is no new one.
    assert_eq!(fields(&world, None, &set_on("a/t", 0, &[0])), [""; 0]);
    let more = set_on("a/t", 0, &[0, 4, 2]);
    let refused = ["spec.listeners[1].port", "spec.listeners[2].port"];
    assert_eq!(fields(&world, None, &more), refused);
    assert_eq!(fields(&world, None, &set_on("b/s", 0, &[4, 2])), [""; 0]);
    // It came in while no webhook answered. Then it can be edited, and a listener more on a port over the limit cannot.
    world.put(more.clone());
    assert_eq!(limited(&world).len(), 2);
    assert_eq!(fields(&world, Some(&more), &more), [""; 0]);
    let mut edited = more.clone();
    edited.listeners[2].hostname = pattern("other.example");
    assert_eq!(fields(&world, Some(&more), &edited), [""; 0]);
    edited
        .listeners
        .push(listener(3, "second", 8443, "TLS", "second.example"));
    assert_eq!(
        fields(&world, Some(&more), &edited),
        ["spec.listeners[3].port"]
    );
    // A port that is held stays the namespace's for the grace, and counts.
    let present = set_on("a/s", 1, &[0, 1]);
    world.remove(&name("a/t"));
    let moved = set_on("a/s", 1, &[0, 2]);
    assert_eq!(
        fields(&world, Some(&present), &moved),
        ["spec.listeners[1].port"]
    );
    let fewer = set_on("a/s", 1, &[0]);
    world.put(fewer.clone());
    world.record(true);
    assert_eq!(fields(&world, Some(&fewer), &moved), [""; 0]);
}
