//! Owns the question whether a snapshot still serves a tunnel that an earlier one admitted, and which tenants' tunnels
//! may not be served any more after a change.
//!
//! A tunnel stands as long as its name still leads to a listener of the same namespace, and its own route is attached
//! there for this name. Which backend the route would choose now plays no part.

use std::collections::BTreeSet;
use std::sync::Arc;

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

use super::{Bind, Connections, Entry, OfKind, SelectionKey, Snapshot};
use crate::attached_names::AttachedNames;
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::listener::{Layer, Listener, Mode, NotServing};
use crate::owners::HostnameGuard;
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

    /// Adds the tenants whose tunnels may not stand after the listener at a place has changed from this snapshot to the
    /// next.
    pub(crate) fn concerned_by_place(
        &self,
        next: &Self,
        (bind, layer, pattern): &SelectionKey,
        concerned: &mut BTreeSet<TenantKey>,
    ) {
        let Some(on) = self.binds.get(bind) else {
            return;
        };
        let before = on.of(*layer).get(pattern);
        let after = next
            .binds
            .get(bind)
            .and_then(|on| on.of(*layer).get(pattern));
        if is_same(before, after) {
            return;
        }
        let tenants: Vec<&str> = [before, after]
            .into_iter()
            .flatten()
            .map(|entry| &*entry.listener.tenant)
            .collect();
        self.concerned_at(next, (bind, on, *layer), (pattern, &tenants), concerned);
    }

    /// The same after the owner of a pattern has changed.
    pub(crate) fn concerned_by_owner(
        &self,
        next: &Self,
        (gateway, pattern): (&str, &HostPattern),
        concerned: &mut BTreeSet<TenantKey>,
    ) {
        let before = self.owners.of(gateway, pattern);
        let after = next.owners.of(gateway, pattern);
        if before.map(|of| of.tenant()) == after.map(|of| of.tenant()) {
            return;
        }
        let tenants: Vec<&str> = [before, after]
            .into_iter()
            .flatten()
            .map(|account| &**account.tenant())
            .collect();
        for (bind, on) in &self.binds {
            for layer in [Layer::Tls, Layer::Plain] {
                // All listeners of one bind belong to one Gateway.
                let mut listeners = on.of(layer).values();
                if listeners
                    .next()
                    .is_some_and(|of| *of.listener.gateway == *gateway)
                {
                    self.concerned_at(next, (bind, on, layer), (pattern, &tenants), concerned);
                }
            }
        }
    }

    /// Adds the tenants of routes on one bind whose names may be served by another listener or for another owner in the
    /// next snapshot. `pattern` is that of the listener or owner that changed, and `tenants` are those to which it
    /// belonged and belongs.
    fn concerned_at(
        &self,
        next: &Self,
        (bind, on, layer): (&BindKey, &Bind, Layer),
        (pattern, tenants): (&HostPattern, &[&str]),
        concerned: &mut BTreeSet<TenantKey>,
    ) {
        let differs = |name: &Hostname| {
            let before = self.serves_now(bind, layer, Some(name));
            let after = next.serves_now(bind, layer, Some(name));
            let owner = |of: Option<(&Entry, HostnameGuard<'_>)>| {
                of.and_then(|(_, guard)| guard.owner().map(|owner| Arc::clone(owner.tenant())))
            };
            !is_same(before.map(|of| of.0), after.map(|of| of.0)) || owner(before) != owner(after)
        };
        if let HostPattern::Exact(name) = pattern {
            if let Some((entry, _)) = self.serves_now(bind, layer, Some(name))
                && differs(name)
            {
                entry.routes.each(Some(name), &mut |_, _, account| {
                    concerned.insert(TenantKey::of(account));
                });
            }
            return;
        }
        for (of, entry) in on.of(layer).iter() {
            if !of.overlaps(pattern) {
                continue;
            }
            let is_its = tenants.contains(&&*entry.listener.tenant);
            entry.routes.each(None, &mut |names, shared, account| {
                let Some(both) = names.intersect(pattern) else {
                    return;
                };
                let is_concerned = match &both {
                    // Where one name is meant, its listener before and after says it exactly.
                    HostPattern::Exact(name) => differs(name),
                    // Among the names of a pattern, some may have owners of their own. So this looks at whoever may
                    // have had such a name.
                    HostPattern::Wildcard(_) | HostPattern::Any => {
                        is_its
                            || shared
                            || tenants.contains(&&**account.tenant())
                            || *entry.listener.tenant == **account.tenant()
                                && entry.listener.is_own()
                            || any_of(&both).is_none_or(|name| differs(&name))
                    }
                };
                if is_concerned {
                    concerned.insert(TenantKey::of(account));
                }
            });
        }
    }
}

/// A name of a pattern that hardly anybody has by itself.
fn any_of(pattern: &HostPattern) -> Option<Hostname> {
    match pattern {
        HostPattern::Exact(name) => Some(name.clone()),
        HostPattern::Wildcard(suffix) => Hostname::parse(&format!("vestibule-any.{suffix}")).ok(),
        HostPattern::Any => Hostname::parse("vestibule-any.invalid").ok(),
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

/// Takes the pattern, whether its owner's names are shared, and the account of a route.
pub(crate) type EachRoute<'a> = dyn FnMut(&HostPattern, bool, &Arc<Account>) + 'a;

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
