//! Owns client validation by certificates. It applies to handshakes, and to connections that existed before the
//! settings of the listener changed.

use std::fmt;
use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

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
    pub(crate) fn of(
        validation: Option<&ClientValidation>,
        shown: Vec<CertificateDer<'static>>,
    ) -> Self {
        let is_proven = validation.is_some_and(ClientValidation::is_strict);
        Self(if is_proven { shown } else { Vec::new() })
    }
}
