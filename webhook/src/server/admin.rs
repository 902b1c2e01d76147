//! Owns the admin endpoint: health, readiness and metrics. It is plain HTTP, because none of this is confidential.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::server::Shared;

/// Content type of the metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page that lists the paths.
const INDEX: &str = "\
/healthz   the process is up
/readyz    there is a certificate, the first sync is done, and it does not shut down
/servingz  the same, but until it accepts no more connections (for the kubelet)
/metrics   Prometheus (OpenMetrics)
";

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/servingz", get(servingz))
        .route("/metrics", get(metrics))
        .with_state(shared)
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    probed("ready\n", shared.unready())
}

/// Kubernetes itself takes a pod out of Services when it begins to end. With this answer the pod stays a *serving*
/// endpoint until it accepts no more, so that kube-proxy goes on with it where there is no other one.
async fn servingz(State(shared): State<Arc<Shared>>) -> Response {
    probed("serving\n", shared.not_serving())
}

fn probed(good: &'static str, why_not: Option<&str>) -> Response {
    match why_not {
        None => good.into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let remembered = shared.admission.remembered();
    shared
        .metrics
        .remembered
        .set(i64::try_from(remembered).unwrap_or(i64::MAX));
    match shared.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
