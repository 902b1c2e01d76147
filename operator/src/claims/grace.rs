//! Keeps the grace of names: a name that its holder has let go of stays with the holder for a while. This module
//! knows when each of them becomes free, and limits how many names of one tenant may wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;
use vestibule_model::key::ObjectName;

use super::GRACED;

/// A Gateway and the namespace of a tenant.
type Tenant = (ObjectName, Arc<str>);

/// The names in grace, and how many names each tenant has.
#[derive(Debug)]
pub(super) struct Graces {
    length: Duration,
    /// The end of the grace of each name, and the namespace that it is kept for.
    ends: BTreeMap<ClaimKey, (Instant, Arc<str>)>,
    queue: BTreeSet<(Instant, ClaimKey)>,
    shares: BTreeMap<Tenant, Share>,
}

/// The names of one tenant.
#[derive(Debug, Default)]
struct Share {
    held: usize,
    /// The names among those held that the tenant has let go of, ordered by the end of their grace.
    left: BTreeSet<(Instant, ClaimKey)>,
    most: Most,
}

impl Share {
    fn kept(&self) -> usize {
        self.held.saturating_sub(self.left.len())
    }
}

/// The largest number of names in use at one time. It looks back over at least the last grace and at most the last
/// two. Two numbers suffice for that: one for the current period, and one for the period before.
#[derive(Debug, Default)]
struct Most {
    since: Option<Instant>,
    now: usize,
    before: usize,
}

impl Most {
    /// Takes the number of names in use now (`is`), and the number until now (`was`).
    fn note(&mut self, (was, is): (usize, usize), at: Instant, length: Duration) {
        let age = self.since.map(|since| at.saturating_duration_since(since));
        // A period ends at the first change after its length. Until that change, `was` names were in use, so the next period
        // begins with them. If two lengths have passed without such a change, `was` is all that counts.
        match age {
            Some(age) if age < length => {}
            Some(age) if age < length.saturating_mul(2) => {
                self.before = self.now;
                self.now = was;
                self.since = Some(at);
            }
            _ => {
                self.before = was;
                self.now = was;
                self.since = Some(at);
            }
        }
        self.now = self.now.max(is);
    }

    fn get(&self) -> usize {
        self.now.max(self.before)
    }
}

impl Graces {
    pub(super) fn new(length: Duration) -> Self {
        Self {
            length,
            ends: BTreeMap::new(),
            queue: BTreeSet::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Notes that a name is held from now on.
    pub(super) fn hold(&mut self, key: &ClaimKey, namespace: &Arc<str>, now: Instant) {
        self.change(key, namespace, now, |share| share.held += 1);
    }

    /// Notes that a name is no longer held. This ends its grace, if it was in grace.
    pub(super) fn forget(&mut self, key: &ClaimKey, namespace: &Arc<str>, now: Instant) {
        self.end(key, now);
        self.change(key, namespace, now, |share| {
            share.held = share.held.saturating_sub(1);
        });
        let tenant = (key.gateway.clone(), namespace.clone());
        if self.shares.get(&tenant).is_some_and(|s| s.held == 0) {
            self.shares.remove(&tenant);
        }
    }

    /// Begins the grace of a name that its holder let go of at `since`. If the tenant then has more names in grace than
    /// allowed, returns the name whose grace ends first; that one has to become free at once.
    pub(super) fn begin(
        &mut self,
        key: &ClaimKey,
        namespace: &Arc<str>,
        since: Instant,
        now: Instant,
    ) -> Option<ClaimKey> {
        if self.ends.contains_key(key) {
            return None;
        }
        // The sum overflows only for a time that no process lives to see.
        let at = since.checked_add(self.length).unwrap_or(now);
        self.ends.insert(key.clone(), (at, namespace.clone()));
        self.queue.insert((at, key.clone()));
        let share = self.change(key, namespace, now, |share| {
            share.left.insert((at, key.clone()));
        });
        // A tenant that lets go of everything at once, as in one bad edit, keeps all that it had in use. The bound is
        // for names that it never used at one time.
        let allowed = share.most.get().max(GRACED);
        let (_, first) = share.left.first().filter(|_| share.left.len() > allowed)?;
        Some(first.clone())
    }

    /// Ends the grace of a name, because its holder uses it again or because it is free.
    pub(super) fn end(&mut self, key: &ClaimKey, now: Instant) {
        if let Some((at, namespace)) = self.ends.remove(key) {
            let entry = (at, key.clone());
            self.queue.remove(&entry);
            self.change(key, &namespace, now, |share| {
                share.left.remove(&entry);
            });
        }
    }

    /// Ends one grace whose time is over, and returns its name. `None` if there is no more.
    pub(super) fn end_next(&mut self, now: Instant) -> Option<ClaimKey> {
        let (at, key) = self.queue.first()?;
        let key = (*at <= now).then(|| key.clone())?;
        self.end(&key, now);
        Some(key)
    }

    /// Begins all over: no name is in grace, and each tenant may have as many names in grace as it holds now.
    pub(super) fn restart(&mut self, now: Instant) {
        self.ends.clear();
        self.queue.clear();
        for share in self.shares.values_mut() {
            share.left.clear();
            // Nothing is known of the time before, so all that the tenant holds now counts as used until now.
            share.most = Most {
                since: Some(now),
                now: share.held,
                before: share.held,
            };
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Returns the number of names in grace.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn change(
        &mut self,
        key: &ClaimKey,
        namespace: &Arc<str>,
        now: Instant,
        change: impl FnOnce(&mut Share),
    ) -> &Share {
        let tenant = (key.gateway.clone(), namespace.clone());
        let share = self.shares.entry(tenant).or_default();
        let was = share.kept();
        change(share);
        let kept = (was, share.kept());
        share.most.note(kept, now, self.length);
        share
    }
}
