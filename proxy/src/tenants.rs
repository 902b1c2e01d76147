//! Owns the usage counters for each pair of Gateway and tenant. The labels come from the configuration and never from
//! the network. A series exists as long as the pair has a listener, or a connection on one. The number of series is
//! bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};

/// Most pairs of Gateway and tenant with series of their own: those that were first. The others share one series with
/// empty labels.
const MAX_SERIES: usize = 1000;

/// Counters of the connections and requests of one tenant on one Gateway.
#[derive(Debug, Default)]
pub struct TenantUsage {
    /// Connections that a listener was selected for.
    pub connections: Counter,
    /// Those of them that are open now.
    pub active: Gauge,
    /// HTTP requests answered.
    pub requests: Counter,
    /// The same, by the first digit of the status, from 1 on.
    pub answers: [Counter; 5],
    /// Bytes from clients.
    pub bytes_in: Counter,
    /// Bytes to clients.
    pub bytes_out: Counter,
}

type Key = (Arc<str>, Arc<str>);

/// The usage of every tenant that has a listener. Clones share it.
#[derive(Clone, Default)]
pub struct Tenants(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    usages: BTreeMap<Key, Weak<TenantUsage>>,
    /// The counters of pairs that came when there were already [`MAX_SERIES`].
    others: Option<Arc<TenantUsage>>,
}

impl fmt::Debug for Tenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.lock().usages.len();
        f.debug_tuple("Tenants").field(&known).finish()
    }
}

impl Tenants {
    /// The counters of `tenant` on `gateway`. They are the same ones as long as anything holds them.
    pub(crate) fn usage(&self, gateway: &Arc<str>, tenant: &Arc<str>) -> Arc<TenantUsage> {
        let mut all = self.0.lock();
        let key = (Arc::clone(gateway), Arc::clone(tenant));
        if let Some(usage) = all.usages.get(&key).and_then(Weak::upgrade) {
            return usage;
        }
        if all.usages.len() >= MAX_SERIES {
            if let Some(others) = &all.others {
                return Arc::clone(others);
            }
            all.forget();
        }
        if all.usages.len() >= MAX_SERIES {
            return Arc::clone(all.others.get_or_insert_default());
        }
        let usage = Arc::new(TenantUsage::default());
        all.usages.insert(key, Arc::downgrade(&usage));
        usage
    }

    /// The series to expose. Pairs that are gone are removed first.
    fn series(&self) -> Vec<(Key, Sample)> {
        let mut all = self.0.lock();
        all.forget();
        let own = all.usages.iter().filter_map(|(key, usage)| {
            let usage = usage.upgrade()?;
            Some((key.clone(), Sample::of(&usage)))
        });
        let others = all.others.as_deref();
        let others = others.map(|others| (("".into(), "".into()), Sample::of(others)));
        own.chain(others).collect()
    }
}

impl All {
    fn forget(&mut self) {
        self.usages.retain(|_, usage| usage.strong_count() > 0);
    }
}

/// The values of one pair at one time.
#[derive(Clone, Copy)]
struct Sample {
    connections: u64,
    active: i64,
    requests: u64,
    answers: [u64; 5],
    bytes_in: u64,
    bytes_out: u64,
}

impl Sample {
    fn of(usage: &TenantUsage) -> Self {
        Self {
            connections: usage.connections.get(),
            active: usage.active.get(),
            requests: usage.requests.get(),
            answers: usage.answers.each_ref().map(Counter::get),
            bytes_in: usage.bytes_in.get(),
            bytes_out: usage.bytes_out.get(),
        }
    }
}

type ValueOf = fn(&Sample) -> u64;

impl Collector for Tenants {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let series = self.series();
        let counters: [(&str, &str, ValueOf); 4] = [
            (
                "tenant_connections",
                "Connections that a listener of the tenant was selected for",
                |sample| sample.connections,
            ),
            (
                "tenant_requests",
                "HTTP requests that a listener of the tenant was selected for",
                |sample| sample.requests,
            ),
            (
                "tenant_received_bytes",
                "Bytes received from the tenant's clients",
                |sample| sample.bytes_in,
            ),
            (
                "tenant_sent_bytes",
                "Bytes sent to the tenant's clients",
                |sample| sample.bytes_out,
            ),
        ];
        for (name, help, value) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for ((gateway, tenant), sample) in &series {
                let labels = [("gateway", &**gateway), ("tenant", &**tenant)];
                let family = metric.encode_family(&labels)?;
                ConstCounter::new(value(sample)).encode(family)?;
            }
        }
        let (name, help) = (
            "tenant_responses",
            "HTTP requests of the tenant answered, by class of status code",
        );
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((gateway, tenant), sample) in &series {
            let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
            for (class, count) in classes.iter().zip(sample.answers) {
                if count > 0 {
                    let (gateway, tenant) = (("gateway", &**gateway), ("tenant", &**tenant));
                    let labels = [gateway, tenant, ("class", *class)];
                    ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        let (name, help) = (
            "tenant_connections_active",
            "Connections of the tenant that are open now",
        );
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((gateway, tenant), sample) in &series {
            let labels = [("gateway", &**gateway), ("tenant", &**tenant)];
            let family = metric.encode_family(&labels)?;
            ConstGauge::new(sample.active).encode(family)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiry::Expiries;
    use crate::metrics::Metrics;
    use crate::quota::TenantQuotas;

    #[test]
    fn series_come_and_go_with_listeners_and_are_bounded() {
        let tenants = Tenants::default();
        let metrics = Metrics::observing(
            tenants.clone(),
            TenantQuotas::default(),
            Expiries::default(),
        );
        let gateway: Arc<str> = "infra/edge".into();
        let first = tenants.usage(&gateway, &"team-a".into());
        first.connections.inc();
        first.active.inc();
        tenants.usage(&gateway, &"team-a".into()).connections.inc();
        let text = metrics.encode().unwrap();
        for line in [
            "vestibule_proxy_tenant_connections_total{gateway=\"infra/edge\",tenant=\"team-a\"} 2",
            "vestibule_proxy_tenant_connections_active{gateway=\"infra/edge\",tenant=\"team-a\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        drop(first);
        assert!(!metrics.encode().unwrap().contains("team-a"));

        let many: Vec<_> = (0..MAX_SERIES + 5)
            .map(|n| tenants.usage(&gateway, &format!("team-{n:05}").into()))
            .collect();
        for usage in &many {
            usage.requests.inc();
        }
        let text = metrics.encode().unwrap();
        let series = text
            .lines()
            .filter(|l| l.contains("tenant_requests_total{"));
        assert_eq!(series.count(), MAX_SERIES + 1);
        let others = "vestibule_proxy_tenant_requests_total{gateway=\"\",tenant=\"\"} 5";
        assert!(text.lines().any(|l| l == others), "{text}");
    }
}
