//! Owns the choice among the certificates of a listener.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::ServerName;

use crate::expiry::now;

/// A certificate, and when it expires, in seconds since the Unix epoch.
pub(super) type Expiring = (Arc<CertifiedKey>, i64);

/// A resolver that shows each client the one of `certificates` that fits best. They are in order of preference.
pub(super) fn resolver(mut certificates: Vec<Expiring>) -> Arc<dyn ResolvesServerCert> {
    match (certificates.pop(), certificates.is_empty()) {
        (Some((one, _)), true) => Arc::new(OneCertificate(one)),
        (last, _) => {
            certificates.extend(last);
            Arc::new(SeveralCertificates(certificates.into()))
        }
    }
}

/// Always shows the same certificate. The listener was already selected by the server name.
struct OneCertificate(Arc<CertifiedKey>);

impl fmt::Debug for OneCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneCertificate")
    }
}

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Shows the first certificate that covers the server name and has a key which the client can verify. If there is none,
/// it shows the first one with such a key. If there is none of these either, it shows the first one for the name, and
/// otherwise the first of all. The client then decides whether it accepts that. Of several that fit as well, one that has
/// not expired comes before those that have.
struct SeveralCertificates(Box<[Expiring]>);

impl fmt::Debug for SeveralCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeveralCertificates({})", self.0.len())
    }
}

impl ResolvesServerCert for SeveralCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let name = hello.server_name();
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let now = now();
        let fit = |(certified, not_after): &&Expiring| {
            let verifiable = certified.key.choose_scheme(schemes).is_some();
            let named = name
                .as_ref()
                .is_none_or(|name| covers(certified, name).unwrap_or(false));
            Reverse((verifiable, named, *not_after >= now))
        };
        // `min_by_key` returns the first of several minima, so the order of preference decides between equals.
        let best = self.0.iter().min_by_key(fit);
        best.map(|(certified, _)| Arc::clone(certified))
    }
}

/// Whether a certificate is for this name. It is parsed each time: few listeners have several certificates, and keeping
/// the parsed names would cost memory for every certificate.
fn covers(certified: &CertifiedKey, name: &ServerName<'_>) -> Option<bool> {
    let parsed = ParsedCertificate::try_from(certified.cert.first()?).ok()?;
    Some(verify_server_name(&parsed, name).is_ok())
}

#[cfg(test)]
mod tests {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::aws_lc_rs::{default_provider, sign::any_supported_type};
    use rustls::{
        ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
        SignatureScheme,
    };
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

    use super::*;
    use crate::in_memory::exchange;

    const P256: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
    const ED25519: SignatureScheme = SignatureScheme::ED25519;

    fn certificate(name: &str, scheme: SignatureScheme) -> Arc<CertifiedKey> {
        let algorithm = match scheme {
            ED25519 => &rcgen::PKCS_ED25519,
            _ => &rcgen::PKCS_ECDSA_P256_SHA256,
        };
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let made = params.self_signed(&key).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let key = any_supported_type(&key).unwrap();
        Arc::new(CertifiedKey::new(vec![made.der().clone()], key))
    }

    /// A client that can verify signatures of these schemes, and takes whatever it is shown.
    #[derive(Debug)]
    struct Takes(Vec<SignatureScheme>);

    impl ServerCertVerifier for Takes {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.clone()
        }
    }

    /// The place of the certificate that a client is shown. None of them has expired.
    fn shown(of: &[Arc<CertifiedKey>], name: &str, schemes: &[SignatureScheme]) -> usize {
        let valid = of.iter().map(|one| (Arc::clone(one), i64::MAX));
        shown_of(&valid.collect::<Vec<_>>(), name, schemes)
    }

    fn shown_of(of: &[Expiring], name: &str, schemes: &[SignatureScheme]) -> usize {
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(resolver(of.to_vec()));
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Takes(schemes.to_vec())))
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() {
            exchange(&mut client, &mut server);
        }
        let leaf = &client.peer_certificates().unwrap()[0];
        of.iter().position(|(of, _)| of.cert[0] == *leaf).unwrap()
    }

    #[test]
    fn a_client_is_shown_the_certificate_whose_key_it_can_verify() {
        let certificates = [
            certificate("a.example.com", P256),
            certificate("a.example.com", ED25519),
        ];
        let a = "a.example.com";
        assert_eq!(shown(&certificates, a, &[P256]), 0);
        assert_eq!(shown(&certificates, a, &[ED25519]), 1);
        // Of two that fit, the first one by order of reference.
        assert_eq!(shown(&certificates, a, &[ED25519, P256]), 0);
    }

    #[test]
    fn a_client_is_shown_the_certificate_for_its_name() {
        let certificates = [
            certificate("a.example.com", P256),
            certificate("*.b.example.com", P256),
            certificate("x.b.example.com", ED25519),
        ];
        let both = [P256, ED25519];
        assert_eq!(shown(&certificates, "a.example.com", &both), 0);
        assert_eq!(shown(&certificates, "y.b.example.com", &both), 1);
        assert_eq!(shown(&certificates, "x.b.example.com", &both), 1);
        assert_eq!(shown(&certificates, "x.b.example.com", &[ED25519]), 2);
        // One for another name is better than none that can be verified, and so is the first one if none is for the name.
        assert_eq!(shown(&certificates, "a.example.com", &[ED25519]), 2);
        assert_eq!(shown(&certificates, "else.example.org", &both), 0);
    }

    #[test]
    fn a_certificate_that_has_expired_is_shown_only_if_it_fits_better() {
        let (a, b) = ("a.example.com", "b.example.com");
        let long_ago = now() - 60;
        let soon = now() + 600;
        let certificates = [
            (certificate(a, P256), long_ago),
            (certificate(a, P256), soon),
            (certificate(a, P256), i64::MAX),
            (certificate(b, P256), long_ago),
            (certificate(a, ED25519), long_ago),
        ];
        assert_eq!(shown_of(&certificates, a, &[P256]), 1);
        assert_eq!(shown_of(&certificates, b, &[P256]), 3);
        assert_eq!(shown_of(&certificates, a, &[ED25519]), 4);
        // If all have expired, the order decides.
        assert_eq!(shown_of(&certificates[3..], "else.test", &[P256]), 0);
    }

    #[test]
    fn one_certificate_is_shown_to_everybody() {
        let one = [certificate("a.example.com", P256)];
        assert_eq!(shown(&one, "else.example.org", &[P256]), 0);
    }
}
