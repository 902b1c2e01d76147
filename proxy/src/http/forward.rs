//! Owns what becomes of one attempt: the response for the client, another attempt, or a response of this proxy.

use std::pin::pin;

use hyper::body::Body;
use hyper::header::CONTENT_LENGTH;
use hyper::{Request, Response, StatusCode, Version};

use super::backend_http1::Upgraded;
use super::body::Upload;
use super::download::{BackendBody, Download};
use super::exchange::{Attempts, Ended, Exchange, ExchangeFailure};
use super::headers;
use super::local_reply::{Ends, LocalReply};
use super::pool::Lease;
use super::record::RequestRecord;
use super::retry::retried;
use super::timeouts::{Allowed, Late};
use crate::http_route::table::Found;
use crate::overload::OverloadLevel;

/// How an attempt ended.
pub(super) enum Forwarded {
    Answer(Response<Download>),
    /// The backend's side of a WebSocket.
    Upgrade(Response<Download>, Upgraded),
    /// There is no response, and another attempt has to be made with this body.
    Again(Upload),
}

/// Whether an answer with this status ends with its head (RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5).
pub(super) fn has_no_content(status: StatusCode) -> bool {
    [
        StatusCode::NO_CONTENT,
        StatusCode::RESET_CONTENT,
        StatusCode::NOT_MODIFIED,
    ]
    .contains(&status)
}

/// Sends the request to a backend, and prepares its response for the client.
pub(super) async fn forward(
    exchange: &Exchange<'_>,
    found: &Found,
    mut request: Request<Upload>,
    attempts: &mut Attempts,
    record: &mut RequestRecord,
) -> Result<Forwarded, LocalReply> {
    let Some(rule) = found.rule() else {
        return Err(LocalReply::internal("NoBackend"));
    };
    if exchange.upgrade {
        headers::ask_upgrade(request.headers_mut());
    }
    let bodiless = request.body().is_end_stream();
    let method = request.method().clone();
    let call = record.call.as_ref().filter(|_| exchange.grpc);
    let allowed = Allowed::of(rule, &record.bounds);
    let allowed = allowed.at_most(call.and_then(|call| call.timeout));
    record.allowed = allowed.beginning_at(record.elapsed());
    if let Some(retry) = &rule.retry {
        attempts.retries.at(&exchange.backend, &found.route.tenant);
        if retry.attempts == 0 {
            attempts.never_repeat();
        }
    }
    let mut is_owed = false;
    let answered = if let Some(failure) = exchange.refusal(attempts) {
        Ok(Err(Ended::Failed(failure)))
    } else {
        let attempt = pin!(exchange.attempt(request, attempts, &mut record.trace));
        let progress = &record.upload.progress;
        let overload = exchange.plane.overload();
        let answered = record.allowed.run(progress, overload, attempt).await;
        // An attempt that is dropped waits for nobody, so this is asked before.
        is_owed = record.upload.is_owed();
        answered
    };
    let by_client = |late: &Late| record.allowed.is_of_client(*late);
    let given_up_by_client = answered.as_ref().err().is_some_and(by_client);
    record.given_up_by_client = given_up_by_client;
    // If there is a body, the client itself may be slow. Timeouts of other namespaces do not count: their routes could
    // choose times in which no endpoint answers, and all namespaces see the same health.
    let is_own = exchange.backend.is_in(&found.route.tenant);
    // A proxy that is short of something does not wait for long, which says nothing about the endpoint either.
    let is_shed = matches!(answered, Err(Late::Idle))
        && exchange.plane.overload().step() >= OverloadLevel::Timeouts;
    let is_blamed = bodiless && is_own && !given_up_by_client && !is_shed;
    if answered.is_err() && record.trace.awaited && is_blamed {
        exchange.no_answer(&record.trace, "Timeout");
    }
    let answered = if let Some(retry) = &rule.retry {
        let tried = (&method, bodiless, answered);
        match retried(exchange, retry, tried, attempts, record).await {
            Ok(again) => return Ok(Forwarded::Again(again)),
            Err(answered) => answered,
        }
    } else {
        answered
    };
    let answered = match answered {
        Ok(Err(Ended::Again(body))) if !record.upload.is_broken() => {
            return Ok(Forwarded::Again(body));
        }
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(Ended::Failed(failure))) => Err(LocalReply::from(failure)),
        Ok(Err(Ended::Again(_))) => Err(LocalReply::from(ExchangeFailure::Broken)),
        Err(late) => Err(too_late(late, is_owed)),
    };
    record.upload.answered();
    let (response, lease) = match answered {
        Err(_) if record.upload.is_too_large() => return Err(LocalReply::body_too_large()),
        Err(_) if record.upload.is_broken() => return Err(LocalReply::broken_body()),
        answered => answered?,
    };
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let agreed = headers::is_websocket(response.headers());
    let response = cleaned(response)?;
    if !switched {
        return Ok(Forwarded::Answer(for_client(response, lease)));
    }
    if !(exchange.upgrade && agreed) {
        return Err(LocalReply::unasked());
    }
    let (head, body) = response.into_parts();
    let backend = body.into_upgraded().ok_or_else(LocalReply::unasked)?;
    let mut response = Response::from_parts(head, Download::own(""));
    headers::ask_upgrade(response.headers_mut());
    Ok(Forwarded::Upgrade(response, backend))
}

/// Removes from a response what is between the backend and this proxy.
///
/// # Errors
/// Its body has a coding that this proxy cannot decode. The endpoint is healthy, and another attempt would get the same
/// response.
pub(super) fn cleaned(
    mut response: Response<BackendBody>,
) -> Result<Response<BackendBody>, LocalReply> {
    *response.version_mut() = Version::HTTP_11;
    if !headers::has_known_coding(&response) {
        return Err(LocalReply::from(ExchangeFailure::Broken));
    }
    headers::strip_response(&mut response);
    Ok(response)
}

/// A response of a backend in the form in which the client gets it.
pub(super) fn for_client(mut response: Response<BackendBody>, lease: Lease) -> Response<Download> {
    if has_no_content(response.status()) && !response.body().is_end_stream() {
        // HTTP/2 can carry a body here all the same. Without its lease, the backend's request is reset.
        response.headers_mut().remove(CONTENT_LENGTH);
        return response.map(|_| Download::own(""));
    }
    response.map(|body| Download::backend(body, lease))
}

/// The response if a request takes too long. `is_owed` says whether the proxy waited for the client itself.
pub(super) fn too_late(late: Late, is_owed: bool) -> LocalReply {
    if late == Late::Idle && is_owed {
        let text = "the body did not come in time\n";
        return LocalReply {
            ends: Ends::Reading,
            ..LocalReply::new(StatusCode::REQUEST_TIMEOUT, late.reason(), text)
        };
    }
    LocalReply::from(late)
}
