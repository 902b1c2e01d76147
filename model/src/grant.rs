//! References across namespaces: allowed only by a ReferenceGrant in the target's namespace.
//!
//! `referencegrant_types.go`: additive, no implied transitivity. Grants are judged from the namespace
//! and kind of the object that *declares* the reference: a Gateway's grant does not help a
//! ListenerSet, nor the reverse. The grant is checked before existence (v1.7.0,
//! GatewaySecretMissingReferenceGrant), so that a reference says nothing about what it may not see.

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::{ObjectKey, ObjectName};
use crate::object::ReferenceGrant;
use crate::reference::Reference;

/// A reference that may be followed. Only [`permit`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permitted(ObjectName);

impl Permitted {
    /// What it leads to.
    #[must_use]
    pub fn target(&self) -> &ObjectName {
        &self.0
    }
}

/// Judges a reference of `referrer`; `grants` are those of the target's namespace (others are
/// ignored).
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
