//! Keeps the sources (Secrets and ConfigMaps) that something uses: which have to be read, and which are known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tracing::warn;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

use super::super::sources::{Read, ReadError};
use super::Store;
use crate::translate::Change;

impl Store {
    /// Notes that the watch has shown every source that is used. Sources that are used for the first time later have to be
    /// read.
    pub fn sources_are_watched(&mut self) {
        self.sources_live = true;
    }

    /// Returns up to `count` sources that have to be read now. The namespaces that wait for them take turns.
    pub fn sources_to_read(&mut self, count: usize, now: Instant) -> Vec<ObjectKey> {
        self.reads.begin(count, now)
    }

    /// Takes the results of reading sources. They are translated together, because each translation costs as much as all
    /// objects that refer to the sources.
    pub fn sources_read(&mut self, reads: impl IntoIterator<Item = Read>, now: Instant) {
        let mut changes = Vec::new();
        for (key, source) in reads {
            let is_answered = !matches!(source, Err(ReadError::NoAnswer(_)));
            if !self.reads.end(&key, is_answered) {
                // The watch has shown the source, perhaps while nothing used it.
                self.read_again(&key, now);
                continue;
            }
            if !self.used.contains(&key) {
                continue;
            }
            match source {
                Ok(Some(object)) => {
                    self.keep(&key, &object);
                    self.learn(&object.key());
                    changes.push(Change::Put(object));
                }
                Ok(None) => {
                    let readers = self.control.translator.readers_of(&key);
                    self.absent.insert(&key, readers, now);
                }
                Err(error) => {
                    if self.findings_log.admits(&key.name.namespace, now) {
                        warn!(object = %key, %error, "cannot read a Secret or ConfigMap that an object uses; trying again");
                    }
                }
            }
        }
        if !changes.is_empty() {
            self.apply(changes, now);
        }
    }

    /// Whether a source is used, and it is not known yet what it is.
    #[must_use]
    pub fn is_wanting(&self, source: &ObjectKey) -> bool {
        self.control.translator.waits_for(source)
    }

    /// Schedules a source to be read again.
    pub fn read_again(&mut self, source: &ObjectKey, now: Instant) {
        if self.is_wanting(source) {
            for namespace in self.control.translator.readers_of(source) {
                self.reads.insert(&namespace, source, now);
            }
        }
    }

    /// Has a source read that an object of a namespace has begun to use.
    pub(super) fn want(&mut self, namespace: &Arc<str>, source: ObjectKey, now: Instant) {
        if !self.is_wanting(&source) {
            return;
        }
        if self.sources_live {
            self.reads.insert(namespace, &source, now);
        } else {
            self.listed.insert(source);
        }
    }

    pub(super) fn use_sources(&mut self, sources: BTreeMap<ObjectKey, bool>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (source, used) in sources {
            if used {
                self.used.insert(source);
            } else {
                self.used.remove(&source);
                self.listed.remove(&source);
                self.reads.remove(&source);
                // If it is used again, it may exist by then.
                self.absent.remove(&source);
                if self.kept.remove(&source) {
                    self.forget(&source);
                    changes.push(Change::Remove(source));
                }
            }
        }
        changes
    }

    pub(super) fn keep(&mut self, source: &ObjectKey, object: &Object) {
        self.kept.insert(source.clone());
        self.listed.remove(source);
        self.reads.remove(source);
        if source.kind == Kind::Secret {
            let times = validity(object);
            self.metrics.certificates.lasts(&source.name, times);
        }
        self.metrics.sources(self.kept.len());
    }
}

/// Returns when the certificate in a Secret begins and ends to be valid, in seconds since 1970.
fn validity(object: &Object) -> Option<(i64, i64)> {
    let Object::Secret(secret) = object else {
        return None;
    };
    let pem = secret.certificate.as_ref()?;
    let leaf = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).ok()?;
    let validity = parsed.validity();
    let (begin, end) = (validity.not_before, validity.not_after);
    Some((begin.timestamp(), end.timestamp()))
}
