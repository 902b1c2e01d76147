//! Reviews that were admitted, or seem to have been, decide nothing. Admission answers like one that has only ever seen
//! the objects that exist, or says that the answer has to wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_test_support::properties::keep_failures;
use vestibule_webhook::{Admission, Operation, PATIENCE, Question, Review};
use vestibule_webhook_testing::objects::{CONTROLLER, class, gateway, listener_set, object};

fn set(tenant: usize, hostname: usize) -> Object {
    let (namespace, hostname) = (format!("t{tenant}"), format!("h{hostname}.example"));
    object(listener_set(&namespace, "s", &hostname))
}

fn admission() -> Admission {
    let admission = Admission::new(CONTROLLER, Policy::default());
    for value in [class(), gateway()] {
        admission.put(object(value));
    }
    admission
}

fn question(new: &Object, dry_run: bool) -> Question<'_> {
    Question {
        operation: Operation::Create,
        old: None,
        new,
        dry_run,
    }
}

/// The answer of one that sees what is there for the first time.
fn fresh(there: &BTreeMap<usize, usize>, new: &Object, now: Instant) -> Review {
    let fresh = admission();
    for (tenant, hostname) in there {
        fresh.put(set(*tenant, *hostname));
    }
    fresh.review(question(new, true), now)
}

#[derive(Debug, Clone)]
enum Step {
    /// A review; nothing need come of it, and anybody may send it.
    Ask(usize, usize),
    /// One that waited.
    AskAgain(usize, usize),
    /// The watch shows a version.
    Show(usize, usize),
    /// The watch shows a removal.
    Hide(usize),
    /// Time goes by.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (tenant, hostname) = (0..3usize, 0..3usize);
    prop_oneof![
        3 => (tenant.clone(), hostname.clone()).prop_map(|(t, h)| Step::Ask(t, h)),
        1 => (tenant.clone(), hostname.clone()).prop_map(|(t, h)| Step::AskAgain(t, h)),
        2 => (tenant.clone(), hostname).prop_map(|(t, h)| Step::Show(t, h)),
        1 => tenant.prop_map(Step::Hide),
        1 => (0..3000u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(keep_failures())]

    #[test]
    fn a_review_that_was_made_up_refuses_nobody_anything(
        steps in prop::collection::vec(step(), 0..24),
    ) {
        let (admission, mut now) = (admission(), Instant::now());
        let mut there = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask(tenant, hostname) => {
                    let new = set(tenant, hostname);
                    let expected = fresh(&there, &new, now);
                    match admission.review_or_recheck(question(&new, false), now) {
                        Ok(review) => prop_assert_eq!(review, expected),
                        // What is refused need not wait.
                        Err(met) => prop_assert!(expected.allowed && admission.is_pending(&met, now)),
                    }
                }
                Step::AskAgain(tenant, hostname) => {
                    let new = set(tenant, hostname);
                    let review = admission.review(question(&new, false), now);
                    prop_assert_eq!(review, fresh(&there, &new, now));
                }
                Step::Show(tenant, hostname) => {
                    admission.put(set(tenant, hostname));
                    there.insert(tenant, hostname);
                }
                Step::Hide(tenant) => {
                    admission.remove(&set(tenant, 0).key());
                    there.remove(&tenant);
                }
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    admission.expire(now);
                }
            }
        }
        now += PATIENCE;
        for tenant in 0..4 {
            for hostname in 0..3 {
                let new = set(tenant, hostname);
                let review = admission.review_or_recheck(question(&new, true), now);
                prop_assert_eq!(review.ok(), Some(fresh(&there, &new, now)));
            }
        }
        admission.expire(now);
        prop_assert_eq!(admission.remembered(), 0);
    }
}
