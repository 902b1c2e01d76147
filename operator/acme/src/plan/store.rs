//! Ends orders: decides what is written to the Secret, and what a failure means for the next attempt.

use vestibule_model::key::ObjectName;

use super::{After, GivenUp, Origin, Phase, PlanStep, Planner, Stage, Task};
use crate::backoff;
use crate::clock::Now;
use crate::effects::{Observation, OrderOutcome, Write};
use crate::problem::{AcmeFailure, FailureKind};
use crate::state::{Failed, Issued, Order, Wanted, hex};

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
                    // This is not the time of storing. That may be days later, and then our clock
                    // would seem to be wrong.
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

    /// Gives a failed order up. The failure is stored, so that the next leader waits it out too.
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

    /// Forgets an order that the Secret names and that is not known to be for the names of the request. It may be
    /// another team's, so nothing is done to it and nothing is said of it. A new one is made within the usual budget.
    pub(super) fn disown(&mut self, secret: &ObjectName) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        entry.state.order = None;
        let running = entry.running.take();
        if let (Some(running), Some(issuer)) = (running, entry.issuer.clone()) {
            let why = "the order that the Secret names is none for these names at this CA";
            self.abandoned(secret, issuer, running.url, why);
        }
        self.leave(secret);
    }

    /// Ends an order.
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
            let url = running.url;
            let step = match running.origin {
                Origin::Known(hostnames) if outcome != OrderOutcome::Issued && !running.over => {
                    PlanStep::Close(issuer.clone(), GivenUp { url, hostnames })
                }
                _ => PlanStep::Forget(issuer.clone(), url),
            };
            self.steps.push(step);
        }
        self.steps.push(PlanStep::Observe(Observation::OrderEnded {
            secret: secret.clone(),
            issuer,
            outcome,
            message: message.into(),
        }));
    }

    /// Whether its order has passed its deadline.
    pub(super) fn expired(&self, secret: &ObjectName, now: Now) -> bool {
        let entry = self.entries.get(secret);
        let running = entry.and_then(|entry| entry.running.as_ref());
        // A chain that has arrived only has to be stored, so its order does not expire.
        running.is_some_and(|running| running.chain.is_none() && now.steady >= running.deadline)
    }

    /// Gives up an order that has passed its deadline. `why` is the last reason for which it
    /// waited, if that is known.
    pub(super) fn expire(&mut self, secret: &ObjectName, why: Option<&AcmeFailure>, now: Now) {
        let (declared, held_up) = self.entries.get(secret).map_or((false, false), |entry| {
            let declared = entry
                .running
                .as_ref()
                .is_some_and(|running| running.declared);
            (declared, !entry.published.is_empty() && !declared)
        });
        let reason = match why {
            Some(failure) => failure.message.as_str(),
            None if held_up => "not every proxy had its challenge in time",
            None => "the CA had not decided by then",
        };
        let message = format!("the order was not done within an hour: {reason}");
        // A trouble between us and the CA or the proxies is no reason to wait longer each time.
        let kind = if declared && why.is_none() {
            FailureKind::Validation
        } else {
            FailureKind::Unreachable
        };
        self.fail(secret, AcmeFailure::new(kind, message), now);
    }
}
