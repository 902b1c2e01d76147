//! How many events are written: some at once, few in the long run, and none twice in a short time.
//! Time is an input.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::ObjectEvent;

/// Events that may be written at once.
const BURST: u32 = 50;
/// Time in which one more may be.
const REFILL: Duration = Duration::from_secs(1);
/// The same is not said again within this time.
const SAME: Duration = Duration::from_mins(10);
/// What was said is remembered up to this number.
const REMEMBERED: usize = 1024;

/// What may be written now.
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

    /// Whether this may be written, and if so, that it is.
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
        // Rest is worth no more than a burst.
        let taken = (0..2 * BURST)
            .filter(|index| rate.takes(&object_event(&format!("b{index}")), start + 10 * SAME))
            .count();
        assert_eq!(taken, BURST as usize);
    }
}
