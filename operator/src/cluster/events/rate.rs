//! Limits how many events are written: of each namespace, and in all. Some may come at once, but few in the long run, and
//! the same event does not come twice in a short time. Time is an input.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ObjectEvent;
use crate::token_bucket::Buckets;

/// Largest number of events of a namespace that may be written at once.
const BURST: u32 = 20;
/// Time after which one more event of the namespace may be written.
const EARNS: Duration = Duration::from_secs(10);
/// Largest number of events that may be written at once.
const ALL_BURST: u32 = 200;
/// Time after which one more event may be written.
const ALL_EARN: Duration = Duration::from_millis(200);
/// The same event is not written again within this time.
const SAME: Duration = Duration::from_mins(10);
/// Largest number of events that are remembered.
const REMEMBERED: usize = 1024;

/// Decides which events may be written now.
#[derive(Debug)]
pub(super) struct Rate {
    namespaces: Buckets<Arc<str>>,
    all: Buckets<()>,
    said: VecDeque<(Instant, ObjectEvent)>,
}

impl Rate {
    pub(super) fn new() -> Self {
        Self {
            namespaces: Buckets::new(BURST, EARNS),
            all: Buckets::new(ALL_BURST, ALL_EARN),
            said: VecDeque::new(),
        }
    }

    /// Returns whether an event may be written, and counts it if so.
    pub(super) fn takes(&mut self, object_event: &ObjectEvent, now: Instant) -> bool {
        while let Some((at, _)) = self.said.front()
            && (now.duration_since(*at) >= SAME || self.said.len() > REMEMBERED)
        {
            self.said.pop_front();
        }
        if self.said.iter().any(|(_, said)| said == object_event) {
            return false;
        }
        let namespace = &object_event.about.name.namespace;
        let takes = self.namespaces.take(namespace, now) && self.all.take(&(), now);
        if takes {
            self.said.push_back((now, object_event.clone()));
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::{Kind, ObjectKey};

    use super::*;

    fn object_event(namespace: &str, note: &str) -> ObjectEvent {
        ObjectEvent {
            about: ObjectKey::new(Kind::ListenerSet, namespace, "set"),
            uid: "u".into(),
            warning: false,
            reason: "CertificateIssued",
            action: "Issue",
            note: note.to_owned(),
        }
    }

    #[test]
    fn a_burst_then_one_after_each_pause_and_nothing_twice() {
        let start = Instant::now();
        let mut rate = Rate::new();
        for index in 0..BURST {
            assert!(rate.takes(&object_event("a", &index.to_string()), start));
        }
        assert!(!rate.takes(&object_event("a", "one more"), start));
        let later = start + EARNS;
        assert!(!rate.takes(&object_event("a", "0"), later), "it was said");
        assert!(rate.takes(&object_event("a", "one more"), later));
        assert!(!rate.takes(&object_event("a", "and another"), later));
        assert!(
            rate.takes(&object_event("a", "0"), start + SAME),
            "long ago"
        );
        // After any pause, at most a burst is allowed.
        let taken = (0..2 * BURST)
            .filter(|index| rate.takes(&object_event("a", &format!("b{index}")), start + 10 * SAME))
            .count();
        assert_eq!(taken, BURST as usize);
    }

    #[test]
    fn a_namespace_takes_no_event_of_another_one() {
        let start = Instant::now();
        let mut rate = Rate::new();
        let takes = |rate: &mut Rate, namespace: &str| {
            let notes =
                (0..10 * ALL_BURST).map(|index| object_event(namespace, &index.to_string()));
            notes.filter(|event| rate.takes(event, start)).count()
        };
        assert_eq!(takes(&mut rate, "loud"), BURST as usize);
        assert!(rate.takes(&object_event("quiet", "hello"), start));
        // Many namespaces together are bounded, because the API server takes all of their events.
        let all = (0..100)
            .map(|n| takes(&mut rate, &format!("n{n}")))
            .sum::<usize>();
        assert_eq!(all, (ALL_BURST - BURST - 1) as usize);
    }
}
