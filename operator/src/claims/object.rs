//! Follows one `HostnameClaim` object: what this replica knows of it, and the requests about it.
//!
//! The difficulty is a write without an answer: it may have succeeded, and it may even succeed later. The object then
//! has a "doubt", and its state counts as settled again only after one of these:
//!
//! - The object has another version than the write requires, so the API server will refuse the write.
//! - A newer request was answered, and it shows that the write can do no harm any more.
//!
//! To get there, the object is first read from the API server. If it still has the version that the write requires,
//! it is replaced with a "fence", which changes its version even if the content stays the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_backoff::Backoff;
use vestibule_model::claim::{ClaimKey, Holder, HostnameClaim};
use vestibule_model::key::ObjectName;
use vestibule_model::meta::Meta;

/// Changes that come within this time are combined into one write.
const GATHER: Duration = Duration::from_millis(20);
/// Waits after requests failed more than once in a row.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// An object as the API server returned it, with its `resourceVersion`.
pub type SeenClaim = (Arc<HostnameClaim>, String);

/// The content that an object is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimContent {
    /// The name or port, and the Gateway, which is in the object's namespace.
    pub key: ClaimKey,
    /// The Gateway's UID at the time of the write.
    pub gateway_uid: Arc<str>,
    /// The holder of the name or port.
    pub holder: Holder,
    /// When the holder got it, in seconds since the epoch.
    pub since: i64,
    /// When the holder stopped using it, in seconds since the epoch. `None` while it is in use.
    pub unused_since: Option<i64>,
    /// Whether an administrator takes it from the holder. The holder keeps it until another namespace asks for it.
    pub is_taken: bool,
}

impl ClaimContent {
    /// Whether an object already has this content. The UID is not compared: if a Gateway is deleted and created again,
    /// its claims stay as they are, and every later write has the new UID.
    fn is_said_by(&self, claim: &HostnameClaim) -> bool {
        claim.held_key() == Some(&self.key)
            && claim.holder == self.holder
            && claim.since == self.since
            && claim.unused_since == self.unused_since
            && claim.taken_from().is_some() == self.is_taken
            && claim.findings.is_empty()
    }
}

/// A request to the API server, without the object that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAction {
    /// Creates the object. The API server refuses this if the object exists.
    Create(ClaimContent),
    /// Replaces one version of the object.
    Replace {
        /// The new content.
        content: ClaimContent,
        /// The version that is replaced. The API server refuses the request if the object has another one.
        version: String,
        /// Whether the version has to change even if the object already has this content. This makes sure that an
        /// earlier write, which requires the same version and may still be under way, is refused.
        fence: bool,
    },
    /// Deletes one version of the object.
    Delete {
        /// The version that is deleted. The API server refuses the request if the object has another one.
        version: String,
        /// The object's UID.
        uid: Arc<str>,
    },
    /// Reads the object from etcd, not from a cache. This is necessary if the outcome of a write is unknown.
    Read,
}

/// A request to the API server about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The object.
    pub name: ObjectName,
    /// The request.
    pub action: ClaimAction,
}

impl ClaimRequest {
    /// Returns the object that this request produces, as a server would store it with the `resourceVersion` `version`.
    /// `None` for a deletion.
    #[must_use]
    pub fn stored(&self, version: u64) -> Option<SeenClaim> {
        let (ClaimAction::Create(content) | ClaimAction::Replace { content, .. }) = &self.action
        else {
            return None;
        };
        let claim = HostnameClaim {
            name: self.name.clone(),
            meta: Meta::default(),
            gateway: content.key.gateway.name.clone(),
            gateway_uid: content.gateway_uid.clone(),
            key: Some(content.key.clone()),
            holder: content.holder.clone(),
            since: content.since,
            unused_since: content.unused_since,
            take_from: content.is_taken.then(|| content.holder.namespace.clone()),
            findings: Vec::new(),
        };
        Some((Arc::new(claim), version.to_string()))
    }
}

/// The outcome of a request.
#[derive(Debug, Clone)]
pub enum WriteOutcome {
    /// It succeeded. This is the object now; `None` if it is gone.
    Known(Option<SeenClaim>),
    /// Nothing was written, because the object has another version, exists already, or does not exist.
    Moved,
    /// The API server refused the request for another reason. Nothing was written.
    Refused,
    /// No answer tells the outcome. The write may have happened, and it may still happen.
    Unknown,
}

/// The precondition of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestPrecondition {
    Read,
    Create,
    Version(String),
}

/// A write that may still change the object although no request is in flight.
#[derive(Debug)]
struct Doubt {
    attempt: RequestPrecondition,
    /// The object was read after the write, and still had the version that the write requires. So the write may still
    /// succeed.
    read: bool,
}

/// The state of one `HostnameClaim` object.
#[derive(Debug, Default)]
pub(super) struct ObjectState {
    seen: Option<SeenClaim>,
    /// Whether the object names a holder that counts.
    counts: bool,
    in_flight: Option<RequestPrecondition>,
    /// Whether the watch has shown another version since the request in flight began.
    moved: bool,
    doubt: Option<Doubt>,
    /// The version that was deleted, until the watch shows that the object is gone. Until then, the watch still shows
    /// versions from before the deletion, and they are ignored.
    gone: Option<String>,
    failures: u32,
    /// When to check whether the object has the content that it should have, and the tenant in whose queue it waits.
    pub(super) due: Option<(Instant, Arc<str>)>,
    /// The tenant that the request in flight is for.
    pub(super) turn: Option<Arc<str>>,
}

impl ObjectState {
    /// Returns the object, as far as this replica knows.
    pub(super) fn seen(&self) -> Option<&SeenClaim> {
        self.seen.as_ref()
    }

    /// Returns the claim in the object, if it counts.
    pub(super) fn claim(&self) -> Option<&Arc<HostnameClaim>> {
        let (claim, _) = self.seen.as_ref().filter(|_| self.counts)?;
        Some(claim)
    }

    /// Takes the state of the object from the watch. Returns `false` if this is older than what is known, since events
    /// may arrive after the answer of the write that caused them.
    pub(super) fn observe(&mut self, seen: Option<SeenClaim>) -> bool {
        if let (Some((_, old)), Some((_, new))) = (&self.seen, &seen)
            && is_older(new, old)
        {
            return false;
        }
        match (&self.gone, &seen) {
            (Some(gone), Some((_, new))) if new == gone || is_older(new, gone) => return false,
            (Some(_), None) if self.seen.is_some() => {}
            _ => self.gone = None,
        }
        self.take(seen);
        true
    }

    fn take(&mut self, seen: Option<SeenClaim>) {
        let version = |seen: &Option<SeenClaim>| seen.as_ref().map(|(_, version)| version.clone());
        self.moved |= version(&self.seen) != version(&seen);
        let key = seen.as_ref().and_then(|(claim, _)| claim.held_key());
        self.counts = key.is_some();
        self.seen = seen;
        // A write can no longer succeed if the object has another version than the write requires, and a create can no
        // longer succeed if the object exists. If the object is gone, this proves little: the watch may report a
        // deletion from before the write.
        let is_past = |doubt: &Doubt| match (&doubt.attempt, &self.seen) {
            (RequestPrecondition::Version(by), Some((_, there))) => by != there,
            (_, seen) => seen.is_some(),
        };
        if self.doubt.as_ref().is_some_and(is_past) {
            self.doubt = None;
        }
    }

    /// Whether a request about the object is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether no write can be under way, so that the object is as [`Self::seen`] returns it.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.in_flight, None | Some(RequestPrecondition::Read)) && self.doubt.is_none()
    }

    /// Returns the next request so that the object gets `content`, or is deleted if that is `None`. Returns `None` if
    /// the object is right already.
    pub(super) fn next(&self, content: Option<ClaimContent>) -> Option<ClaimAction> {
        if self.doubt.as_ref().is_some_and(|doubt| !doubt.read) {
            return Some(ClaimAction::Read);
        }
        match (content, &self.seen) {
            (None, None) => None,
            (None, Some((claim, version))) => Some(ClaimAction::Delete {
                version: version.clone(),
                uid: claim.meta.uid.clone(),
            }),
            (Some(content), None) => Some(ClaimAction::Create(content)),
            (Some(content), Some((claim, version))) => {
                let fence = self.doubt.is_some();
                let right = content.is_said_by(claim) && !fence;
                (!right).then(|| ClaimAction::Replace {
                    content,
                    version: version.clone(),
                    fence,
                })
            }
        }
    }

    pub(super) fn begin(&mut self, action: &ClaimAction, tenant: &Arc<str>) {
        self.moved = false;
        self.turn = Some(tenant.clone());
        self.in_flight = Some(match action {
            ClaimAction::Create(_) => RequestPrecondition::Create,
            ClaimAction::Replace { version, .. } | ClaimAction::Delete { version, .. } => {
                RequestPrecondition::Version(version.clone())
            }
            ClaimAction::Read => RequestPrecondition::Read,
        });
    }

    /// Takes the outcome of the request in flight.
    pub(super) fn end(&mut self, outcome: WriteOutcome) {
        let Some(attempt) = self.in_flight.take() else {
            return;
        };
        self.failures = match outcome {
            WriteOutcome::Known(_) => 0,
            _ => self.failures.saturating_add(1),
        };
        match outcome {
            WriteOutcome::Known(seen) => {
                self.end_doubt(&attempt, seen.as_ref());
                // The watch may have shown a later version in the meantime.
                if seen.is_some() {
                    self.observe(seen);
                } else if !self.moved {
                    self.gone = self.seen.as_ref().map(|(_, version)| version.clone());
                    self.take(None);
                }
            }
            WriteOutcome::Refused => {}
            WriteOutcome::Moved | WriteOutcome::Unknown if attempt == RequestPrecondition::Read => {
            }
            // After `Moved`, the object is not as this replica knows it, so it is read as after an unknown outcome.
            WriteOutcome::Moved | WriteOutcome::Unknown => {
                let read = false;
                self.doubt = Some(Doubt { attempt, read });
            }
        }
    }

    /// Ends the doubt about an earlier write after a newer request was answered, unless the earlier write may still
    /// succeed.
    fn end_doubt(&mut self, attempt: &RequestPrecondition, seen: Option<&SeenClaim>) {
        let Some(doubt) = &mut self.doubt else {
            return;
        };
        let there = seen.map(|(_, version)| version);
        match &doubt.attempt {
            // The object still has the version that the earlier write requires, so that write may yet succeed. A replace
            // that requires the same version ends the doubt: the server carries out only one of the two.
            RequestPrecondition::Version(by)
                if *attempt == RequestPrecondition::Read && there == Some(by) =>
            {
                doubt.read = true;
            }
            // A create that succeeds late does no harm. It fails if the object exists by then; otherwise it takes a
            // name that is free, like any other create.
            _ => self.doubt = None,
        }
    }

    /// Returns how many requests in a row have failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns how long to wait before the next request.
    pub(super) fn pause(&self) -> Duration {
        // One failure is normal, because another write may have come first. So the backoff begins with the second one.
        let before = self.failures.checked_sub(2);
        before.map_or(GATHER, |before| BACKOFF.delay(before))
    }

    /// Whether this state can be forgotten, because there is no object and no request under way.
    pub(super) fn is_over(&self) -> bool {
        self.seen.is_none()
            && self.in_flight.is_none()
            && self.doubt.is_none()
            && self.due.is_none()
            && self.gone.is_none()
    }
}

/// Whether the version `a` of an object comes before `b`. It is `false` if the versions cannot be compared.
fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}
