//! Keys and certificates: making them, and reading what is in a Secret.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::rotation::{Id, Issued, RotationPolicy, Seconds, Validity};

/// Longest common name (X.520 `ub-common-name`).
const MAX_COMMON_NAME: usize = 64;
/// Most bytes of a bundle that are read, and most authorities.
const MAX_BUNDLE_BYTES: usize = 1 << 20;
const MAX_BUNDLE: usize = 64;

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// An authority that can sign.
pub(crate) struct Signer {
    pub(crate) trusted: Trusted,
    key: KeyPair,
}

impl Drop for Signer {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// An authority that clients trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trusted {
    pub(crate) id: Id,
    pub(crate) validity: Validity,
    certificate: CertificateDer<'static>,
}

impl Trusted {
    fn read(certificate: CertificateDer<'static>) -> Result<Self, String> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|_| "a certificate does not parse".to_owned())?;
        if !parsed.is_ca() {
            return Err("the certificate is no authority's".into());
        }
        let validity = validity(&parsed);
        Ok(Self {
            id: Sha256::digest(&certificate).into(),
            validity,
            certificate,
        })
    }
}

/// The authorities in a PEM file. What is none is left out.
pub(crate) fn read_bundle(pem: &[u8]) -> Vec<Trusted> {
    let pem = pem.get(..MAX_BUNDLE_BYTES).unwrap_or(pem);
    let certificates = CertificateDer::pem_slice_iter(pem).take(MAX_BUNDLE);
    let mut bundle: Vec<Trusted> = Vec::new();
    for trusted in certificates.filter_map(|der| Trusted::read(der.ok()?).ok()) {
        if bundle.iter().all(|known| known.id != trusted.id) {
            bundle.push(trusted);
        }
    }
    bundle
}

/// A bundle as PEM, the newest authority first.
pub(crate) fn write_bundle<'a>(bundle: impl IntoIterator<Item = &'a Trusted>) -> String {
    let mut bundle: Vec<_> = bundle.into_iter().collect();
    bundle.sort_by_key(|trusted| (std::cmp::Reverse(trusted.validity.from), trusted.id));
    let encode = |trusted: &Trusted| pem::Pem::new("CERTIFICATE", trusted.certificate.to_vec());
    pem::encode_many_config(
        &bundle.into_iter().map(encode).collect::<Vec<_>>(),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

/// Makes an authority, for `whose`.
pub(crate) fn make_authority(
    whose: &str,
    now: Seconds,
    policy: &RotationPolicy,
) -> Result<Pair, rcgen::Error> {
    let mut key = KeyPair::generate()?;
    let mut params = parameters(now, policy, now.saturating_add(policy.authority));
    // Unique, so that a client does not take one authority for another of the same name.
    let print = Sha256::digest(key.subject_public_key_info());
    let print = print
        .iter()
        .take(8)
        .fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
    common_name(&mut params, &format!("{whose} internal CA {print:016x}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(pair(&certificate, &mut key))
}

impl Signer {
    /// Reads an authority's Secret.
    pub(crate) fn read(certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        let trusted = CertificateDer::from_pem_slice(certificate)
            .map_err(|_| "tls.crt holds no certificate".to_owned())
            .and_then(Trusted::read)?;
        let text = std::str::from_utf8(key).map_err(|_| "tls.key is no PEM".to_owned())?;
        let key = KeyPair::from_pem(text).map_err(|_| "tls.key holds no private key".to_owned())?;
        let signer = Self { trusted, key };
        let (_, parsed) = x509_parser::parse_x509_certificate(&signer.trusted.certificate)
            .map_err(|_| "tls.crt does not parse".to_owned())?;
        if *parsed.public_key().raw != *signer.key.subject_public_key_info() {
            return Err("tls.key is not the key of tls.crt".into());
        }
        Ok(signer)
    }

    /// Issues a certificate for `names`. It does not outlive the authority.
    pub(crate) fn issue(
        &self,
        names: &[String],
        now: Seconds,
        policy: &RotationPolicy,
    ) -> Result<Pair, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_der(&self.trusted.certificate, &self.key)?;
        let mut key = KeyPair::generate()?;
        let until = now.saturating_add(policy.leaf);
        let mut params = parameters(now, policy, until.min(self.trusted.validity.until));
        params.subject_alt_names = names
            .iter()
            .map(|name| name.as_str().try_into().map(SanType::DnsName))
            .collect::<Result<_, _>>()?;
        common_name(&mut params, names.first().map_or("", String::as_str));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(pair(&certificate, &mut key))
    }
}

/// Reads a certificate's Secret, and finds out which of `bundle` signed it.
pub(crate) fn read_leaf(
    certificate: &[u8],
    key: &[u8],
    names: &[String],
    bundle: &[Trusted],
) -> Result<Issued, String> {
    let held = certified_key(certificate, key)?;
    let der = held.cert.first().ok_or("tls.crt holds no certificate")?;
    let (_, parsed) = x509_parser::parse_x509_certificate(der)
        .map_err(|_| "tls.crt does not parse".to_owned())?;
    let validity = validity(&parsed);
    let leaf = ParsedCertificate::try_from(der).map_err(|error| error.to_string())?;
    let names_fit = names.iter().all(|name| {
        ServerName::try_from(name.as_str())
            .is_ok_and(|name| verify_server_name(&leaf, &name).is_ok())
    });
    // Whether it is valid now is for the rotation to say.
    let within = u64::try_from(validity.from).unwrap_or(0);
    let within = UnixTime::since_unix_epoch(Duration::from_secs(within));
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let signed = |trusted: &&Trusted| {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.certificate.clone()).is_ok()
            && verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &[], within, algorithms.all)
                .is_ok()
    };
    Ok(Issued {
        issuer: bundle.iter().find(signed).map(|trusted| trusted.id),
        validity,
        names_fit,
    })
}

/// A certificate to serve with.
pub(crate) fn certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .take(MAX_BUNDLE)
        .collect::<Result<_, _>>()
        .map_err(|_| "tls.crt is no PEM of certificates".to_owned())?;
    if chain.is_empty() {
        return Err("tls.crt holds no certificate".into());
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| "tls.key holds no private key".to_owned())?;
    // The errors of rustls do not quote the key.
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
        .map_err(|error| format!("tls.crt and tls.key cannot be used: {error}"))
}

fn validity(parsed: &x509_parser::certificate::X509Certificate<'_>) -> Validity {
    Validity {
        from: parsed.validity().not_before.timestamp(),
        until: parsed.validity().not_after.timestamp(),
    }
}

fn parameters(now: Seconds, policy: &RotationPolicy, until: Seconds) -> CertificateParams {
    // `time`, which the parameters want, has no constructor here but this one.
    let at = |second: Seconds| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(second).unwrap_or(0))
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = at(now.saturating_sub(policy.backdate));
    params.not_after = at(until);
    params
}

fn common_name(params: &mut CertificateParams, name: &str) {
    // Names here are of ASCII letters, so that cutting does not split one.
    let name = name.get(name.len().saturating_sub(MAX_COMMON_NAME)..);
    let name = name.unwrap_or("vestibule");
    params.distinguished_name.push(DnType::CommonName, name);
}

fn pair(certificate: &rcgen::Certificate, key: &mut KeyPair) -> Pair {
    let pair = Pair {
        certificate: certificate.pem(),
        key: Zeroizing::new(key.serialize_pem().into_bytes()),
    };
    key.zeroize();
    pair
}
