//! The grace: which names their holders let go of, when each is free, and how many of one tenant may wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;
use vestibule_model::key::ObjectName;

use super::GRACED;

/// A Gateway and the namespace of a tenant.
type Tenant = (ObjectName, Arc<str>);

/// See the module above.
#[derive(Debug)]
pub(super) struct Graces {
    length: Duration,
    /// When it ends, and for whom.
    ends: BTreeMap<ClaimKey, (Instant, Arc<str>)>,
    queue: BTreeSet<(Instant, ClaimKey)>,
    shares: BTreeMap<Tenant, Share>,
}

/// What a tenant has.
#[derive(Debug, Default)]
struct Share {
    held: usize,
    /// Those of them that it let go of, the one that goes first in front.
    left: BTreeSet<(Instant, ClaimKey)>,
    most: Most,
}

impl Share {
    fn kept(&self) -> usize {
        self.held.saturating_sub(self.left.len())
    }
}

/// The most that was kept at one time, within the last grace at least and the last two at most.
#[derive(Debug, Default)]
struct Most {
    since: Option<Instant>,
    now: usize,
    before: usize,
}

impl Most {
    /// Takes how much is kept, and how much was until now.
    fn note(&mut self, (was, is): (usize, usize), at: Instant, length: Duration) {
        let age = self.since.map(|since| at.saturating_duration_since(since));
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

    /// A name is held from now on.
    pub(super) fn hold(&mut self, key: &ClaimKey, namespace: &Arc<str>, now: Instant) {
        self.change(key, namespace, now, |share| share.held += 1);
    }

    /// A name is held no longer; its grace is over, if it was in one.
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

    /// Its holder let go of a name at `since`. Returns the one that has to be free at once in return, if the tenant
    /// has more in grace than it may: the one that it let go of first.
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
        // Far away is as good as never.
        let at = since.checked_add(self.length).unwrap_or(now);
        self.ends.insert(key.clone(), (at, namespace.clone()));
        self.queue.insert((at, key.clone()));
        let share = self.change(key, namespace, now, |share| {
            share.left.insert((at, key.clone()));
        });
        let allowed = share.most.get().max(GRACED);
        let (_, first) = share.left.first().filter(|_| share.left.len() > allowed)?;
        Some(first.clone())
    }

    /// Its holder is back, or it is free.
    pub(super) fn end(&mut self, key: &ClaimKey, now: Instant) {
        if let Some((at, namespace)) = self.ends.remove(key) {
            let entry = (at, key.clone());
            self.queue.remove(&entry);
            self.change(key, &namespace, now, |share| {
                share.left.remove(&entry);
            });
        }
    }

    /// Ends a grace that is over.
    pub(super) fn end_next(&mut self, now: Instant) -> Option<ClaimKey> {
        let (at, key) = self.queue.first()?;
        let key = (*at <= now).then(|| key.clone())?;
        self.end(&key, now);
        Some(key)
    }

    /// Every grace begins anew, and as much as is held may be in it.
    pub(super) fn restart(&mut self, now: Instant) {
        self.ends.clear();
        self.queue.clear();
        for share in self.shares.values_mut() {
            share.left.clear();
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

    /// How many names are in grace.
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
