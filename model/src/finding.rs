//! Findings: what is wrong with an object, in which field, and what to do about it. The same finding becomes an
//! admission message, a status condition, and a line of `vestibule check`.

use std::fmt;

use crate::condition::Reason;

/// How severe a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; nothing is refused.
    Warning,
    /// The object, or the part of it named by the field, is refused.
    Refused,
}

/// Where a rule comes from. It decides where the rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Gateway API, or what the protocols make possible. Such a rule always applies, in admission and in status.
    Specification,
    /// A policy of ours about something that Gateway API allows. It refuses only where the admission mode is Enforce.
    Policy,
}

/// One thing that is wrong with an object. It never names objects of another tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Refused, or only a warning.
    pub severity: Severity,
    /// The origin of the rule.
    pub origin: Origin,
    /// The reason, both in conditions and as a label of metrics.
    pub reason: Reason,
    /// Path of the field, such as `spec.listeners[1].hostname`.
    pub field: String,
    /// The problem: a clause without a full stop.
    pub message: String,
    /// The remedy: an imperative clause without a full stop.
    pub action: String,
}

impl Finding {
    /// A refusal by the specification.
    pub fn refused(
        reason: Reason,
        field: impl Into<String>,
        message: impl Into<String>,
        action: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Refused,
            origin: Origin::Specification,
            reason,
            field: field.into(),
            message: message.into(),
            action: action.into(),
        }
    }

    /// A warning.
    pub fn warning(
        reason: Reason,
        field: impl Into<String>,
        message: impl Into<String>,
        action: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::refused(reason, field, message, action)
        }
    }

    /// Whether the finding refuses the object or a part of it.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.severity == Severity::Refused
    }
}

/// `field: message; action` on one line: the text of conditions and admission messages.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.message)?;
        if !self.action.is_empty() {
            write!(f, "; {}", self.action)?;
        }
        Ok(())
    }
}
