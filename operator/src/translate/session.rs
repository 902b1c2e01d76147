//! Session persistence of HTTPRoutes and GRPCRoutes: the keys of each rule, and its settings as the proxies get them.
//!
//! The operator has a few keys for all rules, and derives the keys of each rule from them. So a token of one rule
//! means nothing to another rule, and no proxy has a key from which it could derive others. A rule is identified by
//! its route and its name, or by its place if it has no name.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hmac;
use sha2::{Digest, Sha256};
use vestibule_model::http::{HttpRule, SessionCarrier};
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_stream::proto::{self, http_session};
use zeroize::Zeroizing;

use super::{Dirty, Translator};

/// Says what a derived key is for. Another use gets another text.
const PURPOSE: &[u8] = b"vestibule session 1\0";

/// A key from which the keys of rules are derived. It is wiped when it is dropped, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(Zeroizing<[u8; Self::BYTES]>);

impl SessionKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; Self::BYTES]>) -> Self {
        Self(bytes)
    }

    /// The bytes, for whoever stores them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &*self.0
    }

    /// The key that is derived for this name.
    fn derive(&self, name: &str) -> proto::SessionKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.expose());
        let mut context = hmac::Context::with_key(&key);
        context.update(PURPOSE);
        context.update(name.as_bytes());
        proto::SessionKey {
            key: context.sign().as_ref().to_vec(),
        }
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// The keys of sessions: tokens are sealed with the first, and opened with any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionKeys(Arc<[SessionKey]>);

impl SessionKeys {
    /// Most keys in use.
    pub const MOST: usize = 4;

    /// The first [`Self::MOST`] of these keys.
    pub fn new(keys: impl IntoIterator<Item = SessionKey>) -> Self {
        Self(keys.into_iter().take(Self::MOST).collect())
    }

    /// The key that seals new tokens.
    #[must_use]
    pub fn first(&self) -> Option<&SessionKey> {
        self.0.first()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Translator {
    /// Takes new keys, and marks the routes of every rule with sessions, because their keys change too.
    pub(super) fn take_session_keys(&mut self, keys: SessionKeys, dirty: &mut Dirty) {
        if self.session_keys == keys {
            return;
        }
        self.session_keys = keys;
        let keeps = |object: &Object| match object {
            Object::HttpRoute(route) => route.rules.iter().any(|rule| rule.session.is_some()),
            _ => false,
        };
        let routes = self.routes.keys().filter(|key| {
            let object = self.objects.get(key);
            object.is_some_and(|object| keeps(object))
        });
        dirty.routes.extend(routes.cloned());
    }

    /// The session settings of a rule; `None` if it has none, or as long as there are no keys.
    pub(super) fn session(&self, route: &ObjectKey, rule: &HttpRule) -> Option<proto::HttpSession> {
        let session = rule.session.as_ref()?;
        if self.session_keys.is_empty() {
            return None;
        }
        let place = rule.name.as_deref().unwrap_or(&rule.field);
        // Kinds and names contain no slash, so no two rules have the same text.
        let name = format!("{}/{}/{place}", route.kind.as_str(), route.name);
        let carrier = match &session.carrier {
            SessionCarrier::Header(name) => http_session::Carrier::Header(name.to_string()),
            SessionCarrier::Cookie {
                name: given,
                path,
                permanent,
            } => http_session::Carrier::Cookie(proto::SessionCookie {
                name: given
                    .as_deref()
                    .map_or_else(|| unique(&name), str::to_owned),
                path: path.to_string(),
                permanent: *permanent,
            }),
        };
        let timeout = session.absolute_timeout.map(|timeout| timeout.as_millis());
        let timeout = timeout.map(|millis| u64::try_from(millis).unwrap_or(u64::MAX));
        let keys = self.session_keys.0.iter().map(|key| key.derive(&name));
        Some(proto::HttpSession {
            carrier: Some(carrier),
            absolute_timeout: timeout,
            keys: keys.collect(),
        })
    }
}

/// A name for the cookie of a rule. No other rule has it, and it does not reveal the rule.
fn unique(rule: &str) -> String {
    let digest = Sha256::digest(rule.as_bytes());
    let number = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
    format!("session-{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> SessionKey {
        SessionKey::new(Zeroizing::new([n; 32]))
    }

    #[test]
    fn each_rule_has_keys_of_its_own() {
        let all = [(1, "a"), (1, "b"), (2, "a")].map(|(n, rule)| key(n).derive(rule).key.clone());
        assert!(all.iter().all(|key| key.len() == SessionKey::BYTES));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_eq!(all[0], key(1).derive("a").key);
        // Debug output does not show the keys.
        assert_eq!(format!("{:?}", key(7)), "SessionKey(..)");
        let shown = format!("{:?}", key(7).derive("a"));
        assert_eq!(shown, "SessionKey(<redacted>)");
    }

    #[test]
    fn names_of_cookies_are_told_apart_by_their_rules() {
        let [a, b] = ["HTTPRoute/t/a/0", "HTTPRoute/t/a/1"].map(unique);
        assert!(a != b && a.len() == "session-".len() + 16);
        assert_eq!(SessionKeys::new([1, 2, 3, 4, 5].map(key)).0.len(), 4);
    }
}
