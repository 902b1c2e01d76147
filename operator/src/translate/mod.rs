//! Translation: objects in; proxy resources, statuses, findings and certificate requests out.
//!
//! Pure: no I/O, no clock, no randomness, ordered maps only. Incremental: every listener, route,
//! certificate and backend is a unit with its own result; a change marks the units that depend on it
//! by the indexes' reverse dependencies, and only those are computed again. The result is a function
//! of the objects alone: not of their order, nor of the history (`tests/translate_properties.rs`).
//!
//! The order of a pass is the order of dependence: merge (classes, Gateways, sets, namespaces) →
//! secrets → listeners → Gateways as a whole → routes → backends and certificates in use → statuses.

mod backend;
mod binds;
mod certificate;
mod features;
mod gateway;
mod index;
mod listener;
mod route;
mod service;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::finding::Finding;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuer::IssuerRef;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::{Affected, Merge, SetVerdict};
use vestibule_model::object::{Object, Port, TlsRoute};
use vestibule_model::policy::Policy;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

pub use binds::{Bind, Binds, NotAPortWish, PortWish};
pub use service::{
    Assigned, GATEWAY_ANNOTATION, GatewayService, MANAGED_BY_LABEL, ServiceSettings, ServiceWish,
    UID_LABEL,
};
pub use status::Status;

use backend::BackendKey;
use binds::BindUse;
use certificate::SecretState;
use gateway::GatewayState;
use index::Index;
use listener::ListenerState;
use route::RouteState;

/// What translation depends on besides the objects.
#[derive(Debug, Clone)]
pub struct Settings {
    /// GatewayClasses with this controller name are ours.
    pub controller: Arc<str>,
    /// Admission settings.
    pub policy: Policy,
    /// Where listeners' ports are bound.
    pub binds: Binds,
}

/// Name of the controller in GatewayClasses, unless configured otherwise.
pub const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// A change of one object.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every change is the large one"
)]
pub enum Change {
    /// It is new or has changed.
    Put(Object),
    /// It is gone.
    Remove(ObjectKey),
    /// Internal ports that were allocated, and (`None`) those that are given up. Only what is
    /// persisted may be told. Counts with [`Binds::Allocated`].
    Ports(BTreeMap<PortWish, Option<Port>>),
    /// What the front of the Gateway with this UID has come to; `None`: there is no such Service.
    /// Counts with [`Binds::Allocated`].
    Addresses(Arc<str>, Option<Assigned>),
}

/// A certificate that a listener waits for and may have: the listener is allowed, accepted and not
/// conflicted, and its hostname is exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The Secret that the listener refers to, in the listener's own namespace.
    pub secret: ObjectName,
    /// The hostnames of the listeners that refer to it.
    pub hostnames: BTreeSet<Hostname>,
    /// The issuer that the annotations choose, if they choose one.
    pub issuer: Option<IssuerRef>,
}

/// How much a pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Listeners judged.
    pub listeners: usize,
    /// Routes judged.
    pub routes: usize,
    /// Backends computed.
    pub backends: usize,
    /// Secrets and certificates looked at.
    pub certificates: usize,
    /// Gateways judged as a whole.
    pub gateways: usize,
    /// Statuses computed.
    pub statuses: usize,
}

/// What came out differently than before. `None` is: gone.
#[derive(Debug, Default)]
pub struct Output {
    /// Resources for the proxies.
    pub resources: BTreeMap<ResourceKey, Option<Encoded>>,
    /// Statuses of GatewayClasses, Gateways, ListenerSets and routes.
    pub statuses: BTreeMap<ObjectKey, Option<Status>>,
    /// Everything to say about an object, warnings included; empty where nothing is left to say.
    pub findings: BTreeMap<ObjectKey, Vec<Finding>>,
    /// Certificates wanted, by Secret.
    pub certificates: BTreeMap<ObjectName, Option<CertificateRequest>>,
    /// Internal ports: needed from now on (true), or no longer. Ports that lose their last listener
    /// are given up at once; the allocator sees to it that they are not soon used again.
    pub ports: BTreeMap<PortWish, bool>,
    /// Services by the UID of their Gateway; `None`: the Gateway is gone or not ours, and whatever
    /// carries its UID goes too.
    pub services: BTreeMap<Arc<str>, Option<ServiceWish>>,
    /// Secrets that some listener may use: from now on (true), or no longer. Whoever watches a cluster
    /// keeps only these in memory, and gets one that is newly used before publishing what came out.
    pub secrets: BTreeMap<ObjectName, bool>,
    /// What it took.
    pub work: Work,
}

impl Output {
    /// Takes in what the next pass made different, so that several passes come out as one.
    pub fn merge(&mut self, later: Self) {
        self.resources.extend(later.resources);
        self.statuses.extend(later.statuses);
        self.findings.extend(later.findings);
        self.certificates.extend(later.certificates);
        self.services.extend(later.services);
        join(&mut self.ports, later.ports);
        join(&mut self.secrets, later.secrets);
        let (sum, work) = (&mut self.work, later.work);
        sum.listeners += work.listeners;
        sum.routes += work.routes;
        sum.backends += work.backends;
        sum.certificates += work.certificates;
        sum.gateways += work.gateways;
        sum.statuses += work.statuses;
    }
}

/// Joins wishes: what was given up and is wanted again (or the other way round) is no news.
fn join<K: Ord>(wishes: &mut BTreeMap<K, bool>, later: BTreeMap<K, bool>) {
    for (key, wanted) in later {
        if wishes.get(&key).is_some_and(|before| *before != wanted) {
            wishes.remove(&key);
        } else {
            wishes.insert(key, wanted);
        }
    }
}

/// Units to be computed again.
#[derive(Debug, Default)]
struct Dirty {
    classes: BTreeSet<Arc<str>>,
    /// Gateways as a whole, by name or by UID.
    gateways: BTreeSet<ObjectName>,
    uids: BTreeSet<Arc<str>>,
    listeners: BTreeSet<ListenerKey>,
    routes: BTreeSet<ObjectName>,
    backends: BTreeSet<BackendKey>,
    certificates: BTreeSet<ObjectName>,
    requests: BTreeSet<ObjectName>,
    /// Gateways and ListenerSets whose status is to be assembled.
    parents: BTreeSet<ParentKey>,
    /// Other objects whose findings are to be collected.
    others: BTreeSet<ObjectKey>,
}

/// The translator: the objects, their indexes and the present result.
#[derive(Debug)]
pub struct Translator {
    settings: Settings,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    merge: Merge,
    index: Index,
    verdicts: BTreeMap<ObjectName, SetVerdict>,
    binds: BindUse,
    secrets: BTreeMap<ObjectName, SecretState>,
    listeners: BTreeMap<ListenerKey, ListenerState>,
    routes: BTreeMap<ObjectName, RouteState>,
    /// Routes accepted for a listener.
    attached: BTreeMap<ListenerKey, BTreeSet<ObjectName>>,
    /// Accepted ListenerSets of a Gateway.
    attached_sets: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// The other way round.
    set_attached_to: BTreeMap<ObjectName, ObjectName>,
    backend_users: BTreeMap<BackendKey, BTreeSet<ObjectName>>,
    certificate_users: BTreeMap<ObjectName, BTreeSet<ListenerKey>>,
    requesters: BTreeMap<ObjectName, BTreeMap<ListenerKey, (Hostname, Option<IssuerRef>)>>,
    /// The Secret each listener requests a certificate in.
    wishes: BTreeMap<ListenerKey, ObjectName>,
    resources: BTreeMap<ResourceKey, Encoded>,
    statuses: BTreeMap<ObjectKey, Status>,
    findings: BTreeMap<ObjectKey, Vec<Finding>>,
    requests: BTreeMap<ObjectName, CertificateRequest>,
    /// Listeners that may use a Secret, served or not.
    secret_users: BTreeMap<ObjectName, BTreeSet<ListenerKey>>,
    gateways: BTreeMap<ObjectName, GatewayState>,
    /// Listeners that need an internal port.
    port_users: BTreeMap<PortWish, BTreeSet<ListenerKey>>,
    /// Internal ports, as [`Change::Ports`] told.
    allocated: BTreeMap<PortWish, Port>,
    /// What Gateways' fronts have come to, as [`Change::Addresses`] told.
    assigned: BTreeMap<Arc<str>, Assigned>,
    port_wishes: BTreeSet<PortWish>,
    services: BTreeMap<Arc<str>, ServiceWish>,
}

impl Translator {
    /// A translator that knows no object yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let merge = Merge::new(settings.controller.clone());
        Self {
            settings,
            objects: BTreeMap::new(),
            merge,
            index: Index::default(),
            verdicts: BTreeMap::new(),
            binds: BindUse::default(),
            secrets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
            attached: BTreeMap::new(),
            attached_sets: BTreeMap::new(),
            set_attached_to: BTreeMap::new(),
            backend_users: BTreeMap::new(),
            certificate_users: BTreeMap::new(),
            requesters: BTreeMap::new(),
            wishes: BTreeMap::new(),
            resources: BTreeMap::new(),
            statuses: BTreeMap::new(),
            findings: BTreeMap::new(),
            requests: BTreeMap::new(),
            secret_users: BTreeMap::new(),
            gateways: BTreeMap::new(),
            port_users: BTreeMap::new(),
            allocated: BTreeMap::new(),
            assigned: BTreeMap::new(),
            port_wishes: BTreeSet::new(),
            services: BTreeMap::new(),
        }
    }

    /// Takes changes and returns what they made different.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Output {
        let mut dirty = Dirty::default();
        let mut output = Output::default();
        for change in changes {
            self.take(change, &mut dirty);
        }
        self.translate_listeners(&mut dirty, &mut output);
        self.translate_gateways(&mut dirty, &mut output);
        self.translate_routes(&mut dirty, &mut output);
        self.translate_backends(&dirty, &mut output);
        self.translate_certificates(&dirty, &mut output);
        self.assemble(dirty, &mut output);
        output
    }

    /// The merge, for admission.
    #[must_use]
    pub fn merge(&self) -> &Merge {
        &self.merge
    }

    /// The admission settings.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// An object as it was put.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// Every object.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<Object>)> {
        self.objects.iter()
    }

    /// Every status.
    #[must_use]
    pub fn statuses(&self) -> &BTreeMap<ObjectKey, Status> {
        &self.statuses
    }

    /// Every finding.
    #[must_use]
    pub fn findings(&self) -> &BTreeMap<ObjectKey, Vec<Finding>> {
        &self.findings
    }

    /// Every resource.
    #[must_use]
    pub fn resources(&self) -> &BTreeMap<ResourceKey, Encoded> {
        &self.resources
    }

    /// Every certificate request.
    #[must_use]
    pub fn requests(&self) -> &BTreeMap<ObjectName, CertificateRequest> {
        &self.requests
    }

    /// Every internal port that is needed.
    #[must_use]
    pub fn ports(&self) -> &BTreeSet<PortWish> {
        &self.port_wishes
    }

    /// What is to become of the Services, by UID of their Gateway.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Arc<str>, ServiceWish> {
        &self.services
    }

    /// Every Secret that some listener may use.
    pub fn secrets(&self) -> impl Iterator<Item = &ObjectName> {
        self.secret_users.keys()
    }

    /// The resources that have to be in force for a listener to be programmed.
    #[must_use]
    pub fn resources_of(&self, listener: &ListenerKey) -> Vec<ResourceKey> {
        let mut keys = vec![listener_resource(listener)];
        if let Some(state) = self.listeners.get(listener) {
            keys.extend(
                state
                    .certificates
                    .iter()
                    .map(certificate::resource_key)
                    .filter(|key| self.resources.contains_key(key)),
            );
        }
        keys
    }

    fn take(&mut self, change: Change, dirty: &mut Dirty) {
        let (key, new) = match change {
            Change::Put(object) => (object.key(), Some(Arc::new(object))),
            Change::Remove(key) => (key, None),
            Change::Ports(ports) => return self.take_ports(ports, dirty),
            Change::Addresses(uid, assigned) => return self.take_addresses(uid, assigned, dirty),
        };
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(&key),
        };
        if old == new {
            return;
        }
        if let Some(old) = &old {
            self.index.remove(&key, old);
        }
        if let Some(new) = &new {
            self.index.insert(&key, new);
        }
        self.mark(&key, old.as_deref(), new.as_deref(), dirty);
    }

    fn mark(
        &mut self,
        key: &ObjectKey,
        old: Option<&Object>,
        new: Option<&Object>,
        dirty: &mut Dirty,
    ) {
        let name = &key.name;
        match key.kind {
            Kind::GatewayClass => {
                let class = match new {
                    Some(Object::GatewayClass(class)) => Some(class.clone()),
                    _ => None,
                };
                let affected = self.merge.put_class(&name.name, class);
                dirty.classes.insert(name.name.clone());
                self.spread(affected, dirty);
            }
            Kind::Gateway => {
                let gateway = match new {
                    Some(Object::Gateway(gateway)) => Some(Arc::new(gateway.clone())),
                    _ => None,
                };
                if let (Some(Object::Gateway(old)), Some(new)) = (old, &gateway)
                    && (old.issuers != new.issuers
                        || old.guards != new.guards
                        || old.meta.uid != new.meta.uid)
                {
                    // Sets without a choice of issuer follow their Gateway's; guards and internal ports
                    // are the Gateway's.
                    for set in self.merge.sets_of(name) {
                        let parent = ParentKey::ListenerSet(set.clone());
                        self.index.dirty_listeners(&parent, dirty);
                        dirty.parents.insert(parent);
                    }
                }
                let affected = self.merge.put_gateway(name, gateway);
                self.mark_parent(ParentKey::Gateway(name.clone()), old, dirty);
                self.spread(affected, dirty);
            }
            Kind::ListenerSet => {
                let set = match new {
                    Some(Object::ListenerSet(set)) => Some(Arc::new(set.clone())),
                    _ => None,
                };
                let affected = self.merge.put_set(name, set);
                self.mark_parent(ParentKey::ListenerSet(name.clone()), old, dirty);
                self.spread(affected, dirty);
            }
            Kind::TlsRoute => {
                dirty.routes.insert(name.clone());
            }
            Kind::GatewayParameters => self.mark_parameters(name, dirty),
            Kind::Namespace => {
                let labels = match new {
                    Some(Object::Namespace(namespace)) => Some(namespace.labels.clone()),
                    _ => None,
                };
                let affected = self.merge.put_namespace(&name.name, labels);
                dirty.routes.extend(self.index.routes_in(&name.name));
                self.spread(affected, dirty);
            }
            Kind::ReferenceGrant => {
                for referrer in self.index.referrers_into(&name.namespace) {
                    match referrer.kind {
                        Kind::TlsRoute => {
                            dirty.routes.insert(referrer.name.clone());
                        }
                        Kind::Gateway => self
                            .index
                            .dirty_listeners(&ParentKey::Gateway(referrer.name.clone()), dirty),
                        Kind::ListenerSet => self
                            .index
                            .dirty_listeners(&ParentKey::ListenerSet(referrer.name.clone()), dirty),
                        _ => {}
                    }
                }
            }
            Kind::Secret => {
                self.secrets.remove(name);
                let listeners = self.index.listeners_of_secret(name);
                if !listeners.is_empty() {
                    dirty.certificates.insert(name.clone());
                    dirty.listeners.extend(listeners);
                }
            }
            Kind::Service => {
                dirty.routes.extend(self.index.routes_of_service(name));
                self.dirty_backends(name, dirty);
            }
            Kind::EndpointSlice => {
                for object in [old, new].into_iter().flatten() {
                    if let Object::EndpointSlice(slice) = object
                        && let Some(service) = &slice.service
                    {
                        let service = ObjectName::new(name.namespace.clone(), service.clone());
                        self.dirty_backends(&service, dirty);
                    }
                }
            }
        }
        dirty.others.insert(key.clone());
    }

    /// A Gateway or set itself changed: its listeners, those it had, and its routes.
    fn mark_parent(&mut self, parent: ParentKey, old: Option<&Object>, dirty: &mut Dirty) {
        let former = match old {
            Some(Object::Gateway(gateway)) => gateway.listeners.as_slice(),
            Some(Object::ListenerSet(set)) => set.listeners.as_slice(),
            _ => &[],
        };
        dirty
            .listeners
            .extend(former.iter().map(|listener| listener.key(&parent)));
        self.index.dirty_listeners(&parent, dirty);
        dirty.routes.extend(self.index.routes_to(&parent));
        dirty.parents.insert(parent);
    }

    fn spread(&mut self, affected: Affected, dirty: &mut Dirty) {
        for gateway in affected.gateways {
            dirty.gateways.insert(gateway.clone());
            let parent = ParentKey::Gateway(gateway);
            self.index.dirty_listeners(&parent, dirty);
            dirty.routes.extend(self.index.routes_to(&parent));
            dirty.parents.insert(parent);
        }
        for name in affected.sets {
            let verdict = self.merge.set(&name).map(|set| self.merge.verdict(set));
            if self.verdicts.get(&name) != verdict.as_ref() {
                match verdict {
                    Some(verdict) => self.verdicts.insert(name.clone(), verdict),
                    None => self.verdicts.remove(&name),
                };
                let parent = ParentKey::ListenerSet(name);
                self.index.dirty_listeners(&parent, dirty);
                dirty.routes.extend(self.index.routes_to(&parent));
                dirty.parents.insert(parent);
            }
        }
        dirty.listeners.extend(affected.listeners);
    }

    fn dirty_backends(&self, service: &ObjectName, dirty: &mut Dirty) {
        dirty.backends.extend(
            self.backend_users
                .range(BackendKey::range_of(service))
                .map(|(key, _)| key.clone()),
        );
    }

    fn tls_route(&self, name: &ObjectName) -> Option<&TlsRoute> {
        match self.get(Kind::TlsRoute, name) {
            Some(Object::TlsRoute(route)) => Some(route),
            _ => None,
        }
    }

    fn get(&self, kind: Kind, name: &ObjectName) -> Option<&Object> {
        let name = name.clone();
        self.objects.get(&ObjectKey { kind, name }).map(Arc::as_ref)
    }

    /// Records a resource, or that there is none, and reports it if that is news.
    fn settle_resource(
        &mut self,
        key: ResourceKey,
        resource: Option<Encoded>,
        output: &mut Output,
    ) {
        let same =
            self.resources.get(&key).map(Encoded::hash) == resource.as_ref().map(Encoded::hash);
        if same {
            return;
        }
        match &resource {
            Some(encoded) => self.resources.insert(key.clone(), encoded.clone()),
            None => self.resources.remove(&key),
        };
        output.resources.insert(key, resource);
    }
}

fn listener_resource(listener: &ListenerKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Listener, listener.to_string())
}

/// Adds or removes `user` among the users of `key`, without leaving empty sets behind.
fn set_user<K: Ord + Clone, U: Ord + Clone>(
    users: &mut BTreeMap<K, BTreeSet<U>>,
    key: &K,
    user: &U,
    there: bool,
) -> bool {
    if there {
        users.entry(key.clone()).or_default().insert(user.clone())
    } else if let Some(of) = users.get_mut(key) {
        let removed = of.remove(user);
        if of.is_empty() {
            users.remove(key);
        }
        removed
    } else {
        false
    }
}
