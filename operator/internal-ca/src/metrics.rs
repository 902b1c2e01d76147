//! Counters of the certificates of Vestibule's own servers: `vestibule_operator_serving_*`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Certificate {
    pub(crate) certificate: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Write {
    pub(crate) object: &'static str,
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

/// Handles to the counters; register them once.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(crate) expiry: Family<Certificate, Gauge>,
    pub(crate) writes: Family<Write, Counter>,
    pub(crate) failures: Family<Reason, Counter>,
}

impl Metrics {
    /// Adds the metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("vestibule_operator_serving");
        registry.register(
            "expiry_timestamp_seconds",
            "When the certificate ends, as the leader read it last",
            self.expiry.clone(),
        );
        registry.register("writes", "Objects written, and why", self.writes.clone());
        registry.register(
            "failures",
            "Reads and writes that failed",
            self.failures.clone(),
        );
    }
}
