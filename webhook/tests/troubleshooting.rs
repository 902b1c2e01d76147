//! The guide to reasons (`docs/troubleshooting.md`) has all of them.

use vestibule_model::condition::{ConditionType, Reason};

const GUIDE: &str = include_str!("../../docs/troubleshooting.md");

#[test]
fn every_reason_is_in_the_guide() {
    for reason in Reason::ALL {
        assert!(GUIDE.contains(&format!("`{reason}`")), "{reason}");
    }
}

#[test]
fn every_condition_has_a_section() {
    for condition in ConditionType::ALL {
        assert!(
            GUIDE.contains(&format!("\n## {condition}\n")),
            "{condition}"
        );
    }
}
