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

    /// Whether a client that showed `chain`, its own certificate first, would be accepted now. The client has proven in
    /// its handshake that it has the key.
    pub(crate) fn admits(&self, chain: &[CertificateDer<'_>]) -> bool {
        if !self.verifier.client_auth_mandatory() {
            return true;
        }
        let Some((own, others)) = chain.split_first() else {
            return false;
        };
        let verified = self
            .verifier
            .verify_client_cert(own, others, UnixTime::now());
        verified.is_ok()
    }
}
