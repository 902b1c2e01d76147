//! What `vestibule check` says of objects is what `vestibule run` writes when it starts with the same objects. The first
//! assumes who gets each name, and the second records it.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use vestibule_model::object::Object;
use vestibule_operator::claims::{Memory, Time};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::translate::{Change, ClaimMode, Settings, Translator};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::history::{a_history, final_objects};
use vestibule_operator_testing::objects::settings;

/// In 2026, in seconds since the epoch.
const NOW: i64 = 1_790_000_000;
/// Steps after which a start has to have come to rest.
const STEPS: usize = 50;

/// A fresh start with these objects, as `vestibule run` makes it.
fn run(objects: impl IntoIterator<Item = Object>) -> Translator {
    let recorded = Settings {
        claims: ClaimMode::Recorded,
        ..settings()
    };
    let time = Time {
        seconds: NOW,
        now: Instant::now(),
    };
    let claims = Memory::new(Duration::from_mins(1), time);
    let registry = CertificateRegistry::new().0;
    let mut control = ControlLoop::new(Translator::new(recorded), claims, registry);
    control.add(std::iter::once(Change::Time(NOW)));
    control.add(objects.into_iter().map(Change::Put));
    for _ in 0..STEPS {
        if control.step(time).is_none() {
            return control.translator;
        }
    }
    panic!("the start does not come to rest");
}

proptest! {
    #![proptest_config(keep_failures_with_cases(400))]

    #[test]
    fn a_check_says_what_a_fresh_run_writes(
        objects in a_history().prop_map(|history| final_objects(&history)),
    ) {
        let mut checked = Translator::new(settings());
        let put = objects.values().cloned().map(Change::Put);
        checked.apply(std::iter::once(Change::Time(NOW)).chain(put));
        let ran = run(objects.values().cloned());
        for key in objects.keys() {
            prop_assert_eq!(checked.statuses().get(key), ran.statuses().get(key), "{}", key);
            prop_assert_eq!(checked.findings().get(key), ran.findings().get(key), "{}", key);
        }
        // And for whom names are served is the same.
        let names = |of: &Translator| -> Vec<String> {
            of.resources().keys().map(ToString::to_string).collect()
        };
        prop_assert_eq!(names(&checked), names(&ran));
    }
}
