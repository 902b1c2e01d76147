//! Owns the endpoints for people and probes. Nobody is authenticated, so there are two: health,
//! readiness and metrics for the cluster, and for loopback also the configuration in force, without
//! keys.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::control::Control;
use crate::fair::Shares;

/// Connections at one time, shared fairly between sources: whoever may reach the endpoint, the
/// kubelet's probes get through.
const MAX_CONNECTIONS: usize = 256;
/// Time for a request's head, and between requests.
const HEAD: Duration = Duration::from_secs(30);
/// Time for a connection, however it is used: scrapers and people come again.
const STAY: Duration = Duration::from_mins(10);

/// What the exposition is, for scrapers.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is, for people.
const INDEX: &str = "\
/healthz  the process is up
/readyz   a configuration is in force, and the proxy does not end
/metrics  Prometheus (OpenMetrics)
/config   the configuration in force, without keys
/status   verdict and status of every object (`vestibule run` only)
";

/// What probes and scrapers may see.
pub(crate) fn health(control: Control) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(control)
}

/// Everything.
pub(crate) fn admin(control: Control) -> Router {
    let router = Router::new()
        .route("/", get(async || INDEX))
        .route("/config", get(config))
        .with_state(control.clone());
    router.merge(health(control))
}

/// Serves `router` for ever.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let shares = Arc::new(Shares::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "an endpoint cannot accept");
                // What ends connections also ends a lack of descriptors.
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Some(source) = shares.take(peer.ip(), 1) else {
            continue;
        };
        let (shares, router) = (Arc::clone(&shares), router.clone());
        connections.spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            // Who breaks the connection knows it.
            let _ = tokio::time::timeout(STAY, connection).await;
            shares.give_back(source);
        });
    }
}

async fn readyz(State(control): State<Control>) -> Response {
    if control.is_ready() {
        "ready\n".into_response()
    } else {
        let why = "no configuration is in force yet, or the proxy ends\n";
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    }
}

async fn metrics(State(control): State<Control>) -> Response {
    match control.metrics().encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn config(State(control): State<Control>) -> Response {
    // Tens of thousands of resources take a while to write down.
    match tokio::task::spawn_blocking(move || control.dump()).await {
        Ok(dump) => Json(dump).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
