//! Checks names and hostnames, and makes the findings about invalid ones.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostnameError;

use crate::text::quote;

/// Longest DNS subdomain in characters (`apimachinery`, `DNS1123SubdomainMaxLength`).
const MAX_SUBDOMAIN: usize = 253;

/// Whether `text` is a DNS subdomain (RFC 1123), which is the form of object names and section names. Such names never
/// contain the `/` with which keys and names of stream resources are joined.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().copied().is_some_and(alphanumeric)
            && bytes.last().copied().is_some_and(alphanumeric)
            && bytes.iter().all(|&b| alphanumeric(b) || b == b'-')
    };
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(label)
}

/// A refusal of a text that is not a valid name.
pub(crate) fn not_a_name(field: &str, text: &str) -> Finding {
    Finding::refused(
        Reason::InvalidValue,
        field,
        format!("{} is not a name", quote(text)),
        "use lower-case letters, digits, '-' and '.', at most 253",
    )
}

/// A refusal of a text that is not a valid hostname.
pub(crate) fn not_a_hostname(field: String, text: &str, error: &HostnameError) -> Finding {
    Finding::refused(
        Reason::InvalidHostname,
        field,
        format!("{} {error}", quote(text)),
        error.action(),
    )
}
