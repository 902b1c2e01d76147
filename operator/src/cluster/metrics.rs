//! Counts what the operator does in a cluster, in the metrics `vestibule_operator_*`.

mod certificates;
mod claims;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use vestibule_model::fair_total::TotalUse;
use vestibule_model::key::Kind;
use vestibule_serve::log_queue;

use crate::translate::Work;
pub(super) use certificates::Certificates;
pub(super) use claims::ClaimMetrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabel {
    part: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnitLabel {
    unit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    result: WriteResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    action: &'static str,
    result: WriteResult,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum WriteResult {
    /// It succeeded.
    Written,
    /// The object had changed in the meantime.
    Conflict,
    /// The object is gone.
    Gone,
    /// It failed.
    Failed,
    /// It is unknown whether it succeeded.
    Unknown,
}

/// Handles to the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    leader: Gauge,
    term: Gauge<u64, AtomicU64>,
    synced: Family<KindLabel, Gauge>,
    objects: Family<KindLabel, Gauge>,
    events: Family<KindLabel, Counter>,
    touched: Family<KindLabel, Counter>,
    watch_queue: Gauge,
    translation: Histogram,
    work: Family<UnitLabel, Counter>,
    publication: Histogram,
    totals: Family<PartLabel, Gauge>,
    asked: Family<PartLabel, Gauge>,
    statuses: Family<WriteLabels, Counter>,
    waiting: Gauge,
    services: Family<ServiceLabels, Counter>,
    ports: Gauge,
    sources: Gauge,
    not_acked: Gauge,
    object_log_lines_dropped: Counter,
    pub(super) certificates: Certificates,
    pub(super) claims: ClaimMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        // The buckets go from 100 µs to 26 s.
        let times = || Histogram::new(exponential_buckets(0.000_1, 2.0, 19));
        Self {
            leader: Gauge::default(),
            term: Gauge::default(),
            synced: Family::default(),
            objects: Family::default(),
            events: Family::default(),
            touched: Family::default(),
            watch_queue: Gauge::default(),
            translation: times(),
            work: Family::default(),
            publication: times(),
            totals: Family::default(),
            asked: Family::default(),
            statuses: Family::default(),
            waiting: Gauge::default(),
            services: Family::default(),
            ports: Gauge::default(),
            sources: Gauge::default(),
            not_acked: Gauge::default(),
            object_log_lines_dropped: Counter::default(),
            certificates: Certificates::default(),
            claims: ClaimMetrics::default(),
        }
    }
}

impl Metrics {
    /// Adds the metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("vestibule_operator");
        registry.register(
            "leader",
            "1 in the replica that holds the Lease, 0 in the others",
            self.leader.clone(),
        );
        registry.register(
            "term",
            "Term that this replica leads; 0 if it does not",
            self.term.clone(),
        );
        registry.register(
            "synced",
            "1 for a kind of which everything there was at the start is known",
            self.synced.clone(),
        );
        registry.register(
            "store_objects",
            "Objects known, by kind (Secrets: those that a listener may use)",
            self.objects.clone(),
        );
        self.register_watches(registry);
        registry.register_with_unit(
            "translation",
            "Time that one pass of translation takes",
            Unit::Seconds,
            self.translation.clone(),
        );
        registry.register(
            "translated",
            "Units that translation computed: listeners, routes, backends, certificates, statuses",
            self.work.clone(),
        );
        registry.register_with_unit(
            "publication",
            "Time from an event of the watch to the generation with what came of it, with the wait for translation",
            Unit::Seconds,
            self.publication.clone(),
        );
        registry.register(
            "configuration_total_bytes",
            "Bytes of the configuration that all namespaces may fill together, by what fills them",
            self.totals.clone(),
        );
        registry.register(
            "configuration_asked_bytes",
            "Bytes that all namespaces ask for, by what fills them; above configuration_total_bytes they have shares",
            self.asked.clone(),
        );
        registry.register(
            "status_writes",
            "Statuses written, by kind and result",
            self.statuses.clone(),
        );
        registry.register(
            "statuses_waiting",
            "Objects whose Programmed waits for acknowledgements, a port or an address",
            self.waiting.clone(),
        );
        registry.register(
            "service_writes",
            "Requests about the Services in front of Gateways, by action and result",
            self.services.clone(),
        );
        registry.register(
            "internal_ports",
            "Internal ports given out",
            self.ports.clone(),
        );
        registry.register(
            "sources",
            "Secrets and ConfigMaps in memory: those that something may use",
            self.sources.clone(),
        );
        registry.register(
            "proxies_not_acked",
            "Proxies connected or ready that have not acknowledged the last generation; \
             alert where this stays above 0",
            self.not_acked.clone(),
        );
        registry.register(
            "log_lines_dropped",
            "Lines of the log that were dropped because nobody read it fast enough",
            log_queue::dropped_lines(),
        );
        registry.register(
            "object_log_lines_dropped",
            "Lines about objects that were left out of the log, because their namespace had too many",
            self.object_log_lines_dropped.clone(),
        );
        self.certificates.register(registry);
        self.claims.register(registry);
    }

    fn register_watches(&self, registry: &mut Registry) {
        registry.register(
            "watch_events",
            "Objects that came or went, by kind, counted as they are translated (not versions that a later one overtook \
             before)",
            self.events.clone(),
        );
        registry.register(
            "watch_touched",
            "Objects that were written without a change to what is read of them (their status, mostly), which are \
             not decoded again, by kind; counted as watch_events",
            self.touched.clone(),
        );
        registry.register(
            "watch_queue_objects",
            "Objects with events that wait for the turn of their namespace in translation",
            self.watch_queue.clone(),
        );
    }

    pub(super) fn role(&self, term: Option<u64>) {
        self.leader.set(i64::from(term.is_some()));
        self.term.set(term.unwrap_or_default());
    }

    pub(super) fn synced(&self, kind: Kind, synced: bool) {
        let kind = kind.as_str();
        self.synced
            .get_or_create(&KindLabel { kind })
            .set(i64::from(synced));
    }

    pub(super) fn event(&self, kind: Kind) {
        let kind = kind.as_str();
        self.events.get_or_create(&KindLabel { kind }).inc();
    }

    pub(super) fn touched(&self, kind: Kind) {
        let kind = kind.as_str();
        self.touched.get_or_create(&KindLabel { kind }).inc();
    }

    pub(super) fn watch_queue(&self, objects: usize) {
        self.watch_queue
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    pub(super) fn objects(&self, kind: Kind, change: i64) {
        let kind = kind.as_str();
        self.objects
            .get_or_create(&KindLabel { kind })
            .inc_by(change);
    }

    pub(super) fn translated(&self, time: Duration, work: Work) {
        self.translation.observe(time.as_secs_f64());
        for (unit, count) in [
            ("listener", work.listeners),
            ("route", work.routes),
            ("backend", work.backends),
            ("certificate", work.certificates),
            ("status", work.statuses),
        ] {
            let count = u64::try_from(count).unwrap_or_default();
            self.work.get_or_create(&UnitLabel { unit }).inc_by(count);
        }
    }

    pub(super) fn totals(&self, totals: impl Iterator<Item = (&'static str, TotalUse)>) {
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        for (part, TotalUse { total, asked }) in totals {
            let label = PartLabel { part };
            self.totals.get_or_create(&label).set(gauge(total));
            self.asked.get_or_create(&label).set(gauge(asked));
        }
    }

    pub(super) fn published(&self, time: Duration) {
        self.publication.observe(time.as_secs_f64());
    }

    pub(super) fn status(&self, kind: Kind, result: WriteResult) {
        let kind = kind.as_str();
        self.statuses
            .get_or_create(&WriteLabels { kind, result })
            .inc();
    }

    pub(super) fn waiting(&self, count: usize) {
        self.waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn service(&self, action: &'static str, done: bool) {
        let result = if done {
            WriteResult::Written
        } else {
            WriteResult::Failed
        };
        self.services
            .get_or_create(&ServiceLabels { action, result })
            .inc();
    }

    pub(super) fn ports(&self, count: usize) {
        self.ports.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn sources(&self, count: usize) {
        self.sources.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn object_log_lines_dropped(&self, lines: u64) {
        self.object_log_lines_dropped.inc_by(lines);
    }

    pub(super) fn not_acked(&self, count: usize) {
        self.not_acked.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
