//! How an order ends: what is written to the Secret, and what a failure means.

use std::time::Duration;

use vestibule_model::key::ObjectName;

use super::super::backoff;
use super::super::clock::Now;
use super::super::effects::{Observation, OrderOutcome, Write, Written};
use super::super::problem::{AcmeFailure, FailureKind};
use super::super::state::{Failed, Issued, Order, Wanted, hex};
use super::{After, Phase, PlanStep, Planner, Seen, Stage, Task};

/// How often in a row a Secret may have changed under a write.
const MAX_CONFLICTS: u32 = 5;

impl Planner {
    /// Writes the Secret.
    pub(super) fn write(&mut self, secret: &ObjectName, after: After) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let mut state = entry.state.clone();
        let mut pair = None;
        let mut next_key = None;
        if let Some(running) = &entry.running {
            state.order = Some(Order {
                url: running.url.clone(),
                account: running.account.clone(),
                wanted: running.wanted.clone(),
                since: running.since,
            });
            next_key = Some(running.key.clone());
            if let (After::Issued, Some((chain, leaf)), Some(issuer)) =
                (after, &running.chain, &entry.issuer)
            {
                state.order = None;
                state.failure = None;
                next_key = None;
                pair = Some((chain.clone(), running.key.clone()));
                let by = self.issuers.get(issuer);
                let by = by.map(|issuer| Wanted::new(&issuer.spec, &entry.request.hostnames).by);
                state.issued = Some(Issued {
                    issuer: issuer.to_string(),
                    by: by.unwrap_or_default(),
                    account: running.account.clone(),
                    serial: hex(&leaf.serial),
                    // Not when it is stored: that may be days later, and must not look like a clock
                    // that is off.
                    at: running.since,
                });
            }
        } else {
            state.order = None;
        }
        let write = Write {
            expected: entry.record.as_ref().map(|record| record.version.clone()),
            state: state.write().into(),
            pair,
            next_key,
        };
        entry.state = state;
        entry.phase = Phase::Active(Stage::Write(after));
        self.start(secret, Task::Write(write));
    }

    pub(super) fn wrote(
        &mut self,
        secret: &ObjectName,
        after: After,
        result: Result<Written, AcmeFailure>,
        now: Now,
    ) {
        match (result, after) {
            (Ok(Written::Done(version)), _) => {
                let Some(entry) = self.entries.get_mut(secret) else {
                    return;
                };
                let leaf = entry.record.take().and_then(|record| record.leaf);
                entry.record = Some(Seen {
                    version,
                    ours: true,
                    leaf,
                });
                match after {
                    After::Ordered => {
                        if let Some(running) = self.running(secret) {
                            running.persisted = true;
                            running.conflicts = 0;
                        }
                        self.look(secret);
                    }
                    After::Issued => self.issued(secret, now),
                    After::Failed => self.leave(secret),
                }
            }
            (Ok(Written::Conflict), _) => {
                let Some(entry) = self.entries.get_mut(secret) else {
                    return;
                };
                entry.unreached += 1;
                let running = entry.running.as_mut();
                let conflicts = running.map_or(entry.unreached, |running| {
                    running.conflicts += 1;
                    running.conflicts
                });
                if conflicts > MAX_CONFLICTS {
                    if let Some(running) = self.running(secret) {
                        running.conflicts = 0;
                    }
                    let failure = AcmeFailure::unreachable(format!(
                        "Secret {secret} changes all the time: somebody else writes it"
                    ));
                    self.pause(secret, failure, now);
                    if let Some(entry) = self.entries.get_mut(secret) {
                        entry.stale = true;
                    }
                    return;
                }
                self.stage(secret, Stage::Reread(after));
                self.start(secret, Task::Read);
            }
            (Ok(Written::Refused(why)), _) => {
                let failure = AcmeFailure::new(
                    FailureKind::Other,
                    format!("Secret {secret} cannot be written: {why}"),
                );
                self.note_failure(secret, failure, now);
                self.leave(secret);
            }
            // It is remembered here; the next write has it.
            (Err(_), After::Failed) => self.leave(secret),
            (Err(failure), _) => self.pause(secret, failure, now),
        }
    }

    /// The Secret was not as expected, and has been read again.
    pub(super) fn write_again(&mut self, secret: &ObjectName, after: After, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let ours = entry.record.as_ref().is_none_or(|record| record.ours);
        let wanted = self.wanted(entry);
        let fits = entry
            .running
            .as_ref()
            .is_some_and(|running| wanted.is_some_and(|wanted| wanted.all == running.wanted));
        match after {
            // Somebody else's: what is left of the order is said when it is looked at.
            _ if !ours => {
                self.end(
                    secret,
                    OrderOutcome::Abandoned,
                    "the Secret is somebody else's",
                );
                self.leave(secret);
            }
            After::Failed => self.write(secret, after),
            _ if !fits => self.leave(secret),
            After::Ordered | After::Issued => self.resume(secret, now),
        }
    }

    pub(super) fn issued(&mut self, secret: &ObjectName, now: Now) {
        let wait = self.random.below(self.settings.spread);
        if let Some(entry) = self.entries.get_mut(secret) {
            let chain = entry
                .running
                .as_mut()
                .and_then(|running| running.chain.take());
            if let (Some(record), Some((_, leaf))) = (&mut entry.record, chain) {
                record.leaf = Some(leaf);
            }
            entry.window = None;
            entry.ask_window = now.steady + wait;
        }
        self.end(secret, OrderOutcome::Issued, "the certificate is stored");
        self.leave(secret);
    }

    /// Something about an order went wrong.
    pub(super) fn hitch(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        let finalizing = self.entries.get(secret).map(|entry| entry.phase)
            == Some(Phase::Active(Stage::Finalize));
        match failure.kind {
            FailureKind::Unreachable | FailureKind::RateLimited | FailureKind::NotAllowed
                if self.expired(secret, now) =>
            {
                self.expire(secret, Some(&failure), now);
            }
            FailureKind::Unreachable | FailureKind::RateLimited | FailureKind::NotAllowed => {
                self.pause(secret, failure, now);
            }
            FailureKind::Account => {
                let issuer = self
                    .entries
                    .get(secret)
                    .and_then(|entry| entry.issuer.clone());
                if let Some(issuer) = issuer {
                    self.issuer_failed(&issuer, failure.clone(), now);
                }
                self.pause(secret, failure, now);
            }
            // It was finalized before, by a leader that is gone, say.
            FailureKind::OrderGone if finalizing => self.poll(secret, failure.retry_after, now),
            _ => self.fail(secret, failure, now),
        }
    }

    /// An order failed: it is given up, and the failure waited out, also by the next leader.
    pub(super) fn fail(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        self.withdraw(secret);
        self.note_failure(secret, failure, now);
        self.write(secret, After::Failed);
    }

    pub(super) fn note_failure(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let wanted = self
            .wanted(entry)
            .map(|wanted| wanted.all)
            .unwrap_or_default();
        let before = entry.state.failure.as_ref().filter(|f| f.wanted == wanted);
        let more = u32::from(failure.kind != FailureKind::Unreachable);
        let count = before.map_or(1, |failure| failure.count.saturating_add(more));
        let wait = backoff::of_order(count, &failure, &mut self.random);
        let wait = i64::try_from(wait.as_secs()).unwrap_or(86_400);
        self.end(secret, OrderOutcome::Failed, &failure.message);
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.failed_since = now.steady;
            entry.trouble = None;
            entry.state.failure = Some(Failed {
                wanted,
                count,
                at: now.wall,
                retry_at: now.wall.saturating_add(wait),
                problem: failure.message,
                rate_limited: failure.kind == FailureKind::RateLimited,
            });
        }
    }

    /// An order is over.
    pub(super) fn end(&mut self, secret: &ObjectName, outcome: OrderOutcome, message: &str) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        entry.state.order = None;
        let running = entry.running.take();
        let Some(issuer) = entry.issuer.clone() else {
            return;
        };
        if let Some(running) = running {
            let step = if outcome == OrderOutcome::Issued || running.over {
                PlanStep::Forget
            } else {
                PlanStep::Close
            };
            self.steps.push(step(issuer.clone(), running.url));
        }
        self.steps.push(PlanStep::Observe(Observation::OrderEnded {
            secret: secret.clone(),
            issuer,
            outcome,
            message: message.into(),
        }));
    }
}
