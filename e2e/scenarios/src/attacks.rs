//! Hostile clients of a proxy. Each kind makes the proxy hold as much, or do as much, as it can.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::echo::{LARGE, SILENT};
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
/// Bytes of a long answer that a client reads before it stops. The proxy moves bytes in bulk before that.
const BEGIN: usize = 1024 * 1024;
/// The fields of a large head, and the length of each. A connection may have a hundred such heads at a time: together they
/// are below the 2 MiB that the heads of a connection may have.
const FIELDS: usize = 4;
const FIELD: usize = 4000;
/// How long a client looks whether requests that should wait are answered. The proxy checks its memory twice meanwhile.
const WATCH: Duration = Duration::from_secs(1);
/// Protocols of 255 bytes that make a ClientHello large. It may have 16 KiB.
const PROTOCOLS: u8 = 48;

/// The first bytes of a client of HTTP/2, and the types of its frames (RFC 9113, section 6).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// The longest payload of a frame, unless the other side allows more.
const FRAME: usize = 16_384;
/// Flags of a frame: the request has no body, and its head ends here.
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
/// The error code CANCEL.
const CANCEL: u32 = 8;
/// The largest window.
const WINDOW: u32 = (1 << 31) - 1;

/// The backend and key of the hostname that is attacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// HTTPS, and a backend that speaks HTTP/1.1.
    Web,
    /// HTTPS, and a backend that speaks HTTP/2 in plaintext.
    H2c,
    /// As `Web`, with an RSA key of 4096 bits.
    Rsa,
    /// TLS that the backend ends.
    Passthrough,
}

impl Site {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Web, Self::H2c, Self::Rsa, Self::Passthrough];

    /// The first label of the hostname.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Web => "www",
            Self::H2c => "h2c",
            Self::Rsa => "rsa",
            Self::Passthrough => "pass",
        }
    }
}

/// A kind of attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP/2 with the largest windows: requests for a long answer of which nothing is read, and pings.
    SlowRead,
    /// The same, of a backend that speaks HTTP/2.
    SlowReadH2c,
    /// HTTP/2: requests that are taken back, again and again.
    RapidReset,
    /// HTTP/1.1 with a long body that the backend does not read, and a long answer that the client does not read.
    Bodies,
    /// HTTP/1.1 with one answered request, and nothing after it.
    Idle,
    /// The first bytes of a ClientHello.
    SlowHello,
    /// Large `ClientHello`s, for a hostname with an RSA key of 4096 bits, and handshakes that go no further.
    Handshakes,
    /// A long answer through TLS that is passed through, which the client stops reading after its beginning.
    StoppedReader,
    /// HTTP/2: requests with large heads that wait for their answers.
    LargeHeads,
}

impl Kind {
    /// Those that many clients make at one time.
    pub(crate) const CROWDS: [Self; 8] = [
        Self::SlowRead,
        Self::SlowReadH2c,
        Self::RapidReset,
        Self::Bodies,
        Self::Idle,
        Self::SlowHello,
        Self::Handshakes,
        Self::StoppedReader,
    ];

    /// The HTTP that it is made in.
    pub(crate) fn version(self) -> Version {
        match self {
            Self::SlowRead | Self::SlowReadH2c | Self::RapidReset | Self::LargeHeads => {
                Version::Two
            }
            Self::Bodies
            | Self::Idle
            | Self::SlowHello
            | Self::Handshakes
            | Self::StoppedReader => Version::One,
        }
    }

    /// The hostname that it attacks.
    pub(crate) fn site(self) -> Site {
        match self {
            Self::SlowReadH2c => Site::H2c,
            Self::Handshakes => Site::Rsa,
            Self::StoppedReader => Site::Passthrough,
            Self::SlowRead
            | Self::RapidReset
            | Self::Bodies
            | Self::Idle
            | Self::SlowHello
            | Self::LargeHeads => Site::Web,
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

    /// A single client of it, whose attack lasts for as long as the stream is kept.
    pub(crate) async fn alone(self, origin: &Origin) -> Result<Stream> {
        let opening = Semaphore::new(1);
        timeout(BOUND, self.client(origin, &opening)).await?
    }

    async fn client(self, origin: &Origin, opening: &Semaphore) -> Result<Stream> {
        let turn = opening.acquire().await?;
        let mut stream: Stream = if matches!(self, Self::SlowHello | Self::Handshakes) {
            Box::new(TcpStream::connect(origin.address).await?)
        } else {
            open(origin).await?
        };
        drop(turn);
        match self {
            Self::SlowRead | Self::SlowReadH2c => slow_read(&mut stream, &origin.host).await?,
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
            Self::Handshakes => {
                let protocols = (0..PROTOCOLS).map(|number| vec![number; 255]);
                send(&mut stream, &origin.hello(protocols.collect())?).await?;
                let mut answer = [0; 512];
                let read = timeout(HOLD, stream.read(&mut answer)).await??;
                // A record of the handshake, and no alert.
                ensure!(read > 0 && answer[0] == 0x16, "no ServerHello");
                sleep(Duration::from_secs(1)).await;
            }
            Self::StoppedReader => {
                let request = format!("GET {LARGE} HTTP/1.1\r\nhost: {}\r\n\r\n", origin.host);
                send(&mut stream, request.as_bytes()).await?;
                stream.read_exact(&mut vec![0; BEGIN]).await?;
                sleep(HOLD).await;
            }
            Self::LargeHeads => large_heads(&mut stream, &origin.host).await?,
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
        bytes.extend(request(host, LARGE, 0, 1 + 2 * number));
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
            requests.extend(request(host, LARGE, 0, next));
            resets.extend(frame(RST_STREAM, 0, next, &CANCEL.to_be_bytes()));
            next += 2;
        }
        send(stream, &requests).await?;
        sleep(Duration::from_millis(50)).await;
        send(stream, &resets).await?;
    }
    Ok(())
}

async fn large_heads(stream: &mut Stream, host: &str) -> Result<()> {
    send(stream, &[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    for number in 0..REQUESTS {
        send(stream, &request(host, SILENT, FIELDS, 1 + 2 * number)).await?;
    }
    let ended = timeout(WATCH, answered(stream)).await;
    ended.unwrap_or(Ok(()))
}

/// Reads frames. Fails when one of them begins an answer, or the connection ends.
async fn answered(stream: &mut Stream) -> Result<()> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [high, middle, low, kind, ..] = head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let mut payload = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut payload).await?;
        let shown =
            String::from_utf8_lossy(payload.get(..payload.len().min(64)).unwrap_or_default());
        ensure!(kind != HEADERS, "a request was answered: {shown:?}");
    }
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

/// A request as frames: two fields of the static table (RFC 7541, appendix A), and literals that no table keeps, so many
/// of which are long.
fn request(host: &str, path: &str, long: usize, stream: u32) -> Vec<u8> {
    // `:method: GET`, `:scheme: https`, and then `:path` and `:authority`.
    let mut block = vec![0x82, 0x87];
    for (index, value) in [(4, path), (1, host)] {
        block.push(index);
        block.extend(length(value.len()));
        block.extend_from_slice(value.as_bytes());
    }
    for _ in 0..long {
        // Its name is no field of the static table.
        block.extend_from_slice(&[0, 1, b'x']);
        block.extend(length(FIELD));
        block.resize(block.len() + FIELD, b'y');
    }
    let parts: Vec<&[u8]> = block.chunks(FRAME).collect();
    let mut frames = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let (kind, mut flags) = match number {
            0 => (HEADERS, END_STREAM),
            _ => (CONTINUATION, 0),
        };
        if number + 1 == parts.len() {
            flags |= END_HEADERS;
        }
        frames.extend(frame(kind, flags, stream, part));
    }
    frames
}

/// The length of a text that is not compressed: an integer with a prefix of seven bits (RFC 7541, sections 5.1 and 5.2).
fn length(bytes: usize) -> Vec<u8> {
    let low = |number: usize| number.to_le_bytes()[0];
    let Some(mut rest) = bytes.checked_sub(0x7f) else {
        return vec![low(bytes)];
    };
    let mut written = vec![0x7f];
    while rest > 0x7f {
        written.push(low(rest) | 0x80);
        rest >>= 7;
    }
    written.push(low(rest));
    written
}

/// A frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let head = [high, middle, low, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn requests_are_read_by_a_server() {
        let (mut client, server) = tokio::io::duplex(2 * PIECE);
        let settings = frame(SETTINGS, 0, 0, &[]);
        let small = request("a.test", LARGE, 0, 1);
        // It does not fit into one frame.
        let large = request("a.test", SILENT, 3 * FIELDS, 3);
        let bytes = [PREFACE, &settings, &small, &large].concat();
        client.write_all(&bytes).await.unwrap();
        let mut server = h2::server::handshake(server).await.unwrap();
        for (uri, long) in [
            ("https://a.test/large", 0),
            ("https://a.test/silent", 3 * FIELDS),
        ] {
            let (request, _) = server.accept().await.unwrap().unwrap();
            assert_eq!(request.uri().to_string(), uri);
            let values = request.headers().get_all("x").iter();
            assert_eq!(values.filter(|value| value.len() == FIELD).count(), long);
        }
    }

    #[tokio::test]
    async fn an_answer_is_told_from_other_frames() {
        let (client, mut server) = tokio::io::duplex(PIECE);
        let mut client: Stream = Box::new(client);
        let ping = frame(PING, 0, 0, &[0; 8]);
        server.write_all(&ping).await.unwrap();
        assert!(answered(&mut client).now_or_never().is_none());
        let answer = frame(HEADERS, END_HEADERS, 1, &[0x88]);
        server.write_all(&answer).await.unwrap();
        answered(&mut client).await.unwrap_err();
    }

    #[test]
    fn lengths_are_written_as_hpack_has_it() {
        assert_eq!(length(5), [5]);
        assert_eq!(length(126), [126]);
        assert_eq!(length(127), [127, 0]);
        // RFC 7541, appendix C.1.2 has 1337 with a prefix of five bits.
        assert_eq!(length(127 + 1306), [127, 0b1001_1010, 0b0000_1010]);
    }
}
