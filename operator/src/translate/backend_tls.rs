//! BackendTLSPolicy: which policy holds for each port of a Service, the TLS settings that it gives, and
//! its status for each Gateway whose routes use the Service.
//!
//! Only policies for Services that a route uses on a terminating or plaintext listener are judged. The
//! others belong to other implementations, or have no effect yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::backend_key::BackendKey;
use vestibule_model::condition::{Condition, ConditionType, PolicyAncestor, PolicyStatus, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::TlsMode;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};
use vestibule_model::object::{Object, Service, ServicePort};
use vestibule_model::protocol::Transport;
use vestibule_model::small::{SmallMap, SmallSet};
use vestibule_model::tls_policy::{
    Authorities, BackendTlsPolicy, PolicyPlace, PolicyTarget, SubjectAltName,
};
use vestibule_stream::proto::{self, subject_alt_name};

use super::report::{all_of, fails};
use super::source::{self, User};
use super::trust::{Trust, bundle_name};
use super::{Dirty, Output, Translator};

const ACCEPTED: ConditionType = ConditionType::Accepted;
const RESOLVED: ConditionType = ConditionType::ResolvedRefs;

/// The Services that a route uses, and the Gateways through which it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceUses {
    gateways: SmallSet<ObjectName>,
    services: SmallSet<ObjectName>,
}

impl ServiceUses {
    /// The Gateways through which the route uses this Service.
    fn gateways_of(&self, service: &ObjectName) -> BTreeSet<&ObjectName> {
        let uses = self.services.contains(service);
        self.gateways.iter().filter(|_| uses).collect()
    }
}

/// The state of a policy in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyState {
    trust: Trust,
    /// Why the proxies do not connect to its targets at all, if they do not.
    invalid: Option<(Reason, Finding)>,
}

impl PolicyState {
    /// The finding that keeps the proxies from its targets, if any.
    fn problem(&self) -> Option<&Finding> {
        self.invalid.as_ref().map(|(_, finding)| finding)
    }
}

/// Whether a policy holds for one of its targets.
enum PolicyEffect<'a> {
    Holds,
    /// This policy holds instead, because it comes first.
    Beaten(&'a ObjectName),
    /// The Service or its port does not exist, as the message says.
    NoTarget(String),
}

impl Translator {
    /// The Gateways on whose listeners a route has the proxies make connections to backends that policies apply to.
    /// Passthrough listeners do not count: there the client makes the TLS connection, so no policy
    /// applies to it.
    fn connecting_gateways(
        &self,
        route: &ObjectKey,
        listeners: &SmallSet<ListenerKey>,
    ) -> SmallSet<ObjectName> {
        let mut gateways = SmallSet::default();
        // BackendTLSPolicies are about connections.
        let connects = route.kind.transport() == Transport::Tcp;
        for key in listeners.iter().filter(|_| connects) {
            let Some((declared, gateway)) = self.merge.listeners(&key.parent) else {
                continue;
            };
            let listener = declared.iter().find(|l| l.name == key.listener);
            let tls = listener.and_then(|l| l.tls.as_ref());
            if tls.is_none_or(|tls| tls.mode == TlsMode::Terminate) {
                gateways.insert(gateway.clone());
            }
        }
        gateways
    }

    /// Whether policies apply to the connections of a route that is attached to these listeners, on one of them at least.
    pub(super) fn connects(&self, route: &ObjectKey, listeners: &SmallSet<ListenerKey>) -> bool {
        !self.connecting_gateways(route, listeners).is_empty()
    }

    /// Brings up to date which Services a route uses on the listeners that it is attached to.
    pub(super) fn settle_service_uses(
        &mut self,
        route: &ObjectKey,
        listeners: &SmallSet<ListenerKey>,
        services: SmallSet<ObjectName>,
        dirty: &mut Dirty,
    ) {
        let mut uses = ServiceUses {
            gateways: self.connecting_gateways(route, listeners),
            services: SmallSet::default(),
        };
        if !uses.gateways.is_empty() {
            uses.services = services;
        }
        let old = self.service_uses.get(route);
        if old == Some(&uses) || (old.is_none() && uses.services.is_empty()) {
            return;
        }
        let old = if uses.services.is_empty() {
            self.service_uses.remove(route)
        } else {
            self.service_uses.insert(route.clone(), uses.clone())
        };
        let old = old.unwrap_or_default();
        for service in old.services.union(&uses.services) {
            let (before, after) = (old.gateways_of(service), uses.gateways_of(service));
            let mut differs = false;
            for gateway in before.symmetric_difference(&after) {
                differs |= self.count_use(service, gateway, after.contains(gateway));
            }
            if differs {
                self.mark_policies(service, dirty);
            }
        }
    }

    /// Counts one more or one less route that uses a Service through a Gateway. Says whether it is the first one or was
    /// the last one.
    fn count_use(&mut self, service: &ObjectName, gateway: &ObjectName, more: bool) -> bool {
        let gateways = self.service_gateways.entry(service.clone()).or_default();
        let routes = gateways.or_default(gateway.clone());
        let before = *routes;
        *routes = if more {
            before + 1
        } else {
            before.saturating_sub(1)
        };
        let after = *routes;
        if after == 0 {
            gateways.remove(gateway);
            if gateways.is_empty() {
                self.service_gateways.remove(service);
            }
        }
        before == 0 || after == 0
    }

    /// Marks the policies of a Service, because their verdicts depend on the Service and on the Gateways whose routes
    /// use it.
    pub(super) fn mark_policies(&self, service: &ObjectName, dirty: &mut Dirty) {
        let policies = self.index.policies_of(service);
        dirty.policies.extend(policies.cloned());
    }

    /// Notes which policies come first where these objects are policies, before the index takes the change.
    pub(super) fn note_first_policies(&self, objects: [Option<&Object>; 2], dirty: &mut Dirty) {
        for object in objects.into_iter().flatten() {
            if let Object::BackendTlsPolicy(policy) = object {
                for place in policy.places() {
                    let first = || self.index.first_policy(&place).cloned();
                    let noted = &mut dirty.first_policies;
                    noted.entry(place.clone()).or_insert_with(first);
                }
            }
        }
    }

    /// Marks a policy that changed, or that became readable or unreadable. What depends on it where it comes first is
    /// marked when all changes are known.
    pub(super) fn mark_policy(
        &self,
        key: &ObjectKey,
        objects: [Option<&Object>; 2],
        dirty: &mut Dirty,
    ) {
        dirty.policies.insert(key.name.clone());
        for object in objects.into_iter().flatten() {
            if matches!(object, Object::BackendTlsPolicy(_)) {
                continue;
            }
            // A policy that cannot be read may target any Service of its namespace.
            let namespace = &key.name.namespace;
            let backends = self.backend_users.range(BackendKey::range_in(namespace));
            let backends = backends.map(|(backend, _)| backend);
            let backends = backends.take_while(|backend| backend.is_in(namespace));
            dirty.backends.extend(backends.cloned());
            let routes = self.index.routes_of_services_in(namespace);
            dirty.routes.extend(routes);
        }
    }

    /// Marks what depends on the policies that come first where policies changed: the backends there and, if
    /// another one comes first now, the routes to these backends, and the other policies there, whose statuses name it.
    /// Policies that come later have an effect on nothing but their own statuses.
    pub(super) fn mark_behind_first_policies(&self, dirty: &mut Dirty) {
        for (place, before) in std::mem::take(&mut dirty.first_policies) {
            let after = self.index.first_policy(&place);
            let differs = before.as_ref() != after;
            if differs {
                let policies = self.index.policies_at(&place);
                dirty.policies.extend(policies.cloned());
                // A route may use a backend that speaks TLS only if a policy exists, and says if it cannot be applied.
                let routes = self.index.routes_of_service(&place.service);
                dirty.routes.extend(routes.cloned());
            }
            if differs || after.is_some_and(|first| dirty.policies.contains(first)) {
                self.dirty_backends(&place.service, dirty);
            }
        }
    }

    /// Judges policies, and marks the backends that they apply to. If the proxies no longer connect to these, or do so
    /// again, the routes to them have to be judged once more, and are marked too.
    pub(super) fn translate_policies(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for name in std::mem::take(&mut dirty.policies) {
            output.work.policies += 1;
            let policy = self.backend_tls_policy(&name).cloned();
            let in_use = policy
                .as_ref()
                .filter(|policy| self.is_used(policy))
                .cloned();
            let state = in_use.map(|policy| self.judge_policy(&policy, output));
            let old = match state.clone() {
                Some(state) => self.policies.insert(name.clone(), state),
                None => self.policies.remove(&name),
            };
            let sources = |state: &Option<PolicyState>| {
                state
                    .as_ref()
                    .map(|s| s.trust.sources.clone())
                    .unwrap_or_default()
            };
            let user = User::Policy(name.clone());
            let (before, after) = (sources(&old), sources(&state));
            self.settle_bundles(&user, &before, &after, dirty);
            self.settle_sources(&user, &before, &after, output);
            if old != state
                && let Some(policy) = &policy
            {
                let problem = |state: &Option<PolicyState>| {
                    let problem = state.as_ref().and_then(PolicyState::problem);
                    problem.cloned()
                };
                let is_told = problem(&old) != problem(&state);
                for place in policy.places() {
                    if self.index.first_policy(&place) != Some(&name) {
                        continue;
                    }
                    self.dirty_backends(&place.service, dirty);
                    if is_told {
                        let routes = self.index.routes_of_service(&place.service);
                        dirty.routes.extend(routes.cloned());
                    }
                }
            }
            let kind = Kind::BackendTlsPolicy;
            dirty.others.insert(ObjectKey { kind, name });
        }
    }

    fn backend_tls_policy(&self, name: &ObjectName) -> Option<&BackendTlsPolicy> {
        match self.get(Kind::BackendTlsPolicy, name) {
            Some(Object::BackendTlsPolicy(policy)) => Some(policy),
            _ => None,
        }
    }

    fn is_used(&self, policy: &BackendTlsPolicy) -> bool {
        let mut services = policy.targets.iter().filter_map(PolicyTarget::service);
        services.any(|service| self.service_gateways.contains_key(service))
    }

    fn judge_policy(&mut self, policy: &BackendTlsPolicy, output: &mut Output) -> PolicyState {
        let referrer = ObjectKey {
            kind: Kind::BackendTlsPolicy,
            name: policy.name.clone(),
        };
        let refusal = policy.findings.iter().find(|finding| finding.refuses());
        let mut invalid = refusal.map(|finding| (Reason::Invalid, finding.clone()));
        let Authorities::Bundles(references) = &policy.authorities else {
            let trust = Trust::default();
            return PolicyState { trust, invalid };
        };
        let trust = self.follow_trust(&referrer, references, Reason::InvalidKind, output);
        if !trust.usable
            && invalid.is_none()
            && let Some(finding) = source::problem(&trust.broken)
        {
            let reason = if source::is_unread(finding) {
                Reason::Pending
            } else {
                Reason::NoValidCACertificate
            };
            invalid = Some((reason, finding.clone()));
        }
        PolicyState { trust, invalid }
    }

    /// The TLS settings for connections to a port of a Service; `None`: the proxies connect in
    /// plaintext.
    pub(super) fn backend_tls(
        &self,
        service: &Service,
        port: &ServicePort,
    ) -> Option<proto::BackendTls> {
        let closed = proto::BackendTls {
            invalid: true,
            ..Default::default()
        };
        let Some(policy) = self.policy_of(service, port) else {
            // A policy that cannot be read may target this port.
            let unreadable = self.index.unreadable_policy(&service.name.namespace);
            return unreadable.map(|_| closed);
        };
        let (Some(state), Some(hostname)) = (self.policies.get(&policy.name), &policy.hostname)
        else {
            return Some(closed);
        };
        let trust_bundles = || state.trust.sources.iter().map(bundle_name).collect();
        match &state.invalid {
            // It names the bundles, so that the publication can wait for them.
            Some((Reason::Pending, _)) => {
                return Some(proto::BackendTls {
                    trust_bundles: trust_bundles(),
                    ..closed
                });
            }
            Some(_) => return Some(closed),
            None => {}
        }
        let alt_names = policy.alt_names.iter().map(|name| proto::SubjectAltName {
            name: Some(match name {
                SubjectAltName::Hostname(name) => subject_alt_name::Name::Dns(name.to_string()),
                SubjectAltName::Uri(uri) => subject_alt_name::Name::Uri(uri.to_string()),
            }),
        });
        Some(proto::BackendTls {
            hostname: hostname.to_string(),
            trust_bundles: trust_bundles(),
            system_trust: policy.authorities == Authorities::System,
            subject_alt_names: alt_names.collect(),
            invalid: false,
        })
    }

    /// Whether any policy targets a port, valid or not.
    pub(super) fn has_tls_policy(&self, service: &Service, port: &ServicePort) -> bool {
        self.policy_of(service, port).is_some()
            || self
                .index
                .unreadable_policy(&service.name.namespace)
                .is_some()
    }

    /// The finding about a backend to which the proxies do not connect, because the policy for it cannot be applied;
    /// `None` if they connect. `field` is where a route, `referrer`, refers to the backend. Whoever is in another namespace
    /// learns only that the policy cannot be applied. The finding holds for routes for which [`Self::connects`].
    pub(super) fn policy_problem(
        &self,
        referrer: &ObjectKey,
        backend: &BackendKey,
        field: &str,
    ) -> Option<Finding> {
        let (number, transport) = backend.port;
        // BackendTLSPolicies apply to connections, and UDP has none.
        if transport == Transport::Udp {
            return None;
        }
        let (service, port) = self.port_of(backend)?;
        let name = &service.name;
        let (policy, problem) = match self.policy_of(service, port) {
            Some(policy) => {
                let state = self.policies.get(&policy.name)?;
                (&policy.name, state.problem()?)
            }
            None => self.unreadable_policy(&name.namespace)?,
        };
        let is_own = referrer.name.namespace == name.namespace;
        if source::is_unread(problem) {
            let message = if is_own {
                problem.message.clone()
            } else {
                format!("what the BackendTLSPolicy for Service {name} refers to is being read")
            };
            return Some(Finding::warning(Reason::Pending, field, message, "wait"));
        }
        let (why, action) = if is_own {
            let Finding { field, message, .. } = problem;
            let at = if field.is_empty() { "" } else { ": " };
            let why = format!("BackendTLSPolicy {policy} cannot be applied{at}{field}: {message}");
            (why, problem.action.clone())
        } else {
            let why = "the BackendTLSPolicy for it cannot be applied".to_owned();
            (why, "have the owner of the Service correct it".to_owned())
        };
        Some(Finding::refused(
            Reason::InvalidBackendTLSPolicy,
            field,
            format!("the proxies do not connect to port {number} of Service {name}, because {why}"),
            action,
        ))
    }

    /// A policy of a namespace that cannot be read, with the finding about it, if there is one. It may target any Service
    /// there.
    fn unreadable_policy(&self, namespace: &Arc<str>) -> Option<(&ObjectName, &Finding)> {
        let name = self.index.unreadable_policy(namespace)?;
        match self.get(Kind::BackendTlsPolicy, name)? {
            Object::Unreadable(_, _, finding) => Some((name, finding)),
            _ => None,
        }
    }

    /// The policy that holds for a port. A policy that names the port comes before one for the whole
    /// Service.
    #[must_use]
    pub fn policy_of(&self, service: &Service, port: &ServicePort) -> Option<&BackendTlsPolicy> {
        let first = |section| {
            let place = PolicyPlace {
                service: service.name.clone(),
                section,
            };
            self.index.first_policy(&place)
        };
        let named = (!port.name.is_empty()).then(|| first(Some(port.name.clone())));
        self.backend_tls_policy(named.flatten().or_else(|| first(None))?)
    }

    fn effect(&self, policy: &BackendTlsPolicy, place: &PolicyPlace) -> PolicyEffect<'_> {
        let name = &place.service;
        let Some(Object::Service(service)) = self.get(Kind::Service, name) else {
            return PolicyEffect::NoTarget(format!("Service {name} does not exist"));
        };
        if let Some(section) = &place.section
            && !service.ports.iter().any(|port| port.name == *section)
        {
            return PolicyEffect::NoTarget(format!("Service {name} has no port named {section:?}"));
        }
        match self.index.first_policy(place) {
            Some(first) if *first != policy.name => PolicyEffect::Beaten(first),
            _ => PolicyEffect::Holds,
        }
    }

    pub(super) fn assemble_policy(&mut self, key: &ObjectKey, output: &mut Output) {
        let mut findings = self.own_findings(key);
        let policy = self.backend_tls_policy(&key.name);
        let status = policy
            .zip(self.policies.get(&key.name))
            .map(|(policy, state)| {
                findings.extend(state.trust.broken.iter().cloned());
                self.policy_status(policy, state, &mut findings)
            });
        self.settle_status(key.clone(), status.map(super::Status::Policy), output);
        self.settle_findings(key, findings, output);
    }

    fn policy_status(
        &self,
        policy: &BackendTlsPolicy,
        state: &PolicyState,
        findings: &mut Vec<Finding>,
    ) -> PolicyStatus {
        // For each Gateway: whether the policy holds for any target there, and the findings about those
        // for which it does not.
        let mut ancestors: BTreeMap<&ObjectName, (bool, Vec<Finding>)> = BTreeMap::new();
        // The findings about targets that no route uses. They belong to no Gateway, so all of them tell.
        let mut unused = Vec::new();
        for target in &policy.targets {
            let field = &target.reference.field;
            let Some(place) = target.place() else {
                let own = policy.findings.iter().filter(|f| f.field == *field);
                unused.extend(own.cloned());
                continue;
            };
            let against = self.against(policy, &place, field);
            findings.extend(against.clone());
            let mut gateways = self.gateways_using(&place.service).peekable();
            if gateways.peek().is_none() {
                unused.extend(against.clone());
            }
            for gateway in gateways {
                let (holds, all) = ancestors.entry(gateway).or_default();
                *holds |= against.is_none();
                all.extend(against.clone());
            }
        }
        let resolved = match state.trust.broken.first() {
            None => Condition::holds(
                RESOLVED,
                Reason::ResolvedRefs,
                "All references are resolved",
            ),
            Some(finding) => fails(RESOLVED, finding),
        };
        let ancestors = ancestors
            .into_iter()
            .map(|(gateway, (holds, mut against))| {
                let refusal = against.first().filter(|_| !holds).map(|f| f.reason);
                against.extend(unused.iter().cloned());
                let accepted = match (refusal, &state.invalid) {
                    (Some(reason), _) => Condition::fails(ACCEPTED, reason, all_of(&against)),
                    (None, Some((Reason::Pending, finding))) => fails(ACCEPTED, finding),
                    (None, Some((reason, finding))) => Condition::fails(
                        ACCEPTED,
                        *reason,
                        format!("{finding}. Its targets are not connected to at all"),
                    ),
                    (None, None) if against.is_empty() => {
                        Condition::holds(ACCEPTED, Reason::Accepted, "The policy is accepted")
                    }
                    (None, None) => {
                        let which = all_of(&against);
                        let message =
                            format!("The policy is accepted, but not for every target: {which}");
                        Condition::holds(ACCEPTED, Reason::Accepted, message)
                    }
                };
                PolicyAncestor {
                    gateway: gateway.clone(),
                    conditions: vec![accepted, resolved.clone()],
                }
            });
        PolicyStatus {
            ancestors: ancestors.collect(),
        }
    }

    /// Why a policy does not hold for one of its targets; `None` if it does.
    fn against(
        &self,
        policy: &BackendTlsPolicy,
        place: &PolicyPlace,
        field: &str,
    ) -> Option<Finding> {
        match self.effect(policy, place) {
            PolicyEffect::Holds => None,
            PolicyEffect::Beaten(first) => Some(Finding::refused(
                Reason::Conflicted,
                field,
                format!("BackendTLSPolicy {first} holds for it, which comes first"),
                "remove one of them, or name a port in sectionName",
            )),
            PolicyEffect::NoTarget(message) => Some(Finding::refused(
                Reason::TargetNotFound,
                field,
                message,
                "refer to a Service, and in sectionName to one of its ports by name",
            )),
        }
    }

    /// The Gateways whose routes use a Service.
    fn gateways_using(&self, service: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        let gateways = self.service_gateways.get(service);
        gateways.into_iter().flat_map(SmallMap::keys)
    }
}
