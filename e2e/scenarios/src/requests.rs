//! HTTP requests as a browser makes them: HTTP/1.1 or HTTP/2, over TLS or not, each on a new connection or on one
//! that is kept. Nothing is tried twice.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::client::Failure;
use crate::echo::Answer;
use crate::websocket;

/// How long opening, or one request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// As much of an answer's body as an error message shows, in characters.
const SHOWN: usize = 120;

/// Which HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// HTTP/1.1.
    One,
    /// HTTP/2: by ALPN, or by prior knowledge where there is no TLS.
    Two,
}

/// Whom to ask, at which address, and how.
#[derive(Clone)]
pub(crate) struct Origin {
    /// Address of the Gateway, or of one proxy.
    pub(crate) address: SocketAddr,
    /// The hostname to ask for.
    pub(crate) host: String,
    version: Version,
    tls: Option<Arc<ClientConfig>>,
}

/// What came back, whatever its status.
#[derive(Debug)]
pub(crate) struct Got {
    /// The status code.
    pub(crate) status: u16,
    /// The header fields.
    pub(crate) fields: HeaderMap,
    body: Bytes,
}

impl Got {
    fn new(head: http::response::Parts, body: Bytes) -> Self {
        Self {
            status: head.status.as_u16(),
            fields: head.headers,
            body,
        }
    }

    /// The length of the body, in bytes.
    pub(crate) fn body_length(&self) -> usize {
        self.body.len()
    }

    /// The answer of a backend: a 200 with what our backends say.
    pub(crate) fn answer(&self) -> Result<Answer, Failure> {
        if self.status != 200 {
            return Err(Failure::Answer(self.to_string()));
        }
        serde_json::from_slice(&self.body).map_err(|_| Failure::Answer(self.to_string()))
    }
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        let body: String = body.trim().chars().take(SHOWN).collect();
        write!(f, "{} {body}", self.status)
    }
}

impl Origin {
    /// A hostname over TLS, verified with these roots.
    pub(crate) fn tls(
        address: SocketAddr,
        host: &str,
        roots: RootCertStore,
        version: Version,
    ) -> Self {
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every connection does the whole handshake: what is counted is a new client.
        config.resumption = rustls::client::Resumption::disabled();
        config.alpn_protocols = vec![match version {
            Version::One => b"http/1.1".to_vec(),
            Version::Two => b"h2".to_vec(),
        }];
        Self {
            address,
            host: host.to_owned(),
            version,
            tls: Some(Arc::new(config)),
        }
    }

    /// A hostname in plaintext.
    pub(crate) fn plain(address: SocketAddr, host: &str, version: Version) -> Self {
        Self {
            address,
            host: host.to_owned(),
            version,
            tls: None,
        }
    }

    /// Which HTTP it is asked in.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The same at another address.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self {
            address,
            ..self.clone()
        }
    }

    /// Opens a connection.
    pub(crate) async fn open(&self) -> Result<Connection, Failure> {
        match timeout(PATIENCE, self.opened()).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn opened(&self) -> Result<Connection, Failure> {
        let (stream, certificate) = self.stream().await?;
        let (sender, driver) = match self.version {
            Version::One => {
                let handshake = http1::handshake(TokioIo::new(stream));
                let (sender, connection) = handshake.await.map_err(failure)?;
                (Sender::One(sender), tokio::spawn(connection.map(drop)))
            }
            Version::Two => {
                let handshake = h2::client::handshake(stream);
                let (sender, connection) =
                    handshake.await.map_err(|error| failure_of_h2(&error))?;
                (Sender::Two(sender), tokio::spawn(connection.map(drop)))
            }
        };
        Ok(Connection {
            sender,
            driver,
            certificate,
            host: self.host.clone(),
            scheme: if self.tls.is_some() { "https" } else { "http" },
        })
    }

    /// A connection on which nothing was said yet, and the certificate that was shown.
    pub(crate) async fn stream(
        &self,
    ) -> Result<(Stream, Option<CertificateDer<'static>>), Failure> {
        let stream = TcpStream::connect(self.address).await;
        let stream = stream.map_err(|error| Failure::of(&error))?;
        stream.set_nodelay(true).map_err(|e| Failure::of(&e))?;
        let Some(config) = &self.tls else {
            return Ok((Box::new(stream), None));
        };
        let name = ServerName::try_from(self.host.clone());
        let name = name.map_err(|error| Failure::Other(error.to_string()))?;
        let connector = TlsConnector::from(config.clone());
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|error| Failure::of(&error))?;
        let shown = stream.get_ref().1.peer_certificates();
        let shown = shown.and_then(|chain| chain.first().cloned());
        let shown = shown.map(CertificateDer::into_owned);
        Ok((Box::new(stream), shown))
    }

    /// A ClientHello that offers these protocols before its own one (ALPN).
    pub(crate) fn hello(&self, protocols: Vec<Vec<u8>>) -> Result<Vec<u8>> {
        let config = self.tls.as_ref().context("in plaintext there is none")?;
        let mut config = ClientConfig::clone(config);
        let own = std::mem::take(&mut config.alpn_protocols);
        config.alpn_protocols = [protocols, own].concat();
        let name = ServerName::try_from(self.host.clone())?;
        let mut client = ClientConnection::new(Arc::new(config), name)?;
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Opens a connection, asks once, closes it.
    pub(crate) async fn ask(&self) -> Result<Got, Failure> {
        self.open().await?.ask("/").await
    }
}

/// A connection, over TLS or not.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

pub(crate) type Stream = Box<dyn Io>;

enum Sender {
    One(http1::SendRequest<Empty<Bytes>>),
    /// h2 itself, because hyper does not tell a request that was not processed from one that was refused.
    Two(h2::client::SendRequest<Bytes>),
}

/// An open connection.
pub(crate) struct Connection {
    sender: Sender,
    driver: JoinHandle<()>,
    certificate: Option<CertificateDer<'static>>,
    host: String,
    scheme: &'static str,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// The certificate that the other side showed.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.certificate.as_ref()
    }

    /// Whether it takes another request: the other side may have said that it was the last one, or ended it.
    pub(crate) async fn is_open(&mut self) -> bool {
        match &mut self.sender {
            Sender::One(sender) => sender.ready().await.is_ok(),
            Sender::Two(sender) => poll_fn(|cx| sender.poll_ready(cx)).await.is_ok(),
        }
    }

    /// Asks for another hostname from now on, as a client does that uses one connection for several.
    pub(crate) fn set_host(&mut self, host: &str) {
        host.clone_into(&mut self.host);
    }

    /// Sends a request, and reads the whole of what comes back.
    pub(crate) async fn ask(&mut self, path: &str) -> Result<Got, Failure> {
        match timeout(PATIENCE, self.exchange(path)).await {
            Ok(got) => got,
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn exchange(&mut self, path: &str) -> Result<Got, Failure> {
        let broken = |error: http::Error| Failure::Other(error.to_string());
        match &mut self.sender {
            Sender::One(sender) => {
                let request = Request::get(path).header("host", &self.host);
                let request = request.body(Empty::new()).map_err(broken)?;
                // After an answer it is a moment until the connection takes another request.
                sender.ready().await.map_err(failure)?;
                let response = sender.send_request(request).await.map_err(failure)?;
                let (head, body) = response.into_parts();
                let body = body.collect().await.map_err(failure)?;
                Ok(Got::new(head, body.to_bytes()))
            }
            Sender::Two(sender) => {
                let uri = format!("{}://{}{path}", self.scheme, self.host);
                let request = Request::get(uri).body(()).map_err(broken)?;
                let sent = sender.send_request(request, true);
                let (response, _) = sent.map_err(|error| failure_of_h2(&error))?;
                let got = async {
                    let (head, mut body) = response.await?.into_parts();
                    let mut bytes = BytesMut::new();
                    while let Some(piece) = body.data().await {
                        let piece = piece?;
                        body.flow_control().release_capacity(piece.len())?;
                        bytes.extend_from_slice(&piece);
                    }
                    Ok(Got::new(head, bytes.freeze()))
                };
                got.await.map_err(|error| failure_of_h2(&error))
            }
        }
    }
}

/// Counts an error of HTTP/2 as one of the failures.
///
/// h2 gives a GOAWAY as the error of a request only if the request came too late for it: those up to the last stream of
/// the GOAWAY go on.
fn failure_of_h2(error: &h2::Error) -> Failure {
    match error.get_io() {
        Some(error) => Failure::of(error),
        None if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => {
            Failure::NotProcessed
        }
        None => Failure::Other(error.to_string()),
    }
}

/// What is below an error of hyper.
#[expect(clippy::needless_pass_by_value, reason = "what is passed to map_err")]
fn failure(error: hyper::Error) -> Failure {
    use std::error::Error as _;
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Failure::of(error);
        }
        cause = error.source();
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return Failure::Closed;
    }
    match error.source() {
        Some(source) => Failure::Other(format!("{error}: {source}")),
        None => Failure::Other(error.to_string()),
    }
}

/// A WebSocket that is held open.
pub(crate) struct WebSocket {
    stream: Stream,
}

impl WebSocket {
    /// Upgrades a new connection.
    pub(crate) async fn open(origin: &Origin) -> Result<Self, Failure> {
        match timeout(PATIENCE, Self::opened(origin)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn opened(origin: &Origin) -> Result<Self, Failure> {
        let (mut stream, _) = origin.stream().await?;
        let key = crate::encoding::base64(b"sixteen bytes of");
        let request = format!(
            "GET / HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n",
            origin.host
        );
        let upgraded = async {
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            let mut head = Vec::new();
            // What is behind the head is left where it is.
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
            Ok(String::from_utf8_lossy(&head).into_owned())
        };
        let head = upgraded.await.map_err(|error| Failure::of(&error))?;
        if head.starts_with("HTTP/1.1 101") && head.contains(&websocket::accept(&key)) {
            Ok(Self { stream })
        } else {
            let line = head.lines().next().unwrap_or_default();
            Err(Failure::Answer(line.to_owned()))
        }
    }

    /// Sends a text and has it back.
    pub(crate) async fn ask(&mut self) -> Result<(), Failure> {
        const TEXT: &[u8] = b"are you there";
        const MASK: Option<[u8; 4]> = Some([7, 11, 13, 17]);
        let exchange = async {
            websocket::send(&mut self.stream, TEXT, MASK).await?;
            websocket::receive(&mut self.stream).await
        };
        match timeout(PATIENCE, exchange).await {
            Err(_) => Err(Failure::Timeout),
            Ok(Ok(Some(text))) if text == TEXT => Ok(()),
            Ok(Ok(Some(text))) => Err(Failure::Answer(String::from_utf8_lossy(&text).into_owned())),
            Ok(Ok(None)) => Err(Failure::Closed),
            Ok(Err(error)) => Err(match error.downcast_ref::<std::io::Error>() {
                Some(error) => Failure::of(error),
                None => Failure::Other(format!("{error:#}")),
            }),
        }
    }
}
