//! Makes steps of a chain.

use vestibule_model::key::ObjectKey;

use super::conditions::StatusSource;
use super::report::{ChainStep, Check, StepOutcome};

pub(super) fn ok(check: Check, key: &ObjectKey, message: &str, by: StatusSource) -> ChainStep {
    ChainStep {
        by,
        ..step(
            check,
            StepOutcome::Ok,
            &key.to_string(),
            "",
            message.into(),
            String::new(),
        )
    }
}

pub(super) fn step(
    check: Check,
    outcome: StepOutcome,
    subject: &str,
    reason: &str,
    message: String,
    action: String,
) -> ChainStep {
    ChainStep {
        check,
        outcome,
        subject: subject.into(),
        reason: reason.into(),
        message,
        action,
        by: StatusSource::Translation,
    }
}
