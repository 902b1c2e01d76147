//! Watches `Certificate` and `CertificateRequest` objects while their kinds are installed. cert-manager may be
//! installed later and may be removed.

use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{Config, Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, core::ApiResource};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::super::text::problem;
use crate::certmanager::API_VERSION;

/// Time between two checks whether the kind is installed.
const LOOK: Duration = Duration::from_secs(10);
/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(15);

/// A kind of cert-manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchedKind {
    /// `Certificate`.
    Certificate,
    /// `CertificateRequest`, an attempt to get a certificate.
    Attempt,
}

/// An update from the watch of a kind.
#[derive(Debug)]
pub(super) enum WatchUpdate {
    /// The kind is not installed.
    NotInstalled,
    /// The objects cannot be listed, for this reason.
    Unreadable(String),
    /// An event about the objects.
    Event(Box<Event<DynamicObject>>),
}

/// An update, and the kind that it is about.
pub(super) type KindUpdate = (WatchedKind, WatchUpdate);

impl WatchedKind {
    fn name(self) -> &'static str {
        match self {
            Self::Certificate => "Certificate",
            Self::Attempt => "CertificateRequest",
        }
    }
}

/// Returns the kind in the form for requests.
pub(super) fn resource(kind: WatchedKind) -> ApiResource {
    let (group, version) = API_VERSION.split_once('/').unwrap_or((API_VERSION, "v1"));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: API_VERSION.into(),
        kind: kind.name().into(),
        plural: format!("{}s", kind.name().to_lowercase()),
    }
}

/// Watches a kind and sends updates, until the channel is closed.
pub(super) async fn run(client: Client, kind: WatchedKind, sender: mpsc::Sender<KindUpdate>) {
    let mut said = None;
    let mut trouble = None;
    loop {
        let seen = match installed(&client, kind).await {
            Ok(true) => {
                said = None;
                match follow(&client, kind, &sender, &mut trouble).await {
                    Ended::Closed => return,
                    Ended::Gone { listed: true } => continue,
                    // The API server still announces a kind that is being deleted.
                    Ended::Gone { listed: false } => WatchUpdate::NotInstalled,
                }
            }
            Ok(false) => WatchUpdate::NotInstalled,
            Err(problem) => {
                if said.as_ref() != Some(&problem) {
                    let kind = kind.name();
                    warn!(
                        kind,
                        problem, "cannot see whether cert-manager is installed"
                    );
                    said = Some(problem.clone());
                }
                WatchUpdate::Unreadable(problem)
            }
        };
        if sender.send((kind, seen)).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = sender.closed() => return,
        }
    }
}

async fn installed(client: &Client, kind: WatchedKind) -> Result<bool, String> {
    let asked = client.list_api_group_resources(API_VERSION);
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(list)) => Ok(list.resources.iter().any(|r| r.kind == kind.name())),
        // For a group that is not served, the response is a page and not a `Status`.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
        Ok(Err(error)) => Err(problem(error)),
        Err(_) => Err("no answer from the API server".into()),
    }
}

/// Why watching ended.
enum Ended {
    /// The kind is not installed. `listed` tells whether its objects could be listed before.
    Gone { listed: bool },
    /// The channel is closed.
    Closed,
}

/// Follows the objects as long as the kind is installed. `trouble` is the last problem that was logged.
async fn follow(
    client: &Client,
    kind: WatchedKind,
    sender: &mpsc::Sender<KindUpdate>,
    trouble: &mut Option<String>,
) -> Ended {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    let mut events = watcher(api, Config::default()).default_backoff().boxed();
    let mut listed = false;
    while let Some(event) = events.next().await {
        let seen = match event {
            Ok(event) => {
                // The start of a list is no success yet.
                if !matches!(event, Event::Init)
                    && (trouble.take().is_some() || !std::mem::replace(&mut listed, true))
                {
                    listed = true;
                    info!(kind = kind.name(), "watching cert-manager's objects");
                }
                WatchUpdate::Event(Box::new(event))
            }
            Err(error) => {
                if is_gone(&error) {
                    return Ended::Gone { listed };
                }
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    let kind = kind.name();
                    warn!(
                        kind,
                        error = text,
                        "cannot watch cert-manager's objects; trying again"
                    );
                    *trouble = Some(text);
                }
                // A watch that broke is started again, and the known objects stay known.
                match error {
                    Error::InitialListFailed(error) => WatchUpdate::Unreadable(problem(error)),
                    _ => continue,
                }
            }
        };
        if sender.send((kind, seen)).await.is_err() {
            return Ended::Closed;
        }
    }
    Ended::Gone { listed }
}

fn is_gone(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchError(status) => status.code == 404,
        _ => false,
    }
}
