//! Owns responses that the proxy makes itself.

use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::exchange::ExchangeFailure;
use super::record::BODY_TOO_LARGE;
use super::timeouts::Late;
use crate::close_reason::CloseReason;

/// What ends with a response that the proxy makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The request alone.
    Request,
    /// The request, whose rest must not be read. In HTTP/1.1 the connection ends as well, because nobody could tell that
    /// rest from the next request. In HTTP/2 each stream has an end of its own, and the connection goes on.
    Reading,
    /// The connection, for this reason. A request that would be served is to come on a new one, so HTTP/2 clients get
    /// GOAWAY.
    Connection(CloseReason),
}

impl Ends {
    /// Whether an HTTP/1.1 connection ends with the response.
    pub(super) fn closes(self) -> bool {
        self != Self::Request
    }
}

/// A response that the proxy makes itself.
pub(super) struct LocalReply {
    pub(super) status: StatusCode,
    /// Metric label and log field. It is one of a fixed set.
    pub(super) reason: &'static str,
    /// Text for people. It contains no names other than those in the request.
    pub(super) text: &'static str,
    pub(super) location: Option<HeaderValue>,
    /// Value of `Allow`, if the status is "method not allowed".
    pub(super) allow: &'static str,
    /// What ends with it.
    pub(super) ends: Ends,
}

impl LocalReply {
    pub(super) fn new(status: StatusCode, reason: &'static str, text: &'static str) -> Self {
        Self {
            status,
            reason,
            text,
            location: None,
            allow: "GET, HEAD, POST, PUT, DELETE",
            ends: Ends::Request,
        }
    }

    pub(super) fn unclear(reason: &'static str, text: &'static str) -> Self {
        let answer = Self::new(StatusCode::BAD_REQUEST, reason, text);
        Self {
            ends: Ends::Reading,
            ..answer
        }
    }

    pub(super) fn broken_body() -> Self {
        let text = "the body did not come to its end\n";
        Self::unclear("BodyBroken", text)
    }

    /// The response if a request needs the permission of a server that gave no answer.
    pub(super) fn auth_unavailable() -> Self {
        let text = "nobody could be asked whether this request is allowed\n";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "AuthUnavailable", text)
    }

    pub(super) fn in_circles() -> Self {
        let text = "the request goes round in circles\n";
        Self::new(StatusCode::LOOP_DETECTED, "Loop", text)
    }

    pub(super) fn body_too_large() -> Self {
        let text = "the body is larger than is allowed here\n";
        let answer = Self::new(StatusCode::PAYLOAD_TOO_LARGE, BODY_TOO_LARGE, text);
        Self {
            ends: Ends::Reading,
            ..answer
        }
    }

    /// The response to a client whose backend switched to a protocol that the client did not ask for.
    pub(super) fn unasked() -> Self {
        let text = "the backend changed the protocol without being asked\n";
        Self::new(StatusCode::BAD_GATEWAY, "BackendBroken", text)
    }

    pub(super) fn internal(reason: &'static str) -> Self {
        let text = "the route for this request leads nowhere\n";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, reason, text)
    }
}

impl From<Late> for LocalReply {
    fn from(late: Late) -> Self {
        let text = "the backend did not answer in time\n";
        Self::new(StatusCode::GATEWAY_TIMEOUT, late.reason(), text)
    }
}

impl From<ExchangeFailure> for LocalReply {
    fn from(failure: ExchangeFailure) -> Self {
        let text = match failure.status() {
            StatusCode::BAD_GATEWAY => "the backend broke off\n",
            StatusCode::SERVICE_UNAVAILABLE => "no backend is there for this request\n",
            StatusCode::LOOP_DETECTED => "the backend of this request is the Gateway itself\n",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "the head of the request is larger than the backend takes\n"
            }
            _ => "the backend cannot be connected to as is asked for\n",
        };
        Self::new(failure.status(), failure.reason(), text)
    }
}
