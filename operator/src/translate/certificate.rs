//! Certificates: turns Secrets of type `kubernetes.io/tls` into the resources that the proxies serve.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use vestibule_model::certificate::{MAX_CHAIN_BYTES, MAX_KEY_BYTES};
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::{Object, Secret};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::certificate_names::CertificateNames;
use super::source::User;
use super::{Dirty, Output, Translator, set_user};

/// The state of a Secret that something refers to.
#[derive(Debug, Clone)]
pub(super) enum SecretState {
    /// Nobody has looked yet whether it exists.
    Unread,
    /// It does not exist.
    Missing,
    /// The built-in engine made the Secret, and has no certificate for it yet.
    Issuing,
    /// It cannot be used, for this reason.
    Unusable(String),
    /// Its certificate is not valid yet. The message says from when on it is.
    NotYetValid(String),
    /// A certificate chain and the key that belongs to it.
    Usable(UsableCertificate),
}

/// A certificate chain and the key that belongs to it.
#[derive(Debug, Clone)]
pub(super) struct UsableCertificate {
    /// The resource.
    pub(super) encoded: Arc<Encoded>,
    /// When it expired, if it has.
    pub(super) expired: Option<String>,
    /// The hostnames that it is for.
    pub(super) names: CertificateNames,
}

/// The time during which a certificate is valid, in seconds since the epoch, both ends included.
#[derive(Debug, Clone, Copy)]
struct Validity {
    from: i64,
    to: i64,
}

impl Validity {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let validity = parsed.validity();
        Some(Self {
            from: validity.not_before.timestamp(),
            to: validity.not_after.timestamp(),
        })
    }

    /// When the certificate next becomes valid or expires, if it still will.
    fn deadline(self, now: i64) -> Option<i64> {
        if now < self.from {
            Some(self.from)
        } else if now <= self.to {
            self.to.checked_add(1)
        } else {
            None
        }
    }
}

fn time(second: i64) -> String {
    jiff::Timestamp::from_second(second)
        .map_or_else(|_| "a time far away".into(), |t| t.to_string())
}

/// Most certificates in a chain.
const MAX_CHAIN: usize = 16;

pub(super) fn resource_key(secret: &ObjectName) -> ResourceKey {
    ResourceKey::new(ResourceKind::Certificate, secret.to_string())
}

impl SecretState {
    /// The state of a Secret at `now`, and when that state ends.
    fn of(secret: &Object, now: Option<i64>, max_rsa_bits: u16) -> (Self, Option<i64>) {
        let secret = match secret {
            Object::Secret(secret) => secret,
            object => {
                let problem = format!("{} cannot be read, as its own finding says", object.key());
                return (Self::Unusable(problem), None);
            }
        };
        if secret.acme && secret.certificate.as_ref().is_none_or(|c| c.is_empty()) {
            return (Self::Issuing, None);
        }
        let Chain {
            encoded,
            validity,
            names,
        } = match read(secret, max_rsa_bits) {
            Ok(read) => read,
            Err(problem) => return (Self::Unusable(problem), None),
        };
        let mut expired = None;
        let mut deadline = None;
        if let (Some(now), Some(validity)) = (now, validity) {
            deadline = validity.deadline(now);
            if now < validity.from {
                let problem = format!(
                    "the certificate in Secret {} is not valid before {}",
                    secret.name,
                    time(validity.from)
                );
                return (Self::NotYetValid(problem), deadline);
            }
            expired = (now > validity.to).then(|| time(validity.to));
        }
        let certificate = UsableCertificate {
            encoded: Arc::new(encoded),
            expired,
            names,
        };
        (Self::Usable(certificate), deadline)
    }
}

/// The content of a Secret, whatever the time.
struct Chain {
    encoded: Encoded,
    validity: Option<Validity>,
    names: CertificateNames,
}

fn read(secret: &Secret, max_rsa_bits: u16) -> Result<Chain, String> {
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
            "\"tls.crt\" of Secret {} holds no certificate{}",
            secret.name,
            hint(certificate)
        ));
    }
    if chain.len() > MAX_CHAIN {
        return Err(format!(
            "\"tls.crt\" of Secret {} holds more than {MAX_CHAIN} certificates",
            secret.name
        ));
    }
    let bytes: usize = chain.iter().map(|der| der.len()).sum();
    if bytes > MAX_CHAIN_BYTES {
        return Err(format!(
            "\"tls.crt\" of Secret {} holds {bytes} bytes of certificates, and more than {MAX_CHAIN_BYTES} cost all who \
             share the proxies too much; leave out what clients do not need, such as the root",
            secret.name
        ));
    }
    // The proxies reject a chain if any certificate in it cannot be read, so the status has to say so.
    for (index, der) in chain.iter().enumerate() {
        if !is_certificate(der) {
            return Err(format!(
                "certificate {} in \"tls.crt\" of Secret {} cannot be read",
                index + 1,
                secret.name
            ));
        }
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| no_key(&secret.name, key))?;
    if key.secret_der().len() > MAX_KEY_BYTES {
        return Err(format!(
            "\"tls.key\" of Secret {} has more than {MAX_KEY_BYTES} bytes, and no key needs as many; leave out the \
             attributes beside the key",
            secret.name
        ));
    }
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).map_err(|_| {
        format!(
            "\"tls.key\" of Secret {} is not a key that can sign TLS",
            secret.name
        )
    })?;
    if let Some(bits) = rsa_bits(&*signer)
        && bits > usize::from(max_rsa_bits)
    {
        return Err(format!(
            "\"tls.key\" of Secret {} is an RSA key of {bits} bits, and one of more than {max_rsa_bits} costs all who \
             share the proxies too much; use ECDSA or a shorter one",
            secret.name
        ));
    }
    CertifiedKey::new(chain.clone(), signer)
        .keys_match()
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "\"tls.key\" of Secret {} does not fit the certificate in \"tls.crt\"{}",
                secret.name,
                hint(certificate)
            ),
            _ => format!("\"tls.crt\" of Secret {} is not a certificate", secret.name),
        })?;
    let encoded = encode(&secret.name, &secret.meta.uid, &chain, key.secret_der());
    Ok(Chain {
        encoded: encoded.ok_or_else(|| format!("Secret {} is too large", secret.name))?,
        validity: chain.first().and_then(Validity::of),
        names: chain.first().map(CertificateNames::of).unwrap_or_default(),
    })
}

/// Why there is no usable private key in this text. The message has no part of the text.
fn no_key(secret: &ObjectName, pem: &[u8]) -> String {
    if is_encrypted(pem) {
        return format!(
            "\"tls.key\" of Secret {secret} is encrypted, and the proxies have no passphrase for it; decrypt it, for \
             example with \"openssl pkey -in FILE\", and store the result"
        );
    }
    format!(
        "\"tls.key\" of Secret {secret} holds no private key in PEM{}",
        hint(pem)
    )
}

/// Whether a private key in this text is encrypted: in PKCS#8, or in the traditional form (RFC 1421, section 4.6.1.1).
fn is_encrypted(pem: &[u8]) -> bool {
    lines(pem).map(<[u8]>::trim_ascii).any(|line| {
        line.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
            || (line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED"))
    })
}

/// What to do if a part of this text is not read because something is before its first line; empty if nothing is.
fn hint(pem: &[u8]) -> &'static str {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let is_displaced = |line: &[u8]| {
        !line.starts_with(BEGIN) && line.windows(BEGIN.len()).any(|part| part == BEGIN)
    };
    if lines(pem).any(is_displaced) {
        "; \"-----BEGIN\" has to be at the beginning of a line, so remove the spaces or the byte order mark before it"
    } else {
        ""
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b'\n' | b'\r'))
}

/// Whether this is one whole certificate, with nothing behind it.
fn is_certificate(der: &[u8]) -> bool {
    x509_parser::parse_x509_certificate(der).is_ok_and(|(rest, _)| rest.is_empty())
}

/// The length of an RSA key; `None` for a key of another type.
fn rsa_bits(key: &dyn SigningKey) -> Option<usize> {
    let public = key.public_key()?;
    let (_, public) = SubjectPublicKeyInfo::from_der(&public).ok()?;
    match public.parsed().ok()? {
        PublicKey::RSA(key) => Some(key.key_size()),
        _ => None,
    }
}

fn encode(
    name: &ObjectName,
    uid: &str,
    chain: &[CertificateDer<'_>],
    key: &[u8],
) -> Option<Encoded> {
    let certificate = proto::Certificate {
        chain: chain
            .iter()
            .map(|der| Bytes::copy_from_slice(der))
            .collect(),
        private_key: key.to_vec(),
        secret_uid: uid.to_owned(),
    };
    Encoded::new(&Resource::new(
        name.to_string(),
        resource::Resource::Certificate(certificate),
    ))
    .ok()
}

impl Translator {
    /// The state of a Secret that a listener or Gateway may use. It is computed once for each version
    /// of the Secret.
    pub(super) fn secret_state(&mut self, name: &ObjectName, output: &mut Output) -> &SecretState {
        let key = ObjectKey::secret(name.clone());
        let object = self.objects.get(&key);
        let unread = self.is_unread(&key);
        self.secrets.entry(name.clone()).or_insert_with(|| {
            output.work.certificates += 1;
            let (state, deadline) = match object {
                Some(object) => {
                    SecretState::of(object, self.now, self.settings.policy.max_rsa_bits)
                }
                None if unread => (SecretState::Unread, None),
                None => (SecretState::Missing, None),
            };
            self.deadlines.extend(deadline.map(|at| (at, name.clone())));
            state
        })
    }

    /// The UID of a Secret; empty if it is not there.
    fn secret_uid(&self, name: &ObjectName) -> &str {
        let key = ObjectKey::secret(name.clone());
        let meta = self.objects.get(&key).and_then(|object| match &**object {
            Object::Secret(secret) => Some(&secret.meta),
            unreadable => unreadable.meta(),
        });
        meta.map_or("", |meta| &*meta.uid)
    }

    /// What the proxies get for a Secret that cannot be used. They reject a certificate without a chain, and keep serving the
    /// last good one of the same Secret. So nobody here needs to know what they served before.
    pub(super) fn without_chain(&self, name: &ObjectName) -> Option<Encoded> {
        encode(name, self.secret_uid(name), &[], &[])
    }

    /// Takes the time, and marks whatever uses a Secret whose certificate became valid or expired. At
    /// the first time, and if the clock went back, every Secret is judged again.
    pub(super) fn take_time(&mut self, now: i64, dirty: &mut Dirty) {
        let before = self.now.replace(now);
        let due: BTreeSet<ObjectName> = if before.is_some_and(|before| before <= now) {
            let later = self
                .deadlines
                .split_off(&(now.saturating_add(1), ObjectName::new("", "")));
            let due = std::mem::replace(&mut self.deadlines, later);
            due.into_iter().map(|(_, name)| name).collect()
        } else {
            self.deadlines.clear();
            self.secrets.keys().cloned().collect()
        };
        for name in due {
            self.secrets.remove(&name);
            let key = ObjectKey::secret(name);
            if self.source_users.contains_key(&key) {
                dirty.certificates.insert(key.name.clone());
            }
            self.mark_source(&key, dirty);
        }
    }

    /// Records whether the proxies need a certificate for `user`.
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

    /// Brings the resources of certificates up to date.
    pub(super) fn translate_certificates(&mut self, dirty: &Dirty, output: &mut Output) {
        for name in &dirty.certificates {
            let source = ObjectKey::secret(name.clone());
            // A Secret over the budget is not there for the proxies, which then keep no last good version of it either.
            let is_over = self.source_budgets.is_over(&source);
            let resource = if self.certificate_users.contains_key(name) && !is_over {
                match self.secret_state(name, output) {
                    SecretState::Unread | SecretState::Missing | SecretState::Issuing => None,
                    SecretState::Unusable(_) | SecretState::NotYetValid(_) => {
                        self.without_chain(name)
                    }
                    SecretState::Usable(certificate) => Some((*certificate.encoded).clone()),
                }
            } else {
                None
            };
            self.settle_resource(resource_key(name), resource, output);
            if !self.source_users.contains_key(&source) {
                self.secrets.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::meta::Meta;

    use super::*;

    /// A certificate and its key.
    fn pair() -> (String, String) {
        let names = vec!["a.example".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).expect("a certificate");
        (pair.cert.pem(), pair.signing_key.serialize_pem())
    }

    /// Why a Secret with this text cannot be used, if so.
    fn problem(certificate: &str, key: &str) -> Option<String> {
        let secret = Secret {
            name: ObjectName::new("t", "s"),
            meta: Meta::default(),
            secret_type: "kubernetes.io/tls".into(),
            certificate: Some(Arc::from(certificate.as_bytes())),
            private_key: Some(Arc::new(key.as_bytes().to_vec().into())),
            authorities: None,
            acme: false,
        };
        read(&secret, 4096).err()
    }

    #[test]
    fn an_encrypted_key_is_called_so() {
        let (certificate, key) = pair();
        assert_eq!(problem(&certificate, &key), None);
        let pkcs8 =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nTUlJ\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let traditional = "-----BEGIN EC PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES-256-CBC,00\r\n\r\n\
                           TUlJ\r\n-----END EC PRIVATE KEY-----\r\n";
        for encrypted in [pkcs8, traditional] {
            let problem = problem(&certificate, encrypted).expect("a problem");
            assert!(problem.contains("is encrypted"), "{problem}");
            assert!(problem.contains("openssl pkey"), "{problem}");
            assert!(!problem.contains("TUlJ"), "{problem}");
        }
        let none = problem(&certificate, "no key").expect("a problem");
        assert!(none.ends_with("holds no private key in PEM"), "{none}");
    }

    #[test]
    fn text_before_the_first_line_is_named() {
        let (certificate, key) = pair();
        let marked = |text: &str| format!("\u{feff}{text}");
        let indented = |text: &str| text.replace("-----BEGIN", "  -----BEGIN");
        let chain = format!("{certificate}{}", pair().0);
        for (certificate, key, what) in [
            (marked(&certificate), key.clone(), "holds no certificate"),
            (indented(&certificate), key.clone(), "holds no certificate"),
            (certificate.clone(), marked(&key), "holds no private key"),
            (certificate.clone(), indented(&key), "holds no private key"),
            // Only the first certificate of the chain is not read.
            (marked(&chain), key.clone(), "does not fit"),
        ] {
            let problem = problem(&certificate, &key).expect("a problem");
            assert!(problem.contains(what), "{problem}");
            assert!(problem.contains("byte order mark before it"), "{problem}");
        }
        let none = problem("no PEM", &key).expect("a problem");
        assert!(none.ends_with("holds no certificate"), "{none}");
    }
}
