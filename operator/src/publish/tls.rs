//! Serves the configuration stream over TLS, only to clients with a valid token, and bounds the memory that other
//! clients can use.
//!
//! A connection is unauthenticated until a stream on it is admitted. Unauthenticated connections are limited in number,
//! in all and per source. The HTTP/2 windows bound the memory of each, and a deadline bounds its time. So the memory
//! for unauthenticated clients has a fixed limit, and proxies never have to share it.

mod connection_limiter;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::ResolvesServerCert;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use super::auth::Authenticator;
use super::{Publisher, secured_service, server};
use connection_limiter::ConnectionLimiter;
pub(super) use connection_limiter::{ConnectionPermit, StreamGuard};

/// The HTTP/2 windows of a stream and of a connection, in bytes. Proxies only send small messages.
const WINDOWS: (u32, u32) = (64 << 10, 128 << 10);
/// Largest number of streams of a connection. A proxy needs one, and two for a moment.
const MAX_STREAMS: u32 = 4;
/// Largest number of bytes in the headers of a call. A token has about 1 KiB.
const MAX_HEADERS: u32 = 16 << 10;
/// Wait after accepting failed, so that a lack of file descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on connections.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Longest time for which a connection may have no admitted stream.
    pub strangers_stay: Duration,
    /// Largest number of connections without an admitted stream.
    pub strangers: usize,
    /// Largest number of these from one address.
    pub strangers_per_source: usize,
    /// Largest number of connections in all.
    pub connections: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            strangers_stay: Duration::from_secs(15),
            strangers: 256,
            strangers_per_source: 16,
            connections: 4096,
        }
    }
}

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The TLS library refuses the settings.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The transport failed as a whole.
    #[error("cannot serve the configuration stream: {0}")]
    Transport(#[from] tonic::transport::Error),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The counters `vestibule_operator_stream_connections_*`.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    open: Gauge,
    refused: Family<Reason, Counter>,
}

impl ConnectionMetrics {
    /// Adds the metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("vestibule_operator_stream_connections");
        registry.register("open", "Connections open", self.open.clone());
        registry.register(
            "refused",
            "Connections closed before a stream was admitted",
            self.refused.clone(),
        );
    }

    fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }
}

/// The parts of a server.
#[derive(Debug, Clone)]
pub struct Secure {
    /// The publisher that is served.
    pub publisher: Arc<Publisher>,
    /// Returns the certificate at every handshake, so that a renewed one is used at once.
    pub certificates: Arc<dyn ResolvesServerCert>,
    /// Decides which callers are admitted.
    pub authenticator: Arc<Authenticator>,
    /// The limits on connections.
    pub limits: ConnectionLimits,
    /// The counters.
    pub metrics: ConnectionMetrics,
}

impl Secure {
    /// Returns a server with the default limits.
    #[must_use]
    pub fn new(
        publisher: Arc<Publisher>,
        certificates: Arc<dyn ResolvesServerCert>,
        authenticator: Arc<Authenticator>,
    ) -> Self {
        Self {
            publisher,
            certificates,
            authenticator,
            limits: ConnectionLimits::default(),
            metrics: ConnectionMetrics::default(),
        }
    }

    /// Serves the connections of `listener` until `shutdown` completes. Streams then end with their sessions.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let acceptor = TlsAcceptor::from(Arc::new(self.config()?));
        let (sender, connections) = mpsc::channel(16);
        let service = secured_service(&self.publisher, &self.authenticator);
        let serving = server()
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_max_header_list_size(MAX_HEADERS)
            .add_service(service)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), shutdown);
        tokio::select! {
            served = serving => Ok(served?),
            () = self.accept(&listener, &acceptor, &sender) => Ok(()),
        }
    }

    fn config(&self) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.certificates));
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Proxies do not resume sessions, and unauthenticated clients could fill the memory for resumption.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    async fn accept(
        &self,
        listener: &TcpListener,
        acceptor: &TlsAcceptor,
        sender: &mpsc::Sender<io::Result<Connection>>,
    ) {
        let limiter = ConnectionLimiter::new(&self.limits);
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "the configuration stream cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let source = peer.ip().to_canonical();
            // The connection is closed at once. A proxy tries again, and a queue would only help an attacker.
            let permit = match limiter.enter(source, &self.metrics.open) {
                Ok(permit) => permit,
                Err(reason) => {
                    debug!(%source, reason, "the configuration stream refuses a connection");
                    self.metrics.refuse(reason);
                    continue;
                }
            };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            let (metrics, limits) = (self.metrics.clone(), self.limits.clone());
            tokio::spawn(async move {
                // This fails only if the connection is gone already.
                let _ = stream.set_nodelay(true);
                match timeout(limits.handshake, acceptor.accept(stream)).await {
                    Ok(Ok(tls)) => {
                        let connection = Connection::new(tls, permit, limits.strangers_stay);
                        let _ = sender.send(Ok(connection)).await;
                    }
                    Ok(Err(error)) => {
                        debug!(%source, %error, "a handshake with the configuration stream failed");
                        metrics.refuse("Handshake");
                    }
                    Err(_) => metrics.refuse("HandshakeTimeout"),
                }
            });
        }
    }
}

/// One connection. It is closed when it has had no admitted stream for a while.
struct Connection {
    tls: TlsStream<TcpStream>,
    permit: Arc<ConnectionPermit>,
    stay: Duration,
    /// The deadline, which runs while there is no admitted stream.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.permit).finish()
    }
}

impl Connection {
    fn new(tls: TlsStream<TcpStream>, permit: ConnectionPermit, stay: Duration) -> Self {
        Self {
            tls,
            permit: Arc::new(permit),
            stay,
            deadline: None,
        }
    }

    /// Whether the time without an admitted stream is over.
    fn expired(&mut self, cx: &mut Context<'_>) -> bool {
        if self.permit.is_admitted() {
            self.deadline = None;
            return false;
        }
        let stay = self.stay;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(stay)));
        deadline.as_mut().poll(cx).is_ready()
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<ConnectionPermit>;

    fn connect_info(&self) -> Arc<ConnectionPermit> {
        Arc::clone(&self.permit)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.expired(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.tls).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }
}
