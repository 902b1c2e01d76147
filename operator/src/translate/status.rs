//! Assembles statuses and findings from the states of the parts.
//!
//! Every condition except Programmed is decided here. Programmed depends on what the proxies acknowledged, so the
//! status only names what has to be acknowledged ([`ProgrammedBasis`]), and `operator::status` decides it.

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::annotations;
use vestibule_model::backend_key::BackendKey;
use vestibule_model::condition::{
    ClassStatus, Condition, ConditionType, ListenerStatus, ListenersStatus, ProgrammedBasis,
    Reason, Wait,
};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::Object;
use vestibule_model::small::SmallSet;
use vestibule_stream::{ResourceKey, ResourceKind};

use super::backend_key::backend_resource;
use super::listener::ListenerState;
use super::output::Status;
use super::report::fails;
use super::route::route_resource;
use super::source::{User, source_of};
use super::{Dirty, Output, Translator, features, listener_resource, set_user, source};

const ACCEPTED: ConditionType = ConditionType::Accepted;
impl Translator {
    pub(super) fn assemble(&mut self, dirty: Dirty, output: &mut Output) {
        for class in &dirty.classes {
            let key = ObjectKey::new(Kind::GatewayClass, "", class.clone());
            let ours = self
                .merge
                .class(class)
                .filter(|_| self.merge.is_our_class(class));
            let (mut findings, mut status) = (self.own_findings(&key), None);
            if let Some(class) = ours {
                let refused = self.parameters_of_class(class).err();
                findings.extend(refused.iter().cloned());
                status = Some(Status::Class(self.class_status(refused.as_ref())));
            }
            self.settle_findings(&key, findings, output);
            self.settle_status(key, status, output);
        }
        // Sets come before Gateways, because the status of a Gateway counts its sets.
        let (gateways, sets): (Vec<_>, Vec<_>) = dirty
            .parents
            .into_iter()
            .partition(|parent| matches!(parent, ParentKey::Gateway(_)));
        let mut gateways: BTreeSet<ParentKey> = gateways.into_iter().collect();
        for parent in sets {
            gateways.extend(self.assemble_set(parent.name(), output));
        }
        for parent in gateways {
            self.assemble_gateway(parent.name(), output);
        }
        for key in dirty.others {
            match key.kind {
                kind if kind.is_route() => self.assemble_route(&key, output),
                Kind::BackendTlsPolicy => self.assemble_policy(&key, output),
                Kind::HostnameGrant => self.assemble_grant(&key, output),
                Kind::Gateway | Kind::ListenerSet | Kind::GatewayClass => {}
                _ => {
                    let mut findings = self.own_findings(&key);
                    findings.extend(self.denied_endpoint(&key));
                    self.settle_findings(&key, findings, output);
                }
            }
        }
    }

    /// Assembles the status of a ListenerSet. Returns the Gateways whose number of attached sets changed.
    fn assemble_set(&mut self, name: &ObjectName, output: &mut Output) -> Vec<ParentKey> {
        let key = ObjectKey {
            kind: Kind::ListenerSet,
            name: name.clone(),
        };
        let mut findings = self.own_findings(&key);
        let (mut status, mut attached_to) = (None, None);
        if let Some(set) = self.merge.set(name).cloned() {
            findings.extend(set.findings.iter().cloned());
            status = match self.merge.verdict(&set) {
                SetVerdict::Orphan => None,
                SetVerdict::NotAllowed(finding) => {
                    let message = finding.to_string();
                    findings.push(finding);
                    Some(not_allowed(message))
                }
                SetVerdict::Allowed => {
                    let gateway = set
                        .gateway
                        .as_ref()
                        .and_then(|name| self.merge.gateway(name));
                    findings.extend(annotations::problems_of_set(
                        &set,
                        gateway.map(AsRef::as_ref),
                    ));
                    findings.extend(self.merge.withheld(name).cloned());
                    let parent = set.parent_key();
                    let status = self.listeners_status(&parent, &set.listeners, &mut findings);
                    let status = summarise_set(status, |listener| self.is_valid(&parent, listener));
                    let status = match &set.gateway {
                        Some(gateway) => self.follow_parent(status, gateway),
                        None => status,
                    };
                    if !set.meta.deleting && accepted(&status) {
                        attached_to.clone_from(&set.gateway);
                    }
                    Some(status)
                }
            };
        }
        let mut changed = Vec::new();
        let former = self.set_attached_to.get(name).cloned();
        if former != attached_to {
            for (gateway, attached) in [(former, false), (attached_to.clone(), true)] {
                if let Some(gateway) = gateway {
                    set_user(&mut self.attached_sets, &gateway, name, attached);
                    changed.push(ParentKey::Gateway(gateway));
                }
            }
            match attached_to {
                Some(gateway) => self.set_attached_to.insert(name.clone(), gateway),
                None => self.set_attached_to.remove(name),
            };
        }
        self.settle_status(key.clone(), status.map(Status::Listeners), output);
        self.settle_findings(&key, findings, output);
        changed
    }

    fn assemble_gateway(&mut self, name: &ObjectName, output: &mut Output) {
        let key = ObjectKey {
            kind: Kind::Gateway,
            name: name.clone(),
        };
        let mut findings = self.own_findings(&key);
        let status = self.merge.gateway(name).cloned().map(|gateway| {
            findings.extend(gateway.findings.iter().cloned());
            findings.extend(annotations::problems_of_gateway(&gateway));
            let parent = gateway.parent_key();
            let mut status = self.listeners_status(&parent, &gateway.listeners, &mut findings);
            let valid = status
                .listeners
                .iter()
                .all(|listener| self.is_valid(&parent, &listener.name));
            let state = self.gateways.get(name);
            let accepted = match state.and_then(|state| state.refused.as_ref()) {
                Some(finding) => {
                    let message = finding.to_string();
                    status.programmed = ProgrammedBasis::NotPublished(Reason::Invalid, message);
                    fails(ACCEPTED, finding)
                }
                None if state.is_some_and(|state| state.none_accepted) => Condition::fails(
                    ACCEPTED,
                    Reason::ListenersNotValid,
                    "No listener of the Gateway itself is accepted; see the listeners",
                ),
                None if valid => {
                    Condition::holds(ACCEPTED, Reason::Accepted, "The Gateway is accepted")
                }
                None => Condition::holds(
                    ACCEPTED,
                    Reason::ListenersNotValid,
                    "The Gateway is accepted; not all of its listeners are valid",
                ),
            };
            status.conditions.insert(0, accepted);
            let resolved = gateway.listeners.iter().all(|listener| {
                self.state(&parent, &listener.name)
                    .is_none_or(|state| state.unresolved.is_none())
            });
            status
                .conditions
                .extend(self.tls_conditions(&gateway, resolved));
            if let Some(tls) = self.gateway_tls.get(name) {
                findings.extend(tls.findings.iter().cloned());
            }
            if let Some(state) = state {
                findings.extend(state.findings.iter().cloned());
                let decided = state.refused.is_some() || state.none_accepted;
                if let Some(finding) = state.unreachable.as_ref().filter(|_| !decided) {
                    let message = finding.to_string();
                    status.programmed = ProgrammedBasis::NotPublished(finding.reason, message);
                }
                status.addresses.clone_from(&state.addresses);
            }
            status.attached_listener_sets = self.attached_sets.get(name).map_or(0, BTreeSet::len);
            Status::Listeners(status)
        });
        self.settle_status(key.clone(), status, output);
        self.settle_findings(&key, findings, output);
    }

    fn class_status(&self, refused: Option<&Finding>) -> ClassStatus {
        match refused {
            Some(finding) => ClassStatus {
                conditions: vec![fails(ACCEPTED, finding)],
                supported_features: Vec::new(),
            },
            None => ClassStatus {
                conditions: vec![Condition::holds(
                    ACCEPTED,
                    Reason::Accepted,
                    "Vestibule serves the Gateways of this class",
                )],
                supported_features: features::supported(&self.settings.binds),
            },
        }
    }

    /// If the Gateway of a set is not accepted, the set is not accepted either. If the Gateway cannot be reached, the
    /// set is not programmed (GEP-1713). The listeners of a set that is not accepted for this reason are served all the
    /// same, new ones too, because a mistake of the platform's stops no tenant. Only the Gateway's Services stay as they
    /// are, so clients cannot reach a port that they do not have yet.
    fn follow_parent(&self, mut status: ListenersStatus, gateway: &ObjectName) -> ListenersStatus {
        let Some(state) = self.gateways.get(gateway) else {
            return status;
        };
        if state.refused.is_some() {
            let message = format!(
                "Gateway {gateway} is not accepted; see its status. The listeners are served all the same, on the \
                 ports that the Gateway already has"
            );
            let reason = Reason::ParentNotAccepted;
            status.conditions = vec![Condition::fails(ACCEPTED, reason, message.clone())];
            status.programmed = ProgrammedBasis::NotPublished(reason, message);
        } else if let Some(finding) = &state.unreachable
            && matches!(status.programmed, ProgrammedBasis::WhenAcknowledged(_))
        {
            let message = format!(
                "Gateway {gateway} is not programmed: {}; see its status",
                finding.reason
            );
            status.programmed = ProgrammedBasis::NotPublished(Reason::ParentNotProgrammed, message);
        }
        status
    }

    /// A warning if an EndpointSlice of a Service has an address that no backend may have. The addresses of other slices
    /// are not endpoints.
    fn denied_endpoint(&self, key: &ObjectKey) -> Option<Finding> {
        let Some(Object::EndpointSlice(slice)) = self.objects.get(key).map(Arc::as_ref) else {
            return None;
        };
        slice.service.as_ref()?;
        let (address, denied) = self.denied_in(slice)?;
        Some(Finding::warning(
            Reason::EndpointNotAllowed,
            "endpoints",
            format!("{address} {denied}, so it is left out"),
            "name endpoints that are pods",
        ))
    }

    fn state(&self, parent: &ParentKey, listener: &Arc<str>) -> Option<&ListenerState> {
        let key = ListenerKey::new(parent.clone(), listener.clone());
        self.listeners.get(&key).map(Arc::as_ref)
    }

    /// The resources about which the status of a Gateway, a ListenerSet or a BackendTLSPolicy makes statements: its
    /// listeners with the routes that they count, or the backends in the policy's namespace.
    #[must_use]
    pub fn counted(&self, object: &ObjectKey) -> BTreeSet<ResourceKey> {
        let parent = match object.kind {
            Kind::Gateway => ParentKey::Gateway(object.name.clone()),
            Kind::ListenerSet => ParentKey::ListenerSet(object.name.clone()),
            _ => {
                let namespace = &object.name.namespace;
                let backends = self.backend_users.range(BackendKey::range_in(namespace));
                let backends = backends.map(|(backend, _)| backend);
                let backends = backends.take_while(|backend| backend.is_in(namespace));
                return backends.map(backend_resource).collect();
            }
        };
        let mut counted = BTreeSet::new();
        for listener in self
            .merge
            .listeners(&parent)
            .map_or(&[][..], |found| found.0)
        {
            let key = listener.key(&parent);
            counted.insert(listener_resource(&key));
            let routes = self.attached.get(&key).into_iter().flatten();
            counted.extend(routes.map(route_resource));
        }
        counted
    }

    /// The objects whose statuses say whether the proxies have a resource. They do of listeners, with their certificates,
    /// the CA certificates for clients and the settings of their Gateways, and of routes with their backends.
    #[must_use]
    pub fn concerned_by(&self, resource: &ResourceKey) -> BTreeSet<ObjectKey> {
        let name = &*resource.name;
        let object = |kind| {
            let (namespace, name) = name.split_once('/')?;
            Some(ObjectKey::new(kind, namespace, name))
        };
        let one = match resource.kind() {
            ResourceKind::Listener => listener_object(name),
            ResourceKind::TlsRoute => object(Kind::TlsRoute),
            ResourceKind::HttpRoute => object(Kind::HttpRoute),
            ResourceKind::GrpcRoute => object(Kind::GrpcRoute),
            ResourceKind::TcpRoute => object(Kind::TcpRoute),
            ResourceKind::UdpRoute => object(Kind::UdpRoute),
            ResourceKind::Backend => return self.routes_of_backend(resource),
            ResourceKind::GatewaySettings => return self.parents_by_settings(name),
            ResourceKind::Certificate | ResourceKind::TrustBundle => {
                return self.parents_using(resource);
            }
            _ => None,
        };
        one.into_iter().collect()
    }

    fn routes_of_backend(&self, resource: &ResourceKey) -> BTreeSet<ObjectKey> {
        let service = resource.name.rsplit_once(':');
        let service = service.and_then(|(service, _)| service.split_once('/'));
        let Some((namespace, name)) = service else {
            return BTreeSet::new();
        };
        let service = ObjectName::new(namespace, name);
        let backends = self.backend_users.range(BackendKey::range_of(&service));
        backends
            .filter(|(backend, _)| backend_resource(backend) == *resource)
            .flat_map(|(_, routes)| routes.iter().cloned())
            .collect()
    }

    /// A Gateway and its ListenerSets, by the name of the Gateway's settings on the stream.
    fn parents_by_settings(&self, name: &str) -> BTreeSet<ObjectKey> {
        let Some((namespace, name)) = name.split_once('/') else {
            return BTreeSet::new();
        };
        let gateway = ObjectName::new(namespace, name);
        let sets = self.merge.sets_of(&gateway).cloned();
        let mut parents: BTreeSet<ObjectKey> = sets
            .map(|set| ParentKey::ListenerSet(set).object())
            .collect();
        parents.insert(ParentKey::Gateway(gateway).object());
        parents
    }

    /// The Gateways and ListenerSets whose listeners need the certificate or trust bundle.
    fn parents_using(&self, resource: &ResourceKey) -> BTreeSet<ObjectKey> {
        let users = source_of(resource).and_then(|source| self.source_users.get(&source));
        let mut parents = BTreeSet::new();
        for user in users.into_iter().flatten() {
            match user {
                User::Listener(listener) => {
                    parents.insert(listener.parent.object());
                }
                User::Gateway(gateway) => {
                    parents.insert(ParentKey::Gateway(gateway.clone()).object());
                    let sets = self.merge.sets_of(gateway).cloned();
                    parents.extend(sets.map(|set| ParentKey::ListenerSet(set).object()));
                }
                // Its status says nothing about what the proxies have.
                User::Policy(_) => {}
            }
        }
        parents
    }

    /// Whether a listener counts as valid for its object: it is accepted, and it may use at least one of the
    /// certificates that it refers to, if it refers to any (`listenerset-reference-grant`). A listener that waits for
    /// its Secret is valid, or certificate integrations would wait for it forever.
    fn is_valid(&self, parent: &ParentKey, listener: &Arc<str>) -> bool {
        self.state(parent, listener).is_some_and(|state| {
            let not_permitted = state
                .unresolved
                .as_ref()
                .is_some_and(|f| f.reason == Reason::RefNotPermitted);
            state.refused.is_none() && !(not_permitted && state.certificates.is_empty())
        })
    }

    fn listeners_status(
        &self,
        parent: &ParentKey,
        listeners: &[Listener],
        findings: &mut Vec<Finding>,
    ) -> ListenersStatus {
        let mut held = SmallSet::default();
        let mut statuses: Vec<ListenerStatus> = Vec::with_capacity(listeners.len());
        for listener in listeners {
            // The API server makes sure that names are unique. In a directory of manifests, a second listener of the
            // same name has only its finding.
            if statuses.iter().any(|status| status.name == listener.name) {
                findings.extend(listener.findings.iter().cloned());
                continue;
            }
            let Some(state) = self.state(parent, &listener.name) else {
                continue;
            };
            findings.extend(state.findings.iter().cloned());
            let key = listener.key(parent);
            findings.extend(self.problem_of(&key).cloned());
            let mut conditions = listener_conditions(state);
            conditions.extend(self.certificate_condition(&key, state.unasked.as_deref()));
            let programmed = listener_programmed(&key, state);
            if matches!(programmed, ProgrammedBasis::WhenAcknowledged(_)) {
                held.insert(key.clone());
            }
            statuses.push(ListenerStatus {
                name: listener.name.clone(),
                supported_kinds: state.supported_kinds.clone(),
                attached_routes: self.attached.get(&key).map_or(0, SmallSet::len),
                conditions,
                programmed,
            });
        }
        let waiting = |status: &ListenerStatus| match &status.programmed {
            ProgrammedBasis::NotYet(wait) => Some(wait.clone()),
            _ => None,
        };
        let programmed = if !held.is_empty() {
            ProgrammedBasis::WhenAcknowledged(held)
        } else if let Some(wait) = statuses.iter().find_map(waiting) {
            ProgrammedBasis::NotYet(wait)
        } else {
            ProgrammedBasis::NotPublished(
                Reason::ListenersNotValid,
                "No listener can serve; see the listeners".into(),
            )
        };
        ListenersStatus {
            conditions: Vec::new(),
            programmed,
            listeners: statuses,
            attached_listener_sets: 0,
            addresses: None,
        }
    }
}

/// The object that declares a listener, by the name of the listener on the stream.
fn listener_object(name: &str) -> Option<ObjectKey> {
    let mut parts = name.split('/');
    let (kind, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let kinds = [Kind::Gateway, Kind::ListenerSet];
    let kind = kinds.into_iter().find(|of| of.as_str() == kind)?;
    Some(ObjectKey::new(kind, namespace, name))
}

fn accepted(status: &ListenersStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|c| c.kind == ACCEPTED && c.truth == vestibule_model::condition::Truth::True)
}

fn not_allowed(message: String) -> ListenersStatus {
    ListenersStatus {
        conditions: vec![Condition::fails(
            ACCEPTED,
            Reason::NotAllowed,
            message.clone(),
        )],
        programmed: ProgrammedBasis::NotPublished(Reason::NotAllowed, message),
        listeners: Vec::new(),
        attached_listener_sets: 0,
        addresses: None,
    }
}

/// Adds the condition Accepted, which depends on whether all, some or none of the listeners are valid.
fn summarise_set(
    mut status: ListenersStatus,
    is_valid: impl Fn(&Arc<str>) -> bool,
) -> ListenersStatus {
    let valid = status
        .listeners
        .iter()
        .filter(|l| is_valid(&l.name))
        .count();
    let condition = if valid == 0 {
        Condition::fails(
            ACCEPTED,
            Reason::ListenersNotValid,
            "No listener is valid; see the listeners",
        )
    } else if valid < status.listeners.len() {
        Condition::holds(
            ACCEPTED,
            Reason::ListenersNotValid,
            "Not all listeners are valid; see the listeners",
        )
    } else {
        Condition::holds(ACCEPTED, Reason::Accepted, "All listeners are valid")
    };
    status.conditions.insert(0, condition);
    status
}

fn listener_conditions(state: &ListenerState) -> Vec<Condition> {
    let mut conditions = vec![match &state.refused {
        None => Condition::holds(ACCEPTED, Reason::Accepted, "The listener is accepted"),
        Some(finding) => fails(ACCEPTED, finding),
    }];
    conditions.push(match &state.unresolved {
        None => Condition::holds(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            resolved(state),
        ),
        Some(finding) => fails(ConditionType::ResolvedRefs, finding),
    });
    match (state.conflict, &state.refused) {
        (Some(conflict), Some(finding)) => conditions.push(Condition::holds(
            ConditionType::Conflicted,
            conflict.reason(),
            finding.to_string(),
        )),
        (None, None) => conditions.push(Condition::fails(
            ConditionType::Conflicted,
            Reason::NoConflicts,
            "No listener conflicts with it",
        )),
        // The listener takes no part, so it can have no conflict.
        _ => {}
    }
    if state.overlaps && state.takes_part() {
        conditions.push(Condition::holds(
            ConditionType::OverlappingTLSConfig,
            Reason::OverlappingHostnames,
            "Another listener of this Gateway serves some of the same names on this port",
        ));
    }
    conditions
}

/// The message about a listener whose references resolve, with what is wrong with its certificates all the same.
fn resolved(state: &ListenerState) -> String {
    let warnings = state.expired.iter().chain(&state.mismatched);
    let warnings = warnings.map(ToString::to_string);
    let parts = std::iter::once("All references are resolved".to_owned()).chain(warnings);
    parts.collect::<Vec<_>>().join("; ")
}

fn listener_programmed(key: &ListenerKey, state: &ListenerState) -> ProgrammedBasis {
    if let Some(finding) = &state.refused {
        let reason = match state.conflict {
            Some(conflict) => conflict.reason(),
            None if source::is_unread(finding) => return being_read(finding),
            None => Reason::Invalid,
        };
        return ProgrammedBasis::NotPublished(reason, finding.to_string());
    }
    if !state.is_served() {
        return ProgrammedBasis::NotPublished(Reason::Invalid, "It takes no kind of route".into());
    }
    if let Some(finding) = &state.unusable {
        let reason = match finding.reason {
            _ if source::is_unread(finding) => return being_read(finding),
            Reason::InvalidTLSConfig => Reason::InvalidTLSConfig,
            _ => Reason::Invalid,
        };
        return ProgrammedBasis::NotPublished(reason, finding.to_string());
    }
    if !state.claimed {
        return ProgrammedBasis::NotYet(Wait::Claim);
    }
    if !state.bound {
        return ProgrammedBasis::NotYet(Wait::InternalPort);
    }
    ProgrammedBasis::WhenAcknowledged(SmallSet::from([key.clone()]))
}

/// The basis for what waits until a Secret or `ConfigMap` is read, as the finding says.
fn being_read(finding: &Finding) -> ProgrammedBasis {
    ProgrammedBasis::NotYet(Wait::Source(finding.to_string()))
}
