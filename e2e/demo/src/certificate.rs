//! Certificates of the demo: made for a backend, and shown as a client saw them.

use std::fmt;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// A certificate from a CA that was made with it.
pub(crate) struct Made {
    pub(crate) ca_pem: String,
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
    pub(crate) certificate: CertificateDer<'static>,
}

impl Made {
    pub(crate) fn new(host: &str, ca_name: &str) -> anyhow::Result<Self> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name.push(DnType::CommonName, ca_name);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_certificate = ca.self_signed(&ca_key)?;
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(vec![host.to_owned()])?;
        leaf.distinguished_name.push(DnType::CommonName, host);
        leaf.use_authority_key_identifier_extension = true;
        let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?;
        Ok(Self {
            ca_pem: ca_certificate.pem(),
            chain_pem: leaf.pem(),
            key_pem: key.serialize_pem(),
            certificate: leaf.der().clone(),
        })
    }

    pub(crate) fn key(&self) -> anyhow::Result<PrivateKeyDer<'static>> {
        Ok(PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())?)
    }

    /// As a manifest.
    pub(crate) fn secret(&self, name: &str) -> anyhow::Result<String> {
        let (namespace, name) = name.split_once('/').context("write it as namespace/name")?;
        let indent = |pem: &str| pem.trim_end().replace("\r\n", "\n").replace('\n', "\n    ");
        Ok(format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  namespace: {namespace}\n  name: {name}\n\
             type: kubernetes.io/tls\nstringData:\n  tls.crt: |\n    {}\n  tls.key: |\n    {}\n",
            indent(&self.chain_pem),
            indent(&self.key_pem)
        ))
    }
}

/// A certificate as seen by a client.
pub(crate) struct Seen {
    subject: String,
    issuer: String,
    pub(crate) fingerprint: String,
}

impl Seen {
    pub(crate) fn of_pem(pem: &[u8]) -> anyhow::Result<Self> {
        Self::of(&CertificateDer::from_pem_slice(pem).context("no certificate on the input")?)
    }

    pub(crate) fn of(der: &CertificateDer<'_>) -> anyhow::Result<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der)?;
        let fingerprint: Vec<String> = Sha256::digest(der)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        Ok(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            fingerprint: fingerprint.join(":"),
        })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "subject {}\nissuer {}\nsha256 {}",
            self.subject, self.issuer, self.fingerprint
        )
    }
}
