//! Takes the result of each task, and decides the next step of its certificate.

use std::time::Duration;

use vestibule_model::key::ObjectName;

use super::{
    After, Done, LIFETIME, Origin, Phase, Planner, PrivateKey, Running, Stage, Task, Ticket,
};
use crate::client::{Status, View, are_of};
use crate::clock::Now;
use crate::leaf::Leaf;
use crate::problem::{AcmeFailure, FailureKind};
use crate::renewal;

impl Planner {
    /// Takes in the result of a task.
    pub(super) fn done(&mut self, secret: &ObjectName, ticket: Ticket, done: Done, now: Now) {
        if matches!(done, Done::Window(_)) {
            self.asking = self.asking.saturating_sub(1);
        }
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        if entry.ticket != Some(ticket) {
            return;
        }
        entry.ticket = None;
        self.dirty.insert(secret.clone());
        match (entry.phase, done) {
            (_, Done::Window(result)) => self.window(secret, result, now),
            (_, Done::Read(Err(failure))) => self.unread(secret, failure, now),
            (phase, Done::Read(Ok(read))) => {
                self.take_in(secret, read, now);
                if let Phase::Active(Stage::Reread(after)) = phase {
                    self.write_again(secret, after, now);
                }
            }
            (Phase::Active(Stage::Write(after)), Done::Wrote(result)) => {
                self.wrote(secret, after, result, now);
            }
            (_, Done::Ordered(result)) => self.ordered(secret, result, now),
            (_, Done::Looked(Ok(view))) => self.looked(secret, view, now),
            (
                _,
                Done::Looked(Err(failure))
                | Done::Declared(Err(failure))
                | Done::Downloaded(Err(failure)),
            ) => self.hitch(secret, failure, now),
            (_, Done::Declared(Ok(()))) => {
                self.reached(secret);
                if let Some(running) = self.running(secret) {
                    running.declared = true;
                    running.looks = 0;
                }
                self.poll(secret, None, now);
            }
            (_, Done::Downloaded(Ok((chain, leaf)))) => self.downloaded(secret, chain, leaf, now),
            (_, Done::Wrote(_)) => self.leave(secret),
        }
    }

    pub(super) fn window(
        &mut self,
        secret: &ObjectName,
        result: Result<(renewal::Window, Option<Duration>), AcmeFailure>,
        now: Now,
    ) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let said = match result {
            Ok((window, said)) => {
                entry.window = Some(window);
                said
            }
            Err(failure) => failure.retry_after,
        };
        entry.ask_window = now.steady + self.random.around(renewal::ask_again(said));
    }

    pub(super) fn ordered(
        &mut self,
        secret: &ObjectName,
        result: Result<(String, PrivateKey), AcmeFailure>,
        now: Now,
    ) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let ordering = entry.ordering.take();
        let (url, key) = match result {
            Ok(made) => made,
            Err(failure) => {
                match failure.kind {
                    FailureKind::Unreachable | FailureKind::NotAllowed => {
                        self.pause(secret, failure, now);
                    }
                    FailureKind::Account => {
                        if let Some(issuer) = entry.issuer.clone() {
                            self.issuer_failed(&issuer, failure.clone(), now);
                        }
                        self.pause(secret, failure, now);
                    }
                    _ => self.fail(secret, failure, now),
                }
                return;
            }
        };
        let issuer = entry.issuer.clone();
        let account = issuer.as_ref().and_then(|key| self.issuers.get(key));
        let account = account.and_then(|issuer| issuer.account.as_ref());
        let Some((wanted, _)) = ordering else {
            self.leave(secret);
            return;
        };
        entry.running = Some(Running {
            url,
            origin: Origin::Known(entry.request.hostnames.clone()),
            account: account
                .map(|account| account.url.clone())
                .unwrap_or_default(),
            wanted,
            key,
            since: now.wall,
            persisted: false,
            declared: false,
            over: false,
            looks: 0,
            finalized: 0,
            deadline: now.steady + LIFETIME,
            conflicts: 0,
            chain: None,
        });
        self.reached(secret);
        if let Some(issuer) = issuer {
            self.issuer_works(&issuer);
        }
        self.write(secret, After::Ordered);
    }

    /// Compares the identifiers of an order with the names of the request. Returns whether it may go on.
    fn compare(&mut self, secret: &ObjectName, view: &View, now: Now) -> bool {
        let Some(entry) = self.entries.get_mut(secret) else {
            return false;
        };
        let hostnames = &entry.request.hostnames;
        let same = view.identifiers.as_ref().map(|of| are_of(of, hostnames));
        let Some(running) = &mut entry.running else {
            self.leave(secret);
            return false;
        };
        match (running.is_known(), same) {
            (true, None | Some(true)) => true,
            (false, Some(true)) => {
                running.origin = Origin::Known(hostnames.clone());
                true
            }
            (false, None | Some(false)) => {
                self.disown(secret);
                false
            }
            (true, Some(false)) => {
                // Nobody knows whose order the CA shows, so it is not closed.
                running.over = true;
                let message = "the CA shows an order for other names than it was asked for";
                self.fail(
                    secret,
                    AcmeFailure::new(FailureKind::Rejected, message),
                    now,
                );
                false
            }
        }
    }

    pub(super) fn looked(&mut self, secret: &ObjectName, view: View, now: Now) {
        self.reached(secret);
        if !self.compare(secret, &view, now) {
            return;
        }
        let declared = self.running(secret).is_some_and(|running| running.declared);
        let waits = !matches!(view.status, Status::Valid | Status::Invalid);
        if waits && self.expired(secret, now) {
            self.expire(secret, None, now);
            return;
        }
        match view.status {
            // Its Gateway changed during its turn, so it needs a turn with the names of the new
            // Gateway.
            Status::Pending if !declared && !self.holds_names(secret) => self.leave(secret),
            Status::Pending if !declared => self.publish(secret, &view, now),
            Status::Pending | Status::Processing => self.poll(secret, view.retry_after, now),
            Status::Ready => {
                self.withdraw(secret);
                self.finalize(secret, now);
            }
            Status::Valid => {
                self.withdraw(secret);
                let key = self.running(secret).map(|running| running.key.clone());
                let (Some((issuer, url)), Some(key)) = (self.order_of(secret), key) else {
                    self.leave(secret);
                    return;
                };
                self.stage(secret, Stage::Download);
                self.start(secret, Task::Download { issuer, url, key });
            }
            Status::Invalid => {
                if let Some(entry) = self.entries.get_mut(secret)
                    && let Some(running) = &mut entry.running
                {
                    // If one of several names failed, the CA still waits for the others.
                    running.over = entry.request.hostnames.len() == 1;
                }
                let unknown =
                    || AcmeFailure::new(FailureKind::Validation, "the CA gave the order up");
                self.fail(secret, view.problem.unwrap_or_else(unknown), now);
            }
        }
    }

    /// Handles a failed request about an order.
    pub(super) fn hitch(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        let finalizing = self.entries.get(secret).map(|entry| entry.phase)
            == Some(Phase::Active(Stage::Finalize));
        if self
            .running(secret)
            .is_some_and(|running| !running.is_known())
        {
            // The message of the CA may be about another team's order, or about something that is no order at all.
            match failure.kind {
                FailureKind::Unreachable | FailureKind::RateLimited | FailureKind::NotAllowed
                    if !self.expired(secret, now) =>
                {
                    self.pause(secret, failure.without_words(), now);
                }
                _ => self.disown(secret),
            }
            return;
        }
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
            // The order was finalized before, for example by an earlier leader.
            FailureKind::OrderGone if finalizing => self.poll(secret, failure.retry_after, now),
            _ => self.fail(secret, failure, now),
        }
    }

    pub(super) fn downloaded(
        &mut self,
        secret: &ObjectName,
        chain: Vec<u8>,
        leaf: Option<Leaf>,
        now: Now,
    ) {
        self.reached(secret);
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let leaf = leaf.filter(|leaf| leaf.hostnames.is_superset(&entry.request.hostnames));
        let Some(leaf) = leaf else {
            let message = "the CA's certificate is not for the key and names that were asked for";
            self.fail(secret, AcmeFailure::new(FailureKind::Other, message), now);
            return;
        };
        if let Some(running) = &mut entry.running {
            running.chain = Some((chain, leaf));
        }
        self.write(secret, After::Issued);
    }
}
