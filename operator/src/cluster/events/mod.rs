//! Writes Kubernetes events at objects of tenants, about their certificates, about objects that cannot be read, and about
//! statuses without room. Only the leader writes them. Their length and their rate are limited, and nothing waits for them.

mod rate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::debug;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;

use super::lease::elector::Role;
use super::text;
use rate::Rate;

/// Largest number of events that wait. Further ones are dropped.
const WAITING: usize = 256;
/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest note, in bytes. The API allows 1 kB.
const MAX_NOTE: usize = 900;

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The object.
    pub about: ObjectKey,
    /// Its UID.
    pub uid: Arc<str>,
    /// Whether it is a warning, so that somebody should look at it.
    pub warning: bool,
    /// The reason in one word, such as `CertificateIssued`.
    pub reason: &'static str,
    /// The action in one word.
    pub action: &'static str,
    /// The message for people.
    pub note: String,
}

/// The events that findings about an object lead to. Statuses say the rest. There is no status where an object cannot be
/// read, because its controller is not known then, and none of a listener whose certificate nobody requests.
pub(super) fn of_findings(
    key: &ObjectKey,
    object: &Object,
    findings: &[Finding],
) -> Vec<ObjectEvent> {
    let event = |finding: &Finding, action, note| ObjectEvent {
        about: key.clone(),
        uid: uid(object),
        warning: true,
        reason: finding.reason.as_str(),
        action,
        note,
    };
    let event_of = |finding: &Finding| match (object, finding.reason) {
        (Object::Unreadable(..), _) => {
            let note = format!("{finding}. Until then, the status is about an earlier version");
            Some(event(finding, "Read", note))
        }
        (Object::Gateway(_) | Object::ListenerSet(_), Reason::ContradictingIssuers) => {
            Some(event(finding, "ChooseIssuer", finding.to_string()))
        }
        _ => None,
    };
    findings.iter().filter_map(event_of).collect()
}

/// The event for an object whose status has no room for our entries. `note` says so, and what to do.
pub(super) fn of_full_status(key: &ObjectKey, object: &Object, note: String) -> ObjectEvent {
    ObjectEvent {
        about: key.clone(),
        uid: uid(object),
        warning: true,
        reason: "StatusFull",
        action: "WriteStatus",
        note,
    }
}

fn uid(object: &Object) -> Arc<str> {
    let meta = object.meta();
    meta.map(|meta| meta.uid.clone()).unwrap_or_default()
}

/// Takes events of Kubernetes to be written. Clones write to the same queue.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<ObjectEvent>,
    rate: Arc<Mutex<Rate>>,
}

impl EventRecorder {
    /// Returns a recorder, and the queue for [`run`].
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<ObjectEvent>) {
        let (queue, receiver) = mpsc::channel(WAITING);
        let rate = Arc::new(Mutex::new(Rate::new()));
        (Self { queue, rate }, receiver)
    }

    /// Records an event. It is dropped if its namespace had too many lately, or if too many wait already. The rate is
    /// checked here and not when the event is written, so that a namespace cannot fill the queue.
    pub fn record(&self, object_event: ObjectEvent) {
        if self.rate.lock().takes(&object_event, Instant::now()) {
            let _ = self.queue.try_send(object_event);
        }
    }
}

/// Writes the recorded events while this replica leads, for ever.
pub async fn run(
    client: Client,
    controller: String,
    instance: String,
    role: tokio::sync::watch::Receiver<Role>,
    mut queue: mpsc::Receiver<ObjectEvent>,
) {
    let reporter = Reporter {
        controller,
        instance: Some(instance),
    };
    let recorder = Recorder::new(client, reporter);
    while let Some(object_event) = queue.recv().await {
        if role.borrow().term(Instant::now()).is_none() {
            continue;
        }
        let (event, reference) = (event(&object_event), reference(&object_event));
        let written = recorder.publish(&event, &reference);
        match tokio::time::timeout(PATIENCE, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(object = %object_event.about, %error, "cannot write an event"),
            Err(_) => {
                debug!(object = %object_event.about, "the API server did not answer to an event");
            }
        }
    }
}

fn event(object_event: &ObjectEvent) -> Event {
    let kind = if object_event.warning {
        EventType::Warning
    } else {
        EventType::Normal
    };
    Event {
        type_: kind,
        reason: object_event.reason.to_owned(),
        note: Some(text::bounded(&object_event.note, MAX_NOTE)),
        action: object_event.action.to_owned(),
        secondary: None,
    }
}

fn reference(object_event: &ObjectEvent) -> k8s_openapi::api::core::v1::ObjectReference {
    let ObjectKey { kind, name } = &object_event.about;
    let version = match kind.group() {
        "vestibule.dev" => "v1alpha1",
        _ => "v1",
    };
    let api_version = match kind.group() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    k8s_openapi::api::core::v1::ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.as_str().to_owned()),
        name: Some(name.name.to_string()),
        namespace: Some(name.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        uid: Some(object_event.uid.to_string()),
        ..k8s_openapi::api::core::v1::ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::Kind;
    use vestibule_model::meta::Meta;

    use super::*;

    #[test]
    fn an_object_that_cannot_be_read_has_an_event() {
        let key = ObjectKey::new(Kind::Gateway, "platform", "edge");
        let finding = Finding::refused(Reason::Unreadable, "spec.listeners", "does not decode", "");
        let meta = Meta {
            uid: "uid".into(),
            ..Meta::default()
        };
        let object = Object::Unreadable(key.clone(), meta, finding.clone());
        let events = of_findings(&key, &object, &[finding]);
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].reason, &*events[0].uid), ("Unreadable", "uid"));
        assert!(
            events[0]
                .note
                .starts_with("spec.listeners: does not decode. Until then")
        );
        assert_eq!(of_findings(&key, &object, &[]), []);
    }
}
