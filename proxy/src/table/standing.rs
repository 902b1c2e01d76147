//! Owns the question whether a snapshot still serves a tunnel that an earlier one admitted, and which tenants' tunnels
//! may not be served any more after a change.
//!
//! A tunnel stands as long as its name still leads to a listener of the same namespace, and its own route is attached
//! there for this name. Which backend the route would choose now plays no part.

use std::collections::BTreeSet;
use std::sync::Arc;

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

use super::changes::Changes;
use super::{Connections, Entry, OfKind, SelectionKey, Snapshot};
use crate::attached_names::{AttachedNames, EachRoute};
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::listener::{Layer, Listener, Mode, NotServing};
use crate::owners::HostnameGuard;
use crate::pattern_map::PatternMap;
use crate::quota::Account;

/// The kind of a route. Routes of two kinds may have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RouteKind {
    Of(Connections),
    Http,
    Grpc,
}

impl RouteKind {
    /// The kind of an HTTP route.
    pub(crate) fn of_http(grpc: bool) -> Self {
        if grpc { Self::Grpc } else { Self::Http }
    }
}

/// A route by kind and name, whichever version is in force.
pub(crate) type RouteId = (RouteKind, Arc<str>);

/// What a route is attached to.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// The account of the route's namespace.
    pub(crate) account: Arc<Account>,
    /// By listener.
    pub(crate) to: Box<[(Arc<str>, AttachedNames)]>,
}

impl Attachments {
    /// Whether this has everything that `before` had.
    fn include(&self, before: &Self) -> bool {
        // Most edits change no attachment. Comparing each with each is for the others.
        self.account.tenant() == before.account.tenant()
            && (self.to == before.to || before.to.iter().all(|had| self.to.contains(had)))
    }
}

/// The attachments of all routes.
pub(super) type AllAttachments = HashTrieMapSync<RouteId, Arc<Attachments>>;

/// What a tunnel was selected by.
#[derive(Debug)]
pub(crate) struct SelectedBy<'a> {
    pub(crate) bind: &'a BindKey,
    pub(crate) name: Option<&'a Hostname>,
    pub(crate) listener: &'a Listener,
    pub(crate) route: RouteId,
    /// The path of the request that became a tunnel.
    pub(crate) path: Option<&'a str>,
}

impl Snapshot {
    /// The listener that serves a tunnel now. It is `None` if the tunnel does not stand any more.
    pub(crate) fn still_serves<'a>(
        &'a self,
        selected: &SelectedBy<'a>,
    ) -> Option<&'a Arc<Listener>> {
        let (entry, guard) =
            self.serves_now(selected.bind, selected.listener.mode.layer(), selected.name)?;
        let (was, is) = (selected.listener, &*entry.listener);
        let is_alike = was.tenant == is.tenant
            && was.gateway == is.gateway
            && was.mode.kind() == is.mode.kind();
        let attachments = self.attached.get(&selected.route)?;
        let tenant = attachments.account.tenant();
        let takes = |names: &AttachedNames| match selected.name {
            Some(name) => names.pattern.matches(name),
            None => names.pattern == HostPattern::Any,
        };
        let is_inside = |names: &AttachedNames| {
            let path = selected.path.unwrap_or_default();
            names.paths.is_empty() || names.paths.iter().any(|part| part.contains(path))
        };
        // A route that has only some paths of a name has them whoever owns the name.
        let may =
            |names: &AttachedNames| names.shared || !names.paths.is_empty() || guard.admits(tenant);
        let is_attached = attachments
            .to
            .iter()
            .any(|(to, names)| *to == is.key && takes(names) && is_inside(names) && may(names));
        // A listener of the Gateway itself stays the Gateway's while its port passes from one tenant to another.
        let has_port = entry.routes.of_port().is_none_or(|first| first == tenant);
        (is_alike && is_attached && has_port).then_some(&entry.listener)
    }

    fn serves_now<'a>(
        &'a self,
        bind: &BindKey,
        layer: Layer,
        name: Option<&'a Hostname>,
    ) -> Option<(&'a Entry, HostnameGuard<'a>)> {
        let listeners = self.binds.get(bind)?.of(layer);
        match layer {
            Layer::Bytes => Some((listeners.get(&HostPattern::Any)?, HostnameGuard::OPEN)),
            Layer::Tls | Layer::Plain => self.serving(listeners, name),
        }
    }

    /// What a route is attached to. Each version of a route has an allocation of its own.
    pub(crate) fn attachments(&self, route: &RouteId) -> Option<&Arc<Attachments>> {
        self.attached.get(route)
    }

    /// Sets what a route is attached to; `None` removes it.
    pub(crate) fn attach(&mut self, route: RouteId, attachments: Option<Arc<Attachments>>) {
        match attachments {
            Some(attachments) => self.attached.insert_mut(route, attachments),
            None => _ = self.attached.remove_mut(&route),
        }
    }

    /// The tenant whose tunnels may not stand after a route has changed from this snapshot to the next.
    pub(crate) fn concerned_by_route(&self, next: &Self, route: &RouteId) -> Option<TenantKey> {
        let before = self.attached.get(route)?;
        let goes_on = next
            .attached
            .get(route)
            .is_some_and(|of| of.include(before));
        (!goes_on).then(|| TenantKey::of(&before.account))
    }

    /// Notes the pattern of a place whose listener has changed from this snapshot to the next.
    pub(crate) fn note_place(&self, next: &Self, place: &SelectionKey, changes: &mut Changes) {
        let (bind, layer, pattern) = place;
        if self.has_bind(bind) && !is_same(self.entry(place), next.entry(place)) {
            changes.note((*bind, *layer), pattern);
        }
    }

    /// The same for a pattern whose owner has changed.
    pub(crate) fn note_owner(
        &self,
        next: &Self,
        (gateway, pattern): (&str, &HostPattern),
        changes: &mut Changes,
    ) {
        let before = self.owners.of(gateway, pattern);
        let after = next.owners.of(gateway, pattern);
        if before.map(|of| of.tenant()) == after.map(|of| of.tenant()) {
            return;
        }
        for (bind, on) in &self.binds {
            for layer in [Layer::Tls, Layer::Plain] {
                // All listeners of one bind belong to one Gateway.
                let mut listeners = on.of(layer).values();
                if listeners
                    .next()
                    .is_some_and(|of| *of.listener.gateway == *gateway)
                {
                    changes.note((*bind, layer), pattern);
                }
            }
        }
    }

    /// Adds the tenants whose tunnels may not stand after these changes, which lead from this snapshot to the next one.
    /// Returns how many routes and names it looked at.
    ///
    /// Where one name is meant, its listener and its owner before and after say exactly whether its tunnels may end.
    /// Among the names of a wildcard, each may have listeners and owners of its own. So a route for a wildcard that a
    /// changed wildcard overlaps is always concerned.
    pub(crate) fn concerned_by(
        &self,
        next: &Self,
        changes: &Changes,
        concerned: &mut BTreeSet<TenantKey>,
    ) -> u64 {
        let mut looked_at = 0;
        for (place, names) in changes.iter() {
            let Some(step) = Step::new(self, next, place) else {
                continue;
            };
            for name in names.exact() {
                looked_at += 1;
                if let Some(entry) = step.altered(name) {
                    entry.routes.each(Some(name), &mut |_, account| {
                        looked_at += 1;
                        concerned.insert(TenantKey::of(account));
                    });
                }
            }
            if !names.has_wildcards() {
                continue;
            }
            let overlapped = |(of, _): &(HostPattern, &Entry)| names.wildcards_overlap(of);
            for (_, entry) in step.listeners.iter().filter(overlapped) {
                entry.routes.each(None, &mut |pattern, account| {
                    looked_at += 1;
                    let tenant = TenantKey::of(account);
                    let is_exactly = |name| {
                        step.altered(name)
                            .is_some_and(|altered| std::ptr::eq(altered, entry))
                    };
                    let is_concerned = !concerned.contains(&tenant)
                        && names.wildcards_overlap(pattern)
                        && match pattern {
                            HostPattern::Exact(name) => is_exactly(name),
                            HostPattern::Wildcard(_) | HostPattern::Any => true,
                        };
                    if is_concerned {
                        concerned.insert(tenant);
                    }
                });
            }
        }
        looked_at
    }
}

/// The step from one snapshot to the next, for the listeners of one layer of a bind.
struct Step<'a> {
    before: &'a Snapshot,
    next: &'a Snapshot,
    listeners: &'a PatternMap<Entry>,
    next_listeners: Option<&'a PatternMap<Entry>>,
}

impl<'a> Step<'a> {
    /// It is `None` if the bind had no listeners before.
    fn new(
        before: &'a Snapshot,
        next: &'a Snapshot,
        (bind, layer): &(BindKey, Layer),
    ) -> Option<Self> {
        Some(Self {
            before,
            next,
            listeners: before.binds.get(bind)?.of(*layer),
            next_listeners: next.binds.get(bind).map(|on| on.of(*layer)),
        })
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

/// Whether tunnels cannot tell the listeners at a place apart.
fn is_same(before: Option<&Entry>, after: Option<&Entry>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none() && after.is_none();
    };
    let (was, is) = (&before.listener, &after.listener);
    let validation = |of: &Listener| of.validation.as_ref().map(Arc::as_ptr);
    Arc::ptr_eq(was, is) && before.routes.of_port() == after.routes.of_port()
        || was.key == is.key
            && was.tenant == is.tenant
            && was.gateway == is.gateway
            && was.mode.kind() == is.mode.kind()
            && refuses_all(was) == refuses_all(is)
            && validation(was) == validation(is)
            && before.routes.of_port() == after.routes.of_port()
}

/// Whether a listener refuses every client, because it holds nothing to validate clients by.
pub(crate) fn refuses_all(listener: &Listener) -> bool {
    matches!(
        listener.mode,
        Mode::Terminate(Err(NotServing::NoTrustBundle))
            | Mode::Https(Err(NotServing::NoTrustBundle))
    )
}

impl OfKind {
    /// The tenant that has a port, if routes are selected by port alone.
    fn of_port(&self) -> Option<&Arc<str>> {
        self.first().map(|route| &route.tenant)
    }

    /// Visits all routes, or those for one name. A route may be visited several times.
    fn each(&self, name: Option<&Hostname>, each: &mut EachRoute<'_>) {
        match self {
            Self::Tls(routes) => routes.each(name, each),
            Self::Http(routes) => routes.each(name, each),
            Self::Port(routes) => routes.each(None, each),
        }
    }
}
