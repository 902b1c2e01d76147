//! Traffic that shows who serves a hostname: backends that answer with their letter, and a client that
//! asks once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::world::Routes;
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

/// Asks on the port of a kind of route.
pub(crate) struct Probe {
    routes: Routes,
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Probe {
    /// Of that port on loopback.
    pub(crate) fn new(routes: Routes, port: u16) -> Result<Self> {
        Ok(Self {
            routes,
            address: ([127, 0, 0, 1], port).into(),
            config: client_config(Groups::X25519, false)?,
        })
    }

    /// What is to be sent for a hostname.
    pub(crate) fn request(&self, hostname: &str) -> Result<Vec<u8>> {
        Ok(match self.routes {
            Routes::Tls => {
                let name = ServerName::try_from(hostname.to_owned())?;
                let mut connection = rustls::ClientConnection::new(Arc::clone(&self.config), name)?;
                let mut hello = Vec::new();
                connection.write_tls(&mut hello)?;
                hello
            }
            Routes::Http => {
                format!("GET / HTTP/1.1\r\nhost: {hostname}\r\nconnection: close\r\n\r\n")
                    .into_bytes()
            }
        })
    }

    /// Who answers: a letter, or nothing if nobody does.
    pub(crate) async fn ask(&self, request: &[u8]) -> Result<Option<u8>> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            stream.write_all(request).await?;
            let mut answer = Vec::new();
            // Where nothing serves the name the connection may be reset.
            let _ = stream.read_to_end(&mut answer).await;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(Duration::from_secs(10), exchange)
            .await
            .context("no answer")??;
        Ok(match self.routes {
            Routes::Tls => answer.first().copied(),
            Routes::Http if answer.starts_with(b"HTTP/1.1 200 ") => answer.last().copied(),
            Routes::Http => None,
        })
    }
}
