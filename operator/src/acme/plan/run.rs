//! An order, from the first request to the certificate in the Secret.

use std::collections::BTreeMap;
use std::time::Duration;

use vestibule_backoff::Backoff;
use vestibule_model::challenge::{ChallengeKey, ChallengeType, Reach};
use vestibule_model::key::{ObjectKey, ObjectName};

use super::super::backoff;
use super::super::client::{Status, View};
use super::super::clock::Now;
use super::super::effects::ChallengeAck;
use super::super::leaf::Leaf;
use super::super::problem::{AcmeFailure, FailureKind};
use super::super::renewal;
use super::{After, Done, Phase, PlanStep, Planner, Publish, Running, Stage, Task, Ticket};

/// An order that is not done this long after it was made is given up.
pub(super) const LIFETIME: Duration = Duration::from_hours(1);
/// Most times that the certificate of an order is asked for.
const FINALIZED: u32 = 5;
/// So many times an order is asked about by `LOOKS`, and then each `SELDOM`.
const OFTEN: u32 = 30;
const LOOKS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
const SELDOM: Duration = Duration::from_mins(1);

impl Planner {
    pub(super) fn running(&mut self, secret: &ObjectName) -> Option<&mut Running> {
        self.entries.get_mut(secret)?.running.as_mut()
    }

    pub(super) fn stage(&mut self, secret: &ObjectName, stage: Stage) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.phase = Phase::Active(stage);
        }
    }

    /// Makes an order.
    pub(super) fn order(&mut self, secret: &ObjectName, renewal: bool, now: Now) {
        let given_up = self.entries.get_mut(secret);
        let given_up = given_up.and_then(|entry| entry.given_up.take());
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let (Some(key), Some(wanted)) = (entry.issuer.clone(), self.wanted(entry)) else {
            self.leave(secret);
            return;
        };
        let account = self.account_of(entry).map(|account| account.url.clone());
        let issued = entry.state.issued.as_ref();
        // What another account had issued is not ours to replace.
        let ours = issued.is_some_and(|issued| Some(&issued.account) == account.as_ref());
        let replaces = entry.record.as_ref().and_then(|record| record.leaf.clone());
        let task = Task::Order {
            hostnames: entry.request.hostnames.clone(),
            profile: self
                .issuers
                .get(&key)
                .and_then(|issuer| issuer.spec.profile.clone()),
            replaces: replaces.filter(|_| ours && renewal),
            given_up,
            issuer: key,
        };
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.ordering = Some((wanted.all, renewal));
            entry.state.ordered_at = Some(now.wall);
            entry.state.renewal = renewal;
        }
        self.stage(secret, Stage::Order);
        self.start(secret, task);
    }

    /// Goes on with an order, from where it is.
    pub(super) fn resume(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let Some(running) = &entry.running else {
            self.leave(secret);
            return;
        };
        let published = !entry.published.is_empty() && !running.declared;
        if running.chain.is_some() {
            self.write(secret, After::Issued);
        } else if !running.persisted {
            self.write(secret, After::Ordered);
        } else if published && entry.trouble.is_none() && now.steady < running.deadline {
            self.declare(secret, now);
        } else {
            self.look(secret);
        }
    }

    pub(super) fn look(&mut self, secret: &ObjectName) {
        let Some((issuer, url)) = self.order_of(secret) else {
            self.leave(secret);
            return;
        };
        self.stage(secret, Stage::Look);
        self.start(secret, Task::Look { issuer, url });
    }

    pub(super) fn order_of(&self, secret: &ObjectName) -> Option<(ObjectKey, String)> {
        let entry = self.entries.get(secret)?;
        Some((entry.issuer.clone()?, entry.running.as_ref()?.url.clone()))
    }

    /// What a certificate does whose turn it is and of which no task runs.
    pub(super) fn progress(&mut self, secret: &ObjectName) {
        // Their tasks run; one that does not was ended by what changed.
        self.leave(secret);
    }

    /// Tells the CA, if every proxy has the challenges.
    fn declare(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let refused = entry.published.values().find_map(|ack| match ack {
            ChallengeAck::Refused(why) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = refused {
            self.withdraw(secret);
            let message = format!("the challenge cannot be answered: {why}");
            self.pause(secret, AcmeFailure::unreachable(message), now);
            return;
        }
        if entry.held_up() {
            self.rest(secret);
            return;
        }
        let names = entry
            .published
            .keys()
            .map(|key| (key.hostname.clone(), key.kind))
            .collect();
        let gateway = entry.request.gateway.clone();
        let Some((issuer, url)) = self.order_of(secret) else {
            self.leave(secret);
            return;
        };
        let task = Task::Declare {
            issuer,
            url,
            gateway,
            names,
        };
        self.stage(secret, Stage::Declare);
        self.start(secret, task);
    }

    /// Gives up the turn, but neither the order nor its challenges. Only challenges keep others from the
    /// names: how long it rests nobody knows.
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

    /// Gives up the turn, the challenges and the names; the order goes on from there when it may.
    pub(super) fn give_way(&mut self, secret: &ObjectName) {
        self.leave(secret);
        if let Some(running) = self.running(secret) {
            // What is withdrawn is published and declared again.
            running.declared = false;
        }
    }

    /// Something cannot be reached: the same is tried again soon.
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

    /// What a task brought.
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

    /// Something could be reached.
    pub(super) fn reached(&mut self, secret: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.unreached = 0;
            entry.trouble = None;
        }
    }

    pub(super) fn ordered(
        &mut self,
        secret: &ObjectName,
        result: Result<(String, super::PrivateKey), AcmeFailure>,
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

    pub(super) fn looked(&mut self, secret: &ObjectName, view: View, now: Now) {
        self.reached(secret);
        let declared = self.running(secret).is_some_and(|running| running.declared);
        let waits = !matches!(view.status, Status::Valid | Status::Invalid);
        if waits && self.expired(secret, now) {
            self.expire(secret, None, now);
            return;
        }
        match view.status {
            // Its Gateway changed since it has its turn: it takes one there.
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
                    // Of several names one failed, and the others are still waited for.
                    running.over = entry.request.hostnames.len() == 1;
                }
                let unknown =
                    || AcmeFailure::new(FailureKind::Validation, "the CA gave the order up");
                self.fail(secret, view.problem.unwrap_or_else(unknown), now);
            }
        }
    }

    pub(super) fn publish(&mut self, secret: &ObjectName, view: &View, now: Now) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let issuer = entry.issuer.as_ref().and_then(|key| self.issuers.get(key));
        let Some((issuer, account)) = issuer.and_then(|i| Some((i, i.account.as_ref()?))) else {
            self.rest(secret);
            return;
        };
        let mut keys = Vec::new();
        for name in view.names.iter().filter(|name| !name.valid) {
            let reachable = |kind: ChallengeType| entry.reach(&name.hostname, kind) == Reach::Ours;
            let ways = issuer
                .spec
                .challenges
                .iter()
                .filter(|kind| reachable(**kind));
            let offer = ways
                .clone()
                .find_map(|kind| name.offers.iter().find(|(offered, _)| offered == kind));
            let Some((kind, token)) = offer else {
                // Reach is lost, which is for assessment to say, or the CA wants another way.
                if ways.count() == 0 {
                    self.leave(secret);
                    self.dirty.insert(secret.clone());
                } else {
                    let message = format!(
                        "the CA offers no way to check {} that the issuer allows",
                        name.hostname
                    );
                    self.fail(
                        secret,
                        AcmeFailure::new(FailureKind::Rejected, message),
                        now,
                    );
                }
                return;
            };
            let key = ChallengeKey {
                gateway: entry.request.gateway.clone(),
                kind: *kind,
                hostname: name.hostname.clone(),
                token: match kind {
                    ChallengeType::TlsAlpn01 => "".into(),
                    ChallengeType::Http01 => token.as_str().into(),
                },
            };
            keys.push((key, format!("{token}.{}", account.thumbprint)));
        }
        if keys.is_empty() {
            // Nothing left to check: the CA is about to notice.
            self.poll(secret, view.retry_after, now);
            return;
        }
        // What was out for another way of checking a name is not declared with the rest.
        let needed = |key: &ChallengeKey| keys.iter().any(|(needed, _)| needed == key);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut entry.published)
            .into_iter()
            .partition(|(key, _)| needed(key));
        entry.published = kept;
        self.steps.extend(gone.into_keys().map(PlanStep::Withdraw));
        for (key, key_authorization) in keys {
            // What is out already stays as far as it is.
            if !entry.published.contains_key(&key) {
                let waiting = ChallengeAck::Waiting { acked: 0, of: 0 };
                entry.published.insert(key.clone(), waiting);
                let publish = Publish {
                    tenant: secret.namespace.clone(),
                    key_authorization,
                };
                self.steps.push(PlanStep::Publish(key, publish));
            }
        }
        // It goes on when the proxies have them, and takes up no slot until then.
        self.rest(secret);
    }

    /// Whether its order has had its time.
    pub(super) fn expired(&self, secret: &ObjectName, now: Now) -> bool {
        let entry = self.entries.get(secret);
        let running = entry.and_then(|entry| entry.running.as_ref());
        // What is there already is only to be stored.
        running.is_some_and(|running| running.chain.is_none() && now.steady >= running.deadline)
    }

    /// Gives up an order that has had its time; why it waited last, if that is known.
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
        // What kept it from the CA, or the CA from us, is no reason to wait longer each time.
        let kind = if declared && why.is_none() {
            FailureKind::Validation
        } else {
            FailureKind::Unreachable
        };
        self.fail(secret, AcmeFailure::new(kind, message), now);
    }

    /// Asks again, a little later each time, and takes up no slot until then.
    pub(super) fn poll(&mut self, secret: &ObjectName, said: Option<Duration>, now: Now) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let Some(running) = &mut entry.running else {
            self.leave(secret);
            return;
        };
        let wait = match running.looks {
            looks @ ..OFTEN => LOOKS.delay(looks),
            _ => SELDOM,
        };
        running.looks = running.looks.saturating_add(1);
        let said = said.unwrap_or_default().min(Duration::from_mins(1));
        let wait = self.random.around(wait).max(said);
        entry.not_before = now.steady + wait;
        self.rest(secret);
    }

    fn finalize(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let (Some(issuer), Some(running)) = (entry.issuer.clone(), &entry.running) else {
            self.leave(secret);
            return;
        };
        if running.finalized >= FINALIZED {
            let failure = AcmeFailure::new(FailureKind::Other, "the CA does not finish the order");
            self.fail(secret, failure, now);
            return;
        }
        let task = Task::Finalize {
            issuer,
            url: running.url.clone(),
            hostnames: entry.request.hostnames.clone(),
            key: running.key.clone(),
        };
        if let Some(running) = self.running(secret) {
            running.finalized += 1;
            running.looks = 0;
        }
        self.stage(secret, Stage::Finalize);
        self.start(secret, task);
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
