//! Counts what each route takes in the proxies. It is bounded for each namespace, and for all of them together.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::route_budget::RouteSize;

use super::route_state::Parents;
use super::{Dirty, Translator};

/// The result of [`Translator::judge_parents`] for a route that nothing refuses.
pub(super) type JudgedParents = (Parents, BTreeSet<Finding>);

/// Most hostnames on listeners that are kept from counting to judging. Beyond it, routes are judged twice.
const KEPT: usize = 1 << 17;

impl Translator {
    /// Counts what the routes that are judged in this pass take, before any of them is made, and marks the routes
    /// that are over a limit by this or come back under it. Returns what is known of the parents of these routes.
    pub(super) fn count_routes(&mut self, dirty: &mut Dirty) -> BTreeMap<ObjectKey, JudgedParents> {
        let (mut known, mut room) = (BTreeMap::new(), KEPT);
        for key in &dirty.routes {
            let (mut created, mut size) = (0, RouteSize::default());
            if let Some(route) = self.route(key)
                && !self.is_refused(route)
            {
                let judged = self.judge_parents(route, None);
                let names;
                let attached = judged.0.values().flatten().flatten();
                (names, size) = self.merge.route_size(route, attached);
                created = route.meta().created;
                if let Some(rest) = room.checked_sub(names) {
                    room = rest;
                    known.insert(key.clone(), judged);
                }
            }
            self.route_budgets.put(key, created, size);
        }
        dirty.routes.extend(self.route_budgets.settle());
        known
    }
}
