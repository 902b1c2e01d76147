//! The step of the chain for the certificate of a listener.

use vestibule_model::condition::Reason;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_operator::issuance::is_ours;

use super::certificate::{CertificateProblem, Leaf};
use super::chain::Chain;
use super::conditions::{Cond, ISSUED, PROGRAMMED, ReportedStatus, StatusSource};
use super::report::{ChainStep, Check, StepOutcome, listener_text};
use super::steps::{ok, step};

impl Chain<'_> {
    pub(super) fn certificate(&self) -> Option<ChainStep> {
        if !self.terminates() {
            return None;
        }
        let key = &self.candidate.key;
        let object = key.parent.object();
        let reported = self
            .cluster_state
            .reported_on(&key.parent, Some(&key.listener));
        let secret = self
            .certificate
            .map(|view| ObjectKey::new(Kind::Secret, &*view.secret.namespace, &*view.secret.name));
        let hidden = secret
            .as_ref()
            .is_some_and(|secret| self.cluster_state.is_denied(secret));
        let subject = secret
            .as_ref()
            .map_or_else(|| listener_text(key), ToString::to_string);
        let named = |mut step: ChainStep| {
            step.subject.clone_from(&subject);
            Some(step)
        };
        if hidden {
            return named(self.hidden_certificate(&object));
        }
        let is_local = |secret| self.is_issued_locally(secret);
        if secret.as_ref().is_some_and(is_local) {
            let message = "does not exist, and the local CA of `vestibule run` issues it";
            return named(ok(Check::Certificate, &object, message, reported.by));
        }
        let unresolved = reported.get("ResolvedRefs").filter(|c| c.is("False"));
        let unusable = reported
            .get(PROGRAMMED)
            .filter(|c| c.is("False") && !c.is_for(Reason::Pending));
        if let Some(cond) = unresolved
            .or(unusable)
            .filter(|_| unusable.is_some() || self.leaf().is_none())
        {
            return named(self.no_certificate(&object, cond, &reported));
        }
        let Some(leaf) = self.leaf() else {
            return named(self.no_status(Check::Certificate, &object));
        };
        let verdict = |outcome, reason: &str, message: String, action: &str| {
            named(step(
                Check::Certificate,
                outcome,
                &subject,
                reason,
                message,
                action.into(),
            ))
        };
        let renew = "renew it, or see why its issuer does not";
        match leaf.trouble(self.query, self.now) {
            Some(CertificateProblem::Expired) => {
                let message = format!("expired at {}, so clients refuse it", leaf.not_after);
                verdict(StepOutcome::Wrong, "CertificateExpired", message, renew)
            }
            Some(CertificateProblem::NotYetValid) => {
                let message = format!(
                    "is valid from {} on, so clients refuse it now",
                    leaf.not_before
                );
                verdict(
                    StepOutcome::Wrong,
                    "CertificateNotYetValid",
                    message,
                    "wait, or correct the clock of its issuer",
                )
            }
            Some(CertificateProblem::OtherNames) => {
                let message = format!(
                    "is for {}, so clients that ask for {} refuse it",
                    list(&leaf.names),
                    self.query
                );
                verdict(
                    StepOutcome::Wrong,
                    "CertificateNameMismatch",
                    message,
                    "have one issued for this name, and refer to its Secret",
                )
            }
            None => match unresolved {
                Some(cond) => {
                    let mut step = self.wrong(Check::Certificate, &object, cond, reported.by);
                    step.outcome = StepOutcome::Warning;
                    named(step)
                }
                None => verdict(
                    StepOutcome::Ok,
                    "",
                    format!("is for this name, until {}", leaf.not_after),
                    "",
                ),
            },
        }
    }

    /// Whether `vestibule run` issues the certificate of a Secret by itself, because a directory has neither the Secret
    /// nor an ACME issuer for it.
    fn is_issued_locally(&self, secret: &ObjectKey) -> bool {
        let translator = &self.cluster_state.translator;
        let request = translator.requests().get(&secret.name);
        self.cluster_state.live.is_none()
            && translator.object(secret).is_none()
            && request.is_some_and(|request| !is_ours(request))
    }

    /// The step for a Secret that may not be read. Only the operator knows its content, so the status of the listener
    /// counts.
    fn hidden_certificate(&self, object: &ObjectKey) -> ChainStep {
        let written = self.cluster_state.written_of_listener(&self.candidate.key);
        match written
            .as_ref()
            .and_then(|reported| reported.get("ResolvedRefs"))
        {
            Some(cond) if cond.is("False") => {
                self.wrong(Check::Certificate, object, cond, StatusSource::Status)
            }
            Some(_) => {
                let message = "may not be read; the status says that it is in use";
                ok(Check::Certificate, object, message, StatusSource::Status)
            }
            None => self.no_status(Check::Certificate, object),
        }
    }

    fn leaf(&self) -> Option<Leaf> {
        let view = self.certificate?;
        let key = ObjectKey::new(Kind::Secret, &*view.secret.namespace, &*view.secret.name);
        match self.cluster_state.translator.object(&key)?.as_ref() {
            Object::Secret(secret) => Leaf::of(secret),
            _ => None,
        }
    }

    /// The step for a missing or unusable certificate: the reason, and the progress of its issuer.
    fn no_certificate(
        &self,
        object: &ObjectKey,
        cond: &Cond,
        reported: &ReportedStatus,
    ) -> ChainStep {
        let mut step = self.wrong(Check::Certificate, object, cond, reported.by);
        // Translation decides whether a certificate is requested at all. Only the status knows the progress of a
        // request.
        let verdict = || reported.get(ISSUED).filter(|c| !c.is_for(Reason::Pending));
        let issued = reported.live(ISSUED).or_else(verdict);
        if let Some(issued) = issued.filter(|c| !c.is("True")) {
            let why = self.wrong(Check::Certificate, object, issued, reported.by);
            step.message = format!("{}; {}: {}", step.message, issued.reason, why.message);
            step.action = match why.action.as_str() {
                "" if is_progress(&issued.reason) => {
                    "see what the issuer says; it tries again by itself".into()
                }
                "" => "do as the message says: nothing is requested until then".into(),
                _ => why.action,
            };
        } else if let Some(from) = self
            .certificate
            .and_then(|view| view.requested_from.as_ref())
        {
            step.action = format!("wait for {from}, or see what it says");
        }
        step
    }
}

/// Whether a reason of `CertificateIssued` disappears by itself, without an edit.
fn is_progress(reason: &str) -> bool {
    matches!(
        reason,
        "Pending"
            | "OverBudget"
            | "OrderFailed"
            | "Unreachable"
            | "RenewalFailed"
            | "IssuerNotReady"
            | "Expired"
    )
}

/// The first few names, as text.
fn list(names: &[String]) -> String {
    const NAMED: usize = 5;
    let first = names
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len() {
        0 => "no name at all".into(),
        more if more > NAMED => format!("{first} and {} more", more - NAMED),
        _ => first,
    }
}
