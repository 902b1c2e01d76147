//! Owns challenges: the answers to a CA that checks a hostname (RFC 8555 section 8.3, RFC 8737). They
//! are looked for before a listener or a route is, so that a name can be checked whatever is done with
//! it, and by nothing but what such a CA asks: ordinary clients do not meet them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rpds::HashTrieMapSync;
use rustls::ServerConfig;
use vestibule_model::hostname::Hostname;

use crate::bind::BindKey;
use crate::hello::Alpn;
use crate::metrics::Metrics;
use crate::quota::Account;

/// The one protocol that a CA offers (RFC 8737 section 4).
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";
/// The name of the type, as ACME has it.
pub(crate) const TLS_ALPN_01: &str = "tls-alpn-01";
/// The other one's.
pub(crate) const HTTP_01: &str = "http-01";
/// Where a CA asks over HTTP, before the token (RFC 8555 section 8.3).
const PATH: &str = "/.well-known/acme-challenge/";

/// What a CA asks for. Whoever asks for anything else gets no challenge.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ChallengeQuery {
    /// A handshake for this name with [`ACME_TLS`] as the only protocol.
    Tls(Hostname),
    /// The token at this name.
    Http(Hostname, Arc<str>),
}

impl ChallengeQuery {
    /// What a hello asks for, if it is a CA's.
    pub(crate) fn of_hello(name: Option<&Hostname>, alpn: &Alpn) -> Option<Self> {
        // First what costs next to nothing: this runs for every connection.
        if !alpn.is_only(ACME_TLS) {
            return None;
        }
        name.cloned().map(Self::Tls)
    }

    /// What a request asks for, if it is a CA's: nothing but path and host counts.
    pub(crate) fn of_request(host: Option<&Hostname>, path: &str) -> Option<Self> {
        let token = path.strip_prefix(PATH)?;
        Some(Self::Http(host?.clone(), token.into()))
    }

    pub(crate) fn hostname(&self) -> &Hostname {
        match self {
            Self::Tls(name) | Self::Http(name, _) => name,
        }
    }

    /// The name of its kind, for metrics and logs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Tls(_) => TLS_ALPN_01,
            Self::Http(..) => HTTP_01,
        }
    }
}

/// How a question is answered.
#[derive(Clone)]
pub(crate) enum ChallengeReply {
    Tls(Arc<ServerConfig>),
    /// The key authorization.
    Http(Bytes),
}

/// A challenge in force.
pub(crate) struct Challenge {
    /// `<namespace>/<gateway>/<kind>/<hostname>[/<token>]`.
    pub(crate) key: Arc<str>,
    /// `<namespace>/<name>` of the Gateway.
    pub(crate) gateway: Arc<str>,
    /// Namespace of the object that asks for the certificate.
    pub(crate) tenant: Arc<str>,
    /// Whose handshakes and lines of the log its connections are.
    pub(crate) account: Arc<Account>,
    pub(crate) answer: ChallengeReply,
}

/// Without the answer.
impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Challenge").field(&self.key).finish()
    }
}

/// What a challenge is selected by. No two challenges have the same key.
pub(crate) type ChallengeLookup = (BindKey, ChallengeQuery);

/// The challenges of a snapshot; the next one shares all but the path to what changed.
#[derive(Clone)]
pub(crate) struct Challenges(HashTrieMapSync<ChallengeLookup, Arc<Challenge>>);

impl Default for Challenges {
    fn default() -> Self {
        Self(HashTrieMapSync::new_sync())
    }
}

impl Challenges {
    pub(crate) fn get(&self, selection_key: &ChallengeLookup) -> Option<&Arc<Challenge>> {
        self.0.get(selection_key)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.size()
    }

    pub(crate) fn set(&mut self, selection_key: ChallengeLookup, challenge: Arc<Challenge>) {
        self.0.insert_mut(selection_key, challenge);
    }

    pub(crate) fn clear(&mut self, selection_key: &ChallengeLookup) {
        self.0.remove_mut(selection_key);
    }
}

/// What came of a CA that asked, for the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChallengeOutcome {
    Answered,
    /// The handshake failed, or the method is none that is answered.
    Failed,
    /// The handshake did not end in time.
    Timeout,
    /// No challenge is held, where nobody else could answer.
    Absent,
}

impl ChallengeOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Absent => "absent",
        }
    }
}

impl Metrics {
    /// Counts a CA that asked. `kind`: see [`ChallengeQuery::kind`].
    pub(crate) fn challenge(&self, kind: &'static str, outcome: ChallengeOutcome) {
        self.challenged(kind, outcome.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Hostname {
        Hostname::parse(name).unwrap()
    }

    #[test]
    fn a_request_asks_for_a_token_by_path_and_host_alone() {
        let name = host("a.example.com");
        let of = |path: &str| ChallengeQuery::of_request(Some(&name), path);
        let asked = of("/.well-known/acme-challenge/abc").unwrap();
        assert!(asked == ChallengeQuery::Http(name.clone(), "abc".into()));
        assert_eq!((asked.kind(), asked.hostname()), ("http-01", &name));
        for path in [
            "/",
            "/.well-known/acme-challenge",
            "/.Well-known/acme-challenge/abc",
            "//.well-known/acme-challenge/abc",
        ] {
            assert!(of(path).is_none(), "{path}");
        }
        // Another token, which no challenge has: tokens have no slash.
        assert!(of("/.well-known/acme-challenge/abc/") != Some(asked));
        assert!(ChallengeQuery::of_request(None, "/.well-known/acme-challenge/abc").is_none());
    }
}
