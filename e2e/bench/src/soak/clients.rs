//! The clients of a tenant. None of them tries anything twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ledger::{Kind, Ledger};
use super::world::Site;
use crate::http1;

/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests that are made on a connection, at least; each client stops at another number.
const REQUESTS: usize = 30;
/// Requests of HTTP/2 at one time.
const STREAMS: usize = 4;
/// Messages on a connection that carries bytes.
const MESSAGES: u8 = 4;
/// An upgrade's key, whose answer the backend knows (RFC 6455 section 1.3).
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// What all clients share.
pub(super) struct Clients {
    pub(super) target: SocketAddr,
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
            let since = Instant::now();
            let result = match kind {
                Kind::Http1 => self.http1(tenant).await,
                Kind::Http2 => self.http2(tenant).await,
                Kind::WebSocket => within(self.web_socket(tenant)).await,
                Kind::Passthrough => within(self.bytes(Site::Pass, tenant)).await,
                Kind::Terminated => within(self.bytes(Site::Term, tenant)).await,
            };
            if let Err(error) = result {
                self.ledger.failed(kind, tenant, since, &error);
                sleep(Duration::from_millis(200)).await;
            } else if !matches!(kind, Kind::Http1 | Kind::Http2) {
                self.ledger.done(kind);
            }
            sleep(self.every).await;
        }
    }

    /// One good answer, for the beginning.
    pub(super) async fn check(&self, tenant: usize) -> Result<()> {
        let mut stream = within(self.open(Site::Web, tenant, &self.http1)).await?;
        within(self.request(&mut stream, tenant)).await.map(|_| ())
    }

    async fn open(
        &self,
        site: Site,
        tenant: usize,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.target)
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
        stream.write_all(head.as_bytes()).await.context("sending")?;
        stream.flush().await.context("sending")?;
        let answer = http1::answer(stream).await?;
        ensure!(answer.status == 200, "status {}", answer.status);
        is_of(tenant, &answer.body)?;
        Ok(answer.field("connection") != Some("close"))
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

    async fn http2(&self, tenant: usize) -> Result<()> {
        let stream = within(self.open(Site::Web, tenant, &self.http2)).await?;
        let io = TokioIo::new(stream);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        let connection = tokio::spawn(connection);
        let result = self.requests(&mut sender, tenant).await;
        drop(sender);
        if result.is_err() {
            connection.abort();
        }
        result
    }

    async fn requests(&self, sender: &mut SendRequest<Empty<Bytes>>, tenant: usize) -> Result<()> {
        for _ in 0..(REQUESTS + tenant) / STREAMS {
            // The other side says so when it takes no more.
            if sender.ready().await.is_err() || !self.goes_on() {
                break;
            }
            let one = |mut sender: SendRequest<Empty<Bytes>>| async move {
                let uri = format!("https://{}/", Site::Web.hostname(tenant));
                let request = http::Request::get(uri).body(Empty::new())?;
                let response = match sender.try_send_request(request).await {
                    Ok(response) => response,
                    // What comes back was never sent: the other side had just said that it takes no more.
                    Err(mut error) => match error.take_message() {
                        Some(_) => return Ok(false),
                        None => return Err(error.into_error()).context("a request"),
                    },
                };
                let status = response.status();
                ensure!(status == 200, "status {status}");
                let body = response.into_body().collect().await.context("a body")?;
                is_of(tenant, &body.to_bytes())?;
                Ok(true)
            };
            let asked = (0..STREAMS).map(|_| within(one(sender.clone())));
            for result in futures::future::join_all(asked).await {
                if result? {
                    self.ledger.done(Kind::Http2);
                }
            }
            sleep(self.every * 2).await;
        }
        Ok(())
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
}

/// Messages there and back, then the end.
async fn messages(stream: &mut TlsStream<TcpStream>, pause: Duration) -> Result<()> {
    for number in 0..MESSAGES {
        let message = [number; 200];
        stream.write_all(&message).await.context("sending")?;
        stream.flush().await.context("sending")?;
        let mut back = [0; 200];
        stream.read_exact(&mut back).await.context("reading")?;
        ensure!(back == message, "another message came back");
        sleep(pause).await;
    }
    stream.shutdown().await.context("closing")?;
    Ok(())
}

/// Checks the header in which only the route of this tenant names the tenant.
fn is_of(tenant: usize, body: &[u8]) -> Result<()> {
    let of = format!("t{tenant}");
    if body != of.as_bytes() {
        bail!("an answer of {:?}", String::from_utf8_lossy(body));
    }
    Ok(())
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => bail!("nothing within {PATIENCE:?}"),
    }
}
