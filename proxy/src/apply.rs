//! Owns the configuration in force: takes changes, checks each resource, and publishes the next snapshot with one
//! atomic store.
//!
//! The cost of a change depends on the resources that it touches, and not on how many are held. The next snapshot
//! shares everything else with the present one, because it consists of persistent maps. [`Work`] counts what was built
//! again.

mod backend_tls;
mod backends;
mod certificates;
mod challenges;
mod clients;
mod concerned;
mod dump;
mod gateway_settings;
mod http;
mod names;
mod parse;
mod parse_client_address;
mod parse_http;
mod parsing;
mod private_key;
mod reject;
mod resolver;
mod resource_names;
mod routes;
mod terminate;
mod tls;
mod trust;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::hostname::HostPattern;
use vestibule_stream::{Change, Reject, Resource, ResourceKey, ResourceKind};

pub use dump::{
    BackendDump, ChallengeDump, GatewaySettingsDump, HttpRouteDump, ListenerDump, OwnerDump,
    PortRouteDump, RouteDump, StateDump, TenantDump,
};
pub use reject::RejectReason;
pub use tls::CertificateInfo;

use crate::backend::{Backend, Target};
use crate::bind::BindKey;
use crate::expiry::Expiries;
use crate::listener::{GatewaySettings, Layer, Listener, Mode, NotServing};
use crate::metrics::Metrics;
use crate::pack::pack;
use crate::quota::{TenantLimits, TenantQuotas};
use crate::slot_map::{Slot, SlotAllocator};
use crate::table::{Connections, Generation, OrderedPatterns, Routes, SelectionKey, Snapshot};
use crate::tenants::Tenants;
use crate::upstream;
use crate::upstream::ClientCertificate;
use backends::HeldBackend;
use challenges::HeldChallenge;
use concerned::Touched;
use http::HeldHttpRoute;
use names::Names;
use parse::{ListenerSpec, OwnerSpec, Protocol};
use parsing::{Parsed, Parsing};
use routes::HeldRoute;
use terminate::HeldTerminate;
use tls::{ConfigFactory, HeldCertificate};
use trust::{HeldTrust, Unions, Users};

/// Opens and closes the sockets of listeners.
pub trait Binder {
    /// Returns when `bind` is bound and listens. It is called before a listener there is accepted, so that the
    /// acknowledgement can say that the port is in use. Opening a bind that is already open is no error.
    fn open(&mut self, bind: &BindKey) -> io::Result<()>;

    /// Is called after each change. Binds that are not in `snapshot` may be closed.
    fn settle(&mut self, snapshot: &Snapshot);
}

/// A binder that opens no sockets, for tests and fuzzing.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoSockets;

impl Binder for NoSockets {
    fn open(&mut self, _: &BindKey) -> io::Result<()> {
        Ok(())
    }

    fn settle(&mut self, _: &Snapshot) {}
}

/// How many things changes have built again, over the life of the state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Listener places written into the snapshot.
    pub places: u64,
    /// Entries that were added to routing tables or removed from them.
    pub route_entries: u64,
    /// TLS configurations built.
    pub tls_configs: u64,
    /// Endpoint lists replaced.
    pub endpoint_lists: u64,
    /// Routes and names looked at to find whose tunnels a change may end.
    pub looked_at: u64,
}

impl std::ops::Sub for Work {
    type Output = Self;

    /// The work since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            places: self.places - before.places,
            route_entries: self.route_entries - before.route_entries,
            tls_configs: self.tls_configs - before.tls_configs,
            endpoint_lists: self.endpoint_lists - before.endpoint_lists,
            looked_at: self.looked_at - before.looked_at,
        }
    }
}

/// How many resources are held, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Listeners in force.
    pub listeners: usize,
    /// TLS routes in force.
    pub routes: usize,
    /// HTTP routes in force.
    pub http_routes: usize,
    /// gRPC routes.
    pub grpc_routes: usize,
    /// TCP routes in force.
    pub tcp_routes: usize,
    /// UDP routes in force.
    pub udp_routes: usize,
    /// Backends in force.
    pub backends: usize,
    /// Certificates held.
    pub certificates: usize,
    /// Trust bundles held.
    pub trust_bundles: usize,
    /// Challenges held.
    pub challenges: usize,
    /// Patterns of hostnames that a namespace owns.
    pub hostname_owners: usize,
    /// Namespaces with shares or a limit of their own.
    pub tenants: usize,
    /// Gateways whose settings are held.
    pub gateway_settings: usize,
}

impl Counts {
    /// The number of all resources.
    fn all(&self) -> usize {
        let routes = [self.routes, self.http_routes, self.grpc_routes];
        let of_ports = [self.tcp_routes, self.udp_routes];
        let rest = [self.listeners, self.backends, self.certificates];
        let few = [
            self.trust_bundles,
            self.challenges,
            self.hostname_owners,
            self.tenants,
            self.gateway_settings,
        ];
        let all = routes.iter().chain(&of_ports).chain(&rest).chain(&few);
        all.sum()
    }
}

struct HeldListener {
    bind: BindKey,
    pattern: HostPattern,
    /// `None` if the listener does not terminate TLS.
    terminate: Option<HeldTerminate>,
    built: Arc<Listener>,
}

impl HeldListener {
    fn selection_key(&self) -> SelectionKey {
        (self.bind, self.built.mode.layer(), self.pattern.clone())
    }
}

/// The configuration in force.
pub struct State {
    published: Arc<ArcSwap<Snapshot>>,
    snapshot: Snapshot,
    /// In boxes, because the nodes of a B-tree have room for more entries than there are.
    listeners: BTreeMap<Arc<str>, Box<HeldListener>>,
    /// The settings of Gateways, by `<namespace>/<name>`.
    gateway_settings: BTreeMap<Arc<str>, Arc<GatewaySettings>>,
    /// Routes by listener. They include routes of listeners that are not held (yet).
    tables: BTreeMap<Arc<str>, Arc<Routes>>,
    /// The patterns of listeners and routes, for changes of wildcards.
    ordered: OrderedPatterns,
    routes: BTreeMap<Arc<str>, HeldRoute>,
    http_routes: BTreeMap<Arc<str>, HeldHttpRoute>,
    grpc_routes: BTreeMap<Arc<str>, HeldHttpRoute>,
    tcp_routes: BTreeMap<Arc<str>, HeldRoute>,
    udp_routes: BTreeMap<Arc<str>, HeldRoute>,
    backends: BTreeMap<Arc<str>, HeldBackend>,
    backends_held: usize,
    backend_slots: SlotAllocator<Backend>,
    endpoint_rules: EndpointRules,
    endpoints_left_out: u64,
    certificates: BTreeMap<Arc<str>, HeldCertificate>,
    expiries: Expiries,
    /// The listeners that terminate TLS with each certificate.
    certificate_users: Users,
    trusts: BTreeMap<Arc<str>, HeldTrust>,
    unions: Unions,
    challenges: BTreeMap<Arc<str>, HeldChallenge>,
    /// The listeners that validate clients by each trust bundle.
    client_trust: Users,
    /// The backends that are validated by each trust bundle.
    backend_trust: Users,
    /// The slots with the client certificates that Gateways show to backends, by name of the certificate. A slot exists
    /// even while its certificate is not held.
    shown: HashMap<Arc<str>, Arc<Slot<ClientCertificate>>>,
    shown_slots: SlotAllocator<ClientCertificate>,
    upstream: Arc<upstream::Factory>,
    names: Names,
    configs: ConfigFactory,
    tenants: Tenants,
    accounts: TenantQuotas,
    work: Work,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("generation", &self.snapshot.generation())
            .field("held", &self.counts())
            .finish_non_exhaustive()
    }
}

impl State {
    /// A state without resources. Snapshots are published to `published`, and `endpoint_rules` say which endpoints
    /// backends may have.
    pub fn new(
        published: Arc<ArcSwap<Snapshot>>,
        endpoint_rules: EndpointRules,
    ) -> Result<Self, rustls::Error> {
        // The workers already wait for what the first snapshot tells them.
        let snapshot = published.load().empty();
        Ok(Self {
            published,
            snapshot,
            listeners: BTreeMap::new(),
            gateway_settings: BTreeMap::new(),
            tables: BTreeMap::new(),
            ordered: OrderedPatterns::default(),
            routes: BTreeMap::new(),
            http_routes: BTreeMap::new(),
            grpc_routes: BTreeMap::new(),
            tcp_routes: BTreeMap::new(),
            udp_routes: BTreeMap::new(),
            backends: BTreeMap::new(),
            backends_held: 0,
            backend_slots: SlotAllocator::default(),
            endpoint_rules,
            endpoints_left_out: 0,
            certificates: BTreeMap::new(),
            expiries: Expiries::default(),
            certificate_users: Users::default(),
            trusts: BTreeMap::new(),
            unions: Unions::default(),
            challenges: BTreeMap::new(),
            client_trust: Users::default(),
            backend_trust: Users::default(),
            shown: HashMap::new(),
            shown_slots: SlotAllocator::default(),
            upstream: Arc::new(upstream::Factory::new()?),
            names: Names::default(),
            configs: ConfigFactory::new()?,
            tenants: Tenants::default(),
            accounts: TenantQuotas::default(),
            work: Work::default(),
        })
    }

    /// Puts `change` in force, except for the resources that it returns as rejected. The last good version of a
    /// rejected resource stays in force. The order of resources within the change does not matter.
    pub fn apply(&mut self, change: &Change, binder: &mut dyn Binder) -> Vec<Reject> {
        let mut parsing = Parsing::default();
        for (key, resource) in &change.upserts {
            self.parse(key, resource, &mut parsing);
        }
        self.put(change, parsing, binder)
    }

    /// The same as [`Self::apply`], with further upserts from an iterator, which need not be in memory all at once.
    pub fn apply_each(
        &mut self,
        change: &Change,
        upserts: &mut dyn Iterator<Item = (ResourceKey, Resource)>,
        binder: &mut dyn Binder,
    ) -> Vec<Reject> {
        let mut parsing = Parsing::default();
        for (key, resource) in upserts {
            self.parse(&key, &resource, &mut parsing);
        }
        self.put(change, parsing, binder)
    }

    fn put(&mut self, change: &Change, parsing: Parsing, binder: &mut dyn Binder) -> Vec<Reject> {
        self.endpoints_left_out += parsing.left_out.endpoints;
        let Parsing {
            mut parsed,
            mut rejects,
            ..
        } = parsing;
        let removed = |kind| {
            change
                .removals
                .iter()
                .filter(move |key| key.kind() == kind)
                .map(|key| key.name.as_str())
        };

        let packs = self.packs_after(&parsed);
        let removed_listeners: HashSet<&str> = removed(ResourceKind::Listener).collect();
        self.open_binds(&mut parsed.listeners, binder, &mut rejects);
        self.settle_conflicts(&mut parsed.listeners, &removed_listeners, &mut rejects);

        self.put_tenants(removed(ResourceKind::Tenant), &parsed.tenants);
        let before = self.snapshot.clone();
        let mut touched = self.touched(change, &parsed);
        let (mut dirty, mut rebuild) = (BTreeSet::new(), BTreeSet::new());
        let lost = parsed.lost_certificates.iter().map(String::as_str);
        let gone = removed(ResourceKind::Certificate).chain(lost);
        self.put_certificates(gone, parsed.certificates, &mut rebuild);
        let gone = removed(ResourceKind::TrustBundle);
        self.put_trusts(gone, parsed.trusts, &mut rebuild);
        for (kind, connections, specs) in [
            (ResourceKind::TlsRoute, Connections::Tls, parsed.routes),
            (ResourceKind::TcpRoute, Connections::Tcp, parsed.tcp_routes),
            (ResourceKind::UdpRoute, Connections::Udp, parsed.udp_routes),
        ] {
            removed(kind).for_each(|name| self.drop_route(connections, name, &mut dirty));
            for (name, spec) in specs {
                self.hold_route(connections, &name, &spec, &mut dirty);
            }
        }
        for (kind, grpc) in [
            (ResourceKind::HttpRoute, false),
            (ResourceKind::GrpcRoute, true),
        ] {
            removed(kind).for_each(|name| self.drop_http_route((name, grpc), &mut dirty));
        }
        for (name, spec) in parsed.http_routes.into_iter().chain(parsed.grpc_routes) {
            self.hold_http_route(&name, spec, &mut dirty);
        }
        // All listeners leave their places before one takes a place, so that two listeners can swap hostnames.
        for name in &removed_listeners {
            self.vacate(name);
            self.drop_listener(name);
        }
        for name in parsed.listeners.keys() {
            self.vacate(name);
        }
        let resettled = self.put_gateway_settings(
            removed(ResourceKind::GatewaySettings),
            parsed.gateway_settings,
            &parsed.listeners,
        );
        for (name, spec) in parsed.listeners {
            dirty.insert(self.hold_listener(&name, spec));
        }
        for name in resettled {
            self.renew_settings(&name);
            dirty.insert(name);
        }
        for name in rebuild {
            if self.rebuild_listener(&name) {
                dirty.insert(name);
            }
        }
        for name in dirty {
            self.place(&name);
            touched.places.extend(self.place_of(&name));
        }
        for name in removed(ResourceKind::HostnameOwner) {
            self.drop_owner(name);
        }
        for owner in parsed.owners {
            self.hold_owner(owner);
        }
        // This comes after the listeners, because a challenge needs a port that is open.
        for name in removed(ResourceKind::Challenge) {
            self.drop_challenge(name);
        }
        self.settle_challenges(&mut parsed.challenges, &mut rejects);
        self.hold_challenges(parsed.challenges);

        for name in removed(ResourceKind::Backend) {
            self.drop_backend(name);
        }
        for (name, (target, tls)) in parsed.backends {
            self.hold_backend(&name, target, tls);
        }
        self.sweep_shown();
        self.snapshot.set_generation(Generation {
            term: change.generation.term,
            counter: change.generation.counter,
        });
        // The whole change takes effect at once, because connections and requests decide by one snapshot.
        self.published.store(Arc::new(self.snapshot.clone()));
        self.tell_concerned(&touched, &before);
        self.tidy(packs);
        binder.settle(&self.snapshot);
        rejects.0
    }

    /// Has the workers look at the tunnels and HTTPS connections that the step from `before` to the present snapshot may end.
    fn tell_concerned(&mut self, touched: &Touched, before: &Snapshot) {
        let (concerned, looked_at) = touched.concerned(before, &self.snapshot, &self.ordered);
        self.work.looked_at += looked_at;
        self.snapshot.concerned().tell(&concerned);
    }

    /// Removes what a change has left over, and packs the maps if `packs` is true.
    fn tidy(&mut self, packs: bool) {
        self.names.sweep();
        if packs {
            self.pack();
        }
    }

    /// Whether a change is so large that [`Self::pack`] is cheap beside it.
    fn packs_after(&self, parsed: &Parsed) -> bool {
        parsed.len() > self.counts().all() / 2
    }

    /// Packs the large maps.
    fn pack(&mut self) {
        pack(&mut self.listeners);
        pack(&mut self.tables);
        pack(&mut self.routes);
        pack(&mut self.http_routes);
        pack(&mut self.grpc_routes);
        pack(&mut self.tcp_routes);
        pack(&mut self.udp_routes);
        pack(&mut self.backends);
        pack(&mut self.certificates);
        self.expiries.pack();
        self.certificate_users.pack();
    }

    /// Opens the binds that are new, and rejects the listeners of those that cannot be opened.
    fn open_binds(
        &self,
        listeners: &mut BTreeMap<String, ListenerSpec>,
        binder: &mut dyn Binder,
        rejects: &mut Rejects,
    ) {
        let wanted: BTreeSet<BindKey> = listeners
            .values()
            .map(|spec| spec.bind)
            .filter(|bind| !self.snapshot.has_bind(bind))
            .collect();
        for bind in wanted {
            let Err(error) = binder.open(&bind) else {
                continue;
            };
            listeners.retain(|name, spec| {
                if spec.bind != bind {
                    return true;
                }
                // io::Error is not Clone, and there is one message per listener.
                let error = io::Error::new(error.kind(), error.to_string());
                rejects.add(
                    ResourceKey::new(ResourceKind::Listener, name),
                    &RejectReason::PortUnavailable(bind, error),
                );
                false
            });
        }
    }

    /// Rejects listeners whose place (bind, layer and hostname) another listener has, and listeners that speak another
    /// layer than their bind does.
    ///
    /// The old version of a rejected listener stays at its place. A third listener, which was to get that place, has to
    /// be rejected then as well. So the check is repeated until nothing more is rejected. It ends, because each round
    /// that does not return removes at least one of the listeners.
    fn settle_conflicts(
        &self,
        listeners: &mut BTreeMap<String, ListenerSpec>,
        removed: &HashSet<&str>,
        rejects: &mut Rejects,
    ) {
        loop {
            let mut taken: HashSet<SelectionKey> = HashSet::with_capacity(listeners.len());
            let mut layers: HashMap<BindKey, Layer> = HashMap::new();
            let mut losers = Vec::new();
            // A listener that is removed, or that has a new version, leaves its present place.
            let goes = |key: &str| removed.contains(key) || listeners.contains_key(key);
            // A listener that already has its place has precedence over one that would come there.
            let stays = |name: &str, spec: &ListenerSpec| {
                let holder = self.snapshot.holder(&spec.selection_key());
                holder.is_some_and(|holder| *holder.key == *name)
            };
            let (staying, coming): (Vec<_>, Vec<_>) =
                listeners.iter().partition(|(name, spec)| stays(name, spec));
            for (name, spec) in staying.into_iter().chain(coming) {
                let key = spec.selection_key();
                let (bind, layer, _) = key;
                let holder = self.snapshot.holder(&key);
                let kept = holder.is_some_and(|holder| *holder.key != **name && !goes(&holder.key));
                let mut others = Layer::ALL.into_iter().filter(|other| *other != layer);
                let kept_other = others.find(|other| {
                    let mut holders = self.snapshot.listeners(&bind, *other);
                    holders.any(|holder| !goes(&holder.key))
                });
                let spoken = kept_other.unwrap_or_else(|| *layers.entry(bind).or_insert(layer));
                if spoken != layer {
                    let reason = RejectReason::ProtocolConflict(bind, spoken);
                    losers.push((name.clone(), reason));
                } else if kept || !taken.insert(key) {
                    losers.push((name.clone(), RejectReason::HostnameConflict(bind)));
                }
            }
            if losers.is_empty() {
                return;
            }
            for (name, reason) in losers {
                listeners.remove(&name);
                let key = ResourceKey::new(ResourceKind::Listener, name);
                rejects.add(key, &reason);
            }
        }
    }

    /// The name of a certificate. If it is already in use here, the same allocation is returned, so that the text is
    /// kept once.
    fn certificate_name(&self, name: &str) -> Arc<str> {
        let held = self.certificates.get_key_value(name).map(|(name, _)| name);
        let known = held.or_else(|| self.certificate_users.known(name));
        known.map_or_else(|| name.into(), Arc::clone)
    }

    /// The name of a listener. If it is already in use here, the same allocation is returned, so that the text is kept
    /// once.
    fn listener_name(&self, name: &str) -> Arc<str> {
        let held = self.listeners.get_key_value(name).map(|(name, _)| name);
        let known = held.or_else(|| self.tables.get_key_value(name).map(|(name, _)| name));
        known.map_or_else(|| name.into(), Arc::clone)
    }

    /// Puts in force how tenants share connections. This comes before a new tenant gets its quota, so that it has its
    /// shares from the beginning.
    fn put_tenants<'a>(
        &mut self,
        removed: impl Iterator<Item = &'a str>,
        tenants: &[(String, TenantLimits)],
    ) {
        let removed = removed.map(|name| (self.names.intern(name), None));
        let mut changes: Vec<_> = removed.collect();
        for (name, limits) in tenants {
            changes.push((self.names.intern(name), Some(*limits)));
        }
        self.accounts.limit(&changes);
    }

    fn hold_owner(&mut self, owner: OwnerSpec) {
        let gateway = self.names.intern(&owner.gateway);
        let tenant = self.names.intern(&owner.tenant);
        let account = self.accounts.of(&tenant);
        self.snapshot.set_owner(&gateway, owner.names, account);
    }

    fn drop_owner(&mut self, name: &str) {
        // The name was checked when the resource was accepted, so this succeeds for everything that is held.
        if let Ok((gateway, names)) = parse::owned(name) {
            self.snapshot.clear_owner(gateway, &names);
        }
    }

    /// The present version of a backend.
    fn present(&self, name: &str) -> Option<&Arc<Backend>> {
        self.snapshot.backend(self.backends.get(name)?.slot)
    }

    /// Makes the next version of a backend.
    fn renew_backend(&mut self, name: &str, target: Target) {
        if let Some(present) = self.present(name) {
            let next = present.with(target);
            self.snapshot.set_backend(next.slot(), Some(Arc::new(next)));
        }
    }

    /// Removes a listener from its place in the snapshot. It is still held.
    fn vacate(&mut self, name: &str) {
        let Some(listener) = self.listeners.get(name) else {
            return;
        };
        let key = listener.selection_key();
        let holder = self.snapshot.holder(&key);
        if holder.is_some_and(|holder| *holder.key == *name) {
            self.snapshot.clear(&key);
            self.ordered.remove_listener(&key);
        }
    }

    fn drop_listener(&mut self, name: &str) -> Option<Box<HeldListener>> {
        let (key, old) = self.listeners.remove_entry(name)?;
        if let Some(terminate) = &old.terminate {
            self.release_terminate(&key, terminate);
        }
        Some(old)
    }

    fn hold_listener(&mut self, name: &str, spec: ListenerSpec) -> Arc<str> {
        let key = self.listener_name(name);
        let gateway = self.names.intern(&spec.gateway);
        let tenant = self.names.intern(&spec.tenant);
        // Session tickets stay valid after every edit of the listener, except one that gives it to another tenant, that
        // changes its client validation, or that takes away a Secret whose certificate it showed.
        let old = self
            .drop_listener(name)
            .filter(|old| (&old.built.gateway, &old.built.tenant) == (&gateway, &tenant));
        let old = old.and_then(|old| old.terminate);
        let (kind, terminate) = match spec.protocol {
            Protocol::Passthrough => (Mode::Passthrough, None),
            Protocol::Http => (Mode::Http, None),
            Protocol::Tcp => (Mode::Tcp, None),
            Protocol::Udp => (Mode::Udp, None),
            Protocol::Terminate(spec) => {
                (Mode::Terminate(Err(NotServing::NoCertificate)), Some(spec))
            }
            Protocol::Https(spec) => (Mode::Https(Err(NotServing::NoCertificate)), Some(spec)),
        };
        let settings = self.listener_settings(&gateway, spec.needs_settings);
        let mut terminate = terminate.map(|spec| self.hold_terminate(&key, spec, old));
        let mode = self.mode(&kind, terminate.as_mut());
        let handshake_units = self.handshake_units(terminate.as_ref());
        let built = Arc::new(Listener {
            key: Arc::clone(&key),
            usage: self.tenants.usage(&gateway, &tenant),
            account: self.accounts.of(&tenant),
            port: spec.port,
            gateway,
            tenant,
            mode,
            handshake_units,
            validation: terminate
                .as_ref()
                .and_then(HeldTerminate::client_validation),
            settings,
        });
        let held = HeldListener {
            bind: spec.bind,
            pattern: spec.pattern,
            terminate,
            built,
        };
        self.listeners.insert(Arc::clone(&key), Box::new(held));
        key
    }

    /// Builds a listener again whose certificates or trust bundles changed. Returns whether there is such a listener.
    fn rebuild_listener(&mut self, name: &Arc<str>) -> bool {
        let Some(mut held) = self.listeners.remove(name) else {
            return false;
        };
        let mode = self.mode(&held.built.mode, held.terminate.as_mut());
        let handshake_units = self.handshake_units(held.terminate.as_ref());
        held.built = Arc::new(Listener {
            key: Arc::clone(name),
            gateway: Arc::clone(&held.built.gateway),
            tenant: Arc::clone(&held.built.tenant),
            usage: Arc::clone(&held.built.usage),
            account: Arc::clone(&held.built.account),
            port: held.built.port,
            settings: held.built.settings.clone(),
            validation: held
                .terminate
                .as_ref()
                .and_then(HeldTerminate::client_validation),
            handshake_units,
            mode,
        });
        self.listeners.insert(Arc::clone(name), held);
        true
    }

    /// Puts the present version of a listener and its routes into the snapshot.
    fn place(&mut self, name: &Arc<str>) {
        let Some(held) = self.listeners.get(name) else {
            return;
        };
        let routes = self.tables.get(name).cloned().unwrap_or_default();
        self.work.places += 1;
        let place = held.selection_key();
        self.ordered.add_listener(&place, &held.built, &routes);
        self.snapshot.place(place, Arc::clone(&held.built), routes);
    }

    /// The snapshot that was published last.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The traffic of the tenants, for the metrics.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// How many connections the tenants have, for the metrics.
    #[must_use]
    pub fn accounts(&self) -> &TenantQuotas {
        &self.accounts
    }

    /// When the certificates in force expire, for the metrics.
    #[must_use]
    pub fn expiries(&self) -> &Expiries {
        &self.expiries
    }

    /// How many endpoints changes had that no backend may have, and that were left out of a backend in force.
    #[must_use]
    pub fn endpoints_left_out(&self) -> u64 {
        self.endpoints_left_out
    }

    /// The work that changes have cost so far.
    #[must_use]
    pub fn work(&self) -> Work {
        self.work
    }

    /// How many resources are in force.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            listeners: self.listeners.len(),
            routes: self.routes.len(),
            http_routes: self.http_routes.len(),
            grpc_routes: self.grpc_routes.len(),
            tcp_routes: self.tcp_routes.len(),
            udp_routes: self.udp_routes.len(),
            backends: self.backends_held,
            certificates: self.certificates.len(),
            trust_bundles: self.trusts.len(),
            challenges: self.challenges.len(),
            hostname_owners: self.snapshot.owners().len(),
            tenants: self.accounts.limited(),
            gateway_settings: self.gateway_settings.len(),
        }
    }

    /// Sets the metrics about the configuration.
    pub fn report(&self, metrics: &Metrics) {
        let counts = self.counts();
        metrics.held("listener", counts.listeners);
        metrics.held("tlsroute", counts.routes);
        metrics.held("httproute", counts.http_routes);
        metrics.held("grpcroute", counts.grpc_routes);
        metrics.held("tcproute", counts.tcp_routes);
        metrics.held("udproute", counts.udp_routes);
        metrics.held("backend", counts.backends);
        metrics.held("certificate", counts.certificates);
        metrics.held("trustbundle", counts.trust_bundles);
        metrics.held("challenge", counts.challenges);
        metrics.held("hostname-owner", counts.hostname_owners);
        metrics.held("tenant", counts.tenants);
        metrics.held("gateway-settings", counts.gateway_settings);
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let generation = self.snapshot.generation();
        metrics.config_term.set(signed(generation.term));
        metrics.config_generation.set(signed(generation.counter));
        metrics
            .binds
            .set(signed(self.snapshot.binds().count() as u64));
    }
}

#[derive(Default)]
struct Rejects(Vec<Reject>);

impl Rejects {
    fn add(&mut self, key: ResourceKey, reason: &RejectReason) {
        tracing::debug!(resource = %key, reason = reason.reason(), "a resource is rejected: {reason}");
        self.0
            .push(Reject::new(key, reason.reason(), reason.to_string()));
    }
}

/// The metric label of a reject's reason.
pub(crate) fn reject_label(reason: &str) -> &'static str {
    reject::REASONS
        .into_iter()
        .find(|known| *known == reason)
        .unwrap_or("Other")
}

#[cfg(test)]
mod tests;
