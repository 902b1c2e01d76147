//! Gateways as a whole: whether each is accepted, its parameters, its addresses, and the internal ports
//! and Services that it needs in the cluster.
//!
//! A Gateway that is not accepted, because of its parameters or addresses, goes on serving what its
//! listeners and those of its ListenerSets say, new ones too, and its Services stay as they are. A
//! mistake in one edit must not take down the hostnames of every tenant, nor keep tenants from their
//! work. The status of the Gateway says that it is not accepted, and so do those of its ListenerSets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_crds::gateway_api::unsupported_parameters;
use vestibule_model::condition::{Address, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Gateway, GatewayClass};
use vestibule_model::key::{Kind, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::parameters::GatewayParameters;
use vestibule_model::protocol::{Port, Transport};
use vestibule_model::reference::Reference;

use super::binds::DesiredPort;
use super::service::{self, Assigned, DesiredService};
use super::{Dirty, Output, Translator};

/// The state of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GatewayState {
    uid: Arc<str>,
    /// Why it is not accepted, if it is not. Then its sets are not accepted either.
    pub(super) refused: Option<Finding>,
    /// Whether none of its own listeners is accepted. Then the Gateway is not accepted either
    /// (`conformance/tests/gateway-invalid-listeners-unsupported-protocol.go`). Its sets belong to
    /// tenants, so this does not affect them.
    pub(super) none_accepted: bool,
    /// Why it has no address, or not the one that it asks for.
    pub(super) unreachable: Option<Finding>,
    /// Its addresses; `None` if they are not known. Then the status keeps the addresses that it has.
    pub(super) addresses: Option<Vec<Address>>,
    /// Every finding about it as a whole.
    pub(super) findings: Vec<Finding>,
}

impl Translator {
    pub(super) fn take_ports(
        &mut self,
        ports: BTreeMap<DesiredPort, Option<Port>>,
        dirty: &mut Dirty,
    ) {
        for (desired, internal) in ports {
            let old = match internal {
                Some(internal) => self.allocated.insert(desired.clone(), internal),
                None => self.allocated.remove(&desired),
            };
            if old == internal {
                continue;
            }
            if let Some(listeners) = self.port_users.get(&desired) {
                dirty.listeners.extend(listeners.iter().cloned());
            }
            dirty.uids.insert(desired.gateway);
        }
    }

    pub(super) fn take_addresses(
        &mut self,
        uid: Arc<str>,
        assigned: Option<Assigned>,
        dirty: &mut Dirty,
    ) {
        if self.assigned.get(&uid) == assigned.as_ref() {
            return;
        }
        let sockets = assigned.as_ref().map(|assigned| assigned.sockets.clone());
        let before = match assigned {
            Some(assigned) => self.assigned.insert(uid.clone(), assigned),
            None => self.assigned.remove(&uid),
        };
        let before = before.map(|assigned| assigned.sockets).unwrap_or_default();
        self.take_sockets(&uid, &before, &sockets.unwrap_or_default(), dirty);
        dirty.uids.insert(uid);
    }

    /// Takes which namespaces have a Gateway by now. They have no limits, except for their routes.
    pub(super) fn exempt_entrances(&mut self, dirty: &mut Dirty) {
        for namespace in std::mem::take(&mut dirty.entrances) {
            let mut gateways = self.merge.gateways_in(&namespace);
            let is_entrance = gateways.any(|name| self.merge.gateway(name).is_some());
            self.source_budgets.exempt(&namespace, is_entrance);
            self.backend_budgets.exempt(&namespace, is_entrance);
            self.listener_budgets.exempt(&namespace, is_entrance);
        }
    }

    /// Marks what depends on parameters that changed: the Gateways and classes that refer to them, and
    /// the Gateways of these classes.
    pub(super) fn mark_parameters(&self, name: &ObjectName, dirty: &mut Dirty) {
        for user in self.index.users_of_parameters(name) {
            if user.kind == Kind::GatewayClass {
                let gateways = self.merge.gateways_of(&user.name.name);
                let gateways: Vec<ObjectName> = gateways.cloned().collect();
                dirty.tls.extend(gateways.iter().cloned());
                dirty.gateways.extend(gateways);
                dirty.classes.insert(user.name.name.clone());
            } else {
                dirty.tls.insert(user.name.clone());
                dirty.gateways.insert(user.name);
            }
        }
    }

    pub(super) fn translate_gateways(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for uid in std::mem::take(&mut dirty.uids) {
            let gateways = self.index.gateways_with_uid(&uid);
            dirty.gateways.extend(gateways.cloned());
        }
        for name in std::mem::take(&mut dirty.gateways) {
            output.work.gateways += 1;
            let (state, ports, desired) = self.judge_gateway(&name);
            let old = match state.clone() {
                Some(state) => self.gateways.insert(name.clone(), state),
                None => self.gateways.remove(&name),
            };
            let before = old.as_ref().map(|state| state.uid.clone());
            let after = state.as_ref().map(|state| state.uid.clone());
            if let Some(uid) = before.filter(|uid| Some(uid) != after.as_ref()) {
                self.settle_ports(&uid, &BTreeSet::new(), output);
                self.settle_service(uid, None, output);
            }
            if let Some(uid) = after.filter(|_| self.settings.binds.services().is_some()) {
                self.settle_ports(&uid, &ports, output);
                self.settle_service(uid, desired, output);
            }
            if old == state {
                continue;
            }
            // The part of the state that the statuses of its sets repeat.
            let told = |s: &Option<GatewayState>| {
                s.as_ref().map(|s| {
                    let unreachable = s.unreachable.as_ref().map(|finding| finding.reason);
                    (s.refused.is_some(), unreachable)
                })
            };
            if told(&old) != told(&state) {
                let sets = self.merge.sets_of(&name).cloned();
                dirty.parents.extend(sets.map(ParentKey::ListenerSet));
            }
            dirty.parents.insert(ParentKey::Gateway(name));
        }
    }

    /// The state of a Gateway, the internal ports that it needs, and its desired Services.
    fn judge_gateway(
        &self,
        name: &ObjectName,
    ) -> (
        Option<GatewayState>,
        BTreeSet<DesiredPort>,
        Option<DesiredService>,
    ) {
        let Some(gateway) = self.merge.gateway(name) else {
            return self.keep_services(name);
        };
        let mut findings = Vec::new();
        let parameters = self.parameters(gateway);
        let refused = match &parameters {
            Err(finding) => {
                findings.push(finding.clone());
                Some(finding.clone())
            }
            Ok(_) => unsupported_address(gateway).cloned(),
        };
        let mut state = GatewayState {
            uid: gateway.meta.uid.clone(),
            refused,
            none_accepted: !self.is_any_accepted(gateway),
            unreachable: None,
            addresses: None,
            findings,
        };
        let Some(settings) = self.settings.binds.services() else {
            return (Some(state), BTreeSet::new(), None);
        };
        let ports = self.ports_of(gateway);
        let internal: BTreeMap<(Port, Transport), Port> = ports
            .iter()
            .filter_map(|desired| {
                Some((
                    (desired.port, desired.transport),
                    *self.allocated.get(desired)?,
                ))
            })
            .collect();
        let assigned = self.assigned.get(&state.uid);
        state.addresses = assigned.map(|assigned| assigned.addresses.clone());
        let parameters = parameters.ok().filter(|_| state.refused.is_none());
        let Some(parameters) = parameters else {
            return (Some(state), ports, Some(DesiredService::Keep));
        };
        // A Gateway whose Services are made has no addresses until they are known, so the status must not
        // keep old ones. Where the Services stay as they are, the addresses in the status stay too.
        state.addresses.get_or_insert_default();
        let service = service::build(gateway, settings, &parameters, internal);
        let desired = match service {
            Ok(service) => {
                let asked = (&service.front, service.service_type);
                state.unreachable = service::unreachable(gateway, asked, assigned);
                if service.ports.is_empty() {
                    DesiredService::Keep
                } else {
                    DesiredService::Make(Box::new(service))
                }
            }
            Err(finding) => {
                state.unreachable = Some(finding);
                DesiredService::Keep
            }
        };
        (Some(state), ports, Some(desired))
    }

    /// The same for a Gateway that cannot be read, or has no class of ours. If it cannot be read, or its class does
    /// not exist, its Services stay as they are, and it keeps every internal port that it has: a class that is deleted
    /// and created again must not cost the Gateways their addresses. A Gateway that never was ours has neither. One that
    /// is being deleted keeps nothing, and neither does one that can be read and has a class of another controller.
    fn keep_services(
        &self,
        name: &ObjectName,
    ) -> (
        Option<GatewayState>,
        BTreeSet<DesiredPort>,
        Option<DesiredService>,
    ) {
        let meta = match self.get(Kind::Gateway, name) {
            Some(Object::Unreadable(_, meta, _)) => meta,
            Some(Object::Gateway(gateway)) if self.merge.class(&gateway.class).is_none() => {
                &gateway.meta
            }
            _ => return (None, BTreeSet::new(), None),
        };
        if meta.deleting {
            return (None, BTreeSet::new(), None);
        }
        let state = GatewayState {
            uid: meta.uid.clone(),
            refused: None,
            none_accepted: false,
            unreachable: None,
            addresses: None,
            findings: Vec::new(),
        };
        let ports = self
            .allocated
            .range(DesiredPort::first_of(&meta.uid)..)
            .map(|(desired, _)| desired)
            .take_while(|desired| desired.gateway == meta.uid)
            .cloned()
            .collect();
        (Some(state), ports, Some(DesiredService::Keep))
    }

    /// The ports that listeners of a Gateway serve. If nothing is served, it is the port of the Gateway's
    /// first own listener, although nothing answers there. A Service has to have at least one port, and
    /// without a Service the Gateway would lose its address.
    fn ports_of(&self, gateway: &Gateway) -> BTreeSet<DesiredPort> {
        let uid = &gateway.meta.uid;
        let used: BTreeSet<DesiredPort> = self
            .port_users
            .range(DesiredPort::first_of(uid)..)
            .map(|(desired, _)| desired)
            .take_while(|desired| desired.gateway == *uid)
            .cloned()
            .collect();
        if !used.is_empty() {
            return used;
        }
        let stand_in = gateway.listeners.iter().find_map(|listener| {
            Some(DesiredPort {
                gateway: uid.clone(),
                port: listener.port?,
                transport: listener.protocol.transport().unwrap_or(Transport::Tcp),
            })
        });
        stand_in.into_iter().collect()
    }

    fn is_any_accepted(&self, gateway: &Gateway) -> bool {
        let parent = gateway.parent_key();
        gateway.listeners.iter().any(|listener| {
            self.listeners
                .get(&listener.key(&parent))
                .is_some_and(|state| state.refused.is_none())
        })
    }

    /// The parameters of a Gateway in order of precedence: its own, then those of its class.
    pub(super) fn parameters(&self, gateway: &Gateway) -> Result<Vec<&GatewayParameters>, Finding> {
        let mut parameters = Vec::new();
        if let Some(reference) = &gateway.infrastructure.parameters {
            parameters.push(self.parameters_at(reference)?);
        }
        if let Some(class) = self.merge.class(&gateway.class) {
            let of_class = self.parameters_of_class(class).map_err(|finding| Finding {
                field: "spec.gatewayClassName".into(),
                message: format!(
                    "GatewayClass {} is not accepted: {}: {}",
                    class.name, finding.field, finding.message
                ),
                action: "ask whoever runs Vestibule".into(),
                ..finding
            })?;
            parameters.extend(of_class);
        }
        Ok(parameters)
    }

    /// The parameters of a class, if it has any. An error means that the class is not accepted.
    pub(super) fn parameters_of_class(
        &self,
        class: &GatewayClass,
    ) -> Result<Option<&GatewayParameters>, Finding> {
        if let Some(refusal) = class.findings.iter().find(|finding| finding.refuses()) {
            return Err(refusal.clone());
        }
        let reference = class.parameters.as_ref();
        reference.map(|r| self.parameters_at(r)).transpose()
    }

    fn parameters_at(&self, reference: &Reference) -> Result<&GatewayParameters, Finding> {
        let refuse = |message: String, action: &str| {
            let field = &reference.field;
            Finding::refused(Reason::InvalidParameters, field, message, action)
        };
        if let Some(refusal) = unsupported_parameters(reference) {
            return Err(refusal);
        }
        let name = &reference.target;
        match self.get(Kind::GatewayParameters, name) {
            Some(Object::GatewayParameters(parameters)) => {
                match parameters.findings.iter().find(|finding| finding.refuses()) {
                    None => Ok(parameters),
                    Some(finding) => Err(refuse(
                        format!("GatewayParameters {name}: {finding}"),
                        "correct the GatewayParameters",
                    )),
                }
            }
            Some(_) => Err(refuse(
                format!("GatewayParameters {name} cannot be read, as its own finding says"),
                "correct the GatewayParameters",
            )),
            None => Err(refuse(
                format!("GatewayParameters {name} does not exist"),
                "create it, or remove the reference",
            )),
        }
    }

    fn settle_ports(&mut self, uid: &Arc<str>, ports: &BTreeSet<DesiredPort>, output: &mut Output) {
        let before: BTreeSet<DesiredPort> = self
            .desired_ports
            .range(DesiredPort::first_of(uid)..)
            .take_while(|desired| desired.gateway == *uid)
            .cloned()
            .collect();
        for desired in before.symmetric_difference(ports) {
            let wanted = ports.contains(desired);
            if wanted {
                self.desired_ports.insert(desired.clone());
            } else {
                self.desired_ports.remove(desired);
            }
            // A port that is given up and needed again within one pass has not changed.
            if output.ports.remove(desired).is_none() {
                output.ports.insert(desired.clone(), wanted);
            }
        }
    }

    fn settle_service(
        &mut self,
        uid: Arc<str>,
        desired: Option<DesiredService>,
        output: &mut Output,
    ) {
        if self.services.get(&uid) == desired.as_ref() {
            return;
        }
        match desired.clone() {
            Some(desired) => self.services.insert(uid.clone(), desired),
            None => self.services.remove(&uid),
        };
        output.services.insert(uid, desired);
    }
}

fn unsupported_address(gateway: &Gateway) -> Option<&Finding> {
    gateway
        .findings
        .iter()
        .find(|finding| finding.refuses() && finding.reason == Reason::UnsupportedAddress)
}
