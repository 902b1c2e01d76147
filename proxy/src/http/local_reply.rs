//! Owns responses that the proxy makes itself.

use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::exchange::ExchangeFailure;
use super::record::BODY_TOO_LARGE;
use super::timeouts::Late;

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
    /// Whether the connection has to close, because the rest of it should not be read.
    pub(super) close: bool,
}

impl LocalReply {
    pub(super) fn new(status: StatusCode, reason: &'static str, text: &'static str) -> Self {
        Self {
            status,
            reason,
            text,
            location: None,
            allow: "GET, HEAD, POST, PUT, DELETE",
            close: false,
        }
    }

    pub(super) fn unclear(reason: &'static str, text: &'static str) -> Self {
        let answer = Self::new(StatusCode::BAD_REQUEST, reason, text);
        Self {
            close: true,
            ..answer
        }
    }

    pub(super) fn in_circles() -> Self {
        let text = "the request goes round in circles\n";
        Self::new(StatusCode::LOOP_DETECTED, "Loop", text)
    }

    pub(super) fn body_too_large() -> Self {
        let text = "the body is larger than is allowed here\n";
        let answer = Self::new(StatusCode::PAYLOAD_TOO_LARGE, BODY_TOO_LARGE, text);
        Self {
            close: true,
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
