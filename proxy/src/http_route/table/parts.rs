//! Owns the paths of hostnames that grants share, and the routes that have them. Such a path, with everything below it,
//! is called a part here.
//!
//! The routes of the longest part that contains the path of a request are tried first, then those of the parts around
//! it, and then all other routes. The routes that are tried after a part may take a request inside it only by a path
//! prefix that is at the part or above it. With an exact path, a regular expression or a longer prefix, they would take
//! single requests out of a part that is shared as a whole.
//!
//! A route is found here only within its parts, so it serves nothing outside of them, whatever its matches are.

use std::cmp::Reverse;
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use vestibule_model::hostname::{HostPattern, Hostname, Specificity};
use vestibule_model::path::PathPrefix;

use super::super::route::{HttpRoute, PathMatch, Value};
use super::super::view::View;
use super::{Entry, Host, elements};
use crate::attached_names::{EachRoute, Visited};

/// Which matches may take a request: all of them, or only prefixes of at most this many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach(Option<usize>);

impl Reach {
    pub(super) const ALL: Self = Self(None);

    /// Whether a match with this path may take the request.
    pub(super) fn admits(self, path: &PathMatch) -> bool {
        self.0.is_none_or(|most| match path {
            PathMatch::Prefix(prefix) => prefix.len() <= most,
            // A match without a method acts like a prefix: it takes a whole service, or every call. The prefix of a
            // service is a slash and its name.
            PathMatch::Method {
                service: None,
                method: None,
            } => true,
            PathMatch::Method {
                service: Some(Value::Exact(service)),
                method: None,
            } => service.len() < most,
            PathMatch::Exact(_) | PathMatch::Regex(_) | PathMatch::Method { .. } => false,
        })
    }
}

/// Parts by hostname.
#[derive(Clone, Default)]
pub(super) struct Parts(RedBlackTreeMapSync<Hostname, Part>);

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a route for some parts of a hostname.
    pub(super) fn insert(
        &mut self,
        host: &Hostname,
        rank: Specificity,
        parts: &[PathPrefix],
        route: &Arc<HttpRoute>,
    ) {
        let mut root = self.0.get(host).cloned().unwrap_or_else(Part::new);
        for part in parts {
            root.insert(&mut part.elements(), part.as_str().len(), rank, route);
        }
        self.0.insert_mut(host.clone(), root);
    }

    /// Removes what [`Self::insert`] added.
    pub(super) fn remove(
        &mut self,
        host: &Hostname,
        rank: Specificity,
        parts: &[PathPrefix],
        route: &Arc<HttpRoute>,
    ) {
        let Some(mut root) = self.0.get(host).cloned() else {
            return;
        };
        for part in parts {
            root.remove(&mut part.elements(), rank, route);
        }
        if root.is_empty() {
            self.0.remove_mut(host);
        } else {
            self.0.insert_mut(host.clone(), root);
        }
    }

    /// Whether some parts of exactly this hostname are shared.
    pub(super) fn has(&self, pattern: &HostPattern) -> bool {
        matches!(pattern, HostPattern::Exact(host) if self.0.contains_key(host))
    }

    /// Visits routes as [`super::HttpTable::each`] does.
    pub(super) fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
        let mut visit = |host: &Hostname, root: &Part| {
            let pattern = HostPattern::Exact(host.clone());
            root.each(&mut |entry| each(&pattern, &entry.route.account));
        };
        match visited {
            Visited::All => self.0.iter().for_each(|(host, root)| visit(host, root)),
            Visited::For(host) | Visited::At(HostPattern::Exact(host)) => {
                if let Some(root) = self.0.get(host) {
                    visit(host, root);
                }
            }
            Visited::At(_) => {}
        }
    }

    /// The match that takes a request inside a part.
    ///
    /// # Errors
    /// If there is none, the matches by which other routes may take the request.
    pub(super) fn find(&self, host: &Hostname, view: &View<'_>) -> Result<&Entry, Reach> {
        let root = self.0.get(host).ok_or(Reach::ALL)?;
        root.find(&mut elements(view.path), view)
    }
}

/// A tree of parts, with one level for each element of a path.
#[derive(Clone)]
struct Part {
    /// Length of the part that ends here, in bytes.
    length: usize,
    /// The routes that have it, by the rank of their hostname as written. It is empty if no part ends here.
    ranks: RedBlackTreeMapSync<Reverse<Specificity>, Host>,
    children: HashTrieMapSync<Box<str>, Arc<Part>>,
}

impl Part {
    fn new() -> Self {
        Self {
            length: 0,
            ranks: RedBlackTreeMapSync::new_sync(),
            children: HashTrieMapSync::new_sync(),
        }
    }

    fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.children.is_empty()
    }

    fn each(&self, each: &mut dyn FnMut(&Entry)) {
        self.ranks.values().for_each(|host| host.each(each));
        self.children.values().for_each(|child| child.each(each));
    }

    fn insert<'a>(
        &mut self,
        path: &mut impl Iterator<Item = &'a str>,
        length: usize,
        rank: Specificity,
        route: &Arc<HttpRoute>,
    ) {
        let Some(element) = path.next() else {
            let host = self.ranks.get(&Reverse(rank)).cloned();
            let mut host = host.unwrap_or_default();
            host.insert(Entry::all(route, true));
            self.length = length;
            self.ranks.insert_mut(Reverse(rank), host);
            return;
        };
        let child = self.children.get(element);
        let mut child = child.map_or_else(Self::new, |child| Self::clone(child));
        child.insert(path, length, rank, route);
        self.children.insert_mut(element.into(), Arc::new(child));
    }

    fn remove<'a>(
        &mut self,
        path: &mut impl Iterator<Item = &'a str>,
        rank: Specificity,
        route: &Arc<HttpRoute>,
    ) {
        let Some(element) = path.next() else {
            let Some(mut host) = self.ranks.get(&Reverse(rank)).cloned() else {
                return;
            };
            host.remove(route);
            if host.is_empty() {
                self.ranks.remove_mut(&Reverse(rank));
            } else {
                self.ranks.insert_mut(Reverse(rank), host);
            }
            return;
        };
        let Some(child) = self.children.get(element) else {
            return;
        };
        let mut child = Self::clone(child);
        child.remove(path, rank, route);
        if child.is_empty() {
            self.children.remove_mut(element);
        } else {
            self.children.insert_mut(element.into(), Arc::new(child));
        }
    }

    /// Descends as deep as there are parts, and tries the deepest ones first.
    fn find<'a, I: Iterator<Item = &'a str>>(
        &self,
        path: &mut I,
        view: &View<'_>,
    ) -> Result<&Entry, Reach> {
        let child = path.next().and_then(|element| self.children.get(element));
        let reach = match child.map(|child| child.find(path, view)) {
            Some(Ok(entry)) => return Ok(entry),
            Some(Err(reach)) => reach,
            None => Reach::ALL,
        };
        if self.ranks.is_empty() {
            return Err(reach);
        }
        let found = self.ranks.values().find_map(|host| host.find(view, reach));
        // This part is shorter than those below it, so its bound includes theirs.
        found.ok_or(Reach(Some(self.length)))
    }
}
