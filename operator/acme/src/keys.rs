//! Owns private keys of certificates and accounts. They are wiped when dropped, and never shown.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::CertificateSigningRequestDer;
use vestibule_model::hostname::Hostname;
use zeroize::{Zeroize, Zeroizing};

/// A private key in PEM (PKCS#8), or nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PrivateKey(Zeroizing<Vec<u8>>);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() {
            "PrivateKey(none)"
        } else {
            "PrivateKey(..)"
        })
    }
}

impl From<Zeroizing<Vec<u8>>> for PrivateKey {
    fn from(pem: Zeroizing<Vec<u8>>) -> Self {
        Self(pem)
    }
}

impl PrivateKey {
    /// A new ECDSA key on P-256.
    pub(crate) fn generate() -> Result<Self, KeyError> {
        let mut pair =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|_| KeyError::Generate)?;
        let pem = Zeroizing::new(pair.serialize_pem().into_bytes());
        pair.zeroize();
        Ok(Self(pem))
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The PEM text, for storing it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    fn pair(&self) -> Result<KeyPair, KeyError> {
        let text = std::str::from_utf8(&self.0).map_err(|_| KeyError::Unusable)?;
        KeyPair::from_pem(text).map_err(|_| KeyError::Unusable)
    }

    /// The key in DER (PKCS#8).
    pub(crate) fn der(&self) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let mut pair = self.pair()?;
        let der = Zeroizing::new(pair.serialize_der());
        pair.zeroize();
        Ok(der)
    }

    /// Converts a key from DER (PKCS#8) to PEM.
    pub(crate) fn from_der(der: &[u8]) -> Self {
        // The buffer has room for all of it, so that growing leaves no copy behind.
        let encoded = Zeroizing::new(BASE64_STANDARD.encode(der).into_bytes());
        let mut pem = Zeroizing::new(Vec::with_capacity(encoded.len() + encoded.len() / 64 + 64));
        pem.extend_from_slice(b"-----BEGIN PRIVATE KEY-----\n");
        for line in encoded.chunks(64) {
            pem.extend_from_slice(line);
            pem.push(b'\n');
        }
        pem.extend_from_slice(b"-----END PRIVATE KEY-----\n");
        Self(pem)
    }

    /// Makes a request for a certificate with these names. It has no subject, because profiles
    /// without a common name refuse one, and nothing reads it.
    pub(crate) fn request<'a>(
        &self,
        hostnames: impl Iterator<Item = &'a Hostname>,
    ) -> Result<CertificateSigningRequestDer<'static>, KeyError> {
        let names: Vec<String> = hostnames.map(|name| name.as_str().to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(|_| KeyError::Request)?;
        params.distinguished_name = DistinguishedName::new();
        let mut pair = self.pair()?;
        let request = params.serialize_request(&pair);
        pair.zeroize();
        Ok(request.map_err(|_| KeyError::Request)?.der().clone())
    }
}

/// Why a key cannot be used. It says nothing about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    /// No key could be made.
    #[error("no private key could be generated")]
    Generate,
    /// The stored text is not a private key in PEM that can be used here.
    #[error("what is stored is not a private key in PEM that can be used here")]
    Unusable,
    /// The request for the certificate could not be made.
    #[error("the certificate signing request could not be made")]
    Request,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_show_itself() {
        let key = PrivateKey::generate().expect("a key");
        assert_eq!(format!("{key:?}"), "PrivateKey(..)");
        assert_eq!(format!("{:?}", PrivateKey::default()), "PrivateKey(none)");
        let again = PrivateKey::from_der(&key.der().expect("DER"));
        assert_eq!(
            again.der().expect("DER").as_slice(),
            key.der().expect("DER").as_slice()
        );
    }
}
