//! Where the engine meets the world: what it is told, and what whoever runs it does for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeType};
use vestibule_model::condition::Truth;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use zeroize::Zeroizing;

use super::keys::PrivateKey;
use crate::translate::CertificateRequest;

/// What the engine is told.
#[derive(Debug)]
pub enum Input {
    /// Certificates that are wanted, or no longer. The first message has all of them: until they have been
    /// looked at, no order is made, since the Secrets say what was ordered within the last hour.
    Requests(BTreeMap<ObjectName, Option<CertificateRequest>>),
    /// Issuers, or that they are gone.
    Issuers(BTreeMap<ObjectKey, Option<Arc<AcmeIssuer>>>),
    /// How far challenges are that were published.
    Challenges(BTreeMap<ChallengeKey, ChallengeAck>),
    /// Somebody wrote or deleted a Secret that a request names: it is read again.
    SecretChanged(ObjectName),
}

/// How far a published challenge is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChallengeAck {
    /// Not every ready proxy has it.
    Waiting {
        /// Proxies that have it.
        acked: usize,
        /// Ready proxies.
        of: usize,
    },
    /// Every ready proxy answers it.
    Everywhere,
    /// It cannot be answered: why.
    Refused(Arc<str>),
}

/// What is done for the engine.
///
/// Secrets are of type `kubernetes.io/tls` with the labels of the release and
/// [`STATE_ANNOTATION`](super::STATE_ANNOTATION). Those of accounts have no `tls.crt` and the account's key
/// as `tls.key`.
pub trait Effects: Send + Sync + 'static {
    /// What a Secret holds.
    fn read(
        &self,
        secret: &ObjectName,
    ) -> impl Future<Output = Result<Option<StoredSecret>, StoreError>> + Send;

    /// Creates or replaces a Secret.
    fn write(
        &self,
        secret: &ObjectName,
        write: Write,
    ) -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// One entry of any Secret: the MAC key of an external account binding.
    fn entry(
        &self,
        secret: &ObjectName,
        key: &str,
    ) -> impl Future<Output = Result<Option<Zeroizing<Vec<u8>>>, StoreError>> + Send;

    /// Publishes challenges, or withdraws them.
    fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>);

    /// Until a CA that connects to the Gateway of a certificate by these challenges has somebody to connect
    /// to, as far as that can be told, or long enough. The proxies have them by then.
    fn reachable(
        &self,
        secret: &ObjectName,
        gateway: &ObjectName,
        kinds: &BTreeSet<ChallengeType>,
    ) -> impl Future<Output = ()> + Send {
        let _ = (secret, gateway, kinds);
        std::future::ready(())
    }

    /// Says how far certificates are.
    fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>);

    /// Says how issuers are.
    fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>);

    /// Counts, and tells people.
    fn observe(&self, observation: Observation);
}

/// What a Secret holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSecret {
    /// What a later [`Write`] expects.
    pub version: Arc<str>,
    /// Whether it has our type and labels. Others are never written.
    pub ours: bool,
    /// The annotation.
    pub state: Option<Arc<str>>,
    /// `tls.crt`
    pub certificate: Vec<u8>,
    /// `tls.key`
    pub private_key: PrivateKey,
    /// `next.key`
    pub next_key: PrivateKey,
}

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The version to replace; `None`: there must be no such Secret yet.
    pub expected: Option<Arc<str>>,
    /// The annotation.
    pub state: Arc<str>,
    /// New `tls.crt` and `tls.key`; `None` leaves them (both empty in a new Secret).
    pub pair: Option<(Vec<u8>, PrivateKey)>,
    /// `next.key`; `None` removes it.
    pub next_key: Option<PrivateKey>,
}

/// How a write went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// Well; the new version.
    Done(Arc<str>),
    /// The Secret is there already, is another version, or is gone.
    Conflict,
    /// It is not allowed, or not valid: why. Trying again soon does not help.
    Refused(String),
}

/// Secrets cannot be read or written now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// How an issuer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerState {
    /// Whether the account is registered; unknown until it has been tried.
    pub ready: Truth,
    /// Reason of the condition Ready.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// URL of the account, once it is known.
    pub account_url: Option<String>,
    /// Type of the problem document by which the CA said no, if it sent one.
    pub problem: Option<String>,
}

/// What happened, for metrics and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// An order ended.
    OrderEnded {
        /// For which Secret.
        secret: ObjectName,
        /// Of which issuer.
        issuer: ObjectKey,
        /// How.
        outcome: OrderOutcome,
        /// For people.
        message: Arc<str>,
    },
    /// A request to a CA.
    Asked {
        /// Of which issuer.
        issuer: ObjectKey,
        /// What it said.
        answered: Answered,
    },
    /// When a certificate is to be renewed, in seconds since 1970; `None`: it is not.
    RenewAt(ObjectName, Option<i64>),
    /// How many certificates wait, and for what.
    Waiting(Waiting),
    /// A task panicked. It is tried again.
    Panicked,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderOutcome {
    /// With a certificate.
    Issued,
    /// With a problem.
    Failed,
    /// It is wanted no longer, or in another form.
    Abandoned,
}

impl OrderOutcome {
    /// As a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// What became of a request to a CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answered {
    /// It was answered.
    Ok,
    /// With a problem.
    Problem,
    /// Not at all.
    Unreachable,
    /// It was not sent: it would have gone to where a tenant's issuer may not lead.
    NotAllowed,
}

impl Answered {
    /// As a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Problem => "problem",
            Self::Unreachable => "unreachable",
            Self::NotAllowed => "not_allowed",
        }
    }
}

/// How many certificates wait, and for what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// For their budget, or for orders that run.
    pub budget: usize,
    /// For the time after a failure.
    pub backoff: usize,
    /// For their issuer.
    pub issuer: usize,
    /// For a challenge to be answered by all proxies.
    pub challenge: usize,
    /// For their CA to check names, or to make the certificate.
    pub authority: usize,
}
