//! Owns what gRPC adds to HTTP: which requests are gRPC calls, how long their clients wait, and responses of this proxy
//! that gRPC clients understand.
//!
//! A call that cannot be served gets a gRPC status in a response with HTTP status 200, as clients expect
//! (`PROTOCOL-HTTP2.md` of gRPC, "Responses"). A response that asks the client to try another connection keeps its HTTP
//! status.

use std::time::Duration;

use hyper::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Method, StatusCode};

/// The beginning of all media types of gRPC: alone, with a suffix for the encoding, or of gRPC-Web.
const MEDIA_TYPE: &str = "application/grpc";
const WEB: &str = "-web";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// A header that clients of gRPC-Web in browsers send.
const X_GRPC_WEB: &str = "x-grpc-web";
/// Most digits of a timeout.
const MAX_DIGITS: usize = 8;
/// Names of the statuses, in the order of their numbers.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// A gRPC status. A number that gRPC does not define is kept as the backend sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u16);

impl Status {
    pub(crate) const DEADLINE_EXCEEDED: Self = Self(4);
    pub(crate) const RESOURCE_EXHAUSTED: Self = Self(8);
    const UNIMPLEMENTED: Self = Self(12);
    const INTERNAL: Self = Self(13);
    pub(crate) const UNAVAILABLE: Self = Self(14);

    /// The status that a backend sent at the end of a call.
    pub(crate) fn read(fields: &HeaderMap) -> Option<Self> {
        let text = fields.get(GRPC_STATUS)?.to_str().ok()?;
        text.parse().ok().map(Self)
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Its name. It is one of a fixed set.
    pub(crate) fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0)).copied().unwrap_or("other")
    }

    /// Writes the status and a message into header fields.
    pub(crate) fn say(self, message: &'static str, fields: &mut HeaderMap) {
        fields.insert(GRPC_STATUS, HeaderValue::from(self.0));
        if !message.is_empty() {
            fields.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
        }
    }

    /// The gRPC status that a call gets in place of a response of this proxy. It is `None` if the client has to
    /// understand the HTTP status itself: a redirect, a request to use another connection, and errors in HTTP.
    pub(crate) fn instead_of(status: StatusCode, reason: &str) -> Option<Self> {
        // The specification of GRPCRoute prescribes this for references that are not valid.
        if matches!(reason, "NoBackend" | "InvalidBackend") {
            return Some(Self::UNAVAILABLE);
        }
        // The same call may pass when those before it have ended. Clients know no such meaning of 431.
        if reason == "TooManyHeads" {
            return Some(Self::RESOURCE_EXHAUSTED);
        }
        Some(match status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Self::UNIMPLEMENTED,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::DEADLINE_EXCEEDED,
            StatusCode::PAYLOAD_TOO_LARGE => Self::RESOURCE_EXHAUSTED,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => Self::UNAVAILABLE,
            status if status.is_server_error() => Self::INTERNAL,
            _ => return None,
        })
    }
}

/// A gRPC call, as the head of its request describes it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Content type of the request. A response of this proxy has the same one.
    pub(crate) content_type: HeaderValue,
    /// Whether it is gRPC-Web, where trailers are in the body. This proxy does not read the body.
    pub(crate) web: bool,
    /// How long the client waits, if it says so.
    pub(crate) timeout: Option<Duration>,
}

impl Call {
    /// The call that a request makes, if it makes one. Every call is a POST. A GET with the media type of gRPC is none:
    /// a cache could keep the response to it, which has HTTP status 200 whatever its gRPC status says.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        if *method != Method::POST {
            return None;
        }
        let content_type = headers.get(CONTENT_TYPE)?;
        let rest = after_media_type(content_type)?;
        // The value as it arrived would keep the whole head in memory for as long as the call takes.
        let content_type = HeaderValue::from_bytes(content_type.as_bytes()).ok()?;
        Some(Self {
            content_type,
            web: rest.starts_with(WEB),
            timeout: headers.get(GRPC_TIMEOUT).and_then(timeout),
        })
    }
}

/// The rest of a content type after [`MEDIA_TYPE`]; `None` if it is not one of gRPC.
fn after_media_type(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let (begin, rest) = text.split_at_checked(MEDIA_TYPE.len())?;
    let ends = rest.is_empty() || rest.starts_with(['+', ';', ' ']) || rest.starts_with(WEB);
    (begin.eq_ignore_ascii_case(MEDIA_TYPE) && ends).then_some(rest)
}

/// Whether GRPCRoutes can take a request: a gRPC call, or the preflight request of a browser for a gRPC-Web call.
pub(crate) fn is_for_grpc_routes(method: &Method, headers: &HeaderMap) -> bool {
    let content_type = || headers.get(CONTENT_TYPE);
    match *method {
        Method::POST => content_type().is_some_and(|value| after_media_type(value).is_some()),
        Method::OPTIONS => asks_for_web(headers),
        _ => false,
    }
}

fn asks_for_web(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
    asked
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case(X_GRPC_WEB))
}

/// Reads a timeout: a number of at most eight digits, and a unit.
fn timeout(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty()
        || digits.len() > MAX_DIGITS
        || !digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.checked_mul(3600)?),
        "M" => Duration::from_secs(number.checked_mul(60)?),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[test]
    fn calls_are_known_by_their_content_type() {
        for (text, web) in [
            ("application/grpc", Some(false)),
            ("Application/GRPC", Some(false)),
            ("application/grpc+proto", Some(false)),
            ("application/grpc;charset=utf-8", Some(false)),
            ("application/grpc-web", Some(true)),
            ("application/grpc-web-text+proto", Some(true)),
            ("application/grpcx", None),
            ("application/json", None),
            ("application/gr", None),
        ] {
            let headers = headers(&[("content-type", text)]);
            let call = Call::of(&Method::POST, &headers);
            assert_eq!(call.map(|call| call.web), web, "{text}");
            assert_eq!(is_for_grpc_routes(&Method::POST, &headers), web.is_some());
        }
        assert!(Call::of(&Method::POST, &HeaderMap::new()).is_none());
    }

    #[test]
    fn the_content_type_of_a_call_keeps_no_frame() {
        let frame = Bytes::from(b"application/grpc".to_vec());
        let shared = HeaderValue::from_maybe_shared(frame.clone()).unwrap();
        assert_eq!(shared.as_bytes().as_ptr(), frame.as_ptr());
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, shared)]);
        let call = Call::of(&Method::POST, &headers).unwrap();
        assert_eq!(call.content_type, "application/grpc");
        assert_ne!(call.content_type.as_bytes().as_ptr(), frame.as_ptr());
    }

    #[test]
    fn calls_are_posts() {
        let headers = headers(&[("content-type", "application/grpc")]);
        for method in [
            Method::GET,
            Method::HEAD,
            Method::PUT,
            Method::OPTIONS,
            Method::DELETE,
        ] {
            assert!(Call::of(&method, &headers).is_none(), "{method}");
            assert!(!is_for_grpc_routes(&method, &headers), "{method}");
        }
    }

    #[test]
    fn a_browser_that_asks_first_is_let_through() {
        let preflight = headers(&[("access-control-request-headers", "content-type, X-Grpc-Web")]);
        assert!(is_for_grpc_routes(&Method::OPTIONS, &preflight));
        assert!(!is_for_grpc_routes(&Method::POST, &preflight));
        let other = headers(&[("access-control-request-headers", "content-type")]);
        assert!(!is_for_grpc_routes(&Method::OPTIONS, &other));
    }

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        let read = |text: &str| timeout(&HeaderValue::from_str(text).unwrap());
        for (text, millis) in [
            ("1H", 3_600_000),
            ("2M", 120_000),
            ("3S", 3000),
            ("4m", 4),
            ("5000u", 5),
            ("6000000n", 6),
            ("00000007m", 7),
            ("0S", 0),
            ("99999999H", 99_999_999 * 3_600_000),
        ] {
            assert_eq!(read(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "S",
            "1",
            "1s",
            "-1S",
            "+1S",
            "1.5S",
            "123456789S",
            "1 S",
            "1\u{e9}",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn statuses_have_names_of_a_fixed_set() {
        let read = |text: &'static str| Status::read(&headers(&[("grpc-status", text)]));
        assert_eq!(read("14").map(Status::name), Some("UNAVAILABLE"));
        assert_eq!(read("0").map(Status::name), Some("OK"));
        assert_eq!(read("17").map(Status::name), Some("other"));
        assert_eq!(read("x"), None);
        assert_eq!(read("70000"), None);
        let of = |status: u16, reason| {
            let status = StatusCode::from_u16(status).unwrap();
            Status::instead_of(status, reason).map(Status::name)
        };
        assert_eq!(of(500, "InvalidBackend"), Some("UNAVAILABLE"));
        assert_eq!(of(500, "Failed"), Some("INTERNAL"));
        assert_eq!(of(431, "TooManyHeads"), Some("RESOURCE_EXHAUSTED"));
        assert_eq!(of(431, "TooManyFields"), None);
        for kept in [302, 400, 421] {
            assert_eq!(of(kept, ""), None, "{kept}");
        }
    }
}
