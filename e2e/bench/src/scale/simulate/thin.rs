//! A proxy that keeps nothing: it takes batches off the stream, counts their bytes and acknowledges them. Hundreds of
//! them fit beside the leader in one process, and what they take is next to nothing beside what the leader takes.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::SinkExt;
use futures::channel::mpsc;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use vestibule_operator::publish::{self, Publisher};
use vestibule_stream::PROTOCOL_VERSION;

/// Capacity of the pipe between leader and proxy, in bytes.
const PIPE: usize = 64 << 10;
/// Bytes of a message that are looked at: its kind, and the generation of a batch.
const HEAD: usize = 64;
/// Windows of HTTP/2 of a stream and of its connection, as a proxy has them.
const WINDOWS: (u32, u32) = (4 << 20, 8 << 20);
/// Tags of the messages, as they stand at the beginning of an `OperatorMessage`.
const WELCOME: u8 = 1 << 3 | 2;
const BATCH: u8 = 5 << 3 | 2;
const HEARTBEAT: u8 = 6 << 3 | 2;

type Messages = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

/// Runs a proxy with this name until its stream ends. It may write the batches into a recording, from which a real
/// proxy can read them.
pub(crate) async fn run(
    publisher: Arc<Publisher>,
    name: String,
    recording: Option<File>,
) -> Result<()> {
    let (near, far) = tokio::io::duplex(PIPE);
    let incoming = stream::iter([Ok::<_, io::Error>(far)]);
    let serving = publish::server()
        .add_service(publish::service(&publisher))
        .serve_with_incoming(incoming);
    tokio::spawn(serving);
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .handshake(TokioIo::new(near))
        .await?;
    tokio::spawn(connection);
    let (mut messages, outbound) = mpsc::channel(4);
    let request = http::Request::post("http://leader/vestibule.stream.v1.ConfigStream/Subscribe")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(outbound))?;
    send(&mut messages, &hello(&name)).await?;
    let mut body = sender.send_request(request).await?.into_body();
    let mut reader = Reader {
        recording,
        ..Reader::default()
    };
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame?.into_data() else {
            break;
        };
        while let Some(head) = reader.take(&mut data)? {
            match head.first() {
                Some(&BATCH) => send(&mut messages, &ack(&head)?).await?,
                Some(&HEARTBEAT) => send(&mut messages, &[4 << 3 | 2, 0]).await?,
                Some(&WELCOME) => {}
                _ => bail!("{name} is sent {head:?}"),
            }
        }
    }
    bail!("the stream of {name} ended")
}

async fn send(messages: &mut Messages, message: &[u8]) -> Result<()> {
    let length = u32::try_from(message.len())?.to_be_bytes();
    let bytes = [&[0], &length[..], message].concat();
    Ok(messages.send(Ok(Frame::data(bytes.into()))).await?)
}

/// A Hello of a proxy that holds nothing. All lengths are below 128, so each takes a byte.
fn hello(name: &str) -> Vec<u8> {
    let length = |bytes: usize| u8::try_from(bytes).unwrap_or(u8::MAX);
    let protocol = [1 << 3, u8::try_from(PROTOCOL_VERSION).unwrap_or(1)];
    let head = [1 << 3 | 2, length(protocol.len() + 2 + name.len())];
    let proxy = [3 << 3 | 2, length(name.len())];
    [&head, &protocol, &proxy, name.as_bytes()].concat()
}

/// The acknowledgement of the batch that begins so. A generation is the first field of both.
fn ack(batch: &[u8]) -> Result<Vec<u8>> {
    let after = batch.iter().skip(1).position(|byte| byte & 0x80 == 0);
    let fields = batch.get(after.context("a batch without a length")? + 2..);
    let fields = fields.unwrap_or_default();
    let [tag, length, ..] = fields else {
        bail!("an empty batch");
    };
    ensure!(*tag == (1 << 3 | 2), "a batch without a generation");
    let generation = fields.get(..usize::from(*length) + 2);
    let generation = generation.context("a long generation")?;
    let head = [3 << 3 | 2, u8::try_from(generation.len())?];
    Ok([&head, generation].concat())
}

/// Takes messages of gRPC apart, and keeps only their beginnings.
#[derive(Default)]
struct Reader {
    prefix: Vec<u8>,
    head: Vec<u8>,
    /// Bytes of the present message that have not come. `None` until its length is known.
    left: Option<usize>,
    /// Where batches are written.
    recording: Option<File>,
}

impl Reader {
    /// Takes bytes until a message is complete, and returns its beginning.
    fn take(&mut self, data: &mut Bytes) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(left) = self.left else {
                let missing = 5 - self.prefix.len();
                let more = data.split_to(missing.min(data.len()));
                self.prefix.extend_from_slice(&more);
                let Ok([_, length @ ..]) = <[u8; 5]>::try_from(self.prefix.as_slice()) else {
                    return Ok(None);
                };
                self.left = Some(u32::from_be_bytes(length) as usize);
                self.prefix.clear();
                continue;
            };
            let part = data.split_to(left.min(data.len()));
            self.record(&part)?;
            let kept = part.len().min(HEAD - self.head.len());
            self.head.extend_from_slice(&part.slice(..kept));
            self.left = Some(left - part.len());
            if left > part.len() {
                return Ok(None);
            }
            self.left = None;
            return Ok(Some(std::mem::take(&mut self.head)));
        }
    }

    /// Writes a part of a batch. A recording has batches with their lengths, which is what stands behind the tag in an
    /// `OperatorMessage`.
    fn record(&mut self, part: &Bytes) -> io::Result<()> {
        let Some(recording) = &mut self.recording else {
            return Ok(());
        };
        match (self.head.first(), part.first()) {
            (None, Some(&BATCH)) => recording.write_all(&part.slice(1..)),
            (Some(&BATCH), _) => recording.write_all(part),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_apart_however_they_come() {
        let mut bytes = vec![0, 0, 0, 0, 0];
        bytes.extend([0, 0, 0, 0, 200]);
        bytes.extend([7; 200]);
        bytes.extend([0, 0, 0, 0, 2, 1, 2]);
        for piece in [1, 3, 100, 1_000] {
            let mut reader = Reader::default();
            let mut heads = Vec::new();
            for part in bytes.chunks(piece) {
                let mut part = Bytes::copy_from_slice(part);
                while let Some(head) = reader.take(&mut part).unwrap() {
                    heads.push(head);
                }
            }
            assert_eq!(heads, [vec![], vec![7; HEAD], vec![1, 2]], "{piece}");
        }
    }

    #[test]
    fn an_ack_has_the_generation_of_its_batch() {
        // A batch of 300 bytes: term 1, counter 200.
        let batch = [
            BATCH, 0xac, 0x02, 0x0a, 5, 0x08, 1, 0x10, 0xc8, 0x01, 0x18, 1,
        ];
        let ack = ack(&batch).unwrap();
        assert_eq!(ack, [0x1a, 7, 0x0a, 5, 0x08, 1, 0x10, 0xc8, 0x01]);
    }
}
