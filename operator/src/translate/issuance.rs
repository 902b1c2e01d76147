//! Issuers, and how far certificates are.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::issuance::Issuance;
use vestibule_model::key::ObjectName;
use vestibule_model::object::Object;

use super::{Dirty, Output, Translator};

impl Translator {
    pub(super) fn take_issuance(
        &mut self,
        changes: BTreeMap<ObjectName, Option<Issuance>>,
        dirty: &mut Dirty,
    ) {
        for (secret, issuance) in changes {
            let old = match issuance.clone() {
                Some(issuance) => self.issuance.insert(secret.clone(), issuance),
                None => self.issuance.remove(&secret),
            };
            if old == issuance {
                continue;
            }
            let parents = self.requesters.get(&secret).into_iter().flatten();
            dirty
                .parents
                .extend(parents.map(|(listener, _)| listener.parent.clone()));
        }
    }

    /// ACME issuers as they are now.
    pub(super) fn translate_issuers(&mut self, dirty: &Dirty, output: &mut Output) {
        for key in &dirty.issuers {
            let issuer = match self.objects.get(key).map(Arc::as_ref) {
                Some(Object::AcmeIssuer(issuer)) => Some(Arc::new(issuer.clone())),
                _ => None,
            };
            match &issuer {
                Some(issuer) => self.issuers.insert(key.clone(), issuer.clone()),
                None => self.issuers.remove(key),
            };
            output.issuers.insert(key.clone(), issuer);
        }
    }
}
