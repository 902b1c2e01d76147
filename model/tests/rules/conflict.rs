//! Conflicts on one port: the rows of "Distinct Listeners" as golden cases, and the index against a
//! reference that goes through the sorted list as the specification tells it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vestibule_model::claim::Holder;
use vestibule_model::condition::Reason;
use vestibule_model::conflict::{Claim, Conflict, Precedence};
use vestibule_model::key::{ListenerKey, ParentKey};
use vestibule_model::port::{Changed, Neighbour, PortClaims};
use vestibule_model::protocol::{Group, Protocol};

use crate::support::{name, pattern};

/// A claim of the Gateway (`None`) or of a set (its name and creation), `index` in its object.
fn claim(set: Option<(&str, i64)>, index: usize, protocol: &str, hostname: &str) -> Claim {
    let (parent, precedence) = match set {
        None => (
            ParentKey::Gateway(name("infra/gw")),
            Precedence::Gateway(index),
        ),
        Some((at, created)) => (
            ParentKey::ListenerSet(name(at)),
            Precedence::of_set(created, &name(at), index),
        ),
    };
    Claim {
        listener: ListenerKey::new(parent, format!("l{index}")),
        precedence,
        protocol: Protocol::from_text(protocol),
        hostname: pattern(hostname),
        has_name: true,
        takes_routes: true,
        served: true,
    }
}

/// Owner, protocol, hostname and the conflict expected, in spec order per owner. The owner is `gw`
/// or a set as `namespace/name@created`.
type Row<'a> = (&'a str, &'a str, &'a str, Option<Conflict>);

fn check(case: &str, rows: &[Row<'_>]) {
    let mut port = PortClaims::default();
    let mut claims = Vec::new();
    let mut indexes: BTreeMap<&str, usize> = BTreeMap::new();
    for (owner, protocol, hostname, _) in rows {
        let index = indexes.entry(owner).or_default();
        let set = owner
            .split_once('@')
            .map(|(at, created)| (at, created.parse().unwrap()));
        claims.push(claim(set, *index, protocol, hostname));
        *index += 1;
    }
    // The order of arrival must not matter: here, the last one first.
    for claim in claims.iter().rev() {
        port.insert(claim.clone());
    }
    for (claim, row) in claims.iter().zip(rows) {
        assert_eq!(port.conflict(claim), row.3, "{case}: {row:?}");
    }
}

const NONE: Option<Conflict> = None;
const HOST: Option<Conflict> = Some(Conflict::Hostname);
const PROTOCOL: Option<Conflict> = Some(Conflict::Protocol);
const BOTH: Option<Conflict> = Some(Conflict::Both);

#[test]
fn claims_on_a_port_conflict_by_protocol_and_by_hostname() {
    for protocol in ["HTTP", "HTTPS", "TLS"] {
        check(
            "same protocol, same hostname",
            &[
                ("a/a@1", protocol, "x.example", NONE),
                ("b/b@2", protocol, "x.example", HOST),
            ],
        );
        check(
            "same protocol, both without a hostname",
            &[("a/a@1", protocol, "", NONE), ("b/b@2", protocol, "", HOST)],
        );
        check(
            "nested hostnames are distinct",
            &[
                ("a/a@1", protocol, "*.a.com", NONE),
                ("b/b@2", protocol, "x.a.com", NONE),
                ("c/c@3", protocol, "", NONE),
                ("d/d@4", protocol, "*.x.a.com", NONE),
                ("e/e@5", protocol, "a.com", NONE),
            ],
        );
    }
    for protocol in ["TCP", "UDP"] {
        check(
            "bytes without names",
            &[
                ("a/a@1", protocol, "", NONE),
                ("b/b@2", protocol, "", PROTOCOL),
            ],
        );
        check(
            "a hostname does not tell bytes apart",
            &[
                ("a/a@1", protocol, "x.example", NONE),
                ("b/b@2", protocol, "y.example", PROTOCOL),
            ],
        );
    }
    for (first, second) in [
        ("HTTP", "HTTPS"),
        ("HTTP", "TLS"),
        ("HTTP", "TCP"),
        ("HTTPS", "TCP"),
        ("TLS", "TCP"),
    ] {
        for (first, second) in [(first, second), (second, first)] {
            check(
                "another kind of protocol, whatever the hostname",
                &[
                    ("a/a@1", first, "", NONE),
                    ("b/b@2", second, "", PROTOCOL),
                    ("c/c@3", second, "y.example", PROTOCOL),
                ],
            );
        }
    }
    check(
        "HTTPS and TLS are told apart by server name",
        &[
            ("a/a@1", "HTTPS", "x.example", NONE),
            ("b/b@2", "TLS", "y.example", NONE),
            ("c/c@3", "TLS", "x.example", PROTOCOL),
            ("d/d@4", "HTTPS", "y.example", PROTOCOL),
        ],
    );
}

#[test]
fn among_the_gateways_own_nobody_wins() {
    check(
        "both are conflicted, the third is not",
        &[
            ("gw", "TLS", "x.example", HOST),
            ("gw", "TLS", "x.example", HOST),
            ("gw", "TLS", "y.example", NONE),
        ],
    );
    check(
        "a protocol conflict takes all of the port",
        &[
            ("gw", "HTTP", "x.example", PROTOCOL),
            ("gw", "TLS", "y.example", PROTOCOL),
        ],
    );
    check(
        "both kinds at once",
        &[
            ("gw", "TLS", "x.example", BOTH),
            ("gw", "TLS", "x.example", BOTH),
            ("gw", "HTTPS", "x.example", PROTOCOL),
        ],
    );
    check(
        "conflicted ones still have their slot",
        &[
            ("gw", "TLS", "x.example", HOST),
            ("gw", "TLS", "x.example", HOST),
            ("a/a@1", "TLS", "x.example", HOST),
            ("a/a@1", "TLS", "y.example", NONE),
        ],
    );
    check(
        "a set can meet both kinds among them",
        &[
            ("gw", "HTTP", "x.example", PROTOCOL),
            ("gw", "TLS", "x.example", PROTOCOL),
            ("a/a@1", "TLS", "x.example", BOTH),
            ("a/a@1", "TLS", "y.example", PROTOCOL),
        ],
    );
}

#[test]
fn across_objects_the_first_wins() {
    check(
        "the Gateway wins over older sets and keeps its status",
        &[
            ("gw", "TLS", "x.example", NONE),
            ("a/a@1", "TLS", "x.example", HOST),
        ],
    );
    check(
        "what the Gateway speaks on a port binds the sets",
        &[
            ("gw", "HTTPS", "own.example", NONE),
            ("a/a@1", "HTTP", "x.example", PROTOCOL),
            ("a/a@1", "TLS", "y.example", NONE),
        ],
    );
    check(
        "the oldest set",
        &[
            ("z/z@1", "TLS", "x.example", NONE),
            ("a/a@2", "TLS", "x.example", HOST),
            ("b/b@3", "TLS", "x.example", HOST),
        ],
    );
    check(
        "ties go by namespace/name as one text: '-' sorts before '/'",
        &[
            ("a-b/x@1", "TLS", "x.example", NONE),
            ("a/x@1", "TLS", "x.example", HOST),
        ],
    );
    check(
        "inside a set the first in spec order",
        &[
            ("a/a@1", "HTTPS", "x.example", NONE),
            ("a/a@1", "TLS", "x.example", PROTOCOL),
            ("a/a@1", "HTTP", "y.example", PROTOCOL),
        ],
    );
    check(
        "a loser takes nothing from those after it",
        &[
            ("a/a@1", "TLS", "x.example", NONE),
            ("b/b@2", "TCP", "", PROTOCOL),
            ("c/c@3", "TLS", "y.example", NONE),
        ],
    );
    check(
        "ten indexes sort as numbers",
        &[
            ("a/a@1", "TLS", "0.example", NONE),
            ("a/a@1", "TLS", "1a.example", NONE),
            ("a/a@1", "TLS", "x.example", NONE),
            ("a/a@1", "TLS", "3a.example", NONE),
            ("a/a@1", "TLS", "4a.example", NONE),
            ("a/a@1", "TLS", "5a.example", NONE),
            ("a/a@1", "TLS", "6a.example", NONE),
            ("a/a@1", "TLS", "7a.example", NONE),
            ("a/a@1", "TLS", "8a.example", NONE),
            ("a/a@1", "TLS", "9a.example", NONE),
            ("a/a@1", "TLS", "x.example", HOST),
        ],
    );
}

#[test]
fn reasons_are_those_the_conformance_tests_want() {
    assert_eq!(Conflict::Hostname.reason(), Reason::HostnameConflict);
    assert_eq!(Conflict::Protocol.reason(), Reason::ProtocolConflict);
    assert_eq!(Conflict::Both.reason(), Reason::ListenerConflict);
}

#[test]
fn messages_say_what_and_where_and_what_to_do() {
    let taken = claim(Some(("team/set", 1)), 0, "TLS", "x.example");
    let any = claim(Some(("team/set", 1)), 1, "TCP", "");
    let gateway = name("infra/gw");
    let text = |conflict: Conflict, claim| {
        conflict
            .finding(claim, "spec.listeners[0]", 443, &gateway)
            .to_string()
    };
    assert_eq!(
        text(Conflict::Hostname, &taken),
        "spec.listeners[0].hostname: hostname \"x.example\" on port 443 is taken by another \
         listener on Gateway infra/gw; use another hostname or port, or have the present listener \
         removed first"
    );
    assert_eq!(
        text(Conflict::Protocol, &any),
        "spec.listeners[0].protocol: TCP port 443 of Gateway infra/gw is another listener's, and TCP \
         has no names by which two could share it; use another port"
    );
    assert_eq!(
        text(Conflict::Protocol, &taken),
        "spec.listeners[0].protocol: hostname \"x.example\" on port 443 cannot speak TLS because another \
         listener on Gateway infra/gw speaks another protocol there; use another port, or the \
         protocol that the port already speaks"
    );
    assert_eq!(
        text(Conflict::Both, &taken),
        "spec.listeners[0].port: hostname \"x.example\" on port 443 is claimed by other listeners \
         on Gateway infra/gw, with the same and with another protocol; use another hostname or port"
    );
}

#[test]
fn a_newcomer_is_measured_by_what_is_in_force_whatever_its_age() {
    let mut port = PortClaims::default();
    port.insert(claim(Some(("young/set", 9)), 0, "TLS", "x.example"));
    let old = claim(Some(("old/set", 1)), 0, "TLS", "x.example");
    assert_eq!(port.conflict(&old), NONE, "upstream's order");
    assert_eq!(port.conflict_as_newcomer(&old, None), HOST);
    // An older set that adds TCP would evict everybody's TLS.
    let tcp = claim(Some(("old/set", 1)), 1, "TCP", "");
    assert_eq!(port.conflict_as_newcomer(&tcp, None), PROTOCOL);
    // Its own former claims are not rivals, and neither are those that only contend for its place.
    port.insert(old);
    let renamed = claim(Some(("old/set", 1)), 7, "TLS", "x.example");
    assert_eq!(port.conflict_as_newcomer(&renamed, None), NONE);
}

#[test]
fn a_port_that_is_passed_on_concerns_nobody_who_has_a_name() {
    let mut port = PortClaims::default();
    for (set, hostname) in [("a/x", "a"), ("b/x", "b"), ("b.c/x", "c")] {
        port.insert(claim(Some((set, 1)), 0, "TLS", hostname));
    }
    let held_by = |namespace: &str| Some(Holder::of_port(namespace.into(), Group::Tls));
    assert_eq!(port.hold(held_by("a").as_ref()).listeners.len(), 3);
    assert_eq!(port.hold(held_by("b").as_ref()), Changed::default());
    // Nor whoever wants it to speak something else: not even its holder may have that.
    port.insert(claim(Some(("a/y", 0)), 0, "HTTP", "a"));
    assert_eq!(port.hold(held_by("a").as_ref()), Changed::default());
}

// The reference: one pass over the sorted list.

fn clash(a: &Claim, b: &Claim) -> Option<Conflict> {
    let kind = |p: &Protocol| match p {
        Protocol::Http => 0,
        Protocol::Https | Protocol::Tls => 1,
        _ => 2,
    };
    let (of_a, of_b) = (kind(&a.protocol), kind(&b.protocol));
    if of_a != of_b || of_a == 2 {
        return Some(Conflict::Protocol);
    }
    (a.hostname == b.hostname).then_some(if a.protocol == b.protocol {
        Conflict::Hostname
    } else {
        Conflict::Protocol
    })
}

fn is_own(claim: &Claim) -> bool {
    matches!(claim.precedence, Precedence::Gateway(_))
}

fn worst<'a>(claim: &Claim, rivals: impl Iterator<Item = &'a Claim>) -> Option<Conflict> {
    let kinds: BTreeSet<Conflict> = rivals.filter_map(|rival| clash(claim, rival)).collect();
    match kinds.len() {
        0 => None,
        1 => kinds.first().copied(),
        _ => Some(Conflict::Both),
    }
}

type Verdicts = BTreeMap<ListenerKey, (Option<Conflict>, bool)>;

fn naive(claims: &BTreeMap<ListenerKey, Claim>) -> Verdicts {
    let mut sorted: Vec<&Claim> = claims.values().collect();
    sorted.sort_by_key(|c| (&c.precedence, &c.listener));
    let mut conflicts: BTreeMap<&ListenerKey, Option<Conflict>> = BTreeMap::new();
    for claim in &sorted {
        let rivals = sorted.iter().copied().filter(|rival| {
            rival.listener != claim.listener
                && (is_own(rival)
                    || !is_own(claim) && conflicts.get(&rival.listener) == Some(&None))
        });
        let verdict = worst(claim, rivals);
        conflicts.insert(&claim.listener, verdict);
    }
    let tls = |c: &Claim| matches!(c.protocol, Protocol::Https | Protocol::Tls);
    sorted
        .iter()
        .map(|claim| {
            let overlaps = tls(claim)
                && sorted.iter().any(|rival| {
                    tls(rival)
                        && conflicts[&rival.listener].is_none()
                        && rival.hostname != claim.hostname
                        && rival.hostname.overlaps(&claim.hostname)
                });
            (
                claim.listener.clone(),
                (conflicts[&claim.listener], overlaps),
            )
        })
        .collect()
}

fn verdicts(port: &PortClaims, claims: &BTreeMap<ListenerKey, Claim>) -> Verdicts {
    claims
        .values()
        .map(|c| (c.listener.clone(), (port.conflict(c), port.overlaps(c))))
        .collect()
}

/// Somebody who wants to speak something else on a port that is held for TLS changes nothing for those who speak it,
/// and nobody looks at them.
#[test]
fn claim_for_another_protocol_does_not_affect_those_for_the_held_one() {
    let changed_at = |count: i64| {
        let mut port = PortClaims::default();
        port.hold(Some(&Holder::of_port("a".into(), Group::Tls)));
        for n in 0..count {
            let set = format!("t{n}/set");
            port.insert(claim(Some((&set, n)), 0, "TLS", &format!("n{n}.example")));
        }
        let other = claim(Some(("greedy/set", 0)), 0, "HTTP", "x.example");
        let listener = other.listener.clone();
        [port.insert(other), port.remove(&listener)]
    };
    let small = changed_at(10);
    assert_eq!(small, changed_at(1000));
    assert_eq!(small[0].listeners.len(), 1);
    // A wide hostname says whose names it overlaps with, and does not look at them.
    let mut port = PortClaims::default();
    port.hold(Some(&Holder::of_port("a".into(), Group::Tls)));
    for n in 0..100 {
        port.insert(claim(
            Some(("a/set", 0)),
            n,
            "TLS",
            &format!("n{n}.example"),
        ));
    }
    let changed = port.insert(claim(Some(("b/set", 0)), 0, "TLS", "*.example"));
    assert_eq!(changed.listeners.len(), 1);
    assert_eq!(changed.overlaps, BTreeSet::from([pattern("*.example")]));
    assert_eq!(port.neighbours(&pattern("*.example"), None).count(), 100);
}

/// Whether a change says that the verdict about a claim may be another one. `overlap`: just what is said of overlaps.
fn is_said(port: &PortClaims, claim: &Claim, changed: &Changed, overlap: bool) -> bool {
    let mut places = changed.overlaps.iter().filter(|_| overlap);
    changed.listeners.contains(&claim.listener)
        || places.any(|names| {
            let all: Vec<Neighbour> = port.neighbours(names, None).collect();
            // A look that goes on anywhere comes to the same end.
            for (at, last) in all.iter().enumerate() {
                let rest: Vec<Neighbour> = port.neighbours(names, Some(last)).collect();
                assert_eq!(rest, all[at + 1..]);
            }
            all.iter().any(|one| *one.listener() == claim.listener)
        })
}

/// Claims of a Gateway and five sets of three ages, the sets' names chosen so that their order as
/// one text is not that of their parts. A listener's index is free, so that listeners change places.
fn claims() -> impl Strategy<Value = Claim> {
    let sets = ["a/x", "a-b/x", "a/y", "b/x", "b.c/x"];
    (
        prop::option::weighted(0.75, 0..sets.len()),
        0_usize..4,
        0_usize..4,
        prop::sample::select(vec!["TLS", "TLS", "TLS", "HTTPS", "HTTPS", "HTTP", "TCP"]),
        prop::sample::select(vec![
            "", "a", "b.a", "c.b.a", "*.a", "*.b.a", "*.c.b.a", "ab", "*.ab",
        ]),
    )
        .prop_map(move |(set, listener, index, protocol, hostname)| {
            let set = set.map(|i| (sets[i], i64::try_from(i % 3).unwrap()));
            let mut claim = claim(set, index, protocol, hostname);
            let parent = claim.listener.parent.clone();
            claim.listener = ListenerKey::new(parent, format!("l{listener}"));
            claim
        })
}

#[derive(Debug, Clone)]
enum Op {
    Insert(Claim),
    Remove(ListenerKey),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => claims().prop_map(Op::Insert),
        1 => claims().prop_map(|claim| Op::Remove(claim.listener)),
    ];
    prop::collection::vec(op, 1..40)
}

/// The same, with holders of the port between.
fn ops_and_holders() -> impl Strategy<Value = Vec<Result<Op, Option<Holder>>>> {
    let namespace = prop::sample::select(vec!["a", "a-b", "b"]);
    let group = prop::sample::select(vec![Group::Tls, Group::Http, Group::Raw]);
    let holder =
        (namespace, group).prop_map(|(namespace, group)| Holder::of_port(namespace.into(), group));
    let op = prop_oneof![
        3 => claims().prop_map(|claim| Ok(Op::Insert(claim))),
        1 => claims().prop_map(|claim| Ok(Op::Remove(claim.listener))),
        2 => prop::option::weighted(0.8, holder).prop_map(Err),
    ];
    prop::collection::vec(op, 1..40)
}

proptest! {
    #[test]
    fn the_index_agrees_with_the_reference_and_says_all_it_changed(ops in ops(), newcomer in claims()) {
        let mut port = PortClaims::default();
        let mut held: BTreeMap<ListenerKey, Claim> = BTreeMap::new();
        let mut before = Verdicts::new();
        for op in ops {
            let affected = match op {
                Op::Insert(claim) => {
                    held.insert(claim.listener.clone(), claim.clone());
                    port.insert(claim)
                }
                Op::Remove(listener) => {
                    held.remove(&listener);
                    port.remove(&listener)
                }
            };
            let after = verdicts(&port, &held);
            prop_assert_eq!(&after, &naive(&held));
            for (listener, verdict) in &after {
                let was = before.get(listener);
                if was != Some(verdict) {
                    let overlap = was.is_some_and(|was| was.0 == verdict.0);
                    let said = is_said(&port, &held[listener], &affected, overlap);
                    prop_assert!(said, "{:?} is not in {:?}", listener, affected);
                }
            }
            before = after;
        }
        // Whatever the way, the end is the same.
        let mut scratch = PortClaims::default();
        for claim in held.values().rev() {
            scratch.insert(claim.clone());
        }
        prop_assert_eq!(&scratch, &port);

        let in_force = naive(&held);
        let expected = worst(&newcomer, held.values().filter(|rival| {
            rival.listener != newcomer.listener
                && (is_own(rival)
                    || rival.listener.parent != newcomer.listener.parent
                        && !is_own(&newcomer)
                        && in_force[&rival.listener].0.is_none())
        }));
        prop_assert_eq!(port.conflict_as_newcomer(&newcomer, None), expected);

        for listener in held.keys() {
            port.remove(listener);
        }
        prop_assert!(port.is_empty());
        prop_assert_eq!(port, PortClaims::default());
    }

    #[test]
    fn listeners_whose_verdict_a_claim_or_a_holder_changes_are_reported(ops in ops_and_holders()) {
        let mut port = PortClaims::default();
        let mut held: BTreeMap<ListenerKey, Claim> = BTreeMap::new();
        let mut holder = None;
        let mut before = BTreeMap::new();
        for op in ops {
            let affected = match op {
                Ok(Op::Insert(claim)) => {
                    held.insert(claim.listener.clone(), claim.clone());
                    port.insert(claim)
                }
                Ok(Op::Remove(listener)) => {
                    held.remove(&listener);
                    port.remove(&listener)
                }
                Err(next) => {
                    holder = next;
                    port.hold(holder.as_ref())
                }
            };
            let verdict = |claim: &Claim| {
                let settled = port.is_settled_for(claim.protocol.group());
                (port.conflict(claim), port.overlaps(claim), settled)
            };
            let after: BTreeMap<_, _> =
                held.iter().map(|(listener, claim)| (listener.clone(), verdict(claim))).collect();
            for (listener, verdict) in &after {
                let was: Option<&(_, _, _)> = before.get(listener);
                if was != Some(verdict) {
                    let overlap = was.is_some_and(|was| (was.0, was.2) == (verdict.0, verdict.2));
                    let said = is_said(&port, &held[listener], &affected, overlap);
                    prop_assert!(said, "{:?} is not in {:?}", listener, affected);
                }
            }
            before = after;
        }
        let mut scratch = PortClaims::default();
        scratch.hold(holder.as_ref());
        for claim in held.values().rev() {
            scratch.insert(claim.clone());
        }
        prop_assert_eq!(&scratch, &port);
    }
}
