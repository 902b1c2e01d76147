//! Owns connecting to one endpoint of a backend. Nothing was sent when that fails, so whatever the connection
//! is for, it can be tried elsewhere, within one deadline for all attempts; what happens after it stands is
//! never tried again here.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};

use crate::backend::Backend;
use crate::connection::{CloseReason, set_keepalive};
use crate::deadline::within;
use crate::health::EndpointFailure;
use crate::plane::DataPlane;
use crate::upstream::{self, Credentials, Stream};

/// What a connection to a backend carries.
#[derive(Clone, Copy)]
pub(crate) enum Carries<'a> {
    /// What the client sent, which is TLS already.
    Passthrough,
    /// What was within a client's TLS: TLS again, if the backend's policy says so.
    Terminated(&'a Credentials),
}

/// Connects to one endpoint of `backend`, and notes how that went.
pub(crate) async fn connect(
    plane: &DataPlane,
    backend: &Backend,
    endpoint: SocketAddr,
    carries: Carries<'_>,
    allowed: Duration,
) -> Result<Stream, CloseReason> {
    let result = match carries {
        Carries::Passthrough => attempt(plane, endpoint, allowed).await.map(Stream::Plain),
        Carries::Terminated(credentials) => {
            let (target, alpn) = (&backend.target, upstream::Alpn::None);
            upstream::open(plane, target, credentials, endpoint, alpn, allowed).await
        }
    };
    match &result {
        Ok(_) => plane.endpoint_succeeded(backend, endpoint),
        // The same for every endpoint, and none of them was asked.
        Err(CloseReason::BackendTlsInvalid) => {}
        Err(reason) => {
            let reason = reason.reason();
            plane.metrics.connect_failed(reason);
            plane.endpoint_failed(backend, endpoint, EndpointFailure::Connect, reason);
        }
    }
    result
}

/// Connects to one endpoint over TCP, unless that is this proxy itself.
pub(crate) async fn attempt(
    plane: &DataPlane,
    endpoint: SocketAddr,
    allowed: Duration,
) -> Result<TcpStream, CloseReason> {
    if plane.own_sockets.contain(endpoint) {
        tracing::debug!(%endpoint, "a backend is this proxy itself");
        return Err(CloseReason::BackendLoop);
    }
    let begun = Instant::now();
    match within(allowed, dial(endpoint, plane.limits.keepalive)).await {
        Ok(Ok(stream)) => {
            let took = begun.elapsed().as_secs_f64();
            plane.metrics.connect_seconds.observe(took);
            Ok(stream)
        }
        Ok(Err(error)) => {
            tracing::debug!(%endpoint, %error, "backend connection failed");
            Err(CloseReason::BackendConnectFailed)
        }
        Err(_) => {
            tracing::debug!(%endpoint, ?allowed, "backend connection timed out");
            Err(CloseReason::BackendConnectTimeout)
        }
    }
}

async fn dial(endpoint: SocketAddr, keepalive: Duration) -> io::Result<TcpStream> {
    let socket = match endpoint {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_nodelay(true)?;
    set_keepalive(&socket2::SockRef::from(&socket), keepalive)?;
    socket.connect(endpoint).await
}
