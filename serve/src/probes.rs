//! Owns the port for probes and metrics. It is plain HTTP/1.1 without authentication. So everything about it is
//! bounded, and the probes of the kubelet get through even if others flood the port.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::places::{Places, Source};

/// Limits of a port.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most connections at one time, shared fairly between sources. Further ones are closed.
    pub connections: usize,
    /// Longest time for the head of a request, and between requests.
    pub head: Duration,
    /// Longest time of a connection, however it is used. Scrapers and people can connect again.
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

/// Wait before the next accept after one has failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Most bytes of the head of a request, and most bytes that are read ahead.
const BUFFER: usize = 16 << 10;

/// Serves `router` within the usual limits, and never returns.
pub async fn serve(listener: TcpListener, router: Router) {
    serve_within(Limits::default(), listener, router).await;
}

/// Serves `router` within these limits, and never returns.
pub async fn serve_within(limits: Limits, listener: TcpListener, router: Router) {
    let places = Places::new(limits.connections);
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the port for probes cannot accept a connection");
                // There are no more file descriptors. Some are free again when connections end.
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
            // An error needs no report, because the peer that broke the connection knows of it.
            let _ = timeout(stay, connection).await;
            drop(place);
        });
    }
}
