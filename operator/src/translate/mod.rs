//! Translation: objects in; proxy resources, statuses, findings and certificate requests out.
//!
//! Pure: no I/O, no clock, no randomness, ordered maps only. Incremental: every listener, route,
//! certificate and backend is a unit with its own result; a change marks the units that depend on it
//! by the indexes' reverse dependencies, and only those are computed again. The result is a function
//! of the objects alone: not of their order, nor of the history (`tests/translate_properties.rs`).
//!
//! The order of a pass is the order of dependence: merge (classes, Gateways, sets, namespaces, what routes ask
//! for) → secrets → `spec.tls` and parameters of Gateways → listeners → Gateways as a whole → routes → policies → backends,
//! certificates and trust bundles in use → statuses.

mod backend;
mod backend_key;
mod backend_tls;
mod binds;
mod certificate;
mod challenge;
mod change;
mod claim;
mod client_address;
mod features;
mod frontend;
mod gateway;
mod grant;
mod http_route;
mod index;
mod issuance;
mod limits;
mod listener;
mod mark;
mod output;
mod overlap;
mod own;
mod port_route;
mod reach;
mod reference_grant;
mod report;
mod route;
mod route_backend;
mod route_parents;
mod route_state;
mod route_status;
mod service;
mod session;
mod source;
mod status;
mod tls_route;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::claim::{ClaimKey, Holders};
use vestibule_model::client_address::ClientAddress;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::{Merge, SetVerdict};
use vestibule_model::object::{AcmeIssuer, Object};
use vestibule_model::parameters::LimitParameters;
use vestibule_model::pattern_budget::Budgets;
use vestibule_model::policy::Policy;
use vestibule_model::protocol::Port;
use vestibule_model::route::Route;
use vestibule_model::selector::NamespaceScope;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

pub use binds::{Bind, Binds, DesiredPort, InvalidDesiredPort};
pub use challenge::challenge_resource;
pub use change::Change;
pub use claim::ClaimMode;
use claim::InnerNames;
pub use output::{ClaimState, Output, Status, Work};
pub(crate) use report::WAITING_FOR_CLAIM;
pub use route_status::RouteNeeds;
pub use service::{
    Assigned, DesiredService, GATEWAY_ANNOTATION, GatewayService, MANAGED_BY_LABEL,
    ServiceSettings, UID_LABEL,
};
pub use session::{SessionKey, SessionKeys};

use backend_key::BackendKey;
use backend_tls::{PolicyState, ServiceUses};
use binds::BindUse;
use certificate::SecretState;
use frontend::GatewayTlsState;
use gateway::GatewayState;
use index::Index;
use issuance::Want;
use listener::ListenerState;
use overlap::Overlaps;
use own::OwnAddresses;
use port_route::Queues;
use reach::{ChallengeIndex, SharedListenerRoutes};
use route_state::RouteState;
use source::User;
use trust::BundleState;

/// What translation depends on besides the objects.
#[derive(Debug, Clone)]
pub struct Settings {
    /// GatewayClasses with this controller name are ours.
    pub controller: Arc<str>,
    /// Admission settings.
    pub policy: Policy,
    /// Where listeners' ports are bound.
    pub binds: Binds,
    /// What names that nobody holds wait for.
    pub claims: ClaimMode,
    /// cert-manager itself makes the Certificates of ListenerSets (`certManager.listenerSets`). It follows the
    /// annotations of their Gateways for that, whatever ours say.
    pub shim_for_sets: bool,
}

/// Name of the controller in GatewayClasses, unless configured otherwise.
pub const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// Units to be computed again.
#[derive(Debug, Default)]
struct Dirty {
    classes: BTreeSet<Arc<str>>,
    /// Gateways as a whole, by name or by UID.
    gateways: BTreeSet<ObjectName>,
    uids: BTreeSet<Arc<str>>,
    /// Gateways whose `spec.tls` is to be resolved.
    tls: BTreeSet<ObjectName>,
    listeners: BTreeSet<ListenerKey>,
    routes: BTreeSet<ObjectKey>,
    policies: BTreeSet<ObjectName>,
    bundles: BTreeSet<ObjectKey>,
    backends: BTreeSet<BackendKey>,
    certificates: BTreeSet<ObjectName>,
    requests: BTreeSet<ObjectName>,
    issuers: BTreeSet<ObjectKey>,
    /// Challenges to be settled.
    challenges: BTreeSet<ChallengeKey>,
    /// Names and ports of which it is to be judged how it stands with them.
    claims: BTreeSet<ClaimKey>,
    /// Names that may belong to another namespace, by Gateway.
    owned: BTreeSet<(ObjectName, HostPattern)>,
    /// Gateways and ListenerSets whose status is to be assembled.
    parents: BTreeSet<ParentKey>,
    /// Other objects whose findings are to be collected.
    others: BTreeSet<ObjectKey>,
}

/// The translator: the objects, their indexes and the present result.
#[derive(Debug)]
pub struct Translator {
    settings: Settings,
    /// Namespaces whose Secrets may be read; none: all.
    secret_namespaces: Option<Arc<BTreeSet<Arc<str>>>>,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    merge: Merge,
    index: Index,
    verdicts: BTreeMap<ObjectName, SetVerdict>,
    /// `HostnameClaim` objects that were put.
    claim_objects: Holders,
    claim_states: BTreeMap<ClaimKey, ClaimState>,
    inner_names: InnerNames,
    binds: BindUse,
    secrets: BTreeMap<ObjectName, SecretState>,
    listeners: BTreeMap<ListenerKey, ListenerState>,
    /// Where listeners may overlap with others than before.
    overlaps: Overlaps,
    /// What regular expressions each namespace may have.
    patterns: Budgets,
    routes: BTreeMap<ObjectKey, RouteState>,
    /// Which TCPRoute or UDPRoute has which listener.
    queues: Queues,
    /// Routes accepted for a listener.
    attached: BTreeMap<ListenerKey, BTreeSet<ObjectKey>>,
    /// Accepted ListenerSets of a Gateway.
    attached_sets: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// The other way round.
    set_attached_to: BTreeMap<ObjectName, ObjectName>,
    backend_users: BTreeMap<BackendKey, BTreeSet<ObjectKey>>,
    certificate_users: BTreeMap<ObjectName, BTreeSet<User>>,
    /// What listeners want, by Secret.
    requesters: BTreeMap<ObjectName, BTreeMap<ListenerKey, Want>>,
    /// The Secrets that each listener wants certificates in.
    wants: BTreeMap<ListenerKey, BTreeSet<ObjectName>>,
    /// What stands against it.
    want_problems: BTreeMap<(ListenerKey, ObjectName), Finding>,
    /// Who stands where CAs connect.
    challenge_index: ChallengeIndex,
    /// What routes have on Gateways' own listeners.
    shared: BTreeMap<ObjectKey, SharedListenerRoutes>,
    /// Time, as [`Change::Time`] told, and when which Secret is to be judged again.
    now: Option<i64>,
    deadlines: BTreeSet<(i64, ObjectName)>,
    /// As [`Change::SessionKeys`] told.
    session_keys: SessionKeys,
    resources: BTreeMap<ResourceKey, Encoded>,
    statuses: BTreeMap<ObjectKey, Status>,
    findings: BTreeMap<ObjectKey, Vec<Finding>>,
    requests: BTreeMap<ObjectName, CertificateRequest>,
    /// ACME issuers that can be read.
    issuers: BTreeMap<ObjectKey, Arc<AcmeIssuer>>,
    /// How far certificates are, as [`Change::Issuance`] told.
    issuance: BTreeMap<ObjectName, Issuance>,
    /// Answers to challenges, as [`Change::Challenges`] told.
    challenges: BTreeMap<ChallengeKey, ChallengeAnswer>,
    /// Who may use a Secret or a ConfigMap.
    source_users: BTreeMap<ObjectKey, BTreeSet<User>>,
    bundles: BTreeMap<ObjectKey, BundleState>,
    bundle_users: BTreeMap<ObjectKey, BTreeSet<User>>,
    gateway_tls: BTreeMap<ObjectName, GatewayTlsState>,
    /// What Gateways set for their listeners otherwise than the release.
    gateway_limits: BTreeMap<ObjectName, LimitParameters>,
    /// How the address of a client is found, on Gateways whose parameters say so.
    client_addresses: BTreeMap<ObjectName, ClientAddress>,
    /// Gateways that show their client certificate to the backends of some namespaces only.
    shown_to: BTreeMap<ObjectName, NamespaceScope>,
    /// BackendTLSPolicies for Services in use.
    policies: BTreeMap<ObjectName, PolicyState>,
    service_uses: BTreeMap<ObjectKey, ServiceUses>,
    /// Routes that use a Service otherwise than by passthrough.
    service_routes: BTreeMap<ObjectName, BTreeSet<ObjectKey>>,
    gateways: BTreeMap<ObjectName, GatewayState>,
    /// Listeners that need an internal port.
    port_users: BTreeMap<DesiredPort, BTreeSet<ListenerKey>>,
    /// Internal ports, as [`Change::Ports`] told.
    allocated: BTreeMap<DesiredPort, Port>,
    /// What Gateways' fronts have come to, as [`Change::Addresses`] told.
    assigned: BTreeMap<Arc<str>, Assigned>,
    /// Addresses that no backend of a tenant may have.
    own: OwnAddresses,
    desired_ports: BTreeSet<DesiredPort>,
    services: BTreeMap<Arc<str>, DesiredService>,
}

impl Translator {
    /// A translator that knows no object yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let mut merge = Merge::new(settings.controller.clone())
            .with_names_per_namespace(settings.policy.names_per_namespace);
        if settings.claims == ClaimMode::Assumed {
            merge = merge.assuming();
        }
        let patterns = Budgets::new(usize::from(settings.policy.regex_mib) << 20);
        Self {
            settings,
            patterns,
            secret_namespaces: None,
            objects: BTreeMap::new(),
            merge,
            index: Index::default(),
            verdicts: BTreeMap::new(),
            claim_objects: Holders::default(),
            claim_states: BTreeMap::new(),
            inner_names: InnerNames::default(),
            binds: BindUse::default(),
            secrets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            overlaps: Overlaps::default(),
            routes: BTreeMap::new(),
            queues: Queues::default(),
            attached: BTreeMap::new(),
            attached_sets: BTreeMap::new(),
            set_attached_to: BTreeMap::new(),
            backend_users: BTreeMap::new(),
            certificate_users: BTreeMap::new(),
            requesters: BTreeMap::new(),
            wants: BTreeMap::new(),
            want_problems: BTreeMap::new(),
            challenge_index: ChallengeIndex::default(),
            shared: BTreeMap::new(),
            now: None,
            deadlines: BTreeSet::new(),
            session_keys: SessionKeys::default(),
            resources: BTreeMap::new(),
            statuses: BTreeMap::new(),
            findings: BTreeMap::new(),
            requests: BTreeMap::new(),
            issuers: BTreeMap::new(),
            issuance: BTreeMap::new(),
            challenges: BTreeMap::new(),
            source_users: BTreeMap::new(),
            bundles: BTreeMap::new(),
            bundle_users: BTreeMap::new(),
            gateway_tls: BTreeMap::new(),
            gateway_limits: BTreeMap::new(),
            client_addresses: BTreeMap::new(),
            shown_to: BTreeMap::new(),
            policies: BTreeMap::new(),
            service_uses: BTreeMap::new(),
            service_routes: BTreeMap::new(),
            gateways: BTreeMap::new(),
            port_users: BTreeMap::new(),
            allocated: BTreeMap::new(),
            assigned: BTreeMap::new(),
            own: OwnAddresses::default(),
            desired_ports: BTreeSet::new(),
            services: BTreeMap::new(),
        }
    }

    /// One whose objects never have Secrets but of these namespaces (`None`: of all), which is what it says
    /// to those who refer to others.
    #[must_use]
    pub fn reading_secrets_of(mut self, namespaces: Option<Arc<BTreeSet<Arc<str>>>>) -> Self {
        self.secret_namespaces = namespaces;
        self
    }

    /// Takes changes and returns what they made different.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Output {
        self.apply_within(changes, usize::MAX)
    }

    /// The same, but of the listeners that others came to overlap with only so many are looked at; see
    /// [`Translator::is_behind`]. Nothing but their status says of it.
    pub fn apply_within(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        overlaps: usize,
    ) -> Output {
        let mut dirty = Dirty::default();
        let mut output = Output::default();
        for change in changes {
            self.take(change, &mut dirty);
        }
        self.ask_for_routes(&mut dirty);
        self.look_at_overlaps(overlaps, &mut dirty, &mut output);
        self.translate_gateway_tls(&mut dirty, &mut output);
        self.translate_gateway_limits(&mut dirty);
        self.translate_client_addresses(&mut dirty);
        self.translate_listeners(&mut dirty, &mut output);
        self.translate_gateways(&mut dirty, &mut output);
        self.translate_routes(&mut dirty, &mut output);
        self.translate_claims(&mut dirty, &mut output);
        self.translate_owners(&mut dirty, &mut output);
        self.translate_policies(&mut dirty, &mut output);
        self.translate_backends(&dirty, &mut output);
        self.translate_certificates(&dirty, &mut output);
        self.translate_bundles(&dirty, &mut output);
        self.translate_requests(&mut dirty, &mut output);
        self.translate_issuers(&dirty, &mut output);
        self.translate_challenges(&dirty, &mut output);
        self.assemble(dirty, &mut output);
        output
    }

    /// Whether there are listeners left to look at that others came to overlap with.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.overlaps.is_empty()
    }

    fn look_at_overlaps(&mut self, most: usize, dirty: &mut Dirty, output: &mut Output) {
        for listener in self.overlaps.next(&self.merge, most) {
            output.work.overlaps += 1;
            let said = self.listeners.get(&listener).map(|state| state.overlaps);
            if said.is_some_and(|said| said != self.merge.overlaps(&listener)) {
                dirty.listeners.insert(listener);
            }
        }
    }

    /// Takes answers to challenges, and (`None`) those that are over. One becomes a resource for the
    /// proxies while it may be answered for its tenant, and is withdrawn when that ends.
    pub fn challenges(
        &mut self,
        changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
    ) -> Output {
        self.apply([Change::Challenges(changes)])
    }

    /// Takes how far the certificates of these Secrets are; `None`: nobody issues it.
    pub fn issuance(&mut self, changes: BTreeMap<ObjectName, Option<Issuance>>) -> Output {
        self.apply([Change::Issuance(changes)])
    }

    /// When the time is to be told again, since a certificate becomes valid or expires: never later than
    /// that, perhaps earlier.
    #[must_use]
    pub fn next_deadline(&self) -> Option<i64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Every ACME issuer that can be read.
    #[must_use]
    pub fn issuers(&self) -> &BTreeMap<ObjectKey, Arc<AcmeIssuer>> {
        &self.issuers
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
    pub fn ports(&self) -> &BTreeSet<DesiredPort> {
        &self.desired_ports
    }

    /// What is to become of the Services, by UID of their Gateway.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Arc<str>, DesiredService> {
        &self.services
    }

    /// Every Secret and ConfigMap that something may use.
    pub fn sources(&self) -> impl Iterator<Item = &ObjectKey> {
        self.source_users.keys()
    }

    /// The resources that have to be in force for a listener to be programmed.
    #[must_use]
    pub fn resources_of(&self, listener: &ListenerKey) -> Vec<ResourceKey> {
        let mut keys = vec![listener_resource(listener)];
        if let Some(state) = self.listeners.get(listener) {
            let certificates = state.certificates.iter().map(certificate::resource_key);
            let asked = state
                .asked
                .validation
                .iter()
                .flat_map(|(sources, _)| sources);
            let client = self.gateway_tls.get(&state.gateway);
            let client = client.and_then(GatewayTlsState::usable_secret);
            keys.extend(
                certificates
                    .chain(asked.map(trust::bundle_resource))
                    .chain(client.map(certificate::resource_key))
                    .filter(|key| self.resources.contains_key(key)),
            );
        }
        keys
    }

    fn route(&self, key: &ObjectKey) -> Option<Route<'_>> {
        self.objects.get(key)?.as_route()
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
    ) -> bool {
        let same =
            self.resources.get(&key).map(Encoded::hash) == resource.as_ref().map(Encoded::hash);
        if same {
            return false;
        }
        match &resource {
            Some(encoded) => self.resources.insert(key.clone(), encoded.clone()),
            None => self.resources.remove(&key),
        };
        output.resources.insert(key, resource);
        true
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
