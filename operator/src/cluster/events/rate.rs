//! Limits how many events are written. Some may come at once, but few in the long run, and the same event does not come
//! twice in a short time. Time is an input.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::ObjectEvent;

/// Largest number of events that may be written at once.
const BURST: u32 = 50;
/// Time after which one more event may be written.
const REFILL: Duration = Duration::from_secs(1);
/// The same event is not written again within this time.
const SAME: Duration = Duration::from_mins(10);
/// Largest number of events that are remembered.
const REMEMBERED: usize = 1024;

/// Decides which events may be written now.
#[derive(Debug)]
pub(super) struct Rate {
    left: u32,
    filled: Instant,
    said: VecDeque<(Instant, ObjectEvent)>,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            filled: now,
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
        self.fill(now);
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        self.said.push_back((now, object_event.clone()));
        true
    }

    fn fill(&mut self, now: Instant) {
        while self.left < BURST && now.duration_since(self.filled) >= REFILL {
            self.left += 1;
            self.filled += REFILL;
        }
        if self.left == BURST {
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::{Kind, ObjectKey, ObjectName};

    use super::*;

    fn object_event(note: &str) -> ObjectEvent {
        ObjectEvent {
            about: ObjectKey {
                kind: Kind::ListenerSet,
                name: ObjectName::new("a", "set"),
            },
            uid: "u".into(),
            warning: false,
            reason: "CertificateIssued",
            action: "Issue",
            note: note.to_owned(),
        }
    }

    #[test]
    fn a_burst_then_one_per_second_and_nothing_twice() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        for index in 0..BURST {
            assert!(rate.takes(&object_event(&index.to_string()), start));
        }
        assert!(!rate.takes(&object_event("one more"), start));
        let later = start + REFILL;
        assert!(!rate.takes(&object_event("0"), later), "it was said");
        assert!(rate.takes(&object_event("one more"), later));
        assert!(!rate.takes(&object_event("and another"), later));
        assert!(rate.takes(&object_event("0"), start + SAME), "long ago");
        // After any pause, at most a burst is allowed.
        let taken = (0..2 * BURST)
            .filter(|index| rate.takes(&object_event(&format!("b{index}")), start + 10 * SAME))
            .count();
        assert_eq!(taken, BURST as usize);
    }
}
