//! Challenges, and a CA that asks for them.

use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

use crate::pki::provider;
use crate::resources::bind;

/// The protocol of TLS-ALPN-01.
pub const ACME_TLS: &[u8] = b"acme-tls/1";
/// The token of challenges over HTTP.
pub const TOKEN: &str = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA";
/// The thumbprint of the account that they are for.
pub const THUMBPRINT: &str = "9jg46WB3rR_AHD-EBXdN7cBkH1WOu0tA3M9fm21mqTI";

/// A certificate with its key, as an order makes one for a handshake.
pub struct ChallengeCertificate {
    /// The certificate, in DER.
    pub certificate: Vec<u8>,
    /// Its key, in DER.
    pub key: Vec<u8>,
}

impl ChallengeCertificate {
    /// One for a hostname.
    pub fn new(hostname: &str) -> Self {
        let mut params = CertificateParams::new([hostname.to_owned()]).unwrap();
        let identifier = CustomExtension::new_acme_identifier(&[7; 32]);
        params.custom_extensions = vec![identifier];
        let key = KeyPair::generate().unwrap();
        Self {
            certificate: params.self_signed(&key).unwrap().der().to_vec(),
            key: key.serialize_der(),
        }
    }

    /// Of the Gateway that the tests' listeners are of.
    pub fn resource(&self, port: u16, hostname: &str) -> Resource {
        let answer = proto::challenge::Answer::TlsAlpn01(proto::TlsAlpn01 {
            certificate: self.certificate.clone(),
            private_key: self.key.clone(),
        });
        let name = format!("infra/edge/tls-alpn-01/{hostname}");
        challenge(name, port, hostname, answer)
    }
}

/// A challenge over HTTP.
pub fn http_challenge(port: u16, hostname: &str) -> Resource {
    let answer = proto::challenge::Answer::Http01(proto::Http01 {
        token: TOKEN.into(),
        key_authorization: format!("{TOKEN}.{THUMBPRINT}"),
    });
    let name = format!("infra/edge/http-01/{hostname}/{TOKEN}");
    challenge(name, port, hostname, answer)
}

fn challenge(
    name: String,
    port: u16,
    hostname: &str,
    answer: proto::challenge::Answer,
) -> Resource {
    Resource {
        name,
        resource: Some(Wire::Challenge(proto::Challenge {
            gateway: "infra/edge".into(),
            bind: Some(bind(port)),
            hostname: hostname.into(),
            tenant: "team-a".into(),
            answer: Some(answer),
        })),
    }
}

/// A client as CAs are: it offers `alpn` and looks at the certificate itself.
pub fn ca(
    alpn: &[&[u8]],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    let mut config = takes_any(versions).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

/// The builder of a client that takes any certificate, so that the test can look at it.
pub fn takes_any(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<rustls::ClientConfig, WantsClientCert> {
    let provider = provider();
    let verifier = Arc::new(Looks(provider.signature_verification_algorithms));
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
}

#[derive(Debug)]
struct Looks(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Looks {
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
        // rustls cannot: it reads no certificate with this extension. OpenSSL does in its test.
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let (_, certificate) = X509Certificate::from_der(certificate).unwrap();
        let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// What `text` has of a key, in any of the forms that text could have it.
pub fn leak(text: &str, key: &[u8]) -> Option<String> {
    // In the middle of the secret, so that it is found whatever is around it.
    let part = &key[key.len() / 3..key.len() / 3 + 12];
    let decimal = format!("{part:?}");
    // `[0a, 0b]`, without what is between the digits.
    let hex = format!("{part:02x?}").replace(['[', ']', ',', ' '], "");
    let pem = pem::encode(&pem::Pem::new("PRIVATE KEY", key));
    let pem = pem.lines().nth(1).unwrap();
    let forms = [
        hex.to_uppercase(),
        hex,
        decimal.trim_matches(['[', ']']).to_owned(),
        part.escape_ascii().to_string(),
        pem[16..48].to_owned(),
        "PRIVATE KEY".to_owned(),
    ];
    forms.into_iter().find(|form| text.contains(form))
}
