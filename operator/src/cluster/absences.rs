//! Collects Secrets and ConfigMaps that do not exist, and tells translation in batches.
//!
//! They wait for a batch, because only the statuses of the objects that refer to them change, and each batch costs as much
//! as all objects that refer to one of them. A tenant may have thousands of references in objects that each
//! cost much. So the wait for the next batch of a namespace doubles as long as there is always one more. Time is an input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::key::ObjectKey;

/// Wait for the first batch of a namespace.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait for a batch.
const LONGEST: Duration = Duration::from_secs(2);
/// Time without a batch of the namespace after which its next one is a first one again.
const QUIET: Duration = Duration::from_secs(10);

/// The sources that do not exist, and when translation gets to know of them.
#[derive(Debug, Default)]
pub(super) struct Absences {
    due: BTreeMap<ObjectKey, Instant>,
    in_order: BTreeSet<(Instant, ObjectKey)>,
    /// The next batch of each namespace, or its last one.
    batches: BTreeMap<Arc<str>, Batch>,
}

#[derive(Debug)]
struct Batch {
    at: Instant,
    wait: Duration,
}

impl Absences {
    /// Takes a source that does not exist, and the namespaces of the objects that refer to it. The batch that comes first
    /// has it, so nobody waits for it only because somebody else has many.
    pub(super) fn insert(
        &mut self,
        source: &ObjectKey,
        readers: impl IntoIterator<Item = Arc<str>>,
        now: Instant,
    ) {
        let batches = readers
            .into_iter()
            .map(|reader| self.next_batch(reader, now));
        let at = batches.min().unwrap_or(now);
        self.remove(source);
        self.due.insert(source.clone(), at);
        self.in_order.insert((at, source.clone()));
    }

    fn next_batch(&mut self, namespace: Arc<str>, now: Instant) -> Instant {
        let first = Batch {
            at: now + FIRST,
            wait: FIRST,
        };
        let batch = self.batches.entry(namespace).or_insert(first);
        if batch.at <= now {
            let quiet = now.duration_since(batch.at) >= QUIET;
            batch.wait = if quiet {
                FIRST
            } else {
                LONGEST.min(batch.wait * 2)
            };
            batch.at = now + batch.wait;
        }
        batch.at
    }

    /// Removes a source that nothing refers to any more.
    pub(super) fn remove(&mut self, source: &ObjectKey) {
        if let Some(at) = self.due.remove(source) {
            self.in_order.remove(&(at, source.clone()));
        }
    }

    /// Removes and returns the sources that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<ObjectKey> {
        let mut due = Vec::new();
        while self.deadline().is_some_and(|at| at <= now)
            && let Some((_, source)) = self.in_order.pop_first()
        {
            self.due.remove(&source);
            due.push(source);
        }
        if !due.is_empty() {
            self.batches.retain(|_, batch| batch.at + QUIET > now);
        }
        due
    }

    /// Returns the time at which [`Self::take_due`] has something to return.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::Kind;

    use super::*;

    fn secret(n: usize) -> ObjectKey {
        ObjectKey::new(Kind::Secret, "aaa", format!("s{n}"))
    }

    #[test]
    fn absences_referred_to_by_one_namespace_take_few_batches_and_delay_no_other() {
        let start = Instant::now();
        let (flood, neighbour): (Arc<str>, Arc<str>) = ("aaa".into(), "zzz".into());
        let mut absences = Absences::default();
        let (mut batches, mut taken) = (0, 0);
        // One answer in 10 ms, for 20 s.
        let step = Duration::from_millis(10);
        let mut now = start;
        for n in 0..2000 {
            now = start + step * n;
            let n = usize::try_from(n).expect("a small number");
            absences.insert(&secret(n), [flood.clone()], now);
            let due = absences.take_due(now);
            batches += usize::from(!due.is_empty());
            taken += due.len();
        }
        assert!(batches <= 5 + 9, "{batches} batches");
        assert!(taken >= 1700, "{taken} of them");
        // A source that others use too comes with their first batch.
        absences.insert(&secret(5000), [flood.clone(), neighbour], now);
        assert!(absences.take_due(now + FIRST).contains(&secret(5000)));
        let last = absences.deadline().expect("one more batch");
        assert!(last <= now + LONGEST);
        absences.take_due(last);
        assert_eq!(absences.deadline(), None);
        // After a pause, the first one comes soon again, and nothing is kept meanwhile.
        absences.insert(&secret(1), [flood], last + QUIET);
        assert_eq!(absences.deadline(), Some(last + QUIET + FIRST));
        absences.remove(&secret(1));
        assert_eq!(absences.deadline(), None);
        assert!(absences.due.is_empty());
    }
}
