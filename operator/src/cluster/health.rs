//! Reports whether the operator is alive and ready, and why not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Longest time between two turns of the loop. If it takes longer, the loop is stuck.
const STUCK: Duration = Duration::from_mins(2);

/// Liveness and readiness. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    beat: Instant,
    /// Why the operator is not ready; `None` if it is.
    unready: Option<String>,
}

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            beat: Instant::now(),
            unready: Some("starting".into()),
        })))
    }
}

impl Health {
    /// Notes that the loop has turned.
    pub(super) fn beat(&self) {
        self.0.lock().beat = Instant::now();
    }

    /// Sets why the operator is not ready; `None` if it is. Returns whether this is a change.
    pub(super) fn set(&self, unready: Option<String>) -> bool {
        let mut inner = self.0.lock();
        let news = inner.unready != unready;
        inner.unready = unready;
        news
    }

    /// Returns why the operator is not ready; `None` if it is.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        self.0.lock().unready.clone()
    }

    fn is_alive(&self) -> bool {
        self.0.lock().beat.elapsed() < STUCK
    }
}

/// Returns a router for `/healthz`, `/readyz` and `/metrics`.
pub fn router(health: Health, registry: Arc<RwLock<Registry>>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
        .route("/metrics", get(async move || metrics(&registry.read())))
}

async fn healthz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if health.is_alive() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the loop does not turn\n")
    }
}

async fn readyz(State(health): State<Health>) -> (StatusCode, String) {
    match health.unready() {
        None => (StatusCode::OK, "ok\n".into()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    if encode(&mut text, registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
