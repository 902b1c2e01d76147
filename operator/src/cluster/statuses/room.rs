//! Reports statuses whose lists have no room for all of our entries. Mostly, entries of other controllers fill them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{debug, warn};
use vestibule_model::key::ObjectKey;

use super::super::failure::FailureLines;
use super::plan::LeftOut;

/// The objects whose statuses lack entries of ours, so that each is reported once for each of its generations.
#[derive(Debug)]
pub(in super::super) struct FullStatuses {
    /// The generation of each such object that was reported last.
    reported: BTreeMap<ObjectKey, i64>,
    /// The lines of each namespace.
    lines: FailureLines<Arc<str>>,
}

impl FullStatuses {
    pub(in super::super) fn new() -> Self {
        Self {
            reported: BTreeMap::new(),
            lines: FailureLines::new(),
        }
    }

    /// Takes for how many of our entries the status of an object has no room. If that is news, it goes to the log, and
    /// the text for an event is returned.
    pub(in super::super) fn note(
        &mut self,
        key: &ObjectKey,
        generation: i64,
        left_out: LeftOut,
    ) -> Option<String> {
        let LeftOut { ours, foreign, all } = left_out;
        if ours == 0 {
            self.forget(key);
            return None;
        }
        if self.reported.insert(key.clone(), generation) == Some(generation) {
            return None;
        }
        let what = if foreign == 0 {
            format!(
                "The status has no room for {ours} of the entries of Vestibule, because the API allows no more than \
                 {all} in its list, and all of these are Vestibule's. Nothing else depends on the entries that are left out"
            )
        } else {
            format!(
                "The status has no room for {ours} of the entries of Vestibule, because its list is full. {foreign} of \
                 its {all} entries are of other controllers. Remove the entries of controllers that are gone: kubectl \
                 edit {} {} --namespace {} --subresource=status",
                key.kind.as_str().to_lowercase(),
                key.name.name,
                key.name.namespace,
            )
        };
        if self.lines.admit(&key.name.namespace) {
            warn!(object = %key, "{what}");
        } else {
            debug!(object = %key, "{what}");
        }
        Some(what)
    }

    /// Forgets an object that is gone.
    pub(in super::super) fn forget(&mut self, key: &ObjectKey) {
        self.reported.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::Kind;

    use super::*;

    fn left_out(ours: usize, foreign: usize) -> LeftOut {
        LeftOut {
            ours,
            foreign,
            all: 16,
        }
    }

    #[test]
    fn a_full_status_is_reported_once_for_each_generation() {
        let mut full = FullStatuses::new();
        let key = ObjectKey::new(Kind::HttpRoute, "a", "web");
        assert_eq!(full.note(&key, 1, left_out(0, 3)), None);
        let note = full.note(&key, 1, left_out(2, 3)).expect("a report");
        assert!(note.contains("no room for 2 of the entries"), "{note}");
        assert!(note.contains("3 of its 16 entries"), "{note}");
        assert!(
            note.ends_with("kubectl edit httproute web --namespace a --subresource=status"),
            "{note}"
        );
        assert_eq!(full.note(&key, 1, left_out(2, 3)), None);
        assert!(full.note(&key, 2, left_out(2, 3)).is_some());
        // There is room now, and the list fills up again.
        assert_eq!(full.note(&key, 2, left_out(0, 3)), None);
        assert!(full.reported.is_empty());
        assert!(full.note(&key, 2, left_out(1, 3)).is_some());
        full.forget(&key);
        assert!(full.reported.is_empty());
    }

    #[test]
    fn status_full_of_our_own_entries_tells_nobody_to_remove_any() {
        let mut full = FullStatuses::new();
        let key = ObjectKey::new(Kind::BackendTlsPolicy, "a", "web");
        let note = full.note(&key, 1, left_out(2, 0)).expect("a report");
        assert!(note.contains("no more than 16 in its list"), "{note}");
        assert!(!note.contains("kubectl"), "{note}");
    }
}
