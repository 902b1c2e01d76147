//! Counts what happens on the configuration stream, in the metrics `vestibule_operator_stream_*`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::content::BatchSize;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Kind {
    pub(super) kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Reason {
    pub(super) reason: &'static str,
}

/// Handles to the counters. Register them once.
#[derive(Debug, Clone, Default)]
pub struct PublisherMetrics {
    pub(super) proxies: Gauge,
    pub(super) resources: Gauge,
    pub(super) configuration_bytes: Gauge,
    pub(super) batches: Family<Kind, Counter>,
    pub(super) sent: Counter,
    pub(super) resource_bytes: Counter,
    pub(super) rejects: Counter,
    pub(super) refusals: Family<Reason, Counter>,
    pub(super) ended: Family<Reason, Counter>,
}

impl PublisherMetrics {
    /// Adds the metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("vestibule_operator_stream");
        registry.register("proxies", "Proxies connected", self.proxies.clone());
        registry.register("resources", "Resources published", self.resources.clone());
        registry.register(
            "configuration_bytes",
            "Bytes of a batch with all resources published, of which a new proxy takes 256 MiB at most",
            self.configuration_bytes.clone(),
        );
        registry.register(
            "batches",
            "Batches sent: full (everything), equal (nothing but a generation), resync (what differs), delta",
            self.batches.clone(),
        );
        registry.register("sent_bytes", "Bytes of batches sent", self.sent.clone());
        registry.register(
            "resource_bytes",
            "Bytes of resources in the batches sent",
            self.resource_bytes.clone(),
        );
        registry.register(
            "rejects",
            "Resources that a proxy rejected",
            self.rejects.clone(),
        );
        registry.register(
            "refusals",
            "Batches that a proxy refused as a whole",
            self.refusals.clone(),
        );
        registry.register("ended", "Streams that ended", self.ended.clone());
    }

    /// Records the size of a batch with everything.
    pub(super) fn published(&self, size: BatchSize) {
        let BatchSize { entries, bytes } = size;
        let resources = i64::try_from(entries).unwrap_or(i64::MAX);
        self.resources.set(resources);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.configuration_bytes.set(bytes);
    }

    pub(super) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&Reason { reason }).inc();
    }
}
