//! Runs the operator in a cluster. It watches objects, translates them, publishes the result, and writes statuses and
//! objects.
//!
//! One task, the loop, owns the state (`store`) and decides. Everything else is a small task beside it, which gets its
//! inputs by a watch channel and returns its results by another one: the Lease, the ports, the Services, and the
//! readiness of the proxies. Every replica runs all tasks, but only the holder of the Lease writes and serves proxies.

mod absences;
pub mod certmanager;
mod claims;
mod clock;
mod controller;
pub mod events;
mod failure;
mod findings_log;
mod follow;
pub mod health;
pub mod issuance;
mod kept_object;
pub mod lease;
pub mod metrics;
pub mod owner;
pub mod ports;
pub mod ready;
mod requests;
pub mod secrets;
pub mod services;
mod session_keys;
mod sources;
pub mod statuses;
pub mod store;
mod sync;
#[cfg(test)]
mod testing;
mod text;
pub mod watch_queue;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use vestibule_crds::watch::CopiedAnnotations;

use crate::publish::Publisher;
use crate::translate;
use controller::Controller;
use health::Health;
use metrics::Metrics;
pub use sources::ReadError;

/// Label with the release that made an object.
const MANAGED_BY: &str = translate::MANAGED_BY_LABEL;
/// Label with the UID of the Gateway that a Service is for.
const GATEWAY_UID: &str = translate::UID_LABEL;

/// The settings of the operator in a cluster.
#[derive(Debug, Clone)]
pub struct OperatorSettings {
    /// Namespace of the release.
    pub namespace: String,
    /// Name of the release. It is the prefix of all names, the value of the label, and the field manager.
    pub release: String,
    /// Settings of translation.
    pub translation: translate::Settings,
    /// Settings of the Lease.
    pub lease: lease::Config,
    /// Headless Service of the proxies.
    pub proxy_service: String,
    /// The owner of all objects that the operator creates, if there is one.
    pub owner: Option<OwnerReference>,
    /// Durations of the planner of statuses.
    pub statuses: statuses::plan::StatusTiming,
    /// Settings of the built-in ACME engine; `None` if it is off.
    pub acme: Option<vestibule_acme::EngineSettings>,
    /// Settings of the engine for cert-manager.
    pub certmanager: certmanager::Config,
    /// Annotations that are copied from Gateways and ListenerSets to their Certificates.
    pub copied_annotations: CopiedAnnotations,
    /// Namespaces whose Secrets may be used; `None` for all.
    pub secret_namespaces: secrets::Namespaces,
    /// How long a name stays with a holder that let go of it.
    pub claim_grace: Duration,
    /// Name of this process in events.
    pub instance: String,
}

/// The outputs of the operator for other parts of the process.
#[derive(Debug)]
pub struct Outside {
    /// Liveness and readiness.
    pub health: Health,
    /// The counters.
    pub metrics: Metrics,
    /// Whether this replica leads.
    pub leading: watch::Sender<bool>,
}

/// Runs the operator until `end`, and then gives the Lease up and sends the proxies to the next leader. Fails if one of
/// its tasks ends.
pub async fn run(
    client: kube::Client,
    settings: OperatorSettings,
    publisher: Arc<Publisher>,
    outside: Outside,
    end: CancellationToken,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let mut controller = Controller::new(&client, settings, publisher, outside, &mut tasks);
    let outcome = controller.run(&client, &mut tasks, &end).await;
    // This has to happen before the process ends. It takes the controller with all that it holds, so its future is large.
    Box::pin(controller.finish()).await;
    outcome
}
