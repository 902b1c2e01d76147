//! Owns what listeners that terminate TLS need from rustls: certificates that are checked when they arrive, a small
//! `ServerConfig` for each listener, and session tickets that are bound to their listener.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::compress::CompressionCache;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{ConfigBuilder, KeyLog, NoKeyLog, ServerConfig, WantsVerifier};
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use vestibule_model::certificate::MAX_CHAIN_BYTES;
use vestibule_stream::proto;
use x509_parser::prelude::{FromDer, GeneralName, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey;

use super::clients::ClientAuth;
use super::private_key::{LazyKey, signing_key};
use super::reject::RejectReason;
use super::resolver::resolver;
use crate::expiry::now;
use crate::validation::{ClientValidation, ProvenChain};

/// Largest number of bytes of a session that go into a ticket. A session contains the whole chain that the client showed,
/// and the client shows its tickets in its ClientHello. With three tickets of this size, and with the keys of a client that
/// prefers post-quantum cryptography, a ClientHello is below the default of `--hello-bytes`. Without certificates, a session
/// has less than 500 bytes.
const MAX_SESSION: usize = 4 * 1024;

/// A certificate with its key, checked.
pub(super) struct HeldCertificate {
    certified: Arc<CertifiedKey>,
    /// UID of the Secret that it was made of.
    secret_uid: Arc<str>,
    /// Seconds since the Unix epoch.
    pub(super) not_after: i64,
    /// Cost of a handshake with it, in units of a handshake with an ECDSA key on P-256.
    pub(super) units: u8,
}

/// The facts about a certificate that the admin endpoint shows.
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
    /// The form in which rustls uses it in a handshake.
    pub(super) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// Reads and checks chain and key. The beginning of its validity is not checked here: translation does that,
    /// reports it in a status, and sends the certificate again when it is valid.
    pub(super) fn parse(name: &str, wire: &proto::Certificate) -> Result<Self, RejectReason> {
        super::resource_names::certificate_name(name)?;
        let (mut not_after, mut units, mut bytes) = (None, 1, 0);
        let mut chain = Vec::with_capacity(wire.chain.len());
        for (index, der) in wire.chain.iter().enumerate() {
            bytes += der.len();
            if bytes > MAX_CHAIN_BYTES {
                let why = format!("with it, the chain has more than {MAX_CHAIN_BYTES} bytes");
                return Err(RejectReason::InvalidCertificate(index, why));
            }
            let parsed = read_certificate(index, der)?;
            if index == 0 {
                not_after = Some(parsed.validity().not_after.timestamp());
                units = handshake_units(parsed.public_key());
            }
            chain.push(CertificateDer::from(der.to_vec()));
        }
        let not_after = not_after.ok_or(RejectReason::MissingField("chain"))?;
        Ok(Self {
            certified: certify(chain, &wire.private_key)?,
            secret_uid: wire.secret_uid.as_str().into(),
            not_after,
            units,
        })
    }

    /// The UID of the Secret that it was made of. It is empty if it is not known.
    pub(super) fn secret_uid(&self) -> &Arc<str> {
        &self.secret_uid
    }

    /// Whether this was made of the same Secret as `wire`. A Secret that was deleted and made again is another one, even
    /// if it has the same name, because another team may have the namespace now.
    pub(super) fn is_of_secret_of(&self, wire: &proto::Certificate) -> bool {
        *self.secret_uid == *wire.secret_uid
    }

    /// Why this must not replace `old`, if so: it has expired at `now`, and `old` has not.
    pub(super) fn is_worse_than(&self, old: &Self, now: i64) -> Option<RejectReason> {
        let expired = |of: &Self| of.not_after < now;
        (expired(self) && !expired(old)).then(|| {
            let until = self.info().map(|info| info.not_after_text);
            RejectReason::Expired(until.unwrap_or_default())
        })
    }

    /// Reads the leaf again for the dump. Dumps are rare, while memory for each certificate is always needed.
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

/// Cost of a handshake with a key, in units of one with an ECDSA key on P-256, rounded. It includes the signature and
/// everything else, and was measured with aws-lc. A key of 8192 bits costs six times as much as one of 4096.
fn handshake_units(key: &SubjectPublicKeyInfo<'_>) -> u8 {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => match rsa.key_size() {
            ..=2048 => 4,
            2049..=3072 => 8,
            3073..=4096 => 16,
            _ => 96,
        },
        Ok(PublicKey::EC(point)) if point.key_size() > 256 => 2,
        _ => 1,
    }
}

/// Reads certificate `index` of a chain, whole.
pub(super) fn read_certificate(
    index: usize,
    der: &[u8],
) -> Result<X509Certificate<'_>, RejectReason> {
    let invalid = |why: String| RejectReason::InvalidCertificate(index, why);
    let (rest, parsed) = X509Certificate::from_der(der).map_err(|e| invalid(e.to_string()))?;
    if rest.is_empty() {
        Ok(parsed)
    } else {
        Err(invalid(format!("{} bytes too many", rest.len())))
    }
}

/// A chain with the key that fits it.
fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
) -> Result<Arc<CertifiedKey>, RejectReason> {
    let certified = CertifiedKey::new(chain, signing_key(key)?);
    match certified.keys_match() {
        // `Unknown` means that the key cannot give its public half. Then a mismatch shows in the handshake.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            let key = LazyKey::new(key, certified.key.algorithm());
            Ok(Arc::new(CertifiedKey::new(certified.cert, Arc::new(key))))
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(RejectReason::KeyMismatch),
        Err(error) => Err(RejectReason::InvalidCertificate(0, error.to_string())),
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
    provider: Arc<CryptoProvider>,
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
    sessions: Arc<NoServerSessionStorage>,
    tickets: Arc<SharedTickets>,
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
        let keys = aws_lc_rs::Ticketer::new()?;
        let tickets = SharedTickets {
            begun: Instant::now(),
            lifetime: Duration::from_secs(keys.lifetime().into()),
            keys,
        };
        Ok(Self {
            builder: ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?,
            provider,
            sessions: Arc::new(NoServerSessionStorage {}),
            tickets: Arc::new(tickets),
            key_log: Arc::new(NoKeyLog),
            time: Arc::new(DefaultTimeProvider),
            no_compression: Arc::new(CompressionCache::Disabled),
            next_ticket_id: AtomicU64::new(0),
        })
    }

    /// A new ticketer for one listener with this client validation. Keep the ticketer when a certificate of the listener
    /// is renewed. Replace it when the certificate comes from another Secret, and when the client validation changes.
    pub(super) fn ticketer(
        &self,
        validation: Option<Arc<ClientValidation>>,
    ) -> Arc<ListenerTicketer> {
        Arc::new(ListenerTicketer {
            shared: Arc::clone(&self.tickets),
            validation,
            id: self
                .next_ticket_id
                .fetch_add(1, Ordering::Relaxed)
                .to_be_bytes(),
        })
    }

    /// Client validation; `None` if there is no trust anchor to validate by.
    pub(super) fn validation(&self, clients: &ClientAuth) -> Option<ClientValidation> {
        clients.verifier(&self.provider).map(ClientValidation::new)
    }

    /// A configuration that shows the one of `certificates` that fits (they are in order of preference), and that
    /// selects a protocol from `alpn`. If `alpn` is empty, it ignores ALPN. There is no early data and no session
    /// cache: sessions are resumed by stateless tickets only.
    pub(super) fn build(
        &self,
        certificates: &[&HeldCertificate],
        ticketer: &Arc<ListenerTicketer>,
        alpn: &[&[u8]],
        clients: Option<&ClientValidation>,
    ) -> Arc<ServerConfig> {
        let expiring = certificates.iter();
        let expiring = expiring.map(|held| (Arc::clone(&held.certified), held.not_after));
        let resolver = resolver(expiring.collect());
        let builder = self.builder.clone();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients.verifier())),
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.ticketer = Arc::<ListenerTicketer>::clone(ticketer);
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        crate::terminate::prepare(&mut config);
        self.share(&mut config);
        Arc::new(config)
    }

    /// A configuration that answers a CA with `certificate`. It has no settings of any listener, and gives out no
    /// tickets, because no session is resumed.
    pub(super) fn challenge(&self, certificate: Arc<CertifiedKey>) -> Arc<ServerConfig> {
        let builder = self.builder.clone().with_no_client_auth();
        let mut config = builder.with_cert_resolver(resolver(vec![(certificate, i64::MAX)]));
        config.alpn_protocols = vec![crate::challenge::ACME_TLS.to_vec()];
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        self.share(&mut config);
        Arc::new(config)
    }

    /// Sets what all configurations share.
    fn share(&self, config: &mut ServerConfig) {
        config.session_storage = Arc::<NoServerSessionStorage>::clone(&self.sessions);
        config.key_log = Arc::clone(&self.key_log);
        config.time_provider = Arc::clone(&self.time);
        config.cert_compression_cache = Arc::clone(&self.no_compression);
    }
}

/// Keys and lifetime that the tickets of many listeners share.
struct SharedTickets {
    keys: Arc<dyn ProducesTickets>,
    begun: Instant,
    lifetime: Duration,
}

/// Session tickets of one listener. All listeners share the rotating keys of the process. A ticket contains, encrypted
/// and authenticated, which listener issued it and when, and another listener does not accept it. So a ticketer needs
/// only a few bytes and no keys of its own, and each of 10,000 listeners can have one.
///
/// A resumed session has a new ticket, so a client can resume for ever. Where clients are validated, a ticket is not accepted
/// after a certificate of its client has expired. Then the handshake is a full one, in which the client can show a new
/// certificate. This only spares such a client a refusal: whoever resumed a session has to pass the validation once more,
/// [after the handshake](crate::validation::after_handshake).
pub(super) struct ListenerTicketer {
    shared: Arc<SharedTickets>,
    validation: Option<Arc<ClientValidation>>,
    id: [u8; 8],
}

impl ListenerTicketer {
    /// Encrypts a ticket that is issued `time` after the keys were made. If the session is too large, there is no ticket,
    /// and the client's next handshake is a full one.
    fn encrypt_at(&self, time: Duration, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > MAX_SESSION {
            return None;
        }
        let bound = [&self.id, &time.as_secs().to_be_bytes()[..], plain].concat();
        self.shared.keys.encrypt(&zeroize::Zeroizing::new(bound))
    }

    fn decrypt_at(&self, time: Duration, cipher: &[u8]) -> Option<Vec<u8>> {
        let mut bound = self.shared.keys.decrypt(cipher)?;
        let (id, rest) = bound.split_first_chunk::<8>()?;
        let (issued, plain) = rest.split_first_chunk::<8>()?;
        let age = time.as_secs().checked_sub(u64::from_be_bytes(*issued))?;
        if *id != self.id || age > self.shared.lifetime.as_secs() {
            return None;
        }
        let head = bound.len() - plain.len();
        bound.drain(..head);
        self.is_current(&bound).then_some(bound)
    }

    /// Whether the certificates that the client of this session showed are all still valid, as far as they count.
    fn is_current(&self, session: &[u8]) -> bool {
        let Some(validation) = &self.validation else {
            return true;
        };
        shown_in(session)
            .map(|shown| ProvenChain::of(Some(validation), shown))
            .is_some_and(|chain| !chain.has_expired(now()))
    }
}

/// The certificates of the client in a session as rustls writes it; `None` if it cannot be read. rustls has no function
/// for this. If another version writes sessions differently, none with certificates is resumed, and a test says so.
fn shown_in(mut session: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let rest = &mut session;
    // The server name, if there is one.
    if next(rest, 1)? == [1] {
        next_of_length(rest, 1)?;
    }
    // Version and cipher suite, the secret, and whether it is an extended one.
    next(rest, 4)?;
    next_of_length(rest, 1)?;
    next(rest, 1)?;
    let mut shown = Vec::new();
    if next(rest, 1)? == [1] {
        let mut certificates = next_of_length(rest, 3)?;
        while !certificates.is_empty() {
            let der = next_of_length(&mut certificates, 3)?;
            shown.push(CertificateDer::from(der.to_vec()));
        }
    }
    Some(shown)
}

/// Takes so many bytes.
fn next<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// Takes as many bytes as a number says that has `width` bytes itself.
fn next_of_length<'a>(rest: &mut &'a [u8], width: usize) -> Option<&'a [u8]> {
    let number = next(rest, width)?.iter();
    let count = number.fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte));
    next(rest, count)
}

impl fmt::Debug for ListenerTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerTicketer")
    }
}

impl ProducesTickets for ListenerTicketer {
    fn enabled(&self) -> bool {
        self.shared.keys.enabled()
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.shared.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.encrypt_at(self.shared.begun.elapsed(), plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.decrypt_at(self.shared.begun.elapsed(), cipher)
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
            secret_uid: String::new(),
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

    /// The public half of an RSA key that is made up.
    fn rsa(bits: usize) -> Vec<u8> {
        let element = |tag: u8, content: &[u8]| {
            let length = if let [_, _, _] = content {
                vec![3_u8]
            } else {
                let length = u16::try_from(content.len()).unwrap();
                [&[0x82_u8][..], &length.to_be_bytes()[..]].concat()
            };
            [&[tag][..], &length[..], content].concat()
        };
        let modulus = [vec![0_u8], vec![0xff; bits / 8]].concat();
        let numbers = [element(2, &modulus), element(2, &[1, 0, 1])].concat();
        let key = element(0x30, &numbers);
        // rsaEncryption, with parameters NULL.
        let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
        let string = element(3, &[&[0_u8][..], &key[..]].concat());
        element(0x30, &[&algorithm[..], &string[..]].concat())
    }

    #[test]
    fn a_handshake_costs_what_its_key_costs() {
        for (bits, units) in [
            (2048, 4),
            (2056, 8),
            (3072, 8),
            (3080, 16),
            (4096, 16),
            (4104, 96),
            (8192, 96),
        ] {
            let der = rsa(bits);
            let (_, key) = SubjectPublicKeyInfo::from_der(&der).unwrap();
            assert_eq!(handshake_units(&key), units, "{bits}");
        }
        let (ecdsa, _) = generate("a.example.com");
        let parsed = read_certificate(0, &ecdsa).unwrap();
        assert_eq!(handshake_units(parsed.public_key()), 1);
    }

    #[test]
    fn a_ticket_is_taken_only_by_the_listener_that_issued_it() {
        let factory = ConfigFactory::new().unwrap();
        let (a, b) = (factory.ticketer(None), factory.ticketer(None));
        let ticket = a.encrypt(b"session").unwrap();
        assert_eq!(a.decrypt(&ticket).unwrap(), b"session");
        assert_eq!(b.decrypt(&ticket), None);
        assert_eq!(a.decrypt(b"garbage"), None);
        assert_eq!(a.decrypt(&a.shared.keys.encrypt(b"x").unwrap()), None);
        assert_eq!(a.decrypt(&a.shared.keys.encrypt(&a.id).unwrap()), None);
    }

    #[test]
    fn a_ticket_is_never_too_long_for_a_hello() {
        let tickets = ConfigFactory::new().unwrap().ticketer(None);
        let session = [7_u8; MAX_SESSION];
        let ticket = tickets.encrypt(&session).unwrap();
        let hello_bytes = crate::limits::ProxyLimits::default().hello_bytes;
        assert!(3 * (ticket.len() + 64) < hello_bytes - 3 * 1024);
        assert_eq!(tickets.decrypt(&ticket).unwrap(), session);
        assert_eq!(tickets.encrypt(&[7; MAX_SESSION + 1]), None);
    }

    #[test]
    fn a_ticket_is_good_for_its_lifetime() {
        let factory = ConfigFactory::new().unwrap();
        let seconds = Duration::from_secs;
        let lifetime = factory.tickets.lifetime;
        let tickets = factory.ticketer(None);
        let ticket = tickets.encrypt_at(seconds(7), b"session").unwrap();
        let at = |time| tickets.decrypt_at(time, &ticket).is_some();
        assert!(at(seconds(7)) && at(seconds(7) + lifetime));
        assert!(!at(seconds(8) + lifetime));
        assert!(!at(seconds(6)), "from the future");
        assert_eq!(u64::from(tickets.lifetime()), lifetime.as_secs());
    }

    #[test]
    fn the_certificates_in_a_session_are_found() {
        let der = |bytes: &[u8]| CertificateDer::from(bytes.to_vec());
        let name = [&[1, 3][..], b"a.b"].concat();
        let fixed = [3_u8, 4, 0x13, 1, 2, 0xaa, 0xbb, 1];
        let chain = [1_u8, 0, 0, 9, 0, 0, 2, 5, 6, 0, 0, 1, 7];
        for name in [&name[..], &[0]] {
            let session = [name, &fixed, &chain, &[0; 15]].concat();
            let shown = shown_in(&session).unwrap();
            assert_eq!(shown, [der(&[5, 6]), der(&[7])]);
            let without = [name, &fixed, &[0; 16]].concat();
            assert_eq!(shown_in(&without), Some(Vec::new()));
            let cut = name.len() + fixed.len() + chain.len() - 1;
            assert_eq!(shown_in(&session[..cut]), None);
        }
    }
}
