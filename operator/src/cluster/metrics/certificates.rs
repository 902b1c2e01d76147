//! Keeps metrics about certificates: `vestibule_operator_certificate_*` and `vestibule_operator_acme_*`. The number of
//! labels is limited. Beyond a number of certificates or issuers, the others share empty labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use vestibule_model::key::ObjectName;

/// Largest number of certificates with labels of their own.
const NAMED: usize = 1000;
/// Largest number of issuers with labels of their own.
const ISSUERS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OrderLabels {
    issuer: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    issuer: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineLabel {
    engine: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SecretLabels {
    // The label is not called `namespace`, since that is the namespace of the scraped pod.
    tenant: String,
    secret: String,
}

/// Handles to the metrics. Clones share the same metrics.
#[derive(Debug, Clone)]
pub(in super::super) struct Certificates {
    begin: Arc<Times>,
    expiry: Arc<Times>,
    renewal: Arc<Times>,
    orders: Family<OrderLabels, Counter>,
    issuers: Arc<Mutex<BTreeSet<String>>>,
    requests: Family<RequestLabels, Counter>,
    panics: Counter,
    writes: Family<WriteLabels, Counter>,
    waiting: Family<ReasonLabel, Gauge>,
    ready: Family<EngineLabel, Histogram>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            begin: Times::new(
                "certificate_not_before_timestamp_seconds",
                "When a certificate that listeners use begins, in seconds since 1970; without labels the \
                 earliest of those that have none of their own",
            ),
            expiry: Times::new(
                "certificate_expiry_timestamp_seconds",
                "When a certificate that listeners use ends, in seconds since 1970; without labels the \
                 earliest of those that have none of their own",
            ),
            renewal: Times::new(
                "certificate_renewal_timestamp_seconds",
                "When the built-in engine means to renew a certificate, in seconds since 1970",
            ),
            orders: Family::default(),
            issuers: Arc::default(),
            requests: Family::default(),
            panics: Counter::default(),
            writes: Family::default(),
            waiting: Family::default(),
            // The buckets go from 0.25 s to 4.5 h.
            ready: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.25, 2.0, 17))
            }),
        }
    }
}

impl Certificates {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Arc::clone(&self.begin)));
        registry.register_collector(Box::new(Arc::clone(&self.expiry)));
        registry.register_collector(Box::new(Arc::clone(&self.renewal)));
        registry.register(
            "acme_orders",
            "Orders of the built-in engine, by issuer and outcome",
            self.orders.clone(),
        );
        registry.register(
            "acme_requests",
            "Requests to CAs, by issuer and result",
            self.requests.clone(),
        );
        registry.register(
            "acme_task_panics",
            "Tasks of the built-in engine that panicked, which is a fault of Vestibule's; they are tried again",
            self.panics.clone(),
        );
        registry.register(
            "certificate_writes",
            "Writes of cert-manager's Certificates, by action and result",
            self.writes.clone(),
        );
        registry.register(
            "acme_waiting",
            "Certificates of the built-in engine that wait, by what for",
            self.waiting.clone(),
        );
        registry.register_with_unit(
            "certificate_ready",
            "Time from an accepted listener to its certificate at every proxy, by engine",
            Unit::Seconds,
            self.ready.clone(),
        );
    }

    /// Sets when the certificate in a Secret begins and ends to be valid; `None` if there is none.
    pub(in super::super) fn lasts(&self, secret: &ObjectName, times: Option<(i64, i64)>) {
        let (begin, end) = times.unzip();
        self.begin.set(secret, begin);
        self.expiry.set(secret, end);
    }

    /// Sets when the certificate in a Secret will be renewed.
    pub(in super::super) fn renews(&self, secret: &ObjectName, at: Option<i64>) {
        self.renewal.set(secret, at);
    }

    /// Removes all times of renewal, since this replica no longer renews certificates.
    pub(in super::super) fn renews_nothing(&self) {
        self.renewal.at.lock().clear();
        self.waiting.clear();
    }

    /// Counts an order that has ended.
    pub(in super::super) fn order(&self, issuer: String, outcome: &'static str) {
        let issuer = self.named(issuer);
        self.orders
            .get_or_create(&OrderLabels { issuer, outcome })
            .inc();
    }

    /// Counts a request to a CA.
    pub(in super::super) fn request(&self, issuer: String, result: &'static str) {
        let issuer = self.named(issuer);
        self.requests
            .get_or_create(&RequestLabels { issuer, result })
            .inc();
    }

    /// Counts a panic in a task of the built-in engine.
    pub(in super::super) fn panicked(&self) {
        self.panics.inc();
    }

    /// Counts a write of a Certificate of cert-manager, and whether it succeeded.
    pub(in super::super) fn wrote(&self, action: &'static str, written: bool) {
        let result = if written { "written" } else { "failed" };
        self.writes
            .get_or_create(&WriteLabels { action, result })
            .inc();
    }

    /// Returns the label of an issuer. It is empty if there are too many issuers.
    fn named(&self, issuer: String) -> String {
        let mut issuers = self.issuers.lock();
        if issuers.len() < ISSUERS || issuers.contains(&issuer) {
            issuers.insert(issuer.clone());
            issuer
        } else {
            String::new()
        }
    }

    /// Sets how many certificates wait for this reason.
    pub(in super::super) fn waiting(&self, reason: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting
            .get_or_create(&ReasonLabel { reason })
            .set(count);
    }

    /// Records how long it took from the request for a certificate until the proxies had it.
    pub(in super::super) fn ready(&self, engine: &'static str, after: Duration) {
        self.ready
            .get_or_create(&EngineLabel { engine })
            .observe(after.as_secs_f64());
    }
}

/// A metric with a time for each Secret.
#[derive(Debug)]
struct Times {
    name: &'static str,
    help: &'static str,
    at: Mutex<BTreeMap<ObjectName, i64>>,
}

impl Times {
    fn new(name: &'static str, help: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            help,
            at: Mutex::default(),
        })
    }

    fn set(&self, secret: &ObjectName, at: Option<i64>) {
        let mut times = self.at.lock();
        match at {
            Some(at) => times.insert(secret.clone(), at),
            None => times.remove(secret),
        };
    }
}

impl Collector for Times {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let times = self.at.lock();
        let mut family =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        for (name, at) in times.iter().take(NAMED) {
            let labels = SecretLabels {
                tenant: name.namespace.to_string(),
                secret: name.name.to_string(),
            };
            ConstGauge::new(*at).encode(family.encode_family(&labels)?)?;
        }
        if let Some(earliest) = times.values().skip(NAMED).min() {
            let labels = SecretLabels {
                tenant: String::new(),
                secret: String::new(),
            };
            ConstGauge::new(*earliest).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn labels_are_bounded_and_the_earliest_of_the_rest_is_there() {
        let metrics = Certificates::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        for index in 0..NAMED + 5 {
            let name = ObjectName::new("a", format!("s{index:05}"));
            let end = i64::try_from(index).unwrap();
            metrics.lasts(&name, Some((0, end)));
        }
        metrics.lasts(&ObjectName::new("a", "s00000"), None);
        for index in 0..ISSUERS + 5 {
            metrics.order(format!("ACMEIssuer/a/{index}"), "issued");
        }
        metrics.wrote("create", true);
        metrics.wrote("delete", false);
        metrics.panicked();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "certificate_writes_total{action=\"create\",result=\"written\"} 1",
            "certificate_writes_total{action=\"delete\",result=\"failed\"} 1",
            "acme_task_panics_total 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let series = |prefix: &str| text.lines().filter(|l| l.starts_with(prefix)).count();
        assert_eq!(series("certificate_expiry_timestamp_seconds{"), NAMED + 1);
        assert!(
            text.contains("timestamp_seconds{tenant=\"\",secret=\"\"} 1001\n"),
            "{text}"
        );
        assert!(!text.contains("s00000"));
        assert_eq!(series("acme_orders_total{"), ISSUERS + 1);
        assert!(text.contains("acme_orders_total{issuer=\"\",outcome=\"issued\"} 5\n"));
    }
}
