//! The local CA: issues certificates for `vestibule run`, where no cluster and no ACME server is.
//!
//! [`LocalCa`] owns a key and a certificate in a state directory and signs leaves; [`LocalIssuer`] is
//! the pure part: which Secrets it has to make, renew and take away. Time is an input of both.
//!
//! The CA persists, so that it is trusted once. Leaves do not: they are issued anew at every start,
//! and live as [`Secret`]s in the translator only.

pub(crate) mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use aws_lc_rs::hmac;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::{Object, Secret};
use zeroize::{Zeroize, Zeroizing};

use crate::translate::{Change, SessionKey};

/// File of the CA's certificate in the state directory.
pub const CERTIFICATE_FILE: &str = "ca.crt";
/// File of the CA's private key in the state directory.
pub const KEY_FILE: &str = "ca.key";

const DAY: i64 = 86_400;
/// Validity of the CA in seconds.
const CA_VALIDITY: i64 = 3650 * DAY;
/// Validity of a leaf in seconds, counted from its issuance.
const LEAF_VALIDITY: i64 = 30 * DAY;
/// A leaf is issued anew after this many seconds: two thirds of its validity.
const RENEW_AFTER: i64 = LEAF_VALIDITY / 3 * 2;
/// Certificates begin this many seconds before they are issued, for clients whose clock is behind.
const BACKDATE: i64 = 3600;
/// Longest common name (X.520 `ub-common-name`).
const MAX_COMMON_NAME: usize = 64;

/// Why the local CA cannot be opened, or a certificate not be issued.
#[derive(Debug, thiserror::Error)]
pub enum LocalCaError {
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Of what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The key file, or the directory, is open to other users.
    #[error(
        "{path} has mode {mode:04o}, so that other users can get at the CA's private key: if nobody \
         did, run `chmod {wanted} {path}`; otherwise delete {KEY_FILE} and {CERTIFICATE_FILE} there, \
         and a new CA is made"
    )]
    Exposed {
        /// Which file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The mode for `chmod`.
        wanted: &'static str,
    },
    /// A file does not hold what it should.
    #[error(
        "{path} {problem}: restore it, or delete {KEY_FILE} and {CERTIFICATE_FILE} there, and a new CA \
         is made"
    )]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A certificate could not be made.
    #[error("cannot issue a certificate for {name}: {source}")]
    Issue {
        /// For what.
        name: String,
        /// Why.
        source: rcgen::Error,
    },
}

impl LocalCaError {
    /// The kind of failure, as a metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Io { .. } => "Io",
            Self::Exposed { .. } => "Exposed",
            Self::Unusable { .. } => "Unusable",
            Self::Issue { .. } => "Issue",
        }
    }
}

/// A CA in a state directory.
pub struct LocalCa {
    directory: PathBuf,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl fmt::Debug for LocalCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCa")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Drop for LocalCa {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// A leaf, and when to replace it.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The Secret that holds it.
    pub secret: Secret,
    /// When it is to be issued anew, in seconds since the Unix epoch.
    pub renew_at: i64,
}

impl LocalCa {
    /// Loads the CA of a directory, or makes one if there is none: the directory is created with mode
    /// 0700, the key with 0600. Processes that share a directory take turns here.
    pub fn open(directory: &Path, now: Timestamp) -> Result<Self, LocalCaError> {
        let _turn = files::prepare(directory)?;
        let (certificate_path, key_path) =
            (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        let key = match files::read_key(&key_path)? {
            Some(pem) => KeyPair::from_pem(&pem).map_err(|error| LocalCaError::Unusable {
                path: key_path,
                problem: format!("holds no private key ({error})"),
            })?,
            None if files::read(&certificate_path)?.is_some() => {
                return Err(LocalCaError::Unusable {
                    path: key_path,
                    problem: "is absent, while the certificate is there".into(),
                });
            }
            None => {
                let key = KeyPair::generate().map_err(not_issued("the CA"))?;
                let pem = Zeroizing::new(key.serialize_pem());
                files::write(&key_path, pem.as_bytes(), 0o600)?;
                key
            }
        };
        let certificate = if let Some(pem) = files::read(&certificate_path)? {
            check(&pem, &key, now).map_err(|problem| LocalCaError::Unusable {
                path: certificate_path,
                problem,
            })?
        } else {
            // Also after an end between the two writes: the key that is there gets its certificate.
            let certificate = authority(&key, now).map_err(not_issued("the CA"))?;
            files::write(&certificate_path, certificate.pem().as_bytes(), 0o644)?;
            certificate.der().clone()
        };
        Ok(Self {
            directory: directory.to_owned(),
            certificate,
            key,
        })
    }

    /// The file that clients have to trust.
    #[must_use]
    pub fn certificate_path(&self) -> PathBuf {
        self.directory.join(CERTIFICATE_FILE)
    }

    /// The CA's certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The key of sessions that goes with this CA, so that they outlive the process as the CA does.
    #[must_use]
    pub fn session_key(&self) -> SessionKey {
        let secret = Zeroizing::new(self.key.serialize_der());
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let tag = hmac::sign(&key, b"vestibule run: key of sessions");
        let mut bytes = Zeroizing::new([0; SessionKey::BYTES]);
        bytes.copy_from_slice(tag.as_ref());
        SessionKey::new(bytes)
    }

    /// Issues a certificate with a key of its own for `hostnames`, as the Secret `name`.
    pub fn issue(
        &self,
        name: &ObjectName,
        hostnames: &BTreeSet<Hostname>,
        now: Timestamp,
    ) -> Result<Issued, LocalCaError> {
        let failed = || not_issued(&name.to_string());
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key).map_err(failed())?;
        let mut key = KeyPair::generate().map_err(failed())?;
        let mut params = validity(now, LEAF_VALIDITY);
        params.subject_alt_names = hostnames
            .iter()
            .map(|host| host.as_str().try_into().map(SanType::DnsName))
            .collect::<Result<_, _>>()
            .map_err(failed())?;
        if let Some(first) = hostnames
            .iter()
            .find(|h| h.as_str().len() <= MAX_COMMON_NAME)
        {
            params
                .distinguished_name
                .push(DnType::CommonName, first.as_str());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(failed())?;
        let private_key = Zeroizing::new(key.serialize_pem().into_bytes());
        key.zeroize();
        Ok(Issued {
            secret: Secret {
                authorities: None,
                acme: false,
                name: name.clone(),
                meta: Meta {
                    created: now.as_second(),
                    ..Meta::default()
                },
                secret_type: "kubernetes.io/tls".into(),
                certificate: Some(Arc::from(certificate.pem().into_bytes())),
                private_key: Some(Arc::new(private_key)),
            },
            renew_at: now.as_second().saturating_add(RENEW_AFTER),
        })
    }
}

fn not_issued(name: &str) -> impl Fn(rcgen::Error) -> LocalCaError + use<> {
    let name = name.to_owned();
    move |source| LocalCaError::Issue {
        name: name.clone(),
        source,
    }
}

/// Parameters that are valid from a bit before `now`, for `seconds` after it.
fn validity(now: Timestamp, seconds: i64) -> CertificateParams {
    // `time`, which the parameters want, has no constructor here but this one.
    let at = |second: i64| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(second).unwrap_or(0))
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = at(now.as_second() - BACKDATE);
    params.not_after = at(now.as_second() + seconds);
    params
}

fn authority(key: &KeyPair, now: Timestamp) -> Result<rcgen::Certificate, rcgen::Error> {
    let mut params = validity(now, CA_VALIDITY);
    // The day tells one machine's, or one year's, from another in a list of trusted CAs.
    params.distinguished_name.push(
        DnType::CommonName,
        format!("Vestibule local CA {}", now.strftime("%Y-%m-%d")),
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.self_signed(key)
}

/// Reads a CA certificate and checks that it is one, of this key, and valid.
fn check(pem: &[u8], key: &KeyPair, now: Timestamp) -> Result<CertificateDer<'static>, String> {
    let der = CertificateDer::from_pem_slice(pem).map_err(|_| "holds no certificate".to_owned())?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(&der).map_err(|_| "holds no certificate".to_owned())?;
    if !parsed.is_ca() {
        return Err("holds the certificate of no CA".into());
    }
    if *parsed.public_key().raw != *key.subject_public_key_info() {
        return Err(format!("does not fit {KEY_FILE}"));
    }
    let ends = parsed.validity().not_after.timestamp();
    // A CA that ends before its leaves would be found out by clients, much later.
    if ends < now.as_second().saturating_add(LEAF_VALIDITY) {
        return Err(format!(
            "ends at {}",
            Timestamp::from_second(ends).map_or_else(|_| "an odd time".into(), |t| t.to_string())
        ));
    }
    Ok(der)
}

/// The facts that are kept about a Secret that was issued here.
#[derive(Debug)]
struct Held {
    hostnames: BTreeSet<Hostname>,
    renew_at: i64,
}

/// Which Secrets the local CA has to make: those that are requested, and that the user's objects do
/// not contain.
#[derive(Debug, Default)]
pub struct LocalIssuer {
    requests: BTreeMap<ObjectName, Arc<CertificateRequest>>,
    /// Secrets among the user's objects: never touched, whatever they hold.
    users: BTreeSet<ObjectName>,
    held: BTreeMap<ObjectName, Held>,
}

impl LocalIssuer {
    /// Nothing requested yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of changes of the user's objects. Call it before they are translated, and settle
    /// afterwards: the translator then has the user's Secret in the place of one issued here.
    pub fn user_changes<'a>(&mut self, changes: impl IntoIterator<Item = &'a Change>) {
        for change in changes {
            let (key, there) = match change {
                Change::Put(object) => (object.key(), true),
                Change::Remove(key) => (key.clone(), false),
                Change::Absent(_)
                | Change::Ports(_)
                | Change::Addresses(..)
                | Change::Challenges(_)
                | Change::Issuance(_)
                | Change::Claims(_)
                | Change::SessionKeys(_)
                | Change::Since(_)
                | Change::Taken(_)
                | Change::Time(_) => continue,
            };
            if key.kind != Kind::Secret {
                continue;
            }
            if there {
                self.users.insert(key.name.clone());
            } else {
                self.users.remove(&key.name);
            }
            // Either way the translator no longer has what was issued.
            self.held.remove(&key.name);
        }
    }

    /// Takes the translator's requests; `None` is: no longer.
    pub fn requests(&mut self, changes: BTreeMap<ObjectName, Option<Arc<CertificateRequest>>>) {
        for (name, request) in changes {
            match request {
                Some(request) => self.requests.insert(name, request),
                None => self.requests.remove(&name),
            };
        }
    }

    /// Issues what is missing, due or for other names now, and takes away what nobody requests. The
    /// changes are for the translator; a Secret that could not be issued is tried again next time.
    pub fn settle(&mut self, ca: &LocalCa, now: Timestamp) -> (Vec<Change>, Vec<LocalCaError>) {
        let (mut changes, mut errors) = (Vec::new(), Vec::new());
        let requests = &self.requests;
        self.held.retain(|name, _| {
            let wanted = requests.contains_key(name);
            if !wanted {
                changes.push(Change::Remove(ObjectKey::secret(name.clone())));
            }
            wanted
        });
        for (name, request) in &self.requests {
            let good = self.held.get(name).is_some_and(|held| {
                held.hostnames == request.hostnames && now.as_second() < held.renew_at
            });
            if good || self.users.contains(name) {
                continue;
            }
            match ca.issue(name, &request.hostnames, now) {
                Ok(issued) => {
                    let held = Held {
                        hostnames: request.hostnames.clone(),
                        renew_at: issued.renew_at,
                    };
                    self.held.insert(name.clone(), held);
                    changes.push(Change::Put(Object::Secret(issued.secret)));
                }
                Err(error) => errors.push(error),
            }
        }
        (changes, errors)
    }

    /// Whether a Secret is among the user's objects.
    #[must_use]
    pub fn is_users(&self, secret: &ObjectName) -> bool {
        self.users.contains(secret)
    }

    /// Whether a Secret is one that was issued here.
    #[must_use]
    pub fn has_issued(&self, secret: &ObjectName) -> bool {
        self.held.contains_key(secret)
    }

    /// When the next certificate is due, in seconds since the Unix epoch.
    #[must_use]
    pub fn due(&self) -> Option<i64> {
        self.held.values().map(|held| held.renew_at).min()
    }
}

#[cfg(test)]
mod tests;
