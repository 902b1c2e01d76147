//! Turns: who may go on, who may order, within budgets and slots.

use std::time::Duration;

use vestibule_model::key::ObjectName;

use super::super::clock::Now;
use super::{Entry, Phase, Planner};

/// What somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// To go on with an order that exists: takes no budget, and goes first.
    Resume,
    /// To renew.
    Renew,
    /// To order a certificate for the first time, or another one.
    New,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Resume, Self::Renew, Self::New];

    fn place(self) -> usize {
        match self {
            Self::Resume => 0,
            Self::Renew => 1,
            Self::New => 2,
        }
    }

    /// The budget it takes from.
    fn budget(self) -> Option<usize> {
        match self {
            Self::Resume => None,
            Self::Renew => Some(1),
            Self::New => Some(0),
        }
    }
}

impl Planner {
    pub(super) fn enqueue(&mut self, secret: &ObjectName, lane: Lane) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.phase = Phase::Queued(lane);
            if let Some(queue) = self.queues.get_mut(lane.place()) {
                queue.push(secret.clone());
            }
        }
    }

    pub(super) fn unqueue(&mut self, secret: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(secret)
            && let Phase::Queued(lane) = entry.phase
        {
            entry.phase = Phase::Rest;
            if let Some(queue) = self.queues.get_mut(lane.place()) {
                queue.remove(secret);
            }
        }
    }

    /// Slots that are free for a lane. A quarter, at least one, is kept from new certificates, so that a
    /// renewal finds one; renewals leave one, so that they do not keep everybody else waiting.
    fn free(&self, lane: Lane) -> bool {
        let slots = self.settings.in_flight;
        let active = self.active.len();
        if active >= slots {
            return false;
        }
        match lane {
            Lane::Resume => true,
            Lane::Renew => self.renewing.len() + 1 < slots,
            Lane::New => active - self.renewing.len() < slots - (slots / 4).max(1),
        }
    }

    /// Gives turns.
    pub(super) fn grant(&mut self, now: Now) {
        for lane in Lane::ALL {
            // The Secrets say what was ordered within the last hour: they come first.
            if lane.budget().is_some() && !self.unseen.is_empty() {
                continue;
            }
            while self.free(lane) {
                let Some(secret) = self.next_of(lane, now) else {
                    break;
                };
                self.begin(&secret, lane, now);
                self.touched.insert(secret);
            }
        }
    }

    fn next_of(&mut self, lane: Lane, now: Now) -> Option<ObjectName> {
        let budget = lane.budget().and_then(|place| self.budgets.get(place));
        if budget.is_some_and(|budget| !budget.allows_any(now.steady)) {
            return None;
        }
        let (entries, locks) = (&self.entries, &self.locks);
        let queue = self.queues.get_mut(lane.place())?;
        queue.next(
            |namespace| budget.is_none_or(|budget| budget.allows_namespace(namespace, now.steady)),
            |secret| {
                entries.get(secret).is_some_and(|entry| {
                    let issuer = entry.issuer.as_ref();
                    let within = budget.is_none_or(|budget| {
                        issuer.is_some_and(|issuer| budget.allows_issuer(issuer, now.steady))
                    });
                    within
                        && entry
                            .locks()
                            .all(|lock| locks.get(&lock).is_none_or(|holder| holder == secret))
                })
            },
        )
    }

    /// Takes the slot, the locks and the tokens.
    fn begin(&mut self, secret: &ObjectName, lane: Lane, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        for lock in entry.locks() {
            self.locks.insert(lock, secret.clone());
        }
        self.active.insert(secret.clone());
        let renews = lane == Lane::Renew || (lane == Lane::Resume && entry.state.issued.is_some());
        if renews {
            self.renewing.insert(secret.clone());
        }
        if let Some(issuer) = &entry.issuer
            && let Some(budget) = lane.budget().and_then(|place| self.budgets.get_mut(place))
        {
            budget.take(issuer, &secret.namespace, now.steady);
        }
        match lane {
            Lane::Resume => self.resume(secret, now),
            Lane::Renew | Lane::New => self.order(secret, lane == Lane::Renew, now),
        }
    }

    /// Whether it holds all that it must hold alone.
    pub(super) fn holds_names(&self, secret: &ObjectName) -> bool {
        self.entries.get(secret).is_some_and(|entry| {
            entry
                .locks()
                .all(|lock| self.locks.get(&lock) == Some(secret))
        })
    }

    /// When a budget lets somebody go who waits for it.
    pub(super) fn next_grant(&self, now: Now) -> Option<Duration> {
        if !self.unseen.is_empty() {
            return None;
        }
        let waits = |lane: Lane| {
            let budget = lane.budget().and_then(|place| self.budgets.get(place))?;
            let queue = self.queues.get(lane.place())?;
            if !self.free(lane) {
                return None;
            }
            queue
                .each()
                .filter_map(|secret| {
                    let issuer = self.entries.get(secret)?.issuer.as_ref()?;
                    let wait = budget.wait(issuer, &secret.namespace, now.steady);
                    (wait > Duration::ZERO).then(|| now.steady + wait)
                })
                .min()
        };
        [Lane::Renew, Lane::New].into_iter().filter_map(waits).min()
    }
}

impl Entry {
    /// What an order of it must hold alone: two certificates for one name would get in each other's way,
    /// since a proxy has one TLS-ALPN-01 answer for a name.
    pub(super) fn locks(
        &self,
    ) -> impl Iterator<Item = (ObjectName, vestibule_model::hostname::Hostname)> + '_ {
        let gateway = &self.request.gateway;
        self.request
            .hostnames
            .iter()
            .map(|hostname| (gateway.clone(), hostname.clone()))
    }
}
