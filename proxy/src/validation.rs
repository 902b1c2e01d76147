//! Owns client validation by certificates. It applies to handshakes, and to connections that existed before the
//! settings of the listener changed.

use std::fmt;
use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

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

/// The chain of a client that showed `shown`, after a handshake with `validation`; `None` if the client is not admitted.
/// rustls verifies certificates only in full handshakes. A session that is `resumed` carries them along,
/// and has new tickets each time, so a client could go on for ever after its certificate has expired.
pub(crate) fn after_handshake(
    validation: Option<&ClientValidation>,
    shown: Vec<CertificateDer<'static>>,
    resumed: bool,
) -> Option<ProvenChain> {
    let chain = ProvenChain::of(validation, shown);
    let is_admitted = !resumed || validation.is_none_or(|validation| validation.admits(&chain));
    is_admitted.then_some(chain)
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

    /// Whether a certificate of the chain has expired at `now`, in seconds since the Unix epoch.
    pub(crate) fn has_expired(&self, now: i64) -> bool {
        let has_expired = |der: &CertificateDer<'_>| {
            let parsed = X509Certificate::from_der(der);
            parsed.map_or(true, |(_, of)| of.validity().not_after.timestamp() < now)
        };
        self.0.iter().any(has_expired)
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

    /// Strict validation, and a chain of a client: its own certificate, which expires with the beginning of this year, and
    /// an intermediate.
    fn rig(year: i32) -> (ClientValidation, [CertificateDer<'static>; 2]) {
        let (params, key) = (named("root", CA), KeyPair::generate().unwrap());
        let root = params.self_signed(&key).unwrap();
        let root_issuer = Issuer::new(params, key);
        let (params, key) = (named("between", CA), KeyPair::generate().unwrap());
        let between = params.signed_by(&key, &root_issuer).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let mut params = named("client", IsCa::NoCa);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let own = params.signed_by(&key, &issuer);
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
        let (validation, chain) = rig(2100);
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

    #[test]
    fn resumed_session_is_validated_again() {
        let now = crate::expiry::now();
        for (year, valid) in [(2100, true), (2020, false)] {
            let (validation, chain) = rig(year);
            let after = |resumed| after_handshake(Some(&validation), chain.to_vec(), resumed);
            // rustls has verified the chain in the handshake.
            assert!(after(false).is_some());
            assert_eq!(after(true).is_some(), valid);
            assert_eq!(after(false).unwrap().has_expired(now), !valid);
            assert!(after_handshake(None, chain.to_vec(), true).is_some());
        }
        let (validation, _) = rig(2100);
        assert!(after_handshake(Some(&validation), Vec::new(), true).is_none());
    }
}
