//! Assesses a certificate when something changed or is due. Then it waits, asks for a renewal window, or joins the queue.

use std::time::Duration;

use vestibule_model::key::ObjectName;

use super::need::{Assessment, Blocker, Need};
use super::{LONGEST_REST, Phase, Planner, Task};
use crate::clock::Now;

/// Largest number of requests for renewal windows at a time.
const MAX_ASKING: usize = 4;

impl Planner {
    /// Looks at a certificate that changed or is due.
    pub(super) fn tend(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        match entry.phase {
            Phase::Active(_) => {
                if entry.ticket.is_none() {
                    // Its tasks run on. If none runs, the change ended its turn.
                    self.leave(secret);
                }
            }
            // A certificate that waits for the same as before keeps its place in the queue.
            Phase::Queued(lane)
                if !entry.stale
                    && entry.running.is_none()
                    && self.assessment(entry, now).need == Need::Turn(lane) => {}
            Phase::Queued(_) => {
                self.unqueue(secret);
                self.assess(secret, now);
            }
            Phase::Rest => self.assess(secret, now),
        }
    }

    fn assess(&mut self, secret: &ObjectName, now: Now) {
        self.give_up_misfit(secret);
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        if entry.ticket.is_some() {
            return;
        }
        if entry.stale {
            if now.steady < entry.not_before {
                let at = entry.not_before;
                self.wake_at(secret, at);
                return;
            }
            entry.stale = false;
            self.start(secret, Task::Read);
            return;
        }
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let assessment = self.assessment(entry, now);
        if assessment.blocker.is_some() && !entry.published.is_empty() {
            // The blocker may last, so other certificates must not wait for these names meanwhile.
            self.give_way(secret);
            return;
        }
        if assessment.blocker == Some(Blocker::IssuerNotReady)
            && let Some(issuer) = entry.issuer.clone()
        {
            self.issuer_needed(&issuer, now);
        }
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        match assessment.need {
            Need::Turn(lane) => self.enqueue(secret, lane),
            Need::Wait(until) => {
                let longest = now.steady + LONGEST_REST;
                let until = until.map_or(longest, |until| until.min(longest));
                if entry.running.is_none() && self.ask_window(secret, &assessment, now) {
                    return;
                }
                // The timer has a resolution of one millisecond.
                self.wake_at(secret, until.max(now.steady + Duration::from_millis(1)));
            }
        }
    }

    /// Asks the CA when to renew, if that is due. Returns whether it has taken care of the next
    /// wake-up.
    fn ask_window(&mut self, secret: &ObjectName, assessment: &Assessment, now: Now) -> bool {
        let Some(entry) = self.entries.get(secret) else {
            return false;
        };
        let asks = assessment.current
            && assessment.renew_at.is_some_and(|at| at > now.wall)
            && self
                .account_of(entry)
                .is_some_and(|account| account.renewal_info);
        if !asks {
            return false;
        }
        let leaf = entry.record.as_ref().and_then(|record| record.leaf.clone());
        let (Some(leaf), Some(issuer)) = (leaf, entry.issuer.clone()) else {
            return false;
        };
        if now.steady < entry.ask_window {
            let at = entry.ask_window.min(now.steady + LONGEST_REST);
            let renew = assessment
                .renew_at
                .map_or(0, |at| at.saturating_sub(now.wall));
            let renew = now.steady + Duration::from_secs(u64::try_from(renew).unwrap_or_default());
            self.wake_at(
                secret,
                at.min(renew).max(now.steady + Duration::from_millis(1)),
            );
            return true;
        }
        if self.asking >= MAX_ASKING {
            let wait = self.random.around(Duration::from_secs(2));
            self.wake_at(secret, now.steady + wait);
            return true;
        }
        self.asking += 1;
        self.start(secret, Task::Window { issuer, leaf });
        true
    }
}
