//! HTTP/1.1 whose every answer is 503, and the number of requests that it has seen.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head of a request.
const HEAD: usize = 16 << 10;

/// What is asked for to be told how many requests there were. It does not count itself.
pub(crate) const SEEN: &str = "/seen";

/// Answers requests, which have no body, one after the other.
pub(super) async fn serve(mut stream: TcpStream, seen: Arc<AtomicU64>) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(2048);
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > HEAD || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let asks = buffer.split(|byte| *byte == b' ').nth(1) == Some(SEEN.as_bytes());
        buffer.drain(..end);
        let answer = if asks {
            let count = seen.load(Ordering::Relaxed).to_string();
            let length = count.len();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{count}")
        } else {
            seen.fetch_add(1, Ordering::Relaxed);
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned()
        };
        stream.write_all(answer.as_bytes()).await?;
    }
}
