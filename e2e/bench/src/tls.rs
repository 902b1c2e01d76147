//! Certificates of the run and the TLS settings of its client and backend.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize,
};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// Server name that passthrough proxies send to the raw backend.
pub(crate) const RAW_HOST: &str = "raw.bench.test";
/// Server name that passthrough proxies send to the backend that holds a certificate itself.
pub(crate) const TLS_HOST: &str = "tls.bench.test";

/// Name of the n-th terminated host.
pub(crate) fn host(index: usize) -> String {
    format!("h{index}.bench.test")
}

/// One host's certificate and key, both as PEM files and DER.
#[derive(Debug)]
pub(crate) struct Leaf {
    /// Server name.
    pub(crate) name: String,
    /// Certificate, DER.
    pub(crate) certificate: Vec<u8>,
    /// Key, PKCS#8 DER.
    pub(crate) key: Vec<u8>,
    /// Certificate, PEM text.
    pub(crate) certificate_pem: String,
    /// Key, PEM text.
    pub(crate) key_pem: String,
    /// File with both, as `HAProxy` and hitch want it.
    pub(crate) bundle: PathBuf,
}

/// A local authority and the leaves it signed.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The root, DER.
    pub(crate) root: Vec<u8>,
}

impl Authority {
    /// A new P-256 root.
    pub(crate) fn new() -> Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "bench root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let root = params.self_signed(&key)?.der().to_vec();
        Ok(Self {
            issuer: Issuer::new(params, key),
            root,
        })
    }

    /// Signs a P-256 leaf for the name and writes its bundle under `folder`.
    pub(crate) fn leaf(&self, name: &str, folder: &Path) -> Result<Leaf> {
        self.sign(
            name,
            folder,
            &KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
        )
    }

    /// The same with an RSA key of 4096 bits, which is slow to sign with.
    pub(crate) fn rsa_leaf(&self, name: &str, folder: &Path) -> Result<Leaf> {
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096)?;
        self.sign(name, folder, &key)
    }

    /// Certificate and key for several names, PEM.
    pub(crate) fn pair(&self, names: &[String]) -> Result<(String, String)> {
        let (certificate, key) = self.sign_for(names)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// The same, DER.
    pub(crate) fn der(&self, names: &[String]) -> Result<(Vec<u8>, Vec<u8>)> {
        let (certificate, key) = self.sign_for(names)?;
        Ok((certificate.der().to_vec(), key.serialize_der()))
    }

    fn sign_for(&self, names: &[String]) -> Result<(Certificate, KeyPair)> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(names.to_vec())?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate, key))
    }

    fn sign(&self, name: &str, folder: &Path, key: &KeyPair) -> Result<Leaf> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer)?;
        let bundle = folder.join(format!("{name}.pem"));
        let (certificate_pem, key_pem) = (certificate.pem(), key.serialize_pem());
        fs::write(&bundle, format!("{certificate_pem}{key_pem}"))
            .context("writing a certificate")?;
        Ok(Leaf {
            name: name.to_owned(),
            certificate: certificate.der().to_vec(),
            key: key.serialize_der(),
            certificate_pem,
            key_pem,
            bundle,
        })
    }
}

/// Key exchange the client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Groups {
    /// X25519 alone.
    X25519,
    /// X25519MLKEM768 alone.
    Hybrid,
}

/// TLS 1.3, AES-128-GCM, the one group. The peer's signatures are not checked: the client shares a
/// core with the backend and is not what is measured. `client check` does verify, before each round.
pub(crate) fn client_config(groups: Groups, resume: bool) -> Result<Arc<ClientConfig>> {
    let provider = provider(groups);
    let verifier = Arc::new(NoVerifier(Arc::clone(&provider)));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = if resume {
        Resumption::in_memory_sessions(256)
    } else {
        Resumption::disabled()
    };
    Ok(Arc::new(config))
}

/// As [`client_config`], but trusting only the root given.
pub(crate) fn verifying_config(root: &[u8]) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.to_vec()))?;
    let config = ClientConfig::builder_with_provider(provider(Groups::X25519))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The backend's own TLS, for the check that passthrough passes through.
pub(crate) fn server_config(certificate: Vec<u8>, key: Vec<u8>) -> Result<Arc<ServerConfig>> {
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(certificate)],
            PrivatePkcs8KeyDer::from(key).into(),
        )?;
    Ok(Arc::new(config))
}

fn provider(groups: Groups) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    provider.kx_groups = match groups {
        Groups::X25519 => vec![aws_lc_rs::kx_group::X25519],
        Groups::Hybrid => vec![aws_lc_rs::kx_group::X25519MLKEM768],
    };
    Arc::new(provider)
}

#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
