//! Owns challenges: the answers to a CA that checks a hostname (RFC 8555 section 8.3, RFC 8737).
//!
//! They are looked up before a listener or route, so that a name can be checked whatever its listeners and routes do.
//! Only the exact question of such a CA finds them, so ordinary clients never get one.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rpds::HashTrieMapSync;
use rustls::ServerConfig;
use vestibule_model::hostname::Hostname;

use crate::bind::BindKey;
use crate::hello::OfferedProtocols;
use crate::metrics::Metrics;
use crate::quota::TenantQuota;

/// The one protocol that a CA offers (RFC 8737 section 4).
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";
/// The name of this type of challenge in ACME.
pub(crate) const TLS_ALPN_01: &str = "tls-alpn-01";
/// The name of the other type of challenge in ACME.
pub(crate) const HTTP_01: &str = "http-01";
/// The path under which a CA asks for a token over HTTP (RFC 8555 section 8.3).
const PATH: &str = "/.well-known/acme-challenge/";

/// The question of a CA. Nothing else is answered with a challenge.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ChallengeQuery {
    /// A handshake for this name with [`ACME_TLS`] as the only protocol.
    Tls(Hostname),
    /// A request for this token, under this name.
    Http(Hostname, Arc<str>),
}

impl ChallengeQuery {
    /// The question in a hello, if it is one of a CA.
    pub(crate) fn of_hello(name: Option<&Hostname>, alpn: &OfferedProtocols) -> Option<Self> {
        // This runs for every connection, so the cheapest test comes first.
        if !alpn.is_only(ACME_TLS) {
            return None;
        }
        name.cloned().map(Self::Tls)
    }

    /// The question in a request, if it is one of a CA. Only path and host count.
    pub(crate) fn of_request(host: Option<&Hostname>, path: &str) -> Option<Self> {
        let token = path.strip_prefix(PATH)?;
        Some(Self::Http(host?.clone(), token.into()))
    }

    pub(crate) fn hostname(&self) -> &Hostname {
        match self {
            Self::Tls(name) | Self::Http(name, _) => name,
        }
    }

    /// The name of its type of challenge, for metrics and logs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Tls(_) => TLS_ALPN_01,
            Self::Http(..) => HTTP_01,
        }
    }
}

/// The answer to a question.
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
    /// The quota of this tenant. Handshakes and log lines of the CA's connections count towards it.
    pub(crate) account: Arc<TenantQuota>,
    pub(crate) answer: ChallengeReply,
}

/// The output does not contain the answer.
impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Challenge").field(&self.key).finish()
    }
}

/// The key by which a challenge is looked up. No two challenges have the same one.
pub(crate) type ChallengeLookup = (BindKey, ChallengeQuery);

/// The challenges of a snapshot. The map is persistent: the next snapshot shares everything that did not change.
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

/// The result of a CA's question, for the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChallengeOutcome {
    Answered,
    /// The handshake failed, or the method of the request is not one that is answered.
    Failed,
    /// The handshake did not end in time.
    Timeout,
    /// There is no such challenge.
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
    /// Counts a question of a CA. `kind` is [`ChallengeQuery::kind`].
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
