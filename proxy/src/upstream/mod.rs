//! Owns connections to backends, in plaintext or TLS: how the certificate of a backend is checked, which certificate
//! this proxy shows, and that a backend whose policy asks for TLS is never reached without it.
//!
//! A policy becomes a [`Tls`], which is built again with each change of the policy or of its trust bundles. It is part
//! of a version of the backend, together with the endpoints. A session is resumed only with the same settings with
//! which it was made.

mod certificate;
mod meter;
mod sessions;
mod stream;
mod verify;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_pki_types::ServerName;

pub use certificate::ClientCertificate;
pub(crate) use certificate::Credentials;
pub(crate) use meter::{Meter, Metered, OnMeter};
pub(crate) use stream::{Stream, Tls as TlsToBackend};
pub(crate) use verify::AltName;

use crate::close_reason::CloseReason;
use sessions::{SessionPlaces, Sessions};
use verify::Verifier;

/// Most configurations that are kept for a backend. There is one for each client certificate and list of protocols.
const MAX_CONFIGS: usize = 32;

/// The protocols that are offered by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Alpn {
    /// None, because client and backend agree on their protocol themselves.
    None,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 and HTTP/1.1, with a preference for HTTP/2.
    Both,
}

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::None => &[],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
            Self::Both => &[b"h2", b"http/1.1"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// Identifies the TLS settings of a connection. A connection that was opened with other settings must not be used
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TlsIdentity {
    settings: u64,
    /// Version of the client certificate; 0 if none is shown.
    certificate: u64,
}

/// A number that differs with each call.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The identity of a connection with this TLS that shows `credentials`; `None` for plaintext.
pub(crate) fn identity(tls: Option<&Arc<Tls>>, credentials: &Credentials) -> Option<TlsIdentity> {
    Some(TlsIdentity {
        settings: tls?.id,
        certificate: credentials.id(),
    })
}

/// Makes client configurations. All of them use one provider (aws-lc-rs), and TLS 1.2 and 1.3.
pub(crate) struct Factory {
    provider: Arc<CryptoProvider>,
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    system: Arc<RootCertStore>,
    places: SessionPlaces,
}

impl Factory {
    pub(crate) fn new() -> Result<Self, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        Ok(Self {
            builder: ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?,
            provider,
            system: Arc::new(RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            }),
            places: SessionPlaces::new(),
        })
    }

    /// The CA certificates of the public web: Mozilla's list at the time of this release.
    pub(crate) fn system_trust(&self) -> &Arc<RootCertStore> {
        &self.system
    }
}

/// TLS settings for one backend.
pub(crate) struct Tls {
    id: u64,
    pub(crate) name: ServerName<'static>,
    /// `None` if no connection may be made.
    verifier: Option<Arc<dyn ServerCertVerifier>>,
    factory: Arc<Factory>,
    /// The namespace of the backend.
    namespace: Arc<str>,
    configs: Mutex<Vec<Cached>>,
}

struct Cached {
    certificate: u64,
    alpn: Alpn,
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Settings for a backend whose certificate must lead to a trust anchor of one of the `bundles` and have one of
    /// `names` or, if there are none, `name`. The backend is in `namespace`.
    pub(crate) fn new(
        (factory, namespace): (&Arc<Factory>, &str),
        name: ServerName<'static>,
        names: Vec<AltName>,
        bundles: Vec<Arc<RootCertStore>>,
    ) -> Self {
        let names = if names.is_empty() {
            vec![AltName::Exact(name.clone())]
        } else {
            names
        };
        let verifier = Verifier::new(bundles, names, &factory.provider);
        Self {
            verifier: (!verifier.trusts_nobody()).then(|| Arc::new(verifier) as _),
            name,
            namespace: namespace.into(),
            ..Self::closed(factory)
        }
    }

    /// Settings for a backend to which no connection may be made.
    pub(crate) fn closed(factory: &Arc<Factory>) -> Self {
        Self {
            id: next_id(),
            // This name is never sent.
            name: ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()),
            verifier: None,
            factory: Arc::clone(factory),
            namespace: "".into(),
            configs: Mutex::default(),
        }
    }

    /// Whether no connection may be made.
    pub(crate) fn is_closed(&self) -> bool {
        self.verifier.is_none()
    }

    /// Why no connection with these credentials may be made, if so.
    pub(crate) fn refusal(&self, credentials: &Credentials) -> Option<CloseReason> {
        self.parts(credentials).err()
    }

    /// The verifier for the backend's certificate, and the client certificate to show.
    fn parts<'a>(
        &self,
        credentials: &'a Credentials,
    ) -> Result<(&Arc<dyn ServerCertVerifier>, Option<&'a ClientCertificate>), CloseReason> {
        let verifier = self.verifier.as_ref();
        let verifier = verifier.ok_or(CloseReason::BackendTlsInvalid)?;
        let shown = match credentials {
            Credentials::None | Credentials::Withheld => None,
            Credentials::Missing => return Err(CloseReason::BackendTlsInvalid),
            Credentials::Certificate(certificate) => Some(&**certificate),
        };
        Ok((verifier, shown))
    }

    pub(crate) fn config(
        &self,
        credentials: &Credentials,
        alpn: Alpn,
    ) -> Result<Arc<ClientConfig>, CloseReason> {
        let (verifier, shown) = self.parts(credentials)?;
        let certificate = credentials.id();
        let mut configs = self.configs.lock();
        let known = configs
            .iter()
            .find(|cached| cached.certificate == certificate && cached.alpn == alpn);
        if let Some(known) = known {
            return Ok(Arc::clone(&known.config));
        }
        let config = self.build(verifier, shown, alpn);
        if configs.len() >= MAX_CONFIGS {
            configs.remove(0);
        }
        configs.push(Cached {
            certificate,
            alpn,
            config: Arc::clone(&config),
        });
        Ok(config)
    }

    fn build(
        &self,
        verifier: &Arc<dyn ServerCertVerifier>,
        shown: Option<&ClientCertificate>,
        alpn: Alpn,
    ) -> Arc<ClientConfig> {
        let builder = self.factory.builder.clone();
        // rustls calls every verifier "dangerous" that is not its own. This one checks the chain as rustls does, and
        // the names of the policy.
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(verifier));
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let resolver = SingleCertAndKey::from(Arc::clone(&shown.certified));
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
        };
        let sessions = Sessions::new(&self.namespace, &self.factory.places);
        config.resumption = Resumption::store(Arc::new(sessions));
        config.alpn_protocols = alpn.protocols();
        Arc::new(config)
    }
}

#[cfg(test)]
mod tests;
