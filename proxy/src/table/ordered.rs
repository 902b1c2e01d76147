//! Owns the hostname patterns of listeners and of their routes in an order in which those inside a wildcard are
//! together. So a change of a wildcard looks at these and not at all others.
//!
//! It describes the newest snapshot and is no part of it, because only changes need it.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::hostname::HostPattern;
use vestibule_model::reversed::Patterns;

use super::{Routes, SelectionKey};
use crate::attached_names::Visited;
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::listener::{Layer, Listener};

/// Patterns of listeners and routes, in order. With each is the tenant of all routes there. It is `None` if there may be
/// several, or none.
#[derive(Default)]
pub(crate) struct OrderedPatterns {
    listeners: BTreeMap<(BindKey, Layer), Patterns<Option<TenantKey>>>,
    /// The patterns of the routes of each listener that has more than a few.
    routes: BTreeMap<Arc<str>, Patterns<Option<TenantKey>>>,
}

impl OrderedPatterns {
    /// Records that a listener has this place, with these routes.
    pub(crate) fn add_listener(
        &mut self,
        (bind, layer, pattern): &SelectionKey,
        listener: &Arc<Listener>,
        routes: &Arc<Routes>,
    ) {
        let entry = super::Entry {
            listener: Arc::clone(listener),
            routes: Arc::clone(routes),
        };
        let patterns = self.listeners.entry((*bind, *layer)).or_default();
        patterns.insert(pattern, only_tenant(&entry));
    }

    /// Records that no listener has this place any more.
    pub(crate) fn remove_listener(&mut self, (bind, layer, pattern): &SelectionKey) {
        let place = (*bind, *layer);
        if let Some(patterns) = self.listeners.get_mut(&place) {
            patterns.remove(pattern);
            if patterns.is_empty() {
                self.listeners.remove(&place);
            }
        }
    }

    /// Records that a route of `tenant` was attached for `pattern`. `routes` are those that the listener has now.
    pub(crate) fn add_route(
        &mut self,
        listener: &Arc<str>,
        routes: &Routes,
        (pattern, tenant): (&HostPattern, TenantKey),
    ) {
        if let Some(patterns) = self.routes.get_mut(listener) {
            // A listener that had many routes keeps its patterns here, even if few are left.
            add(patterns, pattern, tenant);
        } else if !routes.are_few() {
            let patterns = self.routes.entry(Arc::clone(listener)).or_default();
            routes.each(&mut |pattern, account| {
                add(patterns, pattern, TenantKey::of(account));
            });
        }
    }

    /// Records that a route is not attached for `pattern` any more. `routes` are those that are left.
    pub(crate) fn remove_route(&mut self, listener: &str, routes: &Routes, pattern: &HostPattern) {
        let Some(patterns) = self.routes.get_mut(listener) else {
            return;
        };
        if !routes.have(pattern) {
            patterns.remove(pattern);
        }
        if patterns.is_empty() {
            self.routes.remove(listener);
        }
    }

    /// The patterns of the listeners of a bind.
    pub(super) fn listeners(
        &self,
        place: &(BindKey, Layer),
    ) -> Option<&Patterns<Option<TenantKey>>> {
        self.listeners.get(place)
    }

    /// The patterns of the routes of a listener. It is `None` if there are few routes.
    pub(super) fn routes(&self, listener: &str) -> Option<&Patterns<Option<TenantKey>>> {
        self.routes.get(listener)
    }

    /// Whether nothing is recorded.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.routes.is_empty()
    }
}

fn add(patterns: &mut Patterns<Option<TenantKey>>, pattern: &HostPattern, tenant: TenantKey) {
    match patterns.get_mut(pattern) {
        Some(known) => *known = known.filter(|known| *known == tenant),
        None => _ = patterns.insert(pattern, Some(tenant)),
    }
}

/// The tenant of all routes of a listener, if these are few and there is one.
fn only_tenant(entry: &super::Entry) -> Option<TenantKey> {
    if !entry.routes.are_few() {
        return None;
    }
    let (mut first, mut is_only) = (None, true);
    entry.each(Visited::All, &mut |_, account| {
        let tenant = TenantKey::of(account);
        is_only &= *first.get_or_insert(tenant) == tenant;
    });
    first.filter(|_| is_only)
}
