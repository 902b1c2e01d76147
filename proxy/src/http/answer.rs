//! Owns what a request gets: the listener that it is for, and the answer.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};

use super::authority::Target;
use super::record::{Logged, RequestRecord};
use super::serve::Shared;
use crate::table::Listener;

/// An answer of our own making.
struct Verdict {
    status: StatusCode,
    /// Of a fixed set: metric label and log field.
    reason: &'static str,
    /// For people; names nothing that the request did not.
    text: &'static str,
    listener: Option<Arc<Listener>>,
}

const NO_LISTENER: &str = "no listener is for this host\n";
const NO_ROUTE: &str = "no route is for this request\n";
const MISDIRECTED: &str =
    "another listener is for this host; ask again on a connection of its own\n";

/// Answers one request. Its body is never read.
pub(super) fn answer<B>(
    shared: &Arc<Shared>,
    request: &Request<B>,
) -> Response<Logged<Full<Bytes>>> {
    let mut record = RequestRecord::new(Arc::clone(shared), request);
    let one = request.version() < Version::HTTP_2;
    // HTTP/2 has GOAWAY for it, when the sockets close.
    let leaving = one && shared.plane.is_leaving();
    let (verdict, close) = match Target::of(request) {
        Ok(target) => {
            let verdict = judge(shared, &target);
            record.authority = target.text;
            (verdict, leaving)
        }
        Err(_) => (
            Verdict {
                status: StatusCode::BAD_REQUEST,
                reason: "UnclearHost",
                text: "it is not clear which host the request is for\n",
                listener: None,
            },
            // Whoever writes such heads is not to be read on.
            one,
        ),
    };
    record.status = verdict.status;
    record.reason = verdict.reason;
    record.listener = verdict.listener;
    let body = Full::new(Bytes::from_static(verdict.text.as_bytes()));
    let mut response = Response::new(Logged::new(body, record));
    *response.status_mut() = verdict.status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Selects by the configuration of this moment: a connection may be older.
fn judge(shared: &Shared, target: &Target) -> Verdict {
    let snapshot = shared.plane.snapshot.load();
    let host = target.host.as_ref();
    let no_route = |listener| Verdict {
        status: StatusCode::NOT_FOUND,
        reason: "NoRoute",
        text: NO_ROUTE,
        listener: Some(listener),
    };
    let Some(own) = &shared.listener else {
        return match snapshot.select_plain(&shared.bind, host) {
            Some(listener) => no_route(listener),
            None => Verdict {
                status: StatusCode::NOT_FOUND,
                reason: "NoListener",
                text: NO_LISTENER,
                listener: None,
            },
        };
    };
    // A client may reuse a connection for every name in the certificate (GEP-3567).
    match snapshot.select_tls(&shared.bind, host) {
        Some(other) if other.key != own.key => Verdict {
            status: StatusCode::MISDIRECTED_REQUEST,
            reason: "Misdirected",
            text: MISDIRECTED,
            listener: Some(Arc::clone(own)),
        },
        Some(_) => no_route(Arc::clone(own)),
        None => Verdict {
            status: StatusCode::NOT_FOUND,
            reason: "NoListener",
            text: NO_LISTENER,
            listener: Some(Arc::clone(own)),
        },
    }
}
