//! Owns the size of heads and trailers, as HTTP/2 counts it (RFC 9113 section 6.5.2).

use hyper::HeaderMap;

/// The bytes of a field in addition to its name and value.
const EACH: usize = 32;

/// The size of these fields.
pub(super) fn of_fields(fields: &HeaderMap) -> usize {
    let fields = fields.iter();
    let sizes = fields.map(|(name, value)| EACH + name.as_str().len() + value.len());
    sizes.sum()
}
