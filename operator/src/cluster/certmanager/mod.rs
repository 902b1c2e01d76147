//! Runs the engine for cert-manager in a cluster. Every replica watches Certificates and reports their state. The
//! leader creates, updates and deletes those of this release ([`crate::certmanager`] decides). If the API server
//! refuses one Certificate, the others are not affected.

mod reconciler;
mod watch;

use std::sync::Arc;
use std::time::Instant;

use kube::Client;
use kube::api::{Api, DynamicObject};
use tokio::sync::{mpsc, watch as channel};
use tokio::task::JoinSet;
use tracing::warn;
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::ObjectName;

use super::lease::elector::Role;
use super::metrics::Metrics;
use super::writes::Requester;
use super::{clock, requests};
use crate::certmanager::{CertManagerSettings, CertificateAction, PresentCertificate};
use crate::map_channel::{MapSender, MapView};
use reconciler::Reconciler;

/// Largest number of events that wait.
const EVENTS: usize = 256;

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which Certificates this release makes, and how.
    pub settings: CertManagerSettings,
    /// The field manager of its writes.
    pub manager: String,
}

/// The inputs and outputs of the task.
#[derive(Debug)]
pub struct CertificateChannels {
    /// The requested certificates of all engines, by Secret.
    pub requests: MapView<Arc<CertificateRequest>>,
    /// The role of this replica. Only the leader writes.
    pub role: channel::Receiver<Role>,
    /// The states of the certificates of this engine, by Secret.
    pub issuances: MapSender<Issuance>,
}

/// Keeps the Certificates up to date, for ever.
pub async fn run(client: Client, config: Config, channels: CertificateChannels, metrics: Metrics) {
    let CertificateChannels {
        requests,
        mut role,
        issuances,
    } = channels;
    let mut requested = requests.follow();
    let (sender, mut seen) = mpsc::channel(EVENTS);
    let mut watching = JoinSet::new();
    for kind in [watch::WatchedKind::Certificate, watch::WatchedKind::Attempt] {
        watching.spawn(watch::run(client.clone(), kind, sender.clone()));
    }
    drop(sender);
    let api_client = ApiClient {
        client,
        manager: config.manager.as_str().into(),
        settings: Arc::new(config.settings.clone()),
    };
    let mut reconciler = Reconciler::new(api_client, config.settings, metrics, issuances);
    let mut requests = JoinSet::new();
    let mut batch = Vec::with_capacity(EVENTS);
    loop {
        let due = reconciler.due();
        tokio::select! {
            count = seen.recv_many(&mut batch, EVENTS) => {
                if count == 0 {
                    return;
                }
                for seen in batch.drain(..) {
                    reconciler.seen(seen);
                }
            }
            changed = requested.changed() => if changed.is_err() { return },
            changed = role.changed() => if changed.is_err() { return },
            Some(done) = requests.join_next() => match done {
                Ok(done) => reconciler.done(done),
                Err(error) => warn!(%error, "a request about a Certificate ended early"),
            },
            () = clock::at(due) => {}
        }
        let leads = role.borrow_and_update().term(Instant::now()).is_some();
        if !leads {
            reconciler.follow();
        }
        if let Some(changes) = requested.take() {
            reconciler.requested(changes);
            reconciler.judge();
            if leads {
                reconciler.act(&mut requests);
            }
            reconciler.tell();
        }
    }
}

/// Makes the requests to the API server.
#[derive(Clone)]
struct ApiClient {
    client: Client,
    manager: Arc<str>,
    settings: Arc<CertManagerSettings>,
}

impl Requester for ApiClient {
    type Action = CertificateAction;
    type Object = PresentCertificate;
    type Problem = String;

    async fn act(
        &self,
        name: &ObjectName,
        action: &CertificateAction,
    ) -> Result<Option<PresentCertificate>, String> {
        let resource = watch::resource(watch::WatchedKind::Certificate);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let (manager, name) = (&*self.manager, &*name.name);
        let made = match action {
            CertificateAction::Create(manifest) => {
                requests::create(&api, manager, "Certificate", name, manifest).await?
            }
            CertificateAction::Apply(uid, manifest) => {
                requests::apply(&api, manager, name, uid, manifest).await?
            }
            CertificateAction::Delete(uid) => {
                requests::delete(&api, name, uid).await?;
                return Ok(None);
            }
        };
        let object = serde_json::to_value(made).unwrap_or_default();
        Ok(PresentCertificate::of(object, &self.settings).map(|(_, present)| present))
    }
}

#[cfg(test)]
mod tests;
