//! Checks names and hostnames, and makes the findings about invalid ones.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostnameError;

use crate::text::quote;

/// Longest DNS subdomain in characters (`apimachinery`, `DNS1123SubdomainMaxLength`).
const MAX_SUBDOMAIN: usize = 253;

/// Whether `text` is a DNS subdomain as in RFC 1123: what object names and section names are. Keys
/// and stream names are joined by `/`, which such names never contain.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().copied().is_some_and(alphanumeric)
            && bytes.last().copied().is_some_and(alphanumeric)
            && bytes.iter().all(|&b| alphanumeric(b) || b == b'-')
    };
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(label)
}

/// A refusal for a name that is none.
pub(crate) fn not_a_name(field: &str, text: &str) -> Finding {
    Finding::refused(
        Reason::InvalidValue,
        field,
        format!("{} is not a name", quote(text)),
        "use lower-case letters, digits, '-' and '.', at most 253",
    )
}

/// A refusal for a hostname that is none.
pub(crate) fn not_a_hostname(field: String, text: &str, error: &HostnameError) -> Finding {
    Finding::refused(
        Reason::InvalidHostname,
        field,
        format!("{} {error}", quote(text)),
        error.action(),
    )
}
