//! Owns what is said of TLS listeners that overlap with others (GEP-3567), where that is others' doing.
//!
//! One listener for a wide hostname overlaps with all the listeners for names inside it, and thousands of them may
//! overlap with one for a name inside. Nothing of what the proxies get depends on it, so it is looked at a few
//! listeners at a time, after whatever else has changed: nobody's edit is dearer for it.

use std::collections::{BTreeMap, VecDeque};

use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, PortKey};
use vestibule_model::merge::Merge;
use vestibule_model::port::Neighbour;

/// Names on a port for which TLS listeners came or went.
type OverlapKey = (PortKey, HostPattern);

/// Where it has not been looked yet.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    /// In turn, so that nobody who changes one again and again keeps the others waiting.
    queue: VecDeque<OverlapKey>,
    looks: BTreeMap<OverlapKey, Look>,
}

/// How far the look at one entry is.
#[derive(Debug, Default)]
struct Look {
    /// The last one that was looked at.
    last: Option<Neighbour>,
    /// It has changed since the look began, so there has to be another one.
    again: bool,
}

impl Overlaps {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Something has changed there.
    pub(super) fn mark(&mut self, place: OverlapKey) {
        if let Some(look) = self.looks.get_mut(&place) {
            look.again |= look.last.is_some();
            return;
        }
        self.looks.insert(place.clone(), Look::default());
        self.queue.push_back(place);
    }

    /// The next ones to look at, not many more than `most`.
    pub(super) fn next(&mut self, merge: &Merge, most: usize) -> Vec<ListenerKey> {
        let mut listeners = Vec::new();
        // Each entry costs something even where there is nobody.
        let mut left = most;
        while left > 0
            && let Some(place) = self.queue.pop_front()
        {
            let Some(look) = self.looks.get_mut(&place) else {
                continue;
            };
            let (at, names) = &place;
            let mut last = None;
            let mut found = 0;
            for neighbour in merge.neighbours(at, names, look.last.as_ref()).take(left) {
                listeners.push(neighbour.listener().clone());
                last = Some(neighbour);
                found += 1;
            }
            if found == left {
                look.last = last;
                self.queue.push_back(place);
            } else if std::mem::take(&mut look.again) {
                look.last = None;
                self.queue.push_back(place);
            } else {
                self.looks.remove(&place);
            }
            left = left.saturating_sub(found + 1);
        }
        listeners
    }
}
