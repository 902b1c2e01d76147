//! What a certificate needs: nothing, a time to pass, a question, or its turn.

use std::time::Duration;

use vestibule_model::challenge::{ChallengeType, Reach};
use vestibule_model::hostname::Hostname;
use vestibule_model::key::ObjectName;
use vestibule_model::object::AcmeIssuer;

use super::super::clock::Now;
use super::super::effects::{ChallengeAck, StoredSecret};
use super::super::leaf::Leaf;
use super::super::problem::AcmeFailure;
use super::super::renewal;
use super::super::state::{RememberedState, Wanted, hex};
use super::run::LIFETIME;
use super::{Entry, LONGEST_REST, Lane, Phase, PlanStep, Planner, Running, Seen, Task};

/// After this long an order is not gone on with: CAs let them expire after seven days.
const ORDER_AGE: i64 = 6 * 86_400;
/// Most questions for renewal windows at a time.
const MAX_ASKING: usize = 4;

/// What a certificate needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing before this time, unless something changes.
    Wait(Option<Duration>),
    /// Its turn.
    Turn(Lane),
}

/// What keeps a certificate from being ordered now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blocker {
    /// The Secret is somebody's.
    NotOurs,
    /// No such issuer.
    NoIssuer,
    /// The issuer is another release's.
    ForeignIssuer,
    /// The issuer is of no use (yet).
    IssuerNotReady,
    /// No way to check this name: none of the ways has a listener.
    NoListener(Hostname),
    /// Or somebody else is there.
    Others(Hostname),
    /// A failure is waited out.
    Backoff,
}

/// What is known of a certificate, and what it needs.
#[derive(Debug)]
pub(super) struct Assessment {
    /// The certificate that is there is from the issuer and for the names.
    pub(super) current: bool,
    /// When that one is renewed, on our clock.
    pub(super) renew_at: Option<i64>,
    pub(super) blocker: Option<Blocker>,
    pub(super) need: Need,
}

impl Planner {
    /// Looks at a certificate.
    pub(super) fn tend(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        match entry.phase {
            Phase::Active(_) => {
                if entry.ticket.is_none() {
                    self.progress(secret);
                }
            }
            // Who waits for the same as before keeps his place.
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
            // What hinders it may last: nobody else waits for the names meanwhile.
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
                // Clocks have no less than milliseconds.
                self.wake_at(secret, until.max(now.steady + Duration::from_millis(1)));
            }
        }
    }

    /// An order that is for something else by now is given up.
    fn give_up_misfit(&mut self, secret: &ObjectName) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let Some(running) = &entry.running else {
            return;
        };
        let fits = self
            .wanted(entry)
            .is_some_and(|wanted| wanted.all == running.wanted);
        let account = self.account_of(entry).map(|account| account.url.as_str());
        if fits && account.is_none_or(|url| url == running.account) {
            return;
        }
        let maker = self.issuers.of_account(&running.account).cloned();
        self.leave(secret);
        if let Some(entry) = self.entries.get_mut(secret)
            && let Some(running) = entry.running.take()
        {
            entry.state.order = None;
            let next = entry.issuer.clone();
            let before = match &maker {
                // The next order is of the same account.
                Some(maker) if Some(maker) == next.as_ref() => {
                    entry.given_up.replace(running.url.clone())
                }
                Some(_) => Some(running.url.clone()),
                None => None,
            };
            if let (Some(maker), Some(url)) = (&maker, before) {
                self.steps.push(PlanStep::Close(maker.clone(), url));
            }
            if let Some(issuer) = maker.or(next) {
                self.abandoned(secret, issuer, running.url);
            }
        }
    }

    /// The request or its issuer changed.
    pub(super) fn reconsider(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        self.dirty.insert(secret.clone());
        let wanted = self.wanted(entry);
        let fits = |digest: &String| wanted.as_ref().is_some_and(|w| w.all == *digest);
        if entry
            .ordering
            .as_ref()
            .is_some_and(|(digest, _)| !fits(digest))
        {
            // An order that is being made for something else: it is not waited for.
            self.leave(secret);
            if let Some(entry) = self.entries.get_mut(secret) {
                entry.ordering = None;
            }
            return;
        }
        let off = entry.published.keys().any(|key| {
            key.gateway != entry.request.gateway
                || entry.reach(&key.hostname, key.kind) != Reach::Ours
        });
        if off {
            // Where it may not be answered any more, it is not, whatever the CA is about to do.
            self.give_way(secret);
        }
        self.give_up_misfit(secret);
        let _ = now;
    }

    /// Asks the CA when to renew, if it is time.
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

    /// What it is wanted from, if its issuer is there.
    pub(super) fn wanted(&self, entry: &Entry) -> Option<Wanted> {
        let issuer = self.issuers.get(entry.issuer.as_ref()?)?;
        Some(Wanted::new(&issuer.spec, &entry.request.hostnames))
    }

    pub(super) fn account_of(&self, entry: &Entry) -> Option<&super::AccountInfo> {
        let issuer = self.issuers.get(entry.issuer.as_ref()?)?;
        issuer.account.as_ref()
    }

    /// What is known of a certificate, and what it needs.
    pub(super) fn assessment(&self, entry: &Entry, now: Now) -> Assessment {
        let mut assessment = Assessment {
            current: false,
            renew_at: None,
            blocker: None,
            need: Need::Wait(None),
        };
        let blocked = |assessment: Assessment, blocker, until| Assessment {
            blocker: Some(blocker),
            need: Need::Wait(until),
            ..assessment
        };
        if entry.record.as_ref().is_some_and(|record| !record.ours) {
            return blocked(assessment, Blocker::NotOurs, None);
        }
        let Some(issuer) = entry.issuer.as_ref().and_then(|key| self.issuers.get(key)) else {
            return blocked(assessment, Blocker::NoIssuer, None);
        };
        if issuer.foreign {
            return blocked(assessment, Blocker::ForeignIssuer, None);
        }
        let wanted = Wanted::new(&issuer.spec, &entry.request.hostnames);
        let leaf = entry
            .record
            .as_ref()
            .and_then(|record| record.leaf.as_ref());
        let stored = entry.state.issued.as_ref();
        if let (Some(leaf), Some(origin)) = (leaf, stored) {
            assessment.current = origin.by == wanted.by
                && origin.serial == hex(&leaf.serial)
                && leaf.hostnames.is_superset(&entry.request.hostnames);
            let at = renewal::renew_at(leaf, Some(origin.at), entry.window, now.wall);
            assessment.renew_at = assessment.current.then_some(at);
        }
        let runs = entry.running.is_some();
        let lane = match assessment.renew_at {
            _ if runs => Lane::Resume,
            Some(at) if at <= now.wall => Lane::Renew,
            Some(at) => {
                let rest = u64::try_from(at.saturating_sub(now.wall)).unwrap_or_default();
                assessment.need = Need::Wait(Some(now.steady + Duration::from_secs(rest)));
                return assessment;
            }
            None => Lane::New,
        };
        if let Some(blocker) = entry.unreachable(&issuer.spec) {
            return blocked(assessment, blocker, None);
        }
        if let Some(until) = entry.backs_off(&wanted, now) {
            return blocked(assessment, Blocker::Backoff, Some(until));
        }
        // The last one: only who lacks nothing else needs the account.
        if issuer.account.is_none() {
            return blocked(assessment, Blocker::IssuerNotReady, None);
        }
        // Told when they have them.
        if entry.held_up()
            && entry
                .running
                .as_ref()
                .is_some_and(|running| !running.declared)
        {
            return assessment;
        }
        if now.steady < entry.not_before {
            assessment.need = Need::Wait(Some(entry.not_before));
            return assessment;
        }
        assessment.need = Need::Turn(lane);
        assessment
    }

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
        let first = !std::mem::replace(&mut entry.seen, true);
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
            None => (
                None,
                super::PrivateKey::default(),
                RememberedState::default(),
            ),
        };
        // A Secret that was deleted is no way to make the CA be asked again.
        if state.failure.is_none() {
            state.failure = entry.state.failure.take();
        } else if entry.state.failure != state.failure {
            entry.failed_since = now.steady;
        }
        let leaf = |record: &Option<Seen>| record.as_ref().and_then(|record| record.leaf.clone());
        if leaf(&entry.record) != leaf(&record) {
            entry.window = None;
            let wait = self.random.below(self.settings.spread);
            entry.ask_window = now.steady + wait;
        }
        entry.record = record;
        entry.state = state;
        match (&entry.state.order, &mut entry.running) {
            (Some(stored), Some(running)) if stored.url == running.url => running.persisted = true,
            (Some(stored), running) if !next_key.is_empty() && fresh(stored.since, now.wall) => {
                // Another leader's, or our own from before: it goes on, for what is left of its time. The
                // clock may have been put, and the tenant may have written what it likes.
                let age = u64::try_from(now.wall.saturating_sub(stored.since)).unwrap_or_default();
                *running = Some(Running {
                    url: stored.url.clone(),
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
                    conflicts: running.as_ref().map_or(0, |running| running.conflicts),
                    chain: None,
                });
            }
            (_, Some(running)) => running.persisted = false,
            (_, None) => {}
        }
        if first
            && let (Some(issuer), Some(at)) = (&entry.issuer, entry.state.ordered_at)
            && let Some(budget) = self.budgets.get_mut(usize::from(entry.state.renewal))
        {
            let age = u64::try_from(now.wall.saturating_sub(at)).unwrap_or_default();
            let age = Duration::from_secs(age);
            budget.remember(issuer, &secret.namespace, age, now.steady);
        }
    }

    /// The Secret could not be read.
    pub(super) fn unread(&mut self, secret: &ObjectName, failure: AcmeFailure, now: Now) {
        self.unseen.remove(secret);
        self.pause(secret, failure, now);
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.stale = true;
        }
    }
}

fn fresh(since: i64, now: i64) -> bool {
    now.saturating_sub(since).abs() < ORDER_AGE
}

impl Entry {
    pub(super) fn reach(&self, hostname: &Hostname, kind: ChallengeType) -> Reach {
        let place = match kind {
            ChallengeType::TlsAlpn01 => 0,
            ChallengeType::Http01 => 1,
        };
        let reaches = self.request.reach.get(hostname);
        reaches
            .and_then(|reaches| reaches.get(place))
            .copied()
            .unwrap_or(Reach::NoListener)
    }

    /// Whether not every proxy has its challenges.
    pub(super) fn held_up(&self) -> bool {
        let mut acks = self.published.values();
        acks.any(|ack| matches!(ack, ChallengeAck::Waiting { .. }))
    }

    /// The way in which a name is checked: the first of the issuer's that leads to us.
    pub(super) fn kind(&self, issuer: &AcmeIssuer, hostname: &Hostname) -> Option<ChallengeType> {
        let mut kinds = issuer.challenges.iter().copied();
        kinds.find(|kind| self.reach(hostname, *kind) == Reach::Ours)
    }

    fn unreachable(&self, issuer: &AcmeIssuer) -> Option<Blocker> {
        let hostname = self
            .request
            .hostnames
            .iter()
            .find(|hostname| self.kind(issuer, hostname).is_none())?;
        let others = issuer
            .challenges
            .iter()
            .any(|kind| self.reach(hostname, *kind) == Reach::Others);
        Some(if others {
            Blocker::Others(hostname.clone())
        } else {
            Blocker::NoListener(hostname.clone())
        })
    }

    /// Until when a failure is waited out. Two clocks: one that is put back must not make it longer.
    fn backs_off(&self, wanted: &Wanted, now: Now) -> Option<Duration> {
        let failure = self.state.failure.as_ref()?;
        if failure.wanted != wanted.all || self.running.is_some() {
            return None;
        }
        let whole = u64::try_from(failure.retry_at.saturating_sub(failure.at)).unwrap_or_default();
        let by_steady = self.failed_since.saturating_add(Duration::from_secs(whole));
        let by_wall = u64::try_from(failure.retry_at.saturating_sub(now.wall)).unwrap_or_default();
        let until = by_steady.min(now.steady.saturating_add(Duration::from_secs(by_wall)));
        (until > now.steady).then_some(until)
    }
}
