//! How ListenerSets stand towards the grants: which of their listeners are refused, which may have no
//! certificate, and the counts that limits are about.
//!
//! Counted is, per namespace and Gateway, what is granted, whether or not it conflicts: so that the end of
//! a conflict takes nothing from another listener. The first ones in the order of the merge are in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Limits;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::Hostname;
use crate::key::{ListenerKey, ObjectName};
use crate::object::{Listener, ListenerSet};

/// A namespace on a Gateway: what a limit is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) gateway: ObjectName,
    pub(crate) namespace: Arc<str>,
}

/// How one set stands by itself. Listeners are their indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Not owned.
    pub(crate) refused: BTreeMap<usize, Finding>,
    /// Those that count.
    pub(crate) counted: Vec<usize>,
    /// Those that ask an issuer for a certificate, which they may.
    pub(crate) asking: Vec<(usize, Hostname)>,
    /// Those that ask one that they may not.
    pub(crate) unissued: BTreeMap<usize, Finding>,
    /// Why the names that the set's annotations add may not be in its certificates.
    pub(crate) withheld: Option<Finding>,
}

/// Listeners over a limit, and the limit.
type Over = Option<(u32, BTreeSet<usize>)>;

/// What of a set is over the limits of its seat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Excess {
    listeners: Over,
    certificates: Over,
}

/// A set's place in the order of the merge.
type Place = (i64, Arc<str>);

#[derive(Debug, Clone)]
struct Entry {
    set: ObjectName,
    standing: Standing,
    excess: Excess,
}

/// The sets of a seat, and what they come to.
#[derive(Debug, Clone, Default)]
struct Occupants {
    sets: BTreeMap<Place, Entry>,
    listeners: usize,
    certificates: usize,
    /// Some are over a limit.
    exceeding: bool,
}

impl Occupants {
    fn insert(&mut self, place: Place, entry: Entry) {
        self.listeners += entry.standing.counted.len();
        self.certificates += entry.standing.asking.len();
        self.sets.insert(place, entry);
    }

    fn remove(&mut self, place: &Place) {
        if let Some(entry) = self.sets.remove(place) {
            self.listeners -= entry.standing.counted.len();
            self.certificates -= entry.standing.asking.len();
        }
    }
}

/// What became of a set's listeners; those without trouble are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Verdicts {
    /// Not owned, or over the limit on listeners.
    refused: BTreeMap<ListenerKey, Finding>,
    /// May have no certificate from an issuer.
    unissued: BTreeMap<ListenerKey, Finding>,
    /// May not have the names that annotations add in its certificates, whichever listener they are for.
    withheld: Option<Finding>,
}

impl Verdicts {
    /// Listeners of which the two say different things.
    fn differ(&self, other: &Self, into: &mut BTreeSet<ListenerKey>) {
        for (a, b) in [
            (&self.refused, &other.refused),
            (&self.unissued, &other.unissued),
        ] {
            let differs = |(key, finding): &(&ListenerKey, &Finding)| b.get(*key) != Some(*finding);
            into.extend(a.iter().filter(differs).map(|(key, _)| key.clone()));
            let gone = b.keys().filter(|key| !a.contains_key(*key));
            into.extend(gone.cloned());
        }
    }
}

/// How every set stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standings {
    seats: BTreeMap<Seat, Occupants>,
    places: BTreeMap<ObjectName, (Seat, Place)>,
    verdicts: BTreeMap<ObjectName, Verdicts>,
}

impl Standings {
    /// Takes how a set stands by itself (`None`: it takes no part), and returns the seats whose counts
    /// may have changed.
    pub(crate) fn stand(
        &mut self,
        name: &ObjectName,
        now: Option<(&ListenerSet, Seat, Standing)>,
    ) -> BTreeSet<Seat> {
        let mut touched = BTreeSet::new();
        if let Some((seat, place)) = self.places.remove(name) {
            if let Some(occupants) = self.seats.get_mut(&seat) {
                occupants.remove(&place);
                if occupants.sets.is_empty() {
                    self.seats.remove(&seat);
                }
            }
            touched.insert(seat);
        }
        if let Some((set, seat, standing)) = now {
            let place: Place = (set.meta.created, name.to_string().into());
            let entry = Entry {
                set: name.clone(),
                standing,
                excess: Excess::default(),
            };
            let occupants = self.seats.entry(seat.clone()).or_default();
            occupants.insert(place.clone(), entry);
            self.places.insert(name.clone(), (seat.clone(), place));
            touched.insert(seat);
        }
        touched
    }

    /// Counts a seat against its limits, and returns the sets of which other listeners are over them.
    pub(crate) fn recount(&mut self, seat: &Seat, limits: Limits) -> BTreeSet<ObjectName> {
        let mut changed = BTreeSet::new();
        let Some(occupants) = self.seats.get_mut(seat) else {
            return changed;
        };
        let exceeded = |limit: Option<u32>, total: usize| {
            limit.filter(|limit| total > usize::try_from(*limit).unwrap_or(usize::MAX))
        };
        let listeners = exceeded(limits.listeners, occupants.listeners);
        let certificates = exceeded(limits.certificates, occupants.certificates);
        if listeners.is_none() && certificates.is_none() && !occupants.exceeding {
            return changed;
        }
        occupants.exceeding = false;
        let mut left = listeners.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        let mut names: BTreeSet<Hostname> = BTreeSet::new();
        for entry in occupants.sets.values_mut() {
            let standing = &entry.standing;
            let over: BTreeSet<usize> = standing.counted.iter().skip(left).copied().collect();
            left = left.saturating_sub(standing.counted.len());
            let mut without = BTreeSet::new();
            if let Some(limit) = certificates {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                for (index, name) in &standing.asking {
                    if over.contains(index) || names.contains(name) {
                        continue;
                    }
                    if names.len() < limit {
                        names.insert(name.clone());
                    } else {
                        without.insert(*index);
                    }
                }
            }
            let excess = Excess {
                listeners: listeners.filter(|_| !over.is_empty()).map(|l| (l, over)),
                certificates: certificates
                    .filter(|_| !without.is_empty())
                    .map(|l| (l, without)),
            };
            occupants.exceeding |= excess != Excess::default();
            if entry.excess != excess {
                entry.excess = excess;
                changed.insert(entry.set.clone());
            }
        }
        changed
    }

    /// Brings the verdicts of a set's listeners up to date, and returns those of which it is another.
    pub(crate) fn judge(
        &mut self,
        name: &ObjectName,
        set: Option<&ListenerSet>,
    ) -> BTreeSet<ListenerKey> {
        let verdicts = self.verdicts_of(name, set).unwrap_or_default();
        let mut changed = BTreeSet::new();
        let old = self.verdicts.remove(name).unwrap_or_default();
        old.differ(&verdicts, &mut changed);
        if let Some(set) = set.filter(|_| old.withheld != verdicts.withheld) {
            let parent = set.parent_key();
            changed.extend(set.listeners.iter().map(|listener| listener.key(&parent)));
        }
        if verdicts != Verdicts::default() {
            self.verdicts.insert(name.clone(), verdicts);
        }
        changed
    }

    fn verdicts_of(&self, name: &ObjectName, set: Option<&ListenerSet>) -> Option<Verdicts> {
        let set = set?;
        let (at, place) = self.places.get(name)?;
        let Entry {
            standing, excess, ..
        } = self.seats.get(at)?.sets.get(place)?;
        let parent = set.parent_key();
        let listener_at = |index: &usize| set.listeners.get(*index);
        let mut verdicts = Verdicts {
            withheld: standing.withheld.clone(),
            ..Verdicts::default()
        };
        for (index, finding) in &standing.refused {
            if let Some(listener) = listener_at(index) {
                verdicts
                    .refused
                    .insert(listener.key(&parent), finding.clone());
            }
        }
        for (index, finding) in &standing.unissued {
            if let Some(listener) = listener_at(index) {
                verdicts
                    .unissued
                    .insert(listener.key(&parent), finding.clone());
            }
        }
        if let Some((limit, over)) = &excess.listeners {
            for listener in over.iter().filter_map(listener_at) {
                let finding = too_many_listeners(at, *limit, listener);
                verdicts.refused.insert(listener.key(&parent), finding);
            }
        }
        if let Some((limit, over)) = &excess.certificates {
            for listener in over.iter().filter_map(listener_at) {
                let finding = too_many_certificates(at, *limit, listener);
                verdicts.unissued.insert(listener.key(&parent), finding);
            }
        }
        Some(verdicts)
    }

    /// Why a listener is not owned or over the limit.
    pub(crate) fn refusal(&self, set: &ObjectName, listener: &ListenerKey) -> Option<&Finding> {
        self.verdicts.get(set)?.refused.get(listener)
    }

    /// Why a listener may have no certificate from an issuer.
    pub(crate) fn unissued(&self, set: &ObjectName, listener: &ListenerKey) -> Option<&Finding> {
        self.verdicts.get(set)?.unissued.get(listener)
    }

    /// Why the names that a set's annotations add may not be in its certificates.
    pub(crate) fn withheld(&self, set: &ObjectName) -> Option<&Finding> {
        self.verdicts.get(set)?.withheld.as_ref()
    }

    /// How many listeners, and which names with a certificate, a seat has without a set.
    pub(super) fn others(&self, seat: &Seat, but: &ObjectName) -> (usize, BTreeSet<&Hostname>) {
        let entries = self.seats.get(seat).into_iter();
        let entries = entries.flat_map(|occupants| occupants.sets.values());
        let mut listeners = 0;
        let mut names = BTreeSet::new();
        for entry in entries.filter(|entry| entry.set != *but) {
            listeners += entry.standing.counted.len();
            names.extend(entry.standing.asking.iter().map(|(_, name)| name));
        }
        (listeners, names)
    }
}

pub(super) fn too_many_listeners(seat: &Seat, limit: u32, listener: &Listener) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        listener.field.clone(),
        format!(
            "namespace {} may have {limit} listeners on Gateway {}, and has more before this one",
            seat.namespace, seat.gateway
        ),
        "remove listeners, or ask the owner of the Gateway for a larger limit",
    )
}

pub(super) fn too_many_certificates(seat: &Seat, limit: u32, listener: &Listener) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        format!("{}.hostname", listener.field),
        format!(
            "namespace {} may have certificates for {limit} hostnames on Gateway {}, and asks for more before this one, so none is requested",
            seat.namespace, seat.gateway
        ),
        "remove hostnames, bring a certificate of your own, or ask the owner of the Gateway for a larger limit",
    )
}
