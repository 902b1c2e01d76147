//! The turn of a certificate: it joins a queue, holds a slot and the names of its challenges, and gives them back.

use std::time::Duration;

use vestibule_model::hostname::Hostname;
use vestibule_model::key::{ObjectKey, ObjectName};

use super::lane::Lane;
use super::{Entry, Origin, Phase, PlanStep, Planner, Running, Stage, Task, Ticket};
use crate::backoff;
use crate::clock::Now;
use crate::effects::{Observation, OrderOutcome};
use crate::problem::AcmeFailure;

/// Why an order is given up after a change.
pub(super) const UNWANTED: &str = "it is wanted no longer, or in another form";

impl Planner {
    pub(super) fn enqueue(&mut self, secret: &ObjectName, lane: Lane) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.phase = Phase::Queued(lane);
            self.queue.push(lane, secret.clone());
        }
    }

    pub(super) fn unqueue(&mut self, secret: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(secret)
            && let Phase::Queued(lane) = entry.phase
        {
            entry.phase = Phase::Rest;
            self.queue.remove(lane, secret);
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    /// Starts a task. The result of an earlier task is then ignored.
    pub(super) fn start(&mut self, secret: &ObjectName, task: Task) {
        let ticket = self.ticket();
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.ticket = Some(ticket);
            self.steps
                .push(PlanStep::Task(secret.clone(), ticket, task));
        }
    }

    /// Has a certificate looked at again at this time.
    pub(super) fn wake_at(&mut self, secret: &ObjectName, at: Duration) {
        if let Some(entry) = self.entries.get_mut(secret) {
            if let Some(before) = entry.wake.replace(at) {
                self.timers.remove(&(before, secret.clone()));
            }
            self.timers.insert((at, secret.clone()));
        }
    }

    pub(super) fn running(&mut self, secret: &ObjectName) -> Option<&mut Running> {
        self.entries.get_mut(secret)?.running.as_mut()
    }

    pub(super) fn stage(&mut self, secret: &ObjectName, stage: Stage) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.phase = Phase::Active(stage);
        }
    }

    /// Records that something could be reached.
    pub(super) fn reached(&mut self, secret: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.unreached = 0;
            entry.trouble = None;
        }
    }

    /// Gives up the turn, but keeps the order and its challenges. It may rest for any time, so it keeps the names only
    /// if challenges are published for them.
    pub(super) fn rest(&mut self, secret: &ObjectName) {
        self.active.remove(secret);
        self.renewing.remove(secret);
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        entry.phase = Phase::Rest;
        entry.ticket = None;
        self.dirty.insert(secret.clone());
        if entry.published.is_empty() {
            self.unlock(secret);
        }
    }

    /// Gives up the turn, the challenges and the names. The order goes on from there when it may.
    pub(super) fn give_way(&mut self, secret: &ObjectName) {
        self.leave(secret);
        if let Some(running) = self.running(secret) {
            // Withdrawn challenges have to be published and declared again.
            running.declared = false;
        }
    }

    /// Pauses, because something cannot be reached. The same is tried again soon.
    pub(super) fn pause(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        self.rest(secret);
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        entry.unreached = entry.unreached.saturating_add(1);
        let wait = backoff::of_reach(entry.unreached, failure.retry_after, &mut self.random);
        entry.not_before = now.steady + wait;
        entry.trouble = Some(failure);
        entry.ordering = None;
        if entry.running.is_none() {
            self.leave(secret);
        }
    }

    /// Withdraws the challenges of a certificate, and gives up its turn and its locks.
    pub(super) fn leave(&mut self, secret: &ObjectName) {
        self.unqueue(secret);
        self.active.remove(secret);
        self.renewing.remove(secret);
        self.withdraw(secret);
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.phase = Phase::Rest;
            entry.ticket = None;
            self.dirty.insert(secret.clone());
        }
        self.unlock(secret);
    }

    pub(super) fn withdraw(&mut self, secret: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(secret) {
            for (key, _) in std::mem::take(&mut entry.published) {
                self.steps.push(PlanStep::Withdraw(key));
            }
        }
    }

    fn unlock(&mut self, secret: &ObjectName) {
        let locked: Vec<_> = self
            .locks
            .iter()
            .filter(|(_, holder)| *holder == secret)
            .map(|(lock, _)| lock.clone())
            .collect();
        for lock in locked {
            self.locks.remove(&lock);
        }
    }

    /// Whether it holds all locks that its order needs.
    pub(super) fn holds_names(&self, secret: &ObjectName) -> bool {
        self.entries.get(secret).is_some_and(|entry| {
            entry
                .locks()
                .all(|lock| self.locks.get(&lock) == Some(secret))
        })
    }

    pub(super) fn abandoned(
        &mut self,
        secret: &ObjectName,
        issuer: ObjectKey,
        url: String,
        why: &str,
    ) {
        let outcome = OrderOutcome::Abandoned;
        self.steps.push(PlanStep::Forget(issuer.clone(), url));
        self.steps.push(PlanStep::Observe(Observation::OrderEnded {
            secret: secret.clone(),
            issuer,
            outcome,
            message: why.into(),
        }));
    }
}

impl Running {
    /// Whether it is known to be for the names of the request.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.origin, Origin::Known(_))
    }
}

impl Entry {
    /// Whether the CA may be asked for its order only within the budget of its namespace.
    pub(super) fn claims(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.origin == Origin::Claimed)
    }

    /// The names that an order of it must hold alone. Two certificates for one name would disturb each other, because a
    /// proxy has one TLS-ALPN-01 answer for a name.
    pub(super) fn locks(&self) -> impl Iterator<Item = (ObjectName, Hostname)> + '_ {
        let gateway = &self.request.gateway;
        self.request
            .hostnames
            .iter()
            .map(|hostname| (gateway.clone(), hostname.clone()))
    }
}
