//! What tests of the webhook's server need: a server on loopback with a certificate of its own, and a client that
//! speaks as an API server does.
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "tests call all of it: a panic fails the test, and nothing is called for no reason"
)]

pub mod objects;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::policy::Policy;
use vestibule_test_support::{eventually, http_get};
use vestibule_webhook::Admission;
use vestibule_webhook::server::{WATCHED, Webhook, WebhookConfig};

use objects::{CONTROLLER, object};

/// The name that clients want.
const SERVER_NAME: &str = "vestibule-webhook.vestibule-system.svc";

/// Longest wait for something that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A certificate for the name of the server that the tests start.
pub struct Certificate {
    /// The certificate, in PEM.
    pub chain: String,
    /// Its key, in PEM.
    pub key: String,
    /// The certificate, in DER.
    pub der: CertificateDer<'static>,
}

impl Certificate {
    /// A new self-signed certificate.
    pub fn self_signed() -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            chain: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
        }
    }
}

/// A directory such as the kubelet mounts for a Secret; removed when it is dropped.
pub struct TlsDir {
    /// Where it is.
    pub path: PathBuf,
    version: AtomicUsize,
}

impl TlsDir {
    /// An empty one. `name` differs among the tests of a binary.
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("vestibule-webhook-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), path.join(file)).expect("a link");
        }
        Self {
            path,
            version: AtomicUsize::new(0),
        }
    }

    /// Puts a certificate with its key there, as the kubelet does.
    pub fn put(&self, chain: &str, key: &str) {
        let version = format!("..{}", self.version.fetch_add(1, Ordering::Relaxed));
        let data = self.path.join(&version);
        fs::create_dir_all(&data).expect("a directory");
        fs::write(data.join("tls.crt"), chain).expect("a file");
        fs::write(data.join("tls.key"), key).expect("a file");
        let link = self.path.join("..new");
        symlink(version, &link).expect("a link");
        fs::rename(&link, self.path.join("..data")).expect("a rename");
    }
}

impl Drop for TlsDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Some free port of loopback.
pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The configuration of a server on loopback that looks at its certificate often.
pub fn config(tls_dir: &Path) -> WebhookConfig {
    let mut config = WebhookConfig::new(loopback(), loopback(), tls_dir);
    config.tls_poll = Duration::from_millis(20);
    config
}

/// The event with which a watch shows an object.
fn put(value: Value) -> Event {
    let object = object(value);
    Event::Put(Box::new(Watched {
        key: object.key(),
        object,
        findings: Vec::new(),
        uid: "".into(),
        resource_version: "1".into(),
        status: Value::Null,
    }))
}

/// The events that say that each watch has shown everything.
pub fn all_synced() -> impl Iterator<Item = Event> {
    WATCHED.into_iter().map(Event::Synced)
}

/// A server that is ready, with these objects.
pub async fn ready(dir: &TlsDir, policy: Policy, objects: Vec<Value>) -> Webhook {
    serving(dir, Admission::new(CONTROLLER, policy), objects).await
}

/// The same of this admission.
pub async fn serving(dir: &TlsDir, admission: Admission, objects: Vec<Value>) -> Webhook {
    let mut webhook = Webhook::start(config(&dir.path), admission).expect("a server");
    let events: Vec<Event> = objects.into_iter().map(put).chain(all_synced()).collect();
    webhook.follow(futures::stream::iter(events).chain(futures::stream::pending()));
    eventually("ready", async || {
        readyz(webhook.admin()).await == StatusCode::OK
    })
    .await;
    webhook
}

/// Plain HTTP.
pub async fn get(admin: SocketAddr, path: &str) -> (StatusCode, String) {
    let (status, text) = http_get(admin, path).await;
    (StatusCode::from_u16(status).expect("a status"), text)
}

/// The status of the readiness probe.
pub async fn readyz(admin: SocketAddr) -> StatusCode {
    get(admin, "/readyz").await.0
}

/// What a server answered.
pub struct Answer {
    /// The status of HTTP.
    pub status: StatusCode,
    /// The body.
    pub text: String,
    /// Whether the server said that the connection ends here.
    pub last: bool,
}

impl Answer {
    /// The body of a good answer.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        serde_json::from_str(&self.text).expect("JSON")
    }
}

/// One connection to the server, kept alive.
pub struct Client {
    /// The connection.
    pub sender: SendRequest<Full<Bytes>>,
    /// The certificate that the server showed.
    pub shown: CertificateDer<'static>,
}

/// Trusts `trusted` and nothing else.
pub async fn tls(
    address: SocketAddr,
    trusted: &[CertificateDer<'static>],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_of(address, trusted, rustls::DEFAULT_VERSIONS).await
}

/// The same with these versions of TLS.
pub async fn tls_of(
    address: SocketAddr,
    trusted: &[CertificateDer<'static>],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_over(TcpStream::connect(address).await?, trusted, versions).await
}

/// The same on a connection that is there.
pub async fn tls_over(
    stream: TcpStream,
    trusted: &[CertificateDer<'static>],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.clone()).expect("a root");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    // As Go's client offers them.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

impl Client {
    /// Connects, and trusts `trusted` and nothing else.
    pub async fn connect(
        address: SocketAddr,
        trusted: &[CertificateDer<'static>],
    ) -> std::io::Result<Self> {
        let stream = tls(address, trusted).await?;
        let session = stream.get_ref().1;
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
        let shown = session.peer_certificates().expect("a certificate")[0]
            .clone()
            .into_owned();
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { sender, shown })
    }

    /// Sends a review.
    pub async fn post(&mut self, body: impl Into<Bytes>) -> hyper::Result<Answer> {
        self.send(
            Method::POST,
            "/validate?timeout=5s",
            "application/json",
            body,
        )
        .await
    }

    /// Sends a request.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        media: &str,
        body: impl Into<Bytes>,
    ) -> hyper::Result<Answer> {
        self.sender.ready().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, SERVER_NAME)
            .header(header::CONTENT_TYPE, media)
            .body(Full::new(body.into()))
            .expect("a request");
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let last = response
            .headers()
            .get(header::CONNECTION)
            .is_some_and(|value| value == "close");
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer {
            status,
            text: String::from_utf8(body.into()).expect("text"),
            last,
        })
    }
}

/// What an API server sends when `object` is created.
pub fn created(object: &Value) -> Value {
    review("CREATE", object, &Value::Null)
}

/// What an API server sends for an operation on an object.
pub fn review(operation: &str, object: &Value, old: &Value) -> Value {
    let some = if object.is_null() { old } else { object };
    let (group, version) = some["apiVersion"]
        .as_str()
        .and_then(|text| text.rsplit_once('/'))
        .unwrap_or(("", "v1"));
    let kind = json!({"group": group, "version": version, "kind": some["kind"]});
    let plural = format!(
        "{}s",
        some["kind"].as_str().unwrap_or_default().to_lowercase()
    );
    let resource = json!({"group": group, "version": version, "resource": plural});
    let mut request = json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "name": some["metadata"]["name"],
        "operation": operation,
        "userInfo": {"username": "dev@alpha", "groups": ["system:authenticated"]},
        "object": object, "oldObject": old, "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    });
    if let Some(namespace) = some["metadata"]["namespace"].as_str() {
        request["namespace"] = namespace.into();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

/// What kubectl shows of an answer: warnings, then the error if there is one
/// (`cmd/util/helpers.go`, `webhook/errors/statuserror.go`).
pub fn as_kubectl_shows(answer: &Value, webhook: &str) -> Vec<String> {
    let response = &answer["response"];
    let mut lines: Vec<String> = response["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|warning| format!("Warning: {}", warning.as_str().expect("text")))
        .collect();
    if response["allowed"] == false {
        let status = &response["status"];
        lines.push(format!(
            "Error from server ({}): admission webhook {webhook:?} denied the request: {}",
            status["reason"].as_str().expect("a reason"),
            status["message"].as_str().expect("a message"),
        ));
    }
    lines
}
