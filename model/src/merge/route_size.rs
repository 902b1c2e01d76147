//! How much a route takes in the proxies, where it is attached.

use std::collections::BTreeSet;

use super::Merge;
use crate::attach::Attached;
use crate::namespace_budget::LEAST_BYTES;
use crate::route::Route;
use crate::route_budget::{RouteSize, entries_of_rules, entries_per_name};
use crate::route_bytes;

impl Merge {
    /// How many hostnames a route has on listeners if it is attached like this, and how much it takes. Names and
    /// listeners whose claims are not recorded yet count as well, so that a route in service does not lose its place
    /// when they are.
    #[must_use]
    pub fn route_size<'a>(
        &self,
        route: Route<'_>,
        attached: impl Iterator<Item = &'a Attached>,
    ) -> (usize, RouteSize) {
        let mut names = BTreeSet::new();
        for attached in attached {
            let of = attached.hostnames.iter();
            names.extend(of.map(|name| (&attached.listener, &name.matches, &name.rank)));
        }
        // A route that is attached nowhere is not sent.
        if names.is_empty() {
            return (0, RouteSize::default());
        }
        let (key, each) = (route.key(), entries_per_name(route));
        let mut entries = entries_of_rules(route);
        let mut bytes = route_bytes::of_content(route);
        let mut last = None;
        for (listener, matches, rank) in &names {
            // A route to which a grant gives only some paths of a hostname is in the table once for each of them.
            let paths = self.shared_paths(&key, listener, matches);
            let times = u64::try_from(paths.len()).unwrap_or(u64::MAX);
            entries = entries.saturating_add(each.saturating_mul(times.max(1)));
            bytes += route_bytes::of_hostname(matches, rank, &paths);
            if last.replace(listener) != Some(listener) {
                bytes += route_bytes::of_listener(listener);
            }
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(LEAST_BYTES);
        (names.len(), RouteSize { entries, bytes })
    }
}
