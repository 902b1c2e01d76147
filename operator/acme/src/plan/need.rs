//! Decides from the known state whether a certificate has to wait or needs a turn. Nothing here changes any state.

use std::time::Duration;

use vestibule_model::challenge::{ChallengeType, Reach};
use vestibule_model::hostname::Hostname;
use vestibule_model::object::AcmeIssuer;

use super::lane::Lane;
use super::{AccountInfo, Entry, Planner};
use crate::clock::Now;
use crate::effects::ChallengeAck;
use crate::renewal;
use crate::state::{Wanted, hex};

/// The work that a certificate needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It needs nothing before this time, unless something changes.
    Wait(Option<Duration>),
    /// It needs its turn.
    Turn(Lane),
}

/// The obstacle that keeps a certificate from being ordered at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blocker {
    /// The Secret is not Vestibule's.
    NotOurs,
    /// The issuer does not exist.
    NoIssuer,
    /// The issuer belongs to another release.
    ForeignIssuer,
    /// The issuer cannot be used, or not yet.
    IssuerNotReady,
    /// The CA cannot check this name, because no challenge type has a listener.
    NoListener(Hostname),
    /// The CA cannot check this name, because another namespace serves it there.
    Others(Hostname),
    /// A failure is being waited out.
    Backoff,
}

/// The facts about a certificate, and the work that it needs.
#[derive(Debug)]
pub(super) struct Assessment {
    /// Whether the stored certificate is from the issuer and for the names.
    pub(super) current: bool,
    /// When the stored certificate is renewed, in seconds by our clock.
    pub(super) renew_at: Option<i64>,
    pub(super) blocker: Option<Blocker>,
    pub(super) need: Need,
}

impl Planner {
    /// Digests of the issuer and the names for which the certificate is wanted, if the issuer exists.
    pub(super) fn wanted(&self, entry: &Entry) -> Option<Wanted> {
        let issuer = self.issuers.get(entry.issuer.as_ref()?)?;
        Some(Wanted::new(&issuer.spec, &entry.request.hostnames))
    }

    pub(super) fn account_of(&self, entry: &Entry) -> Option<&AccountInfo> {
        let issuer = self.issuers.get(entry.issuer.as_ref()?)?;
        issuer.account.as_ref()
    }

    /// Assesses what is known of a certificate, and what it needs.
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
        // This check comes last, because an account is registered only for a certificate that lacks
        // nothing else.
        if issuer.account.is_none() {
            return blocked(assessment, Blocker::IssuerNotReady, None);
        }
        // An acknowledgement wakes it when all proxies have the challenges. If none comes, its turn after the deadline
        // gives the order up.
        if entry.held_up()
            && let Some(running) = &entry.running
            && !running.declared
            && now.steady < running.deadline
        {
            assessment.need = Need::Wait(Some(running.deadline));
            return assessment;
        }
        if now.steady < entry.not_before {
            assessment.need = Need::Wait(Some(entry.not_before));
            return assessment;
        }
        assessment.need = Need::Turn(lane);
        assessment
    }
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

    /// Whether some proxy does not have its challenges yet.
    pub(super) fn held_up(&self) -> bool {
        let mut acks = self.published.values();
        acks.any(|ack| matches!(ack, ChallengeAck::Waiting { .. }))
    }

    /// How a name is checked: the issuer's first challenge type that reaches us.
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

    /// Until when a failure is waited out. It uses the earlier of two clocks, so that setting the
    /// wall clock back does not prolong the wait.
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
