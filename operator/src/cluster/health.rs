//! What the operator says of itself: alive, ready, and why not.

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

/// The loop that translates turns at least this often, or something is wrong with it.
const STUCK: Duration = Duration::from_mins(2);

/// Liveness and readiness; shared.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    beat: Instant,
    /// Why it is not ready; none when it is.
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
    /// The loop has turned.
    pub(super) fn beat(&self) {
        self.0.lock().beat = Instant::now();
    }

    /// Ready, or not and why. Returns whether that is news.
    pub(super) fn set(&self, unready: Option<String>) -> bool {
        let mut inner = self.0.lock();
        let news = inner.unready != unready;
        inner.unready = unready;
        news
    }

    /// Why it is not ready; none when it is.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        self.0.lock().unready.clone()
    }

    fn is_alive(&self) -> bool {
        self.0.lock().beat.elapsed() < STUCK
    }
}

/// `/healthz`, `/readyz` and `/metrics`.
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
