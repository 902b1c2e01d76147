//! References to other namespaces. They need a ReferenceGrant in the namespace of the target.
//!
//! The rules come from `referencegrant_types.go`: grants add up, and they are not transitive. What counts is the
//! namespace and kind of the object that *declares* the reference, so a grant for a Gateway does not help a
//! ListenerSet, nor the reverse. The grant is checked before the existence of the target (v1.7.0,
//! GatewaySecretMissingReferenceGrant). So nobody can learn whether an object exists that they may not use.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::object::{GrantTarget, ReferenceGrant};
use crate::reference::Reference;

/// The target of a reference that may be followed. Only [`Grants::permit`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permitted(ObjectName);

impl Permitted {
    /// The object that the reference leads to.
    #[must_use]
    pub fn target(&self) -> &ObjectName {
        &self.0
    }
}

/// All grants together, by those to whom they speak. A reference is looked up here, so it costs the same however many grants there are.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// The targets that each group of referrers may refer to. The number counts the entries of grants that say so.
    targets: BTreeMap<Referrers, BTreeMap<GrantTarget, usize>>,
}

/// The objects of one kind in one namespace, as referrers into another namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Referrers {
    into: Arc<str>,
    kind: Kind,
    namespace: Arc<str>,
}

impl Grants {
    /// Adds what a grant permits.
    pub fn insert(&mut self, grant: &ReferenceGrant) {
        for (referrers, target) in entries(grant) {
            let targets = self.targets.entry(referrers).or_default();
            *targets.entry(target.clone()).or_default() += 1;
        }
    }

    /// Takes away what a grant permits that was added before.
    pub fn remove(&mut self, grant: &ReferenceGrant) {
        for (referrers, target) in entries(grant) {
            let Some(targets) = self.targets.get_mut(&referrers) else {
                continue;
            };
            if let Some(entries) = targets.get_mut(target) {
                *entries -= 1;
                if *entries == 0 {
                    targets.remove(target);
                }
            }
            if targets.is_empty() {
                self.targets.remove(&referrers);
            }
        }
    }

    /// Checks whether `referrer` may follow `reference`. Only the grants in the namespace of the target count.
    ///
    /// # Errors
    /// A finding with reason `RefNotPermitted`, if the target is in another namespace and no grant permits it.
    pub fn permit(
        &self,
        referrer: &ObjectKey,
        reference: &Reference,
    ) -> Result<Permitted, Finding> {
        let target = &reference.target;
        if target.namespace == referrer.name.namespace || self.has(referrer, reference) {
            return Ok(Permitted(target.clone()));
        }
        Err(not_permitted(referrer, reference))
    }

    fn has(&self, referrer: &ObjectKey, reference: &Reference) -> bool {
        let referrers = Referrers {
            into: reference.target.namespace.clone(),
            kind: referrer.kind,
            namespace: referrer.name.namespace.clone(),
        };
        let Some(targets) = self.targets.get(&referrers) else {
            return false;
        };
        let named = |name| (reference.group.clone(), reference.kind.clone(), name);
        targets.contains_key(&named(None))
            || targets.contains_key(&named(Some(reference.target.name.clone())))
    }
}

/// Every pair of an entry in `spec.from` and one in `spec.to`.
fn entries(grant: &ReferenceGrant) -> impl Iterator<Item = (Referrers, &GrantTarget)> {
    grant.referrers().flat_map(|(kind, namespace)| {
        let referrers = Referrers {
            into: grant.name.namespace.clone(),
            kind,
            namespace: namespace.clone(),
        };
        grant.to.iter().map(move |to| (referrers.clone(), to))
    })
}

fn not_permitted(referrer: &ObjectKey, reference: &Reference) -> Finding {
    let target = &reference.target;
    Finding::refused(
        Reason::RefNotPermitted,
        &reference.field,
        format!(
            "no ReferenceGrant in namespace {} lets a {} of namespace {} use {} {}",
            target.namespace, referrer.kind, referrer.name.namespace, reference.kind, target.name
        ),
        format!(
            "have the owner of namespace {} create one, or refer to an object of your own namespace",
            target.namespace
        ),
    )
}
