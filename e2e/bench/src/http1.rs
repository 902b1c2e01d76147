//! As much of HTTP/1.1 as the benches need: for clients one answer with a `content-length`, or a head that ends; for
//! backends the head of a request.

use std::io;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest head of an answer.
const HEAD: usize = 16 << 10;

/// What a server said.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// All of the head, in lower case.
    head: String,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a field, by its name in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find_map(|(field, value)| (field == name).then(|| value.trim()))
    }
}

/// Reads until the buffer begins with a whole head, and gives the head's length in bytes. Gives `None` if the stream ends
/// before, or the buffer is longer than `longest` bytes by then.
pub(crate) async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    longest: usize,
) -> io::Result<Option<usize>> {
    loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if buffer.len() > longest || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Reads one answer. One that switches protocols has no body, and what comes behind it is the body here.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Result<Answer> {
    let mut buffer = Vec::with_capacity(2048);
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        ensure!(buffer.len() < HEAD, "the head has no end");
        let read = stream.read_buf(&mut buffer).await;
        if read.context("reading the answer")? == 0 {
            bail!("the connection ended before the answer");
        }
    };
    let body = buffer.split_off(end);
    let head = String::from_utf8_lossy(&buffer).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
    let mut answer = Answer {
        status: status.context("an answer without a status")?,
        head,
        body,
    };
    let length: usize = match answer.field("content-length") {
        Some(length) => length.parse()?,
        None if answer.status == 101 => 0,
        None => bail!("status {} without a length", answer.status),
    };
    while answer.body.len() < length {
        let read = stream.read_buf(&mut answer.body).await;
        if read.context("reading the answer")? == 0 {
            bail!("the connection ended in the answer");
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_read_to_their_end() {
        let mut bytes: &[u8] =
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        let good = answer(&mut bytes).await.unwrap();
        assert_eq!((good.status, &*good.body), (200, &b"abc"[..]));
        assert_eq!(good.field("connection"), Some("close"));
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
        ] {
            let mut bytes = bad.as_bytes();
            assert!(answer(&mut bytes).await.is_err(), "{bad}");
        }
    }
}
