//! Checks names and hostnames, and makes the findings about invalid ones.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostnameError;

use crate::text::quote;

/// Longest DNS subdomain in characters (`apimachinery`, `DNS1123SubdomainMaxLength`).
const MAX_SUBDOMAIN: usize = 253;
/// Longest value of a label in bytes, and longest name without its prefix (`apimachinery`, `LabelValueMaxLength`).
const MAX_LABEL: usize = 63;

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

/// Whether `text` can be the key of a label (`apimachinery`, `IsQualifiedName`): a name, perhaps with a DNS subdomain
/// and `/` before it.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether `text` can be the value of a label (`apimachinery`, `IsValidLabelValue`). The empty one can.
pub(crate) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_LABEL
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_kubernetes() {
        let long = "n".repeat(63);
        let prefix = format!("{}.example", "p".repeat(245));
        for key in [
            "team",
            "T",
            "a_b.c-d",
            "kubernetes.io/metadata.name",
            "0/9",
            &long,
            &format!("{prefix}/{long}"),
        ] {
            assert!(is_label_key(key), "{key:?}");
        }
        for key in [
            "",
            "a b",
            "-a",
            "a-",
            "é",
            "/a",
            "a/",
            "a/b/c",
            "A/b",
            "a_b/c",
            &format!("{long}n"),
            &format!("x{prefix}/a"),
        ] {
            assert!(!is_label_key(key), "{key:?}");
        }
        for value in ["", "a", "0", "A_b.c-d", &long] {
            assert!(is_label_value(value), "{value:?}");
        }
        for value in ["a b", "-", ".a", "a_", "a/b", "é", &format!("{long}n")] {
            assert!(!is_label_value(value), "{value:?}");
        }
    }
}
