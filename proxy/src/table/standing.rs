//! Decides whether a snapshot still serves a tunnel that an earlier one admitted, and which changes of the configuration
//! may end tunnels.
//!
//! A tunnel stands as long as its name still leads to a listener of the same namespace, and its own route is attached
//! there for this name. Which backend the route would choose now plays no part.

use std::collections::HashMap;
use std::sync::Arc;

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

use super::changes::Changes;
use super::{Connections, Entry, RouteTable, SelectionKey, Snapshot};
use crate::attached_names::{AttachedNames, EachRoute, Visited};
use crate::bind::BindKey;
use crate::concerned::TenantKey;
use crate::listener::{Layer, Listener, Mode, NotServing};
use crate::owners::HostnameGuard;
use crate::quota::TenantQuota;

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

/// The listeners to which a route is attached.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// The quota of the route's namespace.
    pub(crate) account: Arc<TenantQuota>,
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

/// The facts by which a tunnel was selected.
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
            names.paths().is_empty() || names.paths().iter().any(|part| part.contains(path))
        };
        // A route that has only some paths of a name has them whoever owns the name.
        let may = |names: &AttachedNames| {
            names.shared || !names.paths().is_empty() || guard.admits(tenant)
        };
        let is_attached = attachments
            .to
            .iter()
            .any(|(to, names)| *to == is.key && takes(names) && is_inside(names) && may(names));
        // A listener of the Gateway itself stays the Gateway's while its port passes from one tenant to another.
        let has_port = entry.tenant_of_port().is_none_or(|first| first == tenant);
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
            Layer::Bytes => {
                let entry = listeners.get(&HostPattern::Any)?;
                (!entry.listener.lacks_settings()).then_some((entry, HostnameGuard::OPEN))
            }
            Layer::Tls | Layer::Plain => self.serving(listeners, name),
        }
    }

    /// The listeners to which a route is attached. Each version of a route has an allocation of its own.
    pub(crate) fn attachments(&self, route: &RouteId) -> Option<&Arc<Attachments>> {
        self.attached.get(route)
    }

    /// Sets the listeners to which a route is attached; `None` removes the route.
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

    /// The [key](TenantKey::of_https) of a listener's tenant, if the listener validates its clients otherwise in the next
    /// snapshot than a listener at its place did in this one.
    pub(crate) fn concerned_by_validation(
        &self,
        next: &Self,
        place: &SelectionKey,
    ) -> Option<TenantKey> {
        let is = &next.entry(place)?.listener;
        // Without a listener nobody is validated. A listener may be deleted, and created anew with validation.
        let stays = match self.entry(place) {
            Some(before) => validate_alike(&before.listener, is),
            None => is.validation.is_none() && !refuses_all(is),
        };
        (!stays).then(|| TenantKey::of_https(&is.account))
    }

    /// Notes the pattern of a place whose listener has changed from this snapshot to the next.
    pub(crate) fn note_place(&self, next: &Self, place: &SelectionKey, changes: &mut Changes) {
        let (bind, layer, pattern) = place;
        if self.has_bind(bind) && !is_same(self.entry(place), next.entry(place)) {
            changes.note_listener((*bind, *layer), pattern);
        }
    }

    /// Notes the patterns, each with its Gateway, whose owner has changed.
    pub(crate) fn note_owners<'a>(
        &self,
        next: &Self,
        patterns: impl Iterator<Item = (&'a str, &'a HostPattern)>,
        changes: &mut Changes,
    ) {
        let owner = |of: &Self, (gateway, pattern): &(&str, &HostPattern)| {
            let owner = of.owners.of(gateway, pattern);
            owner.map(|owner| Arc::clone(owner.tenant()))
        };
        let mut others = patterns
            .filter(|names| owner(self, names) != owner(next, names))
            .peekable();
        if others.peek().is_none() {
            return;
        }
        let places = self.places_of_gateways();
        for (gateway, pattern) in others {
            for place in places.get(gateway).into_iter().flatten() {
                changes.note_owner(*place, pattern);
            }
        }
    }

    /// The binds and layers of each Gateway on which hostnames count.
    fn places_of_gateways(&self) -> HashMap<&str, Vec<(BindKey, Layer)>> {
        let mut places = HashMap::<_, Vec<_>>::new();
        for (bind, on) in &self.binds {
            for layer in [Layer::Tls, Layer::Plain] {
                // All listeners of one bind belong to one Gateway.
                if let Some(first) = on.of(layer).values().next() {
                    let of = places.entry(&*first.listener.gateway).or_default();
                    of.push((*bind, layer));
                }
            }
        }
        places
    }
}

/// Whether tunnels cannot tell the listeners at a place apart.
pub(super) fn is_same(before: Option<&Entry>, after: Option<&Entry>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before.is_none() && after.is_none();
    };
    let (was, is) = (&before.listener, &after.listener);
    Arc::ptr_eq(was, is) && before.tenant_of_port() == after.tenant_of_port()
        || was.key == is.key
            && was.tenant == is.tenant
            && was.gateway == is.gateway
            && was.mode.kind() == is.mode.kind()
            && was.lacks_settings() == is.lacks_settings()
            && validate_alike(was, is)
            && before.tenant_of_port() == after.tenant_of_port()
}

/// Whether two listeners validate clients by the same version of the same settings.
fn validate_alike(was: &Listener, is: &Listener) -> bool {
    let validation = |of: &Listener| of.validation.as_ref().map(Arc::as_ptr);
    refuses_all(was) == refuses_all(is) && validation(was) == validation(is)
}

/// Whether a listener refuses every client, because it holds nothing to validate clients by.
pub(crate) fn refuses_all(listener: &Listener) -> bool {
    matches!(
        listener.mode,
        Mode::Terminate(Err(NotServing::NoTrustBundle))
            | Mode::Https(Err(NotServing::NoTrustBundle))
    )
}

impl Entry {
    /// The tenant that has a port, if routes are selected by port alone.
    fn tenant_of_port(&self) -> Option<&Arc<str>> {
        let first = self.by_port().and_then(RouteTable::first);
        first.map(|route| &route.tenant)
    }

    /// Visits routes. A route may be visited several times.
    pub(super) fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
        match self.listener.mode {
            Mode::Passthrough | Mode::Terminate(_) => self.routes.tls.each(visited, each),
            Mode::Http | Mode::Https(_) => self.routes.http.each(visited, each),
            Mode::Tcp | Mode::Udp => {
                let routes = self.by_port();
                if let Some(routes) = routes {
                    routes.each(Visited::All, each);
                }
            }
        }
    }
}
