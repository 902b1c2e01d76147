//! Owns the bound on the signatures that are verified of a chain that a peer shows. webpki looks for a path from the
//! peer's own certificate to a trust anchor through all others, in every order. With made-up certificates of one name that
//! takes seconds, and nobody needs a key for it, because the proof of the key comes later.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use vestibule_model::certificate::chain::{self, OrderedChain};

/// The certificates that a peer showed and that lead on from its own one, [in order](chain::in_order).
///
/// # Errors
/// If the peer showed too many certificates, several of one name, or costly keys.
pub(crate) fn in_order<'a>(
    own: &'a CertificateDer<'_>,
    others: &'a [CertificateDer<'_>],
) -> Result<OrderedChain<'a>, Error> {
    chain::in_order(own, others).map_err(|problem| {
        let why = OtherError(Arc::new(problem));
        Error::InvalidCertificate(CertificateError::Other(why))
    })
}

/// The intermediates of a chain, as verifiers take them.
pub(crate) fn intermediates_of<'a>(chain: &OrderedChain<'a>) -> Vec<CertificateDer<'a>> {
    let intermediates = chain.intermediates.iter().copied();
    intermediates.map(CertificateDer::from).collect()
}

/// Has another verifier look only at the certificates of a client that are a chain in order, and refuses the clients that
/// [`in_order`] refuses.
#[derive(Debug)]
pub(crate) struct OrderedChains(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for OrderedChains {
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
        let chain = in_order(end_entity, intermediates)?;
        let ordered = intermediates_of(&chain);
        self.0.verify_client_cert(end_entity, &ordered, now)
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
    use std::cell::Cell;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::RootCertStore;
    use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
    use rustls::server::WebPkiClientVerifier;
    use rustls_pki_types::{
        AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
    };
    use vestibule_model::certificate::MAX_INTERMEDIATES;

    use super::*;

    thread_local! {
        /// How many signatures [`Counting`] has verified.
        static VERIFIED: Cell<usize> = const { Cell::new(0) };
    }

    /// The algorithm of the certificates that rcgen makes. It counts signatures.
    #[derive(Debug)]
    struct Counting;

    impl SignatureVerificationAlgorithm for Counting {
        fn verify_signature(
            &self,
            key: &[u8],
            message: &[u8],
            signature: &[u8],
        ) -> Result<(), InvalidSignature> {
            VERIFIED.set(VERIFIED.get() + 1);
            let all = rustls::crypto::aws_lc_rs::default_provider();
            let all = all.signature_verification_algorithms.all;
            let is_same = |other: &&&dyn SignatureVerificationAlgorithm| {
                other.public_key_alg_id() == self.public_key_alg_id()
                    && other.signature_alg_id() == self.signature_alg_id()
            };
            let algorithm = all.iter().find(is_same).unwrap();
            algorithm.verify_signature(key, message, signature)
        }

        fn public_key_alg_id(&self) -> AlgorithmIdentifier {
            alg_id::ECDSA_P256
        }

        fn signature_alg_id(&self) -> AlgorithmIdentifier {
            alg_id::ECDSA_SHA256
        }
    }

    static COUNTING: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
        all: &[&Counting],
        mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[&Counting])],
    };

    fn named(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = is_ca;
        params
    }

    /// A verifier, and a chain with this many intermediates that it trusts.
    fn rig(intermediates: usize) -> (OrderedChains, Vec<CertificateDer<'static>>) {
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
        let provider = Arc::new(CryptoProvider {
            signature_verification_algorithms: COUNTING,
            ..rustls::crypto::aws_lc_rs::default_provider()
        });
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        (OrderedChains(verifier.build().unwrap()), chain)
    }

    fn verdict(verifier: &OrderedChains, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
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
        // The order does not matter, nor do certificates that are there twice.
        let mut others: Vec<_> = chain[1..].to_vec();
        others.reverse();
        verdict(&verifier, &[&chain[..1], &others].concat()).unwrap();
        let (verifier, chain) = rig(2);
        verdict(&verifier, &[&chain[..], &chain[1..]].concat()).unwrap();
    }

    #[test]
    fn a_signature_is_verified_once_for_each_certificate_of_a_chain() {
        let (verifier, chain) = rig(MAX_INTERMEDIATES);
        VERIFIED.set(0);
        verdict(&verifier, &chain).unwrap();
        assert_eq!(VERIFIED.get(), chain.len());
    }

    /// webpki would try every order of them, and verify a hundred signatures with the key of the authority.
    #[test]
    fn made_up_certificates_with_the_name_of_the_authority_cost_no_signatures() {
        let (verifier, _) = rig(0);
        let made_up = |_| {
            let params = named("root", IsCa::Ca(BasicConstraints::Unconstrained));
            let made = params.self_signed(&KeyPair::generate().unwrap());
            made.unwrap().der().clone()
        };
        let chain: Vec<_> = (0..=MAX_INTERMEDIATES).map(made_up).collect();
        VERIFIED.set(0);
        assert!(verdict(&verifier, &chain).is_err());
        assert_eq!(VERIFIED.get(), 0);
        // Two of them are not refused for their names. Each costs a signature.
        assert!(verdict(&verifier, &chain[..2]).is_err());
        assert!(VERIFIED.get() <= 2, "{}", VERIFIED.get());
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
