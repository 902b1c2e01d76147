//! Decides the steps of leader election over a Lease. Times are inputs.
//!
//! At most one replica leads at a time, although the clocks of the replicas may differ, because no two clocks are
//! compared:
//!
//! - A candidate takes the Lease over after it has seen the same version for the whole duration of the Lease, by its
//!   own monotonic clock.
//! - The holder stops leading a shorter time after it *sent* its last successful renewal, by its own monotonic clock.
//!
//! A candidate can see a renewal only after the holder sent it. So the candidate's time begins later than the holder's,
//! and is longer, and the holder stops first, however slow the network is. This assumes that all clocks run at nearly
//! the same speed. It also assumes that nobody deletes the Lease: a process that starts after a deletion has seen no
//! holder, so it does not wait.

use std::time::{Duration, Instant};

/// Durations of the election. The defaults are those of client-go.
#[derive(Debug, Clone, Copy)]
pub struct ElectionTiming {
    /// Time after which a candidate may take over a Lease that is not renewed.
    pub duration: Duration,
    /// How long the holder leads after it sent a renewal that succeeded. It is shorter than `duration`.
    pub deadline: Duration,
    /// Time between two attempts.
    pub retry: Duration,
}

impl Default for ElectionTiming {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A Lease as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The identity of the holder; empty if nobody holds it.
    pub holder: String,
    /// How long it lasts without renewal, as written by its holder.
    pub duration: Duration,
    /// Term of the holder, or of the last one.
    pub term: u64,
    /// The address at which the holder serves proxies.
    pub address: String,
    /// How many times the holder changed.
    pub transitions: i32,
    /// `resourceVersion`.
    pub version: String,
}

/// The content to write into the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLease {
    /// The identity of the holder; empty to release the Lease.
    pub holder: String,
    /// How long it lasts without renewal.
    pub duration: Duration,
    /// The term.
    pub term: u64,
    /// Where the holder serves proxies.
    pub address: String,
    /// How many times the holder changed.
    pub transitions: i32,
    /// Whether the holder is new. Then the time of acquisition is now.
    pub acquired: bool,
}

/// The next step of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionStep {
    /// Do nothing for now.
    Wait,
    /// Create the Lease, because it does not exist.
    Create(DesiredLease),
    /// Write the Lease, provided that it still has this version.
    Replace(String, DesiredLease),
}

impl ElectionStep {
    /// Whether this candidate leads by this step, and did not before.
    #[must_use]
    pub fn acquires(&self) -> bool {
        match self {
            Self::Wait => false,
            Self::Create(wanted) | Self::Replace(_, wanted) => wanted.acquired,
        }
    }
}

/// The role of this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It leads in this term until this time, or longer if it renews the Lease.
    Leading {
        /// The term.
        term: u64,
        /// When it stops, by the local clock.
        until: Instant,
    },
    /// It does not lead.
    Following {
        /// The address at which the leader serves proxies, if it is known.
        leader: Option<String>,
    },
}

impl Role {
    /// Returns the term in which this replica leads at `now`; `None` if it does not lead.
    #[must_use]
    pub fn term(&self, now: Instant) -> Option<u64> {
        match self {
            Self::Leading { term, until } if now < *until => Some(*term),
            _ => None,
        }
    }
}

/// One candidate's view of the Lease.
#[derive(Debug)]
pub struct Elector {
    identity: String,
    address: String,
    timing: ElectionTiming,
    /// The Lease that was read last, and when this version was seen first.
    seen: Option<(LeaseRecord, Instant)>,
    /// Whether the Lease does not exist. The one that was seen before still counts until it would have ended.
    absent: bool,
    leading: Option<(u64, Instant)>,
}

impl Elector {
    /// Returns a candidate that has not seen a Lease yet. The identity has to be unique to the process.
    #[must_use]
    pub fn new(identity: String, address: String, timing: ElectionTiming) -> Self {
        Self {
            identity,
            address,
            timing,
            seen: None,
            absent: true,
            leading: None,
        }
    }

    /// Takes the Lease that was read; `None` if it does not exist.
    pub fn observe(&mut self, record: Option<LeaseRecord>, now: Instant) {
        let Some(record) = record else {
            self.absent = true;
            return;
        };
        self.absent = false;
        let mine = record.holder == self.identity;
        if !self
            .leading
            .is_some_and(|(term, _)| mine && record.term == term)
        {
            self.leading = None;
        }
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.seen = Some((record, now));
        }
    }

    /// Takes the result of a successful write of this candidate: the Lease as it is now, and when the write was sent.
    pub fn written(&mut self, record: LeaseRecord, sent: Instant) {
        self.absent = false;
        self.leading =
            (record.holder == self.identity).then_some((record.term, sent + self.timing.deadline));
        self.seen = Some((record, sent));
    }

    /// Returns the next step. `clock` is the wall clock in milliseconds since 1970, and `floor` is a term that is known
    /// to have been led.
    ///
    /// A new term is above the last one and above `floor`, and at least `clock`. So terms rise even if the Lease was
    /// deleted in between.
    #[must_use]
    pub fn plan(&self, now: Instant, clock: u64, floor: u64) -> ElectionStep {
        let seen = self.seen.as_ref();
        if let Some((term, until)) = self.leading
            && now < until
        {
            let transitions = seen.map_or(0, |(record, _)| record.transitions);
            return self.write(self.hold(term, transitions, false));
        }
        let last = seen.map_or(0, |(record, _)| record.term);
        if let Some((record, since)) = seen {
            let held = !record.holder.is_empty() && record.holder != self.identity;
            // The holder counts from when it sent its last write, and stops after the shorter `deadline`. This candidate
            // counts the longer `duration` from when it first saw that write, which is later. So the two never lead at once,
            // although neither knows the other's clock, as long as both clocks run at about the same rate.
            if held && now < *since + record.duration {
                return ElectionStep::Wait;
            }
        }
        let term = last.max(floor).saturating_add(1).max(clock);
        let transitions = seen.map_or(0, |(record, _)| record.transitions.saturating_add(1));
        self.write(self.hold(term, transitions, true))
    }

    /// Returns the write that gives the Lease up, if this candidate holds it.
    #[must_use]
    pub fn release(&self) -> Option<ElectionStep> {
        let (record, _) = self.seen.as_ref()?;
        if record.holder != self.identity || self.absent {
            return None;
        }
        let wanted = DesiredLease {
            holder: String::new(),
            // client-go writes the same value. It lets other candidates take over without a wait.
            duration: Duration::from_secs(1),
            term: record.term,
            address: String::new(),
            transitions: record.transitions,
            acquired: false,
        };
        Some(ElectionStep::Replace(record.version.clone(), wanted))
    }

    /// Stops leading, whatever the Lease says.
    pub fn resign(&mut self) {
        self.leading = None;
    }

    /// Returns the role of this candidate at `now`.
    #[must_use]
    pub fn role(&self, now: Instant) -> Role {
        if let Some((term, until)) = self.leading
            && now < until
        {
            return Role::Leading { term, until };
        }
        let leader = self.seen.as_ref().and_then(|(record, since)| {
            let held = !record.holder.is_empty()
                && record.holder != self.identity
                && !record.address.is_empty()
                && now < *since + record.duration;
            held.then(|| record.address.clone())
        });
        Role::Following { leader }
    }

    fn hold(&self, term: u64, transitions: i32, acquired: bool) -> DesiredLease {
        DesiredLease {
            holder: self.identity.clone(),
            duration: self.timing.duration,
            term,
            address: self.address.clone(),
            transitions,
            acquired,
        }
    }

    fn write(&self, wanted: DesiredLease) -> ElectionStep {
        match &self.seen {
            Some((record, _)) if !self.absent => {
                ElectionStep::Replace(record.version.clone(), wanted)
            }
            _ => ElectionStep::Create(wanted),
        }
    }
}

#[cfg(test)]
#[path = "elector_tests.rs"]
mod tests;
