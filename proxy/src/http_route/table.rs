//! The HTTP routes of a listener. The table finds the rule that takes a request.
//!
//! **Order.** The hostname comes first. Of the routes whose hostname matches the host of the request, those with the
//! most specific hostname *as written* are tried first. If none of their matches takes the request, the next ones are
//! tried. Among routes of one hostname, the matches are tried in this order:
//!
//! - exact paths, then regular expressions (longer ones first), then prefixes (longer ones first),
//! - matches with a method before those without, then more header fields, then more query parameters,
//! - older routes, then routes by name, then rules by their place in the route.
//!
//! A gRPC call is offered to GRPCRoutes first, and then to HTTPRoutes with a hostname of the same rank. Among
//! GRPCRoutes, the service counts more than the method, and both count more than the number of header fields. Other
//! requests are offered to HTTPRoutes only.
//!
//! Before all of that come [`parts`]: routes to which a grant gives only some paths of a hostname.
//!
//! **Cost.** Most listeners have few matches, which are in a sorted list. The others have an index by hostname and
//! path, whose versions share structure. The cost of a look-up depends on the configuration and not on what the client
//! sends: a long path is followed only as far as there are configured prefixes. For every configuration,
//! [`View::steps`] bound the cost.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeMapSync, RedBlackTreeSetSync};
use vestibule_model::hostname::{HostPattern, Hostname, Specificity};

use self::parts::{Parts, Reach};
use super::route::{HttpRoute, Match, PathMatch, PathRank, Rule, Value, method_of};
use super::view::View;
use crate::attached_names::{AttachedNames, EachRoute, Visited};
use crate::pattern_map::PatternMap;

/// Most matches for which a list is used. Tests use a smaller number, so that few matches cover both forms.
const FEW: usize = if cfg!(test) { 2 } else { 8 };
/// Steps that one match costs, in addition to the bytes that its regular expressions read and the header fields and query
/// parameters that it looks for.
const STEPS: u32 = 32;

/// The match that took a request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) route: Arc<HttpRoute>,
    place: (u16, u16),
}

impl Found {
    pub(crate) fn rule(&self) -> Option<&Rule> {
        self.route.at(self.place).map(|(rule, _)| rule)
    }

    /// The index of the rule in its route, from 0 on.
    pub(crate) fn rule_index(&self) -> u16 {
        self.place.0
    }

    /// The prefix of the path that matched. It is empty for other kinds of matches.
    pub(crate) fn prefix(&self) -> &str {
        match self.route.at(self.place) {
            Some((
                _,
                Match {
                    path: PathMatch::Prefix(prefix),
                    ..
                },
            )) => prefix,
            _ => "",
        }
    }
}

/// One match of one rule of a route.
#[derive(Clone, Debug)]
struct Entry {
    route: Arc<HttpRoute>,
    place: (u16, u16),
    /// Whether the route shares its names with their owner.
    shared: bool,
}

/// The sort key of entries. The smallest one is tried first. In order: GRPCRoute, path, (method, header fields, query
/// parameters), creation, name, place.
type Order<'a> = (
    Reverse<bool>,
    Reverse<PathRank>,
    Reverse<(bool, usize, usize)>,
    i64,
    &'a str,
    (u16, u16),
);

impl Entry {
    /// The entries of a route. One without matches has an entry too, which takes no request: tunnels that began when it
    /// had some go on, so [`HttpTable::each`] has to visit it.
    fn all(route: &Arc<HttpRoute>, shared: bool) -> impl Iterator<Item = Self> {
        let none = route.places().next().is_none().then_some((0, 0));
        route.places().chain(none).map(move |place| Self {
            route: Arc::clone(route),
            place,
            shared,
        })
    }

    fn of(&self) -> Option<&Match> {
        self.route.at(self.place).map(|(_, of)| of)
    }

    fn order(&self) -> Order<'_> {
        let (path, rest) = self.of().map_or_else(Default::default, |of| {
            let rest = (of.method.is_some(), of.headers.len(), of.query.len());
            (of.path.rank(), rest)
        });
        let route = &*self.route;
        (
            Reverse(self.route.grpc),
            Reverse(path),
            Reverse(rest),
            route.created,
            &route.key,
            self.place,
        )
    }

    fn accepts(&self, view: &View<'_>, reach: Reach) -> bool {
        view.steps.take(STEPS)
            && self.may_serve(view)
            && self
                .of()
                .is_some_and(|of| reach.admits(&of.path) && of.accepts(view))
    }

    /// The same as [`Self::accepts`], for a path that is known to match.
    fn accepts_rest(&self, view: &View<'_>, reach: Reach) -> bool {
        view.steps.take(STEPS)
            && self.may_serve(view)
            && self
                .of()
                .is_some_and(|of| reach.admits(&of.path) && of.accepts_rest(view))
    }

    fn may_serve(&self, view: &View<'_>) -> bool {
        (view.is_grpc || !self.route.grpc) && (self.shared || view.guard.admits(&self.route.tenant))
    }

    fn found(&self) -> Found {
        Found {
            route: Arc::clone(&self.route),
            place: self.place,
        }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// An entry with the hostname pattern that it matches.
#[derive(Clone)]
struct Row {
    pattern: HostPattern,
    rank: Specificity,
    entry: Entry,
}

impl Row {
    fn order(&self) -> (Reverse<Specificity>, Order<'_>) {
        (Reverse(self.rank), self.entry.order())
    }
}

fn takes(pattern: &HostPattern, host: Option<&Hostname>) -> bool {
    match host {
        Some(host) => pattern.matches(host),
        None => *pattern == HostPattern::Any,
    }
}

/// The HTTP routes of one listener.
#[derive(Clone, Default)]
pub(crate) struct HttpTable {
    /// Routes that have whole hostnames.
    rows: Rows,
    /// Routes that have only some paths of hostnames. Most listeners have none.
    parts: Option<Arc<Parts>>,
}

#[derive(Clone)]
enum Rows {
    Few(Arc<[Row]>),
    Many(Arc<Index>),
}

impl Default for Rows {
    fn default() -> Self {
        Self::Few(Arc::default())
    }
}

/// Matches by the pattern that the host has to match, and then by the rank of the hostname as written.
type Index = PatternMap<RedBlackTreeMapSync<Reverse<Specificity>, Host>>;

impl HttpTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.parts.is_none()
    }

    /// Adds a route for these names.
    pub(crate) fn insert(&mut self, names: &AttachedNames, route: &Arc<HttpRoute>) {
        if names.paths().is_empty() {
            self.rows.insert(names, route);
        } else if let HostPattern::Exact(host) = &names.pattern {
            let parts = Arc::make_mut(self.parts.get_or_insert_default());
            parts.insert(host, names.rank().specificity(), names.paths(), route);
        }
    }

    /// Removes what [`Self::insert`] added.
    pub(crate) fn remove(&mut self, names: &AttachedNames, route: &Arc<HttpRoute>) {
        if names.paths().is_empty() {
            self.rows.remove(names, route);
        } else if let (HostPattern::Exact(host), Some(all)) = (&names.pattern, &mut self.parts) {
            let parts = Arc::make_mut(all);
            parts.remove(host, names.rank().specificity(), names.paths(), route);
            if parts.is_empty() {
                self.parts = None;
            }
        }
    }

    /// Visits the routes of matches, with their patterns.
    pub(crate) fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
        self.rows.each(visited, each);
        if let Some(parts) = &self.parts {
            parts.each(visited, each);
        }
    }

    pub(crate) fn are_few(&self) -> bool {
        matches!(self.rows, Rows::Few(_)) && self.parts.is_none()
    }

    /// Whether a route is attached for exactly this pattern.
    pub(crate) fn has(&self, pattern: &HostPattern) -> bool {
        self.rows.has(pattern) || self.parts.as_ref().is_some_and(|parts| parts.has(pattern))
    }

    /// The match that takes a request for `host`. The result is not valid if the steps of `view` have run out.
    pub(crate) fn find(&self, host: Option<&Hostname>, view: &View<'_>) -> Option<Found> {
        let mut reach = Reach::ALL;
        if let (Some(parts), Some(host)) = (&self.parts, host) {
            match parts.find(host, view) {
                Ok(entry) => return Some(entry.found()),
                Err(rest) => reach = rest,
            }
        }
        self.rows.find(host, view, reach)
    }
}

impl Rows {
    fn is_empty(&self) -> bool {
        match self {
            Self::Few(rows) => rows.is_empty(),
            Self::Many(index) => index.is_empty(),
        }
    }

    fn insert(&mut self, names: &AttachedNames, route: &Arc<HttpRoute>) {
        let (pattern, rank) = (&names.pattern, names.rank().specificity());
        let entries = Entry::all(route, names.shared);
        match self {
            Rows::Few(rows) => {
                let new = entries.map(|entry| Row {
                    pattern: pattern.clone(),
                    rank,
                    entry,
                });
                let mut all: Vec<Row> = rows.iter().cloned().chain(new).collect();
                if all.len() <= FEW {
                    all.sort_by(|a, b| a.order().cmp(&b.order()));
                    *rows = all.into();
                    return;
                }
                let mut index = Index::new();
                for row in all {
                    add(&mut index, &row.pattern, row.rank, [row.entry]);
                }
                *self = Rows::Many(Arc::new(index));
            }
            Rows::Many(index) => add(Arc::make_mut(index), pattern, rank, entries),
        }
    }

    fn remove(&mut self, names: &AttachedNames, route: &Arc<HttpRoute>) {
        let (pattern, rank) = (&names.pattern, names.rank().specificity());
        match self {
            Rows::Few(rows) => {
                let stays = |row: &&Row| {
                    row.pattern != *pattern
                        || row.rank != rank
                        || !row.entry.route.is_version_of(route)
                };
                *rows = rows.iter().filter(stays).cloned().collect();
            }
            Rows::Many(index) => take(Arc::make_mut(index), pattern, rank, route),
        }
    }

    fn has(&self, pattern: &HostPattern) -> bool {
        match self {
            Self::Few(rows) => rows.iter().any(|row| row.pattern == *pattern),
            Self::Many(index) => index.get(pattern).is_some(),
        }
    }

    fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
        match self {
            Rows::Few(rows) => rows
                .iter()
                .filter(|row| visited.includes(&row.pattern))
                .for_each(|row| each(&row.pattern, &row.entry.route.account)),
            Rows::Many(index) => index.each(visited, &mut |pattern, ranks| {
                ranks.values().for_each(|of| {
                    of.each(&mut |entry| each(pattern, &entry.route.account));
                });
            }),
        }
    }

    fn find(&self, host: Option<&Hostname>, view: &View<'_>, reach: Reach) -> Option<Found> {
        match self {
            Rows::Few(rows) => rows
                .iter()
                .find(|row| takes(&row.pattern, host) && row.entry.accepts(view, reach))
                .map(|row| row.entry.found()),
            Rows::Many(index) => {
                let mut levels: Vec<_> = if let Some(host) = host {
                    let ranks = index.matching(host);
                    ranks.flat_map(RedBlackTreeMapSync::iter).collect()
                } else {
                    let ranks = index.get(&HostPattern::Any);
                    ranks
                        .into_iter()
                        .flat_map(RedBlackTreeMapSync::iter)
                        .collect()
                };
                levels.sort_by_key(|(rank, _)| **rank);
                levels
                    .chunk_by(|a, b| a.0 == b.0)
                    .find_map(|same| {
                        // Each pattern gives its first match that takes the request. The least of them is the first
                        // of all.
                        let found = same.iter().filter_map(|(_, host)| host.find(view, reach));
                        found.min()
                    })
                    .map(Entry::found)
            }
        }
    }
}

fn add(
    index: &mut Index,
    pattern: &HostPattern,
    rank: Specificity,
    entries: impl IntoIterator<Item = Entry>,
) {
    let ranks = index.get(pattern).cloned();
    let mut ranks = ranks.unwrap_or_else(RedBlackTreeMapSync::new_sync);
    let mut host = ranks.get(&Reverse(rank)).cloned().unwrap_or_default();
    host.insert(entries);
    ranks.insert_mut(Reverse(rank), host);
    index.insert(pattern.clone(), ranks);
}

fn take(index: &mut Index, pattern: &HostPattern, rank: Specificity, route: &Arc<HttpRoute>) {
    let Some(mut ranks) = index.get(pattern).cloned() else {
        return;
    };
    let Some(mut host) = ranks.get(&Reverse(rank)).cloned() else {
        return;
    };
    host.remove(route);
    if host.is_empty() {
        ranks.remove_mut(&Reverse(rank));
    } else {
        ranks.insert_mut(Reverse(rank), host);
    }
    if ranks.is_empty() {
        index.remove(pattern);
    } else {
        index.insert(pattern.clone(), ranks);
    }
}

/// The matches of one hostname.
#[derive(Clone)]
enum Host {
    /// Sorted.
    Few(Arc<[Entry]>),
    Many(Arc<Paths>),
}

impl Default for Host {
    fn default() -> Self {
        Self::Few(Arc::default())
    }
}

impl Host {
    fn is_empty(&self) -> bool {
        match self {
            Self::Few(entries) => entries.is_empty(),
            Self::Many(paths) => paths.is_empty(),
        }
    }

    fn insert(&mut self, new: impl IntoIterator<Item = Entry>) {
        match self {
            Self::Few(entries) => {
                let mut all: Vec<Entry> = entries.iter().cloned().chain(new).collect();
                if all.len() <= FEW {
                    all.sort();
                    *entries = all.into();
                    return;
                }
                let mut paths = Paths::new();
                for entry in all {
                    paths.insert(entry);
                }
                *self = Self::Many(Arc::new(paths));
            }
            Self::Many(paths) => {
                let paths = Arc::make_mut(paths);
                for entry in new {
                    paths.insert(entry);
                }
            }
        }
    }

    fn remove(&mut self, route: &Arc<HttpRoute>) {
        match self {
            Self::Few(entries) => {
                let stays = entries
                    .iter()
                    .filter(|entry| !entry.route.is_version_of(route));
                *entries = stays.cloned().collect();
            }
            Self::Many(paths) => {
                let paths = Arc::make_mut(paths);
                // `shared` is not part of an entry's order, so any value finds the entry.
                for entry in Entry::all(route, false) {
                    paths.remove(&entry);
                }
            }
        }
    }

    fn each(&self, each: &mut dyn FnMut(&Entry)) {
        match self {
            Self::Few(entries) => entries.iter().for_each(each),
            Self::Many(paths) => paths.each(each),
        }
    }

    fn find(&self, view: &View<'_>, reach: Reach) -> Option<&Entry> {
        match self {
            Self::Few(entries) => first(entries.iter(), view, |of| of.accepts(view, reach)),
            Self::Many(paths) => paths.find(view, reach),
        }
    }
}

/// The first entry that takes the request. It is `None` if there is none, or if the steps have run out.
fn first<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    view: &View<'_>,
    is_right: impl Fn(&Entry) -> bool,
) -> Option<&'a Entry> {
    let mut affordable = entries.take_while(|_| !view.steps.have_run_out());
    affordable.find(|entry| is_right(entry))
}

/// Sorted.
type Bucket = RedBlackTreeSetSync<Entry>;

/// Matches by path.
#[derive(Clone)]
struct Paths {
    grpc: Methods,
    exact: HashTrieMapSync<Box<str>, Bucket>,
    regexes: Bucket,
    prefixes: Node,
}

impl Paths {
    fn new() -> Self {
        Self {
            grpc: Methods::new(),
            exact: HashTrieMapSync::new_sync(),
            regexes: Bucket::new_sync(),
            prefixes: Node::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.grpc.is_empty()
            && self.exact.is_empty()
            && self.regexes.is_empty()
            && self.prefixes.is_empty()
    }

    fn each(&self, each: &mut dyn FnMut(&Entry)) {
        let services = self.grpc.services.values().chain([&self.grpc.others]);
        let buckets = services.chain(self.exact.values()).chain([&self.regexes]);
        buckets.flat_map(Bucket::iter).for_each(&mut *each);
        self.prefixes.each(each);
    }

    fn insert(&mut self, entry: Entry) {
        let route = Arc::clone(&entry.route);
        match route.at(entry.place).map(|(_, of)| &of.path) {
            Some(PathMatch::Exact(path)) => {
                let bucket = self.exact.get(&**path).cloned();
                let mut bucket = bucket.unwrap_or_else(Bucket::new_sync);
                bucket.insert_mut(entry);
                self.exact.insert_mut(path.clone(), bucket);
            }
            Some(PathMatch::Regex(_)) | None => self.regexes.insert_mut(entry),
            Some(PathMatch::Prefix(path)) => self.prefixes.insert(&mut elements(path), entry),
            Some(PathMatch::Method { service, .. }) => self.grpc.insert(service.as_ref(), entry),
        }
    }

    fn remove(&mut self, entry: &Entry) {
        match entry.of().map(|of| &of.path) {
            Some(PathMatch::Exact(path)) => {
                let Some(mut bucket) = self.exact.get(&**path).cloned() else {
                    return;
                };
                bucket.remove_mut(entry);
                if bucket.is_empty() {
                    self.exact.remove_mut(&**path);
                } else {
                    self.exact.insert_mut(path.clone(), bucket);
                }
            }
            Some(PathMatch::Regex(_)) | None => {
                self.regexes.remove_mut(entry);
            }
            Some(PathMatch::Prefix(path)) => self.prefixes.remove(&mut elements(path), entry),
            Some(PathMatch::Method { service, .. }) => self.grpc.remove(service.as_ref(), entry),
        }
    }

    /// The first match by [`Entry::order`] that takes the request. GRPCRoutes come first, and have no matches but methods of
    /// gRPC. Of the others, all exact matches rank above all regular expressions, and these above all prefixes. Each bucket
    /// is sorted, and the matches in a bucket of exact paths or of prefixes have the same path.
    fn find(&self, view: &View<'_>, reach: Reach) -> Option<&Entry> {
        let grpc = view.is_grpc.then(|| self.grpc.find(view, reach)).flatten();
        let exact = || {
            let exact = self.exact.get(view.path);
            exact.and_then(|bucket| first(bucket.iter(), view, |of| of.accepts_rest(view, reach)))
        };
        grpc.or_else(exact)
            .or_else(|| first(self.regexes.iter(), view, |of| of.accepts(view, reach)))
            .or_else(|| self.prefixes.find(&mut elements(view.path), view, reach))
    }
}

/// Methods of gRPC by their service.
#[derive(Clone)]
struct Methods {
    /// Matches of one service by name, with or without a method.
    services: HashTrieMapSync<Box<str>, Bucket>,
    /// Matches with a regular expression for the service, or without a service.
    others: Bucket,
}

impl Methods {
    fn new() -> Self {
        Self {
            services: HashTrieMapSync::new_sync(),
            others: Bucket::new_sync(),
        }
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.others.is_empty()
    }

    fn insert(&mut self, service: Option<&Value>, entry: Entry) {
        if let Some(Value::Exact(service)) = service {
            let bucket = self.services.get(&**service).cloned();
            let mut bucket = bucket.unwrap_or_else(Bucket::new_sync);
            bucket.insert_mut(entry);
            self.services.insert_mut(service.clone(), bucket);
        } else {
            self.others.insert_mut(entry);
        }
    }

    fn remove(&mut self, service: Option<&Value>, entry: &Entry) {
        if let Some(Value::Exact(service)) = service {
            let Some(mut bucket) = self.services.get(&**service).cloned() else {
                return;
            };
            bucket.remove_mut(entry);
            if bucket.is_empty() {
                self.services.remove_mut(&**service);
            } else {
                self.services.insert_mut(service.clone(), bucket);
            }
        } else {
            self.others.remove_mut(entry);
        }
    }

    fn find(&self, view: &View<'_>, reach: Reach) -> Option<&Entry> {
        let service = method_of(view.path).and_then(|(service, _)| self.services.get(service));
        // A match with the name of the service ranks before every other one, so both buckets together are sorted.
        let all = service.into_iter().chain([&self.others]);
        first(all.flat_map(Bucket::iter), view, |of| {
            of.accepts(view, reach)
        })
    }
}

/// The elements of a path. The empty prefix and `*` have none.
fn elements(path: &str) -> impl Iterator<Item = &str> {
    let path = path.strip_prefix('/');
    path.into_iter().flat_map(|path| path.split('/'))
}

/// A tree of prefixes, with one level for each element.
#[derive(Clone)]
struct Node {
    /// Matches of the prefix that ends here.
    entries: Bucket,
    children: HashTrieMapSync<Box<str>, Arc<Node>>,
}

impl Node {
    fn new() -> Self {
        Self {
            entries: Bucket::new_sync(),
            children: HashTrieMapSync::new_sync(),
        }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.children.is_empty()
    }

    fn each(&self, each: &mut dyn FnMut(&Entry)) {
        self.entries.iter().for_each(&mut *each);
        self.children.values().for_each(|child| child.each(each));
    }

    fn insert<'a>(&mut self, path: &mut impl Iterator<Item = &'a str>, entry: Entry) {
        let Some(element) = path.next() else {
            self.entries.insert_mut(entry);
            return;
        };
        let child = self.children.get(element);
        let mut child = child.map_or_else(Self::new, |child| Self::clone(child));
        child.insert(path, entry);
        self.children.insert_mut(element.into(), Arc::new(child));
    }

    fn remove<'a>(&mut self, path: &mut impl Iterator<Item = &'a str>, entry: &Entry) {
        let Some(element) = path.next() else {
            self.entries.remove_mut(entry);
            return;
        };
        let Some(child) = self.children.get(element) else {
            return;
        };
        let mut child = Self::clone(child);
        child.remove(path, entry);
        if child.is_empty() {
            self.children.remove_mut(element);
        } else {
            self.children.insert_mut(element.into(), Arc::new(child));
        }
    }

    /// Descends as deep as there are prefixes, and tries the deepest ones first. A deeper prefix of one path is a longer one,
    /// so this is the order of their ranks.
    fn find<'a>(
        &self,
        path: &mut impl Iterator<Item = &'a str>,
        view: &View<'_>,
        reach: Reach,
    ) -> Option<&Entry> {
        let mut way = vec![self];
        let mut at = self;
        for element in path {
            let Some(child) = at.children.get(element) else {
                break;
            };
            at = child;
            if !at.entries.is_empty() {
                way.push(at);
            }
        }
        let mut way = way.into_iter().rev();
        way.find_map(|node| first(node.entries.iter(), view, |of| of.accepts_rest(view, reach)))
    }
}

mod parts;
#[cfg(test)]
mod tests;
