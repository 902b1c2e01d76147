//! Owns the routes of one kind that are attached to a listener, and the selection of the most specific one for a name.

use std::cmp::Reverse;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use vestibule_model::hostname::{HostPattern, Hostname, Specificity};

use super::route::Route;
use crate::attached_names::{AttachedNames, EachRoute, Visited};
use crate::owners::HostnameGuard;
use crate::pattern_map::PatternMap;

/// The order among routes that match one name. It is [`vestibule_model::hostname::route_precedence`] as a sort key. The
/// smallest one comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    rank: Reverse<Specificity>,
    created: i64,
    key: Arc<str>,
}

/// A route with the pattern that it matches.
#[derive(Clone)]
struct Row {
    pattern: HostPattern,
    rank: Specificity,
    of: Admitted,
}

/// A route, and whether it shares its names with their owner.
#[derive(Clone)]
struct Admitted {
    route: Arc<Route>,
    shared: bool,
}

impl Admitted {
    fn passes(&self, guard: HostnameGuard<'_>) -> bool {
        self.shared || guard.admits(&self.route.tenant)
    }
}

impl Row {
    fn precedence(&self) -> (Reverse<Specificity>, i64, &str) {
        let route = &self.of.route;
        (Reverse(self.rank), route.created, &route.key)
    }
}

type Indexed = PatternMap<RedBlackTreeMapSync<Precedence, Admitted>>;

/// Most rows for which the routes of a listener are a plain list. Tests use a smaller number, so that few routes cover
/// both forms.
const FEW: usize = if cfg!(test) { 2 } else { 8 };

/// The routes of one listener. There are many listeners, and most have few routes. These are in a list, which is built
/// again with each edit. The others have an index whose versions share structure.
#[derive(Clone)]
pub(crate) struct RouteTable(Rows);

#[derive(Clone)]
enum Rows {
    Few(Arc<[Row]>),
    Many(Arc<Indexed>),
}

impl Default for RouteTable {
    fn default() -> Self {
        Self(Rows::Few(Arc::default()))
    }
}

impl RouteTable {
    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            Rows::Few(rows) => rows.is_empty(),
            Rows::Many(index) => index.is_empty(),
        }
    }

    /// Adds a route for these names.
    pub(crate) fn insert(&mut self, names: &AttachedNames, route: &Arc<Route>) {
        let row = Row {
            pattern: names.pattern.clone(),
            rank: names.rank().specificity(),
            of: Admitted {
                route: Arc::clone(route),
                shared: names.shared,
            },
        };
        match &mut self.0 {
            Rows::Few(rows) if rows.len() < FEW => {
                *rows = rows.iter().cloned().chain([row]).collect();
            }
            Rows::Few(rows) => {
                let mut index = Indexed::new();
                for row in rows.iter().cloned().chain([row]) {
                    insert(&mut index, row);
                }
                self.0 = Rows::Many(Arc::new(index));
            }
            Rows::Many(index) => insert(Arc::make_mut(index), row),
        }
    }

    /// Removes what [`Self::insert`] added.
    pub(crate) fn remove(&mut self, names: &AttachedNames, route: &Route) {
        let (pattern, rank) = (&names.pattern, names.rank().specificity());
        match &mut self.0 {
            Rows::Few(rows) => {
                let stays = |row: &&Row| {
                    row.pattern != *pattern || row.rank != rank || row.of.route.key != route.key
                };
                *rows = rows.iter().filter(stays).cloned().collect();
            }
            Rows::Many(index) => remove(Arc::make_mut(index), pattern, rank, route),
        }
    }

    pub(super) fn select<'a>(
        &'a self,
        name: &'a Hostname,
        guard: HostnameGuard<'_>,
    ) -> Option<&'a Arc<Route>> {
        match &self.0 {
            Rows::Few(rows) => rows
                .iter()
                .filter(|row| row.pattern.matches(name) && row.of.passes(guard))
                .min_by(|a, b| a.precedence().cmp(&b.precedence()))
                .map(|row| &row.of.route),
            Rows::Many(index) => index
                .matching(name)
                .filter_map(|routes| routes.iter().find(|(_, of)| of.passes(guard)))
                .min_by(|a, b| a.0.cmp(b.0))
                .map(|(_, of)| &of.route),
        }
    }

    /// Visits routes with their patterns.
    pub(super) fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
        match &self.0 {
            Rows::Few(rows) => rows
                .iter()
                .filter(|row| visited.includes(&row.pattern))
                .for_each(|row| each(&row.pattern, &row.of.route.account)),
            Rows::Many(index) => index.each(visited, &mut |pattern, routes| {
                routes
                    .values()
                    .for_each(|of| each(pattern, &of.route.account));
            }),
        }
    }

    pub(super) fn are_few(&self) -> bool {
        matches!(self.0, Rows::Few(_))
    }

    /// Whether a route is attached for exactly this pattern.
    pub(super) fn has(&self, pattern: &HostPattern) -> bool {
        match &self.0 {
            Rows::Few(rows) => rows.iter().any(|row| row.pattern == *pattern),
            Rows::Many(index) => index.get(pattern).is_some(),
        }
    }

    /// The route that comes before all others. It is for listeners that are selected by port alone.
    pub(super) fn first(&self) -> Option<&Arc<Route>> {
        match &self.0 {
            Rows::Few(rows) => rows
                .iter()
                .min_by(|a, b| a.precedence().cmp(&b.precedence()))
                .map(|row| &row.of.route),
            Rows::Many(index) => {
                let routes = index.get(&HostPattern::Any)?;
                routes.values().next().map(|of| &of.route)
            }
        }
    }
}

fn insert(index: &mut Indexed, row: Row) {
    let mut routes = index
        .get(&row.pattern)
        .cloned()
        .unwrap_or_else(RedBlackTreeMapSync::new_sync);
    routes.insert_mut(precedence(row.rank, &row.of.route), row.of);
    index.insert(row.pattern, routes);
}

fn remove(index: &mut Indexed, pattern: &HostPattern, rank: Specificity, route: &Route) {
    let Some(mut routes) = index.get(pattern).cloned() else {
        return;
    };
    routes.remove_mut(&precedence(rank, route));
    if routes.is_empty() {
        index.remove(pattern);
    } else {
        index.insert(pattern.clone(), routes);
    }
}

fn precedence(rank: Specificity, route: &Route) -> Precedence {
    Precedence {
        rank: Reverse(rank),
        created: route.created,
        key: Arc::clone(&route.key),
    }
}
