//! Indexes over the objects: which units depend on each object that can change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vestibule_model::endpoint::forms;
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::grant::Grants;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::reference::Reference;
use vestibule_model::route::Route;
use vestibule_model::small::SmallSet;
use vestibule_model::tls_policy::{PolicyPlace, Precedence};

use super::{Dirty, set_user};

/// The units that depend on an object, by that object.
#[derive(Debug, Default)]
pub(super) struct Index {
    listeners: BTreeMap<ParentKey, BTreeSet<ListenerKey>>,
    routes_by_parent: BTreeMap<ParentKey, SmallSet<ObjectKey>>,
    routes_by_namespace: BTreeMap<Arc<str>, BTreeSet<ObjectKey>>,
    routes_by_service: BTreeMap<ObjectName, SmallSet<ObjectKey>>,
    slices_by_service: BTreeMap<ObjectName, SmallSet<ObjectName>>,
    /// EndpointSlices of Services, by the addresses that serve in them.
    slices_by_address: BTreeMap<IpAddr, SmallSet<ObjectName>>,
    /// The ReferenceGrants, by those to whom they speak.
    pub(super) grants: Grants,
    /// GatewayClasses and Gateways by the GatewayParameters they refer to.
    parameter_users: BTreeMap<ObjectName, BTreeSet<ObjectKey>>,
    gateways_by_uid: BTreeMap<Arc<str>, BTreeSet<ObjectName>>,
    /// BackendTLSPolicies by what they target, in the order in which they apply there.
    policies_by_place: BTreeMap<PolicyPlace, SmallSet<Precedence>>,
    /// BackendTLSPolicies that cannot be read, by namespace.
    unreadable_policies: BTreeMap<Arc<str>, BTreeSet<ObjectName>>,
    /// Objects that refer into a namespace that is not their own.
    referrers: BTreeMap<Arc<str>, BTreeSet<ObjectKey>>,
}

impl Index {
    pub(super) fn insert(&mut self, key: &ObjectKey, object: &Object) {
        self.set(key, object, true);
    }

    pub(super) fn remove(&mut self, key: &ObjectKey, object: &Object) {
        self.set(key, object, false);
    }

    fn set(&mut self, key: &ObjectKey, object: &Object, there: bool) {
        let name = &key.name;
        match object {
            Object::Gateway(gateway) => {
                self.set_listeners(key, &gateway.parent_key(), &gateway.listeners, there);
                let uid = &gateway.meta.uid;
                set_user(&mut self.gateways_by_uid, uid, name, there);
                self.set_parameters(key, gateway.infrastructure.parameters.as_ref(), there);
                let authorities = gateway.tls.validations().flat_map(|v| &v.authorities);
                for reference in authorities.chain(&gateway.tls.client_certificate) {
                    self.set_referrer(key, &reference.target.namespace, there);
                }
            }
            Object::GatewayClass(class) => {
                self.set_parameters(key, class.parameters.as_ref(), there);
            }
            Object::ListenerSet(set) => {
                self.set_listeners(key, &set.parent_key(), &set.listeners, there);
            }
            Object::TlsRoute(_) | Object::HttpRoute(_) | Object::PortRoute(_) => {
                if let Some(route) = object.as_route() {
                    self.set_route(key, route, there);
                }
            }
            Object::EndpointSlice(slice) => {
                if let Some(service) = &slice.service {
                    let service = ObjectName::new(name.namespace.clone(), service.clone());
                    set_user(&mut self.slices_by_service, &service, name, there);
                    for address in slice.serving() {
                        for form in forms(address) {
                            set_user(&mut self.slices_by_address, &form, name, there);
                        }
                    }
                }
            }
            Object::ReferenceGrant(grant) if there => self.grants.insert(grant),
            Object::ReferenceGrant(grant) => self.grants.remove(grant),
            Object::BackendTlsPolicy(policy) => {
                let precedence = policy.precedence();
                for place in policy.places() {
                    set_user(&mut self.policies_by_place, &place, &precedence, there);
                }
            }
            Object::Unreadable(key, meta, _) if key.kind == Kind::Gateway => {
                set_user(&mut self.gateways_by_uid, &meta.uid, name, there);
            }
            Object::Unreadable(key, ..) if key.kind == Kind::BackendTlsPolicy => {
                set_user(&mut self.unreadable_policies, &name.namespace, name, there);
            }
            Object::GatewayParameters(_)
            | Object::Namespace(_)
            | Object::Service(_)
            | Object::Secret(_)
            | Object::ConfigMap(_)
            | Object::AcmeIssuer(_)
            | Object::HostnameGrant(_)
            | Object::HostnameClaim(_)
            | Object::Unreadable(..) => {}
        }
    }

    fn set_route(&mut self, key: &ObjectKey, route: Route<'_>, there: bool) {
        let namespace = &key.name.namespace;
        for parent in route.parents() {
            if let Some(parent) = parent.parent(namespace) {
                set_user(&mut self.routes_by_parent, &parent, key, there);
            }
        }
        set_user(&mut self.routes_by_namespace, namespace, key, there);
        for backend in route.all_backends() {
            let target = &backend.reference.target;
            if backend.reference.is(Kind::Service) {
                set_user(&mut self.routes_by_service, target, key, there);
            }
            self.set_referrer(key, &target.namespace, there);
        }
    }

    fn set_listeners(
        &mut self,
        key: &ObjectKey,
        parent: &ParentKey,
        listeners: &[Listener],
        there: bool,
    ) {
        for listener in listeners {
            let id = listener.key(parent);
            set_user(&mut self.listeners, parent, &id, there);
            let Some(tls) = listener
                .tls
                .as_ref()
                .filter(|t| t.mode == TlsMode::Terminate)
            else {
                continue;
            };
            for reference in &tls.certificates {
                self.set_referrer(key, &reference.target.namespace, there);
            }
        }
    }

    fn set_parameters(&mut self, key: &ObjectKey, reference: Option<&Reference>, there: bool) {
        if let Some(reference) = reference.filter(|r| r.is(Kind::GatewayParameters)) {
            set_user(&mut self.parameter_users, &reference.target, key, there);
        }
    }

    fn set_referrer(&mut self, key: &ObjectKey, namespace: &Arc<str>, there: bool) {
        if *namespace != key.name.namespace {
            set_user(&mut self.referrers, namespace, key, there);
        }
    }

    pub(super) fn users_of_parameters(&self, name: &ObjectName) -> BTreeSet<ObjectKey> {
        self.parameter_users.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn gateways_with_uid(&self, uid: &Arc<str>) -> impl Iterator<Item = &ObjectName> {
        self.gateways_by_uid.get(uid).into_iter().flatten()
    }

    pub(super) fn dirty_listeners(&self, parent: &ParentKey, dirty: &mut Dirty) {
        if let Some(listeners) = self.listeners.get(parent) {
            dirty.listeners.extend(listeners.iter().cloned());
        }
    }

    /// The policies for a Service and for its ports.
    pub(super) fn policies_of(&self, service: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        let whole = PolicyPlace {
            service: service.clone(),
            section: None,
        };
        self.policies_by_place
            .range(whole..)
            .take_while(move |(place, _)| place.service == *service)
            .flat_map(|(_, policies)| policies.iter().map(Precedence::name))
    }

    /// The policies for exactly this Service or port.
    pub(super) fn policies_at(&self, place: &PolicyPlace) -> impl Iterator<Item = &ObjectName> {
        let policies = self.policies_by_place.get(place).into_iter().flatten();
        policies.map(Precedence::name)
    }

    /// The policy that comes first at this Service or port.
    pub(super) fn first_policy(&self, place: &PolicyPlace) -> Option<&ObjectName> {
        let policies = self.policies_by_place.get(place)?;
        policies.first().map(Precedence::name)
    }

    /// The first policy of a namespace that cannot be read, if there is one.
    pub(super) fn unreadable_policy(&self, namespace: &Arc<str>) -> Option<&ObjectName> {
        self.unreadable_policies.get(namespace)?.first()
    }

    pub(super) fn routes_to(&self, parent: &ParentKey) -> impl Iterator<Item = &ObjectKey> {
        self.routes_by_parent.get(parent).into_iter().flatten()
    }

    pub(super) fn routes_in(&self, namespace: &Arc<str>) -> BTreeSet<ObjectKey> {
        self.routes_by_namespace
            .get(namespace)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn has_routes(&self, namespace: &Arc<str>) -> bool {
        self.routes_by_namespace.contains_key(namespace)
    }

    pub(super) fn routes_by_namespace(
        &self,
    ) -> impl Iterator<Item = (&Arc<str>, &BTreeSet<ObjectKey>)> {
        self.routes_by_namespace.iter()
    }

    pub(super) fn routes_of_service(
        &self,
        service: &ObjectName,
    ) -> impl Iterator<Item = &ObjectKey> {
        self.routes_by_service.get(service).into_iter().flatten()
    }

    /// Routes that refer to some Service of a namespace.
    pub(super) fn routes_of_services_in(&self, namespace: &Arc<str>) -> BTreeSet<ObjectKey> {
        self.routes_by_service
            .range(ObjectName::new(namespace.clone(), "")..)
            .take_while(|(service, _)| service.namespace == *namespace)
            .flat_map(|(_, routes)| routes.iter().cloned())
            .collect()
    }

    pub(super) fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.slices_by_service.get(service).into_iter().flatten()
    }

    pub(super) fn slices_at(&self, address: IpAddr) -> impl Iterator<Item = &ObjectName> {
        self.slices_by_address.get(&address).into_iter().flatten()
    }

    /// The objects of one kind in one namespace that refer into another namespace.
    pub(super) fn referrers_into(
        &self,
        into: &Arc<str>,
        kind: Kind,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &ObjectKey> {
        let first = ObjectKey {
            kind,
            name: ObjectName::new(namespace.clone(), ""),
        };
        let referrers = self.referrers.get(into).into_iter();
        referrers
            .flat_map(move |all| all.range(first.clone()..))
            .take_while(move |key| key.kind == kind && key.name.namespace == *namespace)
    }
}
