//! Keeps the certificates and accounts of the built-in engine in a directory, for `vestibule run`. There is one file
//! per Secret. Only the user can read it, and it is always written as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tracing::{info, warn};
use vestibule_acme::{
    Effects, IssuerState, Observation, OrderOutcome, PrivateKey, StoreError, StoredSecret, Write,
    Written,
};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::condition::Truth;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::{Object, Secret};
use zeroize::Zeroizing;

use super::EngineLink;
use crate::localca::files;
use crate::translate::Change;

/// The line before each part of a file except the first, which is the state.
const PARTS: [&str; 3] = ["\n== tls.crt\n", "\n== tls.key\n", "\n== next.key\n"];

/// Longest file in bytes. A file contains a state, a certificate chain and two keys.
const MAX_FILE: u16 = 60 << 10;

/// The directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    engine_link: EngineLink,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Secrets among the user's objects. They are never replaced.
    users: BTreeSet<ObjectName>,
    /// Certificates that were read or issued, for the loop.
    news: BTreeMap<ObjectName, Secret>,
}

impl Directory {
    /// Returns the directory at `path`. It is created when something is written.
    #[must_use]
    pub fn new(path: PathBuf, engine_link: EngineLink) -> Self {
        Self {
            path,
            engine_link,
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Returns a channel that signals when [`Self::take`] has something.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Removes and returns the new certificates, as changes for translation.
    #[must_use]
    pub fn take(&self) -> Vec<Change> {
        let news = std::mem::take(&mut self.state.lock().news);
        let secrets = news.into_values().map(Object::Secret);
        secrets.map(Change::Put).collect()
    }

    /// Notes whether a Secret is among the user's objects.
    pub fn users(&self, secret: &ObjectName, there: bool) {
        let mut state = self.state.lock();
        if there {
            state.users.insert(secret.clone());
        } else {
            state.users.remove(secret);
        }
    }

    /// Returns the file of a Secret. Its name comes from manifests, so this makes sure that the path stays in the
    /// directory.
    fn file(&self, secret: &ObjectName) -> Result<PathBuf, StoreError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let good = |text: &str| {
            !text.is_empty()
                && text.len() <= 253
                && !text.starts_with('.')
                && text.chars().all(plain)
        };
        if !good(&secret.namespace) || !good(&secret.name) {
            return Err(StoreError("the name is not one of a Secret".to_owned()));
        }
        // An underscore separates the two, since no namespace contains one.
        Ok(self
            .path
            .join(format!("{}_{}", secret.namespace, secret.name)))
    }

    fn load(&self, secret: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
        let text =
            files::read_private(&self.file(secret)?, MAX_FILE).map_err(|error| failed(&error))?;
        Ok(text.map(|text| parse(&text)))
    }

    fn tell(&self, name: &ObjectName, record: &StoredSecret) {
        if record.certificate.is_empty() || !record.ours {
            return;
        }
        let secret = Secret {
            name: name.clone(),
            meta: Meta::default(),
            secret_type: "kubernetes.io/tls".into(),
            certificate: Some(record.certificate.as_slice().into()),
            private_key: Some(Arc::new(Zeroizing::new(
                record.private_key.expose().to_vec(),
            ))),
            authorities: None,
            acme: true,
        };
        self.state.lock().news.insert(name.clone(), secret);
        self.changed.send_replace(());
    }
}

fn failed(error: &crate::localca::LocalCaError) -> StoreError {
    StoreError(error.to_string())
}

/// Reads the text that [`format`] wrote.
fn parse(text: &str) -> StoredSecret {
    let [certificate_mark, key_mark, next_mark] = PARTS;
    let (state, rest) = text.split_once(certificate_mark).unwrap_or((text, ""));
    let (certificate, rest) = rest.split_once(key_mark).unwrap_or((rest, ""));
    let (key, next) = rest.split_once(next_mark).unwrap_or((rest, ""));
    let private = |text: &str| PrivateKey::from(Zeroizing::new(text.as_bytes().to_vec()));
    StoredSecret {
        version: version(text),
        ours: true,
        state: Some(state.into()),
        certificate: certificate.as_bytes().to_vec(),
        private_key: private(key),
        next_key: private(next),
    }
}

/// Writes the state, the certificate and the keys as one text. The state is JSON on one line and the rest is PEM, so
/// none of them contains a separator.
fn format(state: &str, certificate: &[u8], key: &[u8], next: &[u8]) -> Zeroizing<Vec<u8>> {
    let [certificate_mark, key_mark, next_mark] = PARTS.map(str::as_bytes);
    let parts = [
        state.as_bytes(),
        certificate_mark,
        certificate,
        key_mark,
        key,
        next_mark,
        next,
    ];
    // The room is reserved first, because growing would leave copies of the keys in memory.
    let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        text.extend_from_slice(part);
    }
    Zeroizing::new(text)
}

fn version(text: &str) -> Arc<str> {
    let digest = Sha256::digest(text.as_bytes());
    let mut version = String::with_capacity(64);
    for byte in digest {
        let _ = write!(version, "{byte:02x}");
    }
    version.into()
}

impl Effects for Directory {
    async fn read(&self, secret: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
        if self.state.lock().users.contains(secret) {
            // The Secret belongs to the user, whatever it contains.
            return Ok(Some(StoredSecret::default()));
        }
        let record = self.load(secret)?;
        if let Some(record) = &record {
            self.tell(secret, record);
        }
        Ok(record)
    }

    async fn write(&self, secret: &ObjectName, write: Write) -> Result<Written, StoreError> {
        let path = self.file(secret)?;
        // A lock makes processes that share the directory take turns.
        let _turn = files::prepare(&self.path).map_err(|error| failed(&error))?;
        let present = self.load(secret)?;
        let present_version = present.as_ref().map(|record| record.version.clone());
        if present_version != write.expected || self.state.lock().users.contains(secret) {
            return Ok(Written::Conflict);
        }
        let present = present.unwrap_or_default();
        let (certificate, key) = write
            .pair
            .unwrap_or((present.certificate, present.private_key));
        let next = write.next_key.unwrap_or_default();
        let text = format(&write.state, &certificate, key.expose(), next.expose());
        if text.len() > usize::from(MAX_FILE) {
            return Ok(Written::Refused("it is too large".to_owned()));
        }
        files::write(&path, &text, 0o600).map_err(|error| failed(&error))?;
        let text = std::str::from_utf8(&text)
            .map_err(|_| StoreError("a certificate that is no text".to_owned()))?;
        let record = parse(text);
        self.tell(secret, &record);
        Ok(Written::Done(record.version))
    }

    async fn entry(
        &self,
        secret: &ObjectName,
        key: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !key.chars().all(good) {
            return Err(StoreError("the entry is not one of a Secret".to_owned()));
        }
        let mut path = self.file(secret)?;
        path.as_mut_os_string().push(format!("_{key}"));
        let text = files::read_key(&path).map_err(|error| failed(&error))?;
        Ok(text.map(|text| Zeroizing::new(text.trim().as_bytes().to_vec())))
    }

    fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {
        self.engine_link.challenges(changes);
    }

    fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>) {
        self.engine_link.issuance(changes);
    }

    fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>) {
        for (issuer, issuer_state) in &changes {
            match issuer_state.ready {
                Truth::True => info!(%issuer, "the CA knows the account"),
                Truth::Unknown => {
                    info!(%issuer, reason = issuer_state.reason, "{}", issuer_state.message);
                }
                Truth::False => {
                    warn!(%issuer, reason = issuer_state.reason, "{}", issuer_state.message);
                }
            }
        }
        self.engine_link.issuers(changes);
    }

    fn observe(&self, observation: Observation) {
        if let Observation::OrderEnded {
            secret,
            issuer,
            outcome,
            message,
        } = observation
        {
            match outcome {
                OrderOutcome::Issued => {
                    info!(%secret, %issuer, "a certificate is issued: {message}");
                }
                OrderOutcome::Failed => {
                    warn!(%secret, %issuer, "a certificate cannot be issued: {message}");
                }
                OrderOutcome::Abandoned => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vestibule-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn write(expected: Option<Arc<str>>, state: &str, next: Option<&str>) -> Write {
        Write {
            expected,
            state: state.into(),
            pair: None,
            next_key: next.map(key),
        }
    }

    fn key(text: &str) -> PrivateKey {
        PrivateKey::from(Zeroizing::new(text.as_bytes().to_vec()))
    }

    #[tokio::test]
    async fn directory_files_are_private_and_written_only_over_the_version_that_was_read() {
        let path = scratch("acme-directory");
        let directory = Directory::new(path.clone(), EngineLink::default());
        let name = ObjectName::new("a", "web-tls");
        assert_eq!(directory.read(&name).await.unwrap(), None);
        let Written::Done(first) = directory
            .write(&name, write(None, "{}", Some("next")))
            .await
            .unwrap()
        else {
            panic!("not written")
        };
        let record = directory.read(&name).await.unwrap().unwrap();
        assert_eq!(record.version, first);
        assert_eq!((record.ours, record.next_key), (true, key("next")));
        assert!(directory.take().is_empty(), "there is no certificate yet");
        let again = directory.write(&name, write(None, "{}", None)).await;
        assert_eq!(again.unwrap(), Written::Conflict);
        let mut last = write(Some(first), "{\"issued\":1}", None);
        last.pair = Some((b"chain".to_vec(), key("key")));
        let Written::Done(_) = directory.write(&name, last).await.unwrap() else {
            panic!("not written")
        };
        let record = directory.read(&name).await.unwrap().unwrap();
        assert_eq!(record.state.as_deref(), Some("{\"issued\":1}"));
        assert_eq!(record.certificate, b"chain");
        assert_eq!(record.private_key, key("key"));
        assert!(record.next_key.is_empty());
        assert_eq!(directory.take().len(), 1);
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("a_web-tls")), 0o600);
        // A Secret of the user with that name stays theirs.
        directory.users(&name, true);
        assert!(!directory.read(&name).await.unwrap().unwrap().ours);
        // No name leads out.
        for odd in [
            ObjectName::new("..", "x"),
            ObjectName::new("a", "../x"),
            ObjectName::new("", "x"),
        ] {
            assert!(directory.read(&odd).await.is_err(), "{odd}");
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}
