//! Answers the calls of the stream over gRPC, in pieces.
//!
//! tonic encodes a message as a whole, and keeps the buffer for as long as the stream is open. For a configuration of
//! 40,000 routes and a fleet of 500 proxies, that would be 15 GB that the leader never gets back. Here a batch is encoded
//! piece by piece, as the proxy reads it. The resources in it are encoded already, and all streams share them.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, header};
use http_body::Frame;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::Service;
use vestibule_stream::limits::MAX_PROXY_MESSAGE_BYTES;
use vestibule_stream::proto::{
    OperatorMessage, ProxyMessage, Upsert, config_stream_server::SERVICE_NAME, operator_message,
};

use super::Calls;

/// The only method.
const SUBSCRIBE: &str = "/vestibule.stream.v1.ConfigStream/Subscribe";
/// Size of a piece, in bytes. A piece ends behind the resource with which it reaches this size.
const PIECE: usize = 64 << 10;
/// Tag of `OperatorMessage.batch`, and of `Batch.upserts`: both are messages with the number 5.
const TAG: u8 = 5 << 3 | 2;

/// The gRPC service.
#[derive(Debug, Clone)]
pub struct StreamServer(pub(super) Calls);

impl NamedService for StreamServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for StreamServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = self.0.clone();
        Box::pin(async move {
            if request.uri().path() != SUBSCRIBE {
                return Ok(Status::new(Code::Unimplemented, "no such method").into_http());
            }
            let (parts, body) = request.into_parts();
            let decoder = ProstCodec::<OperatorMessage, ProxyMessage>::default().decoder();
            let limit = Some(MAX_PROXY_MESSAGE_BYTES);
            let inbound = Streaming::new_request(decoder, body, None, limit);
            let metadata = MetadataMap::from_headers(parts.headers);
            let request = tonic::Request::from_parts(metadata, parts.extensions, inbound);
            Ok(match calls.subscribe(request).await {
                Ok(messages) => {
                    let mut response = Response::new(Body::new(Messages::new(messages)));
                    let headers = response.headers_mut();
                    headers.insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
                    response
                }
                Err(status) => status.into_http(),
            })
        })
    }
}

/// The messages of one stream, as the body of the response.
struct Messages {
    incoming: mpsc::Receiver<Result<OperatorMessage, Status>>,
    /// The rest of the batch that is being sent.
    rest: vec::IntoIter<Upsert>,
    ended: bool,
}

impl Messages {
    fn new(incoming: mpsc::Receiver<Result<OperatorMessage, Status>>) -> Self {
        Self {
            incoming,
            rest: Vec::new().into_iter(),
            ended: false,
        }
    }

    /// Encodes a message with its frame, except for the upserts of a batch, which follow in pieces. They are the last
    /// field then, which makes no difference to a reader.
    fn begin(&mut self, message: OperatorMessage) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        // Batches are below the limit of a message, which is below 4 GiB, and all other messages are short.
        bytes.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
        match message.message {
            Some(operator_message::Message::Batch(mut batch)) => {
                bytes.put_u8(TAG);
                let length = batch.encoded_len();
                self.rest = std::mem::take(&mut batch.upserts).into_iter();
                bytes.extend_from_slice(&prost_length(length));
                bytes.extend_from_slice(&batch.encode_to_vec());
            }
            message => bytes.extend_from_slice(&OperatorMessage { message }.encode_to_vec()),
        }
        bytes.freeze()
    }

    /// Encodes the next upserts. `None` if there are none.
    fn piece(&mut self) -> Option<Bytes> {
        let mut bytes = BytesMut::new();
        while bytes.len() < PIECE
            && let Some(upsert) = self.rest.next()
        {
            bytes.reserve(PIECE.saturating_sub(bytes.len()));
            bytes.put_u8(TAG);
            bytes.extend_from_slice(&prost_length(upsert.encoded_len()));
            // The buffer grows, so there is always room.
            let _ = upsert.encode(&mut bytes);
        }
        if self.rest.len() == 0 {
            // The list is as long as the batch.
            self.rest = Vec::new().into_iter();
        }
        (!bytes.is_empty()).then(|| bytes.freeze())
    }
}

/// A length as protobuf writes it.
fn prost_length(length: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(10);
    // There is room for the longest one.
    let _ = prost::encode_length_delimiter(length, &mut bytes);
    bytes
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if let Some(piece) = this.piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let status = match ready!(this.incoming.poll_recv(context)) {
            Some(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(this.begin(message))))),
            Some(Err(status)) => status,
            None => Status::new(Code::Ok, ""),
        };
        this.ended = true;
        let mut trailers = HeaderMap::new();
        // Fails only for a text that is no header, and the code is set before.
        let _ = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use vestibule_stream::proto::{Batch, Heartbeat, ResourceKey};
    use vestibule_stream::{Generation, ResourceKind};

    use super::*;

    /// All frames of the body: the data, the largest part of it, and the trailers.
    async fn read(mut body: Messages) -> (Vec<u8>, usize, HeaderMap) {
        let (mut data, mut largest) = (Vec::new(), 0);
        loop {
            let frame =
                poll_fn(|context| http_body::Body::poll_frame(Pin::new(&mut body), context));
            let Ok(frame) = frame.await.unwrap();
            match frame.into_data() {
                Ok(part) => {
                    largest = largest.max(part.len());
                    data.extend_from_slice(&part);
                }
                Err(frame) => return (data, largest, frame.into_trailers().unwrap()),
            }
        }
    }

    fn batch(upserts: usize, bytes: usize) -> OperatorMessage {
        let upsert = |number: usize| Upsert {
            kind: ResourceKind::Backend.into(),
            resource: vec![number.to_le_bytes()[0]; bytes].into(),
        };
        let removal = ResourceKey::new(ResourceKind::Backend, "gone");
        let batch = Batch {
            generation: Some(Generation::new(1, 300)),
            full: true,
            upserts: (0..upserts).map(upsert).collect(),
            removals: vec![removal],
            digest: vec![7; 32],
            ..Batch::default()
        };
        OperatorMessage {
            message: Some(operator_message::Message::Batch(batch)),
        }
    }

    #[tokio::test]
    async fn a_batch_comes_in_pieces_and_every_message_as_it_was_sent() {
        let heartbeat = OperatorMessage {
            message: Some(operator_message::Message::Heartbeat(Heartbeat {})),
        };
        let sent = [
            batch(0, 0),
            batch(10_000, 200),
            heartbeat,
            batch(3, 100_000),
            OperatorMessage::default(),
        ];
        let (sender, receiver) = mpsc::channel(8);
        for message in &sent {
            sender.send(Ok(message.clone())).await.unwrap();
        }
        sender.send(Err(Status::aborted("enough"))).await.unwrap();
        let (data, largest, trailers) = read(Messages::new(receiver)).await;
        assert!(largest < PIECE + 100_100, "a piece of {largest} bytes");
        let mut left = data.as_slice();
        for message in &sent {
            let (frame, rest) = left.split_at(5);
            let length = u32::from_be_bytes(frame[1..].try_into().unwrap()) as usize;
            let (bytes, rest) = rest.split_at(length);
            assert_eq!(
                (frame[0], OperatorMessage::decode(bytes).unwrap()),
                (0, message.clone())
            );
            left = rest;
        }
        assert!(left.is_empty());
        assert_eq!(trailers["grpc-status"], "10");
        assert_eq!(trailers["grpc-message"], "enough");
    }

    #[tokio::test]
    async fn a_stream_without_an_error_ends_well() {
        let (sender, receiver) = mpsc::channel(1);
        drop(sender);
        let (data, _, trailers) = read(Messages::new(receiver)).await;
        assert!(data.is_empty());
        assert_eq!(trailers["grpc-status"], "0");
    }
}
