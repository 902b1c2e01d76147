//! Owns the answers that the proxies give to challenges.

use aws_lc_rs::digest;
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256,
};
use vestibule_model::challenge::{ChallengeProof, ChallengeType};
use vestibule_model::hostname::Hostname;
use zeroize::{Zeroize, Zeroizing};

use crate::keys::KeyError;

/// The answer to a challenge of this type for a name.
pub(crate) fn answer(
    kind: ChallengeType,
    hostname: &Hostname,
    key_authorization: &str,
) -> Result<ChallengeProof, KeyError> {
    Ok(match kind {
        ChallengeType::Http01 => ChallengeProof::Http01 {
            key_authorization: key_authorization.into(),
        },
        ChallengeType::TlsAlpn01 => tls_alpn(hostname, key_authorization)?,
    })
}

/// Makes a self-signed certificate for exactly this name, with the critical extension
/// id-pe-acmeIdentifier (RFC 8737, 3).
fn tls_alpn(hostname: &Hostname, key_authorization: &str) -> Result<ChallengeProof, KeyError> {
    let mut params = CertificateParams::new(vec![hostname.as_str().to_owned()])
        .map_err(|_| KeyError::Request)?;
    params.distinguished_name = DistinguishedName::new();
    let digest = digest::digest(&digest::SHA256, key_authorization.as_bytes());
    params
        .custom_extensions
        .push(CustomExtension::new_acme_identifier(digest.as_ref()));
    let mut pair =
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|_| KeyError::Generate)?;
    let certificate = params.self_signed(&pair);
    let private_key = Zeroizing::new(pair.serialize_der());
    pair.zeroize();
    Ok(ChallengeProof::TlsAlpn01 {
        certificate: certificate.map_err(|_| KeyError::Request)?.der().to_vec(),
        private_key,
    })
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::*;

    #[test]
    fn carries_the_digest_in_a_critical_extension() {
        let name = Hostname::parse("a.example").expect("a hostname");
        let Ok(ChallengeProof::TlsAlpn01 { certificate, .. }) =
            answer(ChallengeType::TlsAlpn01, &name, "token.thumb")
        else {
            panic!("a certificate");
        };
        let (_, parsed) = X509Certificate::from_der(&certificate).expect("DER");
        let extension = parsed
            .iter_extensions()
            .find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31")
            .expect("the extension");
        assert!(extension.critical);
        let digest = digest::digest(&digest::SHA256, b"token.thumb");
        assert_eq!(&extension.value[..2], [0x04, 32]);
        assert_eq!(&extension.value[2..], digest.as_ref());
        let names = parsed
            .subject_alternative_name()
            .expect("SAN")
            .expect("SAN");
        assert_eq!(names.value.general_names.len(), 1);
    }
}
