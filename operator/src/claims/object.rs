//! One `HostnameClaim` object as this replica knows it, and the requests about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_backoff::Backoff;
use vestibule_model::claim::{ClaimKey, Holder, HostnameClaim};
use vestibule_model::key::ObjectName;
use vestibule_model::meta::Meta;

/// Changes that come within this time are one write.
const GATHER: Duration = Duration::from_millis(20);
/// Waits after requests failed more than once in a row.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// An object as the API server has it, with its resourceVersion.
pub type SeenClaim = (Arc<HostnameClaim>, String);

/// What an object is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimContent {
    /// The name or port, and the Gateway, which is in the object's namespace.
    pub key: ClaimKey,
    /// The Gateway's UID at the time of the write.
    pub gateway_uid: Arc<str>,
    /// Who holds it.
    pub holder: Holder,
    /// Since when, in seconds since the epoch.
    pub since: i64,
    /// Since when the holder has not used it, in seconds since the epoch.
    pub unused_since: Option<i64>,
    /// An admin takes it from the holder, which has it until somebody else asks for it.
    pub is_taken: bool,
}

impl ClaimContent {
    /// Whether an object says this already. The UID is not compared: a Gateway that is deleted and created again
    /// finds its claims as they are, and every later write has the new UID.
    fn is_said_by(&self, claim: &HostnameClaim) -> bool {
        claim.held_key() == Some(&self.key)
            && claim.holder == self.holder
            && claim.since == self.since
            && claim.unused_since == self.unused_since
            && claim.taken_from().is_some() == self.is_taken
            && claim.findings.is_empty()
    }
}

/// What is to be done with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAction {
    /// To create it. The API server refuses this if there is one.
    Create(ClaimContent),
    /// To replace this version of it.
    Replace {
        /// What it is to say.
        content: ClaimContent,
        /// The version that is replaced.
        version: String,
        /// The version has to change even if the object says this already: an earlier write that goes by the same
        /// version may be under way still, and has to come too late.
        fence: bool,
    },
    /// To delete this version of it.
    Delete {
        /// The version that is deleted.
        version: String,
        /// The object's UID.
        uid: Arc<str>,
    },
    /// To read it as etcd has it: nobody knows what came of a write.
    Read,
}

/// A request to the API server about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The object.
    pub name: ObjectName,
    /// What is to be done.
    pub action: ClaimAction,
}

impl ClaimRequest {
    /// The object that it makes, as a server would have it with this resourceVersion; none for a deletion.
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

/// What came of a request.
#[derive(Debug, Clone)]
pub enum WriteOutcome {
    /// It succeeded, and the object is this now, or is gone.
    Known(Option<SeenClaim>),
    /// Nothing was written: the object is not what it was taken for.
    Moved,
    /// Nothing was written.
    Refused,
    /// There is no answer that says: it may have been written, and it may yet be.
    Unknown,
}

/// What a request goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attempt {
    Read,
    Create,
    Version(String),
}

/// A write of which nobody knows what came of it.
#[derive(Debug)]
struct Doubt {
    attempt: Attempt,
    /// The object was read since then, and had the version that the write goes by: the write may yet land.
    read: bool,
}

/// See the module above.
#[derive(Debug, Default)]
pub(super) struct ObjectState {
    seen: Option<SeenClaim>,
    /// Whether it says who holds a name.
    counts: bool,
    in_flight: Option<Attempt>,
    /// The watch has shown something else since the request in flight began.
    moved: bool,
    doubt: Option<Doubt>,
    /// The version that was deleted, until the watch shows that it is gone: what it shows before is history.
    gone: Option<String>,
    failures: u32,
    /// When to look whether it says what it is to say, and for whom it waits in the queue.
    pub(super) due: Option<(Instant, Arc<str>)>,
    /// For whom the request in flight is.
    pub(super) turn: Option<Arc<str>>,
}

impl ObjectState {
    /// The object.
    pub(super) fn seen(&self) -> Option<&SeenClaim> {
        self.seen.as_ref()
    }

    /// The claim that it makes, if it is one that counts.
    pub(super) fn claim(&self) -> Option<&Arc<HostnameClaim>> {
        let (claim, _) = self.seen.as_ref().filter(|_| self.counts)?;
        Some(claim)
    }

    /// Takes what the watch shows. Says whether it is news: events of writes may come late.
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
        // A write cannot land any more once the object has another version than it goes by, nor a create once there
        // is an object. That it is gone says little: the watch may tell of a removal that was before the write.
        let is_past = |doubt: &Doubt| match (&doubt.attempt, &self.seen) {
            (Attempt::Version(by), Some((_, there))) => by != there,
            (_, seen) => seen.is_some(),
        };
        if self.doubt.as_ref().is_some_and(is_past) {
            self.doubt = None;
        }
    }

    /// Whether a request is being made.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether no write is under way, as far as anybody knows: the object is what it seems to be.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.in_flight, None | Some(Attempt::Read)) && self.doubt.is_none()
    }

    /// What is to be done so that the object says this, or is gone; nothing if it is right.
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
            ClaimAction::Create(_) => Attempt::Create,
            ClaimAction::Replace { version, .. } | ClaimAction::Delete { version, .. } => {
                Attempt::Version(version.clone())
            }
            ClaimAction::Read => Attempt::Read,
        });
    }

    /// The request has ended.
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
                // What the watch has shown meanwhile may be later.
                if seen.is_some() {
                    self.observe(seen);
                } else if !self.moved {
                    self.gone = self.seen.as_ref().map(|(_, version)| version.clone());
                    self.take(None);
                }
            }
            WriteOutcome::Refused => {}
            WriteOutcome::Moved | WriteOutcome::Unknown if attempt == Attempt::Read => {}
            WriteOutcome::Moved | WriteOutcome::Unknown => {
                let read = false;
                self.doubt = Some(Doubt { attempt, read });
            }
        }
    }

    /// A request tells what the object is: whether an earlier write may land still.
    fn end_doubt(&mut self, attempt: &Attempt, seen: Option<&SeenClaim>) {
        let Some(doubt) = &mut self.doubt else {
            return;
        };
        let there = seen.map(|(_, version)| version);
        match &doubt.attempt {
            Attempt::Version(by) if *attempt == Attempt::Read && there == Some(by) => {
                doubt.read = true;
            }
            // A late create finds the object that there is by then, or takes a name that is free: it decides like
            // any other one.
            _ => self.doubt = None,
        }
    }

    /// How many requests in a row failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// How long to wait before the next request.
    pub(super) fn pause(&self) -> Duration {
        let before = self.failures.checked_sub(2);
        before.map_or(GATHER, |before| BACKOFF.delay(before))
    }

    /// Whether there is nothing to remember: no object, and nothing under way.
    pub(super) fn is_over(&self) -> bool {
        self.seen.is_none()
            && self.in_flight.is_none()
            && self.doubt.is_none()
            && self.due.is_none()
            && self.gone.is_none()
    }
}

/// Whether one version of an object comes before another, where that can be told.
fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}
