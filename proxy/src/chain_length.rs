//! Owns the bound on how many certificates a peer may show. webpki looks for a path from the peer's own certificate to a
//! trust anchor through all others, in every order. With made-up certificates of one name that takes seconds, and
//! nobody needs a key for it, because the proof of the key comes later.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use vestibule_model::certificate::MAX_INTERMEDIATES;

/// The peer showed too many certificates.
#[derive(Debug, thiserror::Error)]
#[error("{0} certificates were shown, and at most {max} are looked at", max = MAX_INTERMEDIATES + 1)]
struct TooMany(usize);

/// Checks how many certificates a peer showed beside its own one.
///
/// # Errors
/// If there are too many.
pub(crate) fn check(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    if intermediates.len() <= MAX_INTERMEDIATES {
        return Ok(());
    }
    let why = OtherError(Arc::new(TooMany(intermediates.len() + 1)));
    Err(Error::InvalidCertificate(CertificateError::Other(why)))
}

/// Refuses clients that show too many certificates, and has another verifier look at the rest.
#[derive(Debug)]
pub(crate) struct ShortChains(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check(intermediates)?;
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    /// A verifier, and a chain with this many intermediates that it trusts.
    fn rig(intermediates: usize) -> (ShortChains, Vec<CertificateDer<'static>>) {
        let named = |name: &str, is_ca: IsCa| {
            let mut params = CertificateParams::new([]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = is_ca;
            params
        };
        let ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let params = named("root", ca);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        let mut issuer = Issuer::new(params, key);
        let mut chain = Vec::new();
        for index in 0..intermediates {
            let params = named(&index.to_string(), ca);
            let key = KeyPair::generate().unwrap();
            chain.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
            issuer = Issuer::new(params, key);
        }
        let key = KeyPair::generate().unwrap();
        let leaf = named("client", IsCa::NoCa).signed_by(&key, &issuer);
        chain.insert(0, leaf.unwrap().der().clone());
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        (ShortChains(verifier.build().unwrap()), chain)
    }

    fn verdict(verifier: &ShortChains, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let (own, others) = chain.split_first().unwrap();
        let result = verifier.verify_client_cert(own, others, UnixTime::now());
        result.map(|_| ())
    }

    #[test]
    fn a_chain_of_six_certificates_is_verified() {
        let (verifier, chain) = rig(MAX_INTERMEDIATES);
        verdict(&verifier, &chain).unwrap();
        let without_one = [&chain[..2], &chain[3..]].concat();
        assert!(verdict(&verifier, &without_one).is_err());
    }

    /// The others are no certificates at all, which shows that nothing looks at them.
    #[test]
    fn more_certificates_are_refused_before_anything_is_looked_at() {
        let (verifier, mut chain) = rig(1);
        verdict(&verifier, &chain).unwrap();
        chain.resize(MAX_INTERMEDIATES + 2, CertificateDer::from(vec![0]));
        let error = verdict(&verifier, &chain).unwrap_err().to_string();
        assert!(error.contains("TooMany(7)"), "{error}");
    }
}
