//! Owns the routing table: immutable snapshots that share structure, and the selection of listener, route and backend
//! for a connection.
//!
//! The rules come from Gateway API (GEP-2643 and `concepts/hostnames.md`). The server name selects the most specific
//! listener of the bind: an exact hostname first, then the wildcard with most labels, then the listener without a
//! hostname. After that, it selects the most specific route *of that listener*. If the listener has no matching route,
//! the connection is closed. It never goes to a less specific listener. Without a server name, no route matches.
//!
//! On a Gateway a hostname belongs to one namespace. Listeners and routes of other namespaces are ignored for it, and
//! the most specific one of the rest is selected.

mod changes;
mod listener_routes;
mod listeners;
mod ordered;
mod route;
mod route_table;
mod selection;
mod standing;
mod step;

use std::fmt;
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use vestibule_model::client_address::ClientAddress;
use vestibule_model::hostname::{HostPattern, Hostname};

pub use crate::backend::{Backend, Target};
use crate::bind::BindKey;
use crate::challenge::{Challenge, ChallengeLookup, ChallengeQuery, Challenges};
use crate::concerned::Concerned;
use crate::limits::HttpOverrides;
use crate::listener::{Layer, Listener};
use crate::owners::{HostnameGuard, Owners};
use crate::pattern_map::PatternMap;
use crate::quota::TenantQuota;
use crate::slot_map::{Slot, SlotMap};
pub use crate::upstream::ClientCertificate;
use crate::upstream::Credentials;
pub(crate) use changes::Changes;
pub(crate) use listener_routes::Routes;
pub(crate) use listeners::{Beginning, SelectionKey};
use listeners::{Bind, Entry};
pub(crate) use ordered::OrderedPatterns;
pub(crate) use route::Connections;
pub use route::{Pick, Route, WeightedBackend};
use route_table::RouteTable;
pub(crate) use selection::HttpSelection;
pub use selection::{Selection, Unmatched};
pub(crate) use standing::{Attachments, RouteId, RouteKind, SelectedBy, refuses_all};

/// Term and counter of a configuration generation, as in the protocol of the configuration stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Generation {
    /// Lease term of the publisher.
    pub term: u64,
    /// Counts batches within the term.
    pub counter: u64,
}

/// The configuration of one generation: everything by which a connection or request is served, from the listener to the
/// endpoints and the client certificate for them. A snapshot never changes after its publication. The next one shares
/// everything with it except the paths to what changed.
///
/// A decision by one snapshot sees one consistent configuration. Later snapshots do not affect it.
#[derive(Clone)]
pub struct Snapshot {
    generation: Generation,
    binds: RedBlackTreeMapSync<BindKey, Bind>,
    attached: standing::AllAttachments,
    owners: Owners,
    challenges: Challenges,
    backends: SlotMap<Backend>,
    client_certificates: SlotMap<ClientCertificate>,
    /// Tells the workers whose tunnels and HTTPS connections a change concerns. All snapshots of one proxy share it.
    concerned: Concerned,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            generation: Generation::default(),
            binds: RedBlackTreeMapSync::new_sync(),
            attached: HashTrieMapSync::new_sync(),
            owners: Owners::default(),
            challenges: Challenges::default(),
            backends: SlotMap::default(),
            client_certificates: SlotMap::default(),
            concerned: Concerned::default(),
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("generation", &self.generation)
            .field("binds", &self.binds.size())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    /// A snapshot without resources, which tells the same workers what a change concerns.
    pub(crate) fn empty(&self) -> Self {
        Self {
            concerned: self.concerned.clone(),
            ..Self::default()
        }
    }

    /// The layer with which connections on `bind` begin. It is TLS if there is no listener.
    #[must_use]
    pub fn layer(&self, bind: &BindKey) -> Layer {
        self.binds.get(bind).map(Bind::layer).unwrap_or_default()
    }

    /// How connections on `bind` begin.
    pub(crate) fn beginning(&self, bind: &BindKey) -> Beginning {
        let Some(on) = self.binds.get(bind) else {
            return Beginning::default();
        };
        Beginning {
            layer: on.layer(),
            closed: on.closed,
            client_address: on.client_address.clone(),
        }
    }

    /// How the address of a client is found on `bind`, if there may be hops in front of this proxy.
    pub(crate) fn client_address(&self, bind: &BindKey) -> Option<&Arc<ClientAddress>> {
        self.binds.get(bind)?.client_address.as_ref()
    }

    /// The treatment of ambiguous requests that the Gateway of `bind` sets.
    pub(crate) fn http_overrides(&self, bind: &BindKey) -> HttpOverrides {
        let on = self.binds.get(bind);
        on.map(|on| on.http).unwrap_or_default()
    }

    /// The listener for a request on `bind` for `host`, with its HTTP routes. In TLS, it is the listener that a
    /// connection for this name would get.
    pub(crate) fn select_http<'a>(
        &'a self,
        bind: &BindKey,
        layer: Layer,
        host: Option<&'a Hostname>,
    ) -> Option<HttpSelection<'a>> {
        let listeners = self.binds.get(bind)?.of(layer);
        let (entry, guard) = self.serving(listeners, host)?;
        Some(HttpSelection {
            listener: Arc::clone(&entry.listener),
            routes: entry.http(),
            guard,
        })
    }

    /// The most specific listener of a bind that may serve `name`, and a guard that says which of its routes may.
    ///
    /// A listener of a ListenerSet serves names that its namespace owns, and names that nobody owns. The Gateway's own
    /// listeners are open to all tenants, so there the guard decides about each route.
    ///
    /// A listener without the settings of its Gateway serves nothing, and no wider listener takes its names.
    fn serving<'a>(
        &'a self,
        listeners: &'a PatternMap<Entry>,
        name: Option<&'a Hostname>,
    ) -> Option<(&'a Entry, HostnameGuard<'a>)> {
        // Listeners of one bind nearly always belong to one Gateway (`Bind` says when not), and many of them may match a
        // long name. So the last owner that was found is remembered.
        let mut known: Option<(&str, Option<&Arc<TenantQuota>>)> = None;
        let mut matching = listeners.matching_or_any(name);
        let found = matching.find_map(|entry| {
            let listener = &*entry.listener;
            let owner = match known {
                Some((gateway, owner)) if *gateway == *listener.gateway => owner,
                _ => self.owners.owner(&listener.gateway, name),
            };
            known = Some((&listener.gateway, owner));
            let Some(owner) = owner else {
                return Some((entry, HostnameGuard::OPEN));
            };
            if listener.is_own() {
                return Some((entry, HostnameGuard::new(owner, &listener.tenant)));
            }
            (**owner.tenant() == *listener.tenant).then_some((entry, HostnameGuard::OPEN))
        });
        found.filter(|(entry, _)| !entry.listener.lacks_settings())
    }

    /// The namespace for which a listener serves a name: its own one, or on the Gateway's own listeners the owner of the
    /// name.
    pub(crate) fn served_for<'a>(
        &'a self,
        listener: &'a Listener,
        name: Option<&'a Hostname>,
    ) -> &'a Arc<str> {
        let owner = listener
            .is_own()
            .then(|| self.owners.owner(&listener.gateway, name));
        owner
            .flatten()
            .map_or(&listener.tenant, |owner| owner.tenant())
    }

    /// The namespace for which a request on `bind` for `host` is served, if a listener serves it.
    pub(crate) fn namespace_of<'a>(
        &'a self,
        bind: &BindKey,
        layer: Layer,
        host: Option<&'a Hostname>,
    ) -> Option<&'a Arc<str>> {
        let listeners = self.binds.get(bind)?.of(layer);
        let (entry, _) = self.serving(listeners, host)?;
        Some(self.served_for(&entry.listener, host))
    }

    /// Sets the owner of a pattern on a Gateway.
    pub(crate) fn set_owner(
        &mut self,
        gateway: &Arc<str>,
        names: HostPattern,
        tenant: Arc<TenantQuota>,
    ) {
        self.owners.set(gateway, names, tenant);
    }

    /// Removes the owner of a pattern on a Gateway.
    pub(crate) fn clear_owner(&mut self, gateway: &str, names: &HostPattern) {
        self.owners.clear(gateway, names);
    }

    /// The owners of hostnames.
    pub(crate) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The backend in a slot to which a route of this snapshot refers.
    pub(crate) fn backend(&self, slot: Slot<Backend>) -> Option<&Arc<Backend>> {
        self.backends.get(slot)
    }

    /// Replaces the version of a backend. `None` removes it, when nothing refers to it any more.
    pub(crate) fn set_backend(&mut self, slot: Slot<Backend>, backend: Option<Arc<Backend>>) {
        self.backends.set(slot, backend);
    }

    /// The credentials for TLS to `backend`, for a client of `listener`. Both must belong to this snapshot.
    pub(crate) fn credentials(&self, listener: &Listener, backend: &Backend) -> Credentials {
        let settings = listener.settings.of_gateway();
        let shown_to_it = settings.is_none_or(|of| {
            !of.selective || backend.target.certificate_of.contains(&listener.gateway)
        });
        match settings.and_then(|of| of.backend_certificate.as_ref()) {
            None => Credentials::None,
            Some(_) if !shown_to_it => Credentials::Withheld,
            Some(slot) => match self.client_certificates.get(**slot) {
                Some(certificate) => Credentials::Certificate(Arc::clone(certificate)),
                None => Credentials::Missing,
            },
        }
    }

    /// Replaces the client certificate of a Gateway; `None` while it is not held.
    pub(crate) fn set_client_certificate(
        &mut self,
        slot: Slot<ClientCertificate>,
        certificate: Option<Arc<ClientCertificate>>,
    ) {
        self.client_certificates.set(slot, certificate);
    }

    /// The challenge for the question of a CA on `bind`, whichever listener is selected for its name.
    pub(crate) fn challenge(
        &self,
        bind: &BindKey,
        question: ChallengeQuery,
    ) -> Option<Arc<Challenge>> {
        let challenge = self.challenges.get(&(*bind, question)).cloned()?;
        // A connection may outlive its bind, but a challenge counts only on a bind that is open.
        self.has_bind(bind).then_some(challenge)
    }

    /// The listener that a TLS connection for `server_name` on `bind` would get now.
    pub(crate) fn tls_listener<'a>(
        &'a self,
        bind: &BindKey,
        server_name: Option<&'a Hostname>,
    ) -> Option<&'a Arc<Listener>> {
        let listeners = &self.binds.get(bind)?.tls;
        let (entry, _) = self.serving(listeners, server_name)?;
        Some(&entry.listener)
    }

    /// The challenge at a place, even if the bind is not open.
    pub(crate) fn challenge_at(&self, place: &ChallengeLookup) -> Option<&Challenge> {
        self.challenges.get(place).map(|challenge| &**challenge)
    }

    /// How many challenges there are, those on binds that are not open included.
    #[cfg(test)]
    pub(crate) fn challenges(&self) -> usize {
        self.challenges.len()
    }

    /// Puts a challenge at its place.
    pub(crate) fn set_challenge(&mut self, place: ChallengeLookup, challenge: Arc<Challenge>) {
        self.challenges.set(place, challenge);
    }

    /// Removes the challenge at a place.
    pub(crate) fn clear_challenge(&mut self, place: &ChallengeLookup) {
        self.challenges.clear(place);
    }

    /// Selects listener and route for a TLS connection that came in on `bind`.
    pub fn select(
        &self,
        bind: &BindKey,
        server_name: Option<&Hostname>,
    ) -> Result<Selection, Unmatched> {
        let listeners = &self.binds.get(bind).ok_or(Unmatched::NoBind)?.tls;
        let none = || match server_name {
            Some(_) => Unmatched::NoListener,
            None => Unmatched::NoServerName,
        };
        let (entry, guard) = self.serving(listeners, server_name).ok_or_else(none)?;
        let route = server_name.and_then(|name| entry.select(name, guard));
        let account = match &route {
            Some(route) => &route.account,
            None => guard.owner().unwrap_or(&entry.listener.account),
        };
        Ok(Selection {
            listener: Arc::clone(&entry.listener),
            account: Arc::clone(account),
            route,
        })
    }

    /// Selects listener and route for a connection or session on `bind`, by port alone. The operator has already
    /// decided to whom the port belongs, so the owners of hostnames play no part.
    pub fn select_by_port(&self, bind: &BindKey) -> Result<Selection, Unmatched> {
        let on = self.binds.get(bind).ok_or(Unmatched::NoBind)?;
        let entry = on.bytes.get(&HostPattern::Any);
        let entry = entry.filter(|entry| !entry.listener.lacks_settings());
        let entry = entry.ok_or(Unmatched::NoBind)?;
        let route = entry.by_port().and_then(RouteTable::first);
        let account = route.map_or(&entry.listener.account, |route| &route.account);
        Ok(Selection {
            listener: Arc::clone(&entry.listener),
            account: Arc::clone(account),
            route: route.cloned(),
        })
    }

    /// Tells the workers whose tunnels and HTTPS connections a change concerns.
    pub(crate) fn concerned(&self) -> &Concerned {
        &self.concerned
    }

    /// The binds with at least one listener.
    pub fn binds(&self) -> impl Iterator<Item = &BindKey> {
        self.binds.keys()
    }

    /// Whether `bind` has at least one listener.
    #[must_use]
    pub fn has_bind(&self, bind: &BindKey) -> bool {
        self.binds.contains_key(bind)
    }

    /// The listener at a place.
    pub(crate) fn holder(&self, place: &SelectionKey) -> Option<&Listener> {
        Some(&self.entry(place)?.listener)
    }

    fn entry(&self, (bind, layer, pattern): &SelectionKey) -> Option<&Entry> {
        self.binds.get(bind)?.of(*layer).get(pattern)
    }

    /// The listeners of a bind with this layer. If the bind has another layer, there are none.
    pub(crate) fn listeners(
        &self,
        bind: &BindKey,
        layer: Layer,
    ) -> impl Iterator<Item = &Listener> {
        let entries = self.binds.get(bind).map(|on| on.of(layer).values());
        entries.into_iter().flatten().map(|entry| &*entry.listener)
    }

    /// The generation this snapshot belongs to.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn set_generation(&mut self, generation: Generation) {
        self.generation = generation;
    }

    /// Puts a listener with its routes at its place, instead of the one that was there. Its bind gets its settings.
    pub(crate) fn place(
        &mut self,
        (bind, layer, pattern): SelectionKey,
        listener: Arc<Listener>,
        routes: Arc<Routes>,
    ) {
        let mut listeners = self.binds.get(&bind).cloned().unwrap_or_else(Bind::new);
        listeners.follow(&listener, bind.transport);
        let entry = Entry { listener, routes };
        listeners.of_mut(layer).insert(pattern, entry);
        self.binds.insert_mut(bind, listeners);
    }

    /// Removes the listener at a place, and the bind with its last listener. A bind that stays keeps the settings
    /// of its Gateway, or gets those of another Gateway that has a listener left.
    pub(crate) fn clear(&mut self, (bind, layer, pattern): &SelectionKey) {
        let Some(mut listeners) = self.binds.get(bind).cloned() else {
            return;
        };
        listeners.of_mut(*layer).remove(pattern);
        let left = listeners.left().cloned();
        match left {
            None => _ = self.binds.remove_mut(bind),
            Some(left) => {
                listeners.follow(&left, bind.transport);
                self.binds.insert_mut(*bind, listeners);
            }
        }
    }
}
