//! Owns the HTTP endpoints for people and probes. They do not authenticate anybody, so there are two of them. One
//! serves health, readiness and metrics to the cluster. The other listens on loopback only, and also shows the
//! configuration in force, without keys.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use crate::control::Control;

/// Content type of the metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page that lists the paths.
const INDEX: &str = "\
/healthz   the process is up
/readyz    a configuration is in force, and the proxy is not shutting down (for load balancers)
/servingz  a configuration is in force, and the proxy accepts connections, also while it shuts down (for the kubelet)
/metrics   Prometheus (OpenMetrics)
/config    the configuration in force, without keys
/status    verdict and status of every object (`vestibule run` only)
";

/// The endpoint for probes and scrapers.
pub(crate) fn health(control: Control) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/servingz", get(servingz))
        .route("/metrics", get(metrics))
        .with_state(control)
}

/// The endpoint for people on loopback. It has all paths.
pub(crate) fn admin(control: Control) -> Router {
    let router = Router::new()
        .route("/", get(async || INDEX))
        .route("/config", get(config))
        .with_state(control.clone());
    router.merge(health(control))
}

async fn readyz(State(control): State<Control>) -> Response {
    let why = "no configuration is in force yet, or the proxy ends\n";
    probed(control.is_ready(), "ready\n", why)
}

/// Kubernetes itself takes a pod out of Services when it begins to end. With this answer the pod stays a *serving*
/// endpoint until its sockets close, so that kube-proxy goes on with it where it has no other one
/// (`ProxyTerminatingEndpoints`).
async fn servingz(State(control): State<Control>) -> Response {
    let why = "no configuration is in force yet, or the proxy accepts no more connections\n";
    probed(control.is_serving(), "serving\n", why)
}

fn probed(is_good: bool, good: &'static str, why_not: &'static str) -> Response {
    if is_good {
        good.into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, why_not).into_response()
    }
}

async fn metrics(State(control): State<Control>) -> Response {
    match control.metrics().encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn config(State(control): State<Control>) -> Response {
    // Tens of thousands of resources take a while to encode, so this does not happen on an async thread.
    match tokio::task::spawn_blocking(move || control.dump()).await {
        Ok(dump) => Json(dump).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
