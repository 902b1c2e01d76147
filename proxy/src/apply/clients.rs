//! Owns the validation of clients by their certificates: what a listener asks for, and which clients it accepts.
//!
//! Backends do not learn which certificate a client showed. A backend that needs to know it must be reached by
//! passthrough.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::trust::Trust;
use crate::ordered_chain::OrderedChains;

/// Most bytes for the names of CAs in a certificate request, by which a client chooses its certificate. They must fit
/// into one extension of 64 KiB, and common clients accept less than that. If the names take more, none are sent.
const MAX_HINTS: usize = 8 * 1024;

/// The treatment of a client without a valid certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientMode {
    /// Its handshake fails.
    ValidOnly,
    /// It is accepted.
    InsecureFallback,
}

/// How a listener validates its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValidationSpec {
    /// Names of trust bundles.
    pub(super) bundles: Vec<String>,
    pub(super) mode: ClientMode,
}

/// Identifies the settings of client validation on which a session depends. If they change, tickets from before are no
/// longer accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuthId {
    mode: ClientMode,
    trust: [u8; 32],
}

/// Client validation with the trust bundles that are held now.
pub(super) struct ClientAuth {
    trust: Trust,
    mode: ClientMode,
}

impl ClientAuth {
    pub(super) fn new(trust: Trust, mode: ClientMode) -> Self {
        Self { trust, mode }
    }

    pub(super) fn id(&self) -> AuthId {
        AuthId {
            mode: self.mode,
            trust: self.trust.digest,
        }
    }

    /// The verifier for rustls; `None` if rustls finds no trust anchor.
    pub(super) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Option<Arc<dyn ClientCertVerifier>> {
        let roots = Arc::clone(&self.trust.roots);
        let hints = self.trust.roots.subjects();
        let bytes: usize = hints.iter().map(|name| name.as_ref().len() + 2).sum();
        let tell = bytes <= MAX_HINTS;
        match self.mode {
            ClientMode::ValidOnly => {
                let builder =
                    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
                let builder = if tell {
                    builder
                } else {
                    builder.clear_root_hint_subjects()
                };
                let verifier = builder.build().ok()?;
                Some(Arc::new(OrderedChains(verifier)))
            }
            ClientMode::InsecureFallback => Some(Arc::new(Anybody {
                hints: if tell { hints } else { Vec::new() },
                schemes: provider
                    .signature_verification_algorithms
                    .supported_schemes(),
            })),
        }
    }
}

/// Asks for a certificate and accepts every one. The proof that the client has its key is not checked either, because
/// that would refuse clients whose certificate cannot be read. So nothing may rely on the certificate, not even after the
/// settings change: [`ProvenChain`](crate::validation::ProvenChain) leaves it out.
#[derive(Debug)]
struct Anybody {
    hints: Vec<DistinguishedName>,
    schemes: Vec<SignatureScheme>,
}

impl ClientCertVerifier for Anybody {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
