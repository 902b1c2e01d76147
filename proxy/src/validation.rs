//! Owns client validation by certificates. It applies to handshakes, and to connections that existed before the
//! settings of the listener changed.

use std::fmt;
use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::ordered_chain::in_order;

/// The client validation of a listener, in one version of its settings and trust bundles. Listeners and handshakes with
/// the same settings share it.
pub(crate) struct ClientValidation {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for ClientValidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientValidation").finish_non_exhaustive()
    }
}

impl ClientValidation {
    pub(crate) fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self { verifier }
    }

    pub(crate) fn verifier(&self) -> &Arc<dyn ClientCertVerifier> {
        &self.verifier
    }

    /// Whether it refuses clients without a valid certificate. If it does, its verifier also checks in each handshake that
    /// the client has the key of the certificate. Otherwise nothing is checked.
    fn is_strict(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    /// Whether a client with this chain would be accepted now.
    pub(crate) fn admits(&self, chain: &ProvenChain) -> bool {
        if !self.is_strict() {
            return true;
        }
        let Some((own, others)) = chain.0.split_first() else {
            return false;
        };
        let verified = self
            .verifier
            .verify_client_cert(own, others, UnixTime::now());
        verified.is_ok()
    }
}

/// The certificate chain of a client that has proven in its handshake that it has the key. Its own certificate comes first.
/// The chain is empty if the client showed no certificate, or if nobody checked the proof.
#[derive(Default)]
pub(crate) struct ProvenChain(Vec<CertificateDer<'static>>);

impl ProvenChain {
    /// The chain of a client that showed `shown` in a handshake with `validation`. Certificates are public, and a client
    /// that is let in without a check may show that of somebody else. Such a chain must not count when the settings
    /// change, so it is not kept.
    ///
    /// Of a chain that counts, only those certificates are kept that lead on from the client's own one. Verifiers look at
    /// no others, whatever they trust, and a client may add as many bytes of others as fit into a handshake.
    pub(crate) fn of(
        validation: Option<&ClientValidation>,
        shown: Vec<CertificateDer<'static>>,
    ) -> Self {
        let is_proven = validation.is_some_and(ClientValidation::is_strict);
        let mut shown = shown.into_iter();
        let Some(own) = shown.next().filter(|_| is_proven) else {
            return Self::default();
        };
        // No strict validation accepts a chain without an order.
        let Ok(chain) = in_order(&own, shown.as_slice()) else {
            return Self::default();
        };
        let copy = |der: &&[u8]| CertificateDer::from(der.to_vec());
        let mut kept: Vec<_> = chain.intermediates.iter().map(copy).collect();
        kept.insert(0, own);
        kept.shrink_to_fit();
        Self(kept)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;

    use super::*;
    use crate::ordered_chain::OrderedChains;

    const CA: IsCa = IsCa::Ca(BasicConstraints::Unconstrained);

    fn named(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = is_ca;
        params
    }

    /// Strict validation, and a chain of a client that passes it: its own certificate and an intermediate.
    fn rig() -> (ClientValidation, [CertificateDer<'static>; 2]) {
        let (params, key) = (named("root", CA), KeyPair::generate().unwrap());
        let root = params.self_signed(&key).unwrap();
        let root_issuer = Issuer::new(params, key);
        let (params, key) = (named("between", CA), KeyPair::generate().unwrap());
        let between = params.signed_by(&key, &root_issuer).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let own = named("client", IsCa::NoCa).signed_by(&key, &issuer);
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = OrderedChains(verifier.build().unwrap());
        let chain = [own.unwrap().der().clone(), between.der().clone()];
        (ClientValidation::new(Arc::new(verifier)), chain)
    }

    #[test]
    fn of_what_a_client_shows_only_its_chain_is_kept() {
        let (validation, chain) = rig();
        let stranger = named("stranger", CA).self_signed(&KeyPair::generate().unwrap());
        let stranger = stranger.unwrap().der().clone();
        let [own, between] = &chain;
        let shown = [own, &stranger, between, between, own].map(Clone::clone);
        let kept = ProvenChain::of(Some(&validation), shown.to_vec());
        assert_eq!(kept.0, chain);
        assert!(validation.admits(&kept));
        // Nobody has checked it.
        assert!(ProvenChain::of(None, shown.to_vec()).0.is_empty());
        assert!(ProvenChain::of(Some(&validation), Vec::new()).0.is_empty());
    }
}
