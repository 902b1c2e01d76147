//! Reads and writes Secrets of tenants for the built-in engine. Each is read from the API server when it is needed, and
//! only Secrets that the engine created are ever written.
//!
//! A write is based on the object as it was read. If it did not exist, it is created; otherwise it is replaced, with
//! its resource version as the precondition. Parts that others have added (labels, annotations, entries) stay.
//!
//! A Secret has no owner reference. So if a ListenerSet is deleted and created again, it finds its certificate, and the
//! CA need not issue another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use vestibule_acme::{PrivateKey, STATE_ANNOTATION, StoreError, StoredSecret, Write, Written};
use vestibule_model::key::ObjectName;
use zeroize::{Zeroize, Zeroizing};

use super::MANAGED_BY;
use super::text::problem;

/// Label of Secrets that the built-in engine writes.
pub const ACME_LABEL: &str = "vestibule.dev/acme";
/// Annotation that cert-manager sets on Secrets of its Certificates.
const CERT_MANAGER: &str = "cert-manager.io/certificate-name";
/// The only type that is written.
const TLS: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The key of the certificate that is being ordered.
const NEXT_KEY: &str = "next.key";
/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(15);

/// Namespaces whose Secrets may be read and written, or `None` for all.
pub type Namespaces = Option<Arc<BTreeSet<Arc<str>>>>;

/// Access to the Secrets of tenants.
#[derive(Clone)]
pub struct Secrets {
    client: Client,
    /// Value of the label `app.kubernetes.io/managed-by`, and field manager.
    manager: Arc<str>,
    namespaces: Namespaces,
}

impl Secrets {
    /// Returns access to the Secrets of `namespaces`. Writes have the field manager `manager`.
    #[must_use]
    pub fn new(client: Client, manager: &str, namespaces: Namespaces) -> Self {
        Self {
            client,
            manager: manager.into(),
            namespaces,
        }
    }

    /// Reads a Secret from the server.
    pub async fn read(&self, name: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
        let Some(mut secret) = self.get(name).await? else {
            return Ok(None);
        };
        let annotations = secret.metadata.annotations.as_ref();
        let state = annotations.and_then(|all| all.get(STATE_ANNOTATION));
        let record = StoredSecret {
            version: secret
                .metadata
                .resource_version
                .as_deref()
                .unwrap_or_default()
                .into(),
            ours: self.is_ours(&secret),
            state: state.map(|state| state.as_str().into()),
            certificate: take(&mut secret, CERTIFICATE).to_vec(),
            private_key: PrivateKey::from(take(&mut secret, KEY)),
            next_key: PrivateKey::from(take(&mut secret, NEXT_KEY)),
        };
        erase(&mut secret);
        Ok(Some(record))
    }

    /// Reads an entry of a Secret, even if the Secret does not belong to the engine.
    pub async fn entry(
        &self,
        name: &ObjectName,
        key: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let Some(mut secret) = self.get(name).await? else {
            return Ok(None);
        };
        let entry = secret.data.as_mut().and_then(|data| data.remove(key));
        erase(&mut secret);
        Ok(entry.map(|bytes| Zeroizing::new(bytes.0)))
    }

    /// Creates a Secret, or replaces our parts in it if it still has the expected version. A Secret that is not ours
    /// stays as it is.
    pub async fn write(&self, name: &ObjectName, write: Write) -> Result<Written, StoreError> {
        let api = self.api(name)?;
        let creates = write.expected.is_none();
        let mut secret = match &write.expected {
            None => self.blank(name),
            Some(version) => match self.get(name).await? {
                Some(secret) if secret.metadata.resource_version.as_deref() == Some(version) => {
                    secret
                }
                _ => return Ok(Written::Conflict),
            },
        };
        if !self.is_ours(&secret) {
            erase(&mut secret);
            let refusal = format!("Secret {name} is not Vestibule's, and is left as it is");
            return Ok(Written::Refused(refusal));
        }
        fill(&mut secret, &write);
        let parameters = PostParams {
            field_manager: Some(self.manager.to_string()),
            ..PostParams::default()
        };
        let written = if creates {
            tokio::time::timeout(PATIENCE, api.create(&parameters, &secret)).await
        } else {
            tokio::time::timeout(PATIENCE, api.replace(&name.name, &parameters, &secret)).await
        };
        erase(&mut secret);
        match written {
            Ok(Ok(mut written)) => {
                erase(&mut written);
                let version = written.metadata.resource_version.unwrap_or_default();
                Ok(Written::Done(version.into()))
            }
            Ok(Err(kube::Error::Api(status))) => match status.code {
                409 => Ok(Written::Conflict),
                // The Secret is gone. If it was to be created, its namespace is gone.
                404 if !creates => Ok(Written::Conflict),
                403 | 404 | 422 => Ok(Written::Refused(problem(kube::Error::Api(status)))),
                _ => Err(StoreError(problem(kube::Error::Api(status)))),
            },
            Ok(Err(error)) => Err(StoreError(problem(error))),
            Err(_) => Err(silent()),
        }
    }

    async fn get(&self, name: &ObjectName) -> Result<Option<Secret>, StoreError> {
        let api = self.api(name)?;
        match tokio::time::timeout(PATIENCE, api.get_opt(&name.name)).await {
            Ok(Ok(secret)) => Ok(secret),
            Ok(Err(error)) => Err(StoreError(problem(error))),
            Err(_) => Err(silent()),
        }
    }

    fn api(&self, name: &ObjectName) -> Result<Api<Secret>, StoreError> {
        if let Some(namespaces) = &self.namespaces
            && !namespaces.contains(&name.namespace)
        {
            return Err(StoreError(format!(
                "Vestibule may not use Secrets in namespace {}: ask the platform admin to add it to \
                 secrets.namespaces of the chart",
                name.namespace
            )));
        }
        Ok(Api::namespaced(self.client.clone(), &name.namespace))
    }

    fn blank(&self, name: &ObjectName) -> Secret {
        let labels = [(MANAGED_BY, &*self.manager), (ACME_LABEL, "true")];
        Secret {
            metadata: ObjectMeta {
                name: Some(name.name.to_string()),
                namespace: Some(name.namespace.to_string()),
                labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
                ..ObjectMeta::default()
            },
            type_: Some(TLS.to_owned()),
            ..Secret::default()
        }
    }

    fn is_ours(&self, secret: &Secret) -> bool {
        let labels = secret.metadata.labels.as_ref();
        let label = |key: &str| {
            labels
                .and_then(|labels| labels.get(key))
                .map(String::as_str)
        };
        let annotations = secret.metadata.annotations.as_ref();
        label(MANAGED_BY) == Some(&*self.manager)
            && label(ACME_LABEL) == Some("true")
            && secret.type_.as_deref() == Some(TLS)
            && !annotations.is_some_and(|all| all.contains_key(CERT_MANAGER))
    }
}

fn silent() -> StoreError {
    StoreError("no answer from the API server".to_owned())
}

fn fill(secret: &mut Secret, write: &Write) {
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(STATE_ANNOTATION.to_owned(), write.state.to_string());
    let data = secret.data.get_or_insert_default();
    let mut put = |key: &str, bytes: Option<&[u8]>| {
        let old = match bytes {
            Some(bytes) => data.insert(key.to_owned(), ByteString(bytes.to_vec())),
            None => data.remove(key),
        };
        if let Some(mut old) = old {
            old.0.zeroize();
        }
    };
    if let Some((certificate, key)) = &write.pair {
        put(CERTIFICATE, Some(certificate));
        put(KEY, Some(key.expose()));
    }
    put(NEXT_KEY, write.next_key.as_ref().map(PrivateKey::expose));
    // The type of the Secret requires both entries.
    for key in [CERTIFICATE, KEY] {
        data.entry(key.to_owned()).or_default();
    }
}

fn take(secret: &mut Secret, key: &str) -> Zeroizing<Vec<u8>> {
    let entry = secret.data.as_mut().and_then(|data| data.remove(key));
    Zeroizing::new(entry.map(|bytes| bytes.0).unwrap_or_default())
}

/// Overwrites the content of a Secret in memory.
fn erase(secret: &mut Secret) {
    for bytes in secret.data.iter_mut().flat_map(BTreeMap::values_mut) {
        bytes.0.zeroize();
    }
}
