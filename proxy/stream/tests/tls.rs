//! The client's end over TLS with an authority of its own: trust and token are read anew for each
//! connection, a follower's redirect is followed by address, and what fails says what to do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use vestibule_backoff::Backoff;
use vestibule_stream::client::{Client, ClientState, Config, Connect, Tls};
use vestibule_stream::proto::config_stream_server::{ConfigStream, ConfigStreamServer};
use vestibule_stream::proto::{
    NotLeader, OperatorMessage, ProxyMessage, Welcome, operator_message::Message,
};
use vestibule_stream::{Apply, Change, PROTOCOL_VERSION, ProxyIdentity, Reject};

const PATIENCE: Duration = Duration::from_secs(30);
const NAME: &str = "edge-operator.vestibule.svc";

/// Applies nothing: these tests are about the way there.
struct Nothing;

impl Apply for Nothing {
    fn apply(&mut self, _: &Change) -> Vec<Reject> {
        Vec::new()
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn leaf(&self) -> Arc<CertifiedKey> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).unwrap();
        Arc::new(CertifiedKey::new(vec![leaf.der().clone()], signer))
    }
}

/// What a replica does at this moment; tests change it.
#[derive(Debug)]
struct Replica {
    certificate: Mutex<Arc<CertifiedKey>>,
    /// The one token that is taken.
    token: Mutex<String>,
    /// The leader, if it is not this replica.
    leader: Option<String>,
    /// Ends the streams that are open.
    broken: watch::Sender<()>,
    /// The names asked for, and the authorities of requests.
    seen: Mutex<Vec<String>>,
}

impl Replica {
    async fn start(
        authority: &Authority,
        token: &str,
        leader: Option<String>,
    ) -> (Arc<Self>, SocketAddr) {
        let replica = Arc::new(Self {
            certificate: Mutex::new(authority.leaf()),
            token: Mutex::new(token.to_owned()),
            leader,
            broken: watch::Sender::new(()),
            seen: Mutex::default(),
        });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(&replica));
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming =
            futures::stream::unfold((listener, acceptor), async |(listener, acceptor)| {
                loop {
                    let (stream, _) = listener.accept().await.ok()?;
                    if let Ok(stream) = acceptor.accept(stream).await {
                        return Some((Ok::<_, std::io::Error>(Io(stream)), (listener, acceptor)));
                    }
                }
            });
        let service = ConfigStreamServer::from_arc(Arc::new(Service(Arc::clone(&replica))));
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        (replica, address)
    }

    fn break_streams(&self) {
        self.broken.send_replace(());
    }
}

impl ResolvesServerCert for Replica {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default();
        self.seen.lock().push(name.to_owned());
        Some(Arc::clone(&self.certificate.lock()))
    }
}

struct Service(Arc<Replica>);

#[tonic::async_trait]
impl ConfigStream for Service {
    type SubscribeStream = BoxStream<'static, Result<OperatorMessage, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let shown = request.metadata().get("authorization").map(|value| {
            assert!(!format!("{value:?}").contains("token"), "it is sensitive");
            value.to_str().unwrap().to_owned()
        });
        if shown != Some(format!("Bearer {}", self.0.token.lock())) {
            return Err(Status::unauthenticated("the token was not issued here"));
        }
        let mut broken = self.0.broken.subscribe();
        let first = match &self.0.leader {
            Some(leader) => Message::NotLeader(NotLeader {
                leader: leader.clone(),
            }),
            None => Message::Welcome(Welcome {
                protocol: PROTOCOL_VERSION,
                release: "test".into(),
                term: 1,
            }),
        };
        let first = futures::stream::iter([Ok(OperatorMessage {
            message: Some(first),
        })]);
        let end = futures::stream::once(async move {
            let _ = broken.changed().await;
            Err(Status::unavailable("broken on purpose"))
        });
        Ok(Response::new(first.chain(end).boxed()))
    }
}

struct Io(TlsStream<TcpStream>);

impl Connected for Io {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The files of a proxy's pod.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn roots(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    fn write(&self, roots: &str, token: &str) {
        std::fs::write(self.roots(), roots).unwrap();
        std::fs::write(self.token(), format!("{token}\n")).unwrap();
    }

    fn connector(&self, name: &str) -> Tls {
        Tls::new(self.roots(), name, Some(self.token())).unwrap()
    }
}

fn run(address: String, tls: Tls) -> watch::Receiver<ClientState> {
    let config = Config {
        backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(50)),
        ..Config::new(ProxyIdentity::new("edge-proxy-0"), vec![address])
    };
    let (client, state) = Client::new(config, tls, Nothing);
    tokio::spawn(client.run());
    state
}

async fn until(
    state: &mut watch::Receiver<ClientState>,
    what: &str,
    is: impl Fn(&ClientState) -> bool,
) {
    let reached = tokio::time::timeout(PATIENCE, state.wait_for(|state| is(state))).await;
    let reached = reached.map(|result| result.map(|state| state.clone()));
    assert!(matches!(reached, Ok(Ok(_))), "{what}: {:?}", state.borrow());
}

/// Waits for a failure of `reason` whose message has `words`.
async fn until_failed(state: &mut watch::Receiver<ClientState>, reason: &str, words: &str) {
    until(state, words, |state| {
        let last = state.last_refusal.as_ref();
        last.is_some_and(|last| last.reason == reason && last.message.contains(words))
    })
    .await;
}

#[tokio::test]
async fn a_rotated_authority_and_a_rotated_token_need_no_restart() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = Files::new("rotation");
    files.write(&old.pem, "one");
    let (replica, address) = Replica::start(&old, "one", None).await;
    let mut state = run(address.to_string(), files.connector(NAME));
    until(&mut state, "welcomed", |s| s.welcomed == 1).await;
    assert_eq!(replica.seen.lock().as_slice(), [NAME]);

    // The bundle has both before a leaf of the new one is served, and then only the new one.
    files.write(&format!("{}{}", old.pem, new.pem), "two");
    *replica.token.lock() = "two".to_owned();
    *replica.certificate.lock() = new.leaf();
    replica.break_streams();
    until(&mut state, "with both", |s| s.welcomed == 2).await;
    files.write(&new.pem, "two");
    replica.break_streams();
    until(&mut state, "with the new one", |s| s.welcomed == 3).await;

    // The client does not talk to a replica with a certificate of the authority that has left, until it is renewed.
    *replica.certificate.lock() = old.leaf();
    replica.break_streams();
    until_failed(
        &mut state,
        "Unreachable",
        "signed the operator's certificate",
    )
    .await;
    *replica.certificate.lock() = new.leaf();
    until(&mut state, "renewed", |s| {
        s.welcomed == 4 && s.connected.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_refused_token_is_shown_again_from_the_file() {
    let authority = Authority::new();
    let files = Files::new("token");
    files.write(&authority.pem, "expired");
    let (_replica, address) = Replica::start(&authority, "fresh", None).await;
    let mut state = run(address.to_string(), files.connector(NAME));
    until_failed(&mut state, "Unauthorized", "the token was not issued here").await;
    assert!(!format!("{:?}", *state.borrow()).contains("expired"));
    files.write(&authority.pem, "");
    until_failed(&mut state, "Unauthorized", "no token in").await;
    std::fs::remove_file(files.token()).unwrap();
    until_failed(&mut state, "Unauthorized", "cannot read a token").await;
    files.write(&authority.pem, "fresh");
    until(&mut state, "welcomed", |s| s.welcomed == 1).await;
}

#[tokio::test]
async fn a_follower_leads_to_the_leader_by_its_address() {
    let authority = Authority::new();
    let files = Files::new("leader");
    files.write(&authority.pem, "t");
    let (leader, led) = Replica::start(&authority, "t", None).await;
    let (_follower, address) = Replica::start(&authority, "t", Some(led.to_string())).await;
    let mut state = run(address.to_string(), files.connector(NAME));
    until(&mut state, "welcomed", |s| {
        s.connected == Some(led.to_string())
    })
    .await;
    // The certificate is for the Service's name, whatever address is dialled.
    assert_eq!(leader.seen.lock().as_slice(), [NAME]);
}

#[tokio::test]
async fn connection_errors_say_what_is_wrong() {
    let authority = Authority::new();
    let files = Files::new("wrong");
    files.write(&authority.pem, "t");
    let (_replica, address) = Replica::start(&authority, "t", None).await;
    let address = address.to_string();
    let fails = async |tls: Tls, address: &str| tls.connect(address).await.unwrap_err().to_string();

    let text = fails(files.connector("other.vestibule.svc"), &address).await;
    assert!(text.contains("--config-server-name"), "{text}");
    let text = fails(files.connector(NAME), "127.0.0.1:1").await;
    assert!(text.starts_with("127.0.0.1:1: "), "{text}");
    let text = fails(files.connector(NAME), "nowhere.invalid:1").await;
    assert!(text.contains("cannot resolve nowhere.invalid:1"), "{text}");
    files.write("no PEM", "t");
    let text = fails(files.connector(NAME), &address).await;
    assert!(text.contains("no certificate in"), "{text}");
    std::fs::remove_file(files.roots()).unwrap();
    let text = fails(files.connector(NAME), &address).await;
    assert!(text.contains("cannot read trusted certificates"), "{text}");
    assert!(Tls::new("ca.crt", "not a name", None).is_err());
    // Plaintext is not spoken to whoever does not speak TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = plain.local_addr().unwrap().to_string();
    files.write(&authority.pem, "t");
    let hang_up = tokio::spawn(async move { drop(plain.accept().await) });
    let text = fails(files.connector(NAME), &at).await;
    assert!(text.starts_with(&at), "{text}");
    hang_up.await.unwrap();
}
