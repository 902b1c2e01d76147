//! An operator that serves the stream over TLS on loopback, with a reviewer and certificates that the
//! test commands.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use vestibule_operator::publish::auth::{
    Authenticator, Fleets, Review, ReviewError, TokenReviewer,
};
use vestibule_operator::publish::tls::{ConnectionLimits, Secure};
use vestibule_operator::publish::{self, Changes, Publisher};
use vestibule_stream::Resource;
use vestibule_stream::client::Tls;

use crate::stream::Proxy;

/// The name that the operator's certificate is for.
pub const NAME: &str = "r-operator.ns.svc";
/// The user that proxies are.
pub const USER: &str = "system:serviceaccount:ns:r-proxy";
/// The pod that every token is bound to, as far as the reviewer says.
pub const POD: &str = "r-proxy-1";

/// What the reviewer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewAnswer {
    /// The token is good.
    Good,
    /// The token is not good.
    Rejected,
    /// The API server cannot be reached.
    Away,
    /// There is no answer.
    Never,
}

#[derive(Debug)]
struct Present(Mutex<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Present {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.lock().clone()
    }
}

struct Reviewer(Arc<Mutex<ReviewAnswer>>, Arc<AtomicUsize>);

impl TokenReviewer for Reviewer {
    fn review<'a>(
        &'a self,
        _: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<Review, ReviewError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let verdict = *self.0.lock();
        let review = Review {
            authenticated: verdict == ReviewAnswer::Good,
            user: USER.into(),
            pod: Some(POD.into()),
            audiences: vec![audience.to_owned()],
            error: None,
        };
        Box::pin(async move {
            match verdict {
                ReviewAnswer::Good | ReviewAnswer::Rejected => Ok(review),
                ReviewAnswer::Away => Err(ReviewError::Unreachable("no route".into())),
                ReviewAnswer::Never => std::future::pending().await,
            }
        })
    }
}

/// The operator; everything ends and is removed with it.
pub struct Operator {
    /// Where it listens.
    pub address: String,
    /// What it publishes from.
    pub publisher: Arc<Publisher>,
    /// How many tokens the reviewer was asked about.
    pub reviews: Arc<AtomicUsize>,
    verdict: Arc<Mutex<ReviewAnswer>>,
    present: Arc<Present>,
    directory: PathBuf,
    server: JoinHandle<()>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.server.abort();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Operator {
    /// Leads, and serves on loopback. Its token and roots are good.
    pub async fn start(limits: ConnectionLimits) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = format!("vestibule-stream-tls-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        fs::create_dir_all(&directory).unwrap();

        let publisher = Publisher::new(publish::Config::default());
        publisher.lead(1).unwrap();
        let verdict = Arc::new(Mutex::new(ReviewAnswer::Good));
        let reviews = Arc::new(AtomicUsize::new(0));
        let reviewer = Reviewer(Arc::clone(&verdict), Arc::clone(&reviews));
        let fleets = Fleets::one("ns", "r-proxy", "vestibule-config");
        let present = Arc::new(Present(Mutex::new(None)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut secure = Secure::new(
            Arc::clone(&publisher),
            Arc::clone(&present) as Arc<dyn ResolvesServerCert>,
            Arc::new(Authenticator::new(fleets, reviewer)),
        );
        secure.limits = limits;
        let server = tokio::spawn(async move {
            secure
                .serve(listener, std::future::pending())
                .await
                .unwrap();
        });
        let mut operator = Self {
            address,
            publisher,
            reviews,
            verdict,
            present,
            directory,
            server,
        };
        let (certificate, root) = authority(NAME);
        operator.serve_with(&certificate);
        operator.trust(&root);
        operator.show(&token(USER, "vestibule-config", 3600));
        operator
    }

    /// Publishes resources.
    pub fn publish(&self, resources: &[Resource]) {
        let mut changes = Changes::new();
        for resource in resources {
            changes.upsert(resource).unwrap();
        }
        self.publisher.update(changes);
    }

    /// What the reviewer answers from now on.
    pub fn answer(&self, verdict: ReviewAnswer) {
        *self.verdict.lock() = verdict;
    }

    /// The proxies' token from now on.
    pub fn show(&self, token: &str) {
        fs::write(self.directory.join("token"), token).unwrap();
    }

    /// What proxies trust from now on.
    pub fn trust(&mut self, root: &str) {
        fs::write(self.directory.join("ca.crt"), root).unwrap();
    }

    /// Its certificate from now on.
    pub fn serve_with(&mut self, certificate: &Arc<CertifiedKey>) {
        *self.present.0.lock() = Some(Arc::clone(certificate));
    }

    /// It has no certificate from now on.
    pub fn serve_nothing(&mut self) {
        *self.present.0.lock() = None;
    }

    /// Its certificates, for another server.
    pub fn certificates(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.present) as Arc<dyn ResolvesServerCert>
    }

    /// How a proxy connects to it.
    pub fn connector(&self) -> Tls {
        let token = self.directory.join("token");
        Tls::new(self.directory.join("ca.crt"), NAME, Some(token)).unwrap()
    }

    /// A proxy that is connected to it.
    pub fn proxy(&self, name: &str) -> Proxy {
        Proxy::start(name, std::slice::from_ref(&self.address), self.connector())
    }

    /// What proxies trust.
    pub fn roots(&self) -> RootCertStore {
        let pem = fs::read(self.directory.join("ca.crt")).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem).unwrap())
            .unwrap();
        roots
    }

    /// A client of TLS that trusts what proxies trust, and offers these protocols.
    pub fn client_config(&self, protocols: &[&[u8]]) -> ClientConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        config
    }
}

/// A new authority's certificate for `name`, and the authority in PEM.
pub fn authority(name: &str) -> (Arc<CertifiedKey>, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::from_ca_cert_der(root.der(), &key).unwrap();
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new([name.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(leaf_key.serialize_der()).unwrap();
    let provider = aws_lc_rs::default_provider();
    let certified = CertifiedKey::from_der(vec![leaf.der().clone()], key, &provider);
    (Arc::new(certified.unwrap()), root.pem())
}

/// A token that expires in so many seconds. Nobody signed it.
pub fn token(sub: &str, aud: &str, seconds: i64) -> String {
    #[expect(clippy::disallowed_methods, reason = "the token is to be valid now")]
    let now = jiff::Timestamp::now();
    let exp = now.as_second() + seconds;
    let claims = json!({"sub": sub, "aud": [aud], "exp": exp}).to_string();
    format!("aGVhZA.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}
