//! The budget of a namespace for what its Secrets and ConfigMaps bring into the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::source_budget::{SourceBudgets, SourceBytes};

#[test]
fn an_old_one_that_is_read_late_takes_no_place_from_what_is_served_meanwhile() {
    let old = ObjectKey::new(Kind::Secret, "a", "old");
    let young = ObjectKey::new(Kind::Secret, "a", "young");
    let mut budgets = SourceBudgets::new(10, u64::MAX);
    budgets.keep_in_service();
    // Both come into use while nothing of the namespace counts, and are not read yet.
    for source in [&old, &young] {
        budgets.put(source, 0, 0);
    }
    budgets.put(&young, 9, 8);
    assert_eq!(budgets.settle(), BTreeSet::new());
    budgets.put(&old, 1, 8);
    assert_eq!(budgets.settle(), BTreeSet::from([old.clone()]));
    // It keeps that place when either of them is edited.
    budgets.put(&old, 1, 7);
    budgets.put(&young, 9, 9);
    assert_eq!(budgets.settle(), BTreeSet::new());
    assert!(budgets.is_over(&old) && !budgets.is_over(&young));

    // It has the room of one that is no longer used, and keeps it in turn.
    budgets.put(&young, 9, 0);
    assert_eq!(budgets.settle(), BTreeSet::from([old.clone()]));
    budgets.put(&young, 9, 8);
    assert_eq!(budgets.settle(), BTreeSet::from([young.clone()]));
    assert!(!budgets.is_over(&old));

    // Of those that are read together, the oldest comes first.
    let others = ["x", "y"].map(|name| ObjectKey::new(Kind::ConfigMap, "b", name));
    budgets.put(&others[0], 1, 8);
    budgets.put(&others[1], 2, 8);
    assert_eq!(budgets.settle(), BTreeSet::from([others[1].clone()]));
}

#[test]
fn source_that_waits_pushes_nothing_out_when_it_fits_again() {
    let [first, waiting, last] =
        ["first", "waiting", "last"].map(|name| ObjectKey::new(Kind::Secret, "a", name));
    let mut budgets = SourceBudgets::new(10, u64::MAX);
    budgets.put(&first, 1, 5);
    budgets.put(&waiting, 2, 9);
    budgets.put(&last, 3, 4);
    assert_eq!(budgets.settle(), BTreeSet::from([waiting.clone()]));
    budgets.keep_in_service();
    budgets.put(&first, 1, 0);
    assert_eq!(budgets.settle(), BTreeSet::new());
    assert!(budgets.is_over(&waiting) && !budgets.is_over(&last));
    // It comes in when there is room.
    budgets.put(&last, 3, 0);
    assert_eq!(budgets.settle(), BTreeSet::from([waiting]));
}

#[test]
fn one_that_is_gone_for_a_moment_waits_by_its_age() {
    let [old, middle, young, last] =
        ["old", "middle", "young", "last"].map(|name| ObjectKey::new(Kind::Secret, "a", name));
    let mut budgets = SourceBudgets::new(10, u64::MAX);
    for (created, source) in [(1, &old), (2, &middle), (3, &young)] {
        budgets.put(source, created, 5);
    }
    budgets.settle();
    budgets.keep_in_service();
    // It is back before anybody has looked, so it was in service all the time.
    budgets.put(&old, 1, 0);
    budgets.put(&old, 1, 5);
    assert_eq!(budgets.settle(), BTreeSet::new());

    // Another one has its room, and one more comes, before it is back.
    budgets.put(&old, 1, 0);
    assert_eq!(budgets.settle(), BTreeSet::from([young.clone()]));
    budgets.put(&last, 4, 5);
    assert_eq!(budgets.settle(), BTreeSet::from([last]));
    budgets.put(&old, 1, 5);
    assert_eq!(budgets.settle(), BTreeSet::from([old.clone()]));
    // It is the oldest of those that wait.
    budgets.put(&middle, 2, 0);
    assert_eq!(budgets.settle(), BTreeSet::from([old]));
}

proptest! {
    /// The result depends only on the objects and on which of them were in service before: these come first, and each part
    /// is in order of age. What comes, or would fit again, pushes nothing out.
    #[test]
    fn sources_that_were_in_service_come_first_and_the_rest_by_age(
        kept_from in 0_usize..20,
        steps in prop::collection::vec(((0_u8..2, 0_u8..6), 0_u64..6, any::<bool>()), 1..60),
    ) {
        let most = 8;
        let mut budgets = SourceBudgets::new(most, u64::MAX);
        let mut sources: BTreeMap<ObjectKey, (i64, u64)> = BTreeMap::new();
        // Those in service, with the size that each had at the last settling.
        let mut serving: BTreeMap<ObjectKey, u64> = BTreeMap::new();
        for (step, ((namespace, n), bytes, settles)) in steps.into_iter().enumerate() {
            if step == kept_from {
                budgets.keep_in_service();
            }
            let key = ObjectKey::new(Kind::Secret, format!("n{namespace}"), format!("s{n}"));
            let created = i64::from(n % 4);
            budgets.put(&key, created, bytes);
            if bytes == 0 {
                sources.remove(&key);
            } else {
                sources.insert(key, (created, bytes));
            }
            if !settles {
                continue;
            }
            budgets.settle();
            let keeps = step >= kept_from;
            let mut order: Vec<&ObjectKey> = sources.keys().collect();
            order.sort_by_key(|key| (keeps && !serving.contains_key(*key), sources[*key].0, *key));
            let mut left = BTreeMap::new();
            let mut expected = BTreeMap::new();
            for key in order {
                let left = left.entry(key.name.namespace.clone()).or_insert(most);
                let bytes = sources[key].1;
                if let Some(rest) = left.checked_sub(bytes) {
                    *left = rest;
                    expected.insert(key.clone(), bytes);
                }
            }
            for key in sources.keys() {
                prop_assert_eq!(!budgets.is_over(key), expected.contains_key(key), "{}", key);
            }
            let has_grown = |key: &ObjectKey, before: u64| sources.get(key).is_some_and(|(_, now)| *now > before);
            if keeps && !serving.iter().any(|(key, before)| has_grown(key, *before)) {
                let left = serving.keys().filter(|key| sources.contains_key(*key));
                prop_assert!(left.clone().all(|key| expected.contains_key(key)));
            }
            serving = expected;
        }
    }
}

fn text(budgets: &SourceBudgets, source: &ObjectKey) -> String {
    let finding = budgets.refusal(source, "field").expect("it is over");
    assert_eq!(finding.reason.as_str(), "QuotaExceeded");
    finding.to_string()
}

#[test]
fn a_newcomer_has_its_share_and_what_stays_over_is_told_the_other_reason() {
    const MIB: u64 = 1 << 20;
    let of = |namespace: &str, n: i64| ObjectKey::new(Kind::Secret, namespace, format!("s{n}"));
    let mut budgets = SourceBudgets::new(4 * MIB, 9 * MIB);
    budgets.keep_in_service();
    for namespace in ["a", "b"] {
        for n in 0..5 {
            budgets.put(&of(namespace, n), n, MIB);
        }
    }
    // Each has its own budget, and the total is not reached.
    let fifth = BTreeSet::from([of("a", 4), of("b", 4)]);
    assert_eq!(budgets.settle(), fifth);
    let own = text(&budgets, &of("a", 4));
    assert!(
        own.contains("the 4 MiB") && own.contains("tenants.certificateMib"),
        "{own}"
    );

    // A newcomer asks for less than the share, so it has all of it, and the others lose their youngest.
    budgets.put(&of("c", 0), 9, 2 * MIB);
    let fourth = BTreeSet::from([of("a", 3), of("b", 3)]);
    assert_eq!(budgets.settle(), &fifth | &fourth);
    let shared = text(&budgets, &of("a", 4));
    for part in [
        "namespace a",
        "have 9 MiB together",
        "tenants.allCertificatesMib",
    ] {
        assert!(shared.contains(part), "{shared}");
    }
    // One more of them makes no difference to those with the same reason.
    budgets.put(&of("c", 1), 9, MIB / 4);
    assert_eq!(budgets.settle(), BTreeSet::new());
    assert_eq!(text(&budgets, &of("a", 4)), shared);

    // The namespace of a Gateway has what it needs, and the others share the rest.
    budgets.exempt(&"b".into(), true);
    let mut moved = BTreeSet::from([of("b", 3), of("b", 4), of("a", 2), of("c", 1)]);
    assert_eq!(budgets.settle(), moved);
    // All is as before when it has gone, and so has the newcomer.
    budgets.exempt(&"b".into(), false);
    for n in 0..2 {
        budgets.put(&of("c", n), 9, 0);
    }
    moved.extend([of("a", 3), of("a", 4)]);
    moved.retain(|source| *source != of("b", 3));
    assert_eq!(budgets.settle(), moved);
    assert_eq!(text(&budgets, &of("a", 4)), own);
}

/// A Secret that cannot be used has next to nothing in a batch, however much proxies may hold of it.
#[test]
fn secret_that_is_not_sent_counts_in_the_budget_of_its_namespace_only() {
    let of = |namespace: &str, n: i64| ObjectKey::new(Kind::Secret, namespace, format!("s{n}"));
    let broken = SourceBytes { held: 40, sent: 1 };
    let mut budgets = SourceBudgets::new(100, 30);
    budgets.put(&of("a", 0), 0, 40);
    budgets.put(&of("b", 0), 0, 8);
    assert_eq!(budgets.settle(), BTreeSet::from([of("a", 0)]));
    // The share is 29 now, less than what counts in the namespace's own budget.
    budgets.put(&of("b", 0), 0, broken);
    assert_eq!(budgets.settle(), BTreeSet::new());
    assert!(!budgets.is_over(&of("b", 0)));
    // The others have what it leaves.
    budgets.put(&of("a", 0), 0, 29);
    assert_eq!(budgets.settle(), BTreeSet::from([of("a", 0)]));
    // Many of them are too many for their namespace, while all others have too much together.
    budgets.put(&of("a", 1), 1, 2);
    for n in 1..3 {
        budgets.put(&of("b", n), n, broken);
    }
    assert_eq!(budgets.settle(), BTreeSet::from([of("a", 0), of("b", 2)]));
    assert!(text(&budgets, &of("b", 2)).contains("tenants.certificateMib"));
    assert!(text(&budgets, &of("a", 0)).contains("tenants.allCertificatesMib"));
}

#[test]
fn namespace_that_has_no_share_is_told_why() {
    let [platform, own] = ["platform", "a"].map(|name| ObjectKey::new(Kind::Secret, name, "s"));
    let mut budgets = SourceBudgets::new(100, 30);
    budgets.exempt(&platform.name.namespace, true);
    budgets.put(&platform, 0, 20);
    budgets.put(&own, 0, 11);
    assert_eq!(budgets.settle(), BTreeSet::from([own.clone()]));
    assert!(!text(&budgets, &own).contains("have a Gateway"));
    budgets.put(&platform, 0, 30);
    assert_eq!(budgets.settle(), BTreeSet::from([own.clone()]));
    let text = text(&budgets, &own);
    assert!(text.contains("namespaces that have a Gateway"), "{text}");
}

proptest! {
    /// Whatever happens, what is in service stays within the total and within the limit of each namespace, unless exempt
    /// namespaces alone have more. Each settling says what changed.
    #[test]
    fn a_namespace_has_no_more_than_its_share_and_the_sum_stays_within_the_total(
        keeps in any::<bool>(),
        steps in prop::collection::vec(
            ((0_u8..4, 0_u8..5), (0_u64..9, any::<bool>()), prop::option::weighted(0.1, any::<bool>()), any::<bool>()),
            1..60,
        )
    ) {
        let (most, total) = (12, 30);
        let namespace = |n: u8| -> Arc<str> { format!("n{n}").into() };
        let mut budgets = SourceBudgets::new(most, total);
        if keeps {
            budgets.keep_in_service();
        }
        let mut sources: BTreeMap<ObjectKey, (i64, SourceBytes)> = BTreeMap::new();
        let mut exempt: BTreeSet<Arc<str>> = BTreeSet::new();
        // What is said about each that is over.
        let mut before: BTreeMap<ObjectKey, String> = BTreeMap::new();
        for ((n, name), (held, is_broken), exempts, settles) in steps {
            let sent = if is_broken { held.min(1) } else { held };
            let bytes = SourceBytes { held, sent };
            let key = ObjectKey::new(Kind::Secret, namespace(n), format!("s{name}"));
            let created = i64::from(name % 3);
            if let Some(is_exempt) = exempts {
                budgets.exempt(&namespace(n), is_exempt);
                if is_exempt {
                    exempt.insert(namespace(n));
                } else {
                    exempt.remove(&namespace(n));
                }
            }
            budgets.put(&key, created, bytes);
            if held == 0 {
                sources.remove(&key);
            } else {
                sources.insert(key, (created, bytes));
            }
            if !settles {
                continue;
            }
            let moved = budgets.settle();
            let refusal = |key: &ObjectKey| Some((key.clone(), budgets.refusal(key, "f")?.to_string()));
            let over: BTreeMap<ObjectKey, String> = sources.keys().filter_map(refusal).collect();
            let told = before.keys().chain(over.keys());
            let differ = told.filter(|key| before.get(*key) != over.get(*key));
            let differ: BTreeSet<ObjectKey> = differ.cloned().collect();
            prop_assert_eq!(moved, differ);

            let mut used: BTreeMap<Arc<str>, (SourceBytes, SourceBytes)> = BTreeMap::new();
            for (key, (_, bytes)) in &sources {
                let (asked, served) = used.entry(key.name.namespace.clone()).or_default();
                for sum in std::iter::once(asked).chain((!over.contains_key(key)).then_some(served)) {
                    sum.held += bytes.held;
                    sum.sent += bytes.sent;
                }
            }
            let of_exempt: u64 = exempt.iter().filter_map(|name| used.get(name)).map(|(asked, _)| asked.sent).sum();
            let tenants = used.iter().filter(|(name, _)| !exempt.contains(*name));
            let sum: u64 = tenants.clone().map(|(_, (_, served))| served.sent).sum();
            let left = total.saturating_sub(of_exempt);
            prop_assert!(sum <= left, "{sum} of {left}");
            let asked: u64 = tenants.clone().map(|(_, (asked, _))| asked.sent.min(most)).sum();
            let equal = left / (tenants.clone().count() as u64).max(1);
            for (name, (asks, served)) in tenants {
                prop_assert!(served.held <= most);
                // Whoever asks for no more than the budget and an equal part has all of it.
                if asks.held <= most && (asks.sent <= equal || asked <= left) {
                    prop_assert_eq!(asks, served, "{}", name);
                }
            }
            for name in &exempt {
                let (asked, served) = used.get(name).copied().unwrap_or_default();
                prop_assert_eq!(asked, served);
            }
            if !keeps {
                let mut scratch = SourceBudgets::new(most, total);
                for name in &exempt {
                    scratch.exempt(name, true);
                }
                for (key, (created, bytes)) in sources.iter().rev() {
                    scratch.put(key, *created, *bytes);
                }
                scratch.settle();
                prop_assert_eq!(&scratch, &budgets);
            }
            before = over;
        }
    }
}
