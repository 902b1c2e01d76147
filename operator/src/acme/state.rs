//! What the Secret of a certificate remembers about its orders: one annotation, JSON.
//!
//! Everything that must survive the process is here, so that a new leader goes on where the old one was:
//! the order that runs, the failures that it backs off from, and who issued what is there.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vestibule_model::hostname::Hostname;
use vestibule_model::object::AcmeIssuer;

/// The annotation.
pub const STATE_ANNOTATION: &str = "vestibule.dev/acme-state";
/// Longest annotation that is read.
const MAX_STATE: usize = 16 * 1024;
/// Longest URL of an order or account that is kept.
pub(super) const MAX_URL: usize = 2048;

/// What a Secret remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RememberedState {
    /// About the certificate that is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<Issued>,
    /// The order that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// The last failure, if it has not succeeded since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failed>,
    /// When the last order was made, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered_at: Option<i64>,
    /// Whether that was to renew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub renewal: bool,
}

/// About the certificate that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Issued {
    /// The issuer, for people.
    pub issuer: String,
    /// Digest of issuer, directory and profile.
    pub by: String,
    /// URL of the account.
    pub account: String,
    /// Serial number: somebody may have written another certificate since.
    pub serial: String,
    /// When, on our clock.
    pub at: i64,
}

/// An order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Order {
    /// Its URL.
    pub url: String,
    /// URL of the account that made it.
    pub account: String,
    /// Digest of what it is for.
    pub wanted: String,
    /// When it was made, on our clock.
    pub since: i64,
}

/// A failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failed {
    /// Digest of what failed: another request starts afresh.
    pub wanted: String,
    /// How often in a row.
    pub count: u32,
    /// When, on our clock.
    pub at: i64,
    /// When it is tried again.
    pub retry_at: i64,
    /// What was wrong, for people.
    pub problem: String,
    /// Whether the CA said that there were too many requests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rate_limited: bool,
}

impl RememberedState {
    /// Reads the annotation. One that cannot be read is none: at worst an order is made anew.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        text.filter(|text| text.len() <= MAX_STATE)
            .and_then(|text| serde_json::from_str::<Self>(text).ok())
            .unwrap_or_default()
    }

    /// The annotation.
    #[must_use]
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What a certificate is wanted from, and for which names, as digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Issuer, directory and profile.
    pub(super) by: String,
    /// These and the hostnames.
    pub(super) all: String,
}

impl Wanted {
    pub(super) fn new(issuer: &AcmeIssuer, hostnames: &BTreeSet<Hostname>) -> Self {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        };
        add(&issuer.key.to_string());
        add(&issuer.directory);
        add(issuer.profile.as_deref().unwrap_or_default());
        let by = hex(&digest.clone().finalize());
        for hostname in hostnames {
            digest.update((hostname.as_str().len() as u64).to_be_bytes());
            digest.update(hostname.as_str());
        }
        Self {
            by,
            all: hex(&digest.finalize()),
        }
    }
}

/// The first 32 bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().take(32).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_none() {
        for text in ["", "x", "[]", "{\"order\":1}", "null"] {
            assert_eq!(
                RememberedState::read(Some(text)),
                RememberedState::default(),
                "{text}"
            );
        }
        assert_eq!(
            RememberedState::read(Some(&" ".repeat(MAX_STATE + 1))),
            RememberedState::default()
        );
        assert_eq!(RememberedState::read(None), RememberedState::default());
    }

    #[test]
    fn a_later_release_may_add_fields() {
        let state = RememberedState::read(Some(
            r#"{"orderedAt":7,"new":{"a":1},"order":{"url":"u","x":2}}"#,
        ));
        assert_eq!(state.ordered_at, Some(7));
        assert_eq!(
            state.order.as_ref().map(|order| order.url.as_str()),
            Some("u")
        );
        assert_eq!(RememberedState::read(Some(&state.write())), state);
    }
}
