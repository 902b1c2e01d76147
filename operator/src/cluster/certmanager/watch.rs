//! Watches Certificates wherever their kind is installed: cert-manager may come later, and go.

use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{Config, Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, core::ApiResource};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::certmanager::API_VERSION;

/// Time between two looks for the kind.
const LOOK: Duration = Duration::from_secs(10);
/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is seen of Certificates.
#[derive(Debug)]
pub(super) enum Seen {
    /// The kind is not installed.
    NotInstalled,
    /// They cannot be listed, and why.
    Unreadable(String),
    /// What happens to them.
    Event(Box<Event<DynamicObject>>),
}

/// The kind as requests name it.
pub(super) fn resource() -> ApiResource {
    let (group, version) = API_VERSION.split_once('/').unwrap_or((API_VERSION, "v1"));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: API_VERSION.into(),
        kind: "Certificate".into(),
        plural: "certificates".into(),
    }
}

/// Tells what is seen, until nobody listens.
pub(super) async fn run(client: Client, sender: mpsc::Sender<Seen>) {
    let mut said = None;
    loop {
        let seen = match installed(&client).await {
            Ok(true) => {
                info!("watching cert-manager's Certificates");
                said = None;
                match follow(&client, &sender).await {
                    Ended::Closed => return,
                    Ended::Gone => continue,
                }
            }
            Ok(false) => Seen::NotInstalled,
            Err(problem) => {
                if said.as_ref() != Some(&problem) {
                    warn!(problem, "cannot see whether cert-manager is installed");
                    said = Some(problem.clone());
                }
                Seen::Unreadable(problem)
            }
        };
        if sender.send(seen).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = sender.closed() => return,
        }
    }
}

async fn installed(client: &Client) -> Result<bool, String> {
    let asked = client.list_api_group_resources(API_VERSION);
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(list)) => Ok(list.resources.iter().any(|r| r.kind == "Certificate")),
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Ok(false),
        Ok(Err(error)) => Err(super::problem(error)),
        Err(_) => Err("no answer from the API server".into()),
    }
}

/// Why watching ended.
enum Ended {
    /// The kind is not installed any more.
    Gone,
    /// Nobody listens.
    Closed,
}

async fn follow(client: &Client, sender: &mpsc::Sender<Seen>) -> Ended {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
    let mut events = watcher(api, Config::default()).default_backoff().boxed();
    let mut trouble = None;
    while let Some(event) = events.next().await {
        let seen = match event {
            Ok(event) => {
                // A list that begins is no success yet.
                if !matches!(event, Event::Init) && trouble.take().is_some() {
                    info!("watching cert-manager's Certificates again");
                }
                Seen::Event(Box::new(event))
            }
            Err(error) => {
                if is_gone(&error) {
                    return Ended::Gone;
                }
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    warn!(error = text, "cannot watch Certificates; trying again");
                    trouble = Some(text);
                }
                // A watch that broke is taken up again, and what is known stays known.
                match error {
                    Error::InitialListFailed(error) => Seen::Unreadable(super::problem(error)),
                    _ => continue,
                }
            }
        };
        if sender.send(seen).await.is_err() {
            return Ended::Closed;
        }
    }
    Ended::Gone
}

fn is_gone(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchError(status) => status.is_not_found(),
        _ => false,
    }
}
