//! Owns connecting to backends: one deadline for all of it, and another endpoint where one does not
//! take the connection. Nothing was sent then, so whatever the connection is for, it can be tried
//! elsewhere; what happens after it stands is never tried again.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};

use crate::connection::{CloseReason, set_keepalive};
use crate::deadline::within;
use crate::plane::DataPlane;
use crate::table::Backend;

/// Endpoints that are tried for one connection.
const ATTEMPTS: usize = 3;

/// How connecting ended.
pub(crate) struct Dialled {
    /// The endpoint that took the connection, or the last that did not.
    pub(crate) endpoint: SocketAddr,
    /// Endpoints that were tried before it.
    pub(crate) retries: usize,
    /// The connection, or why there is none.
    pub(crate) result: Result<TcpStream, CloseReason>,
}

/// Connects to `first`, or to another endpoint of `backend` as it is by then.
pub(crate) async fn connect(plane: &DataPlane, first: SocketAddr, backend: &Backend) -> Dialled {
    let end = Instant::now() + plane.limits.connect_deadline;
    let mut tried = Vec::with_capacity(ATTEMPTS);
    let mut endpoint = first;
    loop {
        tried.push(endpoint);
        let left = end.saturating_duration_since(Instant::now());
        // An endpoint that vanished must leave time for the others.
        let more = backend.endpoints().len().min(ATTEMPTS);
        let allowed = share(left, more.saturating_sub(tried.len()) + 1);
        let result = attempt(plane, endpoint, allowed).await;
        let next = match &result {
            Ok(_) => None,
            Err(reason) => {
                plane.metrics.connect_failed(reason.reason());
                backend.avoid(endpoint);
                let again = tried.len() < ATTEMPTS && Instant::now() < end;
                // As they are now: the endpoint may have failed because its pod is gone.
                again
                    .then(|| backend.endpoint(plane.random(), &tried))
                    .flatten()
            }
        };
        match next {
            Some(next) => {
                plane.metrics.connect_retries.inc();
                endpoint = next;
            }
            None => {
                return Dialled {
                    endpoint,
                    retries: tried.len() - 1,
                    result,
                };
            }
        }
    }
}

/// One of `parts` equal parts of the time that is left.
fn share(left: Duration, parts: usize) -> Duration {
    left / u32::try_from(parts.max(1)).unwrap_or(u32::MAX)
}

async fn attempt(
    plane: &DataPlane,
    endpoint: SocketAddr,
    allowed: Duration,
) -> Result<TcpStream, CloseReason> {
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
