//! Knows which names are wanted and not recorded yet, and holds the first claim to a wildcard back for those inside it.
//!
//! A recorded wildcard closes the names inside it to other namespaces. So a name that an older object asks for has to be
//! recorded before the wildcard, however long its write takes. No ages are compared here: translation wants a name for a
//! namespace only if that namespace may have it, and compares it with the requests for the wildcards around it (ADR 21). A
//! younger name inside an older wildcard is not wanted. A name that a grant gives is wanted, whatever its age; the wildcard
//! waits for it without need, but not for long.
//!
//! A wildcard waits only for names inside it, never for one around it. So no two claims wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;
use vestibule_model::reversed::Patterns;

use super::LONGEST_WILDCARD_WAIT;

/// The hostnames that nobody holds and that have a candidate, by Gateway. Only the leader has candidates.
///
/// Each wildcard has a count of the names that it waits for. So it costs one look-up to find out whether a wildcard has
/// to wait, and a name that comes or goes costs one look-up for each of its labels. A wildcard that comes counts the names
/// inside it once. These are names that are asked for and that nobody holds, and translation has just decided each of them
/// again because of this wildcard. So the count adds nothing to the order of what an edit costs.
#[derive(Debug, Default)]
pub(super) struct Unrecorded(BTreeMap<ObjectName, Patterns<Wanted>>);

/// A hostname that has a candidate.
#[derive(Debug)]
struct Wanted {
    /// The namespace of the candidate.
    namespace: Arc<str>,
    /// For a wildcard: how many names inside it have a candidate of another namespace.
    others: usize,
    /// The end of the wait, once the claim has been held back. It stays when the wait is over, so that a wildcard whose
    /// write fails does not wait again.
    until: Option<Instant>,
}

impl Unrecorded {
    /// Takes the namespace of the present candidate for a name that nobody holds; `None` if there is none any more, for
    /// example because the name is recorded. Returns the wildcards that were held back and have nothing to wait for now.
    pub(super) fn change(&mut self, key: &ClaimKey, namespace: Option<&Arc<str>>) -> Vec<ClaimKey> {
        let Claimed::Names(names) = &key.of else {
            return Vec::new();
        };
        let wanted = self.0.entry(key.gateway.clone()).or_default();
        let former = wanted.remove(names).map(|of| of.namespace);
        if let Some(namespace) = namespace {
            // "Every name that nobody else holds" closes nothing, so it waits for nothing.
            let others = if names.is_wildcard() {
                let inside = wanted.below(names);
                inside.filter(|(_, of)| of.namespace != *namespace).count()
            } else {
                0
            };
            let of = Wanted {
                namespace: namespace.clone(),
                others,
                until: None,
            };
            wanted.insert(names, of);
        }
        let around = wanted.above(names).map(|(around, _)| around);
        let around: Vec<HostPattern> = around.filter(|of| of.is_wildcard()).cloned().collect();
        let mut released = Vec::new();
        for wildcard in around {
            let Some(of) = wanted.get_mut(&wildcard) else {
                continue;
            };
            let was_other = former.as_ref().is_some_and(|it| *it != of.namespace);
            let is_other = namespace.is_some_and(|it| *it != of.namespace);
            of.others = of.others + usize::from(is_other) - usize::from(was_other);
            if was_other && of.others == 0 && of.until.is_some() {
                released.push(ClaimKey::names(&key.gateway, &wildcard));
            }
        }
        if wanted.is_empty() {
            self.0.remove(&key.gateway);
        }
        released
    }

    /// Returns until when the first claim to a name is held back; `None` if it may be written now.
    ///
    /// [`LONGEST_WILDCARD_WAIT`] begins when the claim is held back for the first time.
    pub(super) fn hold_back(&mut self, key: &ClaimKey, now: Instant) -> Option<Instant> {
        let Claimed::Names(names) = &key.of else {
            return None;
        };
        let of = self.0.get_mut(&key.gateway)?.get_mut(names)?;
        if of.others == 0 {
            return None;
        }
        let until = *of.until.get_or_insert(now + LONGEST_WILDCARD_WAIT);
        (until > now).then_some(until)
    }
}
