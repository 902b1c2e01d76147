//! What a publisher of the operator counts, as its metrics have it.

use anyhow::{Context, Result};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use vestibule_operator::publish::Publisher;

/// How many proxies are connected.
pub(super) fn connected(publisher: &Publisher) -> Result<u64> {
    series(publisher, "proxies")
}

/// The bytes of the batches that were sent to any proxy.
pub(super) fn sent_bytes(publisher: &Publisher) -> Result<u64> {
    series(publisher, "sent_bytes_total")
}

fn series(publisher: &Publisher, name: &str) -> Result<u64> {
    let mut registry = Registry::default();
    publisher.metrics().register(&mut registry);
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    let name = format!("vestibule_operator_stream_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    let value = value.with_context(|| format!("there is no metric {name}"))?;
    Ok(value.parse()?)
}
