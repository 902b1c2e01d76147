//! Decides which lines about the objects of a namespace go into the log: each finding once for its object, and no more
//! lines of a namespace than its budget allows. The log is the admin's, and a tenant decides how many findings there are.
//! Time is an input.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;

use crate::token_bucket::Buckets;

/// Largest number of lines of a namespace at once.
const BURST: u32 = 100;
/// Time after which one more line of the namespace may be logged.
const EARNS: Duration = Duration::from_secs(1);
/// Wait before the log says how many lines were left out.
const NOTICE: Duration = Duration::from_secs(10);

/// The findings that were logged about objects, and the budgets of their namespaces.
#[derive(Debug)]
pub(super) struct FindingsLog {
    hasher: RandomState,
    /// The hashes of the findings that each object had when it was looked at last, sorted. Objects without findings are
    /// not in the map.
    known: BTreeMap<ObjectKey, Box<[u64]>>,
    budgets: Buckets<Arc<str>>,
    left_out: BTreeMap<Arc<str>, u64>,
    notice_at: Option<Instant>,
}

impl FindingsLog {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            known: BTreeMap::new(),
            budgets: Buckets::new(BURST, EARNS),
            left_out: BTreeMap::new(),
            notice_at: None,
        }
    }

    /// Takes all findings about an object, and returns those to log: what the object did not have before, as far as the
    /// budget of its namespace allows. A finding for which nothing is left is not logged later either. Warnings are
    /// outside the budget, because the log has them only at level debug.
    pub(super) fn news<'a>(
        &mut self,
        key: &ObjectKey,
        findings: &'a [Finding],
        now: Instant,
    ) -> Vec<&'a Finding> {
        let before = self.known.remove(key).unwrap_or_default();
        let mut hashes = Vec::with_capacity(findings.len());
        let mut news = Vec::new();
        for finding in findings {
            let hash = self.hash(finding);
            hashes.push(hash);
            if before.binary_search(&hash).is_err()
                && (!finding.refuses() || self.admits(&key.name.namespace, now))
            {
                news.push(finding);
            }
        }
        if !hashes.is_empty() {
            hashes.sort_unstable();
            self.known.insert(key.clone(), hashes.into());
        }
        news
    }

    /// Returns whether one more line about an object of `namespace` may be logged, and counts it.
    pub(super) fn admits(&mut self, namespace: &Arc<str>, now: Instant) -> bool {
        let admitted = self.budgets.take(namespace, now);
        if !admitted {
            *self.left_out.entry(namespace.clone()).or_default() += 1;
            self.notice_at.get_or_insert(now + NOTICE);
        }
        admitted
    }

    /// Returns how many lines of each namespace were left out since the last notice, if it is time to say so.
    pub(super) fn notices(&mut self, now: Instant) -> BTreeMap<Arc<str>, u64> {
        if self.notice_at.is_none_or(|at| at > now) {
            return BTreeMap::new();
        }
        self.notice_at = None;
        std::mem::take(&mut self.left_out)
    }

    /// Returns the time at which [`Self::notices`] has something to return.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.notice_at
    }

    fn hash(&self, finding: &Finding) -> u64 {
        let Finding {
            severity: _,
            origin: _,
            reason,
            field,
            message,
            action,
        } = finding;
        self.hasher
            .hash_one((finding.refuses(), reason, field, message, action))
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::condition::Reason;
    use vestibule_model::key::Kind;

    use super::*;

    fn findings(count: usize) -> Vec<Finding> {
        let finding =
            |n| Finding::refused(Reason::InvalidValue, format!("spec[{n}]"), "is bad", "");
        (0..count).map(finding).collect()
    }

    fn set(namespace: &str) -> ObjectKey {
        ObjectKey::new(Kind::ListenerSet, namespace, "set")
    }

    #[test]
    fn a_finding_is_logged_once_until_it_or_its_object_has_gone() {
        let (mut log, now) = (FindingsLog::new(), Instant::now());
        let all = findings(3);
        assert_eq!(log.news(&set("a"), &all[..2], now).len(), 2);
        assert_eq!(log.news(&set("a"), &all[..2], now), [] as [&Finding; 0]);
        assert_eq!(log.news(&set("a"), &all, now), [&all[2]]);
        // Another object has findings of its own.
        assert_eq!(log.news(&set("b"), &all, now).len(), 3);
        assert_eq!(log.news(&set("a"), &all[1..], now).len(), 0);
        assert_eq!(log.news(&set("a"), &all, now), [&all[0]]);
        log.news(&set("a"), &[], now);
        log.news(&set("b"), &[], now);
        assert!(log.known.is_empty(), "nothing is kept of what is gone");
        assert_eq!(log.news(&set("a"), &all, now).len(), 3);
    }

    #[test]
    fn a_namespace_has_a_budget_and_the_log_says_how_much_was_left_out() {
        let (mut log, now) = (FindingsLog::new(), Instant::now());
        let all = findings(1000);
        let burst = usize::try_from(BURST).expect("a small number");
        assert_eq!(log.news(&set("a"), &all, now).len(), burst);
        assert_eq!(log.news(&set("b"), &all[..5], now).len(), 5);
        assert_eq!(log.deadline(), Some(now + NOTICE));
        assert!(log.notices(now).is_empty());
        assert!(log.admits(&"a".into(), now + EARNS));
        assert!(!log.admits(&"a".into(), now + EARNS));
        let notices = log.notices(now + NOTICE);
        assert_eq!(notices, BTreeMap::from([("a".into(), 901)]));
        assert_eq!(log.deadline(), None);
        // A finding that was left out is known all the same, so it is neither logged nor counted again.
        assert_eq!(log.news(&set("a"), &all, now + NOTICE).len(), 0);
        assert_eq!(log.deadline(), None);
        let warning = Finding::warning(Reason::InvalidValue, "spec", "is odd", "");
        for namespace in ["a", "c"] {
            let all = vec![warning.clone(); 1000];
            assert_eq!(log.news(&set(namespace), &all, now + NOTICE).len(), 1000);
        }
        assert_eq!(log.deadline(), None);
    }
}
