//! As much of RFC 6455 as a client and a backend need that send each other short texts.

use anyhow::{Result, bail, ensure};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::encoding::base64;

/// What RFC 6455, section 1.3, has appended to a client's key.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// A whole text in one frame.
const TEXT: u8 = 0x81;
/// The bit that says that the payload is masked, as a client's has to be.
const MASKED: u8 = 0x80;
/// Longest payload whose length fits into the second byte.
const LONGEST: usize = 125;

/// `Sec-WebSocket-Accept` for a client's key.
pub(crate) fn accept(key: &str) -> String {
    let text = format!("{key}{MAGIC}");
    base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

/// Sends a text. A client masks it.
pub(crate) async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    text: &[u8],
    mask: Option<[u8; 4]>,
) -> Result<()> {
    ensure!(text.len() <= LONGEST, "a text of {} bytes", text.len());
    let length = u8::try_from(text.len())?;
    let mut frame = vec![TEXT, length];
    match mask {
        None => frame.extend(text),
        Some(mask) => {
            frame[1] |= MASKED;
            frame.extend(mask);
            frame.extend(text.iter().zip(mask.iter().cycle()).map(|(t, m)| t ^ m));
        }
    }
    stream.write_all(&frame).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads a text. None: the other side ended the connection between two frames.
pub(crate) async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<Vec<u8>>> {
    let mut head = [0; 2];
    if stream.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[1..]).await?;
    let length = usize::from(head[1] & !MASKED);
    if head[0] != TEXT || length > LONGEST {
        bail!("a frame that is no short text: {head:x?}");
    }
    let mut mask = [0; 4];
    if head[1] & MASKED != 0 {
        stream.read_exact(&mut mask).await?;
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await?;
    for (byte, mask) in text.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_specification_is_accepted_as_there() {
        let accepted = accept("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn texts_go_both_ways() {
        let (mut client, mut server) = tokio::io::duplex(64);
        send(&mut client, b"hello", Some([1, 2, 3, 4]))
            .await
            .unwrap();
        assert_eq!(receive(&mut server).await.unwrap().unwrap(), b"hello");
        send(&mut server, b"you too", None).await.unwrap();
        assert_eq!(receive(&mut client).await.unwrap().unwrap(), b"you too");
        drop(server);
        assert!(receive(&mut client).await.unwrap().is_none());
    }
}
