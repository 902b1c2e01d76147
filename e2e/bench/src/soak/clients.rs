//! The clients of a tenant. None of them tries anything twice.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::FutureExt;
use http::HeaderValue;
use http_body_util::{BodyExt, Collected, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::backends::receipt;
use super::balancer::Doors;
use super::ledger::{Kind, Ledger, WrongAnswer};
use super::world::{METHOD, Site};
use crate::http1;

/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests that are made on a connection, at least; each client stops at another number.
const REQUESTS: usize = 30;
/// Requests of HTTP/2 at one time, and gRPC calls.
const STREAMS: usize = 4;
const CALLS: usize = 2;
/// Lines of an upload, of 32 bytes each.
const LINES: usize = 8192;
/// The message of a call, behind its flag and its length (gRPC over HTTP/2, Length-Prefixed-Message).
const MESSAGE: &[u8] = b"\0\0\0\0\x04name";
/// The length of what is in front of a message.
const PREFIX: usize = 5;
/// Messages on a connection that carries bytes.
const MESSAGES: u8 = 4;
/// An upgrade's key, whose answer the backend knows (RFC 6455 section 1.3).
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

type Sender = SendRequest<Full<Bytes>>;

/// What all clients share.
pub(super) struct Clients {
    pub(super) target: Doors,
    pub(super) http1: Arc<ClientConfig>,
    pub(super) http2: Arc<ClientConfig>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) ending: AtomicBool,
    /// Between two requests of a client.
    pub(super) every: Duration,
}

impl Clients {
    fn goes_on(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    /// Asks until the soak ends.
    pub(super) async fn ask(self: Arc<Self>, kind: Kind, tenant: usize) {
        // Not all at once.
        sleep(self.every.mul_f64((tenant % 10) as f64 / 10.0)).await;
        while self.goes_on() {
            let mut since = Instant::now();
            let result = match kind {
                Kind::Http1 => self.http1(tenant).await,
                // Some of the uploads are in HTTP/1.1, and the others in HTTP/2.
                Kind::Upload if tenant.is_multiple_of(2) => self.uploads(tenant, &mut since).await,
                Kind::Http2 | Kind::Grpc | Kind::Upload => {
                    self.http2(kind, tenant, &mut since).await
                }
                Kind::WebSocket => within(self.web_socket(tenant)).await,
                Kind::Passthrough => within(self.bytes(Site::Pass, tenant)).await,
                Kind::Terminated => within(self.bytes(Site::Term, tenant)).await,
                Kind::Tcp => within(self.tcp()).await,
            };
            if let Err(error) = result {
                self.ledger.failed(kind, tenant, since, &error);
                sleep(Duration::from_millis(200)).await;
            } else if !kind.is_of_requests() {
                self.ledger.done(kind);
            }
            sleep(self.every).await;
        }
    }

    /// One good answer on a new connection, for the beginning.
    pub(super) async fn check(&self, kind: Kind, tenant: usize) -> Result<()> {
        match kind {
            Kind::Grpc => {
                let (sender, _) = within(self.open_http2(Site::Grpc, tenant)).await?;
                let body = Bytes::from_static(MESSAGE);
                let is_sent = within(self.one(kind, sender, tenant, &body)).await?;
                ensure!(is_sent, "the connection takes no call");
            }
            Kind::Tcp => within(self.tcp()).await?,
            _ => {
                let mut stream = within(self.open(Site::Web, tenant, &self.http1)).await?;
                within(self.request(&mut stream, tenant)).await?;
            }
        }
        Ok(())
    }

    async fn open(
        &self,
        site: Site,
        tenant: usize,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.target.tls)
            .await
            .context("connecting")?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(site.hostname(tenant))?;
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name, stream)
            .await
            .context("TLS handshake")?;
        let chain = stream.get_ref().1.peer_certificates();
        self.ledger
            .saw(chain.and_then(|chain| chain.first()).map(AsRef::as_ref));
        Ok(stream)
    }

    /// Whether the connection can carry another one.
    async fn request(&self, stream: &mut TlsStream<TcpStream>, tenant: usize) -> Result<bool> {
        let name = Site::Web.hostname(tenant);
        let head = format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n");
        exchange(stream, head.as_bytes(), &name_of(tenant)).await
    }

    async fn http1(&self, tenant: usize) -> Result<()> {
        let mut stream = within(self.open(Site::Web, tenant, &self.http1)).await?;
        for _ in 0..REQUESTS + tenant {
            // An idle connection may be closed at any time; a client sees that before it sends.
            let closed = stream.read(&mut [0; 1]).now_or_never();
            if closed.is_some() || !self.goes_on() {
                break;
            }
            let stays = within(self.request(&mut stream, tenant)).await?;
            self.ledger.done(Kind::Http1);
            if !stays {
                break;
            }
            sleep(self.every).await;
        }
        let _ = timeout(PATIENCE, stream.shutdown()).await;
        Ok(())
    }

    /// Uploads in HTTP/1.1. What is under way began at `since`.
    async fn uploads(&self, tenant: usize, since: &mut Instant) -> Result<()> {
        let name = Site::Web.hostname(tenant);
        let body = upload(tenant);
        let wanted = receipt(&name_of(tenant), &body);
        let length = body.len();
        let head =
            format!("POST /upload HTTP/1.1\r\nhost: {name}\r\ncontent-length: {length}\r\n\r\n");
        let request = [head.as_bytes(), &body[..]].concat();
        let mut stream = within(self.open(Site::Web, tenant, &self.http1)).await?;
        for _ in 0..REQUESTS + tenant {
            let closed = stream.read(&mut [0; 1]).now_or_never();
            if closed.is_some() || !self.goes_on() {
                break;
            }
            *since = Instant::now();
            let stays = within(exchange(&mut stream, &request, &wanted)).await?;
            self.ledger.done(Kind::Upload);
            if !stays {
                break;
            }
            sleep(self.every * 4).await;
        }
        let _ = timeout(PATIENCE, stream.shutdown()).await;
        Ok(())
    }

    async fn open_http2(
        &self,
        site: Site,
        tenant: usize,
    ) -> Result<(Sender, JoinHandle<hyper::Result<()>>)> {
        let stream = self.open(site, tenant, &self.http2).await?;
        let io = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        Ok((sender, tokio::spawn(connection)))
    }

    /// Requests in HTTP/2. What is under way began at `since`.
    async fn http2(&self, kind: Kind, tenant: usize, since: &mut Instant) -> Result<()> {
        let site = if kind == Kind::Grpc {
            Site::Grpc
        } else {
            Site::Web
        };
        let (mut sender, connection) = within(self.open_http2(site, tenant)).await?;
        let result = self.requests(kind, &mut sender, tenant, since).await;
        drop(sender);
        if result.is_err() {
            connection.abort();
        }
        result
    }

    async fn requests(
        &self,
        kind: Kind,
        sender: &mut Sender,
        tenant: usize,
        since: &mut Instant,
    ) -> Result<()> {
        let (streams, pause, body) = match kind {
            Kind::Grpc => (CALLS, 4, Bytes::from_static(MESSAGE)),
            Kind::Upload => (1, 4, upload(tenant)),
            _ => (STREAMS, 2, Bytes::new()),
        };
        for _ in 0..(REQUESTS + tenant) / streams {
            // The other side says so when it takes no more.
            if sender.ready().await.is_err() || !self.goes_on() {
                break;
            }
            *since = Instant::now();
            let asked = (0..streams).map(|_| within(self.one(kind, sender.clone(), tenant, &body)));
            for result in futures::future::join_all(asked).await {
                if result? {
                    self.ledger.done(kind);
                }
            }
            sleep(self.every * pause).await;
        }
        Ok(())
    }

    /// One request in HTTP/2 and its answer. Whether it was sent.
    async fn one(&self, kind: Kind, sender: Sender, tenant: usize, body: &Bytes) -> Result<bool> {
        let web = Site::Web.hostname(tenant);
        let request = match kind {
            Kind::Grpc => {
                let grpc = Site::Grpc.hostname(tenant);
                http::Request::post(format!("https://{grpc}{METHOD}"))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
            }
            Kind::Upload => http::Request::post(format!("https://{web}/upload")),
            _ => http::Request::get(format!("https://{web}/")),
        };
        let request = request.body(Full::new(body.clone()))?;
        let Some((head, answer)) = send(sender, request).await? else {
            return Ok(false);
        };
        ensure!(head.status == 200, "status {}", head.status);
        let mut wanted = name_of(tenant);
        let mut from = 0;
        match kind {
            Kind::Grpc => {
                // An answer without messages has them in its head.
                let fields = answer.trailers().unwrap_or(&head.headers);
                let status = fields.get("grpc-status");
                ensure!(
                    status.map(HeaderValue::as_bytes) == Some(&b"0"[..]),
                    "grpc-status {status:?}, {:?}",
                    fields.get("grpc-message")
                );
                from = PREFIX;
            }
            Kind::Upload => wanted = receipt(&wanted, body),
            _ => {}
        }
        let answer = answer.to_bytes();
        is_answer(answer.get(from..).unwrap_or_default(), &wanted)?;
        Ok(true)
    }

    async fn web_socket(&self, tenant: usize) -> Result<()> {
        let mut stream = self.open(Site::Web, tenant, &self.http1).await?;
        let head = format!(
            "GET /ws HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n\r\n",
            Site::Web.hostname(tenant)
        );
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let answer = http1::answer(&mut stream).await?;
        ensure!(answer.status == 101, "status {}", answer.status);
        messages(&mut stream, Duration::from_secs(1)).await
    }

    async fn bytes(&self, site: Site, tenant: usize) -> Result<()> {
        let mut stream = self.open(site, tenant, &self.http1).await?;
        messages(&mut stream, Duration::from_millis(300)).await
    }

    async fn tcp(&self) -> Result<()> {
        let stream = TcpStream::connect(self.target.tcp).await;
        let mut stream = stream.context("connecting")?;
        stream.set_nodelay(true)?;
        messages(&mut stream, Duration::from_millis(300)).await
    }
}

/// A request of HTTP/1.1 and its answer. Whether the connection can carry another one.
async fn exchange(stream: &mut TlsStream<TcpStream>, request: &[u8], wanted: &str) -> Result<bool> {
    stream.write_all(request).await.context("sending")?;
    stream.flush().await.context("sending")?;
    let answer = http1::answer(stream).await?;
    ensure!(answer.status == 200, "status {}", answer.status);
    is_answer(&answer.body, wanted)?;
    Ok(answer.field("connection") != Some("close"))
}

/// Sends a request of HTTP/2, and reads its answer to the end. `None` if it was not sent.
async fn send(
    mut sender: Sender,
    request: http::Request<Full<Bytes>>,
) -> Result<Option<(http::response::Parts, Collected<Bytes>)>> {
    let response = match sender.try_send_request(request).await {
        Ok(response) => response,
        // The client sent nothing of a request that comes back: the other side had just said that it takes no more.
        Err(mut error) => match error.take_message() {
            Some(_) => return Ok(None),
            None => return Err(error.into_error()).context("a request"),
        },
    };
    let (head, body) = response.into_parts();
    let body = body.collect().await.context("a body")?;
    Ok(Some((head, body)))
}

/// The body of a tenant's uploads, no two lines of which are equal.
fn upload(tenant: usize) -> Bytes {
    let mut text = String::with_capacity(LINES * 32);
    for line in 0..LINES {
        let _ = writeln!(text, "{tenant:08} {line:022}");
    }
    text.into()
}

/// Messages there and back, then the end.
async fn messages(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    pause: Duration,
) -> Result<()> {
    for number in 0..MESSAGES {
        let message = [number; 200];
        stream.write_all(&message).await.context("sending")?;
        stream.flush().await.context("sending")?;
        let mut back = [0; 200];
        stream.read_exact(&mut back).await.context("reading")?;
        if back != message {
            return Err(WrongAnswer("another message came back".to_owned()).into());
        }
        sleep(pause).await;
    }
    stream.shutdown().await.context("closing")?;
    Ok(())
}

/// The value of the header in which only the route of this tenant names the tenant.
fn name_of(tenant: usize) -> String {
    format!("t{tenant}")
}

fn is_answer(body: &[u8], wanted: &str) -> Result<()> {
    if body != wanted.as_bytes() {
        let got = String::from_utf8_lossy(body);
        return Err(WrongAnswer(format!("an answer of {got:?} instead of {wanted:?}")).into());
    }
    Ok(())
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => bail!("nothing within {PATIENCE:?}"),
    }
}
