//! The budget of a namespace for what its Secrets and ConfigMaps bring into the configuration.

use std::collections::BTreeSet;

use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::source_budget::SourceBudgets;

#[test]
fn an_old_one_that_is_read_late_takes_no_place_from_what_is_served_meanwhile() {
    let old = ObjectKey::new(Kind::Secret, "a", "old");
    let young = ObjectKey::new(Kind::Secret, "a", "young");
    let mut budgets = SourceBudgets::new(10);
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
fn what_waits_pushes_nothing_out_when_it_fits_again() {
    let [first, waiting, last] =
        ["first", "waiting", "last"].map(|name| ObjectKey::new(Kind::Secret, "a", name));
    let mut budgets = SourceBudgets::new(10);
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
