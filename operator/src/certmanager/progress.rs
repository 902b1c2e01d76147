//! The progress of a Certificate, from its status. Texts of cert-manager are cut to a bound.

use std::fmt::Write;

use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::issuance::{Issuance, IssuanceState};

/// Longest text of cert-manager's that is passed on.
const MAX_TEXT: usize = 512;

/// A condition of a Certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// It is "True".
    pub truth: bool,
    /// Its reason.
    pub reason: String,
    /// Its message, bounded.
    pub message: String,
    /// The generation that it is about; 0 if it does not say.
    pub observed: i64,
}

/// The progress in the status of a Certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateProgress {
    /// `Ready`: the Secret holds what the spec asks for.
    pub ready: Option<Condition>,
    /// `Issuing`: True while it is made; False with a reason once that has failed.
    pub issuing: Option<Condition>,
    /// `notAfter`.
    pub not_after: Option<String>,
    /// `renewalTime`.
    pub renewal: Option<String>,
}

impl CertificateProgress {
    /// Reads a status; what is not there or of another shape says nothing.
    #[must_use]
    pub fn of(status: Option<&Value>) -> Self {
        let condition = |wanted: &str| {
            let conditions = status?.get("conditions")?.as_array()?;
            let found = conditions
                .iter()
                .find(|c| c.get("type").and_then(Value::as_str) == Some(wanted))?;
            let text = |field: &str| bounded(found.get(field).and_then(Value::as_str));
            let observed = found.get("observedGeneration").and_then(Value::as_i64);
            Some(Condition {
                truth: text("status") == "True",
                reason: text("reason"),
                message: text("message"),
                observed: observed.unwrap_or_default(),
            })
        };
        let time = |field: &str| {
            let text = status?.get(field)?.as_str()?;
            Some(bounded(Some(text)))
        };
        Self {
            ready: condition("Ready"),
            issuing: condition("Issuing"),
            not_after: time("notAfter"),
            renewal: time("renewalTime"),
        }
    }

    /// The Secret holds what this generation of the spec asks for.
    #[must_use]
    pub fn is_ready(&self, generation: i64) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|ready| ready.truth && ready.observed >= generation)
    }

    /// Why the last attempt failed, if it did.
    fn failure(&self) -> Option<&Condition> {
        let issuing = self.issuing.as_ref()?;
        (!issuing.truth && issuing.reason != "Issued" && !issuing.message.is_empty())
            .then_some(issuing)
    }

    /// The progress to show for the Certificate `name` in its `generation`, if the latest attempt waits for `attempt`.
    #[must_use]
    pub fn issuance(&self, name: &str, generation: i64, attempt: Option<&str>) -> Issuance {
        if self.is_ready(generation) {
            let mut message = format!("Certificate {name} is ready");
            if let Some(end) = &self.not_after {
                let _ = write!(message, "; it is valid until {end}");
            }
            if let Some(failure) = self.failure() {
                let _ = write!(message, "; its renewal has failed: {}", failure.message);
                return issuance_of(IssuanceState::Issued, Reason::RenewalFailed, message);
            }
            if let Some(renewal) = &self.renewal {
                let _ = write!(message, ", and cert-manager renews it at {renewal}");
            }
            return issuance_of(IssuanceState::Issued, Reason::Issued, message);
        }
        if let Some(issuing) = self.issuing.as_ref().filter(|issuing| issuing.truth) {
            // The reader knows already that it is being issued, because there is no Secret. The cause of the wait
            // helps.
            let text = attempt.unwrap_or(&issuing.message);
            let message = format!("cert-manager is issuing Certificate {name}: {text}");
            return issuance_of(IssuanceState::Pending, Reason::Pending, message);
        }
        if let Some(failure) = self.failure() {
            let message = format!(
                "cert-manager could not issue Certificate {name}: {}",
                failure.message
            );
            return issuance_of(IssuanceState::Failed, Reason::OrderFailed, message);
        }
        let message = match &self.ready {
            Some(ready) if ready.observed >= generation => {
                format!("Certificate {name} is not ready: {}", ready.message)
            }
            _ => format!(
                "cert-manager has not looked at Certificate {name} yet; if it stays so, look whether cert-manager runs"
            ),
        };
        issuance_of(IssuanceState::Pending, Reason::Pending, message)
    }
}

/// Builds the state of an issuance.
pub(super) fn issuance_of(
    state: IssuanceState,
    reason: Reason,
    message: impl Into<String>,
) -> Issuance {
    Issuance {
        state,
        reason,
        message: message.into().into(),
    }
}

/// Text of somebody else's, in bounds and on one line.
pub(super) fn bounded(text: Option<&str>) -> String {
    let text = text.unwrap_or_default().trim();
    let mut kept: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_TEXT)
        .collect();
    if text.chars().nth(MAX_TEXT).is_some() {
        kept.push('…');
    }
    kept
}
