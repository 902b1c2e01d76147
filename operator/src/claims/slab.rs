//! One `HostnameClaim` object: what is in it, what is to be in it, and the writes that lead there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimEntry, ClaimKey, HostnameClaim};
use vestibule_model::key::ObjectName;
use vestibule_model::object::Meta;

/// What is asked for within this time is written at once.
const GATHER: Duration = Duration::from_millis(20);
/// First and longest wait after a write failed.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// An API server gives a request up by then (its `--request-timeout` is a minute unless set).
const LATE: Duration = Duration::from_secs(90);

/// An object as the API server has it, with its resourceVersion.
pub type Seen = (Arc<HostnameClaim>, String);

/// What an object is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The Gateway, which is in the object's namespace.
    pub gateway: Arc<str>,
    /// Its UID.
    pub gateway_uid: Arc<str>,
    /// Who holds the names.
    pub namespace: Arc<str>,
    /// The names, in order.
    pub entries: Vec<ClaimEntry>,
}

impl Content {
    /// Whether an object says this already.
    fn is_said_by(&self, claim: &HostnameClaim) -> bool {
        claim.gateway == self.gateway
            && claim.gateway_uid == self.gateway_uid
            && claim.namespace == self.namespace
            && claim.entries == self.entries
            && claim.findings.is_empty()
    }
}

/// A write that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The object.
    pub name: ObjectName,
    /// Its resourceVersion, if it is there.
    pub version: Option<String>,
    /// What it is to say; none: it is to go.
    pub content: Option<Content>,
    /// Its version has to become another one even if it says that already: an earlier write that goes by this
    /// one may be under way still, and must come too late.
    pub fence: bool,
}

impl Write {
    /// The object that it makes, as a server would have it with this resourceVersion.
    #[must_use]
    pub fn stored(&self, version: u64) -> Option<Seen> {
        let content = self.content.as_ref()?;
        let claim = HostnameClaim {
            name: self.name.clone(),
            meta: Meta::default(),
            gateway: content.gateway.clone(),
            gateway_uid: content.gateway_uid.clone(),
            namespace: content.namespace.clone(),
            entries: content.entries.clone(),
            findings: Vec::new(),
        };
        Some((Arc::new(claim), version.to_string()))
    }
}

/// What came of a write.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The object is this now, or is gone.
    Written(Option<Seen>),
    /// Nothing was written: the object is not what it was taken for. The watch shows what is there.
    Moved,
    /// Nothing was written.
    Refused,
    /// Nobody knows: it may have been written, and it may yet be.
    Unknown,
}

/// What keeps an object from being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The API server does not take it.
    Refused,
    /// Several times in a row there was no answer, or none that says.
    Unanswered,
}

/// A write, by the resourceVersion that it goes by; none: it makes the object.
type Doubt = Option<String>;

/// One object.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) gateway: ObjectName,
    pub(super) namespace: Arc<str>,
    /// What is to be in it.
    pub(super) keys: BTreeSet<ClaimKey>,
    pub(super) seen: Option<Seen>,
    pub(super) in_flight: bool,
    /// What the write in flight goes by.
    attempt: Doubt,
    /// The watch has shown something else since the write in flight began.
    moved: bool,
    /// A write that may have been made, or may yet be.
    doubt: Option<Doubt>,
    /// From when on a look shows what came of a create: whatever was under way has been given up by then.
    doubt_until: Option<Instant>,
    /// The version that was deleted, until the watch shows that it is gone: what it shows before is history.
    gone: Option<String>,
    /// It must not go before: a write that makes it may be late, and would make it once more.
    keep_until: Option<Instant>,
    /// When to look whether it says what it is to say.
    pub(super) due: Option<Instant>,
    failures: u32,
}

impl Slab {
    pub(super) fn new(gateway: ObjectName, namespace: Arc<str>) -> Self {
        Self {
            gateway,
            namespace,
            keys: BTreeSet::new(),
            seen: None,
            in_flight: false,
            attempt: None,
            moved: false,
            doubt: None,
            doubt_until: None,
            gone: None,
            keep_until: None,
            due: None,
            failures: 0,
        }
    }

    /// Takes what the watch shows. Says whether it is news: events of writes may come late.
    pub(super) fn observe(&mut self, seen: Option<Seen>) -> bool {
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
        let version = |seen: &Option<Seen>| seen.as_ref().map(|(_, version)| version.clone());
        self.moved |= version(&self.seen) != version(&seen);
        self.seen = seen;
        self.clear_doubt();
        true
    }

    /// A write cannot be made any more once the object has another version than it goes by. That it is gone
    /// says little: the watch may tell of a removal before it was made.
    fn clear_doubt(&mut self) {
        if let (Some(by), Some((_, there))) = (&self.doubt, &self.seen)
            && by.as_ref() != Some(there)
        {
            self.doubt = None;
        }
    }

    /// Whether what is in it may change by a write that was begun.
    pub(super) fn is_open(&self) -> bool {
        self.in_flight || self.doubt.is_some()
    }

    /// Whether nobody knows what is there, or is yet to come of a write that has ended.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubt.is_some()
    }

    /// From when on a look ends a doubt about a create: there may never be a write that does.
    pub(super) fn doubt_until(&self) -> Option<Instant> {
        let about_create = self.doubt == Some(None) && self.seen.is_none();
        self.doubt_until.filter(|_| about_create)
    }

    /// It was not there at this time. Says whether that ends a doubt about a create.
    pub(super) fn end_doubt(&mut self, now: Instant) -> bool {
        let over = !self.in_flight && self.doubt_until().is_some_and(|until| until <= now);
        if over {
            self.doubt = None;
            self.doubt_until = None;
            self.failures = 0;
        }
        over
    }

    /// Until when it is to be there, though it be empty.
    pub(super) fn keep_until(&mut self, now: Instant) -> Option<Instant> {
        self.keep_until = self.keep_until.filter(|until| *until > now);
        self.keep_until
    }

    /// Whether it is neither there, nor to be, nor may come to be.
    pub(super) fn is_over(&self) -> bool {
        self.seen.is_none()
            && !self.is_open()
            && self.keys.is_empty()
            && self.due.is_none()
            && self.gone.is_none()
            && self.keep_until.is_none()
    }

    /// Whether it says what it is to say.
    pub(super) fn is_right(&self, content: Option<&Content>) -> bool {
        match (content, &self.seen) {
            (None, None) => true,
            (Some(content), Some((claim, _))) => content.is_said_by(claim),
            _ => false,
        }
    }

    pub(super) fn begin(&mut self) -> Option<String> {
        self.in_flight = true;
        self.moved = false;
        self.attempt = self.seen.as_ref().map(|(_, version)| version.clone());
        self.attempt.clone()
    }

    /// The write has ended. Says whether what it answered is the latest that is known.
    pub(super) fn end(&mut self, outcome: &Outcome, now: Instant) -> bool {
        if !std::mem::take(&mut self.in_flight) {
            return false;
        }
        let attempt = self.attempt.take();
        self.failures = match outcome {
            Outcome::Written(_) => 0,
            _ => self.failures.saturating_add(1),
        };
        let latest = matches!(outcome, Outcome::Written(_)) && !self.moved;
        if latest && matches!(outcome, Outcome::Written(None)) {
            self.gone.clone_from(&attempt);
        }
        match outcome {
            // Whatever was under way goes by what is there no longer.
            Outcome::Written(_) => self.doubt = None,
            Outcome::Refused => {}
            // What is there instead may be what an earlier write made of it.
            Outcome::Moved => {
                if attempt.is_none() {
                    self.doubt_until = now.checked_add(LATE);
                }
                self.doubt = Some(attempt);
            }
            Outcome::Unknown => {
                if attempt.is_none() {
                    self.keep_until = now.checked_add(LATE);
                    self.doubt_until = self.keep_until;
                }
                self.doubt = Some(attempt);
            }
        }
        self.clear_doubt();
        latest
    }

    /// What keeps it from being written, as far as a write that has ended tells.
    pub(super) fn trouble(&self, outcome: &Outcome) -> Option<Trouble> {
        match outcome {
            Outcome::Written(_) | Outcome::Moved => None,
            Outcome::Refused => Some(Trouble::Refused),
            Outcome::Unknown => (self.failures > 1).then_some(Trouble::Unanswered),
        }
    }

    /// How long to wait before it is written.
    pub(super) fn pause(&self) -> Duration {
        if self.failures == 0 {
            return GATHER;
        }
        let (first, longest) = BACKOFF;
        first
            .saturating_mul(1 << (self.failures - 1).min(16))
            .min(longest)
    }
}

/// Whether one version of an object comes before another, where that can be told.
fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}
