//! Certificates of Vestibule's own servers: an internal authority, the certificates that it signs for
//! the configuration stream and the webhook, and the bundle that their clients trust.
//!
//! All of it is stored in objects of the cluster. The leader writes them ([`rotation`] decides when), and every replica
//! serves with the certificate in the operator's Secret.

mod certificates;
mod clock;
mod material;
mod metrics;
mod reconciler;
pub mod rotation;
#[cfg(test)]
mod rotation_tests;
mod store;
mod watch_log;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;

pub use certificates::CurrentCertificate;
pub use metrics::Metrics;
pub use reconciler::Reconciler;

use rotation::{Leaf, RotationPolicy, Seconds};

/// Entry of the bundle in the authority's Secret and in the ConfigMap.
pub const BUNDLE_KEY: &str = "ca.crt";

/// Which objects, and how long things last.
#[derive(Clone)]
pub struct Config {
    /// Namespace of the release.
    pub namespace: String,
    /// Value of the label `app.kubernetes.io/managed-by`, and field manager.
    pub manager: String,
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// Secret of the authority.
    pub authority_secret: String,
    /// ConfigMap with the bundle.
    pub bundle_config_map: String,
    /// Secret and Service of the operator.
    pub operator: Server,
    /// Secret and Service of the webhook.
    pub webhook: Server,
    /// The ValidatingWebhookConfiguration whose bundles are kept, if there is to be one.
    pub webhook_configuration: Option<String>,
    /// The owner of the objects that are made here.
    pub owner: Option<OwnerReference>,
    /// How long things last.
    pub policy: RotationPolicy,
    /// Seconds since the Unix epoch.
    pub clock: Arc<dyn Fn() -> Seconds + Send + Sync>,
}

/// A server that gets a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where its certificate is kept.
    pub secret: String,
    /// The Service whose names the certificate is for.
    pub service: String,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("namespace", &self.namespace)
            .field("authority_secret", &self.authority_secret)
            .field("webhook_configuration", &self.webhook_configuration)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The names that follow from a release; no webhook configuration and no owner.
    #[must_use]
    pub fn new(namespace: &str, release: &str) -> Self {
        let server = |what: &str| Server {
            secret: format!("{release}-{what}-tls"),
            service: format!("{release}-{what}"),
        };
        Self {
            namespace: namespace.to_owned(),
            manager: release.to_owned(),
            cluster_domain: "cluster.local".into(),
            authority_secret: format!("{release}-ca"),
            bundle_config_map: format!("{release}-ca"),
            operator: server("operator"),
            webhook: server("webhook"),
            webhook_configuration: None,
            owner: None,
            policy: RotationPolicy::default(),
            clock: Arc::new(clock::seconds),
        }
    }

    fn server(&self, leaf: Leaf) -> &Server {
        match leaf {
            Leaf::Operator => &self.operator,
            Leaf::Webhook => &self.webhook,
        }
    }

    fn secret_of(&self, leaf: Leaf) -> &str {
        &self.server(leaf).secret
    }

    /// The names of a Service, the one that clients use first.
    fn names_of(&self, leaf: Leaf) -> Vec<String> {
        let (service, namespace) = (&self.server(leaf).service, &self.namespace);
        vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.{}", self.cluster_domain),
            format!("{service}.{namespace}"),
            service.clone(),
        ]
    }
}

/// Why something could not be read, made or written.
#[derive(Debug, thiserror::Error)]
pub enum InternalCaError {
    /// The API server refuses.
    #[error("{object}: {source}")]
    Api {
        /// Kind and name.
        object: String,
        /// The error of the request.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{0}: no answer of the API server")]
    Silent(String),
    /// Somebody else wrote it meanwhile.
    #[error("{0}: was changed by somebody else meanwhile")]
    Conflict(String),
    /// A key or certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl InternalCaError {
    /// The kind of failure, as a metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "Api",
            Self::Silent(_) => "Silent",
            Self::Conflict(_) => "Conflict",
            Self::Make(_) => "Make",
        }
    }
}

/// The reconciler of the objects of `config`, to be run on every replica, and the certificates that this
/// replica serves with.
#[must_use]
pub fn start(client: Client, config: Config) -> (Reconciler, CurrentCertificate) {
    Reconciler::new(client, config)
}
