//! What the regular expressions of all HTTPRoutes and GRPCRoutes of a namespace may take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;
use vestibule_model::http::{HttpMatch, HttpRoute, MethodMatch, PathMatch, ValueMatch};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::pattern::Pattern;
use vestibule_model::pattern_budget::Budgets;

use crate::support::{http_route, name};

/// Compiled once.
static PATTERN: LazyLock<Pattern> = LazyLock::new(|| Pattern::parse("/v[0-9]+/.*").unwrap());

/// A route of this age with so many expressions, in all the places that have any.
fn route(at: &ObjectKey, created: i64, patterns: usize) -> HttpRoute {
    let pattern = || PATTERN.clone();
    let one = |n: usize| HttpMatch {
        path: match (n % 3, at.kind) {
            (0, Kind::HttpRoute) => PathMatch::Regex(pattern()),
            (0, _) => PathMatch::Method(MethodMatch {
                service: n.is_multiple_of(2).then(|| ValueMatch::Regex(pattern())),
                method: (n % 2 == 1).then(|| ValueMatch::Regex(pattern())),
            }),
            _ => PathMatch::Exact("/a".into()),
        },
        headers: match n % 3 {
            1 => vec![("h".into(), ValueMatch::Regex(pattern()))],
            _ => vec![("h".into(), ValueMatch::Exact("v".into()))],
        },
        query: match n % 3 {
            2 => vec![("q".into(), ValueMatch::Regex(pattern()))],
            _ => Vec::new(),
        },
        method: None,
    };
    let mut route = http_route(at, vec![(0..patterns).map(one).collect()]);
    route.meta.created = created;
    route
}

fn size() -> usize {
    PATTERN.size()
}

#[test]
fn the_youngest_go_without_and_nobody_else_is_concerned() {
    let mut budgets = Budgets::new(10 * size());
    // One budget is for both kinds.
    let at = |n: i64| ObjectKey {
        kind: if n % 2 == 0 {
            Kind::HttpRoute
        } else {
            Kind::GrpcRoute
        },
        name: name(&format!("a/r{n}")),
    };
    for n in 0..5 {
        assert_eq!(
            budgets.put(&at(n), Some(&route(&at(n), n, 2))),
            BTreeSet::new()
        );
    }
    // One of another namespace has its own.
    let other = ObjectKey {
        kind: Kind::HttpRoute,
        name: name("b/r"),
    };
    assert_eq!(
        budgets.put(&other, Some(&route(&other, 0, 10))),
        BTreeSet::new()
    );
    // Whoever comes last is over.
    assert_eq!(
        budgets.put(&at(9), Some(&route(&at(9), 9, 1))),
        BTreeSet::from([at(9)])
    );
    let finding = budgets.refusal(&at(9)).unwrap();
    assert!(finding.refuses());
    assert_eq!(finding.reason.as_str(), "QuotaExceeded");
    // An older one that grows has the youngest go, and only those that are over by it.
    let grown = budgets.put(&at(0), Some(&route(&at(0), 0, 3)));
    assert_eq!(grown, BTreeSet::from([at(4)]));
    assert!(budgets.refusal(&at(3)).is_none() && budgets.refusal(&other).is_none());
    // A route that goes makes room.
    assert_eq!(budgets.put(&at(1), None), BTreeSet::from([at(4), at(9)]));
    // One without expressions has no part in it.
    let plain = budgets.put(&at(3), Some(&route(&at(3), 3, 0)));
    assert_eq!(plain, BTreeSet::new());
}

proptest! {
    /// After any history it is as if it was told at once, and each step says what it changed.
    #[test]
    fn any_history_comes_to_what_the_rule_says(
        steps in prop::collection::vec((0_u8..3, 0_u8..6, 0_i64..4, prop::option::weighted(0.8, 0_usize..6)), 1..60)
    ) {
        let most = 8;
        let mut budgets = Budgets::new(most * size() + 1);
        let mut routes: BTreeMap<ObjectKey, (i64, usize)> = BTreeMap::new();
        let mut before: BTreeSet<ObjectKey> = BTreeSet::new();
        for (namespace, n, created, patterns) in steps {
            let at = ObjectKey {
                kind: if n % 2 == 0 { Kind::HttpRoute } else { Kind::GrpcRoute },
                name: name(&format!("n{namespace}/r{}", n / 2)),
            };
            let changed = if let Some(patterns) = patterns {
                routes.insert(at.clone(), (created, patterns));
                budgets.put(&at, Some(&route(&at, created, patterns)))
            } else {
                routes.remove(&at);
                budgets.put(&at, None)
            };
            let over: BTreeSet<ObjectKey> = routes
                .iter()
                .filter(|(at, (created, patterns))| {
                    let first = routes.iter().filter(|(other, (age, _))| {
                        other.name.namespace == at.name.namespace
                            && (age, &other.name, other.kind) <= (created, &at.name, at.kind)
                    });
                    *patterns > 0 && first.map(|(_, (_, patterns))| patterns).sum::<usize>() > most
                })
                .map(|(at, _)| at.clone())
                .collect();
            for at in routes.keys() {
                prop_assert_eq!(budgets.refusal(at).is_some(), over.contains(at));
            }
            // One that has gone is looked at anyway.
            let expected: BTreeSet<ObjectKey> = before.symmetric_difference(&over).cloned().collect();
            prop_assert_eq!(changed, expected);
            let mut scratch = Budgets::new(most * size() + 1);
            for (at, (created, patterns)) in routes.iter().rev() {
                scratch.put(at, Some(&route(at, *created, *patterns)));
            }
            prop_assert_eq!(&scratch, &budgets);
            before = over;
        }
    }
}
