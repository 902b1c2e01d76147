//! References to other namespaces. They need a ReferenceGrant in the namespace of the target.
//!
//! The rules come from `referencegrant_types.go`: grants add up, and they are not transitive. What counts is the
//! namespace and kind of the object that *declares* the reference, so a grant for a Gateway does not help a
//! ListenerSet, nor the reverse. The grant is checked before the existence of the target (v1.7.0,
//! GatewaySecretMissingReferenceGrant). So nobody can learn whether an object exists that they may not use.

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::{ObjectKey, ObjectName};
use crate::object::ReferenceGrant;
use crate::reference::Reference;

/// The target of a reference that may be followed. Only [`permit`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permitted(ObjectName);

impl Permitted {
    /// The object that the reference leads to.
    #[must_use]
    pub fn target(&self) -> &ObjectName {
        &self.0
    }
}

/// Checks whether `referrer` may follow `reference`. Of `grants`, only those in the namespace of the target count.
///
/// # Errors
/// A finding with reason `RefNotPermitted`, if the target is in another namespace and no grant permits it.
pub fn permit<'a>(
    referrer: &ObjectKey,
    reference: &Reference,
    grants: impl IntoIterator<Item = &'a ReferenceGrant>,
) -> Result<Permitted, Finding> {
    let target = &reference.target;
    let granted = target.namespace == referrer.name.namespace
        || grants
            .into_iter()
            .filter(|grant| grant.name.namespace == target.namespace)
            .any(|grant| {
                grant.from.iter().any(|(group, kind, namespace)| {
                    **group == *referrer.kind.group()
                        && **kind == *referrer.kind.as_str()
                        && *namespace == referrer.name.namespace
                }) && grant.to.iter().any(|(group, kind, name)| {
                    *group == reference.group
                        && *kind == reference.kind
                        && name.as_ref().is_none_or(|name| *name == target.name)
                })
            });
    if granted {
        return Ok(Permitted(target.clone()));
    }
    Err(Finding::refused(
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
    ))
}
