//! Keeps metrics about claims.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::WriteResult;
use crate::claims::Counts;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: WriteResult,
}

/// Handles to the counters.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct ClaimMetrics {
    held: Gauge,
    grace: Gauge,
    waiting: Gauge,
    objects: Gauge,
    void: Gauge,
    writes: Family<ResultLabel, Counter>,
}

impl ClaimMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "claims_held",
            "Hostnames and ports of Gateways that a namespace holds by a HostnameClaim",
            self.held.clone(),
        );
        registry.register(
            "claims_grace",
            "Hostnames whose holders let go of them, and that are not free yet",
            self.grace.clone(),
        );
        registry.register(
            "claims_waiting",
            "Hostnames and ports that are served once they stand in a HostnameClaim; alert where this stays above 0",
            self.waiting.clone(),
        );
        registry.register(
            "claims_objects",
            "HostnameClaim objects, one for each hostname or port that is held",
            self.objects.clone(),
        );
        registry.register(
            "claims_void",
            "HostnameClaim objects that count for nothing: changed or made by hand, or unreadable; the leader of \
             their release puts them right",
            self.void.clone(),
        );
        registry.register(
            "claims_writes",
            "Writes of HostnameClaims, by result",
            self.writes.clone(),
        );
    }

    pub(in super::super) fn are(&self, counts: Counts) {
        for (gauge, count) in [
            (&self.held, counts.held),
            (&self.grace, counts.grace),
            (&self.waiting, counts.pending),
            (&self.objects, counts.objects),
            (&self.void, counts.void),
        ] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(in super::super) fn written(&self, result: WriteResult) {
        self.writes.get_or_create(&ResultLabel { result }).inc();
    }
}
