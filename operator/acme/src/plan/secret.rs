//! Owns the state of the Secret: what was read from it, and the results of writes.

use std::time::Duration;

use vestibule_model::key::ObjectName;

use super::{After, LIFETIME, Origin, Planner, PrivateKey, Running, Seen, Stage, Task};
use crate::clock::Now;
use crate::effects::{OrderOutcome, StoredSecret, Written};
use crate::leaf::Leaf;
use crate::problem::{AcmeFailure, FailureKind};
use crate::state::RememberedState;

/// An order older than this, in seconds, is not resumed, because CAs let orders expire after seven
/// days.
const ORDER_AGE: u64 = 6 * 86_400;
/// How many times in a row a Secret may change under a write.
const MAX_CONFLICTS: u32 = 5;

impl Planner {
    /// Takes in what was read from the Secret.
    pub(super) fn take_in(
        &mut self,
        secret: &ObjectName,
        read: Option<(StoredSecret, Option<Leaf>)>,
        now: Now,
    ) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        entry.seen = true;
        self.unseen.remove(secret);
        let (record, next_key, mut state) = match read {
            Some((record, leaf)) => {
                let state = if record.ours {
                    RememberedState::read(record.state.as_deref())
                } else {
                    RememberedState::default()
                };
                let seen = Seen {
                    version: record.version,
                    ours: record.ours,
                    leaf,
                };
                (Some(seen), record.next_key, state)
            }
            None => (None, PrivateKey::default(), RememberedState::default()),
        };
        // Deleting a Secret must not make Vestibule ask the CA again, and neither must a write of the failure that
        // conflicted with another one. So the failure in memory stays unless the Secret has a later one.
        let known = entry.state.failure.take();
        let stays = match (&known, &state.failure) {
            (Some(known), Some(stored)) => known.at > stored.at,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if stays {
            state.failure = known;
        } else if known != state.failure {
            entry.failed_since = now.steady;
        }
        let leaf = |record: &Option<Seen>| record.as_ref().and_then(|record| record.leaf.clone());
        if leaf(&entry.record) != leaf(&record) {
            entry.window = None;
            let wait = self.random.below(self.settings.spread);
            // A Secret that changes all the time must not have the CA asked each time.
            entry.ask_window = entry.ask_window.max(now.steady + wait);
        }
        entry.record = record;
        entry.state = state;
        match (&entry.state.order, &mut entry.running) {
            (Some(stored), Some(running)) if stored.url == running.url => running.persisted = true,
            // The Secret may say anything, so an order that is known to be ours stays.
            (_, Some(running)) if running.is_known() => running.persisted = false,
            (Some(stored), running) if !next_key.is_empty() && fresh(stored.since, now.wall) => {
                // The order is an earlier leader's, or ours from before. It goes on for the rest of
                // its time. The age is bounded, because the clock may have been set, and the tenant
                // may have written any time.
                let age = u64::try_from(now.wall.saturating_sub(stored.since)).unwrap_or_default();
                *running = Some(Running {
                    url: stored.url.clone(),
                    origin: Origin::Claimed,
                    account: stored.account.clone(),
                    wanted: stored.wanted.clone(),
                    key: next_key,
                    since: stored.since,
                    persisted: true,
                    declared: false,
                    over: false,
                    looks: 0,
                    finalized: 0,
                    deadline: now.steady + LIFETIME.saturating_sub(Duration::from_secs(age)),
                    conflicts: 0,
                    chain: None,
                });
            }
            (_, running) => *running = None,
        }
        if std::mem::take(&mut entry.counts)
            && let (Some(issuer), Some(at)) = (&entry.issuer, entry.state.ordered_at)
            && let Some(budget) = self.budgets.get_mut(usize::from(entry.state.renewal))
        {
            let age = u64::try_from(now.wall.saturating_sub(at)).unwrap_or_default();
            let age = Duration::from_secs(age);
            budget.remember(issuer, &secret.namespace, age, now.steady);
        }
    }

    /// Handles a Secret that could not be read.
    pub(super) fn unread(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        self.unseen.remove(secret);
        self.pause(secret, failure, now);
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.stale = true;
        }
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
                        // If its challenges are out, the CA has been asked already.
                        self.resume(secret, now);
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
            // The failure stays in memory, and the next write stores it.
            (Err(_), After::Failed) => self.leave(secret),
            (Err(failure), _) => self.pause(secret, failure, now),
        }
    }

    /// Goes on after the Secret was not as expected and has been read again.
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
            // The Secret is somebody else's now, so the order ends.
            _ if !ours => {
                self.end(
                    secret,
                    OrderOutcome::Abandoned,
                    "the Secret is somebody else's",
                );
                self.leave(secret);
            }
            After::Failed => {
                // The order that was read with the Secret is the one that has just failed, so it is not taken up again.
                if let Some(entry) = self.entries.get_mut(secret) {
                    entry.running = None;
                }
                self.write(secret, after);
            }
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
}

fn fresh(since: i64, now: i64) -> bool {
    // The tenant may have written any time, and the lowest number has no absolute value.
    now.saturating_sub(since).unsigned_abs() < ORDER_AGE
}
