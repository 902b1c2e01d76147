//! Owns the interface between the engine and its surroundings: the engine's inputs, and what the caller does for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeType};
use vestibule_model::condition::Truth;
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use zeroize::Zeroizing;

use crate::keys::PrivateKey;

/// An input of the engine.
#[derive(Debug)]
pub enum Input {
    /// Certificates that are wanted, or `None` for those that no longer are. The first message has all of them. No
    /// order is made until their Secrets have been read, since the Secrets say what was ordered within the last hour.
    Requests(BTreeMap<ObjectName, Option<CertificateRequest>>),
    /// Issuers, or `None` for those that are gone.
    Issuers(BTreeMap<ObjectKey, Option<Arc<AcmeIssuer>>>),
    /// The state of published challenges.
    Challenges(BTreeMap<ChallengeKey, ChallengeAck>),
    /// Somebody wrote or deleted a Secret that a request names. The engine reads it again.
    SecretChanged(ObjectName),
}

/// The state of a published challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChallengeAck {
    /// Not every ready proxy has it yet.
    Waiting {
        /// Proxies that have it.
        acked: usize,
        /// Ready proxies.
        of: usize,
    },
    /// Every ready proxy answers it.
    Everywhere,
    /// It cannot be answered, for this reason.
    Refused(Arc<str>),
}

/// The work that the engine leaves to its caller: reads and writes of Secrets, challenges and statuses.
///
/// Secrets are of type `kubernetes.io/tls` with the labels of the release and
/// [`STATE_ANNOTATION`](crate::STATE_ANNOTATION). Those of accounts have no `tls.crt` and the account's key
/// as `tls.key`.
pub trait Effects: Send + Sync + 'static {
    /// Reads what a Secret holds.
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

    /// Reads one entry of any Secret. The engine uses it for the MAC key of an external account binding.
    fn entry(
        &self,
        secret: &ObjectName,
        key: &str,
    ) -> impl Future<Output = Result<Option<Zeroizing<Vec<u8>>>, StoreError>> + Send;

    /// Publishes challenges, or withdraws them.
    fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>);

    /// Waits until a CA that connects to the Gateway of a certificate for these challenges can reach a proxy, as far as
    /// that can be told, or until it has waited long enough. The proxies have the challenges by then.
    fn reachable(
        &self,
        secret: &ObjectName,
        gateway: &ObjectName,
        kinds: &BTreeSet<ChallengeType>,
    ) -> impl Future<Output = ()> + Send {
        let _ = (secret, gateway, kinds);
        std::future::ready(())
    }

    /// Reports the state of certificates.
    fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>);

    /// Reports the state of issuers.
    fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>);

    /// Counts an observation in metrics, and reports it as an event where people should see it.
    fn observe(&self, observation: Observation);
}

/// The content of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSecret {
    /// The version that a later [`Write`] expects.
    pub version: Arc<str>,
    /// Whether it has Vestibule's type and labels. Other Secrets are never written.
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

/// A write of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The version to replace. `None` means that the Secret must not exist yet.
    pub expected: Option<Arc<str>>,
    /// The annotation.
    pub state: Arc<str>,
    /// New `tls.crt` and `tls.key`. `None` leaves them as they are, and empty in a new Secret.
    pub pair: Option<(Vec<u8>, PrivateKey)>,
    /// New `next.key`. `None` removes it.
    pub next_key: Option<PrivateKey>,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It succeeded. This is the new version.
    Done(Arc<str>),
    /// The Secret exists already, has another version, or is gone.
    Conflict,
    /// It is forbidden or invalid, for this reason. Trying again soon does not help.
    Refused(String),
}

/// Secrets cannot be read or written at the moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// The state of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerState {
    /// Whether the account is registered. It is unknown until that has been tried.
    pub ready: Truth,
    /// Reason of the condition Ready.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// URL of the account, once it is known.
    pub account_url: Option<String>,
    /// Type of the problem document of the CA's refusal, if it sent one.
    pub problem: Option<String>,
}

/// Something that happened, for metrics and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// An order ended.
    OrderEnded {
        /// The Secret of the order.
        secret: ObjectName,
        /// The issuer of the order.
        issuer: ObjectKey,
        /// The result.
        outcome: OrderOutcome,
        /// The explanation for people.
        message: Arc<str>,
    },
    /// A CA was asked for something.
    Asked {
        /// The issuer for which it was asked.
        issuer: ObjectKey,
        /// The kind of answer.
        answered: Answered,
    },
    /// When a certificate will be renewed, in seconds since 1970, or `None` if it will not be.
    RenewAt(ObjectName, Option<i64>),
    /// How many certificates wait, and what they wait for.
    Waiting(WaitingCounts),
    /// A task panicked. The engine tries it again.
    Panicked,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderOutcome {
    /// It yielded a certificate.
    Issued,
    /// It ended with a problem.
    Failed,
    /// The certificate is no longer wanted, or wanted in another form.
    Abandoned,
}

impl OrderOutcome {
    /// The value of the metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The kind of answer to a request to a CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answered {
    /// The CA answered with success.
    Ok,
    /// The CA answered with a problem.
    Problem,
    /// The CA did not answer.
    Unreachable,
    /// The request was not sent, because a tenant's issuer must not lead to its address.
    NotAllowed,
}

impl Answered {
    /// The value of the metric label.
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

/// How many certificates wait, and what they wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingCounts {
    /// They wait for their budget, or for a slot.
    pub budget: usize,
    /// They wait out a failure.
    pub backoff: usize,
    /// They wait for their issuer.
    pub issuer: usize,
    /// They wait until all proxies answer a challenge.
    pub challenge: usize,
    /// They wait for their CA to check names or to make the certificate.
    pub authority: usize,
}
