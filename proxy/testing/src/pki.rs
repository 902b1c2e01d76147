//! Certificates of clients, backends and Gateways, self-signed or of an authority, and the TLS that they make.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

use crate::waiting::within;

/// An authority of the tests.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new authority that is called `name`.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A bundle with the certificates of `authorities`.
    pub fn bundle(name: &str, authorities: &[&Self]) -> Resource {
        let certificates = authorities.iter().map(|ca| ca.0.der().to_vec());
        Resource {
            name: name.into(),
            resource: Some(Wire::TrustBundle(proto::TrustBundle {
                certificates: certificates.collect(),
            })),
        }
    }

    /// What trusts it alone.
    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// Its certificate.
    pub fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    /// The certificate of a client.
    pub fn client(&self, name: &str) -> Identity {
        self.issue(&of_client(name))
    }

    /// The certificate of a client that expires so many seconds after the Unix epoch.
    pub fn client_until(&self, name: &str, end: u64) -> Identity {
        let mut params = of_client(name);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
        self.issue(&params)
    }

    /// The certificate of a server, for these DNS names and URIs.
    pub fn server(&self, names: &[&str], uris: &[&str]) -> Identity {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
        let uris = uris
            .iter()
            .map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params)
    }

    fn issue(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            chain: vec![certificate.into()],
            key: key.serialize_der(),
        }
    }
}

fn of_client(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// A certificate with its key.
pub struct Identity {
    /// The certificate, and those above it.
    pub chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Identity {
    /// A self-signed one for a name.
    pub fn new(name: &str) -> Self {
        Self::of(&[name])
    }

    /// A self-signed one for several names.
    pub fn of(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Self {
            chain: vec![made.cert.der().clone()],
            key: made.signing_key.serialize_der(),
        }
    }

    /// As the proxy gets it.
    pub fn resource(&self, name: &str) -> Resource {
        Resource {
            name: name.into(),
            resource: Some(Wire::Certificate(proto::Certificate {
                chain: self.chain.iter().map(|der| der.to_vec().into()).collect(),
                private_key: self.key.clone(),
                secret_uid: String::new(),
            })),
        }
    }

    /// Its key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.clone()).unwrap()
    }

    /// A server that asks for no certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.server_config()))
    }

    /// The configuration of a server that asks for no certificate.
    pub fn server_config(&self) -> rustls::ServerConfig {
        self.server_config_of(WebPkiClientVerifier::no_client_auth())
    }

    /// The configuration of a server that asks for a certificate of `clients`.
    pub fn server_config_for(&self, clients: &Authority) -> rustls::ServerConfig {
        let verifier = WebPkiClientVerifier::builder_with_provider(clients.roots(), provider());
        self.server_config_of(verifier.build().unwrap())
    }

    /// The configuration of a server that lets those clients in that `verifier` accepts.
    pub fn server_config_of(&self, verifier: Arc<dyn ClientCertVerifier>) -> rustls::ServerConfig {
        rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key())
            .unwrap()
    }

    /// As PEM: the certificate and its key, for openssl.
    pub fn pem(&self) -> (String, String) {
        let block = |kind: &str, der: &[u8]| pem::encode(&pem::Pem::new(kind, der));
        (
            block("CERTIFICATE", &self.chain[0]),
            block("PRIVATE KEY", &self.key),
        )
    }
}

/// AWS-LC, as everywhere.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A client configuration that trusts `identity`.
pub fn client_config(identity: &Identity) -> rustls::ClientConfig {
    client_config_with(identity, provider(), rustls::ALL_VERSIONS)
}

/// As [`client_config`], with this cryptography and these versions.
pub fn client_config_with(
    identity: &Identity,
    provider: Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    trusting(&identity.chain[0], provider, versions)
}

/// A client configuration that trusts this certificate and no other.
pub(crate) fn trusting(
    root: &CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// A client of TLS that wants the server called `name`.
pub async fn tls(
    tcp: TcpStream,
    config: rustls::ClientConfig,
    name: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    within("the handshake", connector.connect(name, tcp)).await
}
