//! The objects by which admission judges. They come from the cluster, a directory or a test.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::claim::{ClaimKey, Holder, Holders, HostnameClaim};
use vestibule_model::gateway::{Gateway, GatewayClass, ListenerSet};
use vestibule_model::grant::Grants;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::merge::Merge;
use vestibule_model::object::{Namespace, Object, ReferenceGrant};

/// The objects that admission knows. Kinds that play no part are ignored. Routes are among these, so the memory does
/// not grow with their number.
#[derive(Debug, Clone)]
pub struct AdmissionState {
    merge: Merge,
    /// Gateways of any controller. They are kept to tell a new version from an edit of the status.
    gateways: BTreeMap<ObjectName, Arc<Gateway>>,
    /// `ReferenceGrants`, and what they permit.
    references: BTreeMap<ObjectName, ReferenceGrant>,
    permitted: Grants,
    /// The `HostnameClaims`.
    holders: Holders,
}

impl AdmissionState {
    /// A state without objects, for the GatewayClasses of `controller`.
    pub fn new(controller: impl Into<Arc<str>>) -> Self {
        Self {
            merge: Merge::new(controller),
            gateways: BTreeMap::new(),
            references: BTreeMap::new(),
            permitted: Grants::default(),
            holders: Holders::default(),
        }
    }

    /// The same, with this limit of hostnames for namespaces where no grant states one.
    #[must_use]
    pub fn with_names_per_namespace(mut self, most: u32) -> Self {
        self.merge = self.merge.with_names_per_namespace(most);
        self
    }

    /// The same, with this limit of ports for namespaces where no grant states one.
    #[must_use]
    pub fn with_ports_per_namespace(mut self, most: u32) -> Self {
        self.merge = self.merge.with_ports_per_namespace(most);
        self
    }

    /// The merge of all ListenerSets with their Gateways.
    #[must_use]
    pub fn merge(&self) -> &Merge {
        &self.merge
    }

    /// The references that `ReferenceGrants` permit.
    #[must_use]
    pub fn reference_grants(&self) -> &Grants {
        &self.permitted
    }

    /// Takes a version of an object. A version without a relevant change costs almost nothing. This matters, because
    /// every edit of a status arrives here, and a Gateway may have thousands of sets.
    pub fn put(&mut self, object: Object) {
        match object {
            Object::GatewayClass(class) => self.put_class(class),
            Object::Gateway(gateway) => self.put_gateway(gateway),
            Object::ListenerSet(set) => self.put_set(&set.name.clone(), Some(set)),
            Object::Namespace(namespace) => self.put_namespace(namespace),
            Object::ReferenceGrant(grant) => {
                self.put_reference_grant(&grant.name.clone(), Some(grant));
            }
            Object::HostnameGrant(grant) => self.put_grant(grant),
            // A grant that cannot be read gives nothing, and still counts as a grant.
            Object::Unreadable(key, meta, finding) if key.kind == Kind::HostnameGrant => {
                let grant = HostnameGrant::unreadable(key.name, meta, finding);
                self.put_grant(Arc::new(grant));
            }
            Object::HostnameClaim(claim) => {
                self.put_claim(&claim.name.clone(), Some(claim));
            }
            // The object exists and has no effect.
            Object::Unreadable(key, ..) => self.remove(&key),
            _ => {}
        }
        self.merge.settle_names();
    }

    /// Takes the removal of an object.
    pub fn remove(&mut self, key: &ObjectKey) {
        let name = &key.name;
        match key.kind {
            Kind::GatewayClass => {
                self.merge.put_class(&name.name, None);
            }
            Kind::Gateway => {
                self.gateways.remove(name);
                self.merge.put_gateway(name, None);
            }
            Kind::ListenerSet => self.put_set(name, None),
            Kind::Namespace => {
                self.merge.put_namespace(&name.name, None);
            }
            Kind::ReferenceGrant => self.put_reference_grant(name, None),
            Kind::HostnameGrant => {
                self.merge.put_grant(name, None);
            }
            Kind::HostnameClaim => self.put_claim(name, None),
            _ => {}
        }
        self.merge.settle_names();
    }

    fn put_reference_grant(&mut self, name: &ObjectName, grant: Option<ReferenceGrant>) {
        if self.references.get(name) == grant.as_ref() {
            return;
        }
        if let Some(old) = self.references.remove(name) {
            self.permitted.remove(&old);
        }
        if let Some(grant) = grant {
            self.permitted.insert(&grant);
            self.references.insert(name.clone(), grant);
        }
    }

    fn put_grant(&mut self, grant: Arc<HostnameGrant>) {
        if self.merge.grant(&grant.name) != Some(&grant) {
            self.merge.put_grant(&grant.name.clone(), Some(grant));
        }
    }

    /// Takes the holders of hostnames and ports, where nobody writes `HostnameClaims`: `vestibule run` keeps them itself.
    pub fn put_holders(&mut self, holders: BTreeMap<ClaimKey, Option<Holder>>) {
        self.merge.put_claims(holders);
        self.merge.settle_names();
    }

    fn put_claim(&mut self, name: &ObjectName, claim: Option<Arc<HostnameClaim>>) {
        if self.holders.object(name) != claim.as_ref() {
            let changes = self.holders.put(name, claim);
            let taken = self.holders.taken(&changes);
            self.merge.put_claims(changes);
            self.merge.put_taken(taken);
        }
    }

    fn put_class(&mut self, class: GatewayClass) {
        if self.merge.class(&class.name) != Some(&class) {
            self.merge.put_class(&class.name.clone(), Some(class));
        }
    }

    fn put_gateway(&mut self, gateway: Arc<Gateway>) {
        if self.gateways.get(&gateway.name) != Some(&gateway) {
            self.gateways
                .insert(gateway.name.clone(), Arc::clone(&gateway));
            self.merge.put_gateway(&gateway.name.clone(), Some(gateway));
        }
    }

    fn put_namespace(&mut self, namespace: Namespace) {
        if self.merge.labels(&namespace.name) != Some(&namespace.labels) {
            self.merge
                .put_namespace(&namespace.name, Some(namespace.labels));
        }
    }

    fn put_set(&mut self, name: &ObjectName, set: Option<Arc<ListenerSet>>) {
        if self.merge.set(name) != set.as_ref() {
            self.merge.put_set(name, set);
        }
    }
}
