//! Owns the expiry of certificates: a time series for each of those that expire first, and log lines about certificates
//! that have expired and are still served.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};

use crate::pack::pack;

/// How many certificates have a series of their own; these are the first to expire. The others share one series with
/// empty labels, which has the earliest expiry among them.
const MAX_SERIES: usize = 1000;
/// Most log lines at one time.
const MAX_LINES: usize = 10;
/// How often [`Expiries::watch`] looks for certificates that have expired.
const EVERY: Duration = Duration::from_secs(30);
/// Seconds until an expired certificate is logged again.
const AGAIN: i64 = 3600;

/// The present time, in seconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    let now = DefaultTimeProvider.current_time();
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// When it expires, in seconds since the Unix epoch, and its name, `<namespace>/<secret>`.
type Expiry = (i64, Arc<str>);

/// The certificates held, by when they expire. Clones share it.
#[derive(Clone, Default)]
pub struct Expiries(Arc<Mutex<BTreeSet<Expiry>>>);

impl fmt::Debug for Expiries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expiries")
            .field(&self.0.lock().len())
            .finish()
    }
}

impl Expiries {
    pub(crate) fn add(&self, at: i64, name: &Arc<str>) {
        self.0.lock().insert((at, Arc::clone(name)));
    }

    pub(crate) fn remove(&self, at: i64, name: &Arc<str>) {
        self.0.lock().remove(&(at, Arc::clone(name)));
    }

    pub(crate) fn pack(&self) {
        pack(&mut *self.0.lock());
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Logs certificates that have expired, and never returns.
    pub(crate) async fn watch(self) {
        let mut spoken = Spoken::default();
        loop {
            let due = spoken.due(&self.0.lock(), now());
            for (at, name) in due.iter().take(MAX_LINES) {
                tracing::warn!(
                    certificate = &**name,
                    not_after = *at,
                    "a certificate has expired, and is served as nothing better is there"
                );
            }
            if let Some(more @ 1..) = due.len().checked_sub(MAX_LINES) {
                tracing::warn!(more, "further certificates have expired and are served");
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Which expired certificates were already logged.
#[derive(Default)]
struct Spoken {
    said: BTreeSet<Expiry>,
    /// When all of them are logged again, in seconds since the Unix epoch.
    again: i64,
}

impl Spoken {
    /// The expired certificates that have to be logged now.
    fn due(&mut self, held: &BTreeSet<Expiry>, now: i64) -> Vec<Expiry> {
        if now >= self.again {
            self.again = now.saturating_add(AGAIN);
            self.said.clear();
        }
        // A certificate is still valid in its last second.
        let expired = held.iter().take_while(|(at, _)| *at < now);
        let due: Vec<_> = expired
            .filter(|expiry| !self.said.contains(*expiry))
            .cloned()
            .collect();
        self.said.extend(due.iter().cloned());
        due
    }
}

impl Collector for Expiries {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // The lock is not held while text is written.
        let first: Vec<Expiry> = {
            let all = self.0.lock();
            all.iter().take(MAX_SERIES + 1).cloned().collect()
        };
        let mut metric = encoder.encode_descriptor(
            "certificate_expiry_timestamp",
            "When a certificate that is held expires, since the Unix epoch; of those with empty labels, the first",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        for (index, (at, name)) in first.iter().enumerate() {
            let (tenant, secret) = match name.split_once('/') {
                Some(parts) if index < MAX_SERIES => parts,
                _ => ("", ""),
            };
            let labels = [("tenant", tenant), ("secret", secret)];
            ConstGauge::new(*at).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::quota::TenantQuotas;
    use crate::tenants::Tenants;

    fn name(number: usize) -> Arc<str> {
        format!("team-a/cert-{number:05}").into()
    }

    #[test]
    fn series_are_of_the_first_to_expire() {
        let expiries = Expiries::default();
        let metrics = Metrics::observing(
            Tenants::default(),
            TenantQuotas::default(),
            expiries.clone(),
        );
        let series = || {
            let text = metrics.encode().unwrap();
            let lines = text.lines().map(ToOwned::to_owned);
            lines
                .filter(|line| {
                    line.starts_with("vestibule_proxy_certificate_expiry_timestamp_seconds{")
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(series(), Vec::<String>::new());
        for number in 0..MAX_SERIES + 5 {
            expiries.add(i64::try_from(number).unwrap(), &name(number));
        }
        let lines = series();
        assert_eq!(lines.len(), MAX_SERIES + 1);
        assert!(lines[7].ends_with("{tenant=\"team-a\",secret=\"cert-00007\"} 7"));
        assert!(lines[MAX_SERIES].ends_with("{tenant=\"\",secret=\"\"} 1000"));
        for number in 0..MAX_SERIES {
            expiries.remove(i64::try_from(number).unwrap(), &name(number));
        }
        let lines = series();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].ends_with("{tenant=\"team-a\",secret=\"cert-01000\"} 1000"));
    }

    #[test]
    fn certificate_that_has_expired_is_logged_once_an_hour() {
        let held = BTreeSet::from([(100, name(0)), (200, name(1))]);
        let mut spoken = Spoken::default();
        let mut due = |now| spoken.due(&held, now).len();
        assert_eq!(due(100), 0);
        assert_eq!(due(101), 1);
        assert_eq!(due(130), 0);
        assert_eq!(due(201), 1);
        assert_eq!(due(99 + AGAIN), 0);
        assert_eq!(due(100 + AGAIN), 2);
    }
}
