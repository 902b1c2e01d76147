//! The merge: whatever the history, the end is the same; each change says all it changed; and an
//! edit that admission lets through affects nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::condition::Reason;
use vestibule_model::conflict::{Claim, Conflict};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Gateway, GatewayClass, Listener, ListenerSet};
use vestibule_model::key::{ListenerKey, ObjectName, ParentKey, PortKey};
use vestibule_model::merge::{Affected, Merge, SetVerdict};
use vestibule_model::protocol::Transport;
use vestibule_model::selector::{LabelSelector, Labels, NamespaceScope, Requirement};

use crate::support::{CONTROLLER, class, gateway, listener, name, pattern, port, set};

#[derive(Debug, Clone)]
enum Op {
    Class(Arc<str>, Option<GatewayClass>),
    Gateway(ObjectName, Option<Arc<Gateway>>),
    Set(ObjectName, Option<Arc<ListenerSet>>),
    Namespace(Arc<str>, Option<Labels>),
}

impl Op {
    fn apply(&self, merge: &mut Merge) -> Affected {
        match self.clone() {
            Self::Class(name, class) => merge.put_class(&name, class),
            Self::Gateway(name, gateway) => merge.put_gateway(&name, gateway),
            Self::Set(name, set) => merge.put_set(&name, set),
            Self::Namespace(name, labels) => merge.put_namespace(&name, labels),
        }
    }

    /// What the operation is about, so that of two about one thing the last one counts.
    fn subject(&self) -> String {
        match self {
            Self::Class(name, _) => format!("class {name}"),
            Self::Gateway(name, _) => format!("gateway {name}"),
            Self::Set(name, _) => format!("set {name}"),
            Self::Namespace(name, _) => format!("namespace {name}"),
        }
    }
}

const GATEWAYS: [&str; 2] = ["infra/gw", "infra/gw-2"];
const SETS: [&str; 5] = ["a/s", "a-b/s", "a/t", "b/s", "infra/s"];
const NAMESPACES: [&str; 4] = ["a", "a-b", "b", "infra"];

fn listeners() -> impl Strategy<Value = Vec<Listener>> {
    let one = (
        0_usize..3,
        prop::sample::select(vec![443, 443, 80]),
        prop::sample::select(vec!["TLS", "TLS", "HTTPS", "HTTP", "TCP", "UDP", "SCTP"]),
        prop::sample::select(vec!["", "a", "b.a", "*.a", "*.b.a"]),
        prop::bool::weighted(0.1),
    );
    // Names are free, duplicates included.
    prop::collection::vec(one, 0..4).prop_map(|parts| {
        parts
            .into_iter()
            .enumerate()
            .map(|(index, (name, number, protocol, hostname, bad))| {
                let mut made = listener(index, &format!("l{name}"), number, protocol, hostname);
                if bad {
                    made.findings
                        .push(Finding::refused(Reason::InvalidHostname, "", "", ""));
                }
                made
            })
            .collect()
    })
}

fn scopes() -> impl Strategy<Value = NamespaceScope> {
    let labelled = NamespaceScope::Selector(LabelSelector {
        requirements: vec![Requirement::Exists("tenant".into())],
    });
    prop::sample::select(vec![
        NamespaceScope::All,
        NamespaceScope::All,
        labelled,
        NamespaceScope::Same,
        NamespaceScope::None,
    ])
}

fn gateways() -> impl Strategy<Value = Gateway> {
    (
        prop::sample::select(GATEWAYS.to_vec()),
        prop::sample::select(vec!["vestibule", "vestibule", "foreign"]),
        listeners(),
        scopes(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(at, class, listeners, scope, deleting)| {
            let mut made = gateway(at, listeners);
            made.class = class.into();
            made.allowed_listeners = scope;
            made.meta.deleting = deleting;
            made
        })
}

fn sets() -> impl Strategy<Value = ListenerSet> {
    (
        prop::sample::select(SETS.to_vec()),
        prop::sample::select(vec!["infra/gw", "infra/gw", "infra/gw-2", "infra/none"]),
        0_i64..3,
        listeners(),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(at, parent, created, listeners, deleting, other_kind)| {
            let mut made = set(at, parent, created, listeners);
            made.meta.deleting = deleting;
            if other_kind {
                made.gateway = None;
            }
            made
        })
}

fn ops() -> impl Strategy<Value = Op> {
    let classes = (
        prop::sample::select(vec!["vestibule", "foreign"]),
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(name, ours, there)| {
            let name: Arc<str> = name.into();
            let mut made = class(&name);
            if !ours {
                made.controller = "example.com/other".into();
            }
            Op::Class(name, there.then_some(made))
        });
    let namespaces = (
        prop::sample::select(NAMESPACES.to_vec()),
        any::<bool>(),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(name, tenant, there)| {
            let labels = tenant.then(|| ("tenant".to_owned(), "yes".to_owned()));
            Op::Namespace(name.into(), there.then(|| labels.into_iter().collect()))
        });
    prop_oneof![
        1 => classes,
        1 => namespaces,
        2 => (gateways(), prop::bool::weighted(0.8)).prop_map(|(gateway, there)| {
            Op::Gateway(gateway.name.clone(), there.then(|| gateway.into()))
        }),
        6 => (sets(), prop::bool::weighted(0.8)).prop_map(|(set, there)| {
            Op::Set(set.name.clone(), there.then(|| set.into()))
        }),
    ]
}

/// Everything that can be asked of a merge.
#[derive(Debug, PartialEq, Default)]
struct View {
    gateways: BTreeMap<ObjectName, Arc<Gateway>>,
    sets: BTreeMap<ObjectName, (Arc<ListenerSet>, SetVerdict)>,
    listeners: BTreeMap<ListenerKey, (PortKey, Claim, Option<Conflict>, bool)>,
}

fn view(merge: &Merge) -> View {
    let mut view = View::default();
    let mut parents = Vec::new();
    for at in GATEWAYS.map(name) {
        if let Some(gateway) = merge.gateway(&at) {
            view.gateways.insert(at.clone(), gateway.clone());
            parents.push((ParentKey::Gateway(at), gateway.listeners.clone()));
        }
    }
    for at in SETS.map(name) {
        if let Some(set) = merge.set(&at) {
            let verdict = merge.verdict(set);
            view.sets.insert(at.clone(), (set.clone(), verdict));
            parents.push((ParentKey::ListenerSet(at), set.listeners.clone()));
        }
    }
    for (parent, listeners) in parents {
        for listener in listeners {
            let key = listener.key(&parent);
            if let Some((port, claim)) = merge.claim(&key) {
                let entry = (
                    port.clone(),
                    claim.clone(),
                    merge.conflict(&key),
                    merge.overlaps(&key),
                );
                view.listeners.insert(key, entry);
            }
        }
    }
    view
}

/// Claims of every port: nothing may stay behind that no listener stands for.
fn ports(merge: &Merge) -> Vec<(PortKey, String)> {
    let mut all = Vec::new();
    for gateway in ["infra/gw", "infra/gw-2", "infra/none"].map(name) {
        for number in [80, 443] {
            for transport in [Transport::Tcp, Transport::Udp] {
                let key = PortKey {
                    gateway: gateway.clone(),
                    port: port(number),
                    transport,
                };
                if let Some(claims) = merge.port(&key) {
                    assert!(!claims.is_empty());
                    all.push((key, format!("{claims:?}")));
                }
            }
        }
    }
    all
}

fn changed<K: Ord + Clone, V: PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> Vec<K> {
    before
        .keys()
        .chain(after.keys())
        .filter(|key| before.get(*key) != after.get(*key))
        .cloned()
        .collect()
}

fn start() -> Merge {
    let mut merge = Merge::new(CONTROLLER);
    let ours: Arc<str> = "vestibule".into();
    merge.put_class(&ours, Some(class(&ours)));
    merge
}

proptest! {
    #[test]
    fn any_history_comes_to_what_a_fresh_start_comes_to(ops in prop::collection::vec(ops(), 1..30)) {
        let mut merge = start();
        let mut last: BTreeMap<String, Op> = BTreeMap::new();
        let ours: Arc<str> = "vestibule".into();
        let class_op = Op::Class(ours.clone(), Some(class(&ours)));
        last.insert(class_op.subject(), class_op);
        let mut before = view(&merge);
        for op in ops {
            let affected = op.apply(&mut merge);
            let after = view(&merge);
            for gateway in changed(&before.gateways, &after.gateways) {
                prop_assert!(affected.gateways.contains(&gateway), "{op:?}: {gateway:?}");
            }
            for set in changed(&before.sets, &after.sets) {
                prop_assert!(affected.sets.contains(&set), "{op:?}: {set:?}");
            }
            for listener in changed(&before.listeners, &after.listeners) {
                let entry = |view: &View| view.listeners.get(&listener).cloned();
                let but_overlap = |view: &View| entry(view).map(|(at, claim, conflict, _)| (at, claim, conflict));
                let overlap = but_overlap(&before) == but_overlap(&after);
                let mut places = affected.overlaps.iter().filter(|_| overlap);
                let said = affected.listeners.contains(&listener)
                    || places.any(|(at, names)| {
                        let mut all = merge.neighbours(at, names, None);
                        all.any(|one| *one.listener() == listener)
                    });
                prop_assert!(said, "{op:?}: {listener:?}");
            }
            last.insert(op.subject(), op);
            before = after;
        }
        for reversed in [false, true] {
            let mut scratch = Merge::new(CONTROLLER);
            let mut ops: Vec<&Op> = last.values().collect();
            if reversed {
                ops.reverse();
            }
            for op in ops {
                op.apply(&mut scratch);
            }
            prop_assert_eq!(&view(&scratch), &before);
            prop_assert_eq!(ports(&scratch), ports(&merge));
        }
        // Taken away one by one, nothing stays behind.
        for at in SETS.map(name) {
            merge.put_set(&at, None);
        }
        for at in GATEWAYS.map(name) {
            merge.put_gateway(&at, None);
        }
        prop_assert_eq!(ports(&merge), vec![]);
        prop_assert_eq!(view(&merge), View::default());
    }

    #[test]
    fn listener_set_that_admission_lets_through_evicts_no_listener(
        ops in prop::collection::vec(ops(), 1..20),
        mut edited in sets(),
    ) {
        let mut merge = start();
        for op in ops {
            op.apply(&mut merge);
        }
        edited.meta.deleting = false;
        let old = merge.set(&edited.name).cloned();
        if let Some(old) = &old {
            edited.meta.created = old.meta.created;
        }
        let findings = merge.conflicts_of_change(old.as_deref(), &edited);
        let before = view(&merge);
        // What a set leaves can change what a port speaks, as upstream's order has it: whoever loses
        // by that would lose by its deletion too.
        let mut without = merge.clone();
        without.put_set(&edited.name, None);
        merge.put_set(&edited.name.clone(), Some(edited.clone().into()));
        let after = view(&merge);
        let parent = edited.parent_key();
        for (listener, (.., conflict, _)) in &after.listeners {
            let was = before.listeners.get(listener);
            if listener.parent == parent {
                // What is new or changed is in force, or there is a finding.
                let (key, claim, ..) = &after.listeners[listener];
                let kept = was.is_some_and(|(k, c, ..)| {
                    k == key && c.protocol == claim.protocol && c.hostname == claim.hostname
                });
                if !kept && findings.is_empty() {
                    prop_assert_eq!(conflict, &None, "{}", listener);
                }
            } else if findings.is_empty()
                && was.is_some_and(|(.., c, _)| c.is_none())
                && without.conflict(listener).is_none()
            {
                prop_assert_eq!(conflict, &None, "{} was evicted", listener);
            }
        }
        // The same object once more changes nothing, so there is nothing to say.
        prop_assert_eq!(merge.conflicts_of_change(Some(&edited), &edited), vec![]);
    }
}

fn with(gateway: Gateway, sets: &[ListenerSet]) -> Merge {
    let mut merge = start();
    merge.put_gateway(&gateway.name.clone(), Some(gateway.into()));
    for set in sets {
        merge.put_set(&set.name.clone(), Some(set.clone().into()));
    }
    merge
}

fn fields(findings: &[Finding]) -> Vec<(&str, Reason)> {
    findings
        .iter()
        .map(|f| (f.field.as_str(), f.reason))
        .collect()
}

#[test]
fn an_old_set_cannot_take_a_name_by_an_edit() {
    let young = set(
        "young/s",
        "infra/gw",
        9,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    let old = set(
        "old/s",
        "infra/gw",
        1,
        vec![listener(0, "l", 443, "TLS", "y.example")],
    );
    let merge = with(gateway("infra/gw", vec![]), &[young, old.clone()]);
    let mut edited = old.clone();
    edited
        .listeners
        .push(listener(1, "m", 443, "TLS", "x.example"));
    assert_eq!(
        fields(&merge.conflicts_of_change(Some(&old), &edited)),
        [("spec.listeners[1].hostname", Reason::HostnameConflict)]
    );
    // Nor the port by another protocol.
    edited.listeners[1] = listener(1, "m", 443, "HTTP", "z.example");
    assert_eq!(
        fields(&merge.conflicts_of_change(Some(&old), &edited)),
        [("spec.listeners[1].protocol", Reason::ProtocolConflict)]
    );
}

#[test]
fn of_two_listeners_of_a_set_for_one_port_admission_refuses_the_one_that_loses() {
    // Bytes need no hostname. So the second one comes first while nobody has the name of the first one.
    for protocol in ["TLS", "HTTP"] {
        let listeners = vec![
            listener(0, "l", 9000, protocol, ""),
            listener(1, "m", 9000, "TCP", ""),
        ];
        let one = set("team/s", "infra/gw", 1, listeners);
        let mut merge = with(gateway("infra/gw", vec![]), &[]);
        let said = merge.conflicts_of_change(None, &one);
        merge.put_set(&one.name.clone(), Some(one.clone().into()));
        let lost = one.listeners.iter().filter(|listener| {
            let key = listener.key(&one.parent_key());
            merge.conflict(&key) == Some(Conflict::Protocol)
        });
        let lost: Vec<String> = lost.map(|l| format!("{}.protocol", l.field)).collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        let said: Vec<&str> = said.iter().map(|finding| finding.field.as_str()).collect();
        assert_eq!(said, lost);
    }
}

#[test]
fn a_set_may_shuffle_what_it_holds() {
    let old = set(
        "team/s",
        "infra/gw",
        1,
        vec![
            listener(0, "a", 443, "TLS", "x.example"),
            listener(1, "b", 443, "TLS", "y.example"),
        ],
    );
    let rival = set(
        "rival/s",
        "infra/gw",
        2,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    let mut merge = with(gateway("infra/gw", vec![]), &[old.clone(), rival]);
    let mut swapped = old.clone();
    swapped.listeners = vec![
        listener(0, "a", 443, "TLS", "y.example"),
        listener(1, "b", 443, "TLS", "x.example"),
    ];
    let mut reordered = old.clone();
    reordered.listeners = vec![
        listener(0, "b", 443, "TLS", "y.example"),
        listener(1, "a", 443, "TLS", "x.example"),
    ];
    let mut renamed = old.clone();
    renamed.listeners[0] = listener(0, "c", 443, "TLS", "x.example");
    for edited in [swapped, reordered, renamed] {
        assert_eq!(merge.conflicts_of_change(Some(&old), &edited), []);
        merge.put_set(&edited.name.clone(), Some(edited.clone().into()));
        for listener in &edited.listeners {
            assert_eq!(merge.conflict(&listener.key(&edited.parent_key())), None);
        }
    }
}

#[test]
fn a_set_with_a_conflict_can_be_edited_elsewhere() {
    let holder = set(
        "holder/s",
        "infra/gw",
        1,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    let loser = set(
        "loser/s",
        "infra/gw",
        2,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    let merge = with(gateway("infra/gw", vec![]), &[holder, loser.clone()]);
    let mut edited = loser.clone();
    edited
        .listeners
        .push(listener(1, "m", 443, "TLS", "y.example"));
    assert_eq!(merge.conflicts_of_change(Some(&loser), &edited), []);
    assert_eq!(
        fields(&merge.conflicts_of_newcomer(&edited)),
        [("spec.listeners[0].hostname", Reason::HostnameConflict)]
    );
}

#[test]
fn a_name_that_an_admin_takes_from_its_holder_conflicts_with_nobody_but_the_holder() {
    let on_443 = |at: &str, created: i64, protocol: &str| {
        let listeners = vec![listener(0, "l", 443, protocol, "x.example")];
        set(at, "infra/gw", created, listeners)
    };
    let holder = on_443("holder/s", 1, "TLS");
    let mut merge = with(gateway("infra/gw", vec![]), &[holder]);
    let key = ClaimKey::names(&name("infra/gw"), &pattern("x.example"));
    let held = Some(Holder::from("holder"));
    merge.put_claims(BTreeMap::from([(key.clone(), held)]));
    let refused = |merge: &Merge, set: &ListenerSet| {
        let findings = merge.conflicts_of_newcomer(set);
        !findings.is_empty()
    };
    let (same, other) = (on_443("b/s", 2, "TLS"), on_443("b/s", 2, "HTTPS"));
    assert!(refused(&merge, &same) && refused(&merge, &other));

    merge.put_taken(BTreeMap::from([(key.clone(), Some("holder".into()))]));
    assert!(!refused(&merge, &same) && !refused(&merge, &other));
    // What a port speaks is not taken with the name, and the holder still has only one listener for it.
    assert!(refused(&merge, &on_443("b/s", 2, "HTTP")));
    assert!(refused(&merge, &on_443("holder/t", 2, "TLS")));

    // From somebody who does not hold it, it is not taken.
    merge.put_taken(BTreeMap::from([(key, Some("c".into()))]));
    assert!(refused(&merge, &same));
}

#[test]
fn a_set_conflicts_with_itself_and_with_the_gateway() {
    let merge = with(
        gateway(
            "infra/gw",
            vec![listener(0, "own", 443, "TLS", "own.example")],
        ),
        &[],
    );
    let new = set(
        "team/s",
        "infra/gw",
        1,
        vec![
            listener(0, "a", 443, "TLS", "own.example"),
            listener(1, "b", 443, "HTTPS", "x.example"),
            listener(2, "c", 443, "TLS", "x.example"),
            // No grant gives TCP on this port, so it asks for nothing that could conflict.
            listener(3, "d", 443, "TCP", ""),
            listener(4, "e", 443, "UDP", ""),
        ],
    );
    assert_eq!(
        fields(&merge.conflicts_of_newcomer(&new)),
        [
            ("spec.listeners[0].hostname", Reason::HostnameConflict),
            ("spec.listeners[2].protocol", Reason::ProtocolConflict),
        ]
    );
}

#[test]
fn listener_set_that_is_not_let_in_has_no_conflicts_and_claims_nothing() {
    let mut closed = gateway(
        "infra/gw",
        vec![listener(0, "own", 443, "TLS", "own.example")],
    );
    closed.allowed_listeners = NamespaceScope::Same;
    let new = set(
        "team/s",
        "infra/gw",
        1,
        vec![listener(0, "a", 443, "TLS", "own.example")],
    );
    let merge = with(closed.clone(), std::slice::from_ref(&new));
    assert_eq!(merge.conflicts_of_newcomer(&new), []);
    assert!(matches!(merge.verdict(&new), SetVerdict::NotAllowed(_)));
    assert_eq!(merge.claim(&new.listeners[0].key(&new.parent_key())), None);

    let nobody = start();
    assert_eq!(nobody.conflicts_of_newcomer(&new), []);
    assert_eq!(nobody.verdict(&new), SetVerdict::Orphan);

    // Another controller's Gateway.
    let mut foreign = start();
    closed.class = "foreign".into();
    foreign.put_gateway(&closed.name.clone(), Some(closed.into()));
    assert_eq!(foreign.verdict(&new), SetVerdict::Orphan);
}

#[test]
fn a_loser_takes_over_when_the_winner_goes() {
    let sets = [("winner/s", 1), ("loser/s", 2)].map(|(at, created)| {
        set(
            at,
            "infra/gw",
            created,
            vec![listener(0, "l", 443, "TLS", "x.example")],
        )
    });
    let mut merge = with(gateway("infra/gw", vec![]), &sets);
    let loser = sets[1].listeners[0].key(&sets[1].parent_key());
    assert_eq!(merge.conflict(&loser), Some(Conflict::Hostname));
    let mut leaving = sets[0].clone();
    leaving.meta.deleting = true;
    let affected = merge.put_set(&leaving.name.clone(), Some(leaving.into()));
    assert!(affected.listeners.contains(&loser));
    assert_eq!(merge.conflict(&loser), None);
}

#[test]
fn a_listener_that_is_copied_into_another_object_has_a_key_of_its_own() {
    let parent = |name| ParentKey::ListenerSet(ObjectName::new("a", name));
    let one = listener(0, "web", 443, "TLS", "a.example.com");
    let key = one.key(&parent("one"));
    let mut copied = one.clone();
    assert_eq!(copied.key(&parent("two")).parent, parent("two"));
    copied.name = "mail".into();
    assert_eq!(*copied.key(&parent("one")).listener, *"mail");
    assert_eq!(one.key(&parent("one")), key);
}
