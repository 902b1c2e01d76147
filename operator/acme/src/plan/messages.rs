//! Owns the messages about certificates: the state of each, and what to do if it makes no progress.

use std::fmt::Write as _;
use std::time::Duration;

use vestibule_model::condition::Reason;
use vestibule_model::issuance::{Issuance, IssuanceState};
use vestibule_model::key::ObjectName;

use super::need::{Assessment, Blocker};
use super::{Entry, Phase, PlanStep, Planner, Stage};
use crate::clock::{Now, time};
use crate::effects::{ChallengeAck, Observation, WaitingCounts};
use crate::problem::FailureKind;

const CLAIMS: &str = "waits for its turn: a namespace may have only so many orders in an hour taken up that its \
                      Secrets name";
/// Counts are reported at most this often.
const COUNT: Duration = Duration::from_secs(1);

impl Planner {
    /// Reports what is new.
    pub(super) fn speak(&mut self, now: Now) {
        for secret in std::mem::take(&mut self.touched) {
            let Some(entry) = self.entries.get(&secret) else {
                continue;
            };
            // Nothing is known yet, so what an earlier leader reported must stay.
            if !entry.seen && entry.trouble.is_none() {
                continue;
            }
            let assessment = self.assessment(entry, now);
            let said = self.words(&secret, entry, &assessment, now);
            let renewal = assessment.renew_at;
            let Some(entry) = self.entries.get_mut(&secret) else {
                continue;
            };
            if entry.said.as_ref() != Some(&said) {
                entry.said = Some(said.clone());
                self.steps
                    .push(PlanStep::Issuance(secret.clone(), Some(said)));
            }
            if entry.said_renewal != renewal {
                entry.said_renewal = renewal;
                let observation = Observation::RenewAt(secret, renewal);
                self.steps.push(PlanStep::Observe(observation));
            }
        }
        if now.steady >= self.counted + COUNT {
            self.counted = now.steady;
            let waiting = self.count();
            if waiting != self.waiting {
                self.waiting = waiting;
                let observation = Observation::Waiting(waiting);
                self.steps.push(PlanStep::Observe(observation));
            }
        }
    }

    fn count(&self) -> WaitingCounts {
        let mut waiting = WaitingCounts {
            budget: self.queue.len(),
            ..WaitingCounts::default()
        };
        for entry in self.entries.values() {
            match entry.phase {
                Phase::Rest => match entry.said.as_ref().map(|said| said.reason) {
                    Some(Reason::IssuerNotFound | Reason::IssuerNotReady) => waiting.issuer += 1,
                    Some(Reason::OrderFailed | Reason::Unreachable | Reason::RenewalFailed) => {
                        waiting.backoff += 1;
                    }
                    _ if entry.held_up() => waiting.challenge += 1,
                    _ if entry.running.is_some() => waiting.authority += 1,
                    _ => {}
                },
                Phase::Active(_) | Phase::Queued(_) => {}
            }
        }
        waiting
    }

    fn words(
        &self,
        secret: &ObjectName,
        entry: &Entry,
        assessment: &Assessment,
        now: Now,
    ) -> Issuance {
        let leaf = entry
            .record
            .as_ref()
            .and_then(|record| record.leaf.as_ref());
        let ours = entry.record.as_ref().is_none_or(|record| record.ours);
        let issuer = entry
            .issuer
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        let (state, reason, mut message) =
            self.progress_words(secret, entry, assessment, &issuer, now);
        let Some(leaf) = leaf.filter(|_| ours && entry.state.issued.is_some()) else {
            return Issuance {
                state,
                reason,
                message: message.into(),
            };
        };
        // A certificate is being served, so the message begins with its state.
        let until = time(leaf.not_after);
        let due = !assessment.current || assessment.renew_at.is_none_or(|at| at <= now.wall);
        let expired = leaf.not_after <= now.wall;
        if !due && state != IssuanceState::Failed && entry.running.is_none() {
            return Issuance {
                state: IssuanceState::Issued,
                reason: Reason::Issued,
                message: format!("by {issuer}, valid until {until}").into(),
            };
        }
        if expired {
            let _ = write!(message, "; what is served meanwhile expired at {until}");
            return Issuance {
                state: IssuanceState::Failed,
                reason: Reason::Expired,
                message: message.into(),
            };
        }
        if !assessment.current {
            let _ = write!(message, "; the former certificate serves until then");
            return Issuance {
                state,
                reason,
                message: message.into(),
            };
        }
        let failing = state == IssuanceState::Failed;
        Issuance {
            state: IssuanceState::Issued,
            reason: if failing {
                Reason::RenewalFailed
            } else {
                Reason::Issued
            },
            message: if failing {
                format!("valid until {until}, but it cannot be renewed: {message}")
            } else {
                format!("by {issuer}, valid until {until}; being renewed")
            }
            .into(),
        }
    }

    /// The state of the certificate that is being obtained.
    fn progress_words(
        &self,
        secret: &ObjectName,
        entry: &Entry,
        assessment: &Assessment,
        issuer: &str,
        now: Now,
    ) -> (IssuanceState, Reason, String) {
        use IssuanceState::{Failed, Pending};
        match (&assessment.blocker, entry.phase) {
            (Some(blocker), _) => self.blocker_words(secret, entry, blocker, issuer, now),
            (None, Phase::Active(stage)) => {
                (Pending, Reason::Pending, stage_words(entry, stage, issuer))
            }
            (None, Phase::Queued(_))
                if entry.claims() && !self.claims.wait(&secret.namespace, now.steady).is_zero() =>
            {
                (Pending, Reason::OverBudget, CLAIMS.into())
            }
            // It queues each time that the CA has to be asked again, which is not worth reporting.
            (None, Phase::Queued(_) | Phase::Rest)
                if entry.running.is_some() && entry.trouble.is_none() =>
            {
                (Pending, Reason::Pending, waiting_words(entry, issuer))
            }
            (None, Phase::Queued(_)) => (
                Pending,
                Reason::OverBudget,
                "waits for its turn: orders are limited at a time and per hour".into(),
            ),
            (None, Phase::Rest) => match &entry.trouble {
                Some(failure) if failure.kind != FailureKind::RateLimited => (
                    Failed,
                    Reason::Unreachable,
                    format!("{}; it is tried again", failure.message),
                ),
                Some(failure) => (Pending, Reason::OverBudget, failure.message.clone()),
                None => (
                    Pending,
                    Reason::Pending,
                    format!("{issuer} is asked for it"),
                ),
            },
        }
    }

    fn blocker_words(
        &self,
        secret: &ObjectName,
        entry: &Entry,
        blocker: &Blocker,
        issuer: &str,
        now: Now,
    ) -> (IssuanceState, Reason, String) {
        use IssuanceState::Failed;
        let ways = || {
            let spec = entry.issuer.as_ref().and_then(|key| self.issuers.get(key));
            let ways = spec
                .into_iter()
                .flat_map(|issuer| issuer.spec.challenges.iter());
            let ways: Vec<String> = ways
                .map(|kind| format!("{kind} on port {}", kind.port()))
                .collect();
            ways.join(" or ")
        };
        match blocker {
            Blocker::NotOurs => (
                Failed,
                Reason::SecretNotOurs,
                format!(
                    "Secret {secret} is not of Vestibule's making, so it is left alone: delete it, name another \
                     Secret in the listener, or remove the issuer's annotation to serve what it holds"
                ),
            ),
            Blocker::NoIssuer => (
                Failed,
                Reason::IssuerNotFound,
                format!("{issuer} does not exist: create it, or correct the annotation"),
            ),
            Blocker::ForeignIssuer => (
                Failed,
                Reason::IssuerNotFound,
                format!(
                    "{issuer} is not for this installation of Vestibule: name another one, or ask the platform admin \
                     (its labels do not match acme.issuerSelector of the chart)"
                ),
            ),
            Blocker::IssuerNotReady => self.issuer_words(entry, issuer),
            Blocker::NoListener(hostname) => (
                Failed,
                Reason::NoChallengeListener,
                format!(
                    "the CA cannot check {hostname}, since the Gateway has no listener for {}: add one, or allow \
                     another challenge in the issuer",
                    ways()
                ),
            ),
            Blocker::Others(hostname) => (
                Failed,
                Reason::ServedByOthers,
                format!(
                    "the CA cannot check {hostname} for this namespace, since it is served by another one there \
                     ({}): have a listener for it on that port",
                    ways()
                ),
            ),
            Blocker::Backoff => {
                let failure = entry.state.failure.as_ref();
                let (problem, at, limited) = failure.map_or(("", now.wall, false), |failure| {
                    (
                        failure.problem.as_str(),
                        failure.retry_at,
                        failure.rate_limited,
                    )
                });
                let reason = if limited {
                    Reason::OverBudget
                } else {
                    Reason::OrderFailed
                };
                (
                    Failed,
                    reason,
                    format!("{problem}; next attempt at {}", time(at)),
                )
            }
        }
    }

    fn issuer_words(&self, entry: &Entry, issuer: &str) -> (IssuanceState, Reason, String) {
        use IssuanceState::{Failed, Pending};
        let known = entry.issuer.as_ref().and_then(|key| self.issuers.get(key));
        let refusal = known.and_then(|issuer| issuer.spec.refusal());
        let trouble = known.and_then(|issuer| issuer.trouble.as_ref());
        match (refusal, trouble) {
            (Some(refusal), _) => (
                Failed,
                Reason::IssuerNotReady,
                format!(
                    "{issuer} cannot be used: {}: {}",
                    refusal.field, refusal.message
                ),
            ),
            (None, Some(failure)) => {
                let message = format!("{issuer} cannot be used: {}", failure.message);
                (Failed, Reason::IssuerNotReady, message)
            }
            (None, None) => (
                Pending,
                Reason::IssuerNotReady,
                match known.and_then(|issuer| issuer.waits.as_ref()) {
                    Some(waits) => format!("{issuer} {}", waits.words),
                    None => format!("{issuer} is being registered with the CA"),
                },
            ),
        }
    }
}

fn stage_words(entry: &Entry, stage: Stage, issuer: &str) -> String {
    match stage {
        Stage::Finalize | Stage::Download => format!("{issuer} makes the certificate"),
        _ => waiting_words(entry, issuer),
    }
}

/// Describes what a running order waits for.
fn waiting_words(entry: &Entry, issuer: &str) -> String {
    let running = entry.running.as_ref();
    let waits = entry.published.values().find_map(|ack| match ack {
        ChallengeAck::Waiting { acked, of } => Some((*acked, *of)),
        _ => None,
    });
    if running.is_some_and(|running| running.finalized > 0) {
        return format!("{issuer} makes the certificate");
    }
    if running.is_some_and(|running| running.declared) {
        let name = entry.published.keys().next();
        let name = name.map_or("the names", |key| key.hostname.as_str());
        return format!("{issuer} checks {name}");
    }
    match waits {
        Some((acked, of)) if of > 0 => {
            format!("the challenge waits for all proxies: {acked}/{of} answer it")
        }
        Some(_) => "the challenge is given to the proxies".into(),
        None => format!("{issuer} is asked for it"),
    }
}
