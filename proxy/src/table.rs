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
mod ordered;
mod standing;
mod step;

use std::cmp::Reverse;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use vestibule_model::client_address::{ClientAddress, ProxyProtocol};
use vestibule_model::hostname::{HostPattern, Hostname, Specificity};

use crate::attached_names::{AttachedNames, EachRoute, Visited};
pub use crate::backend::{Backend, Target};
use crate::bind::BindKey;
use crate::challenge::{Challenge, ChallengeLookup, ChallengeQuery, Challenges};
use crate::close_reason::CloseReason;
use crate::concerned::Concerned;
use crate::http_route::HttpTable;
use crate::listener::{Layer, Listener, Mode};
use crate::owners::{HostnameGuard, Owners};
use crate::pattern_map::PatternMap;
use crate::quota::Account;
use crate::slot_map::{Slot, SlotMap};
pub use crate::upstream::ClientCertificate;
use crate::upstream::Credentials;
use crate::weight::by_weight;
pub(crate) use changes::Changes;
pub(crate) use ordered::OrderedPatterns;
pub(crate) use standing::{Attachments, RouteId, RouteKind, SelectedBy, refuses_all};

/// Term and counter of a configuration generation, as in the protocol of the configuration stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Generation {
    /// Lease term of the publisher.
    pub term: u64,
    /// Counts batches within the term.
    pub counter: u64,
}

/// The destination of a connection.
#[derive(Debug, Clone)]
pub enum Pick {
    /// Connect to this endpoint of this backend.
    Endpoint(SocketAddr, Arc<Backend>),
    /// The weights chose an invalid backend reference. Close the connection.
    InvalidBackend,
    /// The backend that was chosen has no endpoints. Close the connection.
    NoEndpoints,
    /// There is no backend, or all weights are 0. Close the connection.
    NoWeight,
}

/// One weighted reference of a route.
#[derive(Debug, Clone)]
pub struct WeightedBackend {
    /// Share among the route's backends, up to 1,000,000.
    pub weight: u32,
    /// `None` for an invalid reference, which keeps its share.
    pub(crate) backend: Option<Slot<Backend>>,
}

impl WeightedBackend {
    /// Whether the reference is valid. Connections in the share of an invalid one are closed.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.backend.is_some()
    }
}

/// A route as connections see it.
#[derive(Debug)]
pub struct Route {
    pub(crate) kind: Connections,
    /// `<namespace>/<name>`. A route of another kind may have the same.
    pub key: Arc<str>,
    /// Namespace of the route.
    pub tenant: Arc<str>,
    /// Creation, in seconds since the Unix epoch. Of equal hostnames, that of the older route has precedence.
    pub created: i64,
    /// The account to which its connections are charged.
    pub(crate) account: Arc<Account>,
    backends: Box<[WeightedBackend]>,
    total: u64,
}

impl Route {
    /// A route with its backends, in the order of the spec.
    #[must_use]
    pub(crate) fn new(
        (kind, key): (Connections, Arc<str>),
        account: Arc<Account>,
        created: i64,
        backends: Vec<WeightedBackend>,
    ) -> Self {
        let total = backends.iter().map(|b| u64::from(b.weight)).sum();
        Self {
            kind,
            key,
            tenant: Arc::clone(account.tenant()),
            created,
            account,
            backends: backends.into(),
            total,
        }
    }

    /// The weighted references.
    #[must_use]
    pub fn backends(&self) -> &[WeightedBackend] {
        &self.backends
    }

    /// Chooses a backend by weight, with the upper half of `random`, and one of its endpoints, with the lower half. The
    /// route must belong to `snapshot`.
    #[must_use]
    pub fn pick(&self, snapshot: &Snapshot, random: u64) -> Pick {
        self.pick_with(snapshot, random, |of| of.endpoint(random, |_| true))
    }

    /// The same, but `endpoint` chooses the endpoint.
    pub(crate) fn pick_with(
        &self,
        snapshot: &Snapshot,
        random: u64,
        endpoint: impl FnOnce(&Backend) -> Option<SocketAddr>,
    ) -> Pick {
        let Some(picked) = by_weight(&self.backends, |of| of.weight, self.total, random) else {
            return Pick::NoWeight;
        };
        let Some(slot) = picked.backend else {
            return Pick::InvalidBackend;
        };
        let backend = snapshot.backend(slot);
        let picked = backend.and_then(|backend| {
            let address = endpoint(backend)?;
            Some(Pick::Endpoint(address, Arc::clone(backend)))
        });
        picked.unwrap_or(Pick::NoEndpoints)
    }
}

/// The selection for a connection.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The most specific listener.
    pub listener: Arc<Listener>,
    /// The route; `None` if the listener has none for this name. Then close the connection without an alert. Never fall
    /// back to a less specific listener.
    pub route: Option<Arc<Route>>,
    /// The account to which the connection is charged: that of the route or, without one, of the owner of the name.
    pub(crate) account: Arc<Account>,
}

/// The selection for an HTTP request.
pub(crate) struct HttpSelection<'a> {
    /// The most specific listener.
    pub(crate) listener: Arc<Listener>,
    /// Its routes.
    pub(crate) routes: HttpTable,
    /// Decides which of them may serve the host of the request.
    pub(crate) guard: HostnameGuard<'a>,
}

/// Why no listener was selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// The bind is not in the configuration (any more).
    NoBind,
    /// No listener of the bind matches the server name.
    NoListener,
    /// There is no server name, and every listener of the bind has a hostname.
    NoServerName,
}

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

    fn select<'a>(
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
    fn each(&self, visited: Visited<'_>, each: &mut EachRoute<'_>) {
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

    fn are_few(&self) -> bool {
        matches!(self.0, Rows::Few(_))
    }

    /// Whether a route is attached for exactly this pattern.
    fn has(&self, pattern: &HostPattern) -> bool {
        match &self.0 {
            Rows::Few(rows) => rows.iter().any(|row| row.pattern == *pattern),
            Rows::Many(index) => index.get(pattern).is_some(),
        }
    }

    /// The route that comes before all others. It is for listeners that are selected by port alone.
    fn first(&self) -> Option<&Arc<Route>> {
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

/// The routes of a listener, of every kind. Routes of a kind that it does not take are there as well, for the case that its
/// protocol changes.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    pub(crate) tls: RouteTable,
    pub(crate) http: HttpTable,
    /// In a box, because there are few such listeners.
    ports: Option<Box<PortRoutes>>,
}

/// The routes of a listener that are selected by port alone.
#[derive(Clone, Default)]
struct PortRoutes {
    tcp: RouteTable,
    udp: RouteTable,
}

/// The kinds of routes that are selected for connections and not for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Connections {
    Tls,
    Tcp,
    Udp,
}

impl Connections {
    /// The kind of the routes, as the API names it.
    pub(crate) fn route_kind(self) -> &'static str {
        match self {
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        let is_unused = |of: &PortRoutes| of.tcp.is_empty() && of.udp.is_empty();
        self.tls.is_empty() && self.http.is_empty() && self.ports.as_deref().is_none_or(is_unused)
    }

    /// Whether a look at all routes that are selected by name costs next to nothing.
    fn are_few(&self) -> bool {
        self.tls.are_few() && self.http.are_few()
    }

    /// Whether a route that is selected by name is attached for exactly this pattern.
    fn have(&self, pattern: &HostPattern) -> bool {
        self.tls.has(pattern) || self.http.has(pattern)
    }

    /// Visits all routes that are selected by name.
    fn each(&self, each: &mut EachRoute<'_>) {
        self.tls.each(Visited::All, each);
        self.http.each(Visited::All, each);
    }

    pub(crate) fn of_mut(&mut self, kind: Connections) -> &mut RouteTable {
        match kind {
            Connections::Tls => &mut self.tls,
            Connections::Tcp => &mut self.ports.get_or_insert_default().tcp,
            Connections::Udp => &mut self.ports.get_or_insert_default().udp,
        }
    }
}

/// A listener with its routes, at its place in a bind. Only routes of the kind that the listener takes are selected.
#[derive(Clone)]
struct Entry {
    listener: Arc<Listener>,
    routes: Arc<Routes>,
}

impl Entry {
    fn http(&self) -> HttpTable {
        match self.listener.mode {
            Mode::Http | Mode::Https(_) => self.routes.http.clone(),
            Mode::Passthrough | Mode::Terminate(_) | Mode::Tcp | Mode::Udp => HttpTable::default(),
        }
    }

    fn select(&self, name: &Hostname, guard: HostnameGuard<'_>) -> Option<Arc<Route>> {
        match self.listener.mode {
            Mode::Passthrough | Mode::Terminate(_) => self.routes.tls.select(name, guard).cloned(),
            Mode::Http | Mode::Https(_) | Mode::Tcp | Mode::Udp => None,
        }
    }

    /// The routes that are selected by port alone.
    fn by_port(&self) -> Option<&RouteTable> {
        let ports = self.routes.ports.as_deref()?;
        match self.listener.mode {
            Mode::Tcp => Some(&ports.tcp),
            Mode::Udp => Some(&ports.udp),
            Mode::Passthrough | Mode::Terminate(_) | Mode::Http | Mode::Https(_) => None,
        }
    }
}

/// The listeners of one socket. At most one of the layers has any. (If the operator sent a mix, which it must not,
/// connections would have to begin with TLS or, without TLS listeners, with a request.)
#[derive(Clone)]
struct Bind {
    tls: PatternMap<Entry>,
    plain: PatternMap<Entry>,
    bytes: PatternMap<Entry>,
    /// How the addresses of clients are found. All listeners of a bind belong to one Gateway, so they agree.
    client_address: Option<Arc<ClientAddress>>,
}

impl Bind {
    fn new() -> Self {
        Self {
            tls: PatternMap::new(),
            plain: PatternMap::new(),
            bytes: PatternMap::new(),
            client_address: None,
        }
    }

    fn of(&self, layer: Layer) -> &PatternMap<Entry> {
        match layer {
            Layer::Tls => &self.tls,
            Layer::Plain => &self.plain,
            Layer::Bytes => &self.bytes,
        }
    }

    fn of_mut(&mut self, layer: Layer) -> &mut PatternMap<Entry> {
        match layer {
            Layer::Tls => &mut self.tls,
            Layer::Plain => &mut self.plain,
            Layer::Bytes => &mut self.bytes,
        }
    }

    fn is_empty(&self) -> bool {
        Layer::ALL.iter().all(|layer| self.of(*layer).is_empty())
    }

    /// The layer with which connections begin.
    fn layer(&self) -> Layer {
        let mut used = Layer::ALL
            .iter()
            .filter(|layer| !self.of(**layer).is_empty());
        used.next().copied().unwrap_or_default()
    }
}

/// How connections on a bind begin.
#[derive(Clone, Default)]
pub(crate) struct Beginning {
    /// The layer with which they begin.
    pub(crate) layer: Layer,
    client_address: Option<Arc<ClientAddress>>,
}

impl Beginning {
    /// The settings of a PROXY header before that, if there can be one.
    pub(crate) fn proxy_protocol(&self) -> Option<&ProxyProtocol> {
        self.client_address.as_ref()?.proxy_protocol.as_ref()
    }
}

/// The place of a listener: the key by which it is selected. No two listeners have the same.
pub(crate) type SelectionKey = (BindKey, Layer, HostPattern);

/// The configuration of one generation: everything by which a connection or request is served, from the listener to the
/// endpoints and the client certificate for them. A snapshot never changes after its publication. The next one shares
/// everything with it except the paths to what changed.
///
/// A decision by one snapshot sees one consistent configuration. Later snapshots take nothing away that it found there.
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
            client_address: on.client_address.clone(),
        }
    }

    /// How the address of a client is found on `bind`, if there may be hops in front of this proxy.
    pub(crate) fn client_address(&self, bind: &BindKey) -> Option<&Arc<ClientAddress>> {
        self.binds.get(bind)?.client_address.as_ref()
    }

    /// Sets how it is found from now on, if the bind exists.
    pub(crate) fn set_client_address(&mut self, bind: &BindKey, how: Option<Arc<ClientAddress>>) {
        let Some(on) = self.binds.get(bind) else {
            return;
        };
        if on.client_address != how {
            let mut on = on.clone();
            on.client_address = how;
            self.binds.insert_mut(*bind, on);
        }
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
    fn serving<'a>(
        &'a self,
        listeners: &'a PatternMap<Entry>,
        name: Option<&'a Hostname>,
    ) -> Option<(&'a Entry, HostnameGuard<'a>)> {
        // Listeners of one bind nearly always belong to one Gateway, and many of them may match a long name. So the
        // last owner that was found is remembered.
        let mut known: Option<(&str, Option<&Arc<Account>>)> = None;
        listeners.matching_or_any(name).find_map(|entry| {
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
        })
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
        tenant: Arc<Account>,
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
        let shown_to_it =
            || !listener.selective || backend.target.certificate_of.contains(&listener.gateway);
        let shown = listener.of_gateway.as_ref();
        match shown.and_then(|of| of.backend_certificate.as_ref()) {
            None => Credentials::None,
            Some(_) if !shown_to_it() => Credentials::Withheld,
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

    /// Puts a listener with its routes at its place, instead of the one that was there.
    pub(crate) fn place(
        &mut self,
        (bind, layer, pattern): SelectionKey,
        listener: Arc<Listener>,
        routes: Arc<Routes>,
    ) {
        let mut listeners = self.binds.get(&bind).cloned().unwrap_or_else(Bind::new);
        let entry = Entry { listener, routes };
        listeners.of_mut(layer).insert(pattern, entry);
        self.binds.insert_mut(bind, listeners);
    }

    /// Removes the listener at a place, and the bind with its last listener.
    pub(crate) fn clear(&mut self, (bind, layer, pattern): &SelectionKey) {
        let Some(mut listeners) = self.binds.get(bind).cloned() else {
            return;
        };
        listeners.of_mut(*layer).remove(pattern);
        if listeners.is_empty() {
            self.binds.remove_mut(bind);
        } else {
            self.binds.insert_mut(*bind, listeners);
        }
    }
}

impl From<Unmatched> for CloseReason {
    fn from(unmatched: Unmatched) -> Self {
        match unmatched {
            Unmatched::NoBind => Self::NoListener,
            Unmatched::NoListener => Self::UnknownServerName,
            Unmatched::NoServerName => Self::NoServerName,
        }
    }
}
