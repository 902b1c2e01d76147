//! Owns the webhook's Prometheus metrics: `vestibule_webhook_<noun>_<unit>`.
//!
//! Labels come from fixed sets in this program: no object name and no user is a label.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use vestibule_model::policy::Mode;
use vestibule_serve::log_queue;

use crate::envelope::ReviewRecord;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    kind: &'static str,
    result: &'static str,
    mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// All metrics of a webhook process.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    reviews: Family<ReviewLabels, Counter>,
    findings: Family<ReasonLabel, Counter>,
    review_seconds: Histogram,
    errors: Family<ReasonLabel, Counter>,
    certificate_reloads: Family<ResultLabel, Counter>,
    certificate_expiry: Gauge,
    /// 1 when all objects that existed at the start have been read.
    pub(super) store_synced: Gauge,
    /// Admitted ListenerSets that the watch has not shown yet.
    pub(super) remembered: Gauge,
    pub(super) waits: Counter,
    /// Reviews that wait for their turn to be judged.
    pub(super) queued: Gauge,
    /// Connections open now.
    pub(super) connections: Gauge,
    /// Connections accepted.
    pub(super) connections_accepted: Counter,
    /// 1 while the webhook shuts down.
    pub(super) draining: Gauge,
}

/// Buckets of the histogram in seconds, from a look-up to the longest time that an API server waits.
const SECONDS: [f64; 11] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 1.0, 10.0,
];

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("vestibule_webhook");
        let r = &mut registry;
        let review_seconds = Histogram::new(SECONDS);
        r.register_with_unit(
            "review_duration",
            "Time from a whole request to its answer",
            Unit::Seconds,
            review_seconds.clone(),
        );
        let certificate_expiry = Gauge::default();
        r.register_with_unit(
            "certificate_expiry_timestamp",
            "When the serving certificate expires, since the Unix epoch; 0 without one",
            Unit::Seconds,
            certificate_expiry.clone(),
        );
        r.register(
            "log_lines_dropped",
            "Lines of the log that were dropped because nobody read it fast enough",
            log_queue::dropped_lines(),
        );
        Self {
            review_seconds,
            certificate_expiry,
            reviews: add(
                r,
                "reviews",
                "Reviews, by kind, by result (passed: not judged) and by the mode in force",
            ),
            findings: add(
                r,
                "review_findings",
                "Reviews that found something, by what they found",
            ),
            errors: add(
                r,
                "errors",
                "Requests and connections that failed, by reason",
            ),
            certificate_reloads: add(
                r,
                "certificate_reloads",
                "New contents of the certificate's files, by whether they could be used",
            ),
            store_synced: add(
                r,
                "store_synced",
                "1 once everything there was at first has been read",
            ),
            remembered: add(
                r,
                "remembered_listenersets",
                "ListenerSets that were admitted and that the watch has not shown yet",
            ),
            waits: add(
                r,
                "review_waits",
                "Reviews that waited for a ListenerSet that was just admitted and wants the same",
            ),
            queued: add(
                r,
                "reviews_queued",
                "Reviews that wait for their turn to be judged",
            ),
            connections: add(r, "connections_active", "Connections open now"),
            connections_accepted: add(r, "connections_accepted", "Connections accepted"),
            draining: add(r, "draining", "1 while the webhook shuts down"),
            registry,
        }
    }

    pub(super) fn reviewed(&self, record: &ReviewRecord, took: Duration) {
        self.review_seconds.observe(took.as_secs_f64());
        self.reviews
            .get_or_create(&ReviewLabels {
                kind: record.kind_label(),
                result: record.outcome.as_str(),
                mode: match record.mode {
                    Mode::Enforce => "Enforce",
                    Mode::Warn => "Warn",
                    Mode::Off => "Off",
                },
            })
            .inc();
        for reason in &record.reasons {
            let reason = reason.as_str();
            self.findings.get_or_create(&ReasonLabel { reason }).inc();
        }
    }

    /// Counts a failure. `reason` is one of a fixed set of words.
    pub(super) fn failed(&self, reason: &'static str) {
        self.errors.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn certificate_taken(&self, not_after: i64) {
        self.certificate_expiry.set(not_after);
        self.reloaded("taken");
    }

    pub(super) fn certificate_unusable(&self) {
        self.reloaded("unusable");
    }

    fn reloaded(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.certificate_reloads.get_or_create(&label).inc();
    }

    /// The exposition in the `OpenMetrics` text format.
    pub(super) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: prometheus_client::registry::Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}
