//! Owns what the Secret of a certificate remembers about its orders, as JSON in one annotation.
//!
//! Everything that must survive the process is here, so that a new leader goes on where the old one
//! was: the running order, the failures that are waited out, and who issued the stored certificate.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vestibule_model::hostname::Hostname;
use vestibule_model::object::AcmeIssuer;

/// The name of the annotation.
pub const STATE_ANNOTATION: &str = "vestibule.dev/acme-state";
/// Longest annotation that is read, in bytes.
const MAX_STATE: usize = 16 * 1024;
/// Longest URL of an order or account that is kept, in bytes.
pub(crate) const MAX_URL: usize = 2048;

/// The content of the annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RememberedState {
    /// The origin of the stored certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<Issued>,
    /// The running order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// The last failure, if no order has succeeded since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failed>,
    /// When the last order was made, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered_at: Option<i64>,
    /// Whether the last order was a renewal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub renewal: bool,
}

/// The origin of the stored certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Issued {
    /// The issuer, for people.
    pub issuer: String,
    /// Digest of issuer, directory and profile.
    pub by: String,
    /// URL of the account.
    pub account: String,
    /// Its serial number in hexadecimal. It shows whether somebody has written another certificate
    /// since.
    pub serial: String,
    /// When its order was made, in seconds by our clock.
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
    /// Digest of what the order is for.
    pub wanted: String,
    /// When it was made, in seconds by our clock.
    pub since: i64,
}

/// A failure that is waited out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failed {
    /// Digest of what failed. Another request starts without a wait.
    pub wanted: String,
    /// How many times in a row it failed.
    pub count: u32,
    /// When it failed, in seconds by our clock.
    pub at: i64,
    /// When it is tried again, in seconds by our clock.
    pub retry_at: i64,
    /// The explanation for people.
    pub problem: String,
    /// Whether the CA said that there were too many requests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rate_limited: bool,
}

impl RememberedState {
    /// Reads the annotation. One that cannot be read counts as empty, which costs at most a new
    /// order.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        text.filter(|text| text.len() <= MAX_STATE)
            .and_then(|text| serde_json::from_str::<Self>(text).ok())
            .unwrap_or_default()
    }

    /// The value of the annotation.
    #[must_use]
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The issuer and the names for which a certificate is wanted, as digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Digest of issuer, directory and profile.
    pub(crate) by: String,
    /// Digest of these and the hostnames.
    pub(crate) all: String,
}

impl Wanted {
    pub(crate) fn new(issuer: &AcmeIssuer, hostnames: &BTreeSet<Hostname>) -> Self {
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
pub(crate) fn hex(bytes: &[u8]) -> String {
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
    fn remembered_state_is_the_default_if_absent_too_long_or_unreadable() {
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
