//! Owns the private keys of certificates. A key is checked when it arrives, and parsed again for the first handshake that
//! needs it. Its encoding takes a fraction of the memory of the parsed key, and most certificates are not in use.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};
use zeroize::Zeroizing;

use super::reject::RejectReason;

/// Reads a private key without a copy of its encoding.
pub(super) fn signing_key(der: &[u8]) -> Result<Arc<dyn SigningKey>, RejectReason> {
    let key = PrivateKeyDer::try_from(der).map_err(|_| RejectReason::InvalidKey)?;
    any_supported_type(&key).map_err(|_| RejectReason::InvalidKey)
}

/// A private key that is known to be good.
pub(super) struct LazyKey {
    der: Zeroizing<Box<[u8]>>,
    algorithm: SignatureAlgorithm,
    /// It is in a box, because most keys are not parsed.
    parsed: OnceLock<Box<Arc<dyn SigningKey>>>,
}

impl LazyKey {
    /// The key that [`signing_key`] has read from `der`.
    pub(super) fn new(der: &[u8], algorithm: SignatureAlgorithm) -> Self {
        Self {
            der: Zeroizing::new(der.into()),
            algorithm,
            parsed: OnceLock::new(),
        }
    }

    fn parsed(&self) -> Option<&dyn SigningKey> {
        if let Some(parsed) = self.parsed.get() {
            return Some(&***parsed);
        }
        // It could be read before, so this succeeds.
        let parsed = signing_key(&self.der).ok()?;
        Some(&***self.parsed.get_or_init(|| Box::new(parsed)))
    }
}

impl fmt::Debug for LazyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LazyKey")
    }
}

impl SigningKey for LazyKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.parsed()?.choose_scheme(offered)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.parsed()?.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_parsed_when_it_is_first_used() {
        let made = rcgen::KeyPair::generate().unwrap();
        let der = made.serialize_der();
        let parsed = signing_key(&der).unwrap();
        let lazy = LazyKey::new(&der, parsed.algorithm());
        assert!(lazy.parsed.get().is_none());
        assert_eq!(lazy.algorithm(), SignatureAlgorithm::ECDSA);
        assert!(lazy.choose_scheme(&[SignatureScheme::ED25519]).is_none());
        let scheme = SignatureScheme::ECDSA_NISTP256_SHA256;
        let signer = lazy.choose_scheme(&[scheme]).unwrap();
        assert_eq!(signer.scheme(), scheme);
        assert_eq!(lazy.public_key(), parsed.public_key());
        assert!(lazy.parsed.get().is_some());
    }
}
