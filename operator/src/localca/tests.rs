//! Tests of the local CA: its files, what it issues and when.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};

use super::*;

const NOW: i64 = 1_790_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn hosts(names: &[&str]) -> BTreeSet<Hostname> {
    names
        .iter()
        .map(|name| Hostname::parse(name).unwrap())
        .collect()
}

fn request(name: &ObjectName, names: &[&str]) -> Arc<CertificateRequest> {
    Arc::new(CertificateRequest {
        secret: name.clone(),
        hostnames: hosts(names),
        issuer: None,
        owner: ObjectKey {
            kind: Kind::Gateway,
            name: name.clone(),
        },
        owner_uid: "".into(),
        gateway: name.clone(),
        gateway_uid: "".into(),
        options: Arc::default(),
        reach: BTreeMap::new(),
    })
}

/// A directory that goes away with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vestibule-ca-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn verify(ca: &LocalCa, secret: &Secret, name: &str, second: i64) -> Result<(), rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .unwrap();
    let leaf = CertificateDer::from_pem_slice(secret.certificate.as_ref().unwrap()).unwrap();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(second).unwrap()));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier
        .verify_server_cert(&leaf, &[], &name, &[], time)
        .map(|_| ())
}

#[test]
fn makes_a_private_ca_once_and_loads_it_afterwards() {
    let directory = Directory::new("once");
    let first = LocalCa::open(&directory.0, at(NOW)).unwrap();
    assert_eq!(mode(&directory.0), 0o700);
    assert_eq!(mode(&directory.0.join(KEY_FILE)), 0o600);
    assert_eq!(first.certificate_path(), directory.0.join("ca.crt"));
    let second = LocalCa::open(&directory.0, at(NOW + 400 * DAY)).unwrap();
    assert_eq!(first.certificate(), second.certificate());
    let issued = second
        .issue(
            &ObjectName::new("a", "cert"),
            &hosts(&["a.example"]),
            at(NOW + 400 * DAY),
        )
        .unwrap();
    verify(&first, &issued.secret, "a.example", NOW + 400 * DAY).unwrap();
    assert!(!format!("{first:?}").contains("key"));
}

#[test]
fn leaves_verify_for_their_names_and_time_only() {
    let directory = Directory::new("leaf");
    let ca = LocalCa::open(&directory.0, at(NOW)).unwrap();
    let long = format!("{}.{}.example", "a".repeat(60), "b".repeat(60));
    let name = ObjectName::new("a", "cert");
    let issued = ca
        .issue(&name, &hosts(&["www.example", &long]), at(NOW))
        .unwrap();
    let secret = &issued.secret;
    assert_eq!(secret.name, name);
    assert_eq!(&*secret.secret_type, "kubernetes.io/tls");
    for (host, second, good) in [
        ("www.example", NOW, true),
        (long.as_str(), NOW, true),
        ("www.example", NOW - BACKDATE, true),
        ("www.example", NOW + LEAF_VALIDITY - 1, true),
        ("other.example", NOW, false),
        ("www.example", NOW - BACKDATE - 1, false),
        ("www.example", NOW + LEAF_VALIDITY + 1, false),
    ] {
        let verified = verify(&ca, secret, host, second);
        assert_eq!(verified.is_ok(), good, "{host} at {second}: {verified:?}");
    }
    assert_eq!(issued.renew_at, NOW + 20 * DAY);
    let again = ca.issue(&name, &hosts(&["www.example"]), at(NOW)).unwrap();
    assert_ne!(
        again.secret.private_key, secret.private_key,
        "a fresh key each"
    );
}

#[test]
fn openssl_agrees() {
    let directory = Directory::new("openssl");
    let now = crate::clock::now();
    let ca = LocalCa::open(&directory.0, now).unwrap();
    let issued = ca
        .issue(&ObjectName::new("a", "cert"), &hosts(&["www.example"]), now)
        .unwrap();
    let leaf = directory.0.join("leaf.crt");
    fs::write(&leaf, issued.secret.certificate.as_ref().unwrap()).unwrap();
    let verify = Command::new("openssl")
        .args(["verify", "-x509_strict", "-purpose", "sslserver"])
        .args(["-verify_hostname", "www.example", "-CAfile"])
        .args([&ca.certificate_path(), &leaf])
        .output();
    let output = verify.expect("openssl is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn refuses_a_key_that_others_can_read() {
    let directory = Directory::new("exposed");
    drop(LocalCa::open(&directory.0, at(NOW)).unwrap());
    let key = directory.0.join(KEY_FILE);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert_eq!(error.reason(), "Exposed");
    assert!(
        error
            .to_string()
            .contains(&format!("chmod 600 {}", key.display())),
        "{error}"
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o777)).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert!(error.to_string().contains("chmod 700"), "{error}");
}

#[test]
fn half_a_ca_is_completed_or_refused() {
    let directory = Directory::new("half");
    let first = LocalCa::open(&directory.0, at(NOW)).unwrap();
    // Ended after the key was written: the key stays.
    fs::remove_file(directory.0.join(CERTIFICATE_FILE)).unwrap();
    let second = LocalCa::open(&directory.0, at(NOW)).unwrap();
    assert_eq!(
        first.key.subject_public_key_info(),
        second.key.subject_public_key_info()
    );
    // A certificate whose key is gone is somebody's mistake.
    fs::remove_file(directory.0.join(KEY_FILE)).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert_eq!(error.reason(), "Unusable");
    assert!(error.to_string().contains("ca.key is absent"), "{error}");
}

#[test]
fn refuses_files_that_are_not_a_ca() {
    let directory = Directory::new("odd");
    let ca = LocalCa::open(&directory.0, at(NOW)).unwrap();
    let path = ca.certificate_path();
    let good = fs::read(&path).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW + CA_VALIDITY - DAY)).unwrap_err();
    assert!(error.to_string().contains("ca.crt ends at 20"), "{error}");

    fs::write(&path, "nonsense").unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert!(
        error.to_string().contains("holds no certificate"),
        "{error}"
    );

    let leaf = ca
        .issue(&ObjectName::new("a", "c"), &hosts(&["a.example"]), at(NOW))
        .unwrap();
    fs::write(&path, leaf.secret.certificate.as_ref().unwrap()).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert!(error.to_string().contains("of no CA"), "{error}");

    let other = Directory::new("odd-other");
    let other = LocalCa::open(&other.0, at(NOW)).unwrap();
    fs::copy(other.certificate_path(), &path).unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert!(error.to_string().contains("does not fit ca.key"), "{error}");

    fs::write(&path, good).unwrap();
    fs::write(directory.0.join(KEY_FILE), "nonsense").unwrap();
    let error = LocalCa::open(&directory.0, at(NOW)).unwrap_err();
    assert!(
        error.to_string().contains("holds no private key"),
        "{error}"
    );
}

#[test]
fn issues_renews_and_takes_away() {
    let directory = Directory::new("issuer");
    let ca = LocalCa::open(&directory.0, at(NOW)).unwrap();
    let mut issuer = LocalIssuer::new();
    let name = ObjectName::new("a", "cert");
    let put =
        |changes: &[Change]| matches!(changes, [Change::Put(Object::Secret(s))] if s.name == name);

    assert!(issuer.settle(&ca, at(NOW)).0.is_empty());
    issuer.requests([(name.clone(), Some(request(&name, &["a.example"])))].into());
    assert!(put(&issuer.settle(&ca, at(NOW)).0));
    assert!(issuer.has_issued(&name));
    assert_eq!(issuer.due(), Some(NOW + 20 * DAY));
    // Nothing to do until it is due, or for other names.
    assert!(issuer.settle(&ca, at(NOW + 20 * DAY - 1)).0.is_empty());
    assert!(put(&issuer.settle(&ca, at(NOW + 20 * DAY)).0));
    issuer.requests([(name.clone(), Some(request(&name, &["b.example"])))].into());
    assert!(put(&issuer.settle(&ca, at(NOW + 20 * DAY)).0));
    issuer.requests([(name.clone(), None)].into());
    let (changes, _) = issuer.settle(&ca, at(NOW));
    assert!(matches!(&changes[..], [Change::Remove(key)] if key.name == name));
    assert_eq!(issuer.due(), None);
}

#[test]
fn never_touches_a_secret_of_the_user() {
    let directory = Directory::new("user");
    let ca = LocalCa::open(&directory.0, at(NOW)).unwrap();
    let mut issuer = LocalIssuer::new();
    let name = ObjectName::new("a", "cert");
    issuer.requests([(name.clone(), Some(request(&name, &["a.example"])))].into());
    assert_eq!(issuer.settle(&ca, at(NOW)).0.len(), 1);

    // The user's own replaces it in the translator; nothing is issued, renewed or removed.
    let own = ca.issue(&name, &hosts(&["a.example"]), at(NOW)).unwrap();
    issuer.user_changes(&[Change::Put(Object::Secret(own.secret))]);
    assert!(issuer.settle(&ca, at(NOW + 365 * DAY)).0.is_empty());
    issuer.requests([(name.clone(), None)].into());
    assert!(issuer.settle(&ca, at(NOW)).0.is_empty());

    // Once it is gone, one is issued again.
    issuer.requests([(name.clone(), Some(request(&name, &["a.example"])))].into());
    issuer.user_changes(&[Change::Remove(ObjectKey::secret(name))]);
    assert_eq!(issuer.settle(&ca, at(NOW)).0.len(), 1);
}
