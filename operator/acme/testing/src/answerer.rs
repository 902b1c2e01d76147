//! A stand-in for the proxies: answers the challenges that are published, on two ports of loopback.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use vestibule_model::challenge::{ChallengeProof, ChallengeType};

use crate::World;

/// Answers the challenges of a [`World`] until it is dropped.
#[derive(Debug)]
pub struct Answerer {
    /// Its port for HTTP-01.
    pub(crate) http: u16,
    /// Its port for TLS-ALPN-01.
    pub(crate) tls: u16,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Resolver(Arc<World>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        if !hello
            .alpn()
            .is_some_and(|mut alpn| alpn.any(|p| p == b"acme-tls/1"))
        {
            return None;
        }
        let challenges = self.0.challenges.lock();
        let (certificate, key) =
            challenges
                .iter()
                .find_map(|(key, answer)| match &answer.answer {
                    ChallengeProof::TlsAlpn01 {
                        certificate,
                        private_key,
                    } if key.hostname.as_str() == name => {
                        Some((certificate.clone(), private_key.clone()))
                    }
                    _ => None,
                })?;
        // Not `CertifiedKey::from_der`: it refuses the critical extension, which it does not know.
        let key = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(
            &PrivatePkcs8KeyDer::from(key.to_vec()).into(),
        );
        let chain = vec![CertificateDer::from(certificate)];
        key.ok().map(|key| Arc::new(CertifiedKey::new(chain, key)))
    }
}

impl Answerer {
    /// Starts to answer.
    pub async fn start(world: &Arc<World>) -> Self {
        let mut tasks = JoinSet::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let http = listener.local_addr().expect("an address").port();
        let router = Router::new()
            .route("/.well-known/acme-challenge/{token}", get(http_01))
            .with_state(world.clone());
        tasks.spawn(async move {
            axum::serve(listener, router).await.expect("serves");
        });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(world.clone())));
        config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let world = world.clone();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let tls = listener.local_addr().expect("an address").port();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, world) = (acceptor.clone(), world.clone());
                tokio::spawn(async move {
                    world.keep_waiting().await;
                    let _ = acceptor.accept(stream).await;
                });
            }
        });
        Self {
            http,
            tls,
            _tasks: tasks,
        }
    }
}

async fn http_01(
    State(world): State<Arc<World>>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let host = host.split(':').next().unwrap_or_default();
    let challenges = world.challenges.lock();
    challenges
        .iter()
        .find(|(key, _)| {
            key.kind == ChallengeType::Http01
                && *key.token == *token
                && key.hostname.as_str() == host
        })
        .and_then(|(_, answer)| match &answer.answer {
            ChallengeProof::Http01 { key_authorization } => Some(key_authorization.to_string()),
            ChallengeProof::TlsAlpn01 { .. } => None,
        })
        .ok_or(StatusCode::NOT_FOUND)
}
