//! Backends that die and come back: each is a port of this process, whose listener and connections are dropped at
//! once and opened again later.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hash::{DefaultHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::server::{Grpc, UnaryService};

use crate::grpc::Raw;
use crate::http1;

/// Work that takes a little, so that there are requests that a death meets.
const WORK: Duration = Duration::from_millis(2);

/// What a backend speaks.
#[derive(Clone)]
pub(super) enum Speaks {
    /// HTTP/1.1: the answer's body is the `x-tenant` of the request. `/ws` is upgraded, and its bytes go
    /// back as they came.
    Http,
    /// TLS of its own, and bytes that go back.
    Tls(Arc<ServerConfig>),
    /// Bytes that go back.
    Bytes,
    /// gRPC in plaintext: the answer's message is the `x-tenant` of the call.
    Grpc,
    /// HTTP/1.1: the answer's body is a [`receipt`].
    Uploads,
}

/// Where they listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) web: [u16; 3],
    pub(super) ws: [u16; 2],
    pub(super) pass: [u16; 2],
    pub(super) term: [u16; 2],
    pub(super) grpc: [u16; 2],
    pub(super) upload: [u16; 2],
    pub(super) tcp: [u16; 2],
}

/// One backend.
pub(super) struct Backend {
    port: u16,
    speaks: Speaks,
    task: Option<JoinHandle<()>>,
}

impl Backend {
    pub(super) fn start(speaks: Speaks) -> Result<Self> {
        let mut backend = Self {
            port: 0,
            speaks,
            task: None,
        };
        backend.revive()?;
        Ok(backend)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Ends the listener and every connection, in the middle of whatever they do.
    pub(super) async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Listens again where it did.
    pub(super) fn revive(&mut self) -> Result<()> {
        let listener = listen(self.port).context("a backend's port")?;
        self.port = listener.local_addr()?.port();
        self.task = Some(tokio::spawn(serve(listener, self.speaks.clone())));
        Ok(())
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// The connections end with this future.
async fn serve(listener: TcpListener, speaks: Speaks) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let _ = stream.set_nodelay(true);
                connections.spawn(answer(stream, speaks.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(stream: TcpStream, speaks: Speaks) {
    let _ = match speaks {
        Speaks::Http => http(stream).await,
        Speaks::Bytes => echo(stream).await,
        Speaks::Grpc => calls(stream).await,
        Speaks::Uploads => uploads(stream).await,
        Speaks::Tls(config) => match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => echo(stream).await,
            Err(error) => Err(error),
        },
    };
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let length = stream.read(&mut bytes).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&bytes[..length]).await?;
        stream.flush().await?;
    }
}

async fn http(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = Vec::with_capacity(2048);
    while let Some(end) = http1::read_head(&mut stream, &mut buffer, 64 << 10).await? {
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end);
        if head.starts_with("GET /ws ") {
            let accept = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                          sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            stream.write_all(accept.as_bytes()).await?;
            return echo(stream).await;
        }
        let tenant = head
            .lines()
            .find_map(|line| line.strip_prefix("x-tenant: "));
        let tenant = tenant.unwrap_or("nobody");
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{tenant}",
            tenant.len()
        );
        tokio::time::sleep(WORK).await;
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// The content of the answer to an upload: its tenant, the length of its body, and a sum over the body.
pub(super) fn receipt(tenant: &str, body: &[u8]) -> String {
    let mut sum = DefaultHasher::new();
    sum.write(body);
    format!("{tenant} {} {:016x}", body.len(), sum.finish())
}

/// The tenant of a request, which only the route names.
fn tenant(request: &http::Request<Incoming>) -> Bytes {
    match request.headers().get("x-tenant") {
        Some(tenant) => Bytes::copy_from_slice(tenant.as_bytes()),
        None => Bytes::from_static(b"nobody"),
    }
}

async fn uploads(stream: TcpStream) -> std::io::Result<()> {
    let service = service_fn(|request: http::Request<Incoming>| async move {
        let tenant = tenant(&request);
        let body = request.into_body().collect().await?.to_bytes();
        let receipt = receipt(&String::from_utf8_lossy(&tenant), &body);
        Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from(receipt))))
    });
    let connection = conn::http1::Builder::new();
    let served = connection.serve_connection(TokioIo::new(stream), service);
    served.await.map_err(std::io::Error::other)
}

async fn calls(stream: TcpStream) -> std::io::Result<()> {
    let service = service_fn(|request: http::Request<Incoming>| async move {
        tokio::time::sleep(WORK).await;
        let method = Says(tenant(&request));
        Ok::<_, Infallible>(Grpc::new(Raw).unary(method, request).await)
    });
    let connection = conn::http2::Builder::new(TokioExecutor::new());
    let served = connection.serve_connection(TokioIo::new(stream), service);
    served.await.map_err(std::io::Error::other)
}

/// A method that answers with this message.
struct Says(Bytes);

impl UnaryService<Bytes> for Says {
    type Response = Bytes;
    type Future = Ready<Result<tonic::Response<Bytes>, Status>>;

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_has_the_tenant_and_differs_if_a_byte_does() {
        let body = b"abcdef";
        let good = receipt("t1", body);
        assert!(good.starts_with("t1 6 "), "{good}");
        assert_eq!(good, receipt("t1", body));
        for other in [&b"abcde"[..], b"abcdeg", b"abdcef"] {
            assert_ne!(receipt("t1", other), good);
        }
        assert_ne!(receipt("t2", body), good);
    }
}
