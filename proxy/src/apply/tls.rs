//! Owns what terminating listeners need from rustls: certificates that are checked when they come,
//! one small `ServerConfig` per listener, and session tickets that are bound to their listener.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::compress::CompressionCache;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, sign::any_supported_type};
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{ConfigBuilder, KeyLog, NoKeyLog, ServerConfig, WantsVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use vestibule_stream::proto;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::parse::RejectReason;

/// A certificate with its key, checked.
pub(super) struct HeldCertificate {
    certified: Arc<CertifiedKey>,
    /// Seconds since the Unix epoch.
    pub(super) not_after: i64,
}

/// What the admin endpoint shows of a certificate.
#[derive(Debug, Clone, serde::Serialize)]
pub struct CertificateInfo {
    /// Subject alternative names: DNS names and IP addresses.
    pub names: Vec<String>,
    /// Seconds since the Unix epoch.
    pub not_after: i64,
    /// The same, for people.
    pub not_after_text: String,
    /// SHA-256 of the leaf, in hexadecimal.
    pub sha256: String,
    /// Issuer's distinguished name.
    pub issuer: String,
}

impl HeldCertificate {
    /// Checks chain and key. The key is read where it lies: no copy of its encoding is made.
    pub(super) fn parse(name: &str, wire: &proto::Certificate) -> Result<Self, RejectReason> {
        super::parse::certificate_name(name)?;
        let mut not_after = None;
        let mut chain = Vec::with_capacity(wire.chain.len());
        for (index, der) in wire.chain.iter().enumerate() {
            let invalid = |why: String| RejectReason::InvalidCertificate(index, why);
            let (rest, parsed) =
                X509Certificate::from_der(der).map_err(|e| invalid(e.to_string()))?;
            if !rest.is_empty() {
                return Err(invalid(format!("{} bytes too many", rest.len())));
            }
            if index == 0 {
                not_after = Some(parsed.validity().not_after.timestamp());
            }
            chain.push(CertificateDer::from(der.to_vec()));
        }
        let not_after = not_after.ok_or(RejectReason::MissingField("chain"))?;
        let key =
            PrivateKeyDer::try_from(&*wire.private_key).map_err(|_| RejectReason::InvalidKey)?;
        let key = any_supported_type(&key).map_err(|_| RejectReason::InvalidKey)?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // Unknown: the key cannot tell its public half; then the handshake will.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(RejectReason::KeyMismatch),
            Err(error) => return Err(RejectReason::InvalidCertificate(0, error.to_string())),
        }
        Ok(Self {
            certified: Arc::new(certified),
            not_after,
        })
    }

    /// Reads the leaf again: the dump is rare, and memory per certificate is not.
    pub(super) fn info(&self) -> Option<CertificateInfo> {
        let leaf = self.certified.cert.first()?;
        let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
        let mut names = Vec::new();
        if let Ok(Some(extension)) = parsed.subject_alternative_name() {
            for name in &extension.value.general_names {
                match name {
                    GeneralName::DNSName(name) => names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => names.push(ip_text(bytes)),
                    _ => {}
                }
            }
        }
        Some(CertificateInfo {
            names,
            not_after: self.not_after,
            not_after_text: parsed.validity().not_after.to_string(),
            sha256: hex(&Sha256::digest(leaf)),
            issuer: parsed.issuer().to_string(),
        })
    }
}

fn ip_text(bytes: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        std::net::Ipv4Addr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        std::net::Ipv6Addr::from(v6).to_string()
    } else {
        "malformed IP address".to_owned()
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Makes server configurations that share everything but certificate and ticket identity.
pub(super) struct ConfigFactory {
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
    sessions: Arc<NoServerSessionStorage>,
    tickets: Arc<dyn ProducesTickets>,
    key_log: Arc<dyn KeyLog>,
    time: Arc<dyn TimeProvider>,
    no_compression: Arc<CompressionCache>,
    next_ticket_id: AtomicU64,
}

impl fmt::Debug for ConfigFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigFactory")
    }
}

impl ConfigFactory {
    /// The one provider (aws-lc-rs), TLS 1.2 and 1.3.
    pub(super) fn new() -> Result<Self, rustls::Error> {
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        Ok(Self {
            builder: ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?,
            sessions: Arc::new(NoServerSessionStorage {}),
            tickets: aws_lc_rs::Ticketer::new()?,
            key_log: Arc::new(NoKeyLog),
            time: Arc::new(DefaultTimeProvider),
            no_compression: Arc::new(CompressionCache::Disabled),
            next_ticket_id: AtomicU64::new(0),
        })
    }

    /// The ticketer of one listener, to be kept over changes of its certificates.
    pub(super) fn ticketer(&self) -> Arc<ListenerTicketer> {
        Arc::new(ListenerTicketer {
            shared: Arc::clone(&self.tickets),
            id: self
                .next_ticket_id
                .fetch_add(1, Ordering::Relaxed)
                .to_be_bytes(),
        })
    }

    /// A configuration that answers with `certificate` and takes one of `alpn`; of none, it leaves the
    /// matter aside. No early data, no session cache: resumption is by stateless tickets alone.
    pub(super) fn build(
        &self,
        certificate: &HeldCertificate,
        ticketer: &Arc<ListenerTicketer>,
        alpn: &[&[u8]],
    ) -> Arc<ServerConfig> {
        let resolver = Arc::new(OneCertificate(Arc::clone(&certificate.certified)));
        let mut config = self
            .builder
            .clone()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.ticketer = Arc::<ListenerTicketer>::clone(ticketer);
        config.session_storage = Arc::<NoServerSessionStorage>::clone(&self.sessions);
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        crate::terminate::prepare(&mut config);
        config.key_log = Arc::clone(&self.key_log);
        config.time_provider = Arc::clone(&self.time);
        config.cert_compression_cache = Arc::clone(&self.no_compression);
        Arc::new(config)
    }
}

/// Session tickets of one listener. All listeners share the process's rotating keys, and a ticket
/// carries, encrypted and authenticated, which listener issued it; another listener does not take it.
/// So a ticketer costs bytes, not key schedules, and 10,000 listeners can have one each.
pub(super) struct ListenerTicketer {
    shared: Arc<dyn ProducesTickets>,
    id: [u8; 8],
}

impl fmt::Debug for ListenerTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerTicketer")
    }
}

impl ProducesTickets for ListenerTicketer {
    fn enabled(&self) -> bool {
        self.shared.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.shared.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let bound = zeroize::Zeroizing::new([&self.id, plain].concat());
        self.shared.encrypt(&bound)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let mut bound = self.shared.decrypt(cipher)?;
        if !bound.starts_with(&self.id) {
            return None;
        }
        bound.drain(..self.id.len());
        Some(bound)
    }
}

/// Always the same certificate: the listener was chosen by the server name already.
struct OneCertificate(Arc<CertifiedKey>);

impl fmt::Debug for OneCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneCertificate")
    }
}

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate(name: &str) -> (Vec<u8>, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.der().to_vec(), made.signing_key.serialize_der())
    }

    fn reason(wire: &proto::Certificate) -> &'static str {
        match HeldCertificate::parse("team-a/web", wire) {
            Ok(_) => "",
            Err(error) => error.reason(),
        }
    }

    #[test]
    fn certificates_are_checked_against_their_keys() {
        let (cert, key) = generate("a.example.com");
        let (_, other) = generate("b.example.com");
        let wire = |chain: &[&[u8]], key: &[u8]| proto::Certificate {
            chain: chain.iter().map(|der| der.to_vec().into()).collect(),
            private_key: key.to_vec(),
        };
        assert_eq!(reason(&wire(&[&cert], &key)), "");
        assert_eq!(reason(&wire(&[&cert], &other)), "KeyMismatch");
        assert_eq!(reason(&wire(&[&cert], b"")), "InvalidKey");
        assert_eq!(reason(&wire(&[&cert], b"-----BEGIN")), "InvalidKey");
        assert_eq!(reason(&wire(&[&cert], &key[..key.len() - 9])), "InvalidKey");
        assert_eq!(reason(&wire(&[], &key)), "MissingField");
        assert_eq!(reason(&wire(&[b"x"], &key)), "InvalidCertificate");
        assert_eq!(reason(&wire(&[&cert, b""], &key)), "InvalidCertificate");
        let mut longer = cert.clone();
        longer.push(0);
        assert_eq!(reason(&wire(&[&longer], &key)), "InvalidCertificate");

        let held = HeldCertificate::parse("team-a/web", &wire(&[&cert], &key)).unwrap();
        let info = held.info().unwrap();
        assert_eq!(info.names, ["a.example.com"]);
        assert_eq!(info.sha256.len(), 64);
    }

    #[test]
    fn a_ticket_is_taken_only_by_the_listener_that_issued_it() {
        let factory = ConfigFactory::new().unwrap();
        let (a, b) = (factory.ticketer(), factory.ticketer());
        let ticket = a.encrypt(b"session").unwrap();
        assert_eq!(a.decrypt(&ticket).unwrap(), b"session");
        assert_eq!(b.decrypt(&ticket), None);
        assert_eq!(a.decrypt(b"garbage"), None);
        assert_eq!(a.decrypt(&a.shared.encrypt(b"x").unwrap()), None);
    }
}
