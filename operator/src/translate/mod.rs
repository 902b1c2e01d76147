//! Translation: objects in; proxy resources, statuses, findings and certificate requests out.
//!
//! Translation is pure: it has no I/O, no clock, no randomness, and only ordered maps. It is also incremental.
//! Every listener, route, certificate and backend is a unit with its own result. A change marks the units that
//! depend on it, which the indexes know, and only those are computed again. The result depends on the objects
//! alone, and neither on their order nor on the history (`tests/translate_properties.rs`). There is one exception: after
//! [`Translator::keep_in_service`], who is over the budget of a namespace depends on what was in service before.
//!
//! A pass computes each unit after those that it depends on. It begins with the changes to the merge, the
//! names that routes ask for, and `spec.tls`, the parameters and the settings of Gateways. Then follow listeners, Gateways
//! as a whole, routes, claims and owners, limits on connections, and policies. If a Secret or ConfigMap in use goes over
//! what its namespace may bring by then, or comes back under it, its users are judged once more. The same holds for a
//! backend and the routes to it. It also holds for a BackendTLSPolicy that can no longer be applied, or can be again, and the
//! routes to its targets. Then come backends, the certificates and trust bundles in use, certificate requests and
//! challenges, and at last statuses. A Secret or ConfigMap is read when the first unit needs it.

mod across;
mod backend;
mod backend_key;
mod backend_size;
mod backend_tls;
mod binds;
mod certificate;
mod certificate_names;
mod challenge;
mod change;
mod claim;
mod client_address;
mod features;
mod frontend;
mod gateway;
mod gateway_parameters;
mod gateway_settings;
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
mod route_size;
mod route_state;
mod route_status;
mod service;
mod session;
mod source;
mod source_bytes;
mod status;
mod tenant;
mod tls_route;
mod trust;
mod usable_certificates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::backend_budget::BackendBudgets;
use vestibule_model::backend_key::BackendKey;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::claim::{ClaimKey, Holders};
use vestibule_model::client_address::ClientAddress;
use vestibule_model::fair_total::FairTotal;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::listener_budget::ListenerBudgets;
use vestibule_model::merge::{Merge, SetVerdict};
use vestibule_model::object::{AcmeIssuer, Object};
use vestibule_model::parameters::LimitParameters;
use vestibule_model::pattern_budget::Budgets;
use vestibule_model::policy::{Policy, TotalBytes, mib};
use vestibule_model::protocol::Port;
use vestibule_model::route::Route;
use vestibule_model::route_budget::RouteBudgets;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::small::{Members, SmallMap, SmallSet};
use vestibule_model::source_budget::SourceBudgets;
use vestibule_model::tls_policy::PolicyPlace;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

pub use binds::{Bind, Binds, DesiredPort, InvalidDesiredPort};
pub use challenge::challenge_resource;
pub use change::Change;
pub use claim::ClaimMode;
use claim::InnerNames;
pub use output::{ClaimState, Output, Status, Work};
pub use route_status::RouteNeeds;
pub use service::{
    Assigned, DesiredService, GATEWAY_ANNOTATION, GatewayService, MANAGED_BY_LABEL, ServiceProblem,
    ServiceSettings, UID_LABEL, immutable_difference, is_load_balancer,
};
pub use session::{SessionKey, SessionKeys};
pub use source::source_of;

use backend_tls::{PolicyState, ServiceUses};
use binds::BindUse;
use certificate::SecretState;
use frontend::GatewayTlsState;
use gateway::GatewayState;
use gateway_settings::settings_resource;
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
    /// GatewayClasses with this controller name belong to this release.
    pub controller: Arc<str>,
    /// Admission settings.
    pub policy: Policy,
    /// On which sockets of the proxies the ports of listeners are bound.
    pub binds: Binds,
    /// Whether a name that nobody holds waits for a recorded claim before it is served.
    pub claims: ClaimMode,
    /// Whether cert-manager itself makes the Certificates of ListenerSets (`certManager.listenerSets`). It
    /// then follows the annotations of their Gateways, whatever the annotations of Vestibule say.
    pub shim_for_sets: bool,
}

/// Name of the controller in GatewayClasses, unless configured otherwise.
pub const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// The units that have to be computed again.
#[derive(Debug, Default)]
struct Dirty {
    classes: BTreeSet<Arc<str>>,
    /// Gateways as a whole, by name. `uids` names further ones by UID.
    gateways: BTreeSet<ObjectName>,
    uids: BTreeSet<Arc<str>>,
    /// Gateways whose `spec.tls` has to be resolved again.
    tls: BTreeSet<ObjectName>,
    /// Gateways whose settings for the proxies may be others, besides `gateways`.
    settings: BTreeSet<ObjectName>,
    listeners: BTreeSet<ListenerKey>,
    routes: BTreeSet<ObjectKey>,
    policies: BTreeSet<ObjectName>,
    /// The policy that came first before the changes, wherever policies changed.
    first_policies: BTreeMap<PolicyPlace, Option<ObjectName>>,
    /// EndpointSlices whose addresses have to be judged, with the Services to which they belong or belonged.
    slices: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    bundles: BTreeSet<ObjectKey>,
    /// Namespaces that may have got their first Gateway or lost their last one.
    entrances: BTreeSet<Arc<str>>,
    backends: BTreeSet<BackendKey>,
    certificates: BTreeSet<ObjectName>,
    requests: BTreeSet<ObjectName>,
    issuers: BTreeSet<ObjectKey>,
    /// Challenges whose resource may change.
    challenges: BTreeSet<ChallengeKey>,
    /// Names and ports whose claim state may change.
    claims: BTreeSet<ClaimKey>,
    /// Names that may have another owner now, by Gateway.
    owned: BTreeSet<(ObjectName, HostPattern)>,
    /// Names whose claim has another time now, by Gateway.
    aged: BTreeSet<(ObjectName, HostPattern)>,
    /// Namespaces whose connections may be limited differently.
    tenants: BTreeSet<Arc<str>>,
    /// Gateways and ListenerSets whose status has to be assembled.
    parents: BTreeSet<ParentKey>,
    /// Other objects whose findings, and status if they have one, have to be assembled.
    others: BTreeSet<ObjectKey>,
}

/// The translator: the objects, their indexes and the present result.
#[derive(Debug)]
pub struct Translator {
    settings: Settings,
    /// Namespaces whose Secrets Vestibule may read; `None`: all namespaces.
    secret_namespaces: Option<Arc<BTreeSet<Arc<str>>>>,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    merge: Merge,
    index: Index,
    verdicts: BTreeMap<ObjectName, SetVerdict>,
    /// The `HostnameClaim` objects among the objects.
    claim_objects: Holders,
    claim_states: BTreeMap<ClaimKey, ClaimState>,
    /// When each claim's holder got it, in seconds since the epoch.
    held_since: BTreeMap<ClaimKey, i64>,
    inner_names: InnerNames,
    binds: BindUse,
    secrets: BTreeMap<ObjectName, SecretState>,
    listeners: BTreeMap<ListenerKey, Arc<ListenerState>>,
    /// Where listeners may overlap with other listeners than before.
    overlaps: Overlaps,
    /// The budget of each namespace for regular expressions.
    patterns: Budgets,
    /// The budgets for what routes take in the proxies, of each namespace and of all together.
    route_budgets: RouteBudgets,
    /// The budgets for what Secrets and ConfigMaps bring into the configuration, of each namespace and of all together.
    source_budgets: SourceBudgets,
    /// The budgets for the backends of Services, of each namespace and of all together.
    backend_budgets: BackendBudgets,
    /// The budget for the listeners of all namespaces together.
    listener_budgets: ListenerBudgets,
    routes: BTreeMap<ObjectKey, Arc<RouteState>>,
    /// The TCPRoutes and UDPRoutes on each listener, in order of precedence.
    queues: Queues,
    /// Routes accepted for a listener.
    attached: BTreeMap<ListenerKey, SmallSet<ObjectKey>>,
    /// Accepted ListenerSets of a Gateway.
    attached_sets: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// The same relation from the ListenerSet to its Gateway.
    set_attached_to: BTreeMap<ObjectName, ObjectName>,
    backend_users: BTreeMap<BackendKey, SmallSet<ObjectKey>>,
    /// The EndpointSlices of each Service that have an address that no backend may have.
    denied_slices: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    certificate_users: BTreeMap<ObjectName, SmallSet<User>>,
    /// The certificates that listeners want, by Secret.
    requesters: BTreeMap<ObjectName, SmallMap<ListenerKey, Want>>,
    /// The Secrets in which each listener wants a certificate.
    wants: BTreeMap<ListenerKey, SmallSet<ObjectName>>,
    /// The finding that keeps the listener's name out of the certificate, if any.
    want_problems: BTreeMap<(ListenerKey, ObjectName), Finding>,
    /// The listeners and routes where CAs connect, and the units that depend on them.
    challenge_index: ChallengeIndex,
    /// The hostnames that routes serve on Gateways' own listeners.
    shared: BTreeMap<ObjectKey, SharedListenerRoutes>,
    /// The time that the last [`Change::Time`] brought, in seconds since the epoch.
    now: Option<i64>,
    deadlines: BTreeSet<(i64, ObjectName)>,
    /// The keys that [`Change::SessionKeys`] brought.
    session_keys: SessionKeys,
    /// Their keys are those of the encoded resources.
    resources: BTreeMap<Arc<ResourceKey>, Encoded>,
    statuses: BTreeMap<ObjectKey, Status>,
    findings: BTreeMap<ObjectKey, Vec<Finding>>,
    requests: BTreeMap<ObjectName, Arc<CertificateRequest>>,
    /// The ACME issuers that can be read.
    issuers: BTreeMap<ObjectKey, Arc<AcmeIssuer>>,
    /// How far each certificate is, as [`Change::Issuance`] says.
    issuance: BTreeMap<ObjectName, Issuance>,
    /// Answers to challenges, as [`Change::Challenges`] brings them.
    challenges: BTreeMap<ChallengeKey, ChallengeAnswer>,
    /// The units that may use each Secret or ConfigMap.
    source_users: BTreeMap<ObjectKey, SmallSet<User>>,
    /// Whether the caller reads a source only when an object begins to use it. Then a source is unread until the caller
    /// puts it or says that it does not exist.
    reads_sources: bool,
    /// Sources in use that do not exist, as somebody who looked says.
    absent_sources: BTreeSet<ObjectKey>,
    bundles: BTreeMap<ObjectKey, BundleState>,
    bundle_users: BTreeMap<ObjectKey, SmallSet<User>>,
    gateway_tls: BTreeMap<ObjectName, GatewayTlsState>,
    /// The limits that Gateways set for their listeners, where they set any.
    gateway_limits: BTreeMap<ObjectName, LimitParameters>,
    /// How the proxies find the address of a client, on Gateways whose parameters say so.
    client_addresses: BTreeMap<ObjectName, ClientAddress>,
    /// Gateways that show their client certificate only to the backends of some namespaces.
    shown_to: BTreeMap<ObjectName, NamespaceScope>,
    /// The state of each BackendTLSPolicy for a Service in use.
    policies: BTreeMap<ObjectName, PolicyState>,
    service_uses: BTreeMap<ObjectKey, ServiceUses>,
    /// The Gateways through which routes use a Service on listeners other than TLS passthrough, and how many do.
    service_gateways: BTreeMap<ObjectName, SmallMap<ObjectName, usize>>,
    gateways: BTreeMap<ObjectName, GatewayState>,
    /// Listeners that need an internal port.
    port_users: BTreeMap<DesiredPort, BTreeSet<ListenerKey>>,
    /// Internal ports, as [`Change::Ports`] allocates them.
    allocated: BTreeMap<DesiredPort, Port>,
    /// The addresses of Gateways' fronts, as [`Change::Addresses`] brings them, by UID.
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
            .with_names_per_namespace(settings.policy.names_per_namespace)
            .with_ports_per_namespace(settings.policy.ports_per_namespace);
        if settings.claims == ClaimMode::Assumed {
            merge = merge.assuming();
        }
        let patterns = Budgets::new(usize::from(settings.policy.regex_mib) << 20);
        let totals = settings.policy.totals.into();
        let (route_budgets, source_budgets, backend_budgets, listener_budgets) =
            budgets(&settings.policy, totals);
        Self {
            settings,
            patterns,
            route_budgets,
            source_budgets,
            backend_budgets,
            listener_budgets,
            secret_namespaces: None,
            objects: BTreeMap::new(),
            merge,
            index: Index::default(),
            verdicts: BTreeMap::new(),
            claim_objects: Holders::default(),
            claim_states: BTreeMap::new(),
            held_since: BTreeMap::new(),
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
            denied_slices: BTreeMap::new(),
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
            reads_sources: false,
            absent_sources: BTreeSet::new(),
            bundles: BTreeMap::new(),
            bundle_users: BTreeMap::new(),
            gateway_tls: BTreeMap::new(),
            gateway_limits: BTreeMap::new(),
            client_addresses: BTreeMap::new(),
            shown_to: BTreeMap::new(),
            policies: BTreeMap::new(),
            service_uses: BTreeMap::new(),
            service_gateways: BTreeMap::new(),
            gateways: BTreeMap::new(),
            port_users: BTreeMap::new(),
            allocated: BTreeMap::new(),
            assigned: BTreeMap::new(),
            own: OwnAddresses::default(),
            desired_ports: BTreeSet::new(),
            services: BTreeMap::new(),
        }
    }

    /// The same translator with these totals, in place of those of its policy, which are whole MiB. It must not have taken any
    /// change yet.
    #[must_use]
    pub fn with_totals(mut self, totals: TotalBytes) -> Self {
        (
            self.route_budgets,
            self.source_budgets,
            self.backend_budgets,
            self.listener_budgets,
        ) = budgets(&self.settings.policy, totals);
        self
    }

    /// The same translator, for a release that may read Secrets only in these namespaces (`None`: in all).
    /// Whoever refers to a Secret in any other namespace gets a finding that says so.
    #[must_use]
    pub fn reading_secrets_of(mut self, namespaces: Option<Arc<BTreeSet<Arc<str>>>>) -> Self {
        self.secret_namespaces = namespaces;
        self
    }

    /// The same translator, for a caller that reads a Secret or `ConfigMap` when an object begins to use it
    /// ([`Output::readers`]). Such a source counts as unread until the caller puts it, or says with
    /// [`Change::Absent`] that it does not exist. Without this, a source that was not put does not exist.
    #[must_use]
    pub fn reading_sources(mut self) -> Self {
        self.reads_sources = true;
        self
    }

    /// From now on, what comes into use takes no place in the budgets of its namespace from what is in service. The caller
    /// says this when it has put all objects that exist. Before, only ages count, so that the order in which the objects
    /// come makes no difference. A caller that never says it gets results that depend on the objects alone.
    pub fn keep_in_service(&mut self) {
        self.source_budgets.keep_in_service();
        self.backend_budgets.keep_in_service();
        self.listener_budgets.keep_in_service();
    }

    /// The totals of the configuration, by what fills them, with what each namespace asks for of them.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, &FairTotal)> {
        let parts = [
            ("certificates", self.source_budgets.total()),
            ("routes", self.route_budgets.total()),
            ("backends", self.backend_budgets.total()),
            ("listeners", self.listener_budgets.total()),
        ];
        parts
            .into_iter()
            .filter_map(|(part, total)| Some((part, total?)))
    }

    /// Takes changes and returns everything that is different after them.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Output {
        self.apply_within(changes, usize::MAX)
    }

    /// The same, but checks at most `overlaps` of the listeners that may overlap with others now. The rest
    /// waits for later passes; see [`Translator::is_behind`]. Only the status of such a listener depends on
    /// the check.
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
        self.exempt_entrances(&mut dirty);
        self.mark_behind_first_policies(&mut dirty);
        self.settle_slices(&mut dirty, &mut output);
        self.ask_for_routes(&mut dirty);
        self.look_at_overlaps(overlaps, &mut dirty, &mut output);
        self.translate_gateway_tls(&mut dirty, &mut output);
        self.translate_gateway_limits(&dirty);
        self.translate_client_addresses(&dirty);
        self.translate_gateway_settings(&mut dirty, &mut output);
        self.translate_listeners(&mut dirty, &mut output);
        self.translate_gateways(&mut dirty, &mut output);
        self.translate_routes(&mut dirty, &mut output);
        self.translate_claims(&mut dirty, &mut output);
        self.translate_owners(&mut dirty, &mut output);
        self.translate_tenants(&mut dirty, &mut output);
        self.translate_policies(&mut dirty, &mut output);
        if self.settle_source_budgets(&mut dirty, &mut output) {
            // Who uses which source does not depend on the budgets, so it is known, and nothing else moves.
            self.translate_gateway_tls(&mut dirty, &mut output);
            self.translate_gateway_settings(&mut dirty, &mut output);
            self.translate_listeners(&mut dirty, &mut output);
            self.translate_gateways(&mut dirty, &mut output);
            self.translate_policies(&mut dirty, &mut output);
        }
        self.settle_backend_budgets(&mut dirty);
        if !dirty.routes.is_empty() {
            // Only the backends of these routes are judged differently, by budgets and policies, so nothing moves that the
            // steps above look at.
            self.translate_routes(&mut dirty, &mut output);
        }
        self.translate_backends(&dirty, &mut output);
        self.translate_certificates(&dirty, &mut output);
        self.translate_bundles(&dirty, &mut output);
        self.translate_requests(&mut dirty, &mut output);
        self.translate_issuers(&dirty, &mut output);
        self.translate_challenges(&dirty, &mut output);
        self.assemble(dirty, &mut output);
        self.forget_sources(&output);
        output
    }

    /// Whether listeners are left whose overlap with others has to be checked.
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

    /// Takes answers to challenges; `None`: the challenge is over. An answer is a resource for the proxies for
    /// as long as they may give it for its tenant.
    pub fn challenges(
        &mut self,
        changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
    ) -> Output {
        self.apply([Change::Challenges(changes)])
    }

    /// Takes the progress of the certificates of these Secrets. It is `None` where no engine issues a certificate into the
    /// Secret.
    pub fn issuance(&mut self, changes: BTreeMap<ObjectName, Option<Issuance>>) -> Output {
        self.apply([Change::Issuance(changes)])
    }

    /// When a certificate next becomes valid or expires, in seconds since the epoch. The caller has to send
    /// [`Change::Time`] then. The time may be too early, but it is never too late.
    #[must_use]
    pub fn next_deadline(&self) -> Option<i64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Whether the caller has to send [`Change::Time`] with this time. Either a deadline has come, or the clock
    /// went back, so that certificates may not have expired after all.
    #[must_use]
    pub fn needs_time(&self, now: i64) -> bool {
        self.next_deadline().is_some_and(|due| due <= now)
            || self.now.is_some_and(|before| now < before)
    }

    /// Every ACME issuer that can be read.
    #[must_use]
    pub fn issuers(&self) -> &BTreeMap<ObjectKey, Arc<AcmeIssuer>> {
        &self.issuers
    }

    /// The merge, by which admission judges.
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
    pub fn resources(&self) -> &BTreeMap<Arc<ResourceKey>, Encoded> {
        &self.resources
    }

    /// Every certificate request.
    #[must_use]
    pub fn requests(&self) -> &BTreeMap<ObjectName, Arc<CertificateRequest>> {
        &self.requests
    }

    /// Every internal port that is needed.
    #[must_use]
    pub fn ports(&self) -> &BTreeSet<DesiredPort> {
        &self.desired_ports
    }

    /// The desired Services of each Gateway, by its UID.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Arc<str>, DesiredService> {
        &self.services
    }

    /// Every Secret and ConfigMap that something may use.
    pub fn sources(&self) -> impl Iterator<Item = &ObjectKey> {
        self.source_users.keys()
    }

    /// The resources that have to be in force in the proxies before a listener is programmed. Certificates that proxies are to
    /// reject are not among them if the listener has another one that it can serve.
    #[must_use]
    pub fn resources_of(&self, listener: &ListenerKey) -> Vec<ResourceKey> {
        let mut keys = vec![listener_resource(listener)];
        if let Some(state) = self.listeners.get(listener) {
            let needed = |secret: &&ObjectName| {
                let known = self.secrets.get(*secret);
                let is_rejected = matches!(
                    known,
                    Some(SecretState::Unusable(_) | SecretState::NotYetValid(_))
                );
                state.unusable.is_some() || !is_rejected
            };
            let certificates = state.certificates.iter().filter(needed);
            let certificates = certificates.map(certificate::resource_key);
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
                    .chain([settings_resource(&state.gateway)])
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

    /// Records a resource, or its absence. Reports it in `output`, and returns true, if it differs from
    /// before.
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
        let former = match &resource {
            Some(encoded) => {
                // `insert` would keep the former key.
                let former = self.resources.remove(&key);
                let shared = Arc::clone(encoded.shared_key());
                self.resources.insert(shared, encoded.clone());
                former
            }
            None => self.resources.remove(&key),
        };
        output.settle_resource(key, resource, former.is_some());
        true
    }
}

/// The budgets of a policy, except that all namespaces together have these totals.
fn budgets(
    policy: &Policy,
    totals: TotalBytes,
) -> (RouteBudgets, SourceBudgets, BackendBudgets, ListenerBudgets) {
    let most = policy.route_entries.into();
    (
        RouteBudgets::new(most, totals.routes),
        SourceBudgets::new(mib(policy.certificate_mib), totals.certificates),
        BackendBudgets::new(most, totals.backends),
        ListenerBudgets::new(totals.listeners),
    )
}

fn listener_resource(listener: &ListenerKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Listener, listener.to_string())
}

/// The listener that has this resource: the inverse of [`listener_resource`].
fn listener_of(resource: &ResourceKey) -> Option<ListenerKey> {
    if resource.kind() != ResourceKind::Listener {
        return None;
    }
    // Names of namespaces and objects have no slash.
    let mut parts = resource.name.splitn(4, '/');
    let (kind, namespace, object) = (parts.next()?, parts.next()?, parts.next()?);
    let name = ObjectName::new(namespace, object);
    let parent = if kind == Kind::Gateway.as_str() {
        ParentKey::Gateway(name)
    } else if kind == Kind::ListenerSet.as_str() {
        ParentKey::ListenerSet(name)
    } else {
        return None;
    };
    Some(ListenerKey::new(parent, parts.next()?))
}

/// Adds or removes `user` among the users of `key`, without leaving empty sets behind.
fn set_user<K: Ord + Clone, U: Clone, M: Members<U>>(
    users: &mut BTreeMap<K, M>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_of_a_resource_is_the_one_whose_resource_it_is() {
        let name = ObjectName::new("a", "web");
        let parents = [
            ParentKey::Gateway(name.clone()),
            ParentKey::ListenerSet(name),
        ];
        for parent in parents {
            for listener in ["l", "l.b", "l/b", ""] {
                let key = ListenerKey::new(parent.clone(), listener);
                assert_eq!(listener_of(&listener_resource(&key)), Some(key));
            }
        }
        for name in ["", "Gateway/a/web", "Service/a/web/l"] {
            let key = ResourceKey::new(ResourceKind::Listener, name);
            assert_eq!(listener_of(&key), None, "{name}");
        }
        let other = ResourceKey::new(ResourceKind::Backend, "Gateway/a/web/l");
        assert_eq!(listener_of(&other), None);
    }
}
