//! Owns the serving certificate. It is read from the mounted Secret, and read again when that changes.
//!
//! The kubelet swaps the files of a Secret by one symlink (`..data`). The target of this link is resolved once, and
//! both files are read from there, so they always belong together. If they cannot be used, the certificate in force
//! stays.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::server::clock;
use crate::server::metrics::Metrics;

/// Longest file that is read, in bytes. etcd does not accept a larger Secret.
const MAX_FILE: u64 = 2 << 20;

/// The certificate in force, if there is one yet.
#[derive(Debug, Default)]
pub(super) struct Serving {
    current: ArcSwapOption<CertifiedKey>,
}

impl Serving {
    pub(super) fn is_there(&self) -> bool {
        self.current.load().is_some()
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

/// Why files cannot be used as a certificate. It contains nothing of their content.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("{0}: {1}")]
    File(&'static str, io::Error),
    #[error("{0} is longer than {MAX_FILE} bytes")]
    TooLong(&'static str),
    #[error("tls.crt is no PEM certificate chain")]
    Chain,
    #[error("tls.key is no PEM private key")]
    Key,
    #[error("tls.crt and tls.key do not go together: {0}")]
    Pair(rustls::Error),
    #[error("the certificate expired at {0}")]
    Expired(String),
}

/// Checks a directory at regular intervals.
#[derive(Debug)]
pub(super) struct Follower {
    directory: PathBuf,
    serving: Arc<Serving>,
    metrics: Arc<Metrics>,
    /// The files at the last check: a digest of them, or why they could not be read.
    content: Option<Result<[u8; 32], String>>,
    /// Why this content could not be used at the last check; `None` if its certificate was taken.
    problem: Option<String>,
}

impl Follower {
    pub(super) fn new(directory: PathBuf, serving: Arc<Serving>, metrics: Arc<Metrics>) -> Self {
        Self {
            directory,
            serving,
            metrics,
            content: None,
            problem: None,
        }
    }

    /// Checks every `period`, and never returns.
    pub(super) async fn run(mut self, period: Duration) {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // The files of a Secret are in memory, so reading them does not block.
            self.look(clock::now().as_second());
        }
    }

    /// Takes the certificate in the directory, if it is new and can be used. Each content is logged once, and again if it
    /// is judged otherwise: a certificate that was expired by a wrong clock is taken when the clock is right.
    fn look(&mut self, now: i64) {
        let read = Files::read(&self.directory);
        let content = read.as_ref().map(Files::digest).map_err(text);
        let is_new = self.content.as_ref() != Some(&content);
        if !is_new && self.problem.is_none() {
            return;
        }
        self.content = Some(content);
        match read.and_then(|files| files.certificate(now)) {
            Ok((certificate, not_after)) => {
                self.problem = None;
                self.serving.current.store(Some(Arc::new(certificate)));
                self.metrics.certificate_taken(not_after);
                tracing::info!(not_after = %time(not_after), "the serving certificate is in force");
            }
            Err(error) => {
                let before = self.problem.replace(text(&error));
                if !is_new && self.problem == before {
                    return;
                }
                let kept = self.serving.is_there();
                self.metrics.certificate_unusable();
                if kept {
                    tracing::warn!(%error, "the serving certificate cannot be used; the previous one stays in use");
                } else {
                    tracing::info!(%error, "the webhook waits for a serving certificate");
                }
            }
        }
    }
}

fn text(error: &Unusable) -> String {
    error.to_string()
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |t| t.to_string())
}

struct Files {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Files {
    fn read(directory: &Path) -> Result<Self, Unusable> {
        // The link is resolved once. If the files are swapped between the two reads, the second file is gone, which is
        // an error.
        let data = directory.join("..data").canonicalize();
        let directory = data.as_deref().unwrap_or(directory);
        Ok(Self {
            chain: read(directory, "tls.crt")?,
            key: Zeroizing::new(read(directory, "tls.key")?),
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(Sha256::digest(&self.chain));
        digest.update(Sha256::digest(&self.key));
        digest.finalize().into()
    }

    /// The certificate with its key, and the end of its validity in seconds since the Unix epoch.
    fn certificate(&self, now: i64) -> Result<(CertifiedKey, i64), Unusable> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&self.chain)
            .collect::<Result<_, _>>()
            .map_err(|_| Unusable::Chain)?;
        let leaf = chain.first().ok_or(Unusable::Chain)?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| Unusable::Chain)?;
        let not_after = parsed.validity().not_after.timestamp();
        if not_after <= now {
            return Err(Unusable::Expired(time(not_after)));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| Unusable::Key)?;
        let certificate = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(Unusable::Pair)?;
        Ok((certificate, not_after))
    }
}

fn read(directory: &Path, name: &'static str) -> Result<Vec<u8>, Unusable> {
    let failed = |error| Unusable::File(name, error);
    let file = File::open(directory.join(name)).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > MAX_FILE {
        return Err(Unusable::TooLong(name));
    }
    // The buffer has its full size from the start. If it grew, copies of a key would be left in memory.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default() + 1);
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    struct Pair {
        chain: String,
        key: String,
        leaf: Vec<u8>,
    }

    fn pair(year: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["webhook.test".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        Pair {
            chain: certificate.pem(),
            key: key.serialize_pem(),
            leaf: certificate.der().to_vec(),
        }
    }

    /// As the kubelet writes it: a directory per version, and one symlink.
    fn project(directory: &Path, version: &str, chain: &str, key: &str) {
        let data = directory.join(version);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("tls.crt"), chain).unwrap();
        fs::write(data.join("tls.key"), key).unwrap();
        let link = directory.join("..new");
        symlink(version, &link).unwrap();
        fs::rename(&link, directory.join("..data")).unwrap();
    }

    fn leaf(serving: &Serving) -> Option<Vec<u8>> {
        let current = serving.current.load_full()?;
        Some(current.cert[0].to_vec())
    }

    fn follower(name: &str) -> (PathBuf, Arc<Serving>, Follower) {
        let directory =
            std::env::temp_dir().join(format!("vestibule-webhook-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let serving = Arc::new(Serving::default());
        let metrics = Arc::new(Metrics::new());
        let follower = Follower::new(directory.clone(), Arc::clone(&serving), metrics);
        (directory, serving, follower)
    }

    #[test]
    fn comes_late_and_is_exchanged() {
        let (directory, serving, mut follower) = follower("exchange");
        follower.look(0);
        assert!(!serving.is_there());
        let (one, two) = (pair(3000), pair(3000));
        project(&directory, "..1", &one.chain, &one.key);
        follower.look(0);
        assert_eq!(leaf(&serving), Some(one.leaf));
        project(&directory, "..2", &two.chain, &two.key);
        follower.look(0);
        assert_eq!(leaf(&serving), Some(two.leaf));
        fs::remove_dir_all(&directory).unwrap();
        follower.look(0);
        assert!(serving.is_there());
    }

    #[test]
    fn certificate_files_that_are_of_no_use_change_nothing() {
        let (directory, serving, mut follower) = follower("bad");
        let (one, two, old) = (pair(3000), pair(3000), pair(2001));
        project(&directory, "..0", &one.chain, &one.key);
        follower.look(0);
        let later = 2_000_000_000;
        for (version, (chain, key)) in [
            (one.chain.as_str(), two.key.as_str()),
            ("", one.key.as_str()),
            (one.chain.as_str(), ""),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", one.key.as_str()),
            (old.chain.as_str(), old.key.as_str()),
        ]
        .into_iter()
        .enumerate()
        {
            project(&directory, &format!("..bad{version}"), chain, key);
            follower.look(later);
            assert_eq!(leaf(&serving), Some(one.leaf.clone()), "{version}");
        }
        project(&directory, "..good", &two.chain, &two.key);
        follower.look(later);
        assert_eq!(leaf(&serving), Some(two.leaf));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_certificate_that_expired_by_a_wrong_clock_is_taken_when_the_clock_is_right() {
        let (directory, serving, mut follower) = follower("clock");
        let (one, two) = (pair(2030), pair(2040));
        let far_ahead = 4_000_000_000;
        let counted = |follower: &Follower, line: &str| {
            let text = follower.metrics.encode().unwrap();
            let line = format!("vestibule_webhook_certificate_reloads_total{line}");
            assert!(text.contains(&line), "{line}: {text}");
        };
        project(&directory, "..1", &one.chain, &one.key);
        // It is looked at again and again, and counted and logged once.
        for _ in 0..3 {
            follower.look(far_ahead);
            assert!(!serving.is_there());
        }
        counted(&follower, "{result=\"unusable\"} 1\n");
        for _ in 0..3 {
            follower.look(0);
            assert_eq!(leaf(&serving).as_ref(), Some(&one.leaf));
        }
        counted(&follower, "{result=\"taken\"} 1\n");
        // The same holds for its successor, until which it stays.
        project(&directory, "..2", &two.chain, &two.key);
        follower.look(far_ahead);
        assert_eq!(leaf(&serving), Some(one.leaf));
        follower.look(0);
        assert_eq!(leaf(&serving).as_ref(), Some(&two.leaf));
        // A certificate in force stays, whatever the clock says.
        follower.look(far_ahead);
        assert_eq!(leaf(&serving), Some(two.leaf));
        counted(&follower, "{result=\"unusable\"} 2\n");
        counted(&follower, "{result=\"taken\"} 2\n");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn plain_files_do_too() {
        let (directory, serving, mut follower) = follower("plain");
        let one = pair(3000);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("tls.crt"), &one.chain).unwrap();
        follower.look(0);
        assert!(!serving.is_there());
        fs::write(directory.join("tls.key"), &one.key).unwrap();
        follower.look(0);
        assert!(serving.is_there());
        fs::remove_dir_all(&directory).unwrap();
    }
}
