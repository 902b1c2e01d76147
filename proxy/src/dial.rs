//! Owns connecting to backends: one deadline for all of it, and another endpoint where one does not
//! take the connection. Nothing was sent then, so whatever the connection is for, it can be tried
//! elsewhere; what happens after it stands is never tried again.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};

use crate::connection::{CloseReason, set_keepalive};
use crate::deadline::within;
use crate::table::Backend;
use crate::worker::DataPlane;

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
                let again = tried.len() < ATTEMPTS && Instant::now() < end;
                // As they are now: the endpoint may have failed because its pod is gone.
                again
                    .then(|| other_than(&tried, backend, plane.random()))
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

/// An endpoint that was not tried yet.
fn other_than(tried: &[SocketAddr], backend: &Backend, random: u64) -> Option<SocketAddr> {
    let endpoints = backend.endpoints();
    let count = endpoints.len();
    let start = usize::try_from(random >> 32).unwrap_or(0) % count.max(1);
    let mut turn = endpoints.iter().cycle().skip(start).take(count);
    turn.find(|endpoint| !tried.contains(endpoint)).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_is_tried_once() {
        let backend = Backend::new("team-a/web:443".into());
        let endpoints: Vec<SocketAddr> = (1..=5).map(|n| ([10, 0, 0, n], 443).into()).collect();
        assert_eq!(other_than(&[], &backend, 7), None);
        backend.set_endpoints(endpoints.clone());
        for seed in 0..64_u64 {
            let mut tried = Vec::new();
            while let Some(next) = other_than(&tried, &backend, seed << 59 | seed << 32) {
                tried.push(next);
            }
            tried.sort_unstable();
            assert_eq!(tried, endpoints);
        }
    }
}
