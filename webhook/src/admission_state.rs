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
    /// Whether names are settled since the last change; see [`Self::settle`].
    is_settled: bool,
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
            is_settled: true,
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

    /// Takes a version of an object, and settles names at once. For many objects, [`Self::put_unsettled`] costs less.
    pub fn put(&mut self, object: Object) {
        self.put_unsettled(object);
        self.settle();
    }

    /// Takes the removal of an object, and settles names at once; see [`Self::put`].
    pub fn remove(&mut self, key: &ObjectKey) {
        self.remove_unsettled(key);
        self.settle();
    }

    /// Decides again about names inside wildcards, as the changes since the last call demand. Until then, the state
    /// must not be used for a verdict.
    ///
    /// Each wildcard that has another candidate than before costs one pass over the names inside it that nobody holds,
    /// however many objects asked for it since the last call.
    pub fn settle(&mut self) {
        self.merge.settle_names();
        self.is_settled = true;
    }

    /// Whether a verdict may use the state: names are settled since the last change.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Takes a version of an object, and leaves it to the caller to [settle](Self::settle) names before the next
    /// verdict.
    ///
    /// A version without a relevant change costs almost nothing. This matters, because every edit of a status arrives
    /// here, and a Gateway may have thousands of sets.
    pub fn put_unsettled(&mut self, object: Object) {
        self.is_settled = false;
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
            Object::Unreadable(key, ..) => self.remove_unsettled(&key),
            _ => {}
        }
    }

    /// Takes the removal of an object, and leaves it to the caller to [settle](Self::settle) names before the next
    /// verdict.
    pub fn remove_unsettled(&mut self, key: &ObjectKey) {
        self.is_settled = false;
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
    /// Names are settled at once.
    pub fn put_holders(&mut self, holders: BTreeMap<ClaimKey, Option<Holder>>) {
        self.merge.put_claims(holders);
        self.settle();
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
