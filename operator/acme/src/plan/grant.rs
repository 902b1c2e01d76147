//! Gives turns to certificates: decides which may go on, and which may order, within budgets and slots.
//!
//! A certificate holds a slot while something is asked or written. It holds none while its order only waits for the CA
//! to decide, for proxies, or for a CA that cannot be reached. So a CA that does not answer holds only the slots of its
//! open requests, which are at most a quarter of all.

use std::time::Duration;

use vestibule_model::key::{ObjectKey, ObjectName};

use super::lane::Lane;
use super::{Entry, Origin, Planner, Running};
use crate::clock::Now;

/// A namespace may have this many times its slots under way. An order is under way from its creation to its end, and
/// most of that time it waits.
const UNDER_WAY: usize = 4;
/// An issuer may serve many namespaces, so it may have this many times the orders under way of one namespace.
const UNDER_WAY_AT_ISSUER: usize = 4;

impl Planner {
    /// Whether there is a slot for a lane. New certificates leave a quarter of the slots free, and at least one.
    /// Renewals leave one free, so that they do not block everything else.
    fn free(&self, lane: Lane) -> bool {
        let slots = self.settings.in_flight;
        let (active, renewing) = (self.active.len(), self.renewing.len());
        if active >= slots {
            return false;
        }
        match lane {
            Lane::Resume => true,
            Lane::Renew => renewing + 1 < slots,
            Lane::New => active - renewing < slots - (slots / 4).max(1),
        }
    }

    /// Whether a namespace may have one more turn.
    fn free_in(&self, lane: Lane, namespace: &str) -> bool {
        let share = self.settings.share();
        self.active.of_namespace(namespace) < lane.most(share)
            && (lane == Lane::Resume
                || self.under_way.of_namespace(namespace) < lane.most(share * UNDER_WAY))
    }

    /// Whether an issuer may have one more turn.
    fn free_at(&self, lane: Lane, issuer: &ObjectKey) -> bool {
        let share = self.settings.share();
        self.active.of_issuer(issuer) < lane.most(share)
            && (lane == Lane::Resume
                || self.under_way.of_issuer(issuer)
                    < lane.most(share * UNDER_WAY * UNDER_WAY_AT_ISSUER))
    }

    /// Updates whether an order of this certificate is under way.
    pub(super) fn recount(&mut self, secret: &ObjectName) {
        let entry = self.entries.get(secret);
        // A Secret can name any number of orders, so only those that are known count.
        let known = |entry: &&Entry| {
            entry.ordering.is_some() || entry.running.as_ref().is_some_and(Running::is_known)
        };
        match entry.filter(known) {
            None => self.under_way.remove(secret),
            Some(entry) if self.under_way.has(secret, entry.issuer.as_ref()) => {}
            Some(entry) => self.under_way.insert(secret, entry.issuer.as_ref()),
        }
    }

    /// Gives turns as long as any can be given.
    pub(super) fn grant(&mut self, now: Now) {
        while let Some((lane, secret)) = self.next_turn(now) {
            self.begin(&secret, lane, now);
            self.recount(&secret);
            self.touched.insert(secret);
        }
    }

    fn next_turn(&mut self, now: Now) -> Option<(Lane, ObjectName)> {
        let mut queue = std::mem::take(&mut self.queue);
        let this = &*self;
        let budget = |lane: Lane| lane.budget().and_then(|place| this.budgets.get(place));
        let open = Lane::ALL.map(|lane| {
            // The Secrets say what was ordered within the last hour, so all of them are read before the first order.
            this.free(lane)
                && (lane == Lane::Resume || this.unseen.is_empty())
                && budget(lane).is_none_or(|budget| budget.allows_any(now.steady))
        });
        let next = queue.next(
            |namespace| this.active.of_namespace(namespace),
            |lane, namespace| {
                open.get(lane.place()).is_some_and(|open| *open)
                    && this.free_in(lane, namespace)
                    && budget(lane)
                        .is_none_or(|budget| budget.allows_namespace(namespace, now.steady))
            },
            |lane, secret| {
                this.entries.get(secret).is_some_and(|entry| {
                    let wait = this.claims.wait(&secret.namespace, now.steady);
                    (!entry.claims() || wait.is_zero())
                        && entry.issuer.as_ref().is_some_and(|issuer| {
                            this.free_at(lane, issuer)
                                && budget(lane)
                                    .is_none_or(|budget| budget.allows_issuer(issuer, now.steady))
                        })
                        && entry
                            .locks()
                            .all(|lock| this.locks.get(&lock).is_none_or(|holder| holder == secret))
                })
            },
        );
        self.queue = queue;
        next
    }

    /// Takes the slot, the locks and the budget's tokens for a certificate, and begins its turn.
    fn begin(&mut self, secret: &ObjectName, lane: Lane, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        for lock in entry.locks() {
            self.locks.insert(lock, secret.clone());
        }
        self.active.insert(secret, entry.issuer.as_ref());
        let renews = lane == Lane::Renew || (lane == Lane::Resume && entry.state.issued.is_some());
        if renews {
            self.renewing.insert(secret.clone());
        }
        if let Some(issuer) = &entry.issuer
            && let Some(budget) = lane.budget().and_then(|place| self.budgets.get_mut(place))
        {
            budget.take(issuer, &secret.namespace, now.steady);
        }
        if entry.claims() {
            self.claims.take(&secret.namespace, now.steady);
            if let Some(running) = self.running(secret) {
                running.origin = Origin::Paid;
            }
        }
        match lane {
            Lane::Resume => self.resume(secret, now),
            Lane::Renew | Lane::New => self.order(secret, lane == Lane::Renew, now),
        }
    }

    /// When a budget next allows an order that is waiting for it.
    pub(super) fn next_grant(&self, now: Now) -> Option<Duration> {
        let claimed = self.free(Lane::Resume).then(|| {
            self.queue
                .each(Lane::Resume)
                .filter(|secret| self.entries.get(secret).is_some_and(Entry::claims))
                .map(|secret| self.claims.wait(&secret.namespace, now.steady))
                .filter(|wait| !wait.is_zero())
                .map(|wait| now.steady + wait)
                .min()
        });
        let claimed = claimed.flatten();
        if !self.unseen.is_empty() {
            return claimed;
        }
        let waits = |lane: Lane| {
            let budget = lane.budget().and_then(|place| self.budgets.get(place))?;
            if !self.free(lane) {
                return None;
            }
            self.queue
                .each(lane)
                .filter_map(|secret| {
                    let issuer = self.entries.get(secret)?.issuer.as_ref()?;
                    let wait = budget.wait(issuer, &secret.namespace, now.steady);
                    (wait > Duration::ZERO).then(|| now.steady + wait)
                })
                .min()
        };
        let ordered = [Lane::Renew, Lane::New].into_iter().filter_map(waits);
        ordered.chain(claimed).min()
    }
}
