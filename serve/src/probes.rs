//! Owns the port for probes and metrics. It is plain HTTP/1.1 without authentication, so everything about it is
//! bounded, and the kubelet's probes get through whoever else connects.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::places::{Places, Source};

/// Bounds of a port.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at one time, shared fairly between sources; those beyond are closed.
    pub connections: usize,
    /// Time for a request's head, and between requests.
    pub head: Duration,
    /// Time for a connection, however it is used: scrapers and people come again.
    pub stay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head: Duration::from_secs(30),
            stay: Duration::from_mins(10),
        }
    }
}

/// Wait before the next connection is accepted after the kernel failed to.
const PAUSE: Duration = Duration::from_millis(200);

/// Bytes of a request's head, and of what is read ahead.
const BUFFER: usize = 16 << 10;

/// Serves `router` for ever, within the usual limits.
pub async fn serve(listener: TcpListener, router: Router) {
    serve_within(Limits::default(), listener, router).await;
}

/// Serves `router` for ever, within these limits.
pub async fn serve_within(limits: Limits, listener: TcpListener, router: Router) {
    let places = Places::new(limits.connections);
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the port for probes cannot accept a connection");
                // What ends connections also ends a lack of descriptors.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Some(place) = places.take(Source::of_peer(peer.ip()), 1) else {
            continue;
        };
        let (router, stay) = (router.clone(), limits.stay);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        connections.spawn(async move {
            // Whoever breaks the connection knows it.
            let _ = timeout(stay, connection).await;
            drop(place);
        });
    }
}
