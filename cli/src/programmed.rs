//! The condition Programmed in commands that serve nothing.

use vestibule_model::condition::{Condition, ConditionType, ProgrammedBasis, Reason, Truth};

/// The condition Programmed as far as translation alone can tell. It is Unknown, with this message, if the proxies
/// decide.
pub(crate) fn without_proxies(basis: &ProgrammedBasis, message: &str) -> Condition {
    basis.unpublished().unwrap_or_else(|| Condition {
        truth: Truth::Unknown,
        ..Condition::fails(ConditionType::Programmed, Reason::Pending, message)
    })
}
