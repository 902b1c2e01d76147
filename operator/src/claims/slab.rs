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
    /// It could not be made; the watch shows what is there.
    Failed,
}

/// One object.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) gateway: ObjectName,
    pub(super) namespace: Arc<str>,
    /// What is to be in it.
    pub(super) keys: BTreeSet<ClaimKey>,
    pub(super) seen: Option<Seen>,
    pub(super) in_flight: bool,
    /// The watch has shown something since the write in flight began.
    moved: bool,
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
            moved: false,
            due: None,
            failures: 0,
        }
    }

    /// Takes what the watch shows. Says whether it is news: events of writes may come late.
    pub(super) fn observe(&mut self, seen: Option<Seen>) -> bool {
        self.moved = true;
        if let (Some((_, old)), Some((_, new))) = (&self.seen, &seen)
            && is_older(new, old)
        {
            return false;
        }
        self.seen = seen;
        true
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
        self.seen.as_ref().map(|(_, version)| version.clone())
    }

    /// The write has ended. Says whether what it answered is the latest that is known.
    pub(super) fn end(&mut self, failed: bool) -> bool {
        self.in_flight = false;
        self.failures = if failed {
            self.failures.saturating_add(1)
        } else {
            0
        };
        !failed && !self.moved
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
