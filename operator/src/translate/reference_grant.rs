//! ReferenceGrants: whether a reference may lead into another namespace, and what a grant may concern.

use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::{Object, ReferenceGrant};
use vestibule_model::reference::Reference;

use super::{Dirty, Translator};

impl Translator {
    /// Judges a reference of `referrer` by the grants of the target's namespace.
    pub(super) fn permit(
        &self,
        referrer: &ObjectKey,
        reference: &Reference,
    ) -> Result<ObjectName, Finding> {
        let permitted = self.index.grants.permit(referrer, reference);
        permitted.map(|permitted| permitted.target().clone())
    }

    /// Marks whatever refers into the namespace of a ReferenceGrant that changed and is among those to whom the grant
    /// speaks, or spoke before.
    pub(super) fn mark_referrers(&self, objects: [Option<&Object>; 2], dirty: &mut Dirty) {
        for object in objects.into_iter().flatten() {
            if let Object::ReferenceGrant(grant) = object {
                self.mark_referrers_of(grant, dirty);
            }
        }
    }

    fn mark_referrers_of(&self, grant: &ReferenceGrant, dirty: &mut Dirty) {
        let into = &grant.name.namespace;
        for (kind, namespace) in grant.referrers() {
            for referrer in self.index.referrers_into(into, kind, namespace) {
                match kind {
                    kind if kind.is_route() => {
                        dirty.routes.insert(referrer.clone());
                    }
                    Kind::Gateway => {
                        let parent = ParentKey::Gateway(referrer.name.clone());
                        self.index.dirty_listeners(&parent, dirty);
                        dirty.tls.insert(referrer.name.clone());
                    }
                    Kind::ListenerSet => {
                        let parent = ParentKey::ListenerSet(referrer.name.clone());
                        self.index.dirty_listeners(&parent, dirty);
                    }
                    _ => {}
                }
            }
        }
    }
}
