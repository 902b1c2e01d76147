//! Finds the tenants whose tunnels may end by the step from one snapshot to the next.
//!
//! A name is served by the most specific listener that its owner lets have it. So a listener that stays at its place
//! loses a name only in two ways: the name gets another owner, or a listener that is new at a more specific place takes
//! it. A listener that changes at a less specific place does not affect it.
//!
//! The result may name a few tenants too many, because a tunnel that is asked without need goes on. It never leaves out
//! a tenant that loses something, and it costs no more than a look at each name inside the pattern that has changed.

use std::collections::BTreeSet;

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::reversed::Patterns;

use super::changes::{ChangedNames, Changes};
use super::ordered::OrderedPatterns;
use super::standing::is_same;
use super::{Entry, Snapshot};
use crate::attached_names::Visited;
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::listener::Layer;
use crate::owners::{HostnameGuard, OwnedPatterns};
use crate::pattern_map::PatternMap;

impl Snapshot {
    /// Adds the tenants whose tunnels may not stand after these changes, which lead from this snapshot to the next one.
    /// `ordered` are the patterns of the next one. Returns how many routes and names it looked at.
    ///
    /// It leaves out routes whose attachments have changed: [`Self::concerned_by_route`] is for them.
    pub(crate) fn concerned_by(
        &self,
        next: &Self,
        ordered: &OrderedPatterns,
        changes: &Changes,
        concerned: &mut BTreeSet<TenantKey>,
    ) -> u64 {
        let mut looked_at = 0;
        for (place, names) in changes.iter() {
            let Some(step) = Step::new((self, next), ordered, place, names) else {
                continue;
            };
            let mut found = Found {
                concerned: &mut *concerned,
                looked_at: &mut looked_at,
            };
            for name in &names.exact {
                step.name(name, &mut found);
            }
            for (pattern, ()) in names.listeners.covered(&HostPattern::Any) {
                step.listener(pattern, &mut found);
            }
            for (pattern, ()) in names.owners.covered(&HostPattern::Any) {
                step.owner(pattern, &mut found);
            }
        }
        looked_at
    }
}

/// The tenants that were found, and how many routes and names were looked at for that.
struct Found<'a> {
    concerned: &'a mut BTreeSet<TenantKey>,
    looked_at: &'a mut u64,
}

impl Found<'_> {
    /// Whether the tenant is known and was found already.
    fn has(&self, tenant: Option<TenantKey>) -> bool {
        tenant.is_some_and(|tenant| self.concerned.contains(&tenant))
    }
}

/// The step from one snapshot to the next, for the listeners of one layer of a bind.
struct Step<'a> {
    before: &'a Snapshot,
    next: &'a Snapshot,
    listeners: &'a PatternMap<Entry>,
    next_listeners: Option<&'a PatternMap<Entry>>,
    /// The owners before, on the Gateway of the bind.
    owners: Option<&'a OwnedPatterns>,
    ordered: &'a OrderedPatterns,
    ordered_listeners: Option<&'a Patterns<Option<TenantKey>>>,
    names: &'a ChangedNames,
}

impl<'a> Step<'a> {
    /// It is `None` if the bind had no listeners before.
    fn new(
        (before, next): (&'a Snapshot, &'a Snapshot),
        ordered: &'a OrderedPatterns,
        place: &(BindKey, Layer),
        names: &'a ChangedNames,
    ) -> Option<Self> {
        let (bind, layer) = place;
        let listeners = before.binds.get(bind)?.of(*layer);
        // All listeners of one bind belong to one Gateway.
        let gateway = &listeners.values().next()?.listener.gateway;
        Some(Self {
            before,
            next,
            listeners,
            next_listeners: next.binds.get(bind).map(|on| on.of(*layer)),
            owners: before.owners.on(gateway),
            ordered,
            ordered_listeners: ordered.listeners(place),
            names,
        })
    }

    /// Where one name is meant, its listener and its owner before and after say exactly whether its tunnels may end.
    fn name(&self, name: &'a Hostname, found: &mut Found<'_>) {
        *found.looked_at += 1;
        if let Some(entry) = self.altered(name) {
            entry.each(Visited::For(name), &mut |_, account| {
                *found.looked_at += 1;
                found.concerned.insert(TenantKey::of(account));
            });
        }
    }

    /// The listener at the place of a wildcard has changed.
    fn listener(&self, pattern: &HostPattern, found: &mut Found<'_>) {
        if let Some(entry) = self.listeners.get(pattern) {
            self.all(entry, found, |_| true);
        }
        // Only what is there now takes names from the listeners around it.
        let now = self.next_listeners.and_then(|of| of.get(pattern));
        let Some(now) = now else { return };
        for entry in self.listeners.around(pattern) {
            self.inside(entry, pattern, found, |names| self.takes(now, names));
        }
    }

    /// A wildcard has another owner.
    fn owner(&self, pattern: &HostPattern, found: &mut Found<'_>) {
        // The wildcard around it includes it.
        if self.names.owners.above(pattern).next().is_some() {
            return;
        }
        let is_alone = self.names.owners.below(pattern).next().is_none();
        let nearest = is_alone.then_some(pattern);
        let has_changed = |names: &HostPattern| self.has_another_owner(names, nearest);
        if let Some(entry) = self.listeners.get(pattern) {
            self.all(entry, found, has_changed);
        }
        for entry in self.listeners.around(pattern) {
            self.inside(entry, pattern, found, has_changed);
        }
        let inside = self.ordered_listeners.into_iter();
        for (inside, tenant) in inside.flat_map(|of| of.below(pattern)) {
            if matches!(inside, HostPattern::Exact(_)) {
                *found.looked_at += 1;
                if found.has(*tenant) || !has_changed(inside) {
                    continue;
                }
                if let Some(tenant) = tenant {
                    found.concerned.insert(*tenant);
                    continue;
                }
            }
            if let Some(entry) = self.listeners.get(inside) {
                self.all(entry, found, has_changed);
            }
        }
    }

    /// Finds the tenants of all routes of a listener that may lose some of their names.
    fn all(&self, entry: &Entry, found: &mut Found<'_>, may_lose: impl Fn(&HostPattern) -> bool) {
        self.inside(entry, &HostPattern::Any, found, may_lose);
    }

    /// The same for those of the routes that have names in common with `wildcard`.
    fn inside(
        &self,
        entry: &Entry,
        wildcard: &HostPattern,
        found: &mut Found<'_>,
        may_lose: impl Fn(&HostPattern) -> bool,
    ) {
        // Routes that are selected by port alone are few, and in no order.
        let is_named = entry.listener.mode.layer() != Layer::Bytes;
        let patterns = self.ordered.routes(&entry.listener.key);
        let Some(patterns) = patterns.filter(|_| is_named) else {
            entry.each(Visited::All, &mut |pattern, account| {
                *found.looked_at += 1;
                let tenant = TenantKey::of(account);
                if !found.has(Some(tenant)) && pattern.overlaps(wildcard) && may_lose(pattern) {
                    found.concerned.insert(tenant);
                }
            });
            return;
        };
        let patterns = patterns.covered(wildcard).chain(patterns.above(wildcard));
        for (pattern, tenant) in patterns {
            *found.looked_at += 1;
            if found.has(*tenant) || !may_lose(pattern) {
                continue;
            }
            if let Some(tenant) = tenant {
                found.concerned.insert(*tenant);
            } else {
                entry.each(Visited::At(pattern), &mut |_, account| {
                    found.concerned.insert(TenantKey::of(account));
                });
            }
        }
    }

    /// Whether a listener takes some of these names from those around it. Among the names of a wildcard, each may have
    /// an owner of its own.
    fn takes(&self, entry: &Entry, names: &HostPattern) -> bool {
        let listener = &entry.listener;
        let HostPattern::Exact(name) = names else {
            return true;
        };
        listener.is_own()
            || self
                .next
                .owners
                .owner(&listener.gateway, Some(name))
                .is_none_or(|owner| **owner.tenant() == *listener.tenant)
    }

    /// Whether some of these names may have another owner than before. `nearest` is the most specific pattern around them
    /// whose owner has changed, if that is known.
    fn has_another_owner(&self, names: &HostPattern, nearest: Option<&HostPattern>) -> bool {
        let changed = &self.names.owners;
        if let HostPattern::Exact(name) = names {
            // If it has an owner of its own, that one has not changed, or the name is looked at by itself.
            let has_own = self
                .owners
                .is_some_and(|owners| owners.get(names).is_some());
            if has_own || self.names.exact.contains(name) {
                return false;
            }
        } else if changed.covered(names).next().is_some() {
            return true;
        }
        let above = || changed.above(names).next().map(|(pattern, ())| pattern);
        let Some(nearest) = nearest.or_else(above) else {
            return false;
        };
        // The owner of a narrower pattern has not changed.
        let within = |owners: &OwnedPatterns| owners.has_within(nearest, names);
        !self.owners.is_some_and(within)
    }

    /// The listener that served a name before, if another one serves it now, or for another owner.
    fn altered(&self, name: &'a Hostname) -> Option<&'a Entry> {
        let (before, guard) = self.before.serving(self.listeners, Some(name))?;
        let next = self
            .next_listeners
            .and_then(|listeners| self.next.serving(listeners, Some(name)));
        let owner = |of: HostnameGuard<'a>| of.owner().map(|owner| owner.tenant());
        let stays = next.is_some_and(|(entry, next_guard)| {
            is_same(Some(before), Some(entry)) && owner(guard) == owner(next_guard)
        });
        (!stays).then_some(before)
    }
}
