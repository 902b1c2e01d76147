//! The operator in a cluster: watches, translates, publishes, and writes what follows.
//!
//! One task owns what is known (`store`) and decides; everything else is a small task beside it that
//! is told by a watch channel and answers by one: the Lease, the ports, the Services, the proxies'
//! readiness. Every replica does all of it; only the holder of the Lease writes and serves proxies.

pub mod certmanager;
mod claims;
mod clock;
mod controller;
pub mod events;
mod failure;
mod follow;
pub mod health;
pub mod issuance;
pub mod lease;
pub mod metrics;
pub mod owner;
pub mod ports;
pub mod ready;
pub mod secrets;
pub mod services;
mod session_keys;
mod sources;
pub mod statuses;
pub mod store;
mod sync;
mod text;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use vestibule_crds::watch::CopiedAnnotations;

use crate::acme;
use crate::publish::Publisher;
use crate::translate;
use controller::Controller;
use health::Health;
use metrics::Metrics;

/// Label that says who made an object.
const MANAGED_BY: &str = translate::MANAGED_BY_LABEL;
/// Label with the UID of the Gateway that a Service is for.
const GATEWAY_UID: &str = translate::UID_LABEL;

/// What the cluster side is set to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the release.
    pub namespace: String,
    /// Prefix of all names, label value and field manager.
    pub release: String,
    /// Translation.
    pub translation: translate::Settings,
    /// The Lease.
    pub lease: lease::Config,
    /// Headless Service of the proxies.
    pub proxy_service: String,
    /// What owns what is made, if anything does.
    pub owner: Option<OwnerReference>,
    /// Durations around statuses.
    pub statuses: statuses::plan::Timing,
    /// The built-in engine; none: it is off.
    pub acme: Option<acme::Settings>,
    /// Who makes cert-manager's Certificates.
    pub certmanager: certmanager::Config,
    /// Annotations that are copied from Gateways and ListenerSets to their Certificates.
    pub copied_annotations: CopiedAnnotations,
    /// Namespaces whose Secrets may be used; none: all.
    pub secret_namespaces: secrets::Namespaces,
    /// How long a name stays with a holder that let go of it.
    pub claim_grace: Duration,
    /// This process, in events.
    pub instance: String,
}

/// What the cluster side tells others.
#[derive(Debug)]
pub struct Outside {
    /// Liveness and readiness.
    pub health: Health,
    /// Counters.
    pub metrics: Metrics,
    /// Whether this replica leads.
    pub leading: watch::Sender<bool>,
}

/// Runs until `end`, then gives the Lease up and sends the proxies away. Fails if a part ends.
pub async fn run(
    client: kube::Client,
    settings: Settings,
    publisher: Arc<Publisher>,
    outside: Outside,
    end: CancellationToken,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let mut controller = Controller::new(&client, settings, publisher, outside, &mut tasks);
    let outcome = controller.run(&client, &mut tasks, &end).await;
    // Before this process ends.
    controller.finish().await;
    outcome
}
