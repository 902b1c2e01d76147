//! The cert-manager engine in a cluster: every replica watches Certificates and says how far they are; the
//! leader makes, keeps and removes its own ([`crate::certmanager`] decides). One Certificate that the API
//! server refuses waits by itself; the others go on.

mod keeper;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::Value;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::JoinSet;
use tracing::warn;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::ObjectName;

use super::clock;
use super::lease::elector::Role;
use super::metrics::Metrics;
use super::text::problem;
use crate::certmanager::{Action, Present, Settings};
use crate::translate::CertificateRequest;
use keeper::Keeper;

/// Events that wait.
const EVENTS: usize = 256;

/// Certificates that are asked for, by Secret, whatever the engine.
pub type Requests = BTreeMap<ObjectName, Arc<CertificateRequest>>;
/// How far the certificates of this engine are, by Secret.
pub type Facts = BTreeMap<ObjectName, Issuance>;

/// Who makes Certificates, and as whom.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who makes whose.
    pub settings: Settings,
    /// Field manager.
    pub manager: String,
}

/// What the task takes and gives.
#[derive(Debug)]
pub struct Wires {
    /// Certificates that are asked for; none as long as not everything is known.
    pub requests: channel::Receiver<Option<Arc<Requests>>>,
    /// Only the leader writes.
    pub role: channel::Receiver<Role>,
    /// How far they are; none as long as that is not known.
    pub facts: channel::Sender<Option<Arc<Facts>>>,
}

/// Keeps the Certificates for ever.
pub async fn run(client: Client, config: Config, mut wires: Wires, metrics: Metrics) {
    let (sender, mut seen) = mpsc::channel(EVENTS);
    let mut watching = JoinSet::new();
    for kind in [watch::Kind::Certificate, watch::Kind::Attempt] {
        watching.spawn(watch::run(client.clone(), kind, sender.clone()));
    }
    drop(sender);
    let hand = Hand {
        client,
        manager: config.manager.as_str().into(),
        settings: Arc::new(config.settings.clone()),
    };
    let mut keeper = Keeper::new(hand, config.settings, metrics);
    let mut requests = JoinSet::new();
    let mut batch = Vec::with_capacity(EVENTS);
    loop {
        let due = keeper.due();
        tokio::select! {
            count = seen.recv_many(&mut batch, EVENTS) => {
                if count == 0 {
                    return;
                }
                for seen in batch.drain(..) {
                    keeper.seen(seen);
                }
            }
            changed = wires.requests.changed() => if changed.is_err() { return },
            changed = wires.role.changed() => if changed.is_err() { return },
            Some(done) = requests.join_next() => match done {
                Ok(done) => keeper.done(done),
                Err(error) => warn!(%error, "a request about a Certificate ended early"),
            },
            () = clock::at(due) => {}
        }
        let wanted = wires.requests.borrow_and_update().clone();
        let role = wires.role.borrow_and_update().term(Instant::now());
        if let Some(wanted) = wanted {
            keeper.requested(&wanted);
            keeper.judge();
            if role.is_some() {
                keeper.act(&mut requests);
            }
            keeper.tell(&wires.facts);
        }
    }
}

/// What makes the requests.
#[derive(Clone)]
struct Hand {
    client: Client,
    manager: Arc<str>,
    settings: Arc<Settings>,
}

impl Hand {
    /// Does it; what came out, if there is something.
    async fn act(&self, name: &ObjectName, action: &Action) -> Result<Option<Present>, String> {
        let resource = watch::resource(watch::Kind::Certificate);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let made = match action {
            Action::Create(manifest) => {
                // The watch has not shown it, so it would be somebody's who was quicker: the watch will.
                if api.get_opt(&name.name).await.map_err(problem)?.is_some() {
                    return Err(format!(
                        "a Certificate {} that is not Vestibule's is there",
                        name.name
                    ));
                }
                let parameters = PatchParams::apply(&self.manager);
                api.patch(&name.name, &parameters, &Patch::Apply(manifest))
                    .await
            }
            Action::Apply(uid, manifest) => {
                let mut manifest = manifest.clone();
                if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut)
                {
                    metadata.insert("uid".into(), uid.as_str().into());
                }
                let parameters = PatchParams::apply(&self.manager).force();
                api.patch(&name.name, &parameters, &Patch::Apply(&manifest))
                    .await
            }
            Action::Delete(uid) => {
                let parameters = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(uid.clone()),
                        resource_version: None,
                    }),
                    ..DeleteParams::background()
                };
                return match api.delete(&name.name, &parameters).await {
                    Ok(_) => Ok(None),
                    Err(kube::Error::Api(status))
                        if status.is_not_found() || status.is_conflict() =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(problem(error)),
                };
            }
        };
        let object = serde_json::to_value(made.map_err(problem)?).unwrap_or_default();
        Ok(Present::of(object, &self.settings).map(|(_, present)| present))
    }
}
