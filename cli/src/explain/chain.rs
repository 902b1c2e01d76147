//! What the steps of a chain need, and those about the class, the Gateway, the ListenerSet, the listener and the proxies.
//! Every verdict is a condition of translation or of a status.

use jiff::Timestamp;
use vestibule_model::condition::Reason;
use vestibule_model::gateway::TlsMode;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;

use super::candidates::Candidate;
use super::cluster_state::ClusterState;
use super::conditions::{Cond, PROGRAMMED, ReportedStatus, StatusSource};
use super::report::{CertificateView, ChainStep, Check, RouteView, StepOutcome, listener_text};
use super::steps::{ok, step};

/// Everything that the steps need.
pub(super) struct Chain<'a> {
    pub(super) cluster_state: &'a ClusterState,
    pub(super) query: &'a HostPattern,
    pub(super) candidate: &'a Candidate,
    pub(super) routes: &'a [RouteView],
    /// Routes that ask for the name from the object of this listener and are not attached.
    pub(super) rejected: &'a [ObjectKey],
    pub(super) certificate: Option<&'a CertificateView>,
    pub(super) now: Timestamp,
}

impl Chain<'_> {
    fn gateway_key(&self) -> ObjectKey {
        ParentKey::Gateway(self.candidate.gateway.clone()).object()
    }

    pub(super) fn class(&self) -> Option<ChainStep> {
        let key = self.gateway_key();
        if self.cluster_state.is_assumed(&key) {
            return None;
        }
        let object = self.cluster_state.translator.object(&key)?;
        let Object::Gateway(gateway) = object.as_ref() else {
            return None;
        };
        let (name, controller) = (&gateway.class, &self.cluster_state.controller);
        let class_key = ObjectKey::new(Kind::GatewayClass, "", name.clone());
        let subject = class_key.to_string();
        let step = |outcome, reason: &str, message: String, action: String| {
            Some(step(
                Check::GatewayClass,
                outcome,
                &subject,
                reason,
                message,
                action,
            ))
        };
        if self.cluster_state.is_assumed(&class_key) {
            let message = "may not be read; taken for one of Vestibule's";
            return step(StepOutcome::Unknown, "", message.into(), String::new());
        }
        let Some(class) = self.cluster_state.translator.merge().class(name) else {
            return step(
                StepOutcome::Wrong,
                "NotFound",
                "does not exist".into(),
                format!(
                    "create it with controllerName {controller:?}, or name another one in spec.gatewayClassName of {key}"
                ),
            );
        };
        if class.controller != *controller {
            return step(
                StepOutcome::Wrong,
                "OtherController",
                format!(
                    "is of controller {:?}, not {controller:?}",
                    &*class.controller
                ),
                format!(
                    "name a class of Vestibule's in spec.gatewayClassName of {key}, or ask that controller"
                ),
            );
        }
        let reported = self.cluster_state.reported_on_class(name);
        Some(self.by_accepted(
            Check::GatewayClass,
            &class_key,
            &reported,
            "is of this controller and accepted",
        ))
    }

    pub(super) fn gateway(&self) -> Option<ChainStep> {
        let key = self.gateway_key();
        let subject = key.to_string();
        let step = |outcome, reason: &str, message: String, action: &str| {
            Some(step(
                Check::Gateway,
                outcome,
                &subject,
                reason,
                message,
                action.into(),
            ))
        };
        if self.cluster_state.is_assumed(&key) {
            let message = "may not be read; the statuses of what extends it count";
            return step(StepOutcome::Unknown, "", message.into(), "");
        }
        let gateway = match self
            .cluster_state
            .translator
            .object(&key)
            .map(AsRef::as_ref)
        {
            Some(Object::Gateway(gateway)) => gateway,
            Some(Object::Unreadable(_, _, finding)) => {
                let reason = finding.reason.as_str();
                return step(
                    StepOutcome::Wrong,
                    reason,
                    text_at(&finding.field, &finding.message),
                    &finding.action,
                );
            }
            _ => {
                return step(
                    StepOutcome::Wrong,
                    "NotFound",
                    "does not exist".into(),
                    "create it, or correct spec.parentRef of the ListenerSet",
                );
            }
        };
        if gateway.meta.deleting {
            let action = "create it anew, or extend another one";
            return step(
                StepOutcome::Wrong,
                "Deleting",
                "is being deleted".into(),
                action,
            );
        }
        let parent = gateway.parent_key();
        let reported = self.cluster_state.reported_on(&parent, None);
        let accepted = reported.get("Accepted");
        // If none of the Gateway's own listeners is valid, its ListenerSets can still be served.
        let refused = |c: &&Cond| c.is("False") && !c.is_for(Reason::ListenersNotValid);
        if let Some(cond) = accepted.filter(refused) {
            return Some(self.wrong(Check::Gateway, &key, cond, reported.by));
        }
        // In a cluster, the operator knows the state of the Service, and translation here does not.
        let programmed = match self.cluster_state.live {
            Some(_) => reported.live(PROGRAMMED),
            None => reported.get(PROGRAMMED),
        };
        if let Some(cond) = programmed.filter(|c| c.is("False") && is_about_addresses(c)) {
            let by = self
                .cluster_state
                .live
                .as_ref()
                .map_or(reported.by, |_| StatusSource::Status);
            return Some(self.wrong(Check::Gateway, &key, cond, by));
        }
        if accepted.is_none() && reported.by != StatusSource::Translation {
            return step(StepOutcome::Unknown, "", "has no status".into(), "");
        }
        let mut ok = ok(Check::Gateway, &key, "is accepted", reported.by);
        if self.cluster_state.live.is_some() && self.addresses().is_empty() {
            ok.message = "is accepted, and has no address in its status".into();
            ok.outcome = StepOutcome::Warning;
        }
        Some(ok)
    }

    /// Whether the listener shows a certificate.
    pub(super) fn terminates(&self) -> bool {
        let listener = &self.candidate.listener;
        let tls = listener.tls.as_ref();
        listener.protocol == Protocol::Https
            || tls.is_some_and(|tls| tls.mode == TlsMode::Terminate)
    }

    /// The addresses in the status of the Gateway.
    pub(super) fn addresses(&self) -> Vec<String> {
        let status = self.cluster_state.written(&self.gateway_key());
        let addresses = status.and_then(|status| status.get("addresses")?.as_array());
        let values = addresses.into_iter().flatten();
        values
            .filter_map(|one| Some(one.get("value")?.as_str()?.to_owned()))
            .collect()
    }

    pub(super) fn set(&self) -> Option<ChainStep> {
        let parent = &self.candidate.key.parent;
        let ParentKey::ListenerSet(name) = parent else {
            return None;
        };
        let key = parent.object();
        let set = self.cluster_state.translator.merge().set(name)?;
        if set.meta.deleting {
            let (message, action) = ("is being deleted".into(), "create it anew".into());
            return Some(step(
                Check::ListenerSet,
                StepOutcome::Wrong,
                &key.to_string(),
                "Deleting",
                message,
                action,
            ));
        }
        let reported = self.cluster_state.reported_on(parent, None);
        if let Some(cond) = reported.get("Accepted")
            && cond.is("False")
            && !cond.is_for(Reason::ListenersNotValid)
        {
            return Some(self.wrong(Check::ListenerSet, &key, cond, reported.by));
        }
        if reported.by == StatusSource::Guess {
            return Some(self.no_status(Check::ListenerSet, &key));
        }
        // For a Gateway that may not be read, nothing more is known.
        if self.cluster_state.is_assumed(&self.gateway_key())
            && let Some(cond) = reported.live(PROGRAMMED)
            && cond.is("False")
            && is_about_parent(cond)
        {
            return Some(self.wrong(Check::ListenerSet, &key, cond, StatusSource::Status));
        }
        let message = format!("is let in by Gateway {}", self.candidate.gateway);
        Some(ok(Check::ListenerSet, &key, &message, reported.by))
    }

    pub(super) fn listener(&self) -> Option<ChainStep> {
        let key = &self.candidate.key;
        let object = key.parent.object();
        let reported = self
            .cluster_state
            .reported_on(&key.parent, Some(&key.listener));
        let subject = listener_text(key);
        let named = |mut step: ChainStep| {
            step.subject.clone_from(&subject);
            Some(step)
        };
        let (accepted, conflicted) = (reported.get("Accepted"), reported.get("Conflicted"));
        if let Some(cond) = conflicted.filter(|c| c.is("True")) {
            return named(self.wrong(Check::Listener, &object, cond, reported.by));
        }
        if let Some(cond) = accepted.filter(|c| c.is("False")) {
            return named(self.wrong(Check::Listener, &object, cond, reported.by));
        }
        if reported.is_empty() || reported.by == StatusSource::Guess {
            return named(self.no_status(Check::Listener, &object));
        }
        // If a certificate is missing, the next step is about it.
        let never = reported
            .get(PROGRAMMED)
            .filter(|c| c.is("False") && !c.is_for(Reason::Pending));
        if let Some(cond) =
            never.filter(|_| !self.terminates() && reported.by == StatusSource::Translation)
        {
            return named(self.wrong(Check::Listener, &object, cond, reported.by));
        }
        named(ok(
            Check::Listener,
            &object,
            "is accepted, and no listener conflicts with it",
            reported.by,
        ))
    }

    pub(super) fn programmed(&self) -> Option<ChainStep> {
        self.cluster_state.live.as_ref()?;
        let key = &self.candidate.key;
        let object = key.parent.object();
        let reported = self
            .cluster_state
            .reported_on(&key.parent, Some(&key.listener));
        let subject = listener_text(key);
        let Some(cond) = reported.live(PROGRAMMED) else {
            let mut step = self.no_status(Check::Programmed, &object);
            step.subject = subject;
            return Some(step);
        };
        let mut step = match cond.truth.as_str() {
            "True" => ok(
                Check::Programmed,
                &object,
                &cond.message,
                StatusSource::Status,
            ),
            _ => self.wrong(Check::Programmed, &object, cond, StatusSource::Status),
        };
        step.subject = subject;
        if reported.stale && step.outcome == StepOutcome::Ok {
            step.outcome = StepOutcome::Warning;
            step.reason = "Stale".into();
            step.message =
                "the status is about an older version of the object, so the proxies may serve that"
                    .into();
            step.action = "wait a moment; if it stays so, see whether the operator runs".into();
        }
        Some(step)
    }

    fn by_accepted(
        &self,
        check: Check,
        key: &ObjectKey,
        reported: &ReportedStatus,
        fine: &str,
    ) -> ChainStep {
        match reported.get("Accepted") {
            Some(cond) if cond.is("True") => ok(check, key, fine, reported.by),
            Some(cond) => self.wrong(check, key, cond, reported.by),
            None => self.no_status(check, key),
        }
    }

    pub(super) fn no_status(&self, check: Check, key: &ObjectKey) -> ChainStep {
        let message = if self.cluster_state.is_whole() {
            "has no status of Vestibule's yet"
        } else {
            "has no status of Vestibule's, and not everything may be read that decides about it"
        };
        let action = "see whether the operator runs, and whether the GatewayClass is Vestibule's";
        step(
            check,
            StepOutcome::Unknown,
            &key.to_string(),
            "NoStatus",
            message.into(),
            action.into(),
        )
    }

    /// The step for a condition that says what is wrong. If translation has an action, it is included.
    ///
    /// The condition may come from the status of a live cluster, which has only a text and no finding. There, the same
    /// reason is not enough: a caller who may not read everything can get another finding with the same reason than the
    /// operator, such as a Secret that "does not exist". Only the same text shows that translation here has found what
    /// the operator found, so the texts are compared. Both come from the `Display` of a finding.
    pub(super) fn wrong(
        &self,
        check: Check,
        key: &ObjectKey,
        cond: &Cond,
        by: StatusSource,
    ) -> ChainStep {
        let findings = self.cluster_state.translator.findings().get(key);
        let finding = findings
            .into_iter()
            .flatten()
            .find(|f| f.to_string() == cond.message);
        let (message, action) = match finding {
            Some(finding) => (
                text_at(&finding.field, &finding.message),
                finding.action.clone(),
            ),
            None => text_of_status(cond),
        };
        ChainStep {
            by,
            ..step(
                check,
                StepOutcome::Wrong,
                &key.to_string(),
                &cond.reason,
                message,
                action,
            )
        }
    }
}

/// The message and the action of a condition, if its text has both parts in the form of a finding.
///
/// Translation here has no such finding, so the text in the status is all that there is. The `Display` of a
/// finding puts "; " between message and action. A text with several of them is not divided, because nobody knows where
/// the action begins.
pub(super) fn text_of_status(cond: &Cond) -> (String, String) {
    let of_finding = cond.kind != PROGRAMMED || is_about_addresses(cond) || is_about_parent(cond);
    match cond.message.rsplit_once("; ") {
        Some((message, action)) if of_finding && !message.contains("; ") => {
            (message.to_owned(), action.to_owned())
        }
        _ => (cond.message.clone(), String::new()),
    }
}

/// Whether a Gateway is not programmed because of its addresses.
fn is_about_addresses(cond: &Cond) -> bool {
    cond.is_for(Reason::AddressNotAssigned) || cond.is_for(Reason::AddressNotUsable)
}

/// Whether a ListenerSet is not programmed because of its parent.
fn is_about_parent(cond: &Cond) -> bool {
    cond.is_for(Reason::ParentNotAccepted) || cond.is_for(Reason::ParentNotProgrammed)
}

fn text_at(field: &str, message: &str) -> String {
    if field.is_empty() {
        message.to_owned()
    } else {
        format!("{field}: {message}")
    }
}
