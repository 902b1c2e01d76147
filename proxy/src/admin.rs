//! Owns the endpoints for people and probes. Nobody is authenticated, so there are two: health,
//! readiness and metrics for the cluster, and for loopback also the configuration in force, without
//! keys.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use crate::control::Control;

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
