//! Names that nobody holds yet: several requests come before any of them is recorded. They come out as if their objects
//! had been applied one after the other, in the order of Gateway API's precedence.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vestibule_model::claim::Holder;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ParentKey};
use vestibule_model::names::{GatewayNames, NameDecision, NameSource};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::grants::{Entry, Grants};
use super::reference::is_guest;
use super::{Edge, http, listener, rank, tls};
use crate::support::{name, pattern};

use NameDecision::{Free, Has, Inside};

impl Edge {
    fn decision(&self, source: &NameSource, names: &str) -> Option<NameDecision> {
        self.names.decision(source, &pattern(names))
    }
}

#[test]
fn an_older_request_for_a_wildcard_closes_it_before_it_is_recorded() {
    let (wild, inner) = ("*.w.example.com", "x.w.example.com");
    let (a, b) = (listener("a/s", "l"), http("b/r"));
    for wildcard_first in [true, false] {
        let mut edge = Edge::free();
        if wildcard_first {
            edge.put(&a, 1, &[wild]);
            edge.put(&b, 5, &[inner]);
        } else {
            edge.put(&b, 5, &[inner]);
            assert_eq!(edge.next(inner), Some("b"), "nothing is around it yet");
            let affected = edge.put(&a, 1, &[wild]);
            assert!(affected.records.contains(&pattern(inner)));
            assert!(affected.asks.contains(&(pattern(inner), b.clone())));
        }
        assert_eq!(edge.decision(&b, inner), Some(Inside));
        assert_eq!(edge.next(inner), None);
        assert_eq!(edge.next(wild), Some("a"));
        // It is the same once the wildcard is recorded.
        edge.hold(wild, "a");
        assert_eq!(edge.decision(&b, inner), Some(Inside));
        edge.free_again(wild);
        // Nobody asks for the wildcard any more.
        edge.put(&a, 1, &[]);
        assert_eq!(edge.decision(&b, inner), Some(Free));
        assert_eq!(edge.next(inner), Some("b"));
    }
}

#[test]
fn an_older_request_inside_a_wildcard_gets_its_name_and_the_wildcard_the_others() {
    let (wild, inner) = ("*.w.example.com", "x.w.example.com");
    let (a, b) = (listener("a/s", "l"), listener("b/s", "l"));
    for wildcard_first in [true, false] {
        let mut edge = Edge::free();
        let mut puts = [(&a, 5, wild), (&b, 1, inner)];
        if !wildcard_first {
            puts.reverse();
        }
        for (source, created, names) in puts {
            edge.put(source, created, &[names]);
        }
        assert_eq!((edge.next(wild), edge.next(inner)), (Some("a"), Some("b")));
        // A third one is younger than both.
        edge.put(&http("c/r"), 9, &["y.w.example.com"]);
        assert_eq!(edge.next("y.w.example.com"), None);
        edge.hold(inner, "b");
        edge.hold(wild, "a");
        assert_eq!(edge.decision(&b, inner), Some(Has));
        assert_eq!(edge.owner("x.w.example.com").as_deref(), Some("b"));
    }
}

#[test]
fn a_recorded_name_goes_before_every_request() {
    let (wild, inner) = ("*.w.example.com", "x.w.example.com");
    let (a, b) = (listener("a/s", "l"), listener("b/s", "l"));
    let mut edge = Edge::free();
    edge.hold(inner, "b");
    edge.put(&a, 1, &[wild]);
    edge.put(&b, 5, &[inner]);
    assert_eq!(edge.decision(&b, inner), Some(Has));
    assert_eq!(edge.next(wild), Some("a"));
}

#[test]
fn a_grant_at_or_below_the_wildcard_gives_the_name_also_before_it_is_recorded() {
    let mut edge = Edge::granting(&[("*", "*.w.example.com")]);
    edge.put(&http("a/r"), 1, &["*.w.example.com"]);
    edge.put(&http("b/r"), 5, &["x.w.example.com"]);
    assert_eq!(edge.next("x.w.example.com"), Some("b"));
    let mut edge = Edge::granting(&[("*", "*.example.com")]);
    edge.put(&http("a/r"), 1, &["*.w.example.com"]);
    edge.put(&http("b/r"), 5, &["x.w.example.com"]);
    assert_eq!(edge.next("x.w.example.com"), None);
}

#[test]
fn of_wildcards_inside_each_other_the_nearest_one_before_a_request_counts() {
    let (outer, middle, inner) = ("*.example.com", "*.w.example.com", "x.w.example.com");
    let (a, b, c) = (http("a/r"), http("b/r"), http("c/r"));
    // The ages of the three, and who gets what.
    let cases = [
        ([3, 1, 2], [Some("a"), Some("b"), None]),
        ([1, 3, 2], [Some("a"), None, None]),
        ([2, 3, 1], [Some("a"), None, Some("c")]),
        ([3, 2, 1], [Some("a"), Some("b"), Some("c")]),
    ];
    for (ages, expected) in cases {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut edge = Edge::free();
            let puts = [(&a, outer), (&b, middle), (&c, inner)];
            for index in order {
                let (source, names) = puts[index];
                edge.put(source, ages[index], &[names]);
            }
            let next = [outer, middle, inner].map(|names| edge.next(names));
            assert_eq!(next, expected, "{ages:?} {order:?}");
        }
    }
}

/// A thousand listeners for one wildcard, the youngest first, so each of them becomes the first one.
#[test]
fn many_requests_for_one_wildcard_cost_one_pass_over_the_names_inside() {
    const MANY: usize = 1000;
    let mut edge = Edge::granting(&[("*", "")]);
    for n in 0..MANY {
        let names = BTreeSet::from([pattern(&format!("n{n}.w.example.com"))]);
        let source = http(&format!("t{n}/r"));
        let rank = rank(&source, 5000);
        edge.names.put(&edge.grants, &source, &rank, &names);
    }
    edge.grants.asked.set(0);
    let wild = BTreeSet::from([pattern("*.w.example.com")]);
    for n in 0..MANY {
        let source = listener(&format!("wide{n}/s"), "l");
        let rank = rank(&source, i64::try_from(MANY - n).unwrap());
        edge.names.put(&edge.grants, &source, &rank, &wild);
    }
    assert!(!edge.names.is_settled());
    let affected = edge.names.settle(&edge.grants);
    assert!(edge.names.is_settled());
    assert_eq!(affected.asks.len(), MANY);
    let cost = edge.grants.asked.get();
    assert!(cost <= 5 * MANY, "{cost}");
    // One more that comes after all of them changes nothing inside.
    edge.grants.asked.set(0);
    edge.put(&listener("last/s", "l"), 9000, &["*.w.example.com"]);
    assert!(edge.grants.asked.get() <= 2);
}

/// The names for which each source asks, and the time since when it does.
type Requests = BTreeMap<NameSource, (i64, BTreeSet<HostPattern>)>;

/// None is a listener of the Gateway's own namespace: its wildcard takes a part out of a wider one of a tenant, and lets
/// in there whoever came before it and was refused.
fn sources() -> Vec<NameSource> {
    let guest = |of: &str, route: &str| {
        let listener = ListenerKey::new(ParentKey::ListenerSet(name(of)), "any");
        let (kind, name) = (Kind::HttpRoute, name(route));
        NameSource::Guest(Box::new((listener, ObjectKey { kind, name })))
    };
    vec![
        listener("a/s", "l"),
        listener("a/t", "l"),
        listener("b/s", "l"),
        listener("c/s", "l"),
        http("a/r"),
        tls("b/r"),
        http("b/r"),
        http("c/r"),
        guest("a/s", "a/r"),
        guest("a/s", "b/guest"),
        guest("infra/s", "c/guest"),
    ]
}

fn patterns() -> Vec<HostPattern> {
    let texts = [
        "",
        "*.x.com",
        "*.y.x.com",
        "*.w.y.x.com",
        "y.x.com",
        "z.y.x.com",
        "v.w.y.x.com",
        "z.x.com",
    ];
    texts.map(pattern).to_vec()
}

fn requests() -> impl Strategy<Value = Requests> {
    let names = prop::sample::subsequence(patterns(), 1..=3);
    let request = (prop::sample::select(sources()), 0_i64..4, names);
    prop::collection::vec(request, 1..10).prop_map(|requests| {
        let mut asked = Requests::new();
        for (source, created, names) in requests {
            asked.insert(source, (created, names.into_iter().collect()));
        }
        asked
    })
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let namespace = prop::sample::select(vec![None, Some("a"), Some("b"), Some("c")]);
    let entry =
        (namespace, prop::sample::select(patterns())).prop_map(|(namespace, names)| Entry {
            namespace,
            names,
            shared: false,
        });
    prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(entry, 1..5),
    ]
}

/// Records whoever should get a name, a turn at a time, until nobody is left.
fn record(names: &mut GatewayNames, grants: &Grants) {
    for _ in 0..20 {
        names.settle(grants);
        let due: Vec<(HostPattern, Holder)> = patterns()
            .into_iter()
            .filter(|pattern| names.claim_state(pattern).is_none())
            .filter_map(|pattern| {
                let next = names.next_holder(&pattern)?;
                Some((pattern, next))
            })
            .collect();
        if due.is_empty() {
            return;
        }
        for (pattern, holder) in due {
            names.hold(grants, &pattern, Some(&holder));
        }
    }
    panic!("the record does not come to rest");
}

fn held(names: &GatewayNames) -> BTreeMap<HostPattern, String> {
    let held = names.held();
    held.map(|(pattern, holder)| (pattern.clone(), holder.to_string()))
        .collect()
}

proptest! {
    #![proptest_config(keep_failures_with_cases(1000))]

    /// The holders are those that there would be if each object had been applied, and its names recorded, before the next
    /// one. Guests come after all others. The order in which the requests of a turn arrive does not matter.
    #[test]
    fn a_turn_comes_out_as_if_its_requests_had_come_one_after_the_other(
        requests in requests(),
        entries in entries(),
        start in any::<prop::sample::Index>(),
    ) {
        let grants = Grants { entries, ..Grants::default() };
        let put = |names: &mut GatewayNames, source: &NameSource| {
            let (created, asked) = &requests[source];
            names.put(&grants, source, &rank(source, *created), asked);
        };
        let mut in_order: Vec<&NameSource> = requests.keys().collect();
        in_order.sort_by_key(|source| {
            (is_guest(source), rank(source, requests[*source].0), (*source).clone())
        });
        let mut one_by_one = GatewayNames::new(name("infra/gw"));
        for source in in_order.iter().copied() {
            put(&mut one_by_one, source);
            record(&mut one_by_one, &grants);
        }
        let mut any_order: Vec<&NameSource> = requests.keys().collect();
        let middle = start.index(any_order.len());
        any_order.rotate_left(middle);
        for order in [in_order, any_order.iter().rev().copied().collect(), any_order] {
            let mut at_once = GatewayNames::new(name("infra/gw"));
            for source in order {
                put(&mut at_once, source);
            }
            record(&mut at_once, &grants);
            prop_assert_eq!(held(&at_once), held(&one_by_one));
        }
    }
}
