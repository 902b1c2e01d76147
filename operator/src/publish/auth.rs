//! Authenticates the proxies that subscribe. Each shows a bearer token of a ServiceAccount for proxies. The API server
//! checks the token and tells which pod it is bound to. The account determines the fleet of the proxy.
//!
//! A stream ends when its token expires, so that the proxy has to show its next one. So a stolen token cannot be used
//! after it expires, although the API server is asked only once per stream. While the API server is away, no proxy can
//! subscribe. The proxies then serve what they have, and there is no news for them anyway.

mod review;
mod token;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family};
use prometheus_client::registry::Registry;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::metadata::MetadataMap;
use tracing::{debug, warn};

use super::ledger::ProxyId;
use crate::token_bucket::Buckets;
pub use review::{KubeReviewer, Review, ReviewError, TokenReviewer};
use token::TokenClaims;

/// Largest number of requests to the API server that a source can save up. A proxy needs one per connection, so only a
/// source with many invalid tokens runs out.
const BURST: u32 = 10;
/// Time after which a source gets one more request.
const EARNS: Duration = Duration::from_secs(2);
/// How long an acceptance of a token by the API server is remembered.
const BELIEVED: Duration = Duration::from_secs(30);
/// How long the rejection of a token is remembered. This is shorter, since a token may be valid a moment later, when
/// the API server knows its pod.
const DISBELIEVED: Duration = Duration::from_secs(5);
/// Largest number of acceptances to remember, and of rejections.
const MAX_REMEMBERED: usize = 1024;
/// Longest wait for the response of the API server.
const PATIENCE: Duration = Duration::from_secs(8);
/// Largest number of reviews under way at the same time.
const MAX_REVIEWS: usize = 16;
/// Longest token of a ServiceAccount, in bytes. Longer ones are refused without a review.
const MAX_TOKEN: usize = 8 << 10;

/// The name of a group of proxies that serve the same Gateways.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fleet(Arc<str>);

impl Fleet {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The fleets by ServiceAccount, and the audience that their tokens have to be for.
#[derive(Debug, Clone)]
pub struct Fleets {
    audience: String,
    /// The fleets, by the user name that the API server gives to the ServiceAccount.
    users: BTreeMap<String, Fleet>,
}

impl Fleets {
    /// Returns one fleet with one ServiceAccount.
    #[must_use]
    pub fn one(namespace: &str, service_account: &str, audience: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{service_account}");
        Self {
            audience: audience.to_owned(),
            users: BTreeMap::from([(user, Fleet(service_account.into()))]),
        }
    }

    fn of(&self, user: &str) -> Option<&Fleet> {
        self.users.get(user)
    }

    fn expected(&self) -> String {
        let users: Vec<&str> = self.users.keys().map(String::as_str).collect();
        users.join(" or ")
    }
}

/// The identity of a proxy that subscribes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriberIdentity {
    /// Its fleet.
    pub fleet: Fleet,
    /// Its pod.
    pub proxy: ProxyId,
    /// When its token expires.
    pub until: Instant,
}

/// Why a caller may not subscribe. Its text says what to do, but the caller is not trusted, so it tells no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The call has no token.
    #[error("no bearer token; start the proxy with --config-token and a projected token")]
    Missing,
    /// The token does not have the form of a ServiceAccount's token.
    #[error("the token is not a ServiceAccount's")]
    Malformed,
    /// The token is for another audience.
    #[error("the token is not for the audience {0}; set that audience in the projected volume")]
    Audience(String),
    /// The token has expired.
    #[error("the token has expired; check that the proxy reads the file that the kubelet renews")]
    Expired,
    /// The token belongs to an account that is not one of a fleet.
    #[error("the token is not of {0}")]
    NotAProxy(String),
    /// The API server does not accept the token.
    #[error("the API server does not take the token: {0}")]
    Rejected(String),
    /// The token is not bound to a pod.
    #[error("the token is not bound to a pod; use a projected volume, not a token Secret")]
    Unbound,
    /// The API server cannot review the token now.
    #[error("the API server cannot be asked about the token now: {0}")]
    Unavailable(&'static str),
    /// The source had too many tokens reviewed.
    #[error("too many attempts; wait before the next one")]
    TooMany,
}

impl Denied {
    /// Returns the reason in CamelCase, out of a fixed set, for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::Malformed => "Malformed",
            Self::Audience(_) => "Audience",
            Self::Expired => "Expired",
            Self::NotAProxy(_) => "NotAProxy",
            Self::Rejected(_) => "Rejected",
            Self::Unbound => "Unbound",
            Self::Unavailable(_) => "Unavailable",
            Self::TooMany => "TooMany",
        }
    }

    fn status(&self) -> Status {
        let text = self.to_string();
        match self {
            // The proxy tries again. Its token may well be valid.
            Self::Unavailable(_) => Status::unavailable(text),
            Self::TooMany => Status::resource_exhausted(text),
            _ => Status::unauthenticated(text),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// The counters `vestibule_operator_stream_authentication_*`.
#[derive(Debug, Clone, Default)]
pub struct AuthMetrics {
    attempts: Family<OutcomeLabel, Counter>,
    reviews: Counter,
}

impl AuthMetrics {
    /// Adds the metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry =
            registry.sub_registry_with_prefix("vestibule_operator_stream_authentication");
        registry.register(
            "attempts",
            "Attempts to subscribe: Admitted, or why not",
            self.attempts.clone(),
        );
        registry.register("reviews", "TokenReviews asked for", self.reviews.clone());
    }
}

/// SHA-256 of a token. It is remembered instead of the token.
type Print = [u8; 32];

/// Results by token, with the time until which they are valid.
type Remembered<T> = Mutex<HashMap<Print, (T, Instant)>>;

/// Checks tokens. It asks the API server through a [`TokenReviewer`], as rarely as possible.
pub struct Authenticator {
    fleets: Fleets,
    reviewer: Box<dyn TokenReviewer>,
    metrics: AuthMetrics,
    clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    good: Remembered<SubscriberIdentity>,
    bad: Remembered<Denied>,
    buckets: Mutex<Buckets<IpAddr>>,
    reviews: Semaphore,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("fleets", &self.fleets)
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Returns an authenticator that accepts the tokens of `fleets`.
    pub fn new(fleets: Fleets, reviewer: impl TokenReviewer) -> Self {
        Self::with_clock(fleets, reviewer, crate::clock::seconds)
    }

    /// Returns an authenticator with the given clock, which returns seconds since the Unix epoch.
    pub fn with_clock(
        fleets: Fleets,
        reviewer: impl TokenReviewer,
        clock: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            fleets,
            reviewer: Box::new(reviewer),
            metrics: AuthMetrics::default(),
            clock: Arc::new(clock),
            good: Mutex::default(),
            bad: Mutex::default(),
            buckets: Mutex::new(Buckets::new(BURST, EARNS)),
            reviews: Semaphore::new(MAX_REVIEWS),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn metrics(&self) -> &AuthMetrics {
        &self.metrics
    }

    /// Returns the identity of the caller that sent `metadata` from `source`.
    pub(super) async fn authenticate(
        &self,
        metadata: &MetadataMap,
        source: IpAddr,
    ) -> Result<SubscriberIdentity, Status> {
        let outcome = self.identify(metadata, source).await;
        let label = outcome.as_ref().err().map_or("Admitted", Denied::reason);
        let attempt = OutcomeLabel { outcome: label };
        self.metrics.attempts.get_or_create(&attempt).inc();
        outcome.map_err(|denied| {
            if matches!(denied, Denied::Unavailable(_)) {
                warn!(%source, %denied, "a proxy cannot subscribe");
            } else {
                // Anybody can cause this as often as they like, so it is only logged for debugging.
                debug!(%source, %denied, "a proxy is refused");
            }
            denied.status()
        })
    }

    async fn identify(
        &self,
        metadata: &MetadataMap,
        source: IpAddr,
    ) -> Result<SubscriberIdentity, Denied> {
        let header = metadata.get("authorization").ok_or(Denied::Missing)?;
        let header = header.to_str().map_err(|_| Denied::Malformed)?;
        let (scheme, token) = header.split_once(' ').ok_or(Denied::Malformed)?;
        if !scheme.eq_ignore_ascii_case("bearer") || token.len() > MAX_TOKEN {
            return Err(Denied::Malformed);
        }
        let print: Print = Sha256::digest(token).into();
        if let Some(identity) = recall(&self.good, &print) {
            return Ok(identity);
        }
        // The unverified claims of a token prove nothing. But if they are wrong already, the API server need not be
        // asked.
        let claims = self.plausible(token)?;
        if let Some(denied) = recall(&self.bad, &print) {
            return Err(denied);
        }
        let now = Instant::now().into_std();
        if !self.buckets.lock().take(&source, now) {
            return Err(Denied::TooMany);
        }
        let verdict = self.ask(token, &claims).await;
        match &verdict {
            Ok(identity) => {
                let until = identity.until.min(Instant::now() + BELIEVED);
                remember(&self.good, print, identity.clone(), until);
            }
            Err(Denied::Unavailable(_) | Denied::TooMany) => {}
            Err(denied) => {
                remember(
                    &self.bad,
                    print,
                    denied.clone(),
                    Instant::now() + DISBELIEVED,
                );
            }
        }
        verdict
    }

    fn plausible(&self, token: &str) -> Result<TokenClaims, Denied> {
        let claims = TokenClaims::read(token).ok_or(Denied::Malformed)?;
        if !claims.is_for(&self.fleets.audience) {
            return Err(Denied::Audience(self.fleets.audience.clone()));
        }
        if self.fleets.of(&claims.sub).is_none() {
            return Err(Denied::NotAProxy(self.fleets.expected()));
        }
        if claims.exp <= (self.clock)() {
            return Err(Denied::Expired);
        }
        Ok(claims)
    }

    async fn ask(&self, token: &str, claims: &TokenClaims) -> Result<SubscriberIdentity, Denied> {
        let review = async {
            let permit = self.reviews.acquire().await;
            let _permit = permit.map_err(|_| Denied::TooMany)?;
            self.metrics.reviews.inc();
            let review = self.reviewer.review(token, &self.fleets.audience).await;
            review.map_err(|error| {
                warn!(%error, "a TokenReview failed");
                Denied::Unavailable(error.reason())
            })
        };
        let review = timeout(PATIENCE, review)
            .await
            .map_err(|_| Denied::Unavailable("no answer"))??;
        self.judge(review, claims)
    }

    fn judge(&self, review: Review, claims: &TokenClaims) -> Result<SubscriberIdentity, Denied> {
        if !review.authenticated {
            let why = review.error.unwrap_or_else(|| "no reason given".into());
            return Err(Denied::Rejected(vestibule_stream::limits::cut(why)));
        }
        // An API server that does not support audiences returns none, and would accept tokens for itself.
        if !review.audiences.contains(&self.fleets.audience) {
            return Err(Denied::Audience(self.fleets.audience.clone()));
        }
        let not_a_proxy = || Denied::NotAProxy(self.fleets.expected());
        let fleet = self.fleets.of(&review.user).ok_or_else(not_a_proxy)?;
        let proxy = review.pod.filter(|pod| !pod.is_empty());
        let left = claims.exp.saturating_sub((self.clock)());
        Ok(SubscriberIdentity {
            fleet: fleet.clone(),
            proxy: proxy.ok_or(Denied::Unbound)?,
            until: Instant::now() + Duration::from_secs(u64::try_from(left).unwrap_or(0)),
        })
    }
}

fn recall<T: Clone>(remembered: &Remembered<T>, print: &Print) -> Option<T> {
    let mut remembered = remembered.lock();
    let (answer, until) = remembered.get(print)?;
    if *until > Instant::now() {
        return Some(answer.clone());
    }
    remembered.remove(print);
    None
}

fn remember<T>(remembered: &Remembered<T>, print: Print, answer: T, until: Instant) {
    let mut remembered = remembered.lock();
    if remembered.len() >= MAX_REMEMBERED {
        let now = Instant::now();
        remembered.retain(|_, (_, until)| *until > now);
    }
    if remembered.len() >= MAX_REMEMBERED {
        let oldest = remembered.iter().min_by_key(|(_, (_, until))| *until);
        if let Some(oldest) = oldest.map(|(print, _)| *print) {
            remembered.remove(&oldest);
        }
    }
    remembered.insert(print, (answer, until));
}

#[cfg(test)]
mod tests;
