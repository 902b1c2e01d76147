//! Events of Kubernetes about objects of tenants: what happened to their certificates. Only the leader
//! tells; what is told is bounded, in length and in rate, and nothing waits for it.

mod rate;

use std::time::{Duration, Instant};

use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;
use vestibule_model::key::ObjectKey;

use super::lease::elector::Role;
use super::text;
use rate::Rate;

/// Events that wait; more are dropped.
const WAITING: usize = 256;
/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest note, in characters; the API takes 1 kB.
const MAX_NOTE: usize = 900;

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The object.
    pub about: ObjectKey,
    /// Its UID.
    pub uid: std::sync::Arc<str>,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// In one word, such as `CertificateIssued`.
    pub reason: &'static str,
    /// What was done, in one word.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

/// Where news are told.
#[derive(Debug, Clone)]
pub struct Teller(mpsc::Sender<News>);

impl Teller {
    /// A teller, and what [`run`] takes.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<News>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Tells, unless too much waits already.
    pub fn tell(&self, news: News) {
        let _ = self.0.try_send(news);
    }
}

/// Writes what is told while this replica leads, for ever.
pub async fn run(
    client: Client,
    controller: String,
    instance: String,
    role: tokio::sync::watch::Receiver<Role>,
    mut told: mpsc::Receiver<News>,
) {
    let reporter = Reporter {
        controller,
        instance: Some(instance),
    };
    let recorder = Recorder::new(client, reporter);
    let mut rate = Rate::new(Instant::now());
    while let Some(news) = told.recv().await {
        let now = Instant::now();
        let leads = role.borrow().term(now).is_some();
        if !leads || !rate.takes(&news, now) {
            continue;
        }
        let (event, reference) = (event(&news), reference(&news));
        let written = recorder.publish(&event, &reference);
        match tokio::time::timeout(PATIENCE, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(object = %news.about, %error, "cannot write an event"),
            Err(_) => debug!(object = %news.about, "no answer to an event"),
        }
    }
}

fn event(news: &News) -> Event {
    let kind = if news.warning {
        EventType::Warning
    } else {
        EventType::Normal
    };
    Event {
        type_: kind,
        reason: news.reason.to_owned(),
        note: Some(text::bounded(&news.note, MAX_NOTE)),
        action: news.action.to_owned(),
        secondary: None,
    }
}

fn reference(news: &News) -> k8s_openapi::api::core::v1::ObjectReference {
    let ObjectKey { kind, name } = &news.about;
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
        uid: Some(news.uid.to_string()),
        ..k8s_openapi::api::core::v1::ObjectReference::default()
    }
}
