//! Counts the entries that each route has in the tables of the proxies. They are bounded for each namespace.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;

use super::route_state::Parents;
use super::{Dirty, Translator};

/// The result of [`Translator::judge_parents`] for a route that nothing refuses.
pub(super) type JudgedParents = (Parents, BTreeSet<Finding>);

/// Most hostnames on listeners that are kept from counting to judging. Beyond it, routes are judged twice.
const KEPT: usize = 1 << 17;

impl Translator {
    /// Counts the entries of the routes that are judged in this pass, before any of them is made, and marks the routes
    /// that are over the budget by this or come back under it. Returns what is known of the parents of these routes.
    pub(super) fn count_entries(
        &mut self,
        dirty: &mut Dirty,
    ) -> BTreeMap<ObjectKey, JudgedParents> {
        let (mut known, mut room) = (BTreeMap::new(), KEPT);
        for key in &dirty.routes {
            let (mut created, mut entries) = (0, 0);
            if let Some(route) = self.route(key)
                && !self.is_refused(route)
            {
                let judged = self.judge_parents(route, None);
                let names;
                let attached = judged.0.values().flatten().flatten();
                (names, entries) = self.merge.route_entries(route, attached);
                created = route.meta().created;
                if let Some(rest) = room.checked_sub(names) {
                    room = rest;
                    known.insert(key.clone(), judged);
                }
            }
            self.entries.put(key, created, entries);
        }
        dirty.routes.extend(self.entries.settle());
        known
    }
}
