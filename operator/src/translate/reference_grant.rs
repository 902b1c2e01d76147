//! ReferenceGrants: whether a reference may lead into another namespace.

use vestibule_model::finding::Finding;
use vestibule_model::grant::permit;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::reference::Reference;

use super::Translator;

impl Translator {
    /// Judges a reference of `referrer` by the grants of the target's namespace.
    pub(super) fn permit(
        &self,
        referrer: &ObjectKey,
        reference: &Reference,
    ) -> Result<ObjectName, Finding> {
        let grants = self
            .index
            .grants_in(&reference.target.namespace)
            .filter_map(|name| match self.get(Kind::ReferenceGrant, name)? {
                Object::ReferenceGrant(grant) => Some(grant),
                _ => None,
            });
        permit(referrer, reference, grants).map(|permitted| permitted.target().clone())
    }
}
