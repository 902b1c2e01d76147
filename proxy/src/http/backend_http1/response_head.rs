//! Owns the head of a response in HTTP/1.1: its fields, and what they say about the end of the body and of the connection.

use std::mem::MaybeUninit;

use bytes::Bytes;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::{Response, StatusCode, Version};

use super::body_decoder::Framing;
use super::error::Http1Error;
use super::fields::append;
use crate::http::head_size::FIELDS;

/// Most digits of a `Content-Length`. With more digits, it might not fit into 64 bits.
const MAX_LENGTH_DIGITS: usize = 18;

/// The head of a response.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    /// Whether another request may follow on the connection.
    pub(super) keeps_alive: bool,
}

/// Reads the head at the beginning of `bytes`. Returns it with its length, or `None` if it is not complete. `to_head` says
/// whether the request was a HEAD, whose response has no body.
///
/// # Errors
/// The head is malformed, or nobody knows where the body ends.
pub(super) fn parse(
    bytes: &[u8],
    to_head: bool,
) -> Result<Option<(ResponseHead, usize)>, Http1Error> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let status = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields)?;
    let httparse::Status::Complete(length) = status else {
        return Ok(None);
    };
    // All values share one copy, so that they do not hold the buffer that was read into.
    let copy = Bytes::copy_from_slice(bytes.get(..length).unwrap_or_default());
    let begin = bytes.as_ptr().addr();
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    for field in &*parsed.headers {
        let at = field.value.as_ptr().addr().wrapping_sub(begin);
        let value = if field.value.is_empty() {
            Ok(HeaderValue::from_static(""))
        } else {
            HeaderValue::from_maybe_shared(copy.slice(at..at + field.value.len()))
        };
        append(&mut headers, field.name, value)?;
    }
    let code = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(code);
    let status = status.map_err(|_| Http1Error::Malformed(httparse::Error::Status))?;
    let version = match parsed.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    // Two statements of the length may be an attempt to have readers disagree.
    let is_clear =
        !(headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH));
    let keeps_alive = version == Version::HTTP_11 && is_clear && !closes(&headers);
    let framing = framing(&mut headers, status, version, to_head)?;
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    let reason = parsed.reason.unwrap_or_default();
    if status.canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    let head = ResponseHead {
        response,
        framing,
        keeps_alive,
    };
    Ok(Some((head, length)))
}

/// Whether the backend closes the connection after the response (RFC 9112 section 9.6).
fn closes(headers: &HeaderMap) -> bool {
    let options = headers.get_all(CONNECTION).iter();
    options
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Where the body ends (RFC 9112 section 6.3). If there is one, at most one statement of its length is left in the fields.
fn framing(
    headers: &mut HeaderMap,
    status: StatusCode,
    version: Version,
    to_head: bool,
) -> Result<Framing, Http1Error> {
    let has_none = to_head
        || status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        if has_none {
            return Ok(Framing::Length(0));
        }
        if version < Version::HTTP_11 {
            return Err(Http1Error::Length("HTTP/1.0 has no Transfer-Encoding"));
        }
        let last = headers.get_all(TRANSFER_ENCODING).iter().next_back();
        let last = last.and_then(|value| value.as_bytes().rsplit(|byte| *byte == b',').next());
        let is_chunked =
            last.is_some_and(|last| last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        return Ok(if is_chunked {
            Framing::Chunked
        } else {
            Framing::UntilClose
        });
    }
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(if has_none {
            Framing::Length(0)
        } else {
            Framing::UntilClose
        });
    }
    let said = content_length(headers);
    if has_none {
        return Ok(Framing::Length(0));
    }
    let length = said.ok_or(Http1Error::Length("Content-Length is not one number"))?;
    // The client gets the number once and in one form, so that it reads no other one.
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let is_plain = values
        .next()
        .is_some_and(|first| is_plain(first.as_bytes()));
    if !is_plain || values.next().is_some() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(Framing::Length(length))
}

/// The number that all fields of this name say, if it is the same.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let mut all = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let first = number(all.next()?)?;
    all.all(|other| number(other) == Some(first))
        .then_some(first)
}

/// Whether it is a number in its usual form.
fn is_plain(value: &[u8]) -> bool {
    let is_number = value.iter().all(u8::is_ascii_digit);
    is_number && (value.len() == 1 || !value.starts_with(b"0"))
}

fn number(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let is_number = value.len() <= MAX_LENGTH_DIGITS && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok()
}
