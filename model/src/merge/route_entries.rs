//! How many entries a route has in the tables of the proxies, where it is attached.

use std::collections::BTreeSet;

use super::Merge;
use crate::attach::Attached;
use crate::route::Route;
use crate::route_budget::{entries_of_content, entries_per_name};

impl Merge {
    /// How many hostnames a route has on listeners if it is attached like this, and how many entries. Names and
    /// listeners whose claims are not recorded yet count as well, so that a route in service does not lose its place
    /// when they are.
    #[must_use]
    pub fn route_entries<'a>(
        &self,
        route: Route<'_>,
        attached: impl Iterator<Item = &'a Attached>,
    ) -> (usize, u64) {
        let mut names = BTreeSet::new();
        for attached in attached {
            let of = attached.hostnames.iter();
            names.extend(of.map(|name| (&attached.listener, &name.matches, &name.rank)));
        }
        let (key, each) = (route.key(), entries_per_name(route));
        let entries = names.iter().map(|(listener, matches, _)| {
            // A route to which a grant gives only some paths of a hostname is in the table once for each of them.
            let paths = self.shared_paths(&key, listener, matches).len();
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
