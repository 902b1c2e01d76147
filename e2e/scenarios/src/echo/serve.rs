//! The backend's connections.

use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::Response;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::{Answer, Health, LARGE, LARGE_BYTES, SILENT, Shared};
use crate::websocket;

/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// The first bytes of a client of HTTP/2, to the end of the part that looks like a head (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";
/// A piece of a long answer. Thousands of answers may be under way: they have the bytes in common.
static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
/// Connections that may wait to be accepted. An attack makes hundreds in one moment, and the kernel drops those beyond
/// this number.
const WAITING: u32 = 4096;
/// First byte of a TLS connection.
const HANDSHAKE: u8 = 0x16;

/// What a port takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Tls,
    Either,
    /// Plain, and as it should be while the others fail.
    Steady,
}

/// Takes connections until the backend ends.
pub(super) async fn listen(address: SocketAddr, kind: Kind, shared: Shared) -> Result<()> {
    let mut health = shared.health.subscribe();
    loop {
        let now = *health.borrow_and_update();
        if now == Health::Ending {
            return Ok(());
        }
        if closed(now, kind) {
            health.changed().await?;
            continue;
        }
        let listener = bound(address).with_context(|| format!("{kind:?} {address}"))?;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    // A client that is gone before it was taken is no matter.
                    if let Ok((stream, peer)) = accepted {
                        tokio::spawn(connection(stream, peer, kind, shared.clone()));
                    }
                }
                changed = health.changed() => {
                    changed?;
                    if closed(*health.borrow_and_update(), kind) {
                        break;
                    }
                }
            }
        }
    }
}

/// Listens on an address.
fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Whether nobody listens.
fn closed(health: Health, kind: Kind) -> bool {
    match health {
        Health::Refuse => kind != Kind::Steady,
        Health::Ending => true,
        Health::Well | Health::Reset | Health::Hang => false,
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, kind: Kind, shared: Shared) {
    // Without it the answer behind a session ticket waits for its acknowledgement: 40 ms.
    let _ = stream.set_nodelay(true);
    let mut health = shared.health.subscribe();
    if *health.borrow_and_update() == Health::Reset && kind != Kind::Steady {
        // Closed with something unread, a connection is reset.
        let _ = stream.readable().await;
        return;
    }
    let mut answer = Answer {
        pod: shared.pod.to_string(),
        namespace: shared.namespace.to_string(),
        sni: None,
        peer: peer.ip().to_string(),
        port: stream.local_addr().map_or(0, |local| local.port()),
    };
    let tls = match kind {
        Kind::Plain | Kind::Steady => false,
        Kind::Tls => true,
        Kind::Either => {
            let mut first = [0];
            matches!(stream.peek(&mut first).await, Ok(1)) && first[0] == HANDSHAKE
        }
    };
    if tls {
        // A client that does not finish its handshake is that client's business.
        if let Ok(stream) = shared.acceptor.accept(stream).await {
            answer.sni = stream.get_ref().1.server_name().map(str::to_owned);
            converse(stream, &answer, kind, health, &shared).await;
        }
    } else {
        converse(stream, &answer, kind, health, &shared).await;
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: &Answer,
    kind: Kind,
    mut health: watch::Receiver<Health>,
    shared: &Shared,
) {
    let Ok(body) = serde_json::to_string(answer) else {
        return;
    };
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}\n",
        body.len() + 1
    );
    let mut bytes = Vec::new();
    loop {
        if bytes.starts_with(PREFACE) {
            return multiplexed(stream, bytes, body.into(), health).await;
        }
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            bytes.drain(..end + 4);
            if kind == Kind::Steady {
                told(&head, shared);
            }
            if let Some(key) = field(&head, "sec-websocket-key") {
                return talk(stream, key, health).await;
            }
            if path(&head) == SILENT {
                // Until either side ends.
                tokio::select! {
                    _ = stream.read_u8() => {}
                    ended = health.wait_for(|health| *health == Health::Ending) => drop(ended),
                }
                return;
            }
            let sent = if path(&head) == LARGE {
                send_large(&mut stream).await
            } else {
                send(&mut stream, response.as_bytes()).await
            };
            if sent.is_err() {
                return;
            }
        } else if bytes.len() > MAX_HEAD {
            return;
        } else {
            let failing = kind != Kind::Steady;
            let now = *health.borrow_and_update();
            let (hangs, resets) = (
                failing && now == Health::Hang,
                failing && now == Health::Reset,
            );
            let most = if resets { 1 } else { MAX_HEAD };
            let mut rest = (&mut stream).take(most as u64);
            let read = tokio::select! {
                read = rest.read_buf(&mut bytes), if !hangs => Some(read),
                changed = health.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    None
                }
            };
            match read {
                // Dropped with the rest unread, a connection is reset.
                Some(Ok(1..)) if resets => return,
                Some(Ok(1..)) => {}
                Some(Err(_)) => return,
                // The other side may still read: end in order.
                Some(Ok(0)) => break,
                None => match *health.borrow() {
                    Health::Ending if bytes.is_empty() => break,
                    Health::Refuse if failing => break,
                    _ => {}
                },
            }
        }
    }
    let _ = stream.shutdown().await;
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn send_large<S: AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE_BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    for _ in 0..LARGE_BYTES / PIECE.len() {
        stream.write_all(&PIECE).await?;
    }
    stream.flush().await
}

/// Answers requests of HTTP/2, the first bytes of which have been read, until either side ends.
async fn multiplexed<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    begin: Vec<u8>,
    body: Bytes,
    mut health: watch::Receiver<Health>,
) {
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(Cursor::new(begin).chain(reader), writer);
    let served = async {
        let mut connection = h2::server::handshake(stream).await?;
        while let Some(accepted) = connection.accept().await {
            let (request, mut respond) = accepted?;
            // A request that was taken back needs no answer.
            let Ok(mut sender) = respond.send_response(Response::new(()), false) else {
                continue;
            };
            let (pieces, last) = if request.uri().path() == LARGE {
                (LARGE_BYTES / PIECE.len(), Bytes::new())
            } else {
                (0, body.clone())
            };
            // They wait in the connection until the client's windows let them go, and are no copies.
            for _ in 0..pieces {
                let _ = sender.send_data(Bytes::from_static(&PIECE), false);
            }
            let _ = sender.send_data(last, true);
        }
        Ok::<_, h2::Error>(())
    };
    tokio::select! {
        _ = served => {}
        ended = health.wait_for(|health| *health == Health::Ending) => drop(ended),
    }
}

/// Does as the request to the steady port says.
fn told(head: &str, shared: &Shared) {
    if let Some(how) = path(head).strip_prefix("/be/")
        && let Ok(health) = how.parse()
    {
        shared.health.send_replace(health);
    }
}

/// The path that a request names.
fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// Value of a header field.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Sends every text back, until either side ends.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    key: &str,
    mut health: watch::Receiver<Health>,
) {
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {}\r\n\r\n",
        websocket::accept(key)
    );
    if send(&mut stream, response.as_bytes()).await.is_err() {
        return;
    }
    loop {
        let text = tokio::select! {
            text = websocket::receive(&mut stream) => text,
            ended = health.wait_for(|health| *health == Health::Ending) => {
                drop(ended);
                break;
            }
        };
        let Ok(Some(text)) = text else { break };
        if websocket::send(&mut stream, &text, None).await.is_err() {
            break;
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn http2_is_answered_after_its_first_bytes_were_read() {
        let (client, mut server) = tokio::io::duplex(PIECE.len());
        let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
        tokio::spawn(connection);
        let mut begin = vec![0; PREFACE.len()];
        server.read_exact(&mut begin).await.unwrap();
        assert_eq!(begin, PREFACE);
        let (_health, well) = watch::channel(Health::Well);
        tokio::spawn(multiplexed(server, begin, Bytes::from_static(b"{}"), well));
        for (path, length) in [("/", 2), (LARGE, LARGE_BYTES)] {
            let request = http::Request::get(format!("http://a.test{path}"));
            let sent = sender.send_request(request.body(()).unwrap(), true);
            let mut body = sent.unwrap().0.await.unwrap().into_body();
            let mut got = 0;
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                got += piece.len();
            }
            assert_eq!(got, length);
        }
    }
}
