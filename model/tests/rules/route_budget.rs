//! The budget of a namespace for entries in the proxies' tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::fair_total::{Demand, FairTotal};
use vestibule_model::http::{
    HttpBackend, HttpMatch, HttpRoute, MethodMatch, PathMatch, ValueMatch,
};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::pattern::Pattern;
use vestibule_model::reference::{BackendRef, Reference};
use vestibule_model::route::Route;
use vestibule_model::route_budget::{RouteBudgets, RouteSize, entries_of_rules, entries_per_name};

use crate::support::{http_route, name, route as tls_route};

fn key(kind: Kind, at: &str) -> ObjectKey {
    ObjectKey {
        kind,
        name: name(at),
    }
}

fn http(at: &str) -> ObjectKey {
    key(Kind::HttpRoute, at)
}

/// So many entries, and no bytes of the total.
fn entries(entries: u64) -> RouteSize {
    RouteSize { entries, bytes: 0 }
}

#[test]
fn the_youngest_go_without_and_nobody_else_is_concerned() {
    let mut budgets = RouteBudgets::new(10, u64::MAX);
    for n in 0..5 {
        // One budget is for all kinds.
        let kind = [Kind::HttpRoute, Kind::TlsRoute][usize::from(n % 2 == 1)];
        budgets.put(&key(kind, &format!("a/r{n}")), n, entries(2));
    }
    budgets.put(&http("b/r"), 0, entries(10));
    assert_eq!(budgets.settle(), BTreeSet::new());
    // Whoever comes last is over, even with the name that is first.
    budgets.put(&http("a/a"), 9, entries(1));
    assert_eq!(budgets.settle(), BTreeSet::from([http("a/a")]));
    let finding = budgets.refusal(&http("a/a")).unwrap();
    assert!(finding.refuses());
    assert_eq!(finding.reason.as_str(), "QuotaExceeded");
    assert!(finding.message.contains("1 entries") && finding.message.contains("the 10 "));
    assert!(finding.to_string().contains("sectionName"));
    // An old one that grows has the youngest go, and leaves room for one that is smaller.
    budgets.put(&http("a/r0"), 0, entries(3));
    assert_eq!(
        budgets.settle(),
        BTreeSet::from([http("a/r4"), http("a/a")])
    );
    // One that alone has more than the budget goes itself, and no other one for it.
    budgets.put(&http("a/r0"), 0, entries(u64::MAX));
    assert_eq!(
        budgets.settle(),
        BTreeSet::from([http("a/r0"), http("a/r4")])
    );
    budgets.put(&http("a/r2"), 2, entries(u64::MAX));
    assert_eq!(budgets.settle(), BTreeSet::from([http("a/r2")]));
    // A route that goes makes room.
    budgets.put(&http("a/r0"), 0, entries(0));
    budgets.put(&http("a/r2"), 2, entries(6));
    assert_eq!(
        budgets.settle(),
        BTreeSet::from([http("a/r0"), http("a/r2"), http("a/r4"), http("a/a")])
    );
    assert!(budgets.refusal(&http("b/r")).is_none());
}

/// Few entries can have many bytes, because names can be long.
#[test]
fn the_bytes_of_all_namespaces_have_a_total_beside_the_entries_of_each() {
    const MIB: u64 = 1 << 20;
    let of = |entries, mib: u64| RouteSize {
        entries,
        bytes: mib * MIB,
    };
    let mut budgets = RouteBudgets::new(10, 6 * MIB);
    budgets.put(&http("a/r0"), 0, of(4, 2));
    budgets.put(&http("a/r1"), 1, of(4, 3));
    budgets.put(&http("a/r2"), 2, of(4, 1));
    // The last one has no entries left, whatever its bytes are.
    assert_eq!(budgets.settle(), BTreeSet::from([http("a/r2")]));
    let text = |budgets: &RouteBudgets, at: &str| budgets.refusal(&http(at)).unwrap().to_string();
    assert!(text(&budgets, "a/r2").contains("the 10 "));
    // Another namespace asks for little, and has all of it.
    budgets.put(&http("b/r0"), 9, of(1, 2));
    assert_eq!(
        budgets.settle(),
        BTreeSet::from([http("a/r1"), http("a/r2")])
    );
    let over = text(&budgets, "a/r1");
    for part in [
        "3145728 bytes",
        "namespace a",
        "have 6 MiB together",
        "tenants.allRoutesMib",
    ] {
        assert!(over.contains(part), "{over}");
    }
    // However much it asks for, each has half.
    budgets.put(&http("b/r1"), 9, of(1, 2));
    assert_eq!(budgets.settle(), BTreeSet::from([http("b/r1")]));
    budgets.put(&http("b/r0"), 9, of(0, 0));
    assert_eq!(
        budgets.settle(),
        BTreeSet::from([http("b/r1")]),
        "what remains of b fits, and takes as much from a"
    );
}

fn route(matches: Vec<HttpMatch>) -> HttpRoute {
    http_route(&http("a/r"), vec![matches])
}

#[test]
fn the_names_of_backends_are_weighed_in_routes_of_every_kind() {
    let long = "s".repeat(63);
    let backend = BackendRef {
        reference: Reference {
            group: "".into(),
            kind: "Service".into(),
            target: ObjectName::new("n", long.as_str()),
            field: String::new(),
        },
        port: None,
        weight: 1,
    };
    let mut tls = tls_route("a/r", &[]);
    tls.backends = vec![backend.clone(); 16];
    assert_eq!(entries_of_rules(Route::Tls(&tls)), 11);
    let mut http = route(vec![HttpMatch::default()]);
    assert_eq!(entries_of_rules(Route::Http(&http)), 0);
    let filters = Vec::new();
    http.rules[0].backends = vec![HttpBackend { backend, filters }; 256];
    assert_eq!(entries_of_rules(Route::Http(&http)), 178);
}

#[test]
fn entries_are_weighed_by_what_they_take() {
    let weight = |path: PathMatch| {
        let one = HttpMatch {
            path,
            ..HttpMatch::default()
        };
        entries_per_name(Route::Http(&route(vec![one])))
    };
    let prefix = |path: &str| weight(PathMatch::Prefix(path.into()));
    assert_eq!(["/", "", "/a", "/a/b/c"].map(prefix), [1, 1, 1, 3]);
    // Each of these elements is a level of the tree.
    assert_eq!(prefix(&"/a".repeat(512)), 516);
    let exact = |path: &str| weight(PathMatch::Exact(path.into()));
    assert_eq!([exact("/a/b/c"), exact(&"/a".repeat(512))], [1, 5]);
    let pattern = Pattern::parse("/v[0-9]+").unwrap();
    assert_eq!(weight(PathMatch::Regex(pattern)), 1);
    let method = |service: &str| {
        weight(PathMatch::Method(MethodMatch {
            service: Some(ValueMatch::Exact(service.into())),
            method: None,
        }))
    };
    assert_eq!([method("a.B"), method(&"a".repeat(1024))], [1, 5]);
    let many = route(vec![HttpMatch::default(); 128]);
    assert_eq!(entries_per_name(Route::Http(&many)), 128);
    assert_eq!(entries_per_name(Route::Http(&route(Vec::new()))), 1);
}

/// The refused routes by the rule itself: in order, each route that does not fit in the rest is refused.
fn refused(routes: &BTreeMap<ObjectKey, (i64, u64)>, most: u64) -> BTreeSet<ObjectKey> {
    let mut order: Vec<_> = routes.iter().collect();
    order.sort_by_key(|(at, (created, _))| (*created, at.name.name.clone(), at.kind));
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    let mut over = BTreeSet::new();
    for (at, (_, entries)) in order {
        let used = used.entry(&at.name.namespace).or_default();
        if *entries == 0 {
            continue;
        }
        if *entries > most - *used {
            over.insert(at.clone());
        } else {
            *used += entries;
        }
    }
    over
}

proptest! {
    /// After any history it is as if it was told at once, and each settling says what changed. An edit or a newcomer
    /// concerns no older route.
    #[test]
    fn any_history_comes_to_what_the_rule_says(
        steps in prop::collection::vec(
            ((0_u8..3, 0_u8..6), 0_i64..4, prop_oneof![8 => 0_u64..6, 1 => Just(u64::MAX)], any::<bool>()),
            1..60,
        )
    ) {
        let most = 8;
        let mut budgets = RouteBudgets::new(most, u64::MAX);
        let mut routes: BTreeMap<ObjectKey, (i64, u64)> = BTreeMap::new();
        let mut before: BTreeSet<ObjectKey> = BTreeSet::new();
        for ((namespace, n), created, entries, settles) in steps {
            let kind = if n % 2 == 0 { Kind::HttpRoute } else { Kind::TcpRoute };
            let at = key(kind, &format!("n{namespace}/r{}", n / 2));
            // An object keeps its age until it goes.
            let created = routes.get(&at).map_or(created, |(created, _)| *created);
            let place = (created, at.name.name.clone(), at.kind);
            let was = refused(&routes, most);
            if entries == 0 {
                routes.remove(&at);
            } else {
                routes.insert(at.clone(), (created, entries));
            }
            budgets.put(&at, created, RouteSize { entries, bytes: 0 });
            let over = refused(&routes, most);
            for (other, (age, _)) in &routes {
                if other.name.namespace != at.name.namespace
                    || (*age, other.name.name.clone(), other.kind) < place
                {
                    prop_assert_eq!(was.contains(other), over.contains(other));
                }
            }
            if !settles {
                continue;
            }
            let expected: BTreeSet<ObjectKey> = before.symmetric_difference(&over).cloned().collect();
            prop_assert_eq!(budgets.settle(), expected);
            for at in routes.keys() {
                prop_assert_eq!(budgets.refusal(at).is_some(), over.contains(at));
            }
            let mut scratch = RouteBudgets::new(most, u64::MAX);
            for (at, (created, entries)) in routes.iter().rev() {
                scratch.put(at, *created, self::entries(*entries));
            }
            scratch.settle();
            prop_assert_eq!(&scratch, &budgets);
            before = over;
        }
    }
}

/// The refused routes by the rule itself, with a total of bytes: each namespace fills its own budget and the share in order.
fn refused_with_total(
    routes: &BTreeMap<ObjectKey, (i64, RouteSize)>,
    most: u64,
    total: u64,
) -> BTreeSet<ObjectKey> {
    let mut asked: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for (at, (_, size)) in routes {
        *asked.entry(at.name.namespace.clone()).or_default() += size.bytes;
    }
    let mut fair = FairTotal::new(total);
    for (namespace, bytes) in &asked {
        fair.put(namespace, Demand::Limited(*bytes));
    }
    let share = fair.share().unwrap_or(u64::MAX);
    let mut order: Vec<_> = routes.iter().collect();
    order.sort_by_key(|(at, (created, _))| (*created, at.name.name.clone(), at.kind));
    let mut left: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut over = BTreeSet::new();
    for (at, (_, size)) in order {
        let (entries, bytes) = left.entry(&at.name.namespace).or_insert((most, share));
        if size.entries > *entries || size.bytes > *bytes {
            over.insert(at.clone());
        } else {
            *entries -= size.entries;
            *bytes -= size.bytes;
        }
    }
    over
}

proptest! {
    /// Entries and bytes are independent of each other. Namespaces that no settling looks at, because the new share makes no
    /// difference for them, have what the rule says all the same.
    #[test]
    fn any_history_with_a_total_comes_to_what_the_rule_says(
        steps in prop::collection::vec(
            ((0_u8..4, 0_u8..6), 0_i64..4, (0_u64..5, 0_u64..12), any::<bool>()),
            1..60,
        )
    ) {
        // Shares below 128 are not rounded.
        let (most, total) = (8, 30);
        let mut budgets = RouteBudgets::new(most, total);
        let mut routes: BTreeMap<ObjectKey, (i64, RouteSize)> = BTreeMap::new();
        let mut before: BTreeMap<ObjectKey, String> = BTreeMap::new();
        for ((namespace, n), created, (entries, bytes), settles) in steps {
            let at = http(&format!("n{namespace}/r{n}"));
            let created = routes.get(&at).map_or(created, |(created, _)| *created);
            let size = RouteSize { entries, bytes };
            budgets.put(&at, created, size);
            if entries == 0 {
                routes.remove(&at);
            } else {
                routes.insert(at, (created, size));
            }
            if !settles {
                continue;
            }
            let moved = budgets.settle();
            let refusal = |at: &ObjectKey| Some((at.clone(), budgets.refusal(at)?.to_string()));
            let over: BTreeMap<ObjectKey, String> = routes.keys().filter_map(refusal).collect();
            let expected = refused_with_total(&routes, most, total);
            prop_assert_eq!(over.keys().cloned().collect::<BTreeSet<_>>(), expected);
            // Whoever does not fit in another limit than before is told. A number of its own may change without that.
            let differ: BTreeSet<ObjectKey> = before.keys().chain(over.keys())
                .filter(|at| before.contains_key(*at) != over.contains_key(*at))
                .cloned()
                .collect();
            prop_assert!(differ.is_subset(&moved), "{differ:?} of {moved:?}");
            before = over;
        }
    }

    /// A large share is rounded down by a 64th at most.
    #[test]
    fn an_equal_part_less_a_64th_is_sure(asked in prop::collection::vec(1_u64..90_000, 1..8)) {
        let total = 100_000;
        let mut budgets = RouteBudgets::new(u64::MAX, total);
        let equal = total / u64::try_from(asked.len()).unwrap();
        let at = |namespace: usize| http(&format!("n{namespace}/r"));
        for (namespace, bytes) in asked.iter().enumerate() {
            budgets.put(&at(namespace), 0, RouteSize { entries: 1, bytes: *bytes });
        }
        budgets.settle();
        let mut served = 0;
        for (namespace, bytes) in asked.iter().enumerate() {
            let is_over = budgets.refusal(&at(namespace)).is_some();
            if *bytes < equal - equal / 64 {
                prop_assert!(!is_over, "{bytes} of {equal}");
            }
            if !is_over {
                served += bytes;
            }
        }
        prop_assert!(served <= total);
    }
}
