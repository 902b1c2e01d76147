//! Counts the entries that each route has in the tables of the proxies. They are bounded for each namespace.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::route::Route;
use vestibule_model::route_budget::{entries_of_content, entries_per_name};

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
                (names, entries) = self.entries(key, route, &judged.0);
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

    /// How many hostnames a route has on listeners, and how many entries. Names and listeners whose claims are not
    /// recorded yet count as well, so that a route in service does not lose its place when they are.
    fn entries(&self, key: &ObjectKey, route: Route<'_>, parents: &Parents) -> (usize, u64) {
        let mut names = BTreeSet::new();
        for attached in parents.values().flatten().flatten() {
            let of = attached.hostnames.iter();
            names.extend(of.map(|name| (&attached.listener, &name.matches, &name.rank)));
        }
        let each = entries_per_name(route);
        let entries = names.iter().map(|(listener, matches, _)| {
            // A route to which a grant gives only some paths of a hostname is in the table once for each of them.
            let paths = self.merge.shared_paths(key, listener, matches).len();
            let paths = u64::try_from(paths).unwrap_or(u64::MAX);
            each.saturating_mul(paths.max(1))
        });
        let entries = entries.fold(0, u64::saturating_add);
        // A route that is attached nowhere is not sent.
        let content = if entries > 0 {
            entries_of_content(route)
        } else {
            0
        };
        (names.len(), entries.saturating_add(content))
    }
}
