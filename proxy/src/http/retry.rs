//! Owns the retry of a request because its route asks for it: whether there is one, when, and with which body.
//!
//! `exchange` decides about attempts for which no route has to ask: after a connection could not be opened, or broke.

use std::time::Duration;

use hyper::body::Body;
use hyper::{Method, StatusCode};

use super::body::Upload;
use super::download::Download;
use super::exchange::{Answered, Attempts, Ended, Exchange, ExchangeFailure};
use super::record::RequestRecord;
use super::timeouts::Late;
use crate::close_reason::CloseReason;
use crate::deadline::within;
use crate::http_route::retry_policy::RetryPolicy;

/// How long the proxy reads the rest of a response that nobody gets.
const READ_AWAY: Duration = Duration::from_secs(1);

/// The outcome of an attempt.
pub(super) type Tried = Result<Result<Answered, Ended>, Late>;

/// If the route asks for a retry, waits until it is due, and returns the body for it.
///
/// # Errors
/// The outcome of the last attempt, if there is no retry. It is the outcome of the request.
pub(super) async fn retried(
    exchange: &Exchange<'_>,
    retry: &RetryPolicy,
    (method, bodiless, tried): (&Method, bool, Tried),
    attempts: &mut Attempts,
    record: &mut RequestRecord,
) -> Result<Upload, Tried> {
    let plane = exchange.plane;
    if record.upload.is_broken() || record.upload.is_too_large() {
        return Err(tried);
    }
    let is_last = attempts.retries.made >= retry.attempts;
    let wait = |record: &RequestRecord, made| {
        let left = record.allowed.left(record.elapsed());
        retry.wait(made, plane.random(), left)
    };
    // The request can be sent again at once: no backend has seen it, or it may be repeated.
    if let Ok(Err(Ended::Again(body))) = tried {
        let time = match retry.backoff {
            _ if is_last => None,
            None => Some(Duration::ZERO),
            Some(_) => wait(record, attempts.retries.made),
        };
        let Some(time) = time else {
            let failure = attempts.failure.take().unwrap_or(ExchangeFailure::Broken);
            return Err(Ok(Err(Ended::Failed(failure))));
        };
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        attempts.retries.made += 1;
        return Ok(body);
    }
    let reason = retry.reason(method, &tried);
    if reason.is_none() && matches!(tried, Ok(Ok(_))) {
        attempts.retries.succeeded();
    }
    let Some(reason) = reason.filter(|_| !is_last) else {
        return Err(tried);
    };
    if attempts.retries.deep {
        plane.metrics.not_retried("Loop");
        return Err(tried);
    }
    if !attempts.retries.is_affordable() {
        plane.metrics.not_retried("Budget");
        return Err(tried);
    }
    let kept = attempts.retries.body.clone();
    if !kept.as_ref().map_or(bodiless, |kept| kept.is_kept()) {
        plane.metrics.not_retried("Body");
        return Err(tried);
    }
    // No time is left for a retry, so the client gets what there is at once.
    let Some(time) = wait(record, attempts.retries.made) else {
        return Err(tried);
    };
    // The previous attempt goes on during the wait, because the client gets its answer if there is no retry after all.
    tokio::time::sleep(time).await;
    record.allowed.pause(time);
    if !attempts.retries.begin() {
        plane.metrics.not_retried("Budget");
        return Err(tried);
    }
    // From here on, the previous attempt reads no more of the body.
    let again = match kept {
        Some(kept) => kept.again().map(|kept| Upload::kept(kept, &record.upload)),
        None => Some(Upload::none(&record.upload)),
    };
    let Some(again) = again else {
        attempts.retries.end();
        plane.metrics.not_retried("Body");
        return Err(tried);
    };
    record.upload.pause();
    plane.metrics.retried(reason);
    if let Ok(Ok((response, lease))) = tried {
        let answer = Download::backend(response.into_body(), lease);
        if !answer.is_end_stream() {
            tokio::spawn(within(READ_AWAY, answer.read_away()));
        }
    }
    attempts.retries.made += 1;
    attempts.start_over(plane, record.trace.endpoint);
    record.trace.again += 1;
    record.trace.awaited = false;
    record.trace.took = None;
    Ok(again)
}

impl RetryPolicy {
    /// Why a request is sent again after an attempt with this outcome. It is `None` if the outcome is final.
    fn reason(&self, method: &Method, outcome: &Tried) -> Option<&'static str> {
        match outcome {
            Ok(Ok((response, _))) => {
                let status = response.status();
                // The request would only be in the loop once more.
                let listed = self.codes.contains(&status.as_u16());
                (listed && status != StatusCode::LOOP_DETECTED).then_some("Status")
            }
            Ok(Err(Ended::Failed(ExchangeFailure::Refused))) => Some("Refused"),
            Ok(Err(Ended::Failed(ExchangeFailure::Connect(reason)))) => {
                let certain = [
                    CloseReason::BackendTlsInvalid,
                    CloseReason::BackendLoop,
                    CloseReason::OutOfSockets,
                    CloseReason::TenantLimit,
                ];
                (!certain.contains(reason)).then_some("Connect")
            }
            // The backend may already have done what the request asks for.
            Err(Late::Backend) => {
                let asked = self.codes.contains(&504) || method.is_idempotent();
                asked.then_some("Timeout")
            }
            Ok(Err(_)) | Err(Late::Idle | Late::Request) => None,
        }
    }
}
