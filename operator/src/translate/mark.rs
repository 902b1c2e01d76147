//! Changes taken in: which units depend on what changed and are to be computed again.

use std::sync::Arc;

use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::{Affected, Owners};
use vestibule_model::object::Object;
use vestibule_model::route::Route;

use super::backend_key::BackendKey;
use super::{Change, Dirty, Translator};

impl Translator {
    pub(super) fn take(&mut self, change: Change, dirty: &mut Dirty) {
        let (key, new) = match change {
            Change::Put(object) => (object.key(), Some(Arc::new(object))),
            Change::Remove(key) => (key, None),
            Change::Ports(ports) => return self.take_ports(ports, dirty),
            Change::Claims(changes) => return self.take_claims(changes, dirty),
            Change::Taken(changes) => return self.take_taken(changes, dirty),
            Change::Challenges(changes) => return self.take_challenges(changes, dirty),
            Change::Time(now) => return self.take_time(now, dirty),
            Change::SessionKeys(keys) => return self.take_session_keys(keys, dirty),
            Change::Issuance(changes) => return self.take_issuance(changes, dirty),
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
                        || old.tls != new.tls
                        || old.meta.uid != new.meta.uid)
                {
                    // Sets without a choice of issuer follow their Gateway's; `spec.tls` and internal
                    // ports are the Gateway's.
                    for set in self.merge.sets_of(name) {
                        let parent = ParentKey::ListenerSet(set.clone());
                        self.index.dirty_listeners(&parent, dirty);
                        dirty.parents.insert(parent);
                    }
                }
                let affected = self.merge.put_gateway(name, gateway);
                dirty.tls.insert(name.clone());
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
            Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute => {
                dirty.routes.insert(key.clone());
            }
            Kind::HttpRoute | Kind::GrpcRoute => {
                let route = match new {
                    Some(Object::HttpRoute(route)) => Some(route),
                    _ => None,
                };
                dirty.routes.extend(self.patterns.put(key, route));
                dirty.routes.insert(key.clone());
            }
            Kind::GatewayParameters => self.mark_parameters(name, dirty),
            Kind::Namespace => {
                let labels = match new {
                    Some(Object::Namespace(namespace)) => Some(namespace.labels.clone()),
                    _ => None,
                };
                let affected = self.merge.put_namespace(&name.name, labels);
                dirty.routes.extend(self.index.routes_in(&name.name));
                self.mark_shown_to(&name.name, dirty);
                self.spread(affected, dirty);
            }
            Kind::ReferenceGrant => self.mark_referrers(&name.namespace, dirty),
            Kind::HostnameGrant => self.mark_grant(name, new, dirty),
            Kind::Secret => {
                self.secrets.remove(name);
                if self.source_users.contains_key(key) {
                    dirty.certificates.insert(name.clone());
                }
                self.mark_source(key, dirty);
            }
            Kind::ConfigMap => self.mark_source(key, dirty),
            Kind::AcmeIssuer | Kind::ClusterAcmeIssuer => {
                dirty.issuers.insert(key.clone());
            }
            Kind::HostnameClaim => self.take_claim_object(name, new, dirty),
            Kind::BackendTlsPolicy => self.mark_policy(key, [old, new], dirty),
            Kind::Service => {
                dirty.routes.extend(self.index.routes_of_service(name));
                self.dirty_backends(name, dirty);
                self.mark_policies(name, dirty);
            }
            Kind::EndpointSlice => self.mark_slice(name, [old, new], dirty),
        }
        dirty.others.insert(key.clone());
    }

    /// Marks what an EndpointSlice is about: pods of the release, backends, and routes that are told of endpoints.
    fn mark_slice(
        &mut self,
        name: &ObjectName,
        [old, new]: [Option<&Object>; 2],
        dirty: &mut Dirty,
    ) {
        let slice = |object: Option<&Object>| match object {
            Some(Object::EndpointSlice(slice)) => Some(slice.clone()),
            _ => None,
        };
        let (before, after) = (slice(old), slice(new));
        self.take_own_pods(before.as_ref(), after.as_ref(), dirty);
        for object in [old, new].into_iter().flatten() {
            if let Object::EndpointSlice(slice) = object
                && let Some(service) = &slice.service
            {
                let service = ObjectName::new(name.namespace.clone(), service.clone());
                if self.judges_endpoints(&service, slice) {
                    dirty.routes.extend(self.index.routes_of_service(&service));
                }
                self.dirty_backends(&service, dirty);
            }
        }
    }

    /// The grants of a namespace changed: whoever refers into it.
    fn mark_referrers(&self, namespace: &Arc<str>, dirty: &mut Dirty) {
        for referrer in self.index.referrers_into(namespace) {
            match referrer.kind {
                kind if kind.is_route() => {
                    dirty.routes.insert(referrer);
                }
                Kind::Gateway => {
                    let parent = ParentKey::Gateway(referrer.name.clone());
                    self.index.dirty_listeners(&parent, dirty);
                    dirty.tls.insert(referrer.name.clone());
                }
                Kind::ListenerSet => self
                    .index
                    .dirty_listeners(&ParentKey::ListenerSet(referrer.name.clone()), dirty),
                _ => {}
            }
        }
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

    pub(super) fn spread(&mut self, affected: Affected, dirty: &mut Dirty) {
        for gateway in affected.gateways {
            // Which Gateways are there, and whose, is in the statuses of the grants beside them.
            let grants = self.merge.grants_in(&gateway.namespace);
            dirty.others.extend(grants.map(|grant| ObjectKey {
                kind: Kind::HostnameGrant,
                name: grant.name.clone(),
            }));
            dirty.gateways.insert(gateway.clone());
            dirty.tls.insert(gateway.clone());
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
        for place in affected.overlaps {
            self.overlaps.mark(place);
        }
        dirty.routes.extend(affected.routes);
        dirty.claims.extend(affected.claims);
        dirty.owned.extend(affected.owned);
        for owners in affected.owners {
            self.mark_owners(&owners, dirty);
        }
    }

    fn mark_grant(&mut self, name: &ObjectName, new: Option<&Object>, dirty: &mut Dirty) {
        let grant = match new {
            Some(Object::HostnameGrant(grant)) => Some(grant.clone()),
            Some(Object::Unreadable(_, meta, finding)) => Some(HostnameGrant::unreadable(
                name.clone(),
                meta.clone(),
                finding.clone(),
            )),
            _ => None,
        };
        let affected = self.merge.put_grant(name, grant.map(Arc::new));
        self.spread(affected, dirty);
    }

    /// Routes to listeners of a Gateway of which namespaces may own other hostnames now.
    fn mark_owners(&self, owners: &Owners, dirty: &mut Dirty) {
        for (namespace, routes) in self.index.routes_by_namespace() {
            if !self.merge.is_touched(owners, namespace) {
                continue;
            }
            let concerned = routes.iter().filter(|key| {
                let parents = self.route(key).into_iter().flat_map(Route::parents);
                parents
                    .filter_map(|reference| reference.parent(namespace))
                    .filter_map(|parent| self.merge.listeners(&parent))
                    .any(|(_, gateway)| *gateway == owners.gateway)
            });
            dirty.routes.extend(concerned.cloned());
        }
    }

    pub(super) fn dirty_backends(&self, service: &ObjectName, dirty: &mut Dirty) {
        dirty.backends.extend(
            self.backend_users
                .range(BackendKey::range_of(service))
                .map(|(key, _)| key.clone()),
        );
    }
}
