//! Owns the response to a CA that asks for a token (HTTP-01).

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::authority::Target;
use super::download::Download;
use super::local_reply::LocalReply;
use super::record::RequestRecord;
use super::shared::Shared;
use crate::challenge::{ChallengeOutcome, ChallengeQuery, ChallengeReply};
use crate::table::Snapshot;

/// The response to a CA that checks a hostname, if there is a challenge. It comes before routes and their redirects.
///
/// A token belongs to one order of one account, so nobody else needs its path. Other requests to this path are not
/// given to a route either.
pub(super) fn challenge<B>(
    snapshot: &Snapshot,
    shared: &Shared,
    target: &Target,
    request: &Request<B>,
    record: &mut RequestRecord,
) -> Result<Option<Response<Download>>, LocalReply> {
    // A CA asks in plaintext first, and comes over HTTPS only after a redirect.
    if shared.listener.is_some() || request.uri().query().is_some() {
        return Ok(None);
    }
    let Some(question) = ChallengeQuery::of_request(target.host.as_ref(), request.uri().path())
    else {
        return Ok(None);
    };
    let (plane, kind) = (&shared.plane, question.kind());
    let Some(challenge) = snapshot.challenge(&shared.bind, question) else {
        return Ok(None);
    };
    let ChallengeReply::Http(body) = challenge.answer.clone() else {
        return Ok(None);
    };
    record.challenge = Some(challenge);
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        plane.metrics.challenge(kind, ChallengeOutcome::Failed);
        let text = "a challenge is only to be read\n";
        return Err(LocalReply {
            allow: "GET, HEAD",
            ..LocalReply::new(StatusCode::METHOD_NOT_ALLOWED, "Challenge", text)
        });
    }
    plane.metrics.challenge(kind, ChallengeOutcome::Answered);
    let mut response = Response::new(Download::own(body));
    let stream = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, stream);
    Ok(Some(response))
}
