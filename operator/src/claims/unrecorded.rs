//! Knows which names are wanted and not recorded yet, and holds the first claim to a wildcard back for those inside it.
//!
//! A recorded wildcard closes the names inside it to other namespaces. So a name that an older object asks for has to be
//! recorded before the wildcard, however long its write takes. No ages are compared here: translation wants a name for a
//! namespace only if that namespace may have it, and compares it with the requests for the wildcards around it (ADR 21). A
//! younger name inside an older wildcard is not wanted. A name that a grant gives is wanted, whatever its age; the wildcard
//! waits for it without need, but not for long.
//!
//! Translation may hear of the older object a little later than of the one that asks for the wildcard. So the wildcard is
//! not written before [`WILDCARD_GATHERING`] is over, even if there is no such name yet. This time counts from the request
//! for the wildcard, so a wildcard that had to wait for names longer than that is written soon after the last one of them.
//!
//! A wildcard waits only for names inside it, never for one around it. So no two claims wait for each other. A wildcard of
//! the Gateway's own namespace closes nothing (ADR 21), so it does not wait at all.
//!
//! The wait has an end ([`Wait`]). Then the wildcard is written although names inside it are not recorded. Once it is
//! recorded, translation finds these names inside another namespace's wildcard and no longer wants them. If the write of
//! one of them succeeds after that, its object is deleted. The end moves whenever one of several such names is recorded or
//! no longer wanted, so thousands of names may take longer than one wait, up to [`MOST_WILDCARD_WAIT`].
//!
//! A candidate for a wildcard has one wait only, which begins with the first name that it waits for. If the write of the
//! wildcard itself then fails until this wait is over, the wildcard does not wait for an older name that is asked for later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ObjectName;
use vestibule_model::reversed::Patterns;

use super::{
    LONGEST_WILDCARD_WAIT, MOST_WILDCARD_WAIT, WILDCARD_GATHERING, WILDCARD_WAIT_STEP,
    WILDCARD_WAIT_STEPS,
};

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
    /// For a wildcard: the end of [`WILDCARD_GATHERING`].
    gathered: Instant,
    /// The wait, once the claim has been held back for a name inside it. It stays when it is over, so that a wildcard whose
    /// write fails does not wait again.
    wait: Option<Wait>,
}

/// The wait of a wildcard for names inside it.
#[derive(Debug)]
struct Wait {
    /// How long it lasts from now on, whenever there is progress.
    longest: Duration,
    end: Instant,
    /// The end does not move beyond this.
    latest: Instant,
}

impl Wait {
    /// The wait of the wildcard below `suffix`. Each of its times is shorter for an inner wildcard than for one around it; see
    /// [`WILDCARD_WAIT_STEP`].
    fn begin(suffix: &Hostname, now: Instant) -> Self {
        let more = u32::try_from(suffix.labels() - 1).unwrap_or(u32::MAX);
        let sooner = WILDCARD_WAIT_STEP * more.min(WILDCARD_WAIT_STEPS);
        let longest = LONGEST_WILDCARD_WAIT.saturating_sub(sooner);
        Self {
            longest,
            end: now + longest,
            latest: now + MOST_WILDCARD_WAIT.saturating_sub(sooner),
        }
    }

    /// Moves the end, because there is progress. A wait that is over does not begin again. Returns whether it goes on.
    fn go_on(&mut self, now: Instant) -> bool {
        let goes_on = self.end > now;
        if goes_on {
            self.end = self.latest.min(now + self.longest);
        }
        goes_on
    }
}

impl Unrecorded {
    /// Takes the namespace of the present candidate for a name that nobody holds; `None` if there is none any more, for
    /// example because the name is recorded. Returns the wildcards that were held back for names inside them and have no
    /// such name to wait for now.
    pub(super) fn change(
        &mut self,
        key: &ClaimKey,
        namespace: Option<&Arc<str>>,
        now: Instant,
    ) -> Vec<ClaimKey> {
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
                gathered: now + WILDCARD_GATHERING,
                wait: None,
            };
            wanted.insert(names, of);
        }
        let around = wanted.above(names).map(|(around, _)| around);
        let around: Vec<HostPattern> = around.filter(|of| of.is_wildcard()).cloned().collect();
        let mut released = Vec::new();
        let mut inner_goes_on = false;
        // The innermost wildcard comes first.
        for wildcard in around {
            let Some(of) = wanted.get_mut(&wildcard) else {
                continue;
            };
            let was_other = former.as_ref().is_some_and(|it| *it != of.namespace);
            let is_other = namespace.is_some_and(|it| *it != of.namespace);
            of.others = of.others + usize::from(is_other) - usize::from(was_other);
            let Some(wait) = &mut of.wait else {
                continue;
            };
            if of.others == 0 {
                if was_other {
                    released.push(ClaimKey::names(&key.gateway, &wildcard));
                }
            } else if inner_goes_on || (was_other && !is_other) {
                // A move of the end of an inner wildcard also moves those of the wildcards around it, even if the name is of
                // their own namespace. Otherwise they could be written before the inner one.
                inner_goes_on |= wait.go_on(now);
            }
        }
        if wanted.is_empty() {
            self.0.remove(&key.gateway);
        }
        released
    }

    /// Returns until when the first claim to a name is held back; `None` if it may be written now.
    ///
    /// The wait for names inside a wildcard begins when its claim is held back for them for the first time. Its end may move,
    /// so the time that is returned is no promise: whoever asks then may get a later one.
    pub(super) fn hold_back(&mut self, key: &ClaimKey, now: Instant) -> Option<Instant> {
        let Claimed::Names(names) = &key.of else {
            return None;
        };
        let HostPattern::Wildcard(suffix) = names else {
            return None;
        };
        let of = self.0.get_mut(&key.gateway)?.get_mut(names)?;
        // A wildcard of the Gateway's own namespace closes nothing.
        if *of.namespace == *key.gateway.namespace {
            return None;
        }
        let end = if of.others == 0 {
            of.gathered
        } else {
            of.wait.get_or_insert_with(|| Wait::begin(suffix, now)).end
        };
        (end > now).then_some(end)
    }
}
