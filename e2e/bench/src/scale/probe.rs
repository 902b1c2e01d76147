//! Traffic that shows who serves a hostname: backends that answer with their letter, and a client that
//! asks once.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::world::{Answer, RENEWED, Way};
use crate::tls::{Groups, client_config};

/// First byte of a `ClientHello`.
const HANDSHAKE: u8 = 22;

/// Starts the backends A, B and C on loopback and returns their ports.
pub(crate) async fn backends() -> Result<[u16; 3]> {
    let mut ports = [0; 3];
    for (port, letter) in ports.iter_mut().zip(*b"ABC") {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        *port = listener.local_addr()?.port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, letter));
            }
        });
    }
    Ok(ports)
}

/// A letter for a hello, a response with that letter for a request.
async fn answer(mut stream: TcpStream, letter: u8) {
    let mut request = [0; 4096];
    let Ok(1..) = stream.read(&mut request).await else {
        return;
    };
    let response = if request.first() == Some(&HANDSHAKE) {
        vec![letter]
    } else {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n";
        [head.as_slice(), &[letter]].concat()
    };
    let _ = stream.write_all(&response).await;
    let _ = stream.shutdown().await;
}

/// What is to be asked.
pub(crate) struct Request {
    way: Way,
    address: SocketAddr,
    name: ServerName<'static>,
    bytes: Vec<u8>,
}

/// Asks on loopback.
pub(crate) struct Probe {
    config: Arc<ClientConfig>,
}

impl Probe {
    /// One that checks no certificate.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            config: client_config(Groups::X25519, false)?,
        })
    }

    /// What is to be asked for a hostname, at this port of loopback.
    pub(crate) fn request(&self, way: Way, port: u16, hostname: &str) -> Result<Request> {
        let name = ServerName::try_from(hostname.to_owned())?;
        let bytes = match way {
            Way::Hello => {
                let config = Arc::clone(&self.config);
                let mut connection = rustls::ClientConnection::new(config, name.clone())?;
                let mut hello = Vec::new();
                connection.write_tls(&mut hello)?;
                hello
            }
            Way::Plain | Way::Within => {
                format!("GET / HTTP/1.1\r\nhost: {hostname}\r\nconnection: close\r\n\r\n")
                    .into_bytes()
            }
        };
        Ok(Request {
            way,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            name,
            bytes,
        })
    }

    /// Who answers, if anybody does.
    pub(crate) async fn ask(&self, request: &Request) -> Result<Option<Answer>> {
        let exchange = async {
            let stream = TcpStream::connect(request.address).await?;
            stream.set_nodelay(true)?;
            if request.way != Way::Within {
                return Ok((exchange(stream, &request.bytes).await?, false));
            }
            let connector = TlsConnector::from(Arc::clone(&self.config));
            // Where nothing serves the name the connection is closed.
            let Ok(stream) = connector.connect(request.name.clone(), stream).await else {
                return Ok((Vec::new(), false));
            };
            let (_, session) = stream.get_ref();
            let leaf = session.peer_certificates().and_then(<[_]>::first);
            let renewed = leaf.is_some_and(|leaf| {
                let mut windows = leaf.windows(RENEWED.len());
                windows.any(|window| window == RENEWED.as_bytes())
            });
            std::io::Result::Ok((exchange(stream, &request.bytes).await?, renewed))
        };
        let (answer, renewed) = tokio::time::timeout(Duration::from_secs(10), exchange)
            .await
            .context("no answer")??;
        let backend = match request.way {
            Way::Hello => answer.first().copied(),
            Way::Plain | Way::Within if answer.starts_with(b"HTTP/1.1 200 ") => {
                answer.last().copied()
            }
            Way::Plain | Way::Within => None,
        };
        Ok(backend.map(|backend| Answer { backend, renewed }))
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
) -> std::io::Result<Vec<u8>> {
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    // Where nothing serves the name the connection may be reset.
    let _ = stream.read_to_end(&mut answer).await;
    Ok(answer)
}
