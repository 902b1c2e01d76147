//! Who leads: the decisions of leader election over a Lease. Pure; times are inputs.
//!
//! No two clocks are compared. A candidate takes a Lease over once it has seen the same version of it
//! for the whole duration by its own monotonic clock; the holder stops leading a shorter time after it
//! *sent* its last successful renewal. What is seen was sent before, so the holder stops first,
//! whatever the network does.

use std::time::{Duration, Instant};

/// Durations of the election; the defaults are client-go's.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A Lease that nobody renews for so long may be taken over.
    pub duration: Duration,
    /// The holder leads for so long after it sent a renewal that succeeded. Shorter than the duration.
    pub deadline: Duration,
    /// Time between two attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A Lease as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// How long it lasts without renewal, as its holder says.
    pub duration: Duration,
    /// Term of the holder, or of the last one.
    pub term: u64,
    /// Where the holder serves proxies.
    pub address: String,
    /// How often it changed hands.
    pub transitions: i32,
    /// `resourceVersion`.
    pub version: String,
}

/// What to write into the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLease {
    /// Who holds it; empty when it is released.
    pub holder: String,
    /// How long it lasts without renewal.
    pub duration: Duration,
    /// The term.
    pub term: u64,
    /// Where the holder serves proxies.
    pub address: String,
    /// How often it changed hands.
    pub transitions: i32,
    /// Whether the holder is new: then the time of acquisition is now.
    pub acquired: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionStep {
    /// Nothing, for now.
    Wait,
    /// Create the Lease, which is not there.
    Create(DesiredLease),
    /// Write the Lease, provided that it still has this version.
    Replace(String, DesiredLease),
}

/// What this replica is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It leads this term until this time at least, unless it renews.
    Leading {
        /// The term.
        term: u64,
        /// When it stops, by the local clock.
        until: Instant,
    },
    /// It does not lead.
    Following {
        /// Where the leader serves proxies, if there is one that is known.
        leader: Option<String>,
    },
}

impl Role {
    /// The term that is led at `now`.
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
    timing: Timing,
    /// What was read last, and since when it has been so.
    seen: Option<(LeaseRecord, Instant)>,
    /// The Lease is not there (what was seen of it still counts until it would have ended).
    absent: bool,
    leading: Option<(u64, Instant)>,
}

impl Elector {
    /// A candidate that has seen nothing yet. The identity has to be unique to the process.
    #[must_use]
    pub fn new(identity: String, address: String, timing: Timing) -> Self {
        Self {
            identity,
            address,
            timing,
            seen: None,
            absent: true,
            leading: None,
        }
    }

    /// Takes what was read: the Lease, or that there is none.
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

    /// A write of this candidate succeeded: the Lease as it is now, and when the write was sent.
    pub fn written(&mut self, record: LeaseRecord, sent: Instant) {
        self.absent = false;
        self.leading =
            (record.holder == self.identity).then_some((record.term, sent + self.timing.deadline));
        self.seen = Some((record, sent));
    }

    /// What to do. `clock` is the wall clock in milliseconds since 1970 and `floor` a term that is known to
    /// have been led: a new term is above both the last one and that, and not below the clock, so that
    /// it rises even where the Lease was deleted.
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
            if held && now < *since + record.duration {
                return ElectionStep::Wait;
            }
        }
        let term = last.max(floor).saturating_add(1).max(clock);
        let transitions = seen.map_or(0, |(record, _)| record.transitions.saturating_add(1));
        self.write(self.hold(term, transitions, true))
    }

    /// How to give the Lease up, if this candidate holds it.
    #[must_use]
    pub fn release(&self) -> Option<ElectionStep> {
        let (record, _) = self.seen.as_ref()?;
        if record.holder != self.identity || self.absent {
            return None;
        }
        let wanted = DesiredLease {
            holder: String::new(),
            // What client-go writes: nobody waits for it.
            duration: Duration::from_secs(1),
            term: record.term,
            address: String::new(),
            transitions: record.transitions,
            acquired: false,
        };
        Some(ElectionStep::Replace(record.version.clone(), wanted))
    }

    /// Leads no more, whatever the Lease says.
    pub fn resign(&mut self) {
        self.leading = None;
    }

    /// What this candidate is at `now`.
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
