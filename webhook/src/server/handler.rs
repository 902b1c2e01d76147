//! Owns what happens to one HTTP request: bounds, the review, its metrics and its line in the log.

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
use tokio::sync::Semaphore;
use tokio::time::{timeout, timeout_at};

use crate::admission::Met;
use crate::envelope::{self, Answer, MAX_BYTES, Outcome, Record};
use crate::server::Shared;
use crate::server::places::{Place, Places};

/// Longest wait for a request's body, and for a review's turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of bodies held at one time, shared fairly between sources. What is over that waits.
const MAX_HELD: usize = 32 << 20;
/// Shares in judging at one time: it is bound by the processor and by the memory that parsing takes,
/// which may be thirty times the text. A review of usual size takes one share, and one of
/// [`LONG`] bytes or more takes all.
const MAX_JUDGED: u32 = 4;
/// Length of a body that is judged alone.
const LONG: usize = 2 << 20;
/// Most reviews that wait at one time for what was just admitted; further ones are answered at once, from what
/// is there.
const MAX_WAITING: usize = 64;
/// How often one that waits looks.
const LOOK: Duration = Duration::from_millis(20);

/// Bounds that requests share.
#[derive(Debug)]
pub(super) struct Bounds {
    held: Places,
    judged: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            held: Places::new(MAX_HELD),
            judged: Arc::new(Semaphore::new(MAX_JUDGED as usize)),
            waiting: Semaphore::new(MAX_WAITING),
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
) -> Result<Answer, Failure> {
    if !is_json(headers) {
        return Err(Failure::NotJson);
    }
    let (body, held) = collect(shared, source, headers, body).await?;
    let begun = Instant::now();
    let judged = match judge(shared, body, begun, false).await? {
        Judged::Met(met, body) => {
            wait(shared, &met).await;
            judge(shared, body, begun, true).await?
        }
        answered @ Judged::Answered(_) => answered,
    };
    drop(held);
    match judged {
        Judged::Answered(answer) => Ok(answer),
        // The last time it always answers.
        Judged::Met(..) => Err(Failure::Broken),
    }
}

/// What came of judging.
enum Judged {
    Answered(Answer),
    /// It has to wait, and is to be judged once more.
    Met(Met, Vec<u8>),
}

/// Judges on a thread of its own, when it is its turn; what it takes is given back after it is freed.
async fn judge(
    shared: &Arc<Shared>,
    body: Vec<u8>,
    begun: Instant,
    last: bool,
) -> Result<Judged, Failure> {
    let judged = Arc::clone(&shared.bounds.judged).acquire_many_owned(shares(body.len()));
    let turn = timeout(PATIENCE, judged)
        .await
        .map_err(|_| Failure::Busy)?
        .map_err(|_| Failure::Busy)?;
    let shared = Arc::clone(shared);
    let task = tokio::task::spawn_blocking(move || {
        let (admission, now) = (&shared.admission, Instant::now());
        let answer = if last {
            envelope::review_bytes(&body, admission, now)
        } else {
            match envelope::review_bytes_unless_met(&body, admission, now) {
                Ok(answer) => answer,
                Err(met) => return Judged::Met(met, body),
            }
        };
        drop(body);
        drop(turn);
        shared.metrics.reviewed(&answer.record, begun.elapsed());
        tell(&answer.record);
        Judged::Answered(answer)
    });
    task.await.map_err(|_| Failure::Broken)
}

/// Until what it met is there, or is waited for no longer.
async fn wait(shared: &Shared, met: &Met) {
    let Ok(_place) = shared.bounds.waiting.try_acquire() else {
        return;
    };
    shared.metrics.waits.inc();
    let deadline = Instant::now() + shared.admission.patience();
    while shared.admission.is_met(met, Instant::now()) && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
}

/// Shares in judging that a body of this length takes.
fn shares(length: usize) -> u32 {
    let step = LONG / MAX_JUDGED as usize;
    u32::try_from(length / step).map_or(MAX_JUDGED, |more| (more + 1).min(MAX_JUDGED))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// The body within bounds, with the room it takes. Room is asked for as bytes come, so that nobody
/// takes it by announcing what is never sent.
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
            // In steps, so that small frames do not make many places.
            let more = (length - room).max(room).max(4 << 10);
            let place = timeout_at(deadline, shared.bounds.held.wait(source, more));
            held.push(place.await.map_err(|_| Failure::Busy)?);
            room += more;
        }
        bytes.extend_from_slice(&data);
    }
}

/// One line for each refusal: who, what, why; nothing of the object.
fn tell(record: &Record) {
    let reasons = || {
        let words: Vec<&str> = record.reasons.iter().map(|r| r.as_str()).collect();
        words.join(",")
    };
    match record.outcome {
        Outcome::Refused => tracing::info!(
            kind = record.kind_label(),
            namespace = record.namespace,
            name = record.name,
            operation = record.operation,
            user = record.user,
            dry_run = record.dry_run,
            reasons = reasons(),
            "refused"
        ),
        Outcome::Malformed => tracing::warn!("a request is not a review"),
        Outcome::Passed | Outcome::Allowed | Outcome::Warned => tracing::debug!(
            kind = record.kind_label(),
            namespace = record.namespace,
            name = record.name,
            reasons = reasons(),
            outcome = record.outcome.as_str(),
            "reviewed"
        ),
    }
}

fn respond(answer: Answer) -> Response {
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
                // API servers try again when they are told when to.
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
    use super::*;

    #[test]
    fn long_reviews_are_judged_one_at_a_time() {
        assert_eq!(shares(0), 1);
        assert_eq!(shares(100 << 10), 1);
        assert_eq!(shares(LONG / 2), 3);
        for length in [LONG, 3 << 20, MAX_BYTES, usize::MAX] {
            assert_eq!(shares(length), MAX_JUDGED);
        }
    }
}
