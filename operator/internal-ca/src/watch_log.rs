//! Logs the failures of a watch, each series of equal failures once.

use kube::runtime::watcher::{self, Event};
use tracing::{debug, info, warn};

/// Remembers what the log already says about the watch of one object.
#[derive(Debug)]
pub(crate) struct WatchLog {
    /// Kind and name of the object.
    object: String,
    /// The failure that was logged last, until the watch works again.
    failure: Option<String>,
}

impl WatchLog {
    /// A watch that has not failed yet.
    pub(crate) fn new(object: String) -> Self {
        Self {
            object,
            failure: None,
        }
    }

    /// Returns the event in the next item of the watch. A failure has none: it is logged unless the log says it already.
    pub(crate) fn event<K>(&mut self, item: Result<Event<K>, watcher::Error>) -> Option<Event<K>> {
        match item {
            Ok(event) => {
                if self.works(&event) {
                    info!(object = %self.object, "the operator watches this object again");
                }
                Some(event)
            }
            // This is part of normal operation.
            Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                debug!(object = %self.object, "the watch of an object is too far behind; the operator reads it again");
                None
            }
            Err(error) => {
                let error = error.to_string();
                if self.fails(&error) {
                    warn!(object = %self.object, error, "the operator cannot watch this object of its certificates; it tries again");
                }
                None
            }
        }
    }

    /// Whether the event ends a series of failures.
    fn works<K>(&mut self, event: &Event<K>) -> bool {
        // The start of a list is no success yet.
        !matches!(event, Event::Init) && self.failure.take().is_some()
    }

    /// Whether the failure begins a series.
    fn fails(&mut self, error: &str) -> bool {
        let begins = self.failure.as_deref() != Some(error);
        self.failure = Some(error.to_owned());
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_failures_in_a_row_are_logged_once() {
        let mut log = WatchLog::new("Secret operator-tls".into());
        let (start, list) = (Event::<()>::Init, Event::<()>::InitDone);
        assert!(!log.works(&list));
        assert!(log.fails("forbidden"));
        assert!(!log.works(&start));
        assert!(!log.fails("forbidden"));
        assert!(log.fails("no connection"));
        assert!(log.works(&list));
        assert!(!log.works(&list));
        assert!(log.fails("no connection"));
    }

    #[test]
    fn a_failure_has_no_event() {
        let mut log = WatchLog::new("Secret operator-tls".into());
        assert!(
            log.event::<()>(Err(watcher::Error::NoResourceVersion))
                .is_none()
        );
        assert!(matches!(
            log.event(Ok(Event::Apply(()))),
            Some(Event::Apply(()))
        ));
    }
}
