//! Counts what each Secret and ConfigMap in use brings into the configuration. It is bounded for each namespace, and for all of
//! them together.

use std::collections::BTreeSet;

use vestibule_model::certificate::{MAX_CHAIN_BYTES, MAX_KEY_BYTES};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::source_budget::SourceBytes;

use super::certificate::SecretState;
use super::trust::BundleState;
use super::{Dirty, Output, Translator};

impl Translator {
    /// Counts what the sources that changed in this pass bring into the configuration, and marks the users of those that
    /// are over what their namespace may bring by this, or come back under it. Returns whether there are any.
    pub(super) fn settle_source_budgets(&mut self, dirty: &mut Dirty, output: &mut Output) -> bool {
        let secrets = dirty
            .certificates
            .iter()
            .map(|name| ObjectKey::secret(name.clone()));
        let counted: BTreeSet<ObjectKey> = secrets.chain(dirty.bundles.iter().cloned()).collect();
        for source in counted {
            let created = self.created(&source);
            let bytes = self.bytes_of_source(&source, output);
            self.source_budgets.put(&source, created, bytes);
        }
        let moved = self.source_budgets.settle();
        for source in &moved {
            if source.kind == Kind::Secret {
                dirty.certificates.insert(source.name.clone());
            }
            self.mark_source_users(source, dirty);
        }
        !moved.is_empty()
    }

    /// How many bytes a source brings, as a certificate and as a trust bundle.
    fn bytes_of_source(&mut self, source: &ObjectKey, output: &mut Output) -> SourceBytes {
        let size = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut bytes = SourceBytes::default();
        if source.kind == Kind::Secret && self.certificate_users.contains_key(&source.name) {
            bytes = match self.secret_state(&source.name, output) {
                SecretState::Usable(certificate) => size(certificate.encoded.len()).into(),
                SecretState::Unusable(_) | SecretState::NotYetValid(_) => {
                    let sent = self.without_chain(&source.name);
                    SourceBytes {
                        // The proxies keep the last good version. How large that is depends on the past.
                        held: size(MAX_CHAIN_BYTES + MAX_KEY_BYTES),
                        sent: size(sent.map_or(0, |encoded| encoded.len())),
                    }
                }
                SecretState::Unread | SecretState::Missing | SecretState::Issuing => {
                    SourceBytes::default()
                }
            };
        }
        if self.bundle_users.contains_key(source)
            && let BundleState::Usable(encoded) = self.bundle_state(source, output)
        {
            let of_bundle = size(encoded.len());
            bytes.held += of_bundle;
            bytes.sent += of_bundle;
        }
        bytes
    }

    /// When a Secret or ConfigMap was created, in seconds since the epoch.
    fn created(&self, source: &ObjectKey) -> i64 {
        let object = self.objects.get(source);
        object.map_or(0, |object| match &**object {
            Object::Secret(secret) => secret.meta.created,
            Object::ConfigMap(map) => map.created,
            unreadable => unreadable.meta().map_or(0, |meta| meta.created),
        })
    }
}
