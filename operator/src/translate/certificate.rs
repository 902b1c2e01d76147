//! Certificates: from Secrets of type `kubernetes.io/tls` to what the proxies serve.

use std::sync::Arc;

use bytes::Bytes;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Object, Secret};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::trust::User;
use super::{CertificateRequest, Dirty, Output, Translator, set_user};

/// What a referenced Secret holds.
#[derive(Debug, Clone)]
pub(super) enum SecretState {
    /// No such Secret.
    Missing,
    /// It is there, but of no use: what is wrong with it.
    Unusable(String),
    /// A chain and the key that fits it, as a resource.
    Usable(Arc<Encoded>),
}

/// Most certificates in a chain, and most bytes of a PEM file: a Secret is at most 1 MiB.
const MAX_CHAIN: usize = 16;

pub(super) fn resource_key(secret: &ObjectName) -> ResourceKey {
    ResourceKey::new(ResourceKind::Certificate, secret.to_string())
}

impl SecretState {
    fn of(secret: Option<&Object>) -> Self {
        match secret {
            Some(Object::Secret(secret)) => match read(secret) {
                Ok(encoded) => Self::Usable(Arc::new(encoded)),
                Err(problem) => Self::Unusable(problem),
            },
            Some(object) => Self::Unusable(format!(
                "{} cannot be read, as its own finding says",
                object.key()
            )),
            None => Self::Missing,
        }
    }
}

fn read(secret: &Secret) -> Result<Encoded, String> {
    if &*secret.secret_type != "kubernetes.io/tls" {
        return Err(format!(
            "Secret {} has type {:?}, not \"kubernetes.io/tls\"",
            secret.name, &*secret.secret_type
        ));
    }
    let missing = |entry: &str| format!("Secret {} has no {entry:?}", secret.name);
    let certificate = secret
        .certificate
        .as_ref()
        .ok_or_else(|| missing("tls.crt"))?;
    let key = secret
        .private_key
        .as_ref()
        .ok_or_else(|| missing("tls.key"))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .take(MAX_CHAIN + 1)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("\"tls.crt\" of Secret {} is not PEM", secret.name))?;
    if chain.is_empty() {
        return Err(format!(
            "\"tls.crt\" of Secret {} holds no certificate",
            secret.name
        ));
    }
    if chain.len() > MAX_CHAIN {
        return Err(format!(
            "\"tls.crt\" of Secret {} holds more than {MAX_CHAIN} certificates",
            secret.name
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        format!(
            "\"tls.key\" of Secret {} holds no private key in PEM",
            secret.name
        )
    })?;
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).map_err(|_| {
        format!(
            "\"tls.key\" of Secret {} is not a key that can sign TLS",
            secret.name
        )
    })?;
    CertifiedKey::new(chain.clone(), signer)
        .keys_match()
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "\"tls.key\" of Secret {} does not fit the certificate in \"tls.crt\"",
                secret.name
            ),
            _ => format!("\"tls.crt\" of Secret {} is not a certificate", secret.name),
        })?;
    encode(&secret.name, &chain, key.secret_der())
        .ok_or_else(|| format!("Secret {} is too large", secret.name))
}

fn encode(name: &ObjectName, chain: &[CertificateDer<'_>], key: &[u8]) -> Option<Encoded> {
    let certificate = proto::Certificate {
        chain: chain
            .iter()
            .map(|der| Bytes::copy_from_slice(der))
            .collect(),
        private_key: key.to_vec(),
    };
    Encoded::new(&Resource::new(
        name.to_string(),
        resource::Resource::Certificate(certificate),
    ))
    .ok()
}

impl Translator {
    /// What a Secret that a listener may use holds, computed once per version.
    pub(super) fn secret_state(&mut self, name: &ObjectName, output: &mut Output) -> &SecretState {
        let key = ObjectKey {
            kind: Kind::Secret,
            name: name.clone(),
        };
        let object = self.objects.get(&key);
        self.secrets.entry(name.clone()).or_insert_with(|| {
            output.work.certificates += 1;
            SecretState::of(object.map(Arc::as_ref))
        })
    }

    /// Says whether `user` has the proxies hold a certificate.
    pub(super) fn set_certificate_user(
        &mut self,
        secret: &ObjectName,
        user: &User,
        there: bool,
        dirty: &mut Dirty,
    ) {
        set_user(&mut self.certificate_users, secret, user, there);
        dirty.certificates.insert(secret.clone());
    }

    /// Certificates in use, and those wanted.
    pub(super) fn translate_certificates(&mut self, dirty: &Dirty, output: &mut Output) {
        for name in &dirty.certificates {
            let resource = if self.certificate_users.contains_key(name) {
                match self.secret_state(name, output) {
                    SecretState::Missing => None,
                    // An empty certificate, which the proxies reject: they keep serving the last good
                    // one, and what they serve stays no business of history here.
                    SecretState::Unusable(_) => encode(name, &[], &[]),
                    SecretState::Usable(encoded) => Some((**encoded).clone()),
                }
            } else {
                None
            };
            self.settle_resource(resource_key(name), resource, output);
            let source = ObjectKey {
                kind: Kind::Secret,
                name: name.clone(),
            };
            if !self.source_users.contains_key(&source) {
                self.secrets.remove(name);
            }
        }
        for secret in &dirty.requests {
            let request = self.requesters.get(secret).and_then(|requesters| {
                let (first, (_, issuer)) = requesters.first_key_value()?;
                Some(CertificateRequest {
                    secret: secret.clone(),
                    hostnames: requesters.values().map(|(host, _)| host.clone()).collect(),
                    issuer: issuer.clone(),
                    owner: first.parent.object(),
                    owner_uid: "".into(),
                    gateway: first.parent.name().clone(),
                    gateway_uid: "".into(),
                    options: Arc::default(),
                    reach: std::collections::BTreeMap::new(),
                })
            });
            if self.requests.get(secret) != request.as_ref() {
                match &request {
                    Some(request) => self.requests.insert(secret.clone(), request.clone()),
                    None => self.requests.remove(secret),
                };
                output.certificates.insert(secret.clone(), request);
            }
        }
    }
}
