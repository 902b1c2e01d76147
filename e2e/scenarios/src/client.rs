//! One connection through a Gateway: how it is opened, what the backend says, how it ends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::echo::Answer;
use crate::wait::{SOON, until};

/// How long opening, or one request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024;

/// Where to connect, and as what.
#[derive(Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    name: ServerName<'static>,
    connector: TlsConnector,
}

/// Why a connection or a request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing came in time.
    Timeout,
    /// Nobody listens.
    Refused,
    /// The connection was reset.
    Reset,
    /// The connection was closed in order (FIN) before an answer.
    Closed,
    /// The other side said that it takes no more requests on this connection, and that this one is among those that it
    /// did not process (RFC 9113, section 6.8). It may be sent on another connection, whatever its method.
    NotProcessed,
    /// TLS went wrong, an unverifiable certificate included.
    Tls(String),
    /// An answer that is not a backend's.
    Answer(String),
    /// Any other error of the operating system.
    Other(String),
}

impl Failure {
    /// A word for counting.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::NotProcessed => "not processed",
            Self::Tls(_) => "tls",
            Self::Answer(_) => "answer",
            Self::Other(_) => "other",
        }
    }

    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::InvalidData => Self::Tls(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

/// An open connection to a backend.
pub(crate) struct Conversation {
    stream: TlsStream<TcpStream>,
}

impl Target {
    /// The server name that it asks for.
    pub(crate) fn host(&self) -> String {
        self.name.to_str().into_owned()
    }

    /// A hostname at an address, verified with these roots.
    pub(crate) fn new(address: SocketAddr, hostname: &str, roots: RootCertStore) -> Result<Self> {
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every connection does the whole handshake: what is measured and counted is a new client.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            address,
            name: ServerName::try_from(hostname.to_owned()).context("hostname")?,
            connector: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Connects and shakes hands.
    pub(crate) async fn open(&self) -> Result<Conversation, Failure> {
        let opening = async {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            self.connector.connect(self.name.clone(), stream).await
        };
        match timeout(PATIENCE, opening).await {
            Ok(Ok(stream)) => Ok(Conversation { stream }),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Opens a connection, asks once, closes it.
    pub(crate) async fn ask(&self) -> Result<Answer, Failure> {
        let mut conversation = self.open().await?;
        let answer = conversation.ask().await?;
        conversation.close().await;
        Ok(answer)
    }

    /// Waits until connections are closed before an answer.
    pub(crate) async fn closes(&self) -> Result<()> {
        until("the hostname to close", SOON, async || {
            match self.ask().await {
                Err(Failure::Closed | Failure::Reset) => Ok(()),
                Err(failure) => bail!("{failure:?}"),
                Ok(answer) => bail!("answered by {}", answer.pod),
            }
        })
        .await
    }
}

impl Conversation {
    /// The certificate that the other side showed.
    pub(crate) fn certificate(&self) -> Option<CertificateDer<'static>> {
        let shown = self.stream.get_ref().1.peer_certificates()?.first()?;
        Some(shown.clone().into_owned())
    }

    /// Sends a request and reads the answer.
    pub(crate) async fn ask(&mut self) -> Result<Answer, Failure> {
        match timeout(PATIENCE, self.exchange()).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        let failed = |error| Failure::of(&error);
        self.stream
            .write_all(b"GET / HTTP/1.1\r\nhost: backend\r\n\r\n")
            .await
            .map_err(failed)?;
        self.stream.flush().await.map_err(failed)?;
        let mut bytes = Vec::new();
        loop {
            if self.stream.read_buf(&mut bytes).await.map_err(failed)? == 0 {
                return Err(Failure::Closed);
            }
            // The answer is one line behind the head.
            if let Some((_, body)) = split_head(&bytes)
                && body.ends_with(b"\n")
            {
                return serde_json::from_slice(body)
                    .map_err(|_| Failure::Answer(String::from_utf8_lossy(&bytes).into_owned()));
            }
            if bytes.len() > MAX_ANSWER {
                return Err(Failure::Answer("too long".into()));
            }
        }
    }

    /// Waits until the other side ends the connection, and says how.
    pub(crate) async fn ended(&mut self) -> Failure {
        let mut bytes = [0; 64];
        loop {
            match self.stream.read(&mut bytes).await {
                Ok(0) => return Failure::Closed,
                Ok(_) => {}
                Err(error) => return Failure::of(&error),
            }
        }
    }

    /// Ends the connection in order.
    pub(crate) async fn close(mut self) {
        let _ = timeout(PATIENCE, self.stream.shutdown()).await;
    }
}

fn split_head(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    bytes.split_at_checked(end + 4)
}
