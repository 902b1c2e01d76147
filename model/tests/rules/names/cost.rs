//! The cost of an edit: how often grants are asked.

use std::collections::BTreeSet;

use vestibule_model::names::AffectedNames;

use super::{Edge, http, listener};
use crate::support::pattern;

/// A change, and what to call it.
type Step = (&'static str, fn(&mut Edge) -> AffectedNames);

/// How often grants were asked during `change`.
fn asked(
    edge: &mut Edge,
    change: impl FnOnce(&mut Edge) -> AffectedNames,
) -> (usize, AffectedNames) {
    edge.grants.asked.set(0);
    let affected = change(edge);
    (edge.grants.asked.get(), affected)
}

#[test]
fn an_edit_below_a_wildcard_costs_the_same_however_many_ask_for_the_wildcard() {
    const NAMESPACES: usize = 1000;
    let mut edge = Edge::granting(&[("*", "*.apps.example.com")]);
    for n in 0..NAMESPACES {
        let created = i64::try_from(n).unwrap();
        let source = listener(&format!("t{n}/s"), "l");
        let (cost, affected) = asked(&mut edge, |edge| {
            edge.put(&source, created, &["*.apps.example.com"])
        });
        assert!(cost <= 2, "{cost}");
        assert_eq!(affected.asks.len(), 1);
    }
    let edit = |edge: &mut Edge| {
        let wild = pattern("*.apps.example.com");
        let steps: [Step; 4] = [
            ("asked for", |edge| {
                edge.put(&http("t7/r"), 1, &["x.apps.example.com"])
            }),
            ("held", |edge| edge.hold("x.apps.example.com", "t7")),
            ("let go", |edge| edge.free_again("x.apps.example.com")),
            ("gone", |edge| edge.put(&http("t7/r"), 1, &[])),
        ];
        for (step, change) in steps {
            let (cost, affected) = asked(edge, change);
            assert!(cost <= 4, "{step}: {cost}");
            assert!(!affected.records.contains(&wild), "{step}");
            assert!(affected.asks.len() <= 1, "{step}");
        }
    };
    // While nobody holds it, and once somebody does.
    edit(&mut edge);
    let (cost, affected) = asked(&mut edge, |edge| edge.hold("*.apps.example.com", "t0"));
    assert!(cost <= 3 * NAMESPACES, "{cost}");
    assert_eq!(affected.asks.len(), NAMESPACES);
    edit(&mut edge);
}

#[test]
fn a_wildcard_around_names_that_are_held_looks_at_none_of_them() {
    const NAMES: usize = 10_000;
    let mut edge = Edge::granting(&[("*", "")]);
    for n in 0..NAMES {
        let (team, host) = (format!("t{}", n % 100), format!("n{n}.apps.example.com"));
        edge.put(&listener(&format!("{team}/s{n}"), "l"), 1, &[&host]);
        edge.hold(&host, &team);
    }
    edge.put(&http("late/r"), 1, &["waits.apps.example.com"]);
    let (cost, affected) = asked(&mut edge, |edge| edge.hold("*.apps.example.com", "wide"));
    assert!(cost <= 10, "{cost}");
    let ask = (pattern("waits.apps.example.com"), http("late/r"));
    assert_eq!(affected.asks, BTreeSet::from([ask]));
    assert_eq!(
        affected.owners,
        BTreeSet::from([pattern("*.apps.example.com")])
    );
    // One further out changes nothing about what is inside this one.
    let (cost, affected) = asked(&mut edge, |edge| edge.hold("*.example.com", "wider"));
    assert!(cost <= 4, "{cost}");
    assert_eq!(affected.asks, BTreeSet::new());
}
