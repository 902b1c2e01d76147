//! Reports statuses whose lists have no room for our entries, because entries of other controllers fill them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{debug, warn};
use vestibule_model::key::ObjectKey;

use super::super::failure::FailureLines;

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
        left_out: usize,
    ) -> Option<String> {
        if left_out == 0 {
            self.forget(key);
            return None;
        }
        if self.reported.insert(key.clone(), generation) == Some(generation) {
            return None;
        }
        let what = format!(
            "The status has no room for {left_out} of the entries of Vestibule, because its list is full. Remove the \
             entries of controllers that are gone: kubectl edit {} {} --namespace {} --subresource=status",
            key.kind.as_str().to_lowercase(),
            key.name.name,
            key.name.namespace,
        );
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

    #[test]
    fn a_full_status_is_reported_once_for_each_generation() {
        let mut full = FullStatuses::new();
        let key = ObjectKey::new(Kind::HttpRoute, "a", "web");
        assert_eq!(full.note(&key, 1, 0), None);
        let note = full.note(&key, 1, 2).expect("a report");
        assert!(note.contains("no room for 2 of the entries"), "{note}");
        assert!(
            note.ends_with("kubectl edit httproute web --namespace a --subresource=status"),
            "{note}"
        );
        assert_eq!(full.note(&key, 1, 2), None);
        assert!(full.note(&key, 2, 2).is_some());
        // There is room now, and the list fills up again.
        assert_eq!(full.note(&key, 2, 0), None);
        assert!(full.reported.is_empty());
        assert!(full.note(&key, 2, 1).is_some());
        full.forget(&key);
        assert!(full.reported.is_empty());
    }
}
