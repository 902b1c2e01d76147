//! An authority of the tests, and the certificates that it issues to clients, backends and Gateways.

#![allow(dead_code, reason = "every test file uses another part")]

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

use crate::common::provider;

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A bundle with the certificates of `authorities`.
    pub(crate) fn bundle(name: &str, authorities: &[&Self]) -> Resource {
        let certificates = authorities.iter().map(|ca| ca.0.der().to_vec());
        Resource {
            name: name.into(),
            resource: Some(Wire::TrustBundle(proto::TrustBundle {
                certificates: certificates.collect(),
            })),
        }
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// Its certificate.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    pub(crate) fn client(&self, name: &str) -> Leaf {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&params)
    }

    pub(crate) fn server(&self, names: &[&str], uris: &[&str]) -> Leaf {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
        let uris = uris
            .iter()
            .map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params)
    }

    fn issue(&self, params: &CertificateParams) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf {
            chain: vec![certificate.into()],
            key: key.serialize_der(),
        }
    }
}

/// A certificate that an authority issued.
pub(crate) struct Leaf {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Leaf {
    pub(crate) fn resource(&self, name: &str) -> Resource {
        Resource {
            name: name.into(),
            resource: Some(Wire::Certificate(proto::Certificate {
                chain: self.chain.iter().map(|der| der.to_vec().into()).collect(),
                private_key: self.key.clone(),
            })),
        }
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.clone()).unwrap()
    }

    /// Of a server that asks for nothing, or for a certificate of `clients`.
    pub(crate) fn server_config(&self, clients: Option<&Authority>) -> rustls::ServerConfig {
        let verifier = clients.map(|ca| {
            let verifier = WebPkiClientVerifier::builder_with_provider(ca.roots(), provider());
            verifier.build().unwrap()
        });
        self.server_config_of(verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth))
    }

    /// The configuration of a server that lets those clients in that `verifier` accepts.
    pub(crate) fn server_config_of(
        &self,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> rustls::ServerConfig {
        rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key())
            .unwrap()
    }

    /// As PEM: the certificate and its key, for openssl.
    pub(crate) fn pem(&self) -> (String, String) {
        let block = |kind: &str, der: &[u8]| pem::encode(&pem::Pem::new(kind, der));
        (
            block("CERTIFICATE", &self.chain[0]),
            block("PRIVATE KEY", &self.key),
        )
    }
}
