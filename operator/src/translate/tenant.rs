//! What `HostnameGrant`s say about the connections of namespaces, as resources for the proxies. A namespace has one if grants
//! give it other shares than everybody has, or a limit. Proxies count connections of all Gateways together, so the
//! resource is the same for all of them.

use std::sync::Arc;

use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::{Dirty, Output, Translator};

impl Translator {
    /// Marks the namespaces that a version of a grant selects.
    pub(super) fn mark_selected(&self, grant: &HostnameGrant, dirty: &mut Dirty) {
        dirty.tenants.extend(grant.namespaces.names.iter().cloned());
        if grant.namespaces.selector.is_none() {
            return;
        }
        let with_routes = self.index.routes_by_namespace();
        let with_routes = with_routes.map(|(namespace, _)| namespace);
        let present = self.merge.known_namespaces().chain(with_routes);
        let selected = present
            .filter(|namespace| grant.selects(namespace, self.merge.labels(namespace)))
            .cloned();
        dirty.tenants.extend(selected);
    }

    /// Marks a namespace whose labels may be others.
    pub(super) fn mark_tenant(&self, namespace: &Arc<str>, dirty: &mut Dirty) {
        if self.merge.limits_connections() {
            dirty.tenants.insert(namespace.clone());
        }
    }

    /// Marks the namespace of a Gateway, ListenerSet or route. If nothing else is known of the namespace, it comes and goes
    /// with such objects.
    pub(super) fn mark_presence(&self, namespace: &Arc<str>, dirty: &mut Dirty) {
        if self.merge.labels(namespace).is_none() {
            self.mark_tenant(namespace, dirty);
        }
    }

    /// Brings up to date what the proxies know about the connections of namespaces.
    pub(super) fn translate_tenants(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for namespace in std::mem::take(&mut dirty.tenants) {
            output.work.tenants += 1;
            let key = ResourceKey::new(ResourceKind::Tenant, &*namespace);
            let resource = self.tenant(&namespace);
            self.settle_resource(key, resource, output);
        }
    }

    fn tenant(&self, namespace: &Arc<str>) -> Option<Encoded> {
        let is_present =
            self.merge.is_known_namespace(namespace) || self.index.has_routes(namespace);
        if !is_present {
            return None;
        }
        let limits = self.merge.connection_limits(namespace);
        // One share is what a namespace has without a grant.
        let shares = limits.shares.filter(|shares| *shares != 1);
        let tenant = proto::Tenant {
            connection_shares: shares.unwrap_or_default(),
            max_connections: limits.most.unwrap_or_default(),
        };
        if tenant == proto::Tenant::default() {
            return None;
        }
        let tenant = resource::Resource::Tenant(tenant);
        // Only a name could make it too large, and the API bounds names.
        Encoded::new(&Resource::new(&**namespace, tenant)).ok()
    }
}
