//! Bounds the signatures that are verified of a CA's server. A team chooses the server of its issuer, and webpki looks for
//! a path through all certificates that it shows, in every order.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use vestibule_model::certificate::chain;

/// Has webpki look only at the certificates that are a chain [in order](chain::in_order), and refuses servers that show too
/// many certificates or costly keys.
#[derive(Debug)]
pub(super) struct OrderedChains(pub(super) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for OrderedChains {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ordered = chain::in_order(end_entity, intermediates)
            .map_err(|problem| CertificateError::Other(OtherError(Arc::new(problem))))?;
        let ordered = ordered.intermediates.into_iter();
        let ordered: Vec<_> = ordered.map(CertificateDer::from).collect();
        self.0
            .verify_server_cert(end_entity, &ordered, server_name, ocsp_response, now)
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
    use rustls::RootCertStore;
    use vestibule_model::certificate::MAX_INTERMEDIATES;

    use super::*;

    /// The others are no certificates at all, which shows that nothing looks at them.
    #[test]
    fn a_server_that_shows_too_many_certificates_is_refused_before_they_are_looked_at() {
        let made = rcgen::generate_simple_self_signed(["ca.test".to_owned()]).unwrap();
        let own = made.cert.der();
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = OrderedChains(verifier.build().unwrap());
        let name = ServerName::try_from("ca.test").unwrap();
        let verdict = |others: &[CertificateDer<'_>]| {
            let verdict = verifier.verify_server_cert(own, others, &name, &[], UnixTime::now());
            verdict.map(|_| ())
        };
        assert_eq!(verdict(&[]), Ok(()));
        assert_eq!(verdict(&vec![own.clone(); MAX_INTERMEDIATES]), Ok(()));
        let many = vec![CertificateDer::from(vec![0]); MAX_INTERMEDIATES + 1];
        let error = verdict(&many).unwrap_err().to_string();
        assert!(error.contains("TooMany(7)"), "{error}");
        // Nor any of several that have one name.
        let other = || {
            let made = rcgen::generate_simple_self_signed(["ca.test".to_owned()]);
            made.unwrap().cert.der().clone()
        };
        let error = verdict(&[other(), other()]).unwrap_err().to_string();
        assert!(error.contains("Ambiguous"), "{error}");
    }
}
