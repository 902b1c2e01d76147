//! Answers every HTTP/1.1 request with 503, and counts the requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::http1;

/// Longest head of a request.
const HEAD: usize = 16 << 10;

/// The path that is answered with the number of requests so far. Such a request does not count itself.
pub(crate) const SEEN: &str = "/seen";

/// Answers the requests of one connection in turn. They have no bodies.
pub(super) async fn serve(mut stream: TcpStream, seen: Arc<AtomicU64>) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(2048);
    while let Some(end) = http1::read_head(&mut stream, &mut buffer, HEAD).await? {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::backend::{accept, listen};
    use crate::http1::{Answer, answer};

    async fn ask(stream: &mut TcpStream, path: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a.test\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        answer(stream).await.unwrap()
    }

    #[tokio::test]
    async fn requests_fail_and_are_counted_and_the_question_is_not() {
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(AtomicU64::new(0));
        tokio::spawn(accept(listener, move |stream| {
            serve(stream, Arc::clone(&seen))
        }));
        let mut one = TcpStream::connect(address).await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut one, SEEN).await.body, b"0");
        for path in ["/", "/", "/seen/not"] {
            assert_eq!(ask(&mut one, path).await.status, 503);
        }
        assert_eq!(ask(&mut other, SEEN).await.body, b"3");
        assert_eq!(ask(&mut one, SEEN).await.body, b"3");
    }
}
