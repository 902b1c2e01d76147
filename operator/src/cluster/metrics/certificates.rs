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
use vestibule_model::key::{ObjectKey, ObjectName};

/// Largest number of certificates with labels of their own.
const NAMED: usize = 1000;
/// Largest number of `ClusterACMEIssuer`s with labels of their own. They have room of their own, because platform admins
/// make them and anybody's `ACMEIssuer`s could use up a common room.
const CLUSTER_ISSUERS: usize = 50;
/// Largest number of `ACMEIssuer`s with labels of their own.
const ISSUERS: usize = 100;
/// Largest number of them in one namespace.
const ISSUERS_OF_ONE: usize = 10;

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
    /// The issuers with labels of their own.
    issuers: Arc<Mutex<BTreeSet<ObjectKey>>>,
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
    pub(in super::super) fn order(&self, issuer: &ObjectKey, outcome: &'static str) {
        let issuer = self.named(issuer);
        self.orders
            .get_or_create(&OrderLabels { issuer, outcome })
            .inc();
    }

    /// Counts a request to a CA.
    pub(in super::super) fn request(&self, issuer: &ObjectKey, result: &'static str) {
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
    fn named(&self, issuer: &ObjectKey) -> String {
        let mut issuers = self.issuers.lock();
        if !issuers.contains(issuer) {
            let namespace = &issuer.name.namespace;
            let namespaces = issuers.iter().map(|other| &other.name.namespace);
            let of_teams = namespaces.clone().filter(|of| !of.is_empty()).count();
            let of_cluster = issuers.len() - of_teams;
            let of_one = namespaces.filter(|of| *of == namespace).count();
            let is_full = if namespace.is_empty() {
                of_cluster >= CLUSTER_ISSUERS
            } else {
                of_teams >= ISSUERS || of_one >= ISSUERS_OF_ONE
            };
            if is_full {
                return String::new();
            }
            issuers.insert(issuer.clone());
        }
        label(issuer)
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

fn label(issuer: &ObjectKey) -> String {
    let ObjectKey { kind, name } = issuer;
    if name.namespace.is_empty() {
        format!("{kind}/{}", name.name)
    } else {
        format!("{kind}/{}/{}", name.namespace, name.name)
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
    use vestibule_model::key::Kind;

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
    }

    #[test]
    fn the_issuers_of_teams_use_up_no_labels_of_others() {
        let metrics = Certificates::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let order = |namespace: &str, index: usize| {
            let kind = match namespace {
                "" => Kind::ClusterAcmeIssuer,
                _ => Kind::AcmeIssuer,
            };
            let issuer = ObjectKey::new(kind, namespace, index.to_string());
            metrics.order(&issuer, "issued");
        };
        let series = |begin: &str| {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let begin = format!("acme_orders_total{{issuer=\"{begin}");
            text.lines().filter(|line| line.starts_with(&begin)).count()
        };
        // One team has very many, and another one comes later.
        for index in 0..ISSUERS + 5 {
            order("a", index);
        }
        order("b", 0);
        assert_eq!(series("ACMEIssuer/a/"), ISSUERS_OF_ONE);
        assert_eq!(series("ACMEIssuer/b/0\""), 1);
        // Many teams have as many as they may, and the platform admins come later.
        for team in 0..ISSUERS {
            for index in 0..ISSUERS_OF_ONE {
                order(&format!("team-{team}"), index);
            }
        }
        assert_eq!(series("ACMEIssuer/"), ISSUERS);
        for index in 0..CLUSTER_ISSUERS + 5 {
            order("", index);
        }
        assert_eq!(series("ClusterACMEIssuer/"), CLUSTER_ISSUERS);
        // The others share a series. An issuer keeps its label.
        assert_eq!(series("\""), 1);
        order("a", 0);
        assert_eq!(series(""), ISSUERS + CLUSTER_ISSUERS + 1);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let twice = "acme_orders_total{issuer=\"ACMEIssuer/a/0\",outcome=\"issued\"} 2\n";
        assert!(text.contains(twice), "{text}");
    }
}
