//! Owns the handling of one HTTP request: its bounds, the review, the metrics and the log line.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{timeout, timeout_at};
use vestibule_serve::places::{Place, Places, Source};

use crate::admission::Recheck;
use crate::envelope::{self, MAX_BYTES, ReviewOutcome, ReviewRecord, ReviewResponse};
use crate::server::Shared;
use crate::server::judging_queue::{JudgingQueue, QueueLimits};

/// Longest wait for the body of a request, and for the turn of a review.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of bodies that are held at one time, shared fairly between sources. The first [`HEAD`] bytes of each body
/// are counted here, and the others separately. Further bodies wait. They are counted separately because large objects
/// of one namespace must not delay small objects of others, which come from the same API server.
const MAX_HEADS: usize = 32 << 20;
const MAX_RESTS: usize = 32 << 20;
/// Longest body that is judged at the same time as others. Longer ones are judged one at a time, because parsing takes
/// up to thirty times as much memory as the text.
const SHORT: usize = 512 << 10;
/// How many bytes of a body are counted in [`MAX_HEADS`].
const HEAD: usize = 64 << 10;
/// Limits on reviews with short bodies that are judged at one time.
const OF_SHORT: QueueLimits = QueueLimits {
    all: 4,
    of_source: 3,
    of_namespace: 2,
};
/// Limits on reviews with long bodies.
const OF_LONG: QueueLimits = QueueLimits {
    all: 1,
    of_source: 1,
    of_namespace: 1,
};
/// Most reviews that wait at one time for a set that was just admitted, shared fairly between sources. Further ones are
/// answered at once, by the objects that exist.
const MAX_WAITING: usize = 64;
/// How often a waiting review checks again.
const LOOK: Duration = Duration::from_millis(20);

/// The bounds that requests share.
#[derive(Debug)]
pub(super) struct Bounds {
    heads: Places,
    rests: Places,
    short: JudgingQueue,
    long: JudgingQueue,
    waiting: Places,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            heads: Places::new(MAX_HEADS),
            rests: Places::new(MAX_RESTS),
            short: JudgingQueue::new(OF_SHORT),
            long: JudgingQueue::new(OF_LONG),
            waiting: Places::new(MAX_WAITING),
        }
    }
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .with_state(shared)
}

async fn validate(
    State(shared): State<Arc<Shared>>,
    Extension(source): Extension<IpAddr>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match review(&shared, source, &headers, body).await {
        Ok(answer) => respond(answer),
        Err(failure) => {
            shared.metrics.failed(failure.reason());
            failure.into_response()
        }
    }
}

async fn review(
    shared: &Arc<Shared>,
    source: IpAddr,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReviewResponse, Failure> {
    if !is_json(headers) {
        return Err(Failure::NotJson);
    }
    let (body, held) = collect(shared, source, headers, body).await?;
    let review_source = ReviewSource {
        source,
        namespace: envelope::namespace_of(&body).unwrap_or_default(),
    };
    let begun = Instant::now();
    let judged = match judge(shared, &review_source, body, begun, false).await? {
        Judged::Recheck(recheck, body) => {
            wait(shared, source, &recheck).await;
            judge(shared, &review_source, body, begun, true).await?
        }
        answered @ Judged::Answered(_) => answered,
    };
    drop(held);
    match judged {
        Judged::Answered(answer) => Ok(answer),
        // The second time, there is always an answer.
        Judged::Recheck(..) => Err(Failure::Broken),
    }
}

/// The API server that sent a review, and the namespace of its object. The queue is fair between both.
struct ReviewSource {
    source: IpAddr,
    /// The namespace of the object, from the envelope. It is empty if there is none.
    namespace: String,
}

/// The result of judging.
enum Judged {
    Answered(ReviewResponse),
    /// The review has to wait, and is then judged once more.
    Recheck(Recheck, Vec<u8>),
}

/// Judges a review on a thread of its own, when it has its turn. The permit is given back after its memory is freed.
async fn judge(
    shared: &Arc<Shared>,
    review_source: &ReviewSource,
    body: Vec<u8>,
    begun: Instant,
    last: bool,
) -> Result<Judged, Failure> {
    let permit = {
        let _queued = Queued::new(&shared.metrics.queued);
        let queue = shared.bounds.queue(body.len());
        let permit = queue.wait(review_source.source, &review_source.namespace);
        timeout(PATIENCE, permit).await.map_err(|_| Failure::Busy)?
    };
    let shared = Arc::clone(shared);
    let task = tokio::task::spawn_blocking(move || {
        let (admission, now) = (&shared.admission, Instant::now());
        let answer = if last {
            envelope::review_bytes(&body, admission, now)
        } else {
            match envelope::review_bytes_or_recheck(&body, admission, now) {
                Ok(answer) => answer,
                Err(recheck) => return Judged::Recheck(recheck, body),
            }
        };
        drop(body);
        drop(permit);
        shared.metrics.reviewed(&answer.record, begun.elapsed());
        tell(&answer.record);
        Judged::Answered(answer)
    });
    task.await.map_err(|_| Failure::Broken)
}

/// Waits until the watch shows the set with which it may conflict, or until the time for that is over.
async fn wait(shared: &Shared, source: IpAddr, recheck: &Recheck) {
    let Some(_place) = shared.bounds.waiting.take(Source::of_peer(source), 1) else {
        return;
    };
    shared.metrics.waits.inc();
    let deadline = Instant::now() + shared.admission.patience();
    while shared.admission.is_pending(recheck, Instant::now()) && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
}

/// A review counts as waiting for its turn until this is dropped.
struct Queued<'a>(&'a Gauge);

impl<'a> Queued<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Bounds {
    /// The queue in which a body of this length waits.
    fn queue(&self, length: usize) -> &JudgingQueue {
        if length > SHORT {
            &self.long
        } else {
            &self.short
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads the body within bounds. Returns it with the room that it takes. Room is taken when bytes arrive, so that
/// nobody can take it by announcing a body that they never send.
async fn collect(
    shared: &Shared,
    source: IpAddr,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<(Vec<u8>, Vec<Place>), Failure> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_BYTES) {
        return Err(Failure::TooLong);
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let (mut bytes, mut held): (Vec<u8>, Vec<Place>) = (Vec::new(), Vec::new());
    let mut room = 0;
    loop {
        let frame = timeout_at(deadline, body.frame()).await;
        let Some(frame) = frame.map_err(|_| Failure::Slow)? else {
            return Ok((bytes, held));
        };
        let frame = frame.map_err(|_| Failure::Cut)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > MAX_BYTES {
            return Err(Failure::TooLong);
        }
        if length > room {
            // Room grows in steps, so that small frames do not take many places.
            let more = (length - room).max(room).max(4 << 10);
            let of_head = more.min(HEAD.saturating_sub(room));
            let pools = [
                (&shared.bounds.heads, of_head),
                (&shared.bounds.rests, more - of_head),
            ];
            for (pool, more) in pools.into_iter().filter(|(_, more)| *more > 0) {
                let place = timeout_at(deadline, pool.wait(Source::of_peer(source), more));
                held.push(place.await.map_err(|_| Failure::Busy)?);
            }
            room += more;
        }
        bytes.extend_from_slice(&data);
    }
}

/// Logs a line for each refusal: who, what and why. It contains nothing of the object's content.
fn tell(record: &ReviewRecord) {
    let reasons = || {
        let words: Vec<&str> = record.reasons.iter().map(|r| r.as_str()).collect();
        words.join(",")
    };
    match record.outcome {
        ReviewOutcome::Refused => tracing::info!(
            kind = record.kind_label(),
            namespace = record.namespace,
            name = record.name,
            operation = record.operation,
            user = record.user,
            dry_run = record.dry_run,
            reasons = reasons(),
            "a review was refused"
        ),
        ReviewOutcome::Malformed => tracing::warn!("a request is not a review"),
        ReviewOutcome::Passed | ReviewOutcome::Allowed | ReviewOutcome::Warned => tracing::debug!(
            kind = record.kind_label(),
            namespace = record.namespace,
            name = record.name,
            reasons = reasons(),
            outcome = record.outcome.as_str(),
            "a review was answered"
        ),
    }
}

fn respond(answer: ReviewResponse) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media = if status == StatusCode::OK {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    };
    (status, [(header::CONTENT_TYPE, media)], answer.body).into_response()
}

/// Why there is no review.
#[derive(Debug, Clone, Copy)]
enum Failure {
    NotJson,
    TooLong,
    Slow,
    Cut,
    Busy,
    Broken,
}

impl Failure {
    fn reason(self) -> &'static str {
        match self {
            Self::NotJson => "NotJSON",
            Self::TooLong => "TooLong",
            Self::Slow => "SlowBody",
            Self::Cut => "CutBody",
            Self::Busy => "Busy",
            Self::Broken => "Broken",
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send an AdmissionReview as application/json\n".to_owned(),
            ),
            Self::TooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the request is longer than {MAX_BYTES} bytes\n"),
            ),
            Self::Slow => (
                StatusCode::REQUEST_TIMEOUT,
                "the request did not come within 5 s\n".to_owned(),
            ),
            Self::Cut => (StatusCode::BAD_REQUEST, "the request is cut\n".to_owned()),
            Self::Busy => {
                // API servers try again if the response says when.
                let text = "too many reviews at one time\n";
                let headers = [(header::RETRY_AFTER, "1")];
                return (StatusCode::TOO_MANY_REQUESTS, headers, text).into_response();
            }
            Self::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "the review failed; the webhook's log says more\n".to_owned(),
            ),
        };
        (status, text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::FutureExt;
    use serde_json::json;
    use tokio::sync::watch;
    use vestibule_model::policy::Policy;

    use super::*;
    use crate::admission::Admission;
    use crate::server::accept::Phase;
    use crate::server::judging_queue::JudgingPermit;
    use crate::server::metrics::Metrics;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            admission: Arc::new(Admission::new("c", Policy::default())),
            metrics: Arc::new(Metrics::new()),
            serving: Arc::default(),
            bounds: Bounds::default(),
            synced: AtomicBool::new(true),
            phase: watch::channel(Phase::Serving).0,
        })
    }

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn body(namespace: &str, padding: usize) -> String {
        let request = json!({
            "uid": "u", "kind": {"group": "", "kind": "ConfigMap"}, "name": "n",
            "namespace": namespace, "operation": "CREATE",
            "object": {"data": "x".repeat(padding)},
        });
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
            .to_string()
    }

    async fn reviewed(
        shared: &Arc<Shared>,
        last: u8,
        body: String,
    ) -> Result<ReviewResponse, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        );
        review(shared, source(last), &headers, Body::from(body)).await
    }

    /// Every turn that a namespace of a source may have.
    async fn take_all(shared: &Arc<Shared>, last: u8, namespace: &str) -> Vec<JudgingPermit> {
        let queue = shared.bounds.queue(0);
        let mut taken = Vec::new();
        while let Ok(permit) = timeout(
            Duration::from_millis(1),
            queue.wait(source(last), namespace),
        )
        .await
        {
            taken.push(permit);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_or_source_that_takes_every_turn_leaves_one_to_others() {
        let shared = shared();
        let _flood = take_all(&shared, 1, "greedy").await;
        let same = reviewed(&shared, 1, body("greedy", 0)).await;
        assert!(matches!(same, Err(Failure::Busy)), "its own have to wait");
        for _ in 0..3 {
            let neighbour = reviewed(&shared, 1, body("neighbour", 0)).await;
            assert_eq!(neighbour.unwrap().status, 200);
        }
        let _all = take_all(&shared, 1, "further").await;
        let same = reviewed(&shared, 1, body("neighbour", 0)).await;
        assert!(matches!(same, Err(Failure::Busy)), "its source has no more");
        let elsewhere = reviewed(&shared, 2, body("greedy", 0)).await;
        assert_eq!(elsewhere.unwrap().status, 200);
        assert_eq!(shared.metrics.queued.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn room_that_long_bodies_take_is_not_missing_to_short_ones() {
        let shared = shared();
        let half = shared
            .bounds
            .rests
            .take(Source::of_peer(source(1)), MAX_RESTS / 2);
        assert!(half.is_some());
        let long = reviewed(&shared, 1, body("greedy", SHORT)).await;
        assert!(
            matches!(long, Err(Failure::Busy)),
            "no room is left to its source"
        );
        let short = reviewed(&shared, 1, body("neighbour", HEAD / 2)).await;
        assert_eq!(short.unwrap().status, 200);
        let elsewhere = reviewed(&shared, 2, body("other", SHORT)).await;
        assert_eq!(elsewhere.unwrap().status, 200);
    }

    #[tokio::test]
    async fn long_ones_are_judged_one_at_a_time() {
        let bounds = Bounds::default();
        for length in [SHORT + 1, 3 << 20, MAX_BYTES, usize::MAX] {
            assert!(std::ptr::eq(bounds.queue(length), &raw const bounds.long));
        }
        for length in [0, SHORT] {
            assert!(std::ptr::eq(bounds.queue(length), &raw const bounds.short));
        }
        let _held = bounds.long.wait(source(1), "a").await;
        let second = bounds.long.wait(source(2), "b");
        assert!(second.now_or_never().is_none());
    }
}
