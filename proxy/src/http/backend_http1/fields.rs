//! Owns the step from a parsed field to one of a header map, in heads and in trailers.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, InvalidHeaderValue};

use super::error::Http1Error;

/// Adds a field as it was parsed.
///
/// # Errors
/// It is not HTTP.
pub(super) fn append(
    to: &mut HeaderMap,
    name: &str,
    value: Result<HeaderValue, InvalidHeaderValue>,
) -> Result<(), Http1Error> {
    let name = HeaderName::from_bytes(name.as_bytes());
    let (Ok(name), Ok(value)) = (name, value) else {
        return Err(Http1Error::Malformed(httparse::Error::HeaderValue));
    };
    // A map has room for far more than the fields that are parsed.
    let appended = to.try_append(name, value);
    appended.map_err(|_| Http1Error::Malformed(httparse::Error::TooManyHeaders))?;
    Ok(())
}
