//! The web server behind the proxies, a process of its own: small and large answers, answers that come late, bodies
//! that are read and forgotten, and `WebSockets` that echo.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use crate::backend::{accept, listen};
use crate::{http1, sys};

/// Length of the large file and of large request bodies.
pub(crate) const FILE: usize = 10_000_000;
/// Length of an answer in the middle.
const MIDDLE: usize = 10_000;
/// Length of the smallest answer.
const TINY: usize = 60;
/// Length of every other answer.
const SMALL: usize = 1_000;
/// How late the late answer is.
const LATE: Duration = Duration::from_secs(1);
/// Longest head that is read: longer than the longest path of an attack.
const HEAD: usize = 128 << 10;

/// Length of the payload of a WebSocket message.
pub(crate) const PAYLOAD: usize = 64;
/// A WebSocket message of a client as it is sent: two bytes of head, the mask, the payload.
pub(crate) const FROM_CLIENT: usize = 2 + 4 + PAYLOAD;
/// The same of a server, which has no mask.
pub(crate) const FROM_SERVER: usize = 2 + PAYLOAD;
/// First byte of a binary message in one frame.
pub(crate) const BINARY: u8 = 0x82;

/// First line of output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Where it answers.
    pub(crate) listen: SocketAddr,
}

/// Options of the web server.
#[derive(Args, Debug)]
pub(crate) struct WebArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1")]
    loopback: IpAddr,
    /// Bytes that wait in the kernel for a client of each connection, instead of what the kernel chooses.
    #[arg(long)]
    send_buffer: Option<usize>,
}

/// Serves until standard input closes.
pub(crate) fn run(args: &WebArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = crate::stdin_closed();
    let file = Arc::new(file()?);
    let send_buffer = args.send_buffer;
    runtime.block_on(async move {
        let listener = listen(args.loopback)?;
        let listening = Listening {
            listen: listener.local_addr()?,
        };
        println!("{}", serde_json::to_string(&listening)?);
        tokio::spawn(accept(listener, move |stream| {
            // A connection whose buffer stays as it was is served all the same.
            let _ = send_buffer.map(|bytes| SockRef::from(&stream).set_send_buffer_size(bytes));
            serve(stream, Arc::clone(&file))
        }));
        ended.await.context("waiting for the end of standard input")
    })
}

/// What large answers are sent from: a file that has no name any more.
fn file() -> Result<File> {
    let path = std::env::temp_dir().join(format!("vestibule-bench-web-{}", std::process::id()));
    fs::write(&path, vec![b'f'; FILE])?;
    let file = File::open(&path);
    fs::remove_file(&path)?;
    Ok(file?)
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    answer: Answer,
    /// Length of its body.
    body: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// From memory.
    Bytes(usize),
    /// The file.
    File,
    /// After a while.
    Late,
    /// A WebSocket.
    Socket,
}

impl Request {
    fn read(head: &[u8]) -> io::Result<Self> {
        let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let answer = match path {
            b"/file" => Answer::File,
            b"/late" => Answer::Late,
            b"/10k" => Answer::Bytes(MIDDLE),
            b"/socket" => Answer::Socket,
            path if path.ends_with(b"/tiny") => Answer::Bytes(TINY),
            _ => Answer::Bytes(SMALL),
        };
        let mut body = 0;
        for line in head.split(|byte| *byte == b'\n').skip(1) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                let value = std::str::from_utf8(value).ok();
                let value = value.and_then(|value| value.parse().ok());
                body = value.ok_or(io::ErrorKind::InvalidData)?;
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                // No client of the benches sends chunks; a proxy that makes some would be measured with them.
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
        Ok(Self { answer, body })
    }
}

/// Requests one after the other.
async fn serve(mut stream: TcpStream, file: Arc<File>) -> io::Result<()> {
    let answer_of = |length: usize| {
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        answer.resize(answer.len() + length, b'f');
        answer
    };
    let answers = [TINY, SMALL, MIDDLE].map(|length| (length, answer_of(length)));
    let mut buffer = Vec::with_capacity(4096);
    let mut sink = Vec::new();
    while let Some(end) = http1::read_head(&mut stream, &mut buffer, HEAD).await? {
        let request = Request::read(&buffer[..end])?;
        buffer.drain(..end);
        let here = request.body.min(buffer.len());
        buffer.drain(..here);
        let mut left = request.body - here;
        while left > 0 {
            sink.resize(256 << 10, 0);
            let length = left.min(sink.len());
            let read = stream.read(&mut sink[..length]).await?;
            if read == 0 {
                return Ok(());
            }
            left -= read;
        }
        let length = match request.answer {
            Answer::Bytes(length) => length,
            Answer::Late => {
                tokio::time::sleep(LATE).await;
                SMALL
            }
            Answer::File => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {FILE}\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
                send(&stream, &file).await?;
                continue;
            }
            Answer::Socket => return echo(stream).await,
        };
        if let Some((_, answer)) = answers.iter().find(|(of, _)| *of == length) {
            stream.write_all(answer).await?;
        }
    }
    Ok(())
}

/// The file without a copy, as from a server of static files.
async fn send(stream: &TcpStream, file: &File) -> io::Result<()> {
    let mut sent = 0;
    while sent < FILE {
        // All of the file is alike, so its beginning does for every part.
        let piece = || sys::send_file(stream, file, FILE - sent);
        sent += stream.async_io(Interest::WRITABLE, piece).await?;
    }
    Ok(())
}

/// Messages of the one length there is go back, until the client ends.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    // Clients of the benches do not look at `sec-websocket-accept`; proxies do not either.
    let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut message = [0; FROM_CLIENT];
    let mut answer = [0; FROM_SERVER];
    [answer[0], answer[1]] = [BINARY, u8::try_from(PAYLOAD).unwrap_or_default()];
    loop {
        match stream.read_exact(&mut message).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let (head, payload) = message.split_at(FROM_CLIENT - PAYLOAD);
        for (at, byte) in payload.iter().enumerate() {
            answer[2 + at] = byte ^ head[2 + at % 4];
        }
        stream.write_all(&answer).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let read = |text: &str| Request::read(text.as_bytes());
        let plain = read("GET /p3/tiny HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!((plain.answer, plain.body), (Answer::Bytes(TINY), 0));
        let post = read("POST /tiny HTTP/1.1\r\nContent-Length: 12\r\n\r\n").unwrap();
        assert_eq!(post.body, 12);
        let file = read("GET /file HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(file.answer, Answer::File);
        assert!(read("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
