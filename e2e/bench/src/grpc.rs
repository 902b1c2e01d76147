//! The gRPC service of the bench, without generated code. Messages are bytes, and each is sent in a frame of its own.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::iter;

use bytes::{Buf, BufMut, Bytes};
use futures::stream::{self, Iter};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};

use crate::wire::MESSAGE;

/// Name of the service.
pub(crate) const SERVICE: &str = "bench.Echo";
/// A call that is answered with its message.
pub(crate) const UNARY: &str = "/bench.Echo/Unary";
/// A call whose messages come back one by one.
pub(crate) const STREAM: &str = "/bench.Echo/Stream";
/// A call that is answered with as many messages as its message says, a number of eight bytes.
pub(crate) const DOWN: &str = "/bench.Echo/Down";

/// Passes messages as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    /// With the default, messages that are ready at the same time share a frame, which costs a proxy next to nothing.
    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(1024, 1)
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

/// Serves the calls of one connection, in HTTP/2 by prior knowledge.
pub(crate) async fn serve(stream: TcpStream) -> io::Result<()> {
    let calls = service_fn(|request| async { Ok::<_, Infallible>(call(request).await) });
    let connection = http2::Builder::new(TokioExecutor::new());
    let served = connection.serve_connection(TokioIo::new(stream), calls);
    served.await.map_err(io::Error::other)
}

async fn call(request: http::Request<Incoming>) -> http::Response<tonic::body::Body> {
    let mut grpc = Grpc::new(Raw);
    match request.uri().path() {
        UNARY => grpc.unary(Echo, request).await,
        STREAM => grpc.streaming(Echo, request).await,
        DOWN => grpc.server_streaming(Echo, request).await,
        _ => Status::unimplemented("no such method").into_http(),
    }
}

/// All of the methods.
struct Echo;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Streaming<Bytes>;
    type Future = Ready<Result<Response<Streaming<Bytes>>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

type Messages = Iter<iter::RepeatN<Result<Bytes, Status>>>;

impl ServerStreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Ready<Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let count = request.into_inner().try_get_u64().ok();
        let count = count.and_then(|count| usize::try_from(count).ok());
        let Some(count) = count else {
            return ready(Err(Status::invalid_argument("not a number")));
        };
        let message = Ok(Bytes::from_static(&[b'm'; MESSAGE]));
        let messages = iter::repeat_n(message, count);
        ready(Ok(Response::new(stream::iter(messages))))
    }
}
