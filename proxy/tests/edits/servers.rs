//! Backends that say who they are and what they were asked, and the certificates that everybody shows.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::{StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use vestibule_proxy_testing::acme::ChallengeCertificate;
use vestibule_proxy_testing::web::serve_http;
use vestibule_proxy_testing::{Authority, Identity};
use vestibule_proxy_testing::{provider, refusing, serve};

/// Names that are in the certificate of every backend over TLS.
pub(crate) const INNER: [&str; 2] = ["n0.internal", "n1.internal"];
/// A name that is in none.
pub(crate) const NOBODYS: &str = "n9.internal";
/// The field that asks a backend to wait until so many edits are done, or for ever if it says [`NEVER`].
pub(crate) const UNTIL: &str = "x-until";
/// The value of [`UNTIL`] that asks a backend not to answer.
pub(crate) const NEVER: &str = "never";
/// The same, in the middle of its answer's body.
pub(crate) const DRIPS: &str = "x-drips";
/// What request filters write, and the backend says that it saw.
pub(crate) const ASKED: &str = "x-asked";
/// What the backend says in its answer.
pub(crate) const SEEN: &str = "x-seen";

/// What a backend understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP/1.1.
    One,
    /// HTTP/2 by prior knowledge.
    Two,
    /// TLS with a certificate of this authority, and either within.
    Tls(usize),
}

/// A backend of the tests, which lives as long as they do.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) speaks: Speaks,
}

/// Everything that stays the same over a history: servers, and keys to configure.
pub(crate) struct Props {
    pub(crate) servers: Vec<Server>,
    /// An address where nobody listens.
    pub(crate) dead: SocketAddr,
    /// The authorities of backends.
    pub(crate) authorities: Vec<Authority>,
    /// The authorities of clients, and of Gateways towards backends.
    pub(crate) clients: Vec<Authority>,
    /// The certificates that listeners show.
    pub(crate) leaves: Vec<Identity>,
    /// The certificates that Gateways show to backends.
    pub(crate) shown: Vec<Identity>,
    /// The certificates that clients show to listeners, one of each authority of clients.
    pub(crate) showing: Vec<Identity>,
    pub(crate) challenges: Vec<(String, ChallengeCertificate)>,
    /// The name of each certificate, by its encoding.
    pub(crate) labels: HashMap<Vec<u8>, String>,
}

impl Props {
    /// Starts the servers. `done` is how many edits are done.
    pub(crate) async fn start(hosts: &[&str], done: &watch::Receiver<usize>) -> Self {
        let authorities = vec![Authority::new("backends 0"), Authority::new("backends 1")];
        let clients = vec![Authority::new("clients 0"), Authority::new("clients 1")];
        let mut labels = HashMap::new();
        let mut leaves = |count: usize, what: &str, make: &dyn Fn(usize) -> Identity| {
            let made = (0..count).map(make).collect::<Vec<_>>();
            for (index, leaf) in made.iter().enumerate() {
                labels.insert(leaf.chain[0].to_vec(), format!("{what}{index}"));
            }
            made
        };
        let listeners = leaves(4, "leaf", &|_| {
            authorities[0].server(&["*.example.com"], &[])
        });
        let shown = leaves(3, "shown", &|n| clients[0].client(&format!("gateway {n}")));
        let showing = leaves(2, "client", &|n| clients[n].client(&format!("client {n}")));
        let of_servers = leaves(4, "s", &|n| authorities[n / 2].server(&INNER, &[]));
        let challenges = hosts.iter().map(|host| {
            let certificate = ChallengeCertificate::new(host);
            labels.insert(certificate.certificate.clone(), format!("challenge {host}"));
            ((*host).to_owned(), certificate)
        });
        let challenges = challenges.collect();
        let labels = labels.clone();
        let mut servers = Vec::new();
        let mut add = |name: String, address, speaks| {
            servers.push(Server {
                name,
                address,
                speaks,
            });
        };
        for n in 0..4 {
            let host = Host::new(&format!("p{n}"), done, &labels);
            let address = serve(move |tcp| host.clone().plain(tcp, false)).await;
            add(format!("p{n}"), address, Speaks::One);
        }
        for n in 0..2 {
            let host = Host::new(&format!("h{n}"), done, &labels);
            let address = serve(move |tcp| host.clone().plain(tcp, true)).await;
            add(format!("h{n}"), address, Speaks::Two);
        }
        for (n, leaf) in of_servers.iter().enumerate() {
            let host = Host::new(&format!("s{n}"), done, &labels);
            let acceptor = TlsAcceptor::from(Arc::new(optional(leaf, &clients)));
            let address = serve(move |tcp| host.clone().tls(tcp, acceptor.clone())).await;
            add(format!("s{n}"), address, Speaks::Tls(n / 2));
        }
        Self {
            servers,
            dead: refusing(),
            authorities,
            clients,
            leaves: listeners,
            shown,
            showing,
            challenges,
            labels,
        }
    }

    /// The server at an address.
    pub(crate) fn at(&self, address: SocketAddr) -> Option<&Server> {
        self.servers.iter().find(|server| server.address == address)
    }

    /// The name of a certificate.
    pub(crate) fn label(&self, der: &[u8]) -> &str {
        self.labels.get(der).map_or("unknown", String::as_str)
    }
}

/// A server that takes a certificate of its clients, and does without.
fn optional(leaf: &Identity, clients: &[Authority]) -> rustls::ServerConfig {
    let mut roots = RootCertStore::empty();
    for authority in clients {
        roots.roots.extend(authority.roots().roots.iter().cloned());
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let verifier = verifier.allow_unauthenticated().build().unwrap();
    let mut config = leaf.server_config_of(verifier);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// What a server knows of itself.
#[derive(Clone)]
struct Host {
    name: Arc<str>,
    done: watch::Receiver<usize>,
    labels: Arc<HashMap<Vec<u8>, String>>,
}

impl Host {
    fn new(name: &str, done: &watch::Receiver<usize>, labels: &HashMap<Vec<u8>, String>) -> Self {
        Self {
            name: name.into(),
            done: done.clone(),
            labels: Arc::new(labels.clone()),
        }
    }

    async fn plain(self, tcp: TcpStream, two: bool) {
        self.http(tcp, two, "tls=- cert=-".into()).await;
    }

    async fn tls(self, tcp: TcpStream, acceptor: TlsAcceptor) {
        let Ok(stream) = acceptor.accept(tcp).await else {
            return;
        };
        let session = stream.get_ref().1;
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let shown = shown.map_or("-", |der| {
            self.labels.get(&**der).map_or("?", String::as_str)
        });
        let name = session.server_name().unwrap_or("-");
        let layer = format!("tls={name} cert={shown}");
        let two = session.alpn_protocol() == Some(b"h2");
        self.http(stream, two, layer.into()).await;
    }

    async fn http<I>(self, stream: I, two: bool, layer: Arc<str>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answer = move |request| {
            let (host, layer) = (self.clone(), Arc::clone(&layer));
            async move { host.answer(request, &layer).await }
        };
        serve_http(stream, two, answer).await;
    }

    async fn answer(self, mut request: Request<Incoming>, layer: &str) -> Response<Said> {
        let number = |name| {
            let field = request.headers().get(name)?;
            field.to_str().ok()?.parse::<usize>().ok()
        };
        let (until, drips) = (number(UNTIL), number(DRIPS));
        let never = request
            .headers()
            .get(UNTIL)
            .is_some_and(|until| until == NEVER);
        let mut seen = seen(&self.name, layer, &request);
        let upgraded = request
            .headers()
            .contains_key(UPGRADE)
            .then(|| hyper::upgrade::on(&mut request));
        match request.into_body().collect().await {
            Ok(body) => write!(seen, " body={}", body.to_bytes().len()).unwrap(),
            Err(_) => seen += " body=broken",
        }
        if never {
            std::future::pending::<()>().await;
        }
        wait_for(self.done.clone(), until).await;
        let answer = Response::builder().header(SEEN, seen);
        let Some(upgraded) = upgraded else {
            let parts = [("o", None), ("k", drips)];
            let body = stream::iter(parts).then(move |(part, until)| {
                let done = self.done.clone();
                async move {
                    wait_for(done, until).await;
                    Ok(Frame::data(Bytes::from(part)))
                }
            });
            let answer = answer.header("content-length", BODY.len());
            return answer.body(BodyExt::boxed(StreamBody::new(body))).unwrap();
        };
        tokio::spawn(async move {
            if let Ok(upgraded) = upgraded.await {
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
                let _ = tokio::io::copy(&mut read, &mut write).await;
            }
        });
        let answer = answer.status(StatusCode::SWITCHING_PROTOCOLS);
        let answer = answer
            .header(UPGRADE, "websocket")
            .header(CONNECTION, "upgrade");
        answer.body(BodyExt::boxed(Empty::new())).unwrap()
    }
}

/// What backends answer with.
pub(crate) const BODY: &str = "ok";

type Said = BoxBody<Bytes, Infallible>;

async fn wait_for(mut done: watch::Receiver<usize>, until: Option<usize>) {
    if let Some(until) = until {
        let _ = done.wait_for(|done| *done >= until).await;
    }
}

/// What a backend says of a request. The model says the same, see [`crate::edits::model`].
fn seen(name: &str, layer: &str, request: &Request<Incoming>) -> String {
    let version = if request.version() == Version::HTTP_2 {
        2
    } else {
        1
    };
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request
            .headers()
            .get("host")
            .map_or("-", |host| host.to_str().unwrap()),
    };
    let asked = request.headers().get_all(ASKED).iter();
    let asked: Vec<_> = asked.map(|value| value.to_str().unwrap()).collect();
    let (uri, asked) = (request.uri(), asked.join(","));
    let path = uri.path_and_query().map_or("-", |path| path.as_str());
    format!("srv={name} {layer} v={version} host={host} path={path} asked={asked}")
}
