//! The fields that are kept of each Certificate in the cluster. There may be many, so only these are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use vestibule_model::key::ObjectName;

use super::progress::{CertificateProgress, bounded};
use super::{CertManagerSettings, MANAGED_BY};
use crate::resource_version::is_later;

/// A Certificate, as the server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct PresentCertificate {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// `spec.secretName`.
    pub secret: Arc<str>,
    /// `spec.dnsNames`.
    pub names: Vec<String>,
    /// `Kind name` of its controller, if it has one.
    pub controller: Option<String>,
    /// Its progress, from its status.
    pub progress: CertificateProgress,
    /// Metadata and spec of one that this release made; of others they are of no interest.
    pub ours: Option<Box<Value>>,
}

impl PresentCertificate {
    /// Reads a Certificate.
    #[must_use]
    pub fn of(mut object: Value, settings: &CertManagerSettings) -> Option<(ObjectName, Self)> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = ObjectName::new(text("/metadata/namespace")?, text("/metadata/name")?);
        let controller = object
            .pointer("/metadata/ownerReferences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
            .map(|owner| {
                let text = |field: &str| bounded(owner.get(field).and_then(Value::as_str));
                format!("{} {}", text("kind"), text("name"))
            });
        let marker = object
            .pointer("/metadata/annotations")
            .and_then(|annotations| annotations.get(MANAGED_BY))
            .and_then(Value::as_str);
        // With a controller it is the controller's, whatever it is said to be.
        let ours = marker == Some(&settings.identity) && controller.is_none();
        let names = object.pointer("/spec/dnsNames").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        let generation = object
            .pointer("/metadata/generation")
            .and_then(Value::as_i64);
        let mut present = Self {
            uid: text("/metadata/uid").unwrap_or_default().into(),
            version: text("/metadata/resourceVersion").unwrap_or_default().into(),
            generation: generation.unwrap_or_default(),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            secret: text("/spec/secretName").unwrap_or_default().into(),
            names: names.map(str::to_owned).collect(),
            controller,
            progress: CertificateProgress::of(object.get("status")),
            ours: None,
        };
        if ours {
            if let Some(fields) = object.as_object_mut() {
                fields.remove("status");
            }
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
            present.ours = Some(Box::new(object));
        }
        Some((name, present))
    }

    /// Whether this response to a write is later than what the watch has shown.
    #[must_use]
    pub fn is_after(&self, there: Option<&Self>) -> bool {
        there.is_none_or(|there| is_later(&self.version, &there.version))
    }
}

/// A `CertificateRequest`, what cert-manager makes of a Certificate for its issuer: it says what a Certificate does
/// not, for instance that there is no such issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateAttempt {
    /// The Certificate that it is for.
    pub certificate: ObjectName,
    /// Which attempt it is.
    revision: i64,
    /// The message of the issuer while there is no certificate; bounded.
    message: String,
}

impl CertificateAttempt {
    /// Reads a `CertificateRequest`: its name and, as long as it waits for something, what it says.
    #[must_use]
    pub fn of(object: &Value) -> Option<(ObjectName, Option<Self>)> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let namespace = text("/metadata/namespace")?;
        let name = ObjectName::new(namespace, text("/metadata/name")?);
        let annotations = object.pointer("/metadata/annotations");
        let annotation = |key: &str| annotations?.get(key)?.as_str();
        let waiting = || {
            let certificate = annotation("cert-manager.io/certificate-name")?;
            let revision = annotation("cert-manager.io/certificate-revision");
            let ready = CertificateProgress::of(object.get("status")).ready?;
            (!ready.truth && !ready.message.is_empty()).then(|| Self {
                certificate: ObjectName::new(namespace, certificate),
                revision: revision.and_then(|r| r.parse().ok()).unwrap_or_default(),
                message: ready.message,
            })
        };
        let attempt = waiting();
        Some((name, attempt))
    }
}

/// Certificates by name, and by the Secret that they write; and the attempts that wait for their issuers.
#[derive(Debug, Clone, Default)]
pub struct PresentCertificates {
    by_name: BTreeMap<ObjectName, PresentCertificate>,
    by_secret: BTreeMap<ObjectName, BTreeSet<Arc<str>>>,
}

/// Attempts that wait for their issuers, by their names and by the Certificates that they are for.
#[derive(Debug, Clone, Default)]
pub struct CertificateAttempts {
    by_name: BTreeMap<ObjectName, CertificateAttempt>,
    by_certificate: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
}

impl CertificateAttempts {
    /// The message of the issuer about the latest attempt for a Certificate, if that waits.
    #[must_use]
    pub fn latest(&self, certificate: &ObjectName) -> Option<&str> {
        let names = self.by_certificate.get(certificate)?;
        let attempts = names.iter().filter_map(|name| self.by_name.get(name));
        let latest = attempts.max_by_key(|attempt| attempt.revision)?;
        Some(&latest.message)
    }

    /// Takes one in, or drops one that waits no more. Says which Certificates it is about, before and now.
    pub fn set(
        &mut self,
        name: &ObjectName,
        attempt: Option<CertificateAttempt>,
    ) -> Vec<ObjectName> {
        if self.by_name.get(name) == attempt.as_ref() {
            return Vec::new();
        }
        let mut about = Vec::new();
        if let Some(before) = self.by_name.remove(name) {
            if let Some(names) = self.by_certificate.get_mut(&before.certificate) {
                names.remove(name);
                if names.is_empty() {
                    self.by_certificate.remove(&before.certificate);
                }
            }
            about.push(before.certificate);
        }
        if let Some(attempt) = attempt {
            about.push(attempt.certificate.clone());
            let names = self
                .by_certificate
                .entry(attempt.certificate.clone())
                .or_default();
            names.insert(name.clone());
            self.by_name.insert(name.clone(), attempt);
        }
        about
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.by_name.keys()
    }
}

impl PresentCertificates {
    /// The one of that name.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<&PresentCertificate> {
        self.by_name.get(name)
    }

    /// Those of this release.
    pub fn ours(&self) -> impl Iterator<Item = (&ObjectName, &PresentCertificate)> {
        self.by_name
            .iter()
            .filter(|(_, present)| present.ours.is_some())
    }

    /// The first Certificate of another name that writes this Secret.
    #[must_use]
    pub fn other_of(&self, secret: &ObjectName) -> Option<(&Arc<str>, &PresentCertificate)> {
        let names = self.by_secret.get(secret)?;
        let name = names.iter().find(|name| **name != secret.name)?;
        let object = ObjectName::new(secret.namespace.clone(), name.clone());
        Some((name, self.by_name.get(&object)?))
    }

    /// Takes one in. Says which Secrets it is about, now and before.
    pub fn insert(&mut self, name: ObjectName, present: PresentCertificate) -> [ObjectName; 2] {
        let secret = ObjectName::new(name.namespace.clone(), present.secret.clone());
        let before = self
            .remove(&name)
            .map_or_else(|| name.clone(), |[before, _]| before);
        let writers = self.by_secret.entry(secret.clone()).or_default();
        writers.insert(name.name.clone());
        self.by_name.insert(name, present);
        [secret, before]
    }

    /// Drops one. Says which Secret it was about, and its name.
    pub fn remove(&mut self, name: &ObjectName) -> Option<[ObjectName; 2]> {
        let present = self.by_name.remove(name)?;
        let secret = ObjectName::new(name.namespace.clone(), present.secret);
        if let Some(writers) = self.by_secret.get_mut(&secret) {
            writers.remove(&name.name);
            if writers.is_empty() {
                self.by_secret.remove(&secret);
            }
        }
        Some([secret, name.clone()])
    }

    /// Marks one as being deleted, until the watch shows that it is gone.
    pub fn deleting(&mut self, name: &ObjectName) {
        if let Some(present) = self.by_name.get_mut(name) {
            present.deleting = true;
        }
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.by_name.keys()
    }
}
