//! Owns reading a chain in PEM: its validity, its names, and how the CA identifies the certificate.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vestibule_model::hostname::Hostname;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::keys::PrivateKey;

/// Largest number of certificates in a chain. Translation has the same limit.
const MAX_CHAIN: usize = 16;

/// The facts that the first certificate of a chain states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaf {
    /// Start of its validity, in seconds since 1970.
    pub not_before: i64,
    /// End of its validity, in seconds since 1970.
    pub not_after: i64,
    /// Its names except wildcards.
    pub hostnames: BTreeSet<Hostname>,
    /// Its serial number in DER, as the certificate has it.
    pub serial: Vec<u8>,
    /// Identifier of the key that signed it, if the certificate has one.
    pub authority_key: Option<Vec<u8>>,
}

impl Leaf {
    /// Reads a chain. Returns `None` if it is not a chain, or if the key does not belong to it.
    #[must_use]
    pub fn read(chain: &[u8], key: &PrivateKey) -> Option<Self> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .take(MAX_CHAIN + 1)
            .collect::<Result<_, _>>()
            .ok()?;
        if chain.len() > MAX_CHAIN {
            return None;
        }
        let leaf = Self::parse(chain.first()?)?;
        let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.expose()).ok()?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        // This fails if key and certificate do not belong together.
        rustls::sign::CertifiedKey::from_der(chain, key, &provider)
            .is_ok()
            .then_some(leaf)
    }

    fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let hostnames = certificate
            .subject_alternative_name()
            .ok()
            .flatten()
            .into_iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Hostname::parse(name).ok(),
                _ => None,
            })
            .collect();
        let authority_key = certificate.iter_extensions().find_map(|extension| {
            match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(found) => {
                    found.key_identifier.as_ref().map(|id| id.0.to_vec())
                }
                _ => None,
            }
        });
        Some(Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            hostnames,
            serial: certificate.raw_serial().to_vec(),
            authority_key,
        })
    }

    /// How long it is valid, in seconds.
    #[must_use]
    pub fn lifetime(&self) -> i64 {
        self.not_after.saturating_sub(self.not_before).max(0)
    }
}
