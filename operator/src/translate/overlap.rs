//! Checks TLS listeners again for overlaps (GEP-3567) after another listener came or went.
//!
//! A listener for a wide hostname overlaps with all the listeners for names inside it, and these may be thousands.
//! Only statuses depend on the overlaps, and nothing that the proxies get. So each pass checks only a few
//! listeners, and one edit does not make the edits of others slow.

use std::collections::{BTreeMap, VecDeque};

use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, PortKey};
use vestibule_model::merge::Merge;
use vestibule_model::port::Neighbour;

/// The names on a port for which a TLS listener came or went.
type OverlapKey = (PortKey, HostPattern);

/// The entries whose neighbours have not all been checked yet.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    /// The entries take turns, so that somebody who changes one again and again does not hold up the others.
    queue: VecDeque<OverlapKey>,
    looks: BTreeMap<OverlapKey, Look>,
}

/// How far the check of one entry is.
#[derive(Debug, Default)]
struct Look {
    /// The last neighbour that was checked.
    last: Option<Neighbour>,
    /// Whether something changed since the check began, so that the entry has to be checked once more.
    again: bool,
}

impl Overlaps {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Records that a TLS listener for these names came or went.
    pub(super) fn mark(&mut self, place: OverlapKey) {
        if let Some(look) = self.looks.get_mut(&place) {
            // A check that has not begun will see this change. One that has begun may be past it.
            look.again |= look.last.is_some();
            return;
        }
        self.looks.insert(place.clone(), Look::default());
        self.queue.push_back(place);
    }

    /// The next listeners to check, at most `most` of them.
    pub(super) fn next(&mut self, merge: &Merge, most: usize) -> Vec<ListenerKey> {
        let mut listeners = Vec::new();
        // An entry without neighbours counts too, because it takes time as well.
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
